//! Scenarios of several commands, on one queue in this process.

mod beyond;
mod lists;
mod reasons;
mod select;
mod times;

use geartrain::Client;
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

use super::run_on;
use crate::args;
use crate::output::Output;
use crate::timestamp;

/// Runs commands on a queue in memory.
struct Shell {
    client: Client,
    /// The columns of the terminal, if there is one.
    width: Option<usize>,
}

/// The output of a command, and its exit code.
struct Printed {
    out: String,
    err: String,
    code: u8,
}

fn shell() -> Shell {
    Shell { client: pollster::block_on(geartrain::connect("memory:")).unwrap(), width: None }
}

impl Shell {
    /// Runs a command. `line` is split at blanks; arguments with blanks follow in `more`.
    fn try_run(&self, line: &str, more: &[&str]) -> Printed {
        let arguments = ["geartrain"].into_iter().chain(line.split_whitespace()).chain(more.iter().copied());
        let cli = args::parse(arguments).unwrap_or_else(|error| panic!("{line}: {error}"));
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut stripped = anstream::StripStream::new(&mut out);
        let mut raw = Vec::new();
        let mut output = Output {
            json: cli.json,
            width: self.width,
            now: timestamp::now(),
            out: &mut stripped,
            raw: Some(&mut raw),
            err: &mut err,
            err_is_terminal: false,
        };
        let done = pollster::block_on(run_on(&self.client, cli.verb, &mut output));
        let code = done.as_ref().map_or_else(crate::failure::Failure::exit_code, |()| 0);
        let mut err = String::from_utf8(err).unwrap();
        if let Err(failure) = done {
            err.push_str(&failure.to_string());
        }
        out.append(&mut raw);
        Printed { out: String::from_utf8(out).unwrap(), err, code }
    }

    /// Runs a command that must succeed.
    fn run(&self, line: &str) -> String {
        let printed = self.try_run(line, &[]);
        assert_eq!(printed.code, 0, "{line}: {}", printed.err);
        printed.out
    }

    /// Runs a command with --json and parses the one line.
    fn json(&self, line: &str) -> Value {
        let out = self.run(&format!("{line} --json"));
        assert_eq!(out.matches('\n').count(), 1, "{line}: {out}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{line}: {error}: {out}"))
    }

    /// Runs a command that must be refused, and returns the error.
    fn refused(&self, line: &str) -> String {
        let printed = self.try_run(line, &[]);
        assert_eq!(printed.code, 1, "{line}: {}{}", printed.out, printed.err);
        printed.err
    }

    /// Pops one job and returns its token.
    fn pop(&self, queue: &str) -> String {
        let popped = self.json(&format!("pop {queue} --worker w1"));
        popped[0]["token"].as_str().unwrap_or_else(|| panic!("there is no job in {queue}")).to_owned()
    }
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn a_job_goes_from_put_to_complete() {
    let shell = shell();
    assert_eq!(shell.run(r#"put mail welcome {"to":"a"} --jid j1 --priority 5 --tag new"#), "j1\n");
    let mut queues = shell.json("queues");
    assert!(queues[0]["oldest"].take().as_f64().unwrap() > 1.7e9);
    assert_eq!(
        queues,
        json!([{ "name": "mail", "waiting": 1, "running": 0, "stalled": 0, "scheduled": 0, "depends": 0, "recurring": 0,
            "paused": false, "failed": 0, "failed_or_more": false, "oldest": null, "per_minute": null }])
    );

    let popped = shell.json("pop mail --worker w1");
    assert_eq!(popped[0]["jid"], "j1");
    assert_eq!(popped[0]["payload"], json!({ "to": "a" }));
    assert_eq!(popped[0]["worker"], "w1");
    let mut expected = [
        "jid",
        "queue",
        "klass",
        "payload",
        "priority",
        "retries",
        "remaining",
        "worker",
        "token",
        "expires",
        "deadline",
    ];
    expected.sort_unstable();
    assert_eq!(keys(&popped[0]), expected);
    let token = popped[0]["token"].as_str().unwrap();

    let beat = shell.json(&format!("heartbeat j1 --token {token}"));
    assert!(beat["expires"].as_f64().unwrap() > timestamp::now().get());
    assert_eq!(
        shell.json(&format!("complete j1 --token {token}")),
        json!({ "jid": "j1", "state": "complete", "queue": null })
    );

    let job = shell.json("get j1");
    let mut expected = [
        "jid",
        "klass",
        "queue",
        "state",
        "stalled",
        "priority",
        "retries",
        "remaining",
        "payload",
        "tags",
        "tracked",
        "due",
        "lock",
        "progress",
        "completed",
        "failure",
        "dependencies",
        "dependents",
        "spawned_from",
        "particulars",
        "history",
    ];
    expected.sort_unstable();
    assert_eq!(keys(&job), expected);
    assert_eq!(
        (&job["state"], &job["tags"], &job["priority"]),
        (&json!("complete"), &json!(["new"]), &json!(5))
    );
    let what: Vec<&Value> = job["history"].as_array().unwrap().iter().map(|entry| &entry["what"]).collect();
    assert_eq!(what, ["put", "popped", "done"]);
    assert_eq!(keys(&job["history"][0]), ["queue", "what", "when"]);
    assert_eq!(keys(&job["history"][1]), ["what", "when", "worker"]);

    let card = shell.run("get j1");
    for line in [
        "jid        j1\n",
        "state      complete\n",
        "retries    5 of 5 left\n",
        "payload    {\"to\":\"a\"}\n",
        "popped by w1\n",
    ] {
        assert!(card.contains(line), "{line:?} is not in\n{card}");
    }
}

#[test]
fn a_put_is_idempotent_and_replace_submits_again() {
    let shell = shell();
    assert_eq!(
        shell.json("put mail a 1 --jid j1"),
        json!({ "jid": "j1", "outcome": "created", "coalesced": false, "due": null })
    );
    assert_eq!(
        shell.json("put mail b 2 --jid j1"),
        json!({ "jid": "j1", "outcome": "existing", "coalesced": false, "due": null })
    );
    let again = shell.try_run("put mail b 2 --jid j1", &[]);
    assert_eq!((again.out.as_str(), again.code), ("j1\n", 0));
    assert!(again.err.contains("left unchanged; use --replace to submit it again"), "{}", again.err);
    assert_eq!(shell.json("get j1")["klass"], "a");
    assert_eq!(
        shell.json("put mail b 2 --jid j1 --replace"),
        json!({ "jid": "j1", "outcome": "replaced", "coalesced": false, "due": null })
    );
    assert_eq!(shell.json("get j1")["klass"], "b");
}

#[test]
fn a_put_can_be_delayed_or_scheduled() {
    let shell = shell();
    shell.run("put mail k --jid in --in 1h30m");
    shell.run("put mail k --jid at --at 4102444800");
    shell.run("put mail k --jid rfc --at 2100-01-01T00:00:00Z");
    shell.run("put mail k --jid past --at 5");
    let due = |jid: &str| shell.json(&format!("get {jid}"))["due"].as_f64().unwrap();
    assert!((due("in") - timestamp::now().get() - 5_400.0).abs() < 60.0);
    assert!((due("at") - 4_102_444_800.0).abs() < 60.0);
    assert!((due("rfc") - 4_102_444_800.0).abs() < 60.0);
    assert_eq!(shell.json("get past")["state"], "waiting");
    let table = shell.run("jobs --state scheduled");
    assert!(table.contains("in 1h30m") || table.contains("in 1h29m"), "{table}");
}

#[test]
fn an_empty_pop_succeeds_and_times_out_with_wait() {
    let shell = shell();
    let nothing = shell.try_run("pop mail", &[]);
    assert_eq!((nothing.out.as_str(), nothing.err.as_str(), nothing.code), ("", "", 0));
    assert_eq!(shell.json("pop mail"), json!([]));
    let waited = shell.try_run("pop mail --wait 1ms --json", &[]);
    assert_eq!((waited.out.as_str(), waited.code), ("[]\n", 4));
    assert_eq!(waited.err, "no job in mail within 1ms; try again, or look at `geartrain queues`");
}

#[test]
fn pop_takes_many_jobs_in_each_order() {
    let filled = || {
        let shell = shell();
        for (queue, jid, priority) in [("a", "a1", 1), ("a", "a2", 1), ("b", "b1", 9), ("b", "b2", 0)] {
            shell.run(&format!("put {queue} k --jid {jid} --priority {priority}"));
        }
        shell
    };
    for (order, jids) in [("strict", ["a1", "a2"]), ("round-robin", ["a1", "b1"]), ("priority", ["b1", "a1"])]
    {
        let popped = filled().json(&format!("pop a b --count 2 --worker w1 --order {order}"));
        assert_eq!([&popped[0]["jid"], &popped[1]["jid"]], jids, "{order}");
    }
    let card = filled().run("pop a b --count 2");
    assert_eq!(card.matches("\ntoken ").count(), 2, "{card}");
    assert!(card.contains(&format!("-{}\n", std::process::id())), "{card}");
}

#[test]
fn a_worker_that_lost_its_lock_is_refused() {
    let shell = shell();
    shell.run("put mail k --jid j1");
    let token = shell.pop("mail");
    assert!(shell.refused("complete j1 --worker w2").contains("held by w1, not by w2; give the --token"));
    assert_eq!(shell.run("timeout j1"), "1 job taken from its worker\n");
    assert_eq!(
        shell.refused(&format!("complete j1 --token {token}")),
        "the lock on job j1 is lost: the job is waiting; stop working on it, this attempt is over"
    );
    assert!(shell.refused("heartbeat j1 --worker w1").contains("a worker must pop it first"));
    assert!(shell.refused("complete j2 --worker w1").contains("`geartrain jobs` lists the jobs that do"));
    assert!(shell.refused("get j2").contains("job j2 does not exist"));
}

#[test]
fn complete_moves_a_job_to_another_queue() {
    let shell = shell();
    shell.run("put render video --jid j1");
    let token = shell.pop("render");
    let state = shell.json(&format!("complete j1 --token {token} --next upload --delay 1h --payload 2"));
    assert_eq!(state, json!({ "jid": "j1", "state": "scheduled", "queue": "upload" }));
    assert_eq!(shell.json("get j1")["payload"], 2);
}

#[test]
fn a_failed_job_is_listed_and_requeued() {
    let shell = shell();
    for (jid, queue) in [("j1", "mail"), ("j2", "news"), ("j3", "mail")] {
        shell.run(&format!("put {queue} k {jid} --jid {jid} --retries 0 --tag t"));
        let token = shell.pop(queue);
        let printed = shell.try_run(&format!("fail {jid} smtp --token {token} --json"), &["it said 451"]);
        assert_eq!(printed.out, format!("{{\"group\":\"smtp\",\"jid\":\"{jid}\",\"state\":\"failed\"}}\n"));
    }
    assert_eq!(shell.json("failed"), json!([{ "group": "smtp", "count": 3 }]));
    assert_eq!(shell.run("failed"), "GROUP  JOBS\nsmtp      3\n");
    let listed = shell.json("failed smtp --limit 2");
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert_eq!(listed[0]["failure"]["message"], "it said 451");
    assert!(shell.run("get j1").contains("smtp: it said 451 ("));
    assert_eq!(shell.json("jobs --state failed --queue news").as_array().unwrap().len(), 1);

    assert_eq!(shell.json("unfail smtp --count 1 --queue other"), json!({ "group": "smtp", "moved": 1 }));
    assert_eq!(shell.json("get j1")["queue"], "other");
    assert_eq!(shell.run("unfail smtp"), "2 jobs requeued\n");
    for (jid, queue) in [("j2", "news"), ("j3", "mail")] {
        let job = shell.json(&format!("get {jid}"));
        assert_eq!((&job["queue"], &job["state"]), (&json!(queue), &json!("waiting")));
        assert_eq!((&job["payload"], &job["tags"], &job["retries"]), (&json!(jid), &json!(["t"]), &json!(0)));
    }
    assert!(shell.refused("unfail smtp").contains("`geartrain failed` lists the groups"));
    assert_eq!(shell.json("failed"), json!([]));
}

#[test]
fn unfail_and_lists_work_in_batches() {
    let shell = shell();
    pollster::block_on(async {
        for n in 0..1_100 {
            let queue = if n % 2 == 0 { "even" } else { "odd" };
            shell.client.put(queue, "k", "").jid(&format!("j{n}")).tag("t").await.unwrap();
            let job = shell.client.pop(queue, "w1").await.unwrap().unwrap();
            shell.client.fail(&job, "smtp", "no").await.unwrap();
        }
    });
    let listed = shell.json("failed smtp --limit 2000");
    assert_eq!(listed.as_array().unwrap().len(), 1_100);
    assert_eq!(shell.json("jobs --state failed --queue odd --limit 2000").as_array().unwrap().len(), 550);
    assert_eq!(shell.json("jobs --tag t --queue odd --offset 549")[0]["jid"], "j1099");
    // The oldest failures go first, each to its own queue.
    assert_eq!(shell.json("unfail smtp --count 700")["moved"], 700);
    assert_eq!(shell.json("failed")[0]["count"], 400);
    assert_eq!(shell.json("jobs --state waiting --queue even --offset 349 --limit 9")[0]["jid"], "j698");
    assert_eq!(shell.json("unfail smtp --queue other")["moved"], 400);
    assert_eq!(shell.json("queues other")[0]["waiting"], 400);
}

#[test]
fn a_job_is_retried_until_no_retries_are_left() {
    let shell = shell();
    shell.run("put mail k --jid j1 --retries 1");
    let token = shell.pop("mail");
    assert_eq!(
        shell.json(&format!("retry j1 --token {token} --delay 0s --group smtp --message oops")),
        json!({ "jid": "j1", "remaining": 0, "failed": false })
    );
    let token = shell.pop("mail");
    assert_eq!(shell.run(&format!("retry j1 --token {token}")), "no retries left: the job failed\n");
    assert_eq!(shell.json("get j1")["failure"]["group"], "failed-retries-mail");
}

#[test]
fn jobs_are_listed_by_state() {
    let shell = shell();
    for jid in ["w1", "w2", "w3"] {
        shell.run(&format!("put mail k --jid {jid} --tag t"));
    }
    shell.run("put news k --jid s1 --in 1h --tag t");
    shell.run("put news k --jid d1 --depends w1");
    shell.run("put other k --jid r1");
    let done = shell.pop("other");
    shell.run(&format!("complete r1 --token {done}"));
    shell.run("put other k --jid r2");
    shell.pop("other");

    let list = |line: &str| -> Vec<String> {
        let jobs = shell.json(&format!("jobs {line}"));
        jobs.as_array().unwrap().iter().map(|job| job["jid"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(list(""), ["r2", "w1", "w2", "w3", "s1", "d1", "r1"]);
    assert_eq!(list("--limit 2 --offset 3"), ["w3", "s1"]);
    assert_eq!(list("--limit 0"), [""; 0]);
    assert_eq!(list("--offset 100"), [""; 0]);
    assert_eq!(list("--queue news"), ["s1", "d1"]);
    assert_eq!(list("--state waiting"), ["w1", "w2", "w3"]);
    assert_eq!(list("--state running"), ["r2"]);
    assert_eq!(list("--state stalled"), [""; 0]);
    assert_eq!(list("--state depends"), ["d1"]);
    assert_eq!(list("--state complete"), ["r1"]);
    assert_eq!(list("--tag t"), ["w1", "w2", "w3", "s1"]);
    assert_eq!(list("--tag t --state scheduled"), ["s1"]);
    assert_eq!(list("--tag t --queue mail --limit 1 --offset 1"), ["w2"]);
    assert_eq!(list("--state complete --queue other"), ["r1"]);
    assert_eq!(list("--state complete --queue mail"), [""; 0]);

    let table = shell.run("jobs --queue news");
    assert!(
        table.starts_with(
            "JID  STATE      QUEUE  KLASS  PRIORITY  NOTE\ns1   scheduled  news   k             0  in "
        ),
        "{table}"
    );
    assert!(table.ends_with("d1   depends    news   k             0  on 1 job\n"), "{table}");
    let none = shell.try_run("jobs --tag missing", &[]);
    assert_eq!((none.out.as_str(), none.err.as_str()), ("", "geartrain: no such jobs\n"));

    assert_eq!(shell.json("peek mail --count 2").as_array().unwrap().len(), 2);
    let mut workers = shell.json("workers");
    assert!(workers[0]["seen"].take().as_f64().unwrap() > 1.7e9);
    assert_eq!(workers, json!([{ "name": "w1", "running": 1, "stalled": 0, "seen": null, "can": [] }]));
    assert_eq!(shell.json("workers w1")[0]["jid"], "r2");
}

#[test]
fn jobs_can_be_changed() {
    let shell = shell();
    shell.run("put mail k 1 --jid a");
    shell.run("put mail k 1 --jid b --depends a");
    assert_eq!(shell.json("priority a -2.5"), json!({ "jid": "a", "priority": -2.5 }));
    assert_eq!(shell.json("tag a x y"), json!({ "jid": "a", "tags": ["x", "y"] }));
    assert_eq!(shell.json("untag a x"), json!({ "jid": "a", "tags": ["y"] }));
    assert_eq!(shell.run("untag a y"), "no tags\n");
    assert_eq!(shell.json("track a"), json!({ "jid": "a", "tracked": true, "changed": true }));
    assert_eq!(shell.json("tracked")["jobs"][0]["jid"], "a");
    assert_eq!(shell.json("untrack a"), json!({ "jid": "a", "tracked": false, "changed": true }));
    assert_eq!(shell.json("tracked"), json!({ "jobs": [], "gone": [] }));
    shell.run("put mail k --jid c");
    assert_eq!(
        shell.json("depend b c"),
        json!({ "jid": "b", "state": "depends", "dependencies": ["a", "c"] })
    );
    assert!(shell.refused("cancel a").contains("job b depends on job a: cancel both or neither"));
    assert!(shell.refused("depend a b").contains("only a job submitted with --depends"));
    assert_eq!(shell.json("undepend b a"), json!({ "jid": "b", "state": "depends", "dependencies": ["c"] }));
    assert_eq!(shell.run("undepend b --all"), "depends on no job and is waiting\n");
    let logged = shell.try_run(r#"log a --data {"n":1} --json"#, &["half way"]);
    assert_eq!(logged.out, "{\"jid\":\"a\"}\n");
    let entry = shell.json("get a")["history"][1].clone();
    assert_eq!(
        (&entry["what"], &entry["message"], &entry["data"]),
        (&json!("log"), &json!("half way"), &json!({ "n": 1 }))
    );

    let partial = shell.try_run("cancel a c missing a --json", &[]);
    assert_eq!((partial.out.as_str(), partial.code), ("{\"cancelled\":2}\n", 1));
    assert!(partial.err.starts_with("1 job could not be cancelled"), "{}", partial.err);
    assert_eq!(shell.run("cancel b"), "1 job cancelled\n");
}

#[test]
fn requeue_keeps_klass_and_payload() {
    let shell = shell();
    shell.run("put mail k [1] --jid a --tag t --priority 3");
    let token = shell.pop("mail");
    shell.run(&format!("complete a --token {token}"));
    assert_eq!(shell.json("requeue a"), json!({ "jid": "a", "queue": "mail", "outcome": "replaced" }));
    let job = shell.json("get a");
    assert_eq!(
        (&job["state"], &job["klass"], &job["payload"]),
        (&json!("waiting"), &json!("k"), &json!([1]))
    );
    assert_eq!((&job["tags"], &job["priority"]), (&json!(["t"]), &json!(3)));
    shell.run("requeue a --queue news --delay 1h --payload {} --klass other");
    let job = shell.json("get a");
    assert_eq!(
        (&job["state"], &job["klass"], &job["queue"]),
        (&json!("scheduled"), &json!("other"), &json!("news"))
    );
    assert!(shell.refused("requeue missing").contains("does not exist"));
}

#[test]
fn queues_are_paused_resumed_counted_and_forgotten() {
    let shell = shell();
    shell.run("put mail k --jid a");
    assert_eq!(shell.json("pause mail"), json!({ "queues": ["mail"], "paused": true }));
    assert!(shell.run("queues").ends_with("  paused\n"));
    assert_eq!(shell.json("pop mail"), json!([]));
    assert_eq!(shell.run("resume mail"), "resumed mail\n");
    let token = shell.pop("mail");
    shell.run(&format!("complete a --token {token}"));
    let stats = shell.json("stats mail");
    assert_eq!(
        (&stats["queue"], &stats["wait"]["count"], &stats["run"]["count"]),
        (&json!("mail"), &json!(1), &json!(1))
    );
    assert_eq!(stats["run"]["histogram"].as_array().unwrap().len(), 148);
    assert_eq!(shell.json("stats mail 2026-04-01")["day"], "2026-04-01");
    assert!(shell.run("stats mail").contains("waited     1"));
    assert_eq!(shell.json("forget queue mail"), json!({ "forgotten": ["mail"] }));
    assert_eq!(shell.json("queues"), json!([]));
    shell.run("forget worker w1");
    assert_eq!(shell.json("workers"), json!([]));
}

#[test]
fn options_are_shown_set_and_unset() {
    let shell = shell();
    let default = shell.json("config get heartbeat");
    let heartbeat = |value: &str, default: bool| {
        json!({
            "key": "heartbeat", "value": value, "default": default, "default_value": "60", "unit": "seconds",
            "meaning": "How long a lock lasts unless a heartbeat renews it.", "ignored": null,
        })
    };
    assert_eq!(default, heartbeat("60", true));
    assert_eq!(shell.json("config set heartbeat 90"), heartbeat("90", false));
    assert_eq!(shell.run("config get heartbeat"), "90\n");
    assert_eq!(shell.run("config get mail-heartbeat"), "90\n");
    assert!(shell.json("config get").as_array().unwrap().contains(&heartbeat("90", false)));
    assert_eq!(shell.json("config unset heartbeat"), default);
    assert!(shell.refused("config get nonsense").contains("`geartrain config get` lists the options"));
}

#[test]
fn every_option_is_listed_with_default_unit_and_meaning() {
    let shell = shell();
    let all = shell.json("config get");
    for option in geartrain::OPTIONS {
        let key = match option.scope {
            geartrain::OptionScope::Queue => format!("QUEUE-{}", option.name),
            _ => option.name.to_owned(),
        };
        let shown = all.as_array().unwrap().iter().find(|shown| shown["key"] == key.as_str()).unwrap();
        assert_eq!((&shown["value"], &shown["meaning"]), (&json!(option.default), &json!(option.meaning)));
        assert_eq!(
            shell.run(&format!("config get {}", key.replace("QUEUE", "mail"))),
            option.default.to_owned() + "\n"
        );
    }
}

#[test]
fn unknown_options_and_bad_values_are_refused() {
    let shell = shell();
    assert_eq!(
        shell.refused("config set hartbeat 90"),
        "there is no option hartbeat (did you mean heartbeat?); `geartrain config get` lists the options, \
         and --any sets a name that only other programs read"
    );
    let negative =
        "value of heartbeat must be a number of seconds above 0, and at most 315360000, not \"-5\": ";
    let refused = shell.refused("config set mail-heartbeat -5");
    assert!(refused.starts_with(negative), "{refused}");
    for value in ["soon", "0", "inf", "NaN", "1e300"] {
        shell.refused(&format!("config set heartbeat {value}"));
        shell.refused(&format!("config set --any heartbeat {value}"));
    }
    assert_eq!(shell.run("config get heartbeat"), "60\n");
    shell.run("config set --any colour green");
    assert_eq!(shell.run("config get colour"), "green\n");
    shell.run("config unset colour");
    assert!(shell.refused("config unset colour").starts_with("there is no option colour"));
}

/// Qless clients set what they like; the command shows what has no effect.
#[test]
fn a_value_that_is_ignored_is_shown_as_such() {
    let shell = shell();
    let set = geartrain::SetConfig { any: true, ..geartrain::SetConfig::new("heartbeat", "soon") };
    pollster::block_on(shell.client.run(set)).unwrap();
    let printed = shell.try_run("config get heartbeat", &[]);
    assert_eq!(printed.out, "60\n");
    assert_eq!(
        printed.err,
        "geartrain: heartbeat is set to \"soon\", which is not a number and is ignored; \
         `geartrain config unset heartbeat` removes it\n"
    );
    assert_eq!(shell.json("config get heartbeat")["ignored"], "soon");
    assert!(shell.run("config get").contains("60 (\"soon\" is set, and ignored)"));
}

#[test]
fn the_spelling_that_has_precedence_is_named() {
    let shell = shell();
    shell.run("config set mail-heartbeat 30");
    let printed = shell.try_run("config set heartbeat-mail 20", &[]);
    assert!(printed.err.contains("mail-heartbeat is set too, and has precedence"), "{}", printed.err);
    // What applies is shown under either name.
    let printed = shell.try_run("config get heartbeat-mail", &[]);
    assert_eq!(printed.out, "30\n");
    assert!(printed.err.contains("mail-heartbeat is set too, and has precedence"), "{}", printed.err);
    assert!(shell.run("config get").contains("30 (\"20\" is set, and ignored)"));
    assert_eq!(shell.json("config get heartbeat-mail")["ignored"], "20");
    assert_eq!(shell.run("config unset mail-heartbeat"), "mail-heartbeat is not set, and 20 applies\n");
    // The queue may be called like the option.
    shell.run("put heartbeat k");
    assert_eq!(shell.try_run("config set heartbeat-heartbeat 5", &[]).err, "");
}

/// The engine reads `max-concurrency` only with a queue; a Qless client may have set it without one.
#[test]
fn an_option_that_needs_a_queue_has_no_value_for_all() {
    let shell = shell();
    shell.run("config set --any max-concurrency 5");
    assert_eq!(shell.run("config get mail-max-concurrency"), "0\n");
    assert_eq!(shell.run("limits mail"), "mail has no limits\n");
}

#[test]
fn a_value_that_only_a_qless_client_can_set_is_shown_as_not_valid() {
    let shell = shell();
    let set = geartrain::SetConfig { any: true, ..geartrain::SetConfig::new("mail-heartbeat", "-5") };
    pollster::block_on(shell.client.run(set)).unwrap();
    let printed = shell.try_run("config get mail-heartbeat", &[]);
    assert_eq!(
        (printed.out.as_str(), printed.err.as_str()),
        (
            "-5\n",
            "geartrain: that is not a valid value of mail-heartbeat: it must be a number of seconds above 0, \
             and at most 315360000\n"
        )
    );
    assert!(shell.run("config get").contains("-5 (not a valid value; default 60)"));
}

#[test]
fn a_setting_of_a_queue_without_jobs_is_remarked_on() {
    let shell = shell();
    shell.run("put mail k");
    let new = "geartrain: mial has had no jobs yet; `geartrain queues` lists the queues\n";
    for line in ["config set mial-heartbeat 30", "limits mial --max 5", "limits mial --max-concurrency 5"] {
        let printed = shell.try_run(line, &[]);
        assert_eq!((printed.code, printed.err.as_str()), (0, new), "{line}");
        assert_eq!(shell.try_run(&line.replace("mial", "mail"), &[]).err, "", "{line}");
    }
    for line in ["config set heartbeat 30", "limits mial", "limits mial --none"] {
        assert_eq!(shell.try_run(line, &[]).err, "", "{line}");
    }
}

#[test]
fn options_are_explained_in_whole_sentences_on_every_terminal() {
    let mut shell = shell();
    for width in [40, 80, 200] {
        shell.width = Some(width);
        let table = shell.run("config get");
        assert!(table.lines().all(|line| line.width() <= width), "{width}:\n{table}");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        for option in geartrain::OPTIONS {
            assert!(table.contains(option.name), "{width}: {}\n{table}", option.name);
            assert!(words(&table).contains(&words(option.meaning)), "{width}: {}\n{table}", option.name);
        }
    }
}

#[test]
fn recurring_jobs_are_created_changed_and_removed() {
    let shell = shell();
    assert_eq!(shell.run("recur add reports nightly {} --every 1d --in 1h --jid r1 --tag t"), "r1\n");
    let mut put = shell.json("put reports hourly --every 1h --jid r2 --in 5m");
    assert!(put["due"].take().as_f64().is_some());
    assert_eq!(put, json!({ "jid": "r2", "outcome": "recurring", "coalesced": false, "due": null }));
    let listed = shell.json("recur ls");
    assert_eq!((&listed[0]["jid"], &listed[1]["jid"]), (&json!("r2"), &json!("r1")));
    let mut expected = [
        "jid",
        "queue",
        "klass",
        "every",
        "next",
        "next_runs",
        "count",
        "backlog",
        "priority",
        "retries",
        "tags",
        "payload",
    ];
    expected.sort_unstable();
    assert_eq!(keys(&listed[0]), expected);
    assert_eq!(shell.json("recur ls --limit 1 --offset 1")[0]["jid"], "r1");
    assert_eq!((&listed[1]["every"], &listed[1]["retries"]), (&json!(86_400), &json!(5)));
    assert_eq!(shell.json("recur ls --queue reports").as_array().unwrap().len(), 2);
    assert_eq!(shell.json("recur ls --queue mail"), json!([]));
    assert!(shell.run("recur ls").contains("nightly     1d     0  in "));

    let edited = shell.json("recur edit r1 --every 2h --klass other --tag u --untag t --priority 4 --retries 1 --backlog 3 --payload 7");
    assert_eq!(
        (&edited["every"], &edited["klass"], &edited["tags"]),
        (&json!(7_200), &json!("other"), &json!(["u"]))
    );
    assert_eq!((&edited["payload"], &edited["backlog"]), (&json!(7), &json!(3)));
    assert!(shell.run("recur get r1").contains("at most 3 missed jobs"));
    assert_eq!(shell.json("queues")[0]["recurring"], 2);

    assert_eq!(shell.json("recur rm r1 r2"), json!({ "removed": ["r1", "r2"] }));
    assert!(shell.refused("recur get r1").contains("`geartrain recur ls` lists the ones that do"));
    shell.refused("recur rm r1");
    shell.refused("recur edit r1 --every 5");
    assert_eq!(shell.try_run("recur edit r1", &[]).code, 2);
    shell.run("put reports soon --every 1h --jid r3");
    assert_eq!(shell.json("pop reports")[0]["jid"], "r3-1");
}

#[test]
fn control_characters_in_output_are_escaped() {
    let shell = shell();
    let printed = shell.try_run("put mail --jid j1", &["k\u{1b}[2J", "a\nb\u{1b}c"]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    for line in ["get j1", "jobs", "pop mail"] {
        let out = shell.run(line);
        assert!(!out.contains('\u{1b}') && out.contains("\\u{1b}"), "{out:?}");
    }
}
