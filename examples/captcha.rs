//! Captchas for the next hour: every caller that runs low submits the job, and a unique key makes them one.
//! If it has not started within the hour it expires.

use std::time::{Duration, SystemTime};

use geartrain::Error;

async fn captcha() -> Result<(), Error> {
    let url = std::env::var("GEARTRAIN_URL").unwrap_or_else(|_| "memory:".to_owned());
    let client = geartrain::connect(&url).await?;

    let day_and_hour = "11-14";
    let until = SystemTime::now() + Duration::from_secs(3600);
    for _ in 0..3 {
        client.put("captcha", "generate", "").unique(day_and_hour).expires(until).forget().await?;
    }

    // Elsewhere, a worker.
    let job = client.pop("captcha", "painter-1").await?.expect("captchas are needed");
    client.complete(&job).await?;
    assert!(client.pop("captcha", "painter-1").await?.is_none());
    println!("painted once, for three submissions");
    Ok(())
}

fn main() -> Result<(), Error> {
    pollster::block_on(captcha())
}
