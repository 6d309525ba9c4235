//! Worqr's queues: `cancel --queue --payload`.

use geartrain::{Error, Target, WorqrBackend};
use serde_json::json;

use super::change::CancelArgs;
use super::{Done, put};
use crate::failure::Failure;
use crate::output::Output;
use crate::text::count;

/// Whether a URL names queues of Worqr.
pub(super) fn is_worqr(url: &str) -> bool {
    matches!(Target::of(url), Ok(Target::Worqr(_)))
}

/// Cancels all jobs of a queue with a payload, which have no ids while they wait.
pub(super) async fn cancel(url: &str, args: CancelArgs, out: &mut Output<'_>) -> Done {
    args.bulk.check_unused()?;
    let Target::Worqr(url) = Target::of(url)? else {
        let why =
            "--payload is for Worqr's queues, where jobs have no ids; elsewhere name them, or use --where";
        return Err(Failure::Usage(why.to_owned()));
    };
    let Some(queue) = args.queue else { return Err(Failure::Usage("--payload needs --queue".to_owned())) };
    let payload = put::read_payload(args.payload.as_ref())?;
    let unreachable = |source| Error::Connect { url: url.to_string(), source };
    let backend = WorqrBackend::connect(url.clone()).await.map_err(unreachable)?;
    let cancelled = backend.cancel_tasks(queue, payload).await.map_err(Error::from)?;
    let text = format!("{} cancelled; workers that run one are told", count(cancelled, "waiting job"));
    Ok(out.line(&json!({ "cancelled": cancelled }), text)?)
}
