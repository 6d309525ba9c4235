//! Putting again what was lost with its server.

use std::collections::HashMap;

use geartrain_core::{Jid, Refusal};

use super::Shared;
use super::error::{ClientError, ServerError};
use super::record::OpenJob;
use crate::packet::{Request, Response};

/// Which of the jobs that are not known to be done are put again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResubmitScope {
    /// Those whose server cannot be reached or is no longer in the URL, on another one; and those that no server is known to have taken.
    #[default]
    Lost,
    /// Also those whose server is there and does not know them: it gets them anew, whether it forgot them because it was restarted or because they ended.
    All,
}

/// What putting again came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Resubmitted {
    /// The jobs that were put again, by their new names.
    pub resubmitted: Vec<Jid>,
    /// How many were left alone because their servers know them: they wait or run.
    pub known: u64,
    /// How many were left alone though their servers, which are there, do not know them. They have ended, or were lost when the server was restarted.
    pub unknown: u64,
    /// How many could be put nowhere, because no other server answers, or the one that does refuses them. They stay in the record.
    pub not_accepted: u64,
}

impl Shared {
    pub(super) async fn resubmit(&self, which: ResubmitScope) -> Result<Resubmitted, ClientError> {
        let no_record = || Refusal::BadArgument {
            what: "record".into(),
            why: "is missing: name the file, as in gearman://HOST?record=FILE".to_owned(),
        };
        let record = self.record.clone().ok_or_else(no_record)?;
        let mut done = Resubmitted::default();
        let mut there = HashMap::new();
        for open in record.open_jobs().await? {
            self.resubmit_one(&open, which, &mut there, &mut done).await?;
        }
        record.compact().await?;
        Ok(done)
    }

    /// Whether a server is there, which is looked at once.
    async fn is_reachable(&self, server: &str, there: &mut HashMap<String, bool>) -> bool {
        if let Some(known) = there.get(server) {
            return *known;
        }
        let is_there = match self.servers.index_of(server) {
            Some(place) => self.servers.get(place).connection().await.is_ok(),
            None => false,
        };
        there.insert(server.to_owned(), is_there);
        is_there
    }

    /// Puts one job again, if it is one of those.
    async fn resubmit_one(
        &self,
        open: &OpenJob,
        which: ResubmitScope,
        there: &mut HashMap<String, bool>,
        done: &mut Resubmitted,
    ) -> Result<(), ClientError> {
        let is_there = self.is_reachable(&open.server, there).await;
        let place = self.servers.index_of(&open.server).filter(|_| is_there);
        if let Some(place) = place {
            if self.is_known(place, open.recorded.unique.as_bytes()).await? {
                done.known += 1;
                return Ok(());
            }
            if open.handle.is_some() && which == ResubmitScope::Lost {
                done.unknown += 1;
                return Ok(());
            }
        }
        let without: Vec<usize> = match place {
            // It goes to the server that may have it: there, its key sees to it that there is only one.
            Some(place) => (0..self.servers.len()).filter(|other| *other != place).collect(),
            None => self.unreachable_servers(there).await,
        };
        if without.len() == self.servers.len() {
            done.not_accepted += 1;
            return Ok(());
        }
        let id = Some(open.recorded.id.clone());
        match self.submit(&open.recorded.submission(), id, &without).await {
            Ok(taken) => {
                self.watch_job(&taken);
                done.resubmitted.push(taken.jid);
                Ok(())
            }
            Err(ClientError::Failed(trouble))
                if trouble.is_transient() || matches!(trouble, ServerError::Refused { .. }) =>
            {
                tracing::warn!(%trouble, id = open.recorded.id, "a job could not be put again");
                done.not_accepted += 1;
                Ok(())
            }
            Err(undone) => Err(undone),
        }
    }

    async fn unreachable_servers(&self, there: &mut HashMap<String, bool>) -> Vec<usize> {
        let mut unreached = Vec::new();
        for place in 0..self.servers.len() {
            if !self.is_reachable(&self.servers.get(place).name, there).await {
                unreached.push(place);
            }
        }
        unreached
    }

    /// Whether a server has an unfinished job with this key. Its handle says less: servers that were restarted give the same ones to other jobs.
    async fn is_known(&self, place: usize, unique: &[u8]) -> Result<bool, ServerError> {
        let server = self.servers.get(place);
        match server.connection().await?.request(Request::GetStatusUnique { unique }).await? {
            Response::StatusUnique { status, .. } => Ok(status.known),
            _ => {
                let what = "no status where one was asked for".to_owned();
                Err(ServerError::Protocol { server: server.name.clone(), what })
            }
        }
    }
}
