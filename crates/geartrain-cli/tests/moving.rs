//! `geartrain move` as a process: killed at random moments, following a producer, and refusing.

use crate::sandbox::Sandbox;
use crate::server_process::{ServerProcess, until};

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::{Child, Stdio};

use geartrain::{
    Client, EndSetAside, Fail, GetMany, Group, Jid, Length, QueueName, SetAside, Status, StatusOf,
    TransferEnd,
};
use geartrain_testkit::peers::{Gearmand, RedisServer};
use serde_json::Value;

/// Klass, payload, priority, tags, state and dependencies of a job.
type Content = (String, Vec<u8>, String, Vec<String>, &'static str, Vec<Jid>);

fn connect(url: &str) -> Client {
    pollster::block_on(geartrain::connect(url)).unwrap()
}

/// All jobs of a queue.
fn contents(url: &str) -> BTreeMap<Jid, Content> {
    let client = connect(url);
    pollster::block_on(async {
        let mut selection = client.select("queue=mail".parse().unwrap());
        let mut all = BTreeMap::new();
        while let Some(page) = selection.next_page().await.unwrap() {
            let jids = page.into_iter().map(|job| job.jid).collect();
            for job in client.run(GetMany { jids }).await.unwrap() {
                let tags = job.tags.iter().map(ToString::to_string).collect();
                let content = (
                    job.klass.to_string(),
                    job.payload.bytes().to_vec(),
                    job.priority.to_string(),
                    tags,
                    job.state.name().as_str(),
                    job.dependencies().to_vec(),
                );
                all.insert(job.jid, content);
            }
        }
        all
    })
}

/// Lines of jobs of all kinds that can be put.
fn lines(jobs: usize) -> String {
    let mut lines = String::new();
    for number in 0..jobs {
        let more = match number % 10 {
            0 => r#","priority":5"#.to_owned(),
            1 => r#","tags":["a","b"]"#.to_owned(),
            2 => r#","in":"10h""#.to_owned(),
            3 => format!(r#","depends":["j{}"]"#, number - 1),
            4 => r#","unique":{"$bytes":"/wA="},"timeout":"5m""#.replace("/wA=", &format!("{number:08}")),
            _ => String::new(),
        };
        let _ = writeln!(
            lines,
            r#"{{"jid":"j{number}","klass":"k{}","payload":{{"n":{number}}}{more}}}"#,
            number % 3
        );
    }
    lines
}

fn mover(sandbox: &Sandbox, from: &str, to: &str, more: &[&str]) -> Child {
    let mut command =
        sandbox.command(&[&["move", "--from", from, "--to", to, "mail", "--json"], more].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Moves, with a mover that is killed again and again once it has changed the length of the watched queue.
fn move_with_kills(
    sandbox: &Sandbox,
    (from, to): (&str, &str),
    watched: &str,
    jobs: usize,
    kills: u64,
) -> Value {
    let client = connect(watched);
    let length = || {
        let queue = QueueName::new("mail").unwrap();
        pollster::block_on(client.run(Length { queue })).unwrap()
    };
    let mut random = geartrain_testkit::seeds(1).start + 7;
    for _ in 0..kills {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let before = length();
        let change = (random >> 33) % (jobs as u64 / (kills + 1)) + 1;
        let mut child = mover(sandbox, from, to, &["--rate", &format!("{}/s", jobs)]);
        until("it has moved some", || {
            length().abs_diff(before) >= change || child.try_wait().unwrap().is_some()
        });
        let _ = child.kill();
        child.wait().unwrap();
    }
    let output = mover(sandbox, from, to, &[]).wait_with_output().unwrap();
    let all = [&output.stderr[..], &output.stdout[..]].concat();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&all));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_mover_that_is_killed_loses_and_doubles_nothing() {
    let (jobs, kills) = if std::env::var_os("GEARTRAIN_LONG").is_some() { (100_000, 10) } else { (2_000, 3) };
    let (sandbox, redis) = (Sandbox::new(), RedisServer::start(&[]));
    let file = sandbox.file("jobs.ndjson", &lines(jobs));
    sandbox.run(&["put", "mail", "--batch", &file]);
    let (data, there, back) = (sandbox.url("data"), redis.url(), sandbox.url("back"));
    {
        let client = connect(&data);
        for _ in 0..5 {
            let popped = pollster::block_on(client.pop("mail", "w")).unwrap().unwrap();
            let group = Group::new("io").unwrap();
            let fail = Fail::new(popped.jid.clone(), popped.holder(), group, "no such host");
            pollster::block_on(client.run(fail)).unwrap();
        }
    }
    let expected = contents(&data);
    assert_eq!(expected.len(), jobs);

    let report = move_with_kills(&sandbox, (&data, &there), &there, jobs, kills);
    assert_eq!(report["stay"], serde_json::json!([]), "{report}");
    assert_eq!(contents(&there), expected);
    assert_eq!(contents(&data), BTreeMap::new());

    let report = move_with_kills(&sandbox, (&there, &back), &there, jobs, kills);
    assert_eq!(report["stay"], serde_json::json!([]), "{report}");
    assert_eq!(contents(&back), expected);
    assert_eq!(contents(&there), BTreeMap::new());

    let nothing = sandbox.json(&["move", "--from", &there, "--to", &back, "mail"]);
    assert_eq!((&nothing["moved"], &nothing["resumed"]), (&0.into(), &0.into()));
}

#[test]
fn a_move_follows_a_producer_until_it_is_stopped() {
    let (sandbox, redis) = (Sandbox::new(), RedisServer::start(&[]));
    let there = format!("{}?prefix=new:", redis.url());
    let child = mover(&sandbox, &redis.url(), &there, &["--follow"]);
    let (producer, target) = (connect(&redis.url()), connect(&there));
    for number in 0..200 {
        let payload = format!("{number}");
        pollster::block_on(async { producer.put("mail", "k", payload).await }).unwrap();
    }
    let length = || {
        let queue = QueueName::new("mail").unwrap();
        pollster::block_on(target.run(Length { queue })).unwrap()
    };
    until("all jobs have arrived", || length() == 200);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let all = [&output.stderr[..], &output.stdout[..]].concat();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&all));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["moved"], &report["stay"]), (&200.into(), &serde_json::json!([])));
    assert_eq!(contents(&redis.url()), BTreeMap::new());
}

#[test]
fn what_cannot_be_moved_is_said_with_the_reason() {
    let (sandbox, redis) = (Sandbox::new(), RedisServer::start(&[]));
    let data = sandbox.url("data");
    let (_, err, code) = sandbox.try_run(&["move", "--from", &data, "--to", &data, "mail"]);
    assert_eq!(code, 2);
    assert!(err.contains("name the same queue system"), "{err}");
    let (_, err, code) = sandbox.try_run(&["move", "--from", &data, "--to", "redis://127.0.0.1:1", "mail"]);
    assert_eq!(code, 3);
    assert!(err.starts_with("geartrain: --to: "), "{err}");

    sandbox.run(&["put", "mail", "no-namespace", "[]", "--jid", "bad"]);
    sandbox.run(&["put", "mail", "a/b", "[]", "--jid", "urgent", "--priority", "5"]);
    sandbox.run(&["put", "mail", "a/b", r#"["good"]"#]);
    let schedules = format!("workkit+{}", redis.url());
    let (out, _, code) = sandbox.try_run(&["move", "--from", &data, "--to", &schedules, "mail"]);
    assert_eq!(code, 1, "{out}");
    for said in
        ["1 job moved (1 waiting)", "job bad stays: it ", "job urgent stays: it ", "order jobs by priority"]
    {
        assert!(out.contains(said), "{said}: {out}");
    }
    assert_eq!(contents(&data).len(), 2);
    let dry = sandbox.json(&["move", "--from", &data, "--to", &redis.url(), "mail", "--dry-run"]);
    assert_eq!((&dry["moved"], &dry["dry_run"]), (&2.into(), &true.into()));
    assert_eq!(contents(&data).len(), 2);
}

/// Lines of jobs that GearMonkey can have, with retries, so that nothing depends on a default.
fn plain_lines(jobs: usize) -> String {
    let mut lines = String::new();
    for number in 0..jobs {
        let more = match number % 5 {
            0 => r#","priority":1"#,
            1 => r#","priority":-1"#,
            2 => r#","in":"10h""#,
            _ => "",
        };
        let _ = writeln!(lines, r#"{{"klass":"mail","payload":{{"n":{number}}},"retries":3{more}}}"#);
    }
    lines
}

/// What jobs have wherever they are, in an order of their own: they are named anew by GearMonkey.
fn without_names(all: BTreeMap<Jid, Content>) -> Vec<Content> {
    let mut contents: Vec<Content> = all.into_values().collect();
    contents.sort();
    contents
}

fn gearmonkey(redis: &RedisServer) -> String {
    format!("gearmonkey+{}", redis.url())
}

fn is_nothing_aside(url: &str) -> bool {
    let group = Group::new(geartrain::TRANSFER_GROUP).unwrap();
    let page = geartrain::Page { offset: 0, count: geartrain::Count::ONE };
    let failed = geartrain::Failed { group, page };
    pollster::block_on(connect(url).run(failed)).unwrap().jids.is_empty()
}

#[test]
fn jobs_go_through_gearmonkey_and_back_while_the_mover_is_killed() {
    let (jobs, kills) = if std::env::var_os("GEARTRAIN_LONG").is_some() { (100_000, 10) } else { (2_000, 3) };
    let (sandbox, redis) = (Sandbox::new(), RedisServer::start(&[]));
    let file = sandbox.file("jobs.ndjson", &plain_lines(jobs));
    sandbox.run(&["put", "mail", "--batch", &file]);
    let (data, there, back) = (sandbox.url("data"), redis.url(), sandbox.url("back"));
    let functions = gearmonkey(&redis);
    let expected = without_names(contents(&data));
    assert_eq!(expected.len(), jobs);

    for (from, to, watched) in [
        (&data, &there, &there),
        (&there, &functions, &functions),
        (&functions, &there, &functions),
        (&there, &back, &there),
    ] {
        let report = move_with_kills(&sandbox, (from, to), watched, jobs, kills);
        assert_eq!(report["stay"], serde_json::json!([]), "{from} {to}: {report}");
        assert_eq!(report["at_least_once"], false);
        assert!(is_nothing_aside(from), "{from}");
        let queue = QueueName::new("mail").unwrap();
        assert_eq!(pollster::block_on(connect(to).run(Length { queue })).unwrap(), jobs as u64, "{to}");
    }
    assert_eq!(without_names(contents(&back)), expected);
    assert_eq!(contents(&there), BTreeMap::new());
}

/// How many jobs of the function wait and run.
fn gearman_status(sandbox: &Sandbox, url: &str) -> Value {
    let queues = sandbox.json(&["--url", url, "queues"]);
    let queue = queues.as_array().unwrap().iter().find(|queue| queue["name"] == "mail").cloned();
    queue.map_or(Value::Null, |queue| serde_json::json!([queue["waiting"], queue["running"]]))
}

#[test]
fn background_jobs_leave_gearmand_while_the_mover_is_killed() {
    let gearmand = Gearmand::start(&[]);
    background_jobs_leave(gearmand.port());
}

#[test]
fn background_jobs_leave_our_server_over_gearman_while_the_mover_is_killed() {
    let server = ServerProcess::start(&[]);
    background_jobs_leave(server.gearman_port());
}

/// Moves jobs from a Gearman server, with a mover that is killed.
fn background_jobs_leave(port: u16) {
    let (jobs, kills) = if std::env::var_os("GEARTRAIN_LONG").is_some() { (20_000, 10) } else { (1_000, 3) };
    let (sandbox, redis) = (Sandbox::new(), RedisServer::start(&[]));
    let (from, to) = (format!("gearman://127.0.0.1:{port}"), redis.url());
    let mut lines = String::new();
    for number in 0..jobs {
        let more = if number % 3 == 0 { format!(r#","unique":"u{number}""#) } else { String::new() };
        let _ = writeln!(lines, r#"{{"klass":"mail","payload":{{"n":{number}}}{more}}}"#);
    }
    let file = sandbox.file("jobs.ndjson", &lines);
    sandbox.run(&["--url", &from, "put", "mail", "--batch", &file]);
    let dry = sandbox.json(&["move", "--from", &from, "--to", &to, "mail", "--dry-run"]);
    assert_eq!((&dry["moved"], contents(&to).len()), (&jobs.into(), 0));

    let report = move_with_kills(&sandbox, (&from, &to), &to, jobs, kills);
    assert_eq!(
        (&report["stay"], &report["at_least_once"]),
        (&serde_json::json!([]), &true.into()),
        "{report}"
    );
    let arrived = contents(&to);
    let payloads: std::collections::BTreeSet<&[u8]> = arrived.values().map(|job| &job.1[..]).collect();
    assert_eq!((arrived.len(), payloads.len()), (jobs, jobs));
    assert_eq!(gearman_status(&sandbox, &from), serde_json::json!([0, 0]));
}

#[test]
fn a_gearman_job_for_which_a_client_waits_stays_and_is_given_back() {
    let (sandbox, gearmand, redis) = (Sandbox::new(), Gearmand::start(&[]), RedisServer::start(&[]));
    let from = format!("gearman://127.0.0.1:{}", gearmand.port());
    let (_, err, code) = sandbox.try_run(&["move", "--from", &from, "--to", &from, "mail"]);
    assert_eq!((code, err.contains("name the same queue system")), (2, true), "{err}");
    sandbox.run(&["--url", &from, "put", "mail", "mail", "background"]);
    let put = ["--url", &from, "put", "mail", "mail", "foreground", "--wait", "1m"];
    let waiter = sandbox.command(&put).stdout(Stdio::piped()).spawn().unwrap();
    until("the client has submitted its job", || {
        gearman_status(&sandbox, &from) == serde_json::json!([2, 0])
    });
    let (out, _, code) = sandbox.try_run(&["move", "--from", &from, "--to", &redis.url(), "mail"]);
    assert_eq!(code, 1, "{out}");
    for said in ["1 job moved (1 waiting)", "stays: it has a client that waits for its result"] {
        assert!(out.contains(said), "{said}: {out}");
    }
    assert_eq!(waiting(&redis.url()), ["background"]);
    // The job was given back to the server, whose workers complete it for the client.
    sandbox.run(&["--url", &from, "work", "mail", "--drain", "--", "cat"]);
    let output = waiter.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"foreground"[..]));
    let (_, err, code) =
        sandbox.try_run(&["move", "--from", "gearman://127.0.0.1:1", "--to", &redis.url(), "mail"]);
    assert_eq!((code, err.starts_with("geartrain: --from: ")), (3, true), "{err}");
}

#[test]
fn a_client_that_joins_a_job_while_it_leaves_is_told_where_it_went() {
    let (sandbox, gearmand, server) = (Sandbox::new(), Gearmand::start(&[]), ServerProcess::start(&[]));
    for port in [gearmand.port(), server.gearman_port()] {
        let from = format!("gearman://127.0.0.1:{port}");
        let put = ["--url", &from, "put", "mail", "mail", "1", "--unique", "u1"];
        sandbox.run(&put);
        let mover = connect(&from);
        let set = SetAside { jids: vec![Jid::new("mail_+1").unwrap()], to: "redis://new".to_owned() };
        let aside = pollster::block_on(mover.run(set)).unwrap();
        assert_eq!((aside.jobs.len(), aside.stay.len()), (1, 0));
        let mut waiting = sandbox.command(&[&put[..], &["--wait", "1m"]].concat());
        let waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let unique = geartrain::UniqueKey::new("u1").unwrap();
        let of = StatusOf::Unique(QueueName::new("mail").unwrap(), unique);
        until("the client has joined the job", || {
            let status = pollster::block_on(mover.run(Status { of: of.clone() })).unwrap();
            status.is_some_and(|status| status.attached == 1)
        });
        let jids = aside.jobs.into_iter().map(|job| job.jid).collect();
        let end = EndSetAside { jids, end: TransferEnd::Remove };
        assert_eq!(pollster::block_on(mover.run(end)).unwrap().ended, 1);
        let output = waiting.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.status.code(), told.contains("was moved to redis://new")),
            (Some(1), true),
            "{told}"
        );
        drop(mover);
        assert_eq!(gearman_status(&sandbox, &from), serde_json::json!([0, 0]));
    }
}

/// Sets jobs aside as a mover does that is killed then.
fn interrupt(from: &str, to: &str, jids: &[&str]) {
    let jids: Vec<Jid> = jids.iter().map(|jid| Jid::new(*jid).unwrap()).collect();
    let (count, set) = (jids.len(), SetAside { jids, to: to.to_owned() });
    assert_eq!(pollster::block_on(connect(from).run(set)).unwrap().jobs.len(), count);
}

/// The payloads of waiting jobs, the next one first.
fn waiting(url: &str) -> Vec<String> {
    let peek = geartrain::Peek { queue: QueueName::new("mail").unwrap(), count: geartrain::Count::MAX };
    let jobs = pollster::block_on(connect(url).run(peek)).unwrap();
    jobs.iter().map(|job| String::from_utf8(job.payload.bytes().to_vec()).unwrap()).collect()
}

#[test]
fn an_abort_puts_gearmonkey_jobs_back_in_front_in_their_order() {
    let (sandbox, redis) = (Sandbox::new(), RedisServer::start(&[]));
    let (functions, there) = (gearmonkey(&redis), redis.url());
    for payload in ["1", "2", "3"] {
        sandbox.run(&["--url", &functions, "put", "mail", "mail", payload]);
    }
    sandbox.run(&["--url", &functions, "put", "mail", "mail", "4", "--in", "10h"]);
    let due = || sandbox.json(&["--url", &functions, "get", "mail:4"]);
    let due_before = due();
    interrupt(&functions, &there, &["mail:1", "mail:2", "mail:4"]);
    assert_eq!(waiting(&functions), ["3"]);
    // Set aside, not lost: no listing of stalled jobs has them.
    let stalled = sandbox.json(&["--url", &functions, "jobs", "--queue", "mail", "--state", "stalled"]);
    assert!(!stalled.to_string().contains("mail:1"), "{stalled}");
    let elsewhere = sandbox.url("data");
    let (_, err, code) = sandbox.try_run(&["move", "--from", &functions, "--to", &elsewhere, "mail"]);
    assert_eq!((code, err.contains("another target")), (1, true), "{err}");
    let report = sandbox.json(&["move", "--from", &functions, "--to", &there, "mail", "--abort"]);
    assert_eq!((&report["returned"], &report["moved"]), (&3.into(), &0.into()));
    assert_eq!(waiting(&functions), ["1", "2", "3"]);
    assert_eq!(due(), due_before);
    assert!(is_nothing_aside(&functions));
}

#[test]
fn an_abort_knows_what_has_arrived_at_gearmonkey() {
    let (sandbox, redis) = (Sandbox::new(), RedisServer::start(&[]));
    let (from, to) = (redis.url(), gearmonkey(&redis));
    for jid in ["a", "b"] {
        sandbox.run(&["--url", &from, "put", "mail", "mail", jid, "--jid", jid]);
    }
    interrupt(&from, &to, &["a", "b"]);
    let put = ["--url", &to, "put", "mail", "mail", "a", "--unique", "geartrain-transfer:a"];
    sandbox.run(&put);
    sandbox.run(&put);
    assert_eq!(waiting(&to), ["a"]);
    let report = sandbox.json(&["move", "--from", &from, "--to", &to, "mail", "--abort"]);
    assert_eq!((&report["returned"], &report["moved"]), (&1.into(), &1.into()));
    assert_eq!((waiting(&from), waiting(&to)), (vec!["b".to_owned()], vec!["a".to_owned()]));
    // Another job under the same id is not taken for it.
    sandbox.run(&["--url", &from, "put", "mail", "mail", "other", "--jid", "a"]);
    let (out, _, code) = sandbox.try_run(&["move", "--from", &from, "--to", &to, "mail"]);
    assert_eq!((code, out.contains("belongs to another job, mail:1")), (1, true), "{out}");
    assert_eq!(
        (waiting(&from), waiting(&to)),
        (vec!["other".to_owned()], vec!["a".to_owned(), "b".to_owned()])
    );
}

#[test]
fn tasks_go_to_worqr_and_back_in_their_order_and_the_report_says_at_least_once() {
    let (sandbox, redis) = (Sandbox::new(), RedisServer::start(&[]));
    let (data, there) = (sandbox.url("data"), redis.url());
    let tasks = format!("worqr+{there}");
    let payload = |number: usize| format!(r#"{{"n":{number}}}"#);
    let lines: String = (0..2_500)
        .map(|number| format!("{{\"klass\":\"mail\",\"payload\":{}}}\n", payload(number)))
        .collect();
    let file = sandbox.file("jobs.ndjson", &lines);
    sandbox.run(&["put", "mail", "--batch", &file]);
    let expected: Vec<String> = (0..2_500).map(payload).collect();

    let report = sandbox.json(&["move", "--from", &data, "--to", &tasks, "mail"]);
    assert_eq!((&report["moved"], &report["at_least_once"]), (&2_500.into(), &true.into()));
    assert_eq!(waiting(&tasks), expected);
    assert_eq!(contents(&data), BTreeMap::new());

    // A schedule takes only klasses with a namespace: all come back as they were.
    let schedules = format!("workkit+{there}");
    let (out, _, code) = sandbox.try_run(&["move", "--from", &tasks, "--to", &schedules, "mail"]);
    assert_eq!((code, out.contains("0 jobs moved")), (1, true), "{out}");
    assert_eq!(waiting(&tasks), expected);
    assert!(is_nothing_aside(&tasks));

    // A task that is set aside goes on under the id that it was given then.
    interrupt(&tasks, &there, &["mail_+first", "mail_+second"]);
    interrupt(&tasks, &there, &["mail_+first", "mail_second"]);
    assert_eq!(waiting(&tasks), expected[2..]);
    let dry = sandbox.json(&["move", "--from", &tasks, "--to", &there, "mail", "--dry-run"]);
    assert_eq!(dry["moved"], 2_498);
    let report = sandbox.json(&["move", "--from", &tasks, "--to", &there, "mail"]);
    assert_eq!((&report["moved"], &report["resumed"]), (&2_500.into(), &2.into()));
    assert!(is_nothing_aside(&tasks));
    let arrived = contents(&there);
    assert_eq!(arrived[&Jid::new("mail_first").unwrap()].1, expected[0].as_bytes());
    let payloads = |all: Vec<String>| all.into_iter().collect::<std::collections::BTreeSet<String>>();
    let found = arrived.into_values().map(|content| String::from_utf8(content.1).unwrap()).collect();
    assert_eq!(payloads(found), payloads(expected));
}

#[test]
fn what_gearmonkey_and_worqr_lack_is_named() {
    let (sandbox, redis) = (Sandbox::new(), RedisServer::start(&[]));
    let data = sandbox.url("data");
    for more in [
        &["--jid", "plain"][..],
        &["--jid", "tagged", "--tag", "a"],
        &["--jid", "behind", "--depends", "tagged"],
        &["--jid", "urgent", "--priority", "5", "--in", "10h"],
        &["--jid", "single", "--unique", "one"],
    ] {
        sandbox.run(&[&["put", "mail", "mail", "1"], more].concat());
    }
    sandbox.run(&["put", "mail", "other", "1", "--jid", "other"]);
    for (to, moved) in [(format!("worqr+{}", redis.url()), 1), (gearmonkey(&redis), 0)] {
        let (out, _, code) = sandbox.try_run(&["move", "--from", &data, "--to", &to, "mail"]);
        assert_eq!(code, 1, "{out}");
        assert!(out.starts_with(&format!("{moved} job")), "{out}");
        for stays in ["tagged", "behind", "urgent", "single", "other"] {
            assert!(out.contains(&format!("job {stays} stays: it ")), "{stays}: {out}");
        }
    }
}

#[test]
fn a_killed_mover_loses_and_doubles_no_job_of_a_schedule() {
    let (jobs, kills) = if std::env::var_os("GEARTRAIN_LONG").is_some() { (20_000, 10) } else { (1_000, 3) };
    let (sandbox, redis) = (Sandbox::new(), RedisServer::start(&[]));
    let (schedules, back) = (format!("workkit+{}", redis.url()), sandbox.url("back"));
    let mut lines = String::new();
    for number in 0..jobs {
        let more = if number % 4 == 0 { r#","in":"10h""# } else { "" };
        let _ = writeln!(lines, r#"{{"klass":"a/b","payload":[{number}],"retries":{}{more}}}"#, number % 3);
    }
    let file = sandbox.file("jobs.ndjson", &lines);
    sandbox.run(&["--url", &schedules, "put", "mail", "--batch", &file]);
    let evening =
        ["recur", "add", "mail", "a/b", "[]", "--cron", "2999 1 1 * 19 0 0,30", "--url", &schedules];
    sandbox.run(&evening);
    let literal = r#"{"args":[],"cron":"* * * * * * *","job":"(fn [] 1)"}"#;
    let mut redis_connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    let mut command = |words: &[&str]| {
        redis::cmd(words[0]).arg(&words[1..]).query::<i64>(&mut redis_connection).unwrap();
    };
    let dry = sandbox.json(&["move", "--from", &schedules, "--to", &back, "mail", "--dry-run"]);
    assert_eq!((&dry["moved"], &dry["recurring"]), (&jobs.into(), &1.into()), "{dry}");

    let report = move_with_kills(&sandbox, (&schedules, &back), &schedules, jobs, kills);
    assert_eq!((&report["stay"], &report["at_least_once"]), (&serde_json::json!([]), &false.into()));
    let arrived = contents(&back);
    let payloads: std::collections::BTreeSet<&[u8]> = arrived.values().map(|job| &job.1[..]).collect();
    assert_eq!((arrived.len(), payloads.len()), (jobs, jobs));
    assert_eq!(arrived.values().filter(|job| job.4 == "scheduled").count(), jobs / 4);
    let all = geartrain::Periodics { only: None, after: None, count: geartrain::Count::MAX };
    let recurring = pollster::block_on(connect(&back).run(all)).unwrap().periodics;
    let cron = geartrain::Period::Cron("2999 1 1 * 19 0 0,30".to_owned());
    assert!(recurring.len() == 1 && recurring[0].template.every == cron, "{recurring:?}");
    let nothing = sandbox.json(&["move", "--from", &schedules, "--to", &back, "mail"]);
    assert_eq!((&nothing["moved"], &nothing["recurring"]), (&0.into(), &0.into()), "{nothing}");

    command(&["HSET", "mail:jobs", "literal", literal]);
    command(&["ZADD", "mail:next", "5", r#"{"id":"literal"}"#]);
    for more in [&["--dry-run"][..], &[]] {
        let arguments = [&["move", "--from", &schedules, "--to", &back, "mail"][..], more].concat();
        let (out, _, code) = sandbox.try_run(&arguments);
        assert!(code == 1 && out.contains("job literal stays: it is a function literal"), "{code} {out}");
    }
}
