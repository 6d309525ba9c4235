//! The load: jobs that come at a steady pace, and workers that complete, retry or fail them.

use std::time::Duration;

use geartrain::{
    Announce, AnnounceChange, Backoff, Capability, Client, Error, Popped, Portion, Progress, Progressed,
    QueueName, Seconds, WorkerName,
};
use serde_json::json;

use super::Task;

/// A kind of job.
struct Work {
    queue: &'static str,
    klass: &'static str,
    /// How long it takes, in milliseconds, and in how many steps it reports its progress.
    milliseconds: u64,
    steps: u64,
    tag: &'static str,
    ending: Ending,
}

/// How the jobs of a kind end, by the number of jobs that the worker has had.
enum Ending {
    Completes,
    /// Every so many jobs fail for good, others are retried: group and message of both.
    Fails {
        every: u64,
        failed: [&'static str; 2],
        retried: [&'static str; 2],
    },
}

const fn work(queue: &'static str, klass: &'static str, milliseconds: u64, tag: &'static str) -> Work {
    Work { queue, klass, milliseconds, steps: 4, tag, ending: Ending::Completes }
}

const WORK: [Work; 9] = [
    work("mail", "welcome", 160, "onboarding"),
    work("mail", "receipt", 120, "orders"),
    work("mail", "password-reset", 90, "accounts"),
    work("images", "thumbnail", 700, "catalogue"),
    work("images", "crop-avatar", 450, "accounts"),
    work("reports", "export-orders", 2_600, "orders"),
    work("reports", "sales-summary", 900, "sales"),
    Work {
        ending: Ending::Fails {
            every: 5,
            failed: ["card-declined", "the issuer refused the charge: insufficient funds (code 51)"],
            retried: ["gateway-timeout", "POST /v2/charges: no response within 10 s"],
        },
        ..work("billing", "charge-card", 800, "orders")
    },
    Work {
        ending: Ending::Fails {
            every: 11,
            failed: ["http-410", "the endpoint is gone: 410 for https://hooks.example.com/orders"],
            retried: ["http-503", "the endpoint is overloaded: 503, Retry-After: 5"],
        },
        ..work("webhooks", "deliver", 260, "partners")
    },
];

/// Renditions of an episode: what its publication depends on.
const RENDITIONS: [&str; 3] = ["1080p", "720p", "audio"];

/// Deliveries that are put at once. With those that are retried, two bursts a minute stay below the rate limit.
const BURST: u64 = 20;

const REGIONS: [&str; 4] = ["north", "south", "east", "west"];

/// The producers and the workers.
pub(super) fn all(client: &Client) -> Vec<Task> {
    let workers: [(&str, &[&str]); 7] = [
        ("mail-1", &["mail"]),
        ("mail-2", &["mail", "images"]),
        ("media-1", &["images", "video"]),
        ("media-2", &["video"]),
        ("office-1", &["reports"]),
        ("billing-1", &["billing"]),
        ("hooks-1", &["webhooks"]),
    ];
    let mut tasks: Vec<Task> = vec![
        Box::pin(orders(client.clone())),
        Box::pin(episodes(client.clone())),
        Box::pin(bursts(client.clone())),
    ];
    for (name, queues) in workers {
        tasks.push(Box::pin(run_worker(client.clone(), name, queues)));
    }
    tasks
}

/// Submits what an order causes, one job at a time, some of them for later.
async fn orders(client: Client) -> Result<(), Error> {
    let backoff = Backoff::exponential(Seconds::from(3), 2.0, Seconds::from(30), 0.2)?;
    for turn in 0u64.. {
        // Whole-number arithmetic is varied enough for a demonstration. Deliveries come in bursts.
        let work = &WORK[(turn * 7 % 11) as usize % (WORK.len() - 1)];
        let number = 20_410 + turn;
        let payload = match work.queue {
            "images" => json!({ "file": format!("products/{number}.jpg"), "width": 320 + turn % 3 * 320 }),
            "reports" => json!({ "region": REGIONS[turn as usize % REGIONS.len()], "format": "csv" }),
            "billing" => {
                json!({ "order": number, "amount": { "value": 1_990 + turn * 37 % 9_000, "currency": "EUR" } })
            }
            _ => json!({ "to": format!("customer-{number}@example.org"), "order": number }),
        };
        let mut put = client
            .put(work.queue, work.klass, payload.to_string())
            .priority((turn % 3) as f64 * 5.0)
            .tag(work.tag)
            .backoff(backoff)
            .keep_result(Duration::from_secs(3_600));
        if turn % 13 == 0 {
            put = put.tag("vip");
        }
        if turn % 10 == 6 {
            put = put.delay(Duration::from_secs(45 + turn % 7 * 60));
        }
        put.await?;
        tokio::time::sleep(Duration::from_millis(250 + turn * 137 % 600)).await;
    }
    Ok(())
}

/// Puts deliveries faster than the rate limit of their queue lets them start, and then none for a while.
async fn bursts(client: Client) -> Result<(), Error> {
    for burst in 0u64.. {
        for number in 0..BURST {
            let payload = json!({ "url": "https://hooks.example.com/orders", "event": "order.paid", "order": 20_410 + burst * BURST + number });
            client.put("webhooks", "deliver", payload.to_string()).tag("partners").retries(3).await?;
        }
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    Ok(())
}

/// Puts an episode now and then: its renditions, and a publication that waits for all of them. The publication is
/// tracked.
async fn episodes(client: Client) -> Result<(), Error> {
    for number in 1u64.. {
        let mut publish = client
            .put("video", "publish", json!({ "episode": number, "channels": ["web", "feed"] }).to_string())
            .tag("episodes");
        for rendition in RENDITIONS {
            let payload = json!({ "episode": number, "rendition": rendition, "source": format!("raw/episode-{number}.mkv") });
            let put = client.put("video", "transcode", payload.to_string()).tag("episodes").tag(rendition);
            publish = publish.after(&put.priority(2.0).await?);
        }
        let published = publish.await?;
        client.job(&published).track().await?;
        tokio::time::sleep(Duration::from_secs(45)).await;
        // What has ended need not be watched.
        client.job(&published).untrack().await.ok();
    }
    Ok(())
}

/// Works on the jobs of some queues for as long as the server runs.
async fn run_worker(client: Client, name: &str, queues: &[&str]) -> Result<(), Error> {
    let worker = WorkerName::new(name)?;
    let mut can = Vec::new();
    for queue in queues {
        can.push(Capability { queue: QueueName::new(queue)?, klass: None, attempt_max: None });
    }
    let mut jobs = 0;
    for turn in 1u64.. {
        // Announced capabilities last for a minute.
        if turn % 20 == 1 {
            client
                .run(Announce { worker: worker.clone(), change: AnnounceChange::Only(can.clone()) })
                .await?;
        }
        let queue = queues[turn as usize % queues.len()];
        if let Some(job) = client.pop_wait(queue, name, Duration::from_millis(500)).await? {
            jobs += 1;
            match run_job(&client, &job, jobs).await {
                // The job was cancelled or requeued from the dashboard: the worker takes the next one.
                Ok(()) | Err(Error::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

async fn run_job(client: &Client, job: &Popped, jobs: u64) -> Result<(), Error> {
    let found = WORK.iter().find(|work| work.queue == job.queue.as_str() && work.klass == job.klass.as_str());
    let (milliseconds, steps) = match found {
        Some(work) => (work.milliseconds, work.steps),
        None if job.klass.as_str() == "transcode" => (20_000, 40),
        None => (1_200, 4),
    };
    for step in 1..=steps {
        tokio::time::sleep(Duration::from_millis(milliseconds / steps)).await;
        let left = (milliseconds * (steps - step) / steps).div_ceil(1_000) as u32;
        let progress = Progressed { portion: Portion::new(step, steps)?, seconds_left: Some(left) };
        client.run(Progress::new(job.jid.clone(), job.holder(), progress)).await?;
    }
    match found.map(|work| &work.ending) {
        Some(Ending::Fails { every, failed: [group, message], .. }) if jobs.is_multiple_of(*every) => {
            client.fail(job, group, message).await
        }
        Some(Ending::Fails { retried: [group, message], .. }) if jobs % 4 == 3 => {
            client.retry_because(job, group, message).await.map(drop)
        }
        _ => client.complete_with(job, json!({ "took_ms": milliseconds, "ok": true })).await.map(drop),
    }
}
