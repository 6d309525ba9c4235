//! Typed jobs: a type's attribute decides queue, klass and defaults, and a put may say otherwise.

use std::time::Duration;

use geartrain::*;
use pollster::block_on;
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize, geartrain::Job)]
#[job(queue = "mail", klass = "welcome", timeout = "2m", backoff = "10s..1h")]
#[job(retries = 7, priority = -1.5, keep_result = "25h")]
struct Welcome {
    to: String,
}

#[derive(Serialize, Deserialize, geartrain::Job)]
#[job(queue = "reports")]
struct RenderPDFReport;

#[derive(Serialize, Deserialize, geartrain::Job)]
#[job(queue = "events", backoff = "10sx3..1h+-0.2", priority = 2)]
enum Change {
    Added { id: u32 },
    Removed,
}

/// A program that renamed the crate.
mod renamed {
    pub(super) use geartrain as queue;
}

#[derive(Serialize, Deserialize, geartrain::Job)]
#[job(queue = "q", crate = "renamed::queue")]
struct Renamed;

#[derive(Deserialize, geartrain::Job)]
#[job(queue = "q")]
struct Unwritable;

impl Serialize for Unwritable {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("the file is closed"))
    }
}

#[test]
fn the_attribute_of_a_type_becomes_constants() {
    assert_eq!((Welcome::QUEUE, Welcome::KLASS), ("mail", "welcome"));
    assert_eq!(
        Welcome::DEFAULTS,
        JobDefaults {
            priority: Some(-1.5),
            retries: Some(7),
            timeout: Some(Duration::from_secs(120)),
            backoff: Some(Backoff::exponential(Seconds::from(10), 2.0, Seconds::from(3_600), 0.0).unwrap()),
            keep_result: Some(Duration::from_secs(90_000)),
        }
    );
    assert_eq!((RenderPDFReport::QUEUE, RenderPDFReport::KLASS), ("reports", "render-pdf-report"));
    assert_eq!(RenderPDFReport::DEFAULTS, JobDefaults::NONE);
    assert_eq!((Renamed::QUEUE, Renamed::KLASS), ("q", "renamed"));
    let backoff = Change::DEFAULTS.backoff.unwrap();
    assert_eq!(backoff.parts(), (Seconds::from(10), 3.0, Seconds::from(3_600), 0.2));
    assert_eq!(Change::DEFAULTS.priority, Some(2.0));
}

#[test]
fn a_typed_job_is_put_with_its_defaults() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let jid = client.put_job(&Welcome { to: "a@example.org".into() }).await.unwrap();
        let job = client.get(&jid).await.unwrap().unwrap();
        assert_eq!((job.queue.unwrap().as_str(), job.klass.as_str()), ("mail", "welcome"));
        assert_eq!((job.priority.get(), job.retries), (-1.5, 7));
        let details = job.details.unwrap();
        assert_eq!(details.attempt_max, Some(Seconds::from(120)));
        assert_eq!(details.backoff, Welcome::DEFAULTS.backoff);
        assert_eq!(details.result_ttl, Some(Seconds::from(90_000)));

        let lease: Welcome = serde_json::from_slice(job.payload.bytes()).unwrap();
        assert_eq!(lease, Welcome { to: "a@example.org".into() });

        let jid = client.put_job(&Change::Added { id: 7 }).await.unwrap();
        let job = client.get(&jid).await.unwrap().unwrap();
        assert_eq!(job.payload.text(), Some(r#"{"Added":{"id":7}}"#));
        client.put_job(&Change::Removed).await.unwrap();
    });
}

#[test]
fn options_of_a_put_replace_the_defaults_of_its_type() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let put = client.put_job(&Welcome { to: "a".into() }).priority(9.0).retries(1);
        let put = put.timeout(Duration::from_secs(5)).keep_result(Duration::from_secs(6)).unique("a");
        let job = client.get(&put.await.unwrap()).await.unwrap().unwrap();
        assert_eq!((job.priority.get(), job.retries), (9.0, 1));
        let details = job.details.unwrap();
        assert_eq!(details.attempt_max, Some(Seconds::from(5)));
        assert_eq!(details.result_ttl, Some(Seconds::from(6)));
        assert_eq!(details.backoff, Welcome::DEFAULTS.backoff);
    });
}

#[test]
fn a_value_that_serde_cannot_write_is_refused_by_the_put() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let error = client.put_job(&Unwritable).await.unwrap_err();
        assert_eq!(error.to_string(), "payload cannot be written as JSON: the file is closed");
        assert_eq!(client.queue("q").counts().await.unwrap().waiting, 0);
    });
}

#[test]
fn a_result_is_read_as_the_type_that_was_sent() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let jid = client.put_job(&Welcome { to: "a".into() }).await.unwrap();
        let job = client.pop("mail", "w1").await.unwrap().unwrap();
        client.complete_with(&job, ("sent", 3)).await.unwrap();
        let ended = client.job(&jid).wait(None).await.unwrap();
        assert_eq!(ended.json::<(String, u8)>().unwrap(), ("sent".to_owned(), 3));
        let error = ended.json::<u8>().unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("result of job {jid} is not what is expected: invalid type")),
            "{error}"
        );
        assert_eq!(client.job(&jid).result().await.unwrap().unwrap().result, ended.result);
    });
}

#[test]
fn the_worker_of_the_readme_has_fewer_than_15_lines() {
    let readme = include_str!("../../../README.md");
    let program = readme.split("```rust,no_run\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let lines = program.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(program.contains("Worker::new(client)") && lines < 15, "{lines} lines:\n{program}");
}
