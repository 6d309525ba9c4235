//! Backups over RESP. The client asks for one step after the other and so sets the pace; the backup ends with
//! its connection.

use std::path::PathBuf;
use std::time::Duration;

use geartrain_core::wire::{self, BackupReply};
use geartrain_core::{Backend, BackendError, Backup, BackupStep, BackupTarget, Refusal};

/// How long a request waits for the next step. Meanwhile the connection does nothing else, and does not
/// notice that its client has gone.
const STEP_WAIT_MAX: Duration = Duration::from_secs(1);

/// The backup that a connection has begun, if any.
#[derive(Default)]
pub(crate) struct ConnectionBackup {
    running: Option<Box<dyn Backup>>,
    /// The last known progress.
    bytes: u64,
    bytes_expected: u64,
}

impl ConnectionBackup {
    /// Begins a backup. Only a client on this machine can have a directory written, because the path means
    /// nothing to others.
    pub(crate) async fn begin(
        &mut self,
        directory: Option<String>,
        client_is_local: bool,
        backend: &dyn Backend,
    ) -> Result<Vec<u8>, BackendError> {
        let begun = async {
            let to = target(directory, client_is_local)?;
            let running = backend.backup(to).await?;
            *self = ConnectionBackup { running: Some(running), ..ConnectionBackup::default() };
            Ok(self.copied())
        };
        encode(begun.await)
    }

    /// Waits for the next step.
    pub(crate) async fn next(&mut self) -> Result<Vec<u8>, BackendError> {
        let Some(running) = &mut self.running else {
            return encode(Err(refused("no backup was begun on this connection").into()));
        };
        let step = match tokio::time::timeout(STEP_WAIT_MAX, running.next()).await {
            Ok(step) => step,
            Err(_) => Ok(self.copied()),
        };
        match &step {
            Ok(BackupStep::Copied { bytes, bytes_expected }) => {
                (self.bytes, self.bytes_expected) = (*bytes, *bytes_expected);
            }
            Ok(BackupStep::Chunk(_)) => {}
            _ => self.running = None,
        }
        encode(step)
    }

    fn copied(&self) -> BackupStep {
        BackupStep::Copied { bytes: self.bytes, bytes_expected: self.bytes_expected }
    }
}

fn target(directory: Option<String>, client_is_local: bool) -> Result<BackupTarget, Refusal> {
    let Some(directory) = directory else { return Ok(BackupTarget::Archive) };
    if !client_is_local {
        return Err(refused(
            "a server writes a directory only for clients on its own machine, over a socket file or a loopback \
             address: make an archive with `geartrain backup - > FILE`",
        ));
    }
    let directory = PathBuf::from(directory);
    if directory.is_absolute() {
        Ok(BackupTarget::Directory(directory))
    } else {
        Err(refused("the path of the directory is relative: name an absolute one"))
    }
}

fn refused(why: &str) -> Refusal {
    Refusal::Backup { why: why.to_owned() }
}

/// A refusal is a reply too.
fn encode(step: Result<BackupStep, BackendError>) -> Result<Vec<u8>, BackendError> {
    let reply: BackupReply = match step {
        Ok(step) => Ok(step),
        Err(BackendError::Refused(refusal)) => Err(refusal),
        Err(broken) => return Err(broken),
    };
    Ok(wire::encode(&reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_written_only_for_a_client_on_this_machine_and_by_its_absolute_path() {
        let path = || Some("/mnt/copy".to_owned());
        assert_eq!(target(path(), true), Ok(BackupTarget::Directory("/mnt/copy".into())));
        assert_eq!(target(None, false), Ok(BackupTarget::Archive));
        let refusal = target(path(), false).unwrap_err().to_string();
        assert!(refusal.contains("`geartrain backup - > FILE`"), "{refusal}");
        let refusal = target(Some("copy".to_owned()), true).unwrap_err().to_string();
        assert!(refusal.contains("relative"), "{refusal}");
    }
}
