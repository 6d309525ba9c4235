//! Changes of the queue that keys ask for.

use geartrain::{Client, Pause, Resume};

use super::state::Action;
use crate::commands::list::jobs_done;
use crate::commands::{change, failed};
use crate::failure::Failure;

/// Does it, and says what was done.
pub(super) async fn act(client: &Client, action: Action) -> Result<String, Failure> {
    Ok(match action {
        Action::Pause(queue) => {
            client.run(Pause { queues: vec![queue.clone()] }).await?;
            format!("paused {queue}")
        }
        Action::Resume(queue) => {
            client.run(Resume { queues: vec![queue.clone()] }).await?;
            format!("resumed {queue}")
        }
        Action::Unfail(group) => {
            let requeued = failed::requeue_group(client, &group, None, None).await?;
            format!("{} of {group}", jobs_done(requeued, "requeued"))
        }
        Action::Requeue(jid) => {
            let (queue, _) = change::requeue_job(client, &jid, None, Ok).await?;
            format!("submitted {jid} to {queue}")
        }
    })
}
