//! Birthday letters: once a day, by a unique key. The caller waits, and receives a chunk for each letter.

use std::time::Duration;

use geartrain::{Chunk, ChunkKind, Complete, Error, JobResult, StreamItem};

async fn birthdays() -> Result<(), Error> {
    let url = std::env::var("GEARTRAIN_URL").unwrap_or_else(|_| "memory:".to_owned());
    let client = geartrain::connect(&url).await?;

    let mut awaited = client.put_and_follow(client.put("bday", "letters", "").unique("2026-11-14")).await?;

    // Elsewhere, a worker.
    let job = client.pop_wait("bday", "birthdays-1", Duration::from_secs(5)).await?.expect("there is a job");
    for name in ["ann", "bob"] {
        let (jid, holder) = (job.jid.clone(), job.holder());
        client.run(Chunk { jid, holder, kind: ChunkKind::Data, bytes: name.into() }).await?;
    }
    let sent = JobResult { code: 0, bytes: "2 letters".into() };
    client
        .run(Complete { result: Some(Box::new(sent)), ..Complete::new(job.jid.clone(), job.holder()) })
        .await?;

    loop {
        match awaited.next().await? {
            StreamItem::Chunk(_, name) => println!("a letter to {}", name.text().unwrap_or_default()),
            StreamItem::Ended(ending, result) => {
                println!("{ending:?}: {}", result.bytes.text().unwrap_or_default());
                return Ok(());
            }
            _ => {}
        }
    }
}

fn main() -> Result<(), Error> {
    pollster::block_on(birthdays())
}
