//! The states that a healthy queue shows rarely: a paused queue, a stalled job, a failed dependency, a lost worker,
//! jobs that no worker asks for, recurring jobs of every kind.

use std::time::Duration;

use geartrain::{
    Client, Error, Every, Jid, Klass, Log, Period, PeriodicTemplate, Priority, Put, PutPeriodic, QueueLimits,
    QueueName, Rate, Recur, Seconds, SystemClock, WorkerLost, WorkerName,
};
use serde_json::json;

use super::Task;

/// Each makes one state. Jobs that an earlier start of the demonstration has put stay as they are.
pub(super) fn all(client: &Client) -> Vec<Task> {
    vec![
        Box::pin(limits(client.clone())),
        Box::pin(paused_queue(client.clone())),
        Box::pin(stalled_job(client.clone())),
        Box::pin(failed_dependency(client.clone())),
        Box::pin(lost_worker(client.clone())),
        Box::pin(no_worker(client.clone())),
        Box::pin(scheduled_jobs(client.clone())),
        Box::pin(recurring_jobs(client.clone())),
    ]
}

async fn limits(client: Client) -> Result<(), Error> {
    client.queue("billing").set_option("max-concurrency", "2").await?;
    let rate = Rate::new(60, Seconds::from(60), 3)?;
    client.queue("webhooks").set_limits(QueueLimits { rate: Some(rate), ..QueueLimits::default() }).await
}

async fn paused_queue(client: Client) -> Result<(), Error> {
    let newsletter = client.queue("newsletter");
    newsletter.pause().await?;
    for number in 1..=40 {
        let payload = json!({ "issue": "2026-spring", "segment": number, "recipients": 2_500 });
        newsletter
            .put("issue", payload.to_string())
            .jid(&format!("issue-spring-{number}"))
            .tag("spring")
            .await?;
    }
    Ok(())
}

/// A worker takes a job and is never heard of again. It is the only one that asks the queue for jobs, so the lock
/// stays expired.
async fn stalled_job(client: Client) -> Result<(), Error> {
    let search = client.queue("search");
    search.set_option("heartbeat", "5").await?;
    for product in 1..=6 {
        let payload = json!({ "product": 7_000 + product, "fields": ["title", "price"] });
        search.put("index-product", payload.to_string()).jid(&format!("index-{}", 7_000 + product)).await?;
    }
    search.pop("search-1").await.map(drop)
}

/// A contract that could not be rendered, and the mail that waits for it.
async fn failed_dependency(client: Client) -> Result<(), Error> {
    let contracts = client.queue("contracts");
    let render = contracts
        .put("render", r#"{"contract":881,"template":"lease-v3"}"#)
        .jid("render-881")
        .tag("legal")
        .await?;
    contracts
        .put("send", r#"{"contract":881,"to":"tenant@example.org"}"#)
        .jid("send-881")
        .after(&render)
        .tag("legal")
        .await?;
    if let Some(job) = contracts.pop("office-2").await? {
        let message = "template lease-v3 has no field `deposit`\n  at render_section (templates/lease-v3.html:214)\n  \
                       at render_contract (contracts/render.rs:88)";
        client.fail(&job, "template-error", message).await?;
    }
    Ok(())
}

/// A worker that died twice: one of its jobs goes back to the queue, another is set aside, because it may have one
/// crash only.
async fn lost_worker(client: Client) -> Result<(), Error> {
    let evidence = "killed by signal 9 after using 4.1 GiB: out of memory";
    for (jid, crashes_max) in [("panorama-12", 1), ("panorama-13", 3)] {
        let payload = json!({ "frames": 240, "width": 15_360, "file": format!("{jid}.tiff") });
        let panorama =
            client.put("panorama", "stitch", payload.to_string()).jid(jid).crashes_max(crashes_max);
        panorama.tag("studio").await?;
        if client.queue("panorama").pop("studio-1").await?.is_some() {
            let worker = WorkerName::new("studio-1")?;
            client.run(WorkerLost { worker, evidence: Some(evidence.to_owned()) }).await?;
        }
    }
    Ok(())
}

async fn no_worker(client: Client) -> Result<(), Error> {
    for (file, rows) in [("suppliers.csv", 1_204), ("price-list.csv", 88_310), ("stock.csv", 5_021)] {
        let payload = json!({ "file": file, "rows": rows });
        let jid = client
            .put("imports", "csv", payload.to_string())
            .jid(&format!("import-{file}"))
            .tag("monthly")
            .await?;
        let message = format!("uploaded by the back office: {rows} rows");
        client.run(Log { jid, message, data: Some(json!({ "bytes": rows * 61 }).to_string()) }).await?;
    }
    Ok(())
}

async fn scheduled_jobs(client: Client) -> Result<(), Error> {
    for (number, hours) in [(1, 2), (2, 26), (3, 170)] {
        let payload = json!({ "cart": 5_500 + number, "discount": "10 %" });
        let put =
            client.put("mail", "cart-reminder", payload.to_string()).jid(&format!("cart-{}", 5_500 + number));
        put.delay(Duration::from_secs(hours * 3_600)).tag("marketing").await?;
    }
    Ok(())
}

async fn recurring_jobs(client: Client) -> Result<(), Error> {
    let reports = QueueName::new("reports")?;
    client
        .run(Recur {
            every: Every::Interval(Seconds::from(15)),
            priority: Priority::from(3),
            ..Recur::new(
                reports.clone(),
                Jid::new("sales-every-15-seconds")?,
                Klass::new("sales-summary")?,
                r#"{"window":"15s"}"#,
                Seconds::from(15),
            )
        })
        .await?;
    let now = client.backend().now().unwrap_or_else(|| geartrain::Clock::now(&SystemClock));
    for (jid, klass, cron, phrase, is_paused) in [
        ("opening-report", "export-orders", "0 9 * * mon-fri", Some("weekdays at 9am"), false),
        ("invoice-run", "sales-summary", "30 2 1 * *", Some("the first of each month at 2:30"), false),
        ("stock-check", "sales-summary", "*/20 * * * *", None, false),
        ("holiday-greetings", "sales-summary", "0 8 24 12 *", None, true),
    ] {
        let put = Put::new(reports.clone(), Jid::new(jid)?, Klass::new(klass)?, "{}");
        let mut template = PeriodicTemplate::new(put, Period::Cron(cron.to_owned()));
        template.phrase = phrase.map(str::to_owned);
        template.is_paused = is_paused;
        client.run(PutPeriodic::new(template, now)).await?;
    }
    Ok(())
}
