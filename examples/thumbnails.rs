//! Thumbnails: one job per picture and size, submitted in one batch. A second submission of a picture joins
//! its job.

use std::time::Duration;

use geartrain::{Call, Count, Jid, Klass, Pop, Put, PutOptions, QueueName, UniqueKey, WorkerName};

async fn thumbnails() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("GEARTRAIN_URL").unwrap_or_else(|_| "memory:".to_owned());
    let client = geartrain::connect(&url).await?;

    let queue = QueueName::new("thumbgen")?;
    let mut calls = Vec::new();
    // The second upload contains a picture of the first.
    for (number, (picture, size)) in [(11, 100), (12, 100), (12, 75), (12, 100)].into_iter().enumerate() {
        let jid = Jid::new(format!("thumb-{number}-{}", std::process::id()))?;
        let mut put =
            Put::new(queue.clone(), jid, Klass::new("thumbnail")?, format!(r#"{{"picture":{picture}}}"#));
        let unique = Some(UniqueKey::new(format!("7-{picture}-{size}-{size}"))?);
        put.options = Some(Box::new(PutOptions { unique, ..PutOptions::default() }));
        calls.push(Call::from(put));
    }
    for answer in client.batch(calls).await? {
        println!("{:?}", answer?);
    }

    // Elsewhere, a worker that takes several at once.
    let pop = Pop { count: Count::new(10)?, ..Pop::new(queue, WorkerName::new("thumbs-1")?) };
    let jobs = client.pop_any(pop, Duration::from_secs(5)).await?.jobs;
    println!("{} thumbnails to make", jobs.len());
    for job in &jobs {
        client.complete(job).await?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    pollster::block_on(thumbnails())
}
