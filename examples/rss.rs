//! Fetching feeds: one job per user. A site that does not answer is retried with a growing backoff.

use std::time::Duration;

use geartrain::{Backoff, Seconds};

async fn rss() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("GEARTRAIN_URL").unwrap_or_else(|_| "memory:".to_owned());
    let client = geartrain::connect(&url).await?;

    // From one second, tripled each time up to an hour, with 20 % jitter so that retries spread out.
    let backoff = Backoff::exponential(Seconds::from(1), 3.0, Seconds::from(3600), 0.2)?;
    let put = client.put("rss", "fetch", "").unique("7").retries(10).backoff(backoff);
    let handle = put.keep_result(Duration::from_secs(3600)).await?;

    // Elsewhere, a worker.
    let job = client.pop("rss", "fetcher-1").await?.expect("there is a feed");
    let left = client.retry(&job, Duration::ZERO).await?;
    println!("the site does not answer; {left} retries left");
    let job = client.pop_wait("rss", "fetcher-1", Duration::from_secs(30)).await?.expect("it is retried");
    client.complete(&job).await?;
    println!("{handle}: fetched at last");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    pollster::block_on(rss())
}
