//! A worker of typed jobs: retries, a timeout, a result, and a clean shutdown.
//!
//! It ends when its job is done, or with Ctrl-C; a real one runs until it is stopped.

use std::error::Error;

use geartrain::{Context, JobError, State, Worker};
use serde::{Deserialize, Serialize};
use tokio::signal::ctrl_c;

#[derive(Serialize, Deserialize, geartrain::Job)]
#[job(queue = "mail", timeout = "30s", retries = 3, backoff = "10ms..1h", keep_result = "25h")]
struct Welcome {
    to: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("GEARTRAIN_URL").unwrap_or("memory:".to_owned());
    let client = geartrain::connect(&url).await?;
    let jid = client.put_job(&Welcome { to: "ann@example.org".to_owned() }).await?;

    let worker = Worker::new(&client).on(async |job: Welcome, State(()), cx: Context| {
        if cx.attempt() == 1 {
            return Err(JobError::retry("the mail server said 451"));
        }
        Ok(format!("sent to {}", job.to))
    });
    let job = client.job(&jid);
    let report = worker
        .run_until(async {
            tokio::select! { _ = job.wait(None) => (), _ = ctrl_c() => () }
        })
        .await?;
    println!("{}; {report:?}", job.wait(None).await?.json::<String>()?);
    Ok(())
}
