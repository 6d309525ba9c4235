//! A cron job: a recurring job that catches up on one missed run.

use std::time::Duration;

use geartrain::{Jid, Klass, QueueName, Recur, Seconds, Unrecur};

async fn crons() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("GEARTRAIN_URL").unwrap_or_else(|_| "memory:".to_owned());
    let client = geartrain::connect(&url).await?;

    let jid = Jid::new("pay-updateaccounts")?;
    let (queue, klass) = (QueueName::new("crons")?, Klass::new("pay_updateaccounts")?);
    let arguments = r#"["--since","yesterday"]"#;
    let recur = Recur::new(queue, jid.clone(), klass, arguments, Seconds::from(3600));
    client.run(Recur { backlog: 1, ..recur }).await?;

    // Elsewhere, a worker. The first run is due at once.
    let job = client.pop_wait("crons", "cron-1", Duration::from_secs(5)).await?.expect("a run is due");
    println!("{} {} as {}", job.klass, job.payload.text().unwrap_or_default(), job.jid);
    client.complete(&job).await?;

    client.run(Unrecur { jid }).await?;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    pollster::block_on(crons())
}
