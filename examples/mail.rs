//! Mail: every letter is its own job, without a unique key. The sender keeps the job id and reads the result
//! later.

use std::time::Duration;

use geartrain::{Complete, Error, GetResult, JobResult};

async fn mail() -> Result<(), Error> {
    let url = std::env::var("GEARTRAIN_URL").unwrap_or_else(|_| "memory:".to_owned());
    let client = geartrain::connect(&url).await?;

    let letter = "To: ann@example.org\r\nSubject: Welcome\r\n\r\nGood to have you.";
    let handle = client.put("mail", "send", letter).keep_result(Duration::from_secs(3600)).await?;
    println!("submitted as {handle}");

    // Elsewhere, a worker.
    let job = client.pop_wait("mail", "mailer-1", Duration::from_secs(5)).await?.expect("there is a letter");
    println!("sending {} bytes", job.payload.bytes().len());
    let receipt = JobResult { code: 0, bytes: "250 queued".into() };
    client
        .run(Complete { result: Some(Box::new(receipt)), ..Complete::new(job.jid.clone(), job.holder()) })
        .await?;

    // Later, with the job id.
    let stored = client.run(GetResult { jid: handle }).await?.expect("it is stored for an hour");
    println!("the mail server said {:?}", stored.result.bytes.text().unwrap_or_default());
    Ok(())
}

fn main() -> Result<(), Error> {
    pollster::block_on(mail())
}
