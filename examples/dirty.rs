//! Flushing dirty data: the unique key says what to flush, so there is no payload. However often a user's
//! friends change before the worker runs, they are flushed once.

use std::time::Duration;

use geartrain::Error;

async fn dirty() -> Result<(), Error> {
    let url = std::env::var("GEARTRAIN_URL").unwrap_or_else(|_| "memory:".to_owned());
    let client = geartrain::connect(&url).await?;

    for what in ["friends-7", "backup-7", "friends-7", "friends-7"] {
        let handle =
            client.put("dirty", "flush", "").unique(what).keep_result(Duration::from_secs(3600)).await?;
        println!("{what} is {handle}");
    }

    // Elsewhere, a worker. The key comes with the job.
    while let Some(job) = client.pop("dirty", "flusher-1").await? {
        let about = job.details.as_ref().expect("it has a unique key");
        let key = about.unique.as_ref().map_or(&b""[..], |key| key.as_bytes());
        println!("flushing {} for {} submissions", String::from_utf8_lossy(key), about.submissions);
        client.complete(&job).await?;
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    pollster::block_on(dirty())
}
