//! Fire and forget: ping another site after a user wrote something. No result is wanted, and the job is
//! removed when it ends.

use geartrain::Error;

async fn command_buffer() -> Result<(), Error> {
    let url = std::env::var("GEARTRAIN_URL").unwrap_or_else(|_| "memory:".to_owned());
    let client = geartrain::connect(&url).await?;

    let user = "7";
    let jid = client.put("weblogscom", "ping", "").unique(user).forget().await?;

    // Elsewhere, a worker.
    let job = client.pop("weblogscom", "pinger-1").await?.expect("there is a ping");
    client.complete(&job).await?;
    println!("done, and the job is removed: {:?}", client.get(&jid).await?);
    Ok(())
}

fn main() -> Result<(), Error> {
    pollster::block_on(command_buffer())
}
