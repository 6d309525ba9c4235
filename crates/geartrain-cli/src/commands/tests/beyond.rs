//! Scenarios of features beyond Qless.

use super::*;

#[test]
fn a_second_put_with_the_same_key_joins_the_first() {
    let shell = shell();
    shell.run("put reports monthly --unique 2026-04 --jid a --keep-result");
    let joined = shell.try_run("put reports monthly --unique 2026-04 --jid b", &[]);
    assert_eq!((joined.out.as_str(), joined.code), ("a\n", 0));
    assert_eq!(
        joined.err,
        "geartrain: unfinished job a has the same unique key, so no new job was created\n"
    );
    assert_eq!(
        shell.json("put reports monthly --unique 2026-04"),
        json!({ "jid": "a", "outcome": "coalesced", "coalesced": true, "due": null })
    );
    let expected = json!({
        "jid": "a", "queue": "reports", "state": "waiting", "progress": null, "submissions": 3, "attached": 0,
    });
    assert_eq!(shell.json("status a"), expected);
    assert_eq!(shell.json("status --unique 2026-04 reports"), expected);
    assert!(shell.run("status a").ends_with("stands for  3 submissions, no client waits for it\n"));
    assert_eq!(
        shell.refused("status --unique other reports"),
        "no unfinished job of reports has the key other"
    );
    let job = shell.json("get a");
    assert_eq!(
        (&job["particulars"]["unique"], &job["particulars"]["submissions"]),
        (&json!("2026-04"), &json!(3))
    );
    // Another queue, another key.
    assert_eq!(shell.json("put other monthly --unique 2026-04 --jid b")["outcome"], "created");
    let token = shell.pop("reports");
    shell.run(&format!("complete a --token {token}"));
    assert_eq!(shell.json("put reports monthly --unique 2026-04 --jid c")["outcome"], "created");
    assert!(shell.refused("status a").contains("see `geartrain get a`"));
}

#[test]
fn the_options_of_a_put_are_shown() {
    let shell = shell();
    shell.run(
        "put q k --jid a --unique key --timeout 10m --expires 1h --backoff 10sx3..1h+-0.2 --crashes 2 --keep-result 2h",
    );
    let about = shell.json("get a")["particulars"].clone();
    let expires = about["expires"].as_f64().unwrap() - timestamp::now().get();
    assert!((3_590.0..3_601.0).contains(&expires), "{expires}");
    for (key, value) in [
        ("unique", json!("key")),
        ("submissions", json!(1)),
        ("attached", json!(0)),
        ("lives", json!("always")),
        ("afterwards", json!("keep")),
        ("keep_result", json!(7_200)),
        ("timeout", json!(600)),
        ("deadline", json!(null)),
        ("backoff", json!({ "first": 10, "factor": 3, "max": 3_600, "jitter": 0.2 })),
        ("crashes_max", json!(2)),
        ("crashes", json!(0)),
        ("evidence", json!(null)),
        ("progress", json!(null)),
    ] {
        assert_eq!(about[key], value, "{key}");
    }
    let card = shell.run("get a");
    for line in ["unique    key\n", "timeout   10m\n", "backoff   10sx3..1h+-0.2\n", "crashes   0 of 2\n"] {
        assert!(card.contains(line), "{line:?} is not in\n{card}");
    }
    let popped = shell.json("pop q --worker w1");
    let deadline = popped[0]["deadline"].as_f64().unwrap() - timestamp::now().get();
    assert!((590.0..601.0).contains(&deadline), "{deadline}");
    assert!(shell.run("get a").contains("\ndeadline  in "));
    // A job without options has no details.
    shell.run("put q k --jid b");
    assert_eq!(shell.json("get b")["particulars"], json!(null));
    assert_eq!(shell.json("pop q --worker w1")[0]["deadline"], json!(null));
}

#[test]
fn a_result_is_stored_and_printed_byte_for_byte() {
    let shell = shell();
    shell.run("put q k --jid a --keep-result");
    let token = shell.pop("q");
    shell.run(&format!("complete a --token {token} --result {{\"n\":1}} --code 3"));
    assert_eq!(shell.run("result a"), "{\"n\":1}");
    let kept = shell.json("result a");
    assert_eq!(keys(&kept), ["code", "ended", "group", "how", "jid", "message", "result", "until"]);
    assert_eq!(
        (&kept["how"], &kept["code"], &kept["result"]),
        (&json!("completed"), &json!(3), &json!({ "n": 1 }))
    );
    let kept_for = kept["until"].as_f64().unwrap() - kept["ended"].as_f64().unwrap();
    assert!((kept_for - 90_000.0).abs() < 1.0, "{kept_for}");

    shell.run("put q k --jid b --keep-result 1h");
    let token = shell.pop("q");
    shell.run(&format!("fail b smtp 451 --token {token} --result \u{1b}[2J"));
    let printed = shell.try_run("result b", &[]);
    assert_eq!((printed.out.as_str(), printed.code), ("\u{1b}[2J", 0));
    assert!(printed.err.starts_with("geartrain: job b failed in smtp: 451; "), "{}", printed.err);
    let kept = shell.json("result b");
    assert_eq!(
        (&kept["how"], &kept["code"], &kept["group"], &kept["message"]),
        (&json!("failed"), &json!(1), &json!("smtp"), &json!("451"))
    );

    shell.run("put q k --jid c");
    let token = shell.pop("q");
    shell.run(&format!("complete c --token {token} --result x"));
    assert!(shell.refused("result c").contains("submit jobs with --keep-result"));
    assert_eq!(
        shell.refused("result missing"),
        "there is no stored result of job missing; the job does not exist"
    );
    shell.run("put q k --jid d --keep-result");
    let unfinished = shell.try_run("result d", &[]);
    assert_eq!(unfinished.code, 4);
    assert_eq!(unfinished.err, "job d is unfinished: it is waiting; `geartrain why d` explains it");
    shell.run("put mail k --jid e --depends d");
    assert_eq!(
        shell.try_run("result e", &[]).err,
        "job e is unfinished: it depends on other jobs; `geartrain why e` explains it"
    );
    shell.run("cancel e");
}

#[test]
fn a_retry_uses_the_backoff_unless_a_delay_is_given() {
    let shell = shell();
    let due =
        |jid: &str| shell.json(&format!("get {jid}"))["due"].as_f64().map(|due| due - timestamp::now().get());
    shell.run("put q k --jid a --backoff 1h..10h");
    for (retry, wait) in [("retry a --worker w1", 3_600.0), ("retry a --worker w1 --delay 5m", 300.0)] {
        shell.pop("q");
        shell.run(retry);
        let waited = due("a").unwrap();
        assert!((waited - wait).abs() < 10.0, "{retry}: {waited}");
        shell.run("requeue a");
    }
    shell.run("cancel a");
    // With jitter it is within a range; without a backoff it is about a second; a delay of zero is none.
    shell.run("put q k --jid b --backoff 1h+-0.5");
    shell.pop("q");
    shell.run("retry b --worker w1");
    assert!((1_790.0..5_401.0).contains(&due("b").unwrap()));
    shell.run("put q k --jid c");
    shell.pop("q");
    shell.run("retry c --worker w1");
    assert!((0.5..1.3).contains(&due("c").unwrap()));
    shell.run("put q k --jid d");
    shell.pop("q");
    shell.run("retry d --worker w1 --delay 0s");
    assert_eq!(shell.json("get d")["state"], "waiting");
}

#[test]
fn a_worker_reports_progress_and_releases_a_job() {
    let shell = shell();
    shell.run("put q k --jid a --retries 0");
    let token = shell.pop("q");
    assert_eq!(
        shell.json(&format!("progress a 3/10 --left 90 --token {token}")),
        json!({ "jid": "a", "progress": { "part": 3, "whole": 10, "percent": 30, "left": 90 } })
    );
    assert_eq!(shell.run("progress a 1/4 --worker w1"), "25% (1 of 4)\n");
    assert_eq!(shell.json("status a")["progress"]["percent"], 25);
    assert!(shell.run("get a").contains("progress  25% (1 of 4)\n"));
    assert_eq!(shell.json(&format!("chunk a part --token {token}")), json!({ "jid": "a", "told": 0 }));
    assert_eq!(
        shell.run("chunk a careful --warning --worker w1"),
        "not sent: no client waits for this job\n"
    );
    assert!(shell.refused("progress a 1/4 --worker w2").contains("held by w1, not by w2"));

    assert_eq!(shell.json(&format!("hand-back a --token {token}")), json!({ "jid": "a" }));
    let job = shell.json("get a");
    assert_eq!(
        (&job["state"], &job["remaining"], &job["history"][2]["reason"], &job["history"][2]["worker"]),
        (&json!("waiting"), &json!(0), &json!("released"), &json!("w1"))
    );
    assert!(shell.run("get a").contains("  released by w1\n"));
    assert!(
        shell
            .refused(&format!("release a --token {token}"))
            .contains("stop working on it, this attempt is over")
    );
}

#[test]
fn a_job_is_released_for_later() {
    let shell = shell();
    shell.run("put q k --jid a --retries 0");
    let token = shell.pop("q");
    assert_eq!(
        shell.run(&format!("release a --token {token} --delay 5m")),
        "released, and scheduled in 5m\n"
    );
    let job = shell.json("get a");
    assert_eq!((&job["state"], &job["remaining"]), (&json!("scheduled"), &json!(0)));
    assert_eq!(job["history"][2]["reason"], "released");
}

#[test]
fn a_job_carries_its_trace_context() {
    let shell = shell();
    let context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    shell.run(&format!("put q k --jid a --traceparent {context}"));
    assert_eq!(shell.json("get a")["particulars"]["traceparent"], context);
    assert!(shell.run("get a").contains(&format!("trace     {context}\n")));
    let upper = context.to_uppercase();
    let bad = args::parse(["geartrain", "put", "q", "k", "--traceparent", &upper]).unwrap_err().to_string();
    assert!(bad.contains("in lower case"), "{bad}");
}

#[test]
fn a_restarted_worker_locks_its_jobs_again() {
    let shell = shell();
    shell.run("put q k --jid a --retries 0");
    let token = shell.pop("q");
    assert_eq!(shell.json("relock w1 other"), json!([]));
    let jobs = shell.json("relock w1 q");
    assert_eq!((&jobs[0]["jid"], &jobs[0]["remaining"], &jobs[1]), (&json!("a"), &json!(0), &json!(null)));
    let again = jobs[0]["token"].as_str().unwrap();
    assert!(shell.refused(&format!("complete a --token {token}")).contains("this attempt is over"));
    assert!(shell.run("get a").contains("resumed by w1 after a restart\n"));
    assert!(shell.run("relock w1").contains("jid       a\n"));
    assert!(shell.refused("relock w1 --count 1001").contains("1 to 1000"));
    assert!(shell.refused(&format!("complete a --token {again}")).contains("this attempt is over"));
}

#[test]
fn the_jobs_of_a_lost_worker_go_to_others_until_the_crash_limit() {
    let shell = shell();
    shell.run("put q k --jid a --crashes 2");
    shell.pop("q");
    let gone = shell.try_run("gone w1 --json --evidence", &["killed by signal 9"]);
    assert_eq!((gone.out.as_str(), gone.code), ("{\"jids\":[\"a\"],\"worker\":\"w1\"}\n", 0));
    let job = shell.json("get a");
    assert_eq!(
        (&job["state"], &job["history"][2]["reason"], &job["history"][2]["worker"]),
        (&json!("waiting"), &json!("worker-lost"), &json!("w1"))
    );
    assert_eq!(
        (&job["particulars"]["crashes"], &job["particulars"]["evidence"]),
        (&json!(1), &json!("killed by signal 9"))
    );
    let card = shell.run("get a");
    for line in
        ["crashes   1 of 2\n", "evidence  killed by signal 9\n", "  worker w1 died: killed by signal 9\n"]
    {
        assert!(card.contains(line), "{line:?} is not in\n{card}");
    }
    shell.pop("q");
    assert_eq!(shell.run("gone w1"), "w1 is lost; it held 1 job: a\n");
    assert!(shell.refused("worker-lost w1").contains("there is no worker w1"));
    assert_eq!(shell.json("get a")["failure"]["group"], "crashed-q");
    assert_eq!(
        shell.run("why a"),
        "job a of q failed: it crashed 2 of its workers; `geartrain requeue a` retries it, \
         `geartrain unfail crashed-q` retries the whole group\n"
    );
}

#[test]
fn workers_announce_capabilities() {
    let shell = shell();
    let none = shell.try_run("roll-call mail", &[]);
    assert_eq!((none.out.as_str(), none.code), ("0\n", 1));
    assert!(
        none.err.starts_with("no live worker has announced that it can run jobs of mail; "),
        "{}",
        none.err
    );
    assert!(shell.refused("put mail welcome --roll-call").contains("start one, or put without roll call"));

    assert_eq!(
        shell.json("announce w1 mail:welcome news --timeout 10m"),
        json!({ "worker": "w1", "can": [
            { "queue": "mail", "klass": "welcome", "timeout": 600 },
            { "queue": "news", "klass": null, "timeout": 600 },
        ] })
    );
    assert_eq!(
        shell.json("roll-call mail welcome"),
        json!({ "queue": "mail", "klass": "welcome", "workers": 1 })
    );
    assert_eq!(shell.run("roll-call news anything"), "1\n");
    assert_eq!(shell.try_run("roll-call mail other", &[]).code, 1);
    shell.run("put mail welcome --roll-call");

    assert_eq!(
        shell.run("workers"),
        "WORKER  RUNNING  STALLED  SEEN  CAN\nw1            0        0   now  mail:welcome (10m) news (10m)\n"
    );
    assert_eq!(shell.json("workers")[0]["can"][1], json!({ "queue": "news", "klass": null, "timeout": 600 }));
    assert_eq!(shell.run("announce w1 news --cannot"), "w1 can run mail:welcome (10m)\n");
    assert_eq!(shell.run("announce w1 mail --only"), "w1 can run mail\n");
    assert_eq!(shell.run("announce w1 --only"), "w1 can run no jobs\n");
    assert_eq!(shell.try_run("roll-call mail", &[]).code, 1);
}

#[test]
fn limits_of_a_queue_are_set_and_enforced() {
    let shell = shell();
    assert_eq!(shell.run("limits mail"), "mail has no limits\n");
    assert_eq!(
        shell.json("limits mail"),
        json!({ "queue": "mail", "max": null, "by_priority": [], "rate": null, "max_concurrency": null })
    );
    assert_eq!(
        shell.json("limits mail --max 10 --max-at -5=1 --max-at 10=3 --rate 100/1m+20"),
        json!({
            "queue": "mail", "max": 10,
            "by_priority": [{ "priority": -5, "max": 1 }, { "priority": 10, "max": 3 }],
            "rate": { "count": 100, "per": 60, "burst": 20 }, "max_concurrency": null,
        })
    );
    assert_eq!(
        shell.run("limits mail"),
        "queue  mail
max    10 unfinished jobs
max    1 unfinished job for priority -5 and up
max    3 unfinished jobs for priority 10 and up
rate   100/1m+20
"
    );
    shell.run("put mail k --jid a");
    assert!(shell.refused("put mail k --jid b").contains("try again later, or raise the limit"));
    shell.run("put mail k --priority 10 --jid c");
    // A refused change has no effect, and new limits replace all old ones.
    assert!(shell.refused("limits mail --max-at 5=1 --max-at 5=2").starts_with("limit "));
    assert_eq!(shell.json("limits mail")["max"], 10);
    assert_eq!(shell.run("limits mail --rate 1/1h"), "queue  mail\nrate   1/1h\n");
    shell.pop("mail");
    assert_eq!(shell.json("pop mail"), json!([]));
    let why = shell.run("why a");
    assert!(
        why.starts_with(
            "job a of mail is waiting: its queue is at its rate limit and starts the next job in "
        ),
        "{why}"
    );
    assert_eq!(shell.run("limits mail --none"), "mail has no limits\n");
    assert_eq!(shell.json("pop mail")[0]["jid"], "a");
}

#[test]
fn the_remedy_against_a_rate_limit_keeps_the_other_limits() {
    let shell = shell();
    shell.run("put mail k --jid a");
    shell.run("put mail k --jid b");
    shell.run("limits mail --max 9 --rate 1/1h");
    shell.pop("mail");
    let why = shell.run("why b");
    assert!(why.ends_with(", and `geartrain limits --max 9 --rate 2/1h mail` doubles the rate\n"), "{why}");
    let limits = shell.json("limits --max 9 --rate 2/1h mail");
    assert_eq!((&limits["max"], &limits["rate"]["count"]), (&json!(9), &json!(2)));
}

#[test]
fn a_concurrency_limit_is_set_beside_the_others() {
    let shell = shell();
    shell.run("limits mail --max 10");
    shell.run("limits mail --max-concurrency 2");
    assert_eq!(
        shell.run("limits mail"),
        "queue            mail\nmax              10 unfinished jobs\nmax-concurrency  2 running jobs\n"
    );
    assert_eq!(shell.run("config get mail-max-concurrency"), "2\n");
    for jid in ["a", "b", "c"] {
        shell.run(&format!("put mail k --jid {jid}"));
    }
    shell.pop("mail");
    shell.pop("mail");
    shell.run("limits mail --max-concurrency 1");
    let why = shell.run("why c");
    assert!(
        why.starts_with(
            "job c of mail is waiting: 2 jobs of its queue run, and its concurrency limit is 1 (for example "
        ) && why.ends_with("; `geartrain config set mail-max-concurrency 3` lets one more run\n"),
        "{why}"
    );
    shell.run("config set mail-max-concurrency 3");
    shell.pop("mail");
    shell.run("config unset mail-max-concurrency");
    shell.run("config set max-concurrency-mail 5");
    assert_eq!(shell.json("limits mail")["max_concurrency"], 5);
    assert_eq!(shell.json("limits mail --max-concurrency 0")["max_concurrency"], json!(null));
    shell.run("limits mail --max-concurrency 4");
    assert_eq!(shell.run("limits mail --none"), "mail has no limits\n");
}

#[test]
fn why_explains_what_blocks_a_job() {
    let shell = shell();
    shell.run("put mail k --jid a");
    shell.run("put mail k --jid b");
    shell.run("pause mail");
    assert_eq!(
        shell.json("why b"),
        json!({ "jid": "b", "state": "waiting", "queue": "mail", "stalled": false, "reasons": [
            { "reason": "paused", "queue": "mail" },
            { "reason": "no-worker", "klass": "k", "asked": null, "others": [], "workers": 0 },
            { "reason": "behind", "jobs": 1 },
        ] })
    );
    assert_eq!(
        shell.run("why b"),
        "job b of mail is waiting: queue mail is paused, no worker has ever popped from its queue or announced that \
         it can run k, and 1 job is ahead of it; `geartrain resume mail` resumes it\n"
    );
    shell.run("resume mail");
    shell.pop("mail");
    assert!(
        shell.run("why a").starts_with("job a of mail is running: w1 holds it, and the lock expires in ")
    );
    assert_eq!(shell.json("why a")["reasons"][0]["worker"], "w1");
    assert_eq!(shell.json("why b")["reasons"], json!([{ "reason": "next" }]));
    assert!(shell.refused("why missing").contains("job missing does not exist"));
}

/// Works on the next job of `q` on another thread, like a worker in another process.
fn spawn_worker(
    shell: &Shell,
    work: impl FnOnce(Shell, String) + Send + 'static,
) -> std::thread::JoinHandle<()> {
    let shell = Shell { client: shell.client.clone(), width: None };
    std::thread::spawn(move || {
        let popped = shell.json("pop q --worker w1 --wait 30s");
        work(shell, popped[0]["jid"].as_str().unwrap().to_owned());
    })
}

#[test]
fn put_wait_prints_the_result() {
    let shell = shell();
    let worker = spawn_worker(&shell, |shell, jid| {
        shell.run(&format!("progress {jid} 1/2 --worker w1"));
        assert_eq!(shell.run(&format!("chunk {jid} one, --worker w1")), "sent to 1 client\n");
        shell.run(&format!("chunk {jid} careful --warning --worker w1"));
        shell.run(&format!("complete {jid} --worker w1 --result two"));
    });
    let waited = shell.try_run("put q k --wait 30s", &[]);
    worker.join().unwrap();
    // No line break is added, and progress is only shown on a terminal.
    assert_eq!(
        (waited.out.as_str(), waited.err.as_str(), waited.code),
        ("one,two", "geartrain: warning: careful\n", 0)
    );

    let worker = spawn_worker(&shell, |shell, jid| {
        shell.run(&format!("chunk {jid} {{\"n\":1}} --worker w1"));
        shell.run(&format!("chunk {jid} careful --warning --worker w1"));
        shell.run(&format!("complete {jid} --worker w1 --result [2] --code 7"));
    });
    assert_eq!(
        shell.json("put q k --jid a --wait"),
        json!({
            "jid": "a", "coalesced": false, "data": [{ "n": 1 }], "warnings": ["careful"],
            "how": "completed", "group": null, "message": null, "code": 7, "result": [2],
        })
    );
    worker.join().unwrap();
}

#[test]
fn put_wait_reports_a_failure() {
    let shell = shell();
    let worker = spawn_worker(&shell, |shell, jid| {
        shell.run(&format!("fail {jid} smtp 451 --worker w1 --result why"));
    });
    let failed = shell.try_run("put q k --jid a --wait 30s", &[]);
    worker.join().unwrap();
    assert_eq!((failed.out.as_str(), failed.code), ("why", 1));
    assert_eq!(failed.err, "job a failed in smtp: 451; `geartrain requeue a` retries it");

    let worker = spawn_worker(&shell, |shell, jid| {
        shell.run(&format!("cancel {jid}"));
    });
    let cancelled = shell.try_run("put q k --jid b --wait 30s --json", &[]);
    worker.join().unwrap();
    assert_eq!(cancelled.code, 1);
    assert!(cancelled.err.starts_with("job b was cancelled; "), "{}", cancelled.err);
    assert_eq!(serde_json::from_str::<Value>(&cancelled.out).unwrap()["how"], "canceled");
}

#[test]
fn put_wait_that_times_out_leaves_its_job() {
    let shell = shell();
    let late =
        shell.try_run("put q k --jid a --wait 1ms --keep-result --timeout 10m --tag t --priority 5", &[]);
    assert_eq!((late.out.as_str(), late.code), ("", 4));
    assert_eq!(late.err, "job a had not ended after 1ms; it goes on, and `geartrain why a` shows its state");
    let job = shell.json("get a");
    assert_eq!(
        (&job["state"], &job["tags"], &job["priority"]),
        (&json!("waiting"), &json!(["t"]), &json!(5))
    );
    let about = &job["particulars"];
    assert_eq!(
        (&about["attached"], &about["timeout"], &about["keep_result"]),
        (&json!(0), &json!(600), &json!(90_000))
    );
    let late = shell.try_run("put q k --wait 1ms --json", &[]);
    assert_eq!(late.code, 4);
    assert_eq!(serde_json::from_str::<Value>(&late.out).unwrap()["how"], json!(null));

    // The same put again waits for the same job, also after it has ended.
    let token = shell.pop("q");
    shell.run(&format!("complete a --token {token} --result done"));
    let again = shell.try_run("put q k --jid a --wait 30s", &[]);
    assert_eq!((again.out.as_str(), again.code), ("done", 0));
    shell.run("put q k --jid b --priority 9");
    let token = shell.pop("q");
    shell.run(&format!("complete b --token {token} --result done"));
    let unknown = shell.try_run("put q k --jid b --wait 30s", &[]);
    assert_eq!(unknown.code, 1);
    assert_eq!(
        unknown.err,
        "job b is complete, and its result was not stored; submit jobs with --keep-result to read it later"
    );
}

#[test]
fn put_wait_with_a_unique_key_waits_for_the_joined_job() {
    let shell = shell();
    shell.run("put q k --jid a --unique key");
    let worker = spawn_worker(&shell, |shell, jid| {
        // It is popped before the client waits: hold it until the client does.
        while shell.json("status a")["attached"] == 0 {
            std::thread::yield_now();
        }
        shell.run(&format!("complete {jid} --worker w1 --result done"));
    });
    let waited = shell.try_run("put q k --jid b --unique key --wait 30s", &[]);
    worker.join().unwrap();
    assert_eq!((waited.out.as_str(), waited.code), ("done", 0));
    assert!(waited.err.starts_with("geartrain: unfinished job a has the same unique key"), "{}", waited.err);
}

#[test]
fn events_are_printed_and_continued() {
    let shell = shell();
    // Events are retained only after a first subscription.
    let subscription = pollster::block_on(shell.client.events()).unwrap();
    shell.run("put q k --jid a");
    shell.run("put q k --jid b");
    let token = shell.pop("q");
    shell.run(&format!("progress a 1/4 --token {token}"));
    let too_old = shell.refused("events --after 0");
    assert!(too_old.ends_with("the oldest is 2; `geartrain events --after 1` starts there"), "{too_old}");
    let two = shell.try_run("events --after 1 --count 2", &[]);
    let untimed = |line: &str| {
        let [position, time, what] = line.splitn(3, "  ").collect::<Vec<_>>().try_into().unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{line}");
        format!("{position}  {what}")
    };
    let two_lines: Vec<String> = two.out.lines().map(untimed).collect();
    assert_eq!(
        (two_lines, two.code),
        (vec!["2  a was submitted to q".into(), "3  b was submitted to q".into()], 0)
    );
    assert_eq!(two.err, "geartrain: continue with `geartrain events --after 3`\n");
    let on = shell.run("events --after 3 --count 2 --json");
    let mut lines: Vec<Value> = on.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &mut lines {
        assert!(line.as_object_mut().unwrap().remove("at").unwrap().as_f64().unwrap() > 1.7e9);
    }
    assert_eq!(
        lines,
        [
            json!({ "position": "4", "event": "popped", "jid": "a", "queue": "q", "worker": "w1" }),
            json!({ "position": "5", "event": "progress", "jid": "a",
                "progress": { "part": 1, "whole": 4, "percent": 25, "left": null } }),
        ]
    );
    assert_eq!(
        shell.refused("events --after 6"),
        "position 6 is beyond the last event, 5; `geartrain events --after` takes a position that was printed"
    );
    drop(subscription);
}

#[test]
fn tick_processes_what_is_due() {
    let shell = shell();
    assert_eq!(shell.json("tick"), json!({ "done": 0, "next": null }));
    assert_eq!(shell.run("tick --count 5"), "0 steps done; nothing more is due\n");
    shell.run("put q k --jid a --expires 1h");
    let next = shell.json("tick")["next"].as_f64().unwrap() - timestamp::now().get();
    assert!((3_590.0..3_602.0).contains(&next), "{next}");
    assert!(shell.run("tick").starts_with("0 steps done; more is due in "));
}

#[test]
fn an_invalid_put_changes_nothing() {
    let shell = shell();
    assert_eq!(
        shell.refused("put q k --expires 5 --jid a"),
        "expires is in the past: give a later time, or 1h for an hour from now"
    );
    shell.refused("get a");
    shell.run("put q k --jid a");
    shell.pop("q");
    let evidence = "x".repeat(65_537);
    assert_eq!(shell.try_run("gone w1 --evidence", &[&evidence]).code, 1);
    assert_eq!(shell.json("get a")["state"], "running");
}

#[test]
fn a_put_says_what_happens_when_a_dependency_fails() {
    let shell = shell();
    shell.run("put mail k --jid a --priority 9");
    shell.run("put mail k --jid fails --depends a --on-dependency-failure fail");
    shell.run("put mail k --jid skips --depends a --on-dependency-failure skip");
    shell.run("put mail k --jid runs --depends a --on-dependency-failure run");
    shell.run("put mail k --jid waits --depends a --on-dependency-failure wait");
    assert_eq!(shell.json("get fails")["particulars"]["on_dependency_failure"], "fail");
    assert!(shell.run("get skips").contains("is cancelled if a dependency fails"));
    assert_eq!(shell.json("get waits")["particulars"], Value::Null);
    let token = shell.pop("mail");
    shell.run(&format!("fail a smtp oops --token {token}"));
    let failed = shell.json("get fails");
    assert_eq!(failed["failure"]["group"], "upstream-mail");
    assert_eq!(failed["failure"]["message"], "Job a failed (smtp), and this job depends on it");
    assert!(shell.refused("get skips").contains("skips"));
    assert_eq!(shell.json("get runs")["state"], "waiting");
    let reason = &shell.json("why waits")["reasons"][0];
    assert_eq!(reason["failed"], json!({ "jid": "a", "group": "smtp", "message": "oops" }));
    assert!(shell.run("why waits").contains("`geartrain cancel --cascade a`"));
    let arguments = "geartrain put mail k --depends a --on-dependency-failure stop".split(' ');
    let unknown = args::parse(arguments).unwrap_err().to_string();
    assert!(unknown.contains("\"stop\" is not a policy: use wait, fail, skip or run"), "{unknown}");
}

#[test]
fn cancel_takes_dependents_along_if_told_to() {
    let shell = shell();
    shell.run("put mail k --jid a");
    shell.run("put mail k --jid b --depends a");
    shell.run("put mail k --jid c --depends b");
    assert!(shell.refused("cancel a").contains("job b depends on job a"));
    let partial = shell.try_run("cancel --cascade a missing --json", &[]);
    assert_eq!((partial.out.as_str(), partial.code), ("{\"cancelled\":3}\n", 1));
    assert!(partial.err.starts_with("1 job could not be cancelled"), "{}", partial.err);
    shell.run("put mail k --jid a");
    assert_eq!(shell.run("cancel --cascade a"), "1 job cancelled\n");
}
