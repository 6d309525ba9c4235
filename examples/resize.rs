//! Resizing a gallery: a second submission of the same gallery and size joins the first job. The worker
//! reports progress.

use std::time::Duration;

use geartrain::{Error, Portion, Progress, Progressed, Status, StatusOf};

async fn resize() -> Result<(), Error> {
    let url = std::env::var("GEARTRAIN_URL").unwrap_or_else(|_| "memory:".to_owned());
    let client = geartrain::connect(&url).await?;

    let (user, gallery, width, height) = (7, 2, 640, 480);
    let key = format!("{user}-{gallery}-{width}-{height}");
    let pictures = r#"{"pictures":["cat.png","dog.png"]}"#;
    let put =
        || client.put("resize", "gallery", pictures).unique(&key).keep_result(Duration::from_secs(3600));
    let (first, second) = (put().await?, put().await?);
    assert_eq!(first, second);
    println!("both submissions are job {first}");

    // Elsewhere, a worker.
    let job =
        client.pop_wait("resize", "resizer-1", Duration::from_secs(5)).await?.expect("there is a gallery");
    let half = Progressed { portion: Portion::new(1, 2)?, seconds_left: Some(3) };
    client.run(Progress::new(job.jid.clone(), job.holder(), half)).await?;
    let status = client.run(Status { of: StatusOf::Jid(first) }).await?.expect("it is not done");
    let percent = status.progress.map_or(0, |progress| progress.portion.percent());
    println!("{percent} % done, for {} submissions", status.submissions);
    client.complete(&job).await?;
    Ok(())
}

fn main() -> Result<(), Error> {
    pollster::block_on(resize())
}
