//! Resubmission: puts recorded jobs again that were lost with their server.

use std::collections::HashMap;

use geartrain_core::{Jid, Refusal};

use super::Shared;
use super::error::{ClientError, ServerError};
use super::record::OpenJob;
use crate::packet::{Request, Response};

/// Which of the jobs not known to be done are put again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResubmitScope {
    /// Jobs whose server is unreachable or no longer in the URL go to another server; also jobs that no
    /// server is known to have accepted.
    #[default]
    Lost,
    /// Also jobs that their reachable server does not know. It gets them again, whether it forgot them in a
    /// restart or because they ended.
    All,
}

/// The result of a resubmission.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Resubmitted {
    /// The jobs that were put again, by their new jids.
    pub resubmitted: Vec<Jid>,
    /// Jobs left alone because their servers know them: they wait or run.
    pub known: u64,
    /// Jobs left alone although their reachable servers do not know them: they have ended, or were lost when
    /// the server was restarted.
    pub unknown: u64,
    /// Jobs that no server accepted, because no other server answers or it refused them. They stay in the
    /// record.
    pub not_accepted: u64,
}

impl Shared {
    pub(super) async fn resubmit(&self, scope: ResubmitScope) -> Result<Resubmitted, ClientError> {
        let no_record = || Refusal::BadArgument {
            what: "record".into(),
            why: "is missing: name the file, as in gearman://HOST?record=FILE".to_owned(),
        };
        let record = self.record.clone().ok_or_else(no_record)?;
        let mut done = Resubmitted::default();
        let mut reachable = HashMap::new();
        for open in record.open_jobs().await? {
            self.resubmit_one(&open, scope, &mut reachable, &mut done).await?;
        }
        record.compact().await?;
        Ok(done)
    }

    /// Whether a server is reachable; tried once per resubmission.
    async fn is_reachable(&self, server: &str, reachable: &mut HashMap<String, bool>) -> bool {
        if let Some(known) = reachable.get(server) {
            return *known;
        }
        let is_reachable = match self.servers.index_of(server) {
            Some(index) => self.servers.get(index).connection().await.is_ok(),
            None => false,
        };
        reachable.insert(server.to_owned(), is_reachable);
        is_reachable
    }

    /// Puts one job again, if it is in scope.
    async fn resubmit_one(
        &self,
        open: &OpenJob,
        scope: ResubmitScope,
        reachable: &mut HashMap<String, bool>,
        done: &mut Resubmitted,
    ) -> Result<(), ClientError> {
        let is_reachable = self.is_reachable(&open.server, reachable).await;
        let index = self.servers.index_of(&open.server).filter(|_| is_reachable);
        if let Some(index) = index {
            if self.is_known(index, open.recorded.unique.as_bytes()).await? {
                done.known += 1;
                return Ok(());
            }
            if open.handle.is_some() && scope == ResubmitScope::Lost {
                done.unknown += 1;
                return Ok(());
            }
        }
        let excluded: Vec<usize> = match index {
            // Goes to the server that may have it: there, its key prevents a second job.
            Some(index) => (0..self.servers.len()).filter(|other| *other != index).collect(),
            None => self.unreachable_servers(reachable).await,
        };
        if excluded.len() == self.servers.len() {
            done.not_accepted += 1;
            return Ok(());
        }
        let id = Some(open.recorded.id.clone());
        match self.submit(&open.recorded.submission(), id, &excluded).await {
            Ok(accepted) => {
                self.watch_job(&accepted);
                done.resubmitted.push(accepted.jid);
                Ok(())
            }
            Err(ClientError::Failed(error))
                if error.is_transient() || matches!(error, ServerError::Refused { .. }) =>
            {
                tracing::warn!(%error, id = open.recorded.id, "a job could not be resubmitted");
                done.not_accepted += 1;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn unreachable_servers(&self, reachable: &mut HashMap<String, bool>) -> Vec<usize> {
        let mut unreachable = Vec::new();
        for index in 0..self.servers.len() {
            if !self.is_reachable(&self.servers.get(index).name, reachable).await {
                unreachable.push(index);
            }
        }
        unreachable
    }

    /// Whether a server has an unfinished job with this key. The handle would not tell: a restarted server
    /// gives the same handles to other jobs.
    async fn is_known(&self, index: usize, unique: &[u8]) -> Result<bool, ServerError> {
        let server = self.servers.get(index);
        match server.connection().await?.request(Request::GetStatusUnique { unique }).await? {
            Response::StatusUnique { status, .. } => Ok(status.known),
            _ => {
                let detail = "a reply to GET_STATUS_UNIQUE that is not a status".to_owned();
                Err(ServerError::Protocol { server: server.name.clone(), detail })
            }
        }
    }
}
