//! `geartrain ping`: check that a queue answers, and show what it is.

use std::time::Instant;

use geartrain::{Client, Error, Length, QueueName, Target};
use serde_json::json;

use super::Done;
use crate::output::Output;

pub(super) async fn ping(url: &str, client: &Client, out: &mut Output<'_>) -> Done {
    let software = client.backend().identify().await.map_err(Error::from)?;
    // Twice, because the first command on a Redis may have to load our library.
    length(client).await?;
    let begun = Instant::now();
    length(client).await?;
    let milliseconds = begun.elapsed().as_secs_f64() * 1_000.0;
    let (backend, url) = match Target::of(url)? {
        Target::Memory => ("memory", "memory:".to_owned()),
        Target::Directory { directory, .. } => ("embedded", format!("embedded:{}", directory.display())),
        Target::Redis(url) => ("redis", url.to_string()),
        Target::GearMonkey(url) => ("gearmonkey", url.to_string()),
        Target::WorkKit(url) => ("workkit", url.to_string()),
        Target::Worqr(url) => ("worqr", url.to_string()),
        Target::Gearman(url) => ("gearman", url.to_string()),
        _ => ("other", url.to_owned()),
    };
    let version = software.version.as_deref().map(|version| format!(" {version}")).unwrap_or_default();
    let view = json!({
        "url": url, "backend": backend, "software": software.name, "version": software.version,
        "milliseconds": (milliseconds * 1_000.0).round() / 1_000.0,
    });
    let place = if client.is_own_directory() { ", inside this command" } else { "" };
    let people = format!("{}{version} at {url}{place}: answered in {milliseconds:.3} ms", software.name);
    Ok(out.line(&view, people)?)
}

/// A command that changes nothing; what refuses it has answered too.
async fn length(client: &Client) -> Result<(), Error> {
    match client.run(Length { queue: QueueName::new("ping")? }).await {
        Ok(_) | Err(Error::Refused(_)) => Ok(()),
        Err(error) => Err(error),
    }
}
