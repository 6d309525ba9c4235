//! `geartrain why` of a recurring job: when it runs next, or why it does not.

use geartrain::{Client, GetRecurring, Jid, Timestamp};
use serde_json::{Value, json};

use super::periodic;
use super::why::quoted;
use crate::failure::Failure;
use crate::output::Output;
use crate::timestamp::when;
use crate::view::Number;

/// A reason why a recurring job is not running now: for JSON, and as a part of a sentence.
type Reason = (Value, String);

/// Explains a recurring job. False if there is none with this id. The commands that help begin with `geartrain`.
pub(super) async fn explain(
    client: &Client,
    jid: &Jid,
    geartrain: &str,
    out: &mut Output<'_>,
) -> Result<bool, Failure> {
    let (queue, reasons) = match periodic::find_watched(client, jid).await? {
        Some((of, watched)) => {
            let command = |verb: &str| format!("`{geartrain} recur {verb} {}`", quoted(&jid.to_string()));
            let mut reasons = vec![match of.next {
                Some(next) => scheduled(next, out.now),
                None if of.template.is_paused => {
                    (json!({ "reason": "paused" }), format!("it is paused; {} resumes it", command("resume")))
                }
                None => (json!({ "reason": "over" }), format!("it is over; {} removes it", command("rm"))),
            }];
            reasons.extend(of.error.as_ref().map(|error| {
                let error = error.to_string();
                (
                    json!({ "reason": "refused", "message": error }),
                    format!("its last run put no job: {error}"),
                )
            }));
            if of.next.is_some() && !periodic::is_watched(client, watched, out.now) {
                reasons.push((json!({ "reason": "no-process" }), periodic::UNWATCHED.to_owned()));
            }
            (of.template.put.queue, reasons)
        }
        None => {
            let Ok(Some(of)) = client.run(GetRecurring { jid: jid.clone() }).await else { return Ok(false) };
            let pops = format!("its jobs are made when a worker pops {}, as in Qless", of.queue);
            (of.queue, vec![scheduled(of.next, out.now), (json!({ "reason": "needs-pop" }), pops)])
        }
    };
    let (views, parts): (Vec<Value>, Vec<String>) = reasons.into_iter().unzip();
    let people = format!("{jid} is a recurring job of {queue}: {}", parts.join("; "));
    let (jid, queue) = (jid.to_string(), queue.to_string());
    let view =
        json!({ "jid": jid, "state": "recurring", "queue": queue, "stalled": false, "reasons": views });
    out.line(&view, people)?;
    Ok(true)
}

fn scheduled(next: Timestamp, now: Timestamp) -> Reason {
    let text = format!("its next run is due {}", when(next, now));
    (json!({ "reason": "scheduled", "at": Number::from(next) }), text)
}
