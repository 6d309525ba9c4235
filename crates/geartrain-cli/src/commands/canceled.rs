//! What is left of a cancelled job, for commands that do not find it.

use geartrain::{Canceled, Client, Jid, Refusal, StateName, Timestamp, Tombstone};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::Output;
use crate::text::clean;
use crate::timestamp;
use crate::view::Number;

/// Why a job is not there: it was cancelled, or there is no such job. In JSON the tombstone is printed as well.
pub(super) async fn explain(client: &Client, jid: &Jid, out: &mut Output<'_>) -> Failure {
    // A server from before there were tombstones cannot answer.
    let Ok(Some(tombstone)) = client.run(Canceled { jid: jid.clone() }).await else {
        return Refusal::NoSuchJob { jid: jid.clone() }.into();
    };
    if out.json
        && let Err(error) = out.line(&TombstoneView::new(&tombstone), "")
    {
        return error.into();
    }
    Failure::Refused(sentence(&tombstone, out.now))
}

#[derive(Debug, Serialize)]
struct TombstoneView {
    jid: String,
    state: &'static str,
    queue: String,
    klass: String,
    was: &'static str,
    when: Number,
    by: Option<String>,
    because: Option<String>,
}

impl TombstoneView {
    fn new(of: &Tombstone) -> TombstoneView {
        TombstoneView {
            jid: of.jid.to_string(),
            state: "cancelled",
            queue: of.queue.to_string(),
            klass: of.klass.to_string(),
            was: of.state.as_str(),
            when: of.when.into(),
            by: of.by.clone(),
            because: of.because.clone(),
        }
    }
}

fn sentence(of: &Tombstone, now: Timestamp) -> String {
    let when = match timestamp::relative(of.when, now).as_str() {
        "now" => "just now".to_owned(),
        when => when.to_owned(),
    };
    let mut text = format!("job {} was cancelled {when}", of.jid);
    if let Some(by) = &of.by {
        text += &format!(" by {}", clean(by));
    }
    if let Some(because) = of.because.as_deref().filter(|because| !because.is_empty()) {
        text += &format!(", because {}", clean(because));
    }
    match of.state {
        StateName::Depends => format!("{text}; it depended on others, in queue {}", of.queue),
        state => format!("{text}; it was {state} in queue {}", of.queue),
    }
}

/// `<user>@<host>`, for the tombstones of jobs that this command cancels.
pub(super) fn caller() -> String {
    let user = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let host = gethostname::gethostname();
    format!("{}@{}", user.as_deref().unwrap_or("unknown"), host.to_string_lossy())
}
