//! The command with a Gearman server: supported and unsupported operations.

use crate::sandbox;

use std::time::Duration;

use geartrain::{Complete, Holder, JobResult};
use geartrain_testkit::peers::Gearmand;
use pollster::block_on;
use sandbox::Sandbox;

/// The arguments, with --url.
fn with<'a>(url: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
    [arguments, &["--url", url]].concat()
}

fn url(server: &Gearmand) -> String {
    format!("gearman://127.0.0.1:{}", server.port())
}

#[test]
fn jobs_are_submitted_inspected_and_cancelled() {
    let (sandbox, server) = (Sandbox::new(), Gearmand::start(&[]));
    let url = url(&server);
    let jid =
        sandbox.run(&with(&url, &["put", "resize", "resize", "cat", "--priority", "5", "--unique", "cat-7"]));
    let jid = jid.trim();
    assert!(jid.starts_with("H:"), "{jid}");
    let second = sandbox.json(&with(&url, &["put", "resize", "resize", "cat", "--unique", "cat-7"]));
    assert_eq!((&second["jid"], &second["outcome"]), (&jid.into(), &"named".into()));
    let status = sandbox.json(&with(&url, &["status", jid]));
    assert_eq!((&status["state"], &status["queue"]), (&"waiting".into(), &"?".into()));
    assert_eq!(sandbox.json(&with(&url, &["status", "resize", "--unique", "cat-7"]))["state"], "waiting");
    let queues = sandbox.json(&with(&url, &["queues"]));
    assert_eq!((&queues[0]["name"], &queues[0]["waiting"]), (&"resize".into(), &1.into()));
    assert_eq!(sandbox.json(&with(&url, &["workers"])), serde_json::json!([]));

    let popped = sandbox.json(&with(&url, &["pop", "resize", "--worker", "w1"]));
    assert_eq!((&popped[0]["jid"], &popped[0]["payload"]), (&jid.into(), &"cat".into()));
    // On Gearman the lock is the connection, which ended with the command.
    let token = popped[0]["token"].as_str().unwrap();
    let (_, error, code) = sandbox.try_run(&with(&url, &["complete", jid, "--token", token]));
    assert_eq!(code, 1);
    assert!(error.starts_with(&format!("geartrain: the lock on job {jid} is lost")), "{error}");
    sandbox.run(&with(&url, &["cancel", jid]));
    assert_eq!(sandbox.json(&with(&url, &["pop", "resize", "--worker", "w1"])), serde_json::json!([]));
}

#[test]
fn unsupported_operations_are_refused_in_one_sentence() {
    let (sandbox, server) = (Sandbox::new(), Gearmand::start(&[]));
    let url = url(&server);
    for (arguments, code, said) in [
        (&["get", "H:a:1"][..], 1, "the gearman backend cannot show a job: ask for its status"),
        (&["pause", "resize"], 1, "the gearman backend cannot pause a queue"),
        (&["events"], 1, "the gearman backend cannot tell what happens"),
        (&["put", "resize", "resize", "--every", "1h"], 1, "the gearman backend cannot make recurring jobs"),
        (&["put", "resize", "resize", "--tag", "new"], 1, "the gearman backend cannot tag a job"),
        (
            &["put", "resize", "small"],
            1,
            "klass must be resize, as the queue is: to Gearman a job's function is all there is",
        ),
        (&["put", "--resubmit"], 2, "give --record FILE, the record of the jobs"),
    ] {
        let (_, error, exit) = sandbox.try_run(&[arguments, &["--url", &url]].concat());
        assert_eq!((error.trim(), exit), (format!("geartrain: {said}").as_str(), code), "{arguments:?}");
    }
    let (_, error, code) = sandbox.try_run(&[
        "server",
        "--store",
        &url,
        "--resp",
        "127.0.0.1:0",
        "--gearman",
        "off",
        "--http",
        "off",
    ]);
    assert_eq!(code, 2);
    assert!(error.contains("connect to Gearman servers directly"), "{error}");
}

#[test]
fn put_waits_for_the_result() {
    let (sandbox, server) = (Sandbox::new(), Gearmand::start(&[]));
    let url = url(&server);
    let worker = url.clone();
    let at_work = std::thread::spawn(move || {
        block_on(async {
            let client = geartrain::connect(&worker).await.unwrap();
            let job = client.pop_wait("resize", "w1", Duration::from_secs(60)).await.unwrap().unwrap();
            let result = Some(Box::new(JobResult { code: 0, bytes: "small cat".into() }));
            client
                .run(Complete { result, ..Complete::new(job.jid, Holder::Token(job.lock.token)) })
                .await
                .unwrap();
        });
    });
    let (out, remarks, code) =
        sandbox.try_run(&["put", "resize", "resize", "cat", "--wait", "60s", "--url", &url]);
    assert_eq!((out.as_str(), remarks.as_str(), code), ("small cat", "", 0));
    at_work.join().unwrap();
    let late = ["put", "missing", "missing", "cat", "--wait", "50ms", "--url", &url];
    assert_eq!(sandbox.try_run(&late).2, 4);
}

#[test]
fn resubmit_sends_the_jobs_of_a_lost_server_to_another() {
    let (sandbox, mut lost, other) = (Sandbox::new(), Gearmand::start(&[]), Gearmand::start(&[]));
    let record = sandbox.path("jobs.record");
    for payload in ["1", "2"] {
        sandbox.run(&["put", "resize", "resize", payload, "--record", &record, "--url", &url(&lost)]);
    }
    let both = format!("{},127.0.0.1:{}", url(&lost), other.port());
    let resubmit = ["put", "--resubmit", "--record", &record, "--url", &both];
    assert_eq!(sandbox.json(&resubmit)["known"], 2);
    lost.kill();
    let (out, remarks, code) = sandbox.try_run(&resubmit);
    assert_eq!((out.lines().count(), code), (2, 0), "{remarks}");
    assert_eq!(remarks, "geartrain: 2 jobs resubmitted, 0 still on a server\n");
    let queues = sandbox.json(&["queues", "--url", &url(&other)]);
    assert_eq!(queues[0]["waiting"], 2);
    let (_, error, code) = sandbox.try_run(&["put", "--resubmit", "--record", &record, "--url", "memory:"]);
    assert_eq!(code, 2);
    assert!(error.contains("are for Gearman servers"), "{error}");
}
