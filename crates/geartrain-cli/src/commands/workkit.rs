//! WorkKit schedules: the flags that only they have, `put --nonce` and `work --all`.

use std::sync::Arc;

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

/// Puts a job that runs in the second of a time, or the next one. The put is sent as of that second: the time from
/// now until then would end a moment later, in the second after it.
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

/// Refuses a worker that does not say which functions it can run: others would be taken from listeners that can.
pub(super) fn check_klasses(target: &Target, klasses: &[Klass], all: bool) -> Result<(), Failure> {
    match target {
        Target::WorkKit(url) if klasses.is_empty() && !all && !url.takes_all() => Err(Failure::Usage(
            "name the functions to run with --klass, or take all named functions with --all".to_owned(),
        )),
        Target::WorkKit(_) => Ok(()),
        _ if all => Err(Failure::Usage(
            "--all is for WorkKit schedules; elsewhere all klasses are taken unless --klass is given"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}
