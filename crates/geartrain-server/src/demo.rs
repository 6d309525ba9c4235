//! `geartrain server --demo`: sample jobs and workers.

use std::time::Duration;

use geartrain::{
    Announce, AnnounceChange, Capability, Client, Error, Every, Jid, Klass, Popped, Portion, Priority,
    Progress, Progressed, QueueName, Recur, Seconds, WorkerName,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Queue, klass, payload, and the duration in milliseconds.
const WORK: [(&str, &str, &str, u64); 4] = [
    ("demo-mail", "welcome", r#"{"to":"ann@example.org"}"#, 120),
    ("demo-mail", "receipt", r#"{"order":4711}"#, 80),
    ("demo-images", "thumbnail", r#"{"file":"cat.png","width":320}"#, 700),
    ("demo-reports", "daily", r#"{"region":"north"}"#, 2_500),
];

/// Starts one producer and three workers.
pub(crate) fn start(client: &Client, stop: &CancellationToken, tasks: &mut JoinSet<()>) {
    for (name, queues) in [
        ("demo-1", &["demo-mail"][..]),
        ("demo-2", &["demo-mail", "demo-images"]),
        ("demo-3", &["demo-reports", "demo-images"]),
    ] {
        spawn(tasks, stop, work(client.clone(), name, queues));
    }
    spawn(tasks, stop, put(client.clone()));
}

fn spawn(
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
    task: impl Future<Output = Result<(), Error>> + Send + 'static,
) {
    let stop = stop.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            done = task => if let Err(error) = done {
                tracing::warn!(%error, "a task of the demonstration ended");
            }
        }
    });
}

/// Submits a job now and then, some of them delayed, and a recurring one.
async fn put(client: Client) -> Result<(), Error> {
    let recur = Recur {
        every: Every::Interval(Seconds::from(15)),
        priority: Priority::from(3),
        ..Recur::new(
            QueueName::new("demo-reports")?,
            Jid::new("demo-every-15-seconds")?,
            Klass::new("summary")?,
            "{}",
            Seconds::from(15),
        )
    };
    client.run(recur).await?;
    for turn in 0u64.. {
        // Whole-number arithmetic is varied enough for a demonstration.
        let (queue, klass, payload, _) = WORK[(turn * 7 % 10 / 3) as usize % WORK.len()];
        let mut request = client.put(queue, klass, payload).priority((turn % 3) as f64).tag("demo");
        if turn % 11 == 5 {
            request = request.delay(Duration::from_secs(20));
        }
        request.await?;
        tokio::time::sleep(Duration::from_millis(400 + turn * 137 % 900)).await;
    }
    Ok(())
}

/// Works on jobs, and fails or retries some of them.
async fn work(client: Client, name: &str, queues: &[&str]) -> Result<(), Error> {
    let worker = WorkerName::new(name)?;
    let mut can = Vec::new();
    for queue in queues {
        can.push(Capability { queue: QueueName::new(queue)?, klass: None, attempt_max: None });
    }
    client.run(Announce { worker, change: AnnounceChange::Only(can) }).await?;
    for turn in 0u64.. {
        let queue = queues[turn as usize % queues.len()];
        let Some(job) = client.pop_wait(queue, name, Duration::from_millis(500)).await? else { continue };
        let milliseconds = WORK.iter().find(|work| work.1 == job.klass.as_str()).map_or(300, |work| work.3);
        for part in 1..=4 {
            tokio::time::sleep(Duration::from_millis(milliseconds / 4)).await;
            report_progress(&client, &job, part).await?;
        }
        match turn % 13 {
            6 => client.fail(&job, "demo-failure", "every thirteenth job of a demonstration fails").await?,
            9 => drop(client.retry(&job, Duration::from_secs(5)).await?),
            _ => drop(client.complete(&job).await?),
        }
    }
    Ok(())
}

async fn report_progress(client: &Client, job: &Popped, part: u64) -> Result<(), Error> {
    let progress = Progressed { portion: Portion::new(part, 4)?, seconds_left: None };
    client.run(Progress::new(job.jid.clone(), job.holder(), progress)).await
}
