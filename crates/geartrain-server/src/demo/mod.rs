//! `geartrain server --demo`: the queues of an online shop, with jobs in every state and workers that work on them.
//!
//! `fixtures` makes the states that a healthy queue shows rarely, `load` the jobs that come and go.

mod fixtures;
mod load;

use geartrain::{Client, Error};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Starts the workers, the producers and the fixtures.
pub(crate) fn start(client: &Client, stop: &CancellationToken, tasks: &mut JoinSet<()>) {
    for fixture in fixtures::all(client) {
        spawn(tasks, stop, fixture);
    }
    for task in load::all(client) {
        spawn(tasks, stop, task);
    }
}

type Task = std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

fn spawn(tasks: &mut JoinSet<()>, stop: &CancellationToken, task: Task) {
    let stop = stop.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            // Not every backend can do everything: the rest of the demonstration goes on.
            done = task => if let Err(error) = done {
                tracing::warn!(%error, "a part of the demonstration ended");
            }
        }
    });
}
