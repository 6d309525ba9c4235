//! WorkKit schedules: the flags that only they have, `put --nonce`, `work --all` and `work --literals`.

use std::sync::Arc;

use clap::Args;
use geartrain::{
    Call, Client, Error, Klass, Operation, Put, PutReply, Seconds, Target, Timestamp, WorkKitBackend,
    WorkKitUrl,
};

use super::put::{self, PutArgs};
use crate::failure::Failure;
use crate::output::Output;

/// Whether a URL names WorkKit schedules.
pub(super) fn is_workkit(url: &str) -> bool {
    matches!(Target::of(url), Ok(Target::WorkKit(_)))
}

/// Puts a job into a schedule.
pub(super) async fn put(url: &str, mut args: PutArgs, out: &mut Output<'_>) -> Result<(), Failure> {
    let nonce = args.nonce;
    args.sends_time = true;
    let change = |url: WorkKitUrl| if nonce { url.with_nonce() } else { url };
    put::put(&connect(url, "--nonce", change).await?, args, out).await
}

/// Puts a job that runs in the second of a time, or the next one. The put is sent as of that second: the time
/// from now until then would end a moment later, in the second after it.
pub(super) async fn put_at(client: &Client, put: Put, at: Timestamp) -> Result<PutReply, Error> {
    let second = at.floor();
    let second = if second == at { at } else { second + Seconds::from(1) };
    let put = Put { delay: Seconds::ZERO, ..put };
    let answer = client.batch(vec![Call::at(second, put)]).await?.pop().ok_or(Error::WrongAnswer)?;
    Put::answer(answer?).ok_or(Error::WrongAnswer)
}

/// Connects to the schedules of a URL, changed as a flag says.
pub(super) async fn connect(
    url: &str,
    flag: &str,
    change: impl FnOnce(WorkKitUrl) -> WorkKitUrl,
) -> Result<Client, Failure> {
    let Target::WorkKit(url) = Target::of(url)? else {
        return Err(Failure::Usage(format!(
            "{flag} is for WorkKit schedules: give --url workkit+redis://HOST:PORT"
        )));
    };
    match WorkKitBackend::connect(change(url.clone())).await {
        Ok(backend) => Ok(Client::new(Arc::new(backend))),
        Err(source) => Err(Error::Connect { url: url.to_string(), source }.into()),
    }
}

/// Which jobs of a schedule a worker takes, beside those of its klasses.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct TakeArgs {
    /// Take the jobs of all named functions, also those that another listener could run
    #[arg(long, conflicts_with = "klasses", help_heading = "WorkKit schedules")]
    all: bool,
    /// Take function literals too: the program gets {"job": TEXT, "args": [...]}, with the klass literal
    #[arg(long, help_heading = "WorkKit schedules")]
    literals: bool,
}

impl TakeArgs {
    /// Refuses a worker that does not say which functions it can run: others would be taken from listeners
    /// that can.
    pub(super) fn check(self, target: &Target, klasses: &[Klass]) -> Result<(), Failure> {
        match target {
            Target::WorkKit(url) if klasses.is_empty() && !self.is_given() && !url.takes_without_klass() => {
                let why = "name the functions to run with --klass, or take all named functions with --all";
                Err(Failure::Usage(why.to_owned()))
            }
            Target::WorkKit(_) => Ok(()),
            _ if self.is_given() => {
                let flag = if self.all { "--all" } else { "--literals" };
                let why = "elsewhere all klasses are taken unless --klass is given";
                Err(Failure::Usage(format!("{flag} is for WorkKit schedules; {why}")))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn is_given(self) -> bool {
        self.all || self.literals
    }

    pub(super) async fn connect(self, url: &str) -> Result<Client, Failure> {
        let change = |url: WorkKitUrl| {
            let url = if self.all { url.with_all() } else { url };
            if self.literals { url.with_literals() } else { url }
        };
        connect(url, "--all", change).await
    }
}
