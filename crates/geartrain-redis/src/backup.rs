//! Backups of a geartrain server, over a connection of their own: dropping it cancels the backup.

use std::sync::Arc;

use geartrain_core::wire::{self, BackupReply, Request};
use geartrain_core::{BackendError, Backup, BackupStep, BackupTarget, Pending, Refusal};

use crate::connection::{Connection, ConnectionError, EncodedRequest};
use crate::driver::{Shared, broken};

const ON_A_REDIS: &str = "the jobs are in a Redis, which has its own backups: `redis-cli --rdb FILE` writes one \
                          over its connection, and docs/backup.md says how to restore it";

pub(crate) struct ServerBackup {
    shared: Arc<Shared>,
    connection: Connection,
}

impl ServerBackup {
    pub(crate) async fn begin(shared: Arc<Shared>, to: BackupTarget) -> Result<ServerBackup, BackendError> {
        let refused = |why: &str| Refusal::Backup { why: why.to_owned() };
        let directory = match to {
            BackupTarget::Archive => None,
            BackupTarget::Directory(path) => match path.into_os_string().into_string() {
                Ok(path) => Some(path),
                Err(_) => return Err(refused("the path of the directory is not UTF-8").into()),
            },
        };
        let connecting = shared.clone();
        let opened = shared.on_runtime(async move {
            let mut connection = connecting.connector.open(None).await?;
            let is_geartrain = connecting.connector.is_geartrain(&mut connection).await?;
            Ok::<_, ConnectionError>((connection, is_geartrain))
        });
        let (connection, is_geartrain) = opened.await.and_then(|opened| opened).map_err(broken)?;
        if !is_geartrain {
            return Err(refused(ON_A_REDIS).into());
        }
        let mut backup = ServerBackup { shared, connection };
        backup.ask(&Request::Backup { directory }).await?;
        Ok(backup)
    }

    /// Not repeated when the connection is lost: the backup has ended with it.
    async fn ask(&mut self, request: &Request) -> Result<BackupStep, BackendError> {
        let (connector, request) = (&self.shared.connector, EncodedRequest::new(request));
        let reply = connector.ask(&mut self.connection, &request, connector.url.patience).await;
        let reply: BackupReply = wire::decode(&reply.map_err(broken)?)
            .map_err(|error| broken(ConnectionError::Wire(error.into())))?;
        Ok(reply?)
    }
}

impl Backup for ServerBackup {
    fn next(&mut self) -> Pending<'_, BackupStep> {
        Box::pin(self.ask(&Request::BackupNext))
    }
}
