//! Lists that are cut, names that do not exist, and how jobs look in lists.

use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

use super::{Shell, shell};

impl Shell {
    fn put_many(&self, queue: &str, count: usize) {
        pollster::block_on(async {
            for number in 0..count {
                self.client.put(queue, "k", "").jid(&format!("{queue}{number}")).tag("t").await.unwrap();
            }
        });
    }

    /// Fails one job.
    fn fail(&self, jid: &str, group: &str, message: &str) {
        pollster::block_on(async {
            self.client.put("failing", "k", "").jid(jid).await.unwrap();
            let job = self.client.pop("failing", "w1").await.unwrap().unwrap();
            self.client.fail(&job, group, message).await.unwrap();
        });
    }

    /// The remarks on stderr of a command that succeeds.
    fn remarks(&self, line: &str) -> String {
        let printed = self.try_run(line, &[]);
        assert_eq!(printed.code, 0, "{line}: {}", printed.err);
        printed.err
    }
}

fn items(page: &Value) -> usize {
    page["items"].as_array().unwrap().len()
}

#[test]
fn a_list_that_is_cut_says_so_and_how_to_see_the_rest() {
    let shell = shell();
    shell.put_many("mail", 30);
    let cut = "geartrain: 25 of 30 jobs; --limit 30 shows all, --offset 25 the next ones\n";
    let text = shell.try_run("jobs", &[]);
    assert_eq!((text.out.lines().count(), text.err.as_str()), (26, cut));
    assert_eq!(shell.remarks("jobs --limit 30"), "");
    assert_eq!(
        shell.remarks("jobs --offset 3 --limit 4"),
        "geartrain: 4 to 7 of 30 jobs; --offset 7 shows the next ones\n"
    );
    assert_eq!(shell.remarks("jobs --offset 25"), "");
    assert_eq!(shell.remarks("jobs --offset 30"), "geartrain: there are only 30 jobs\n");
    assert_eq!(shell.remarks("jobs --limit 0"), "geartrain: 0 of 30 jobs; --limit 30 shows all\n");
    // A script that does not know of the limit is told, and one that gives it is not.
    let json = shell.try_run("jobs --json", &[]);
    assert_eq!((serde_json::from_str::<Vec<Value>>(&json.out).unwrap().len(), json.err.as_str()), (25, cut));
    assert_eq!(shell.remarks("jobs --json --limit 3"), "");
}

#[test]
fn a_script_reads_page_after_page_with_the_cursor_of_the_last() {
    let shell = shell();
    shell.put_many("mail", 30);
    let (mut seen, mut offset, mut pages) = (Vec::new(), json!(0), 0);
    while !offset.is_null() {
        let page = shell.json(&format!("jobs --paged --limit 12 --offset {offset}"));
        assert_eq!(page["total"], 30);
        seen.extend(
            page["items"].as_array().unwrap().iter().map(|job| job["jid"].as_str().unwrap().to_owned()),
        );
        offset = page["next"].clone();
        pages += 1;
        assert!(pages <= 3, "{offset}");
    }
    let expected: Vec<String> = (0..30).map(|number| format!("mail{number}")).collect();
    assert_eq!((pages, seen), (3, expected));
    assert!(crate::args::parse(["geartrain", "jobs", "--paged"]).is_err());
}

#[test]
fn the_whole_list_is_counted_in_every_state() {
    let shell = shell();
    shell.put_many("mail", 200);
    shell.put_many("news", 4);
    pollster::block_on(async {
        for _ in 0..150 {
            let job = shell.client.pop("mail", "w1").await.unwrap().unwrap();
            shell.client.complete(&job).await.unwrap();
        }
        shell.client.pop("mail", "w1").await.unwrap().unwrap();
    });
    shell.fail("f1", "smtp", "no");
    for (line, total) in [
        ("jobs", 205),
        ("jobs --state complete", 150),
        ("jobs --state waiting", 53),
        ("jobs --state waiting --queue news", 4),
        ("jobs --state running", 1),
        ("jobs --state failed", 1),
        ("jobs --tag t", 204),
        ("failed smtp", 1),
        ("workers", 1),
        ("workers w1", 1),
    ] {
        let page = shell.json(&format!("{line} --paged --limit 0"));
        assert_eq!((&page["total"], items(&page)), (&json!(total), 0), "{line}");
        assert_eq!(page["next"], 0, "{line}");
        let all = shell.json(&format!("{line} --paged --limit {total}"));
        assert_eq!(
            (items(&all), &all["total"], &all["next"]),
            (total, &json!(total), &json!(null)),
            "{line}"
        );
    }
    // Jobs would have to be looked up one by one to count those that the filter accepts.
    let page = shell.json("jobs --tag t --queue mail --limit 1 --paged");
    assert_eq!((&page["total"], &page["next"]), (&json!(null), &json!(1)));
    assert_eq!(
        shell.remarks("jobs --tag t --state waiting --limit 1"),
        "geartrain: 1 of at least 2 jobs; --limit N shows more, --offset 1 the next ones\n"
    );
    assert_eq!(shell.json("jobs --tag t --queue mail --limit 99 --paged")["total"], 50);
}

#[test]
fn failure_groups_are_all_listed_the_largest_first() {
    let shell = shell();
    for number in 0..30 {
        shell.fail(&format!("j{number}"), &format!("group{number:02}"), "no");
    }
    for number in 0..3 {
        shell.fail(&format!("large{number}"), "large", "no");
    }
    let groups = shell.json("failed");
    let name = |index: usize| groups[index]["group"].as_str().unwrap();
    assert_eq!(
        (groups.as_array().unwrap().len(), name(0), name(1), name(30)),
        (31, "large", "group00", "group29")
    );
    assert_eq!(
        shell.remarks("failed --limit 2"),
        "geartrain: 2 of 31 groups; --limit 31 shows all, --offset 2 the next ones\n"
    );
    assert_eq!(shell.remarks("failed large --limit 1").lines().count(), 1);
}

#[test]
fn lists_of_workers_and_recurring_jobs_say_that_they_are_cut() {
    let shell = shell();
    shell.put_many("mail", 30);
    pollster::block_on(async {
        for number in 0..30 {
            shell.client.pop("mail", &format!("worker{number}")).await.unwrap().unwrap();
        }
    });
    for number in 0..3 {
        shell.run(&format!("recur add reports k --every 1d --in 1h --jid r{number}"));
    }
    assert!(shell.remarks("workers").starts_with("geartrain: 25 of 30 workers; --limit 30 shows all"));
    assert!(shell.remarks("recur ls --limit 2").starts_with("geartrain: 2 of 3 recurring jobs; --limit 3"));
    assert_eq!(shell.json("recur ls --limit 2 --offset 2 --paged")["next"], json!(null));
}

#[test]
fn a_dependency_that_does_not_exist_is_remarked_on() {
    let shell = shell();
    shell.run("put mail k --jid a");
    let nope = "geartrain: there is no job nope to wait for: it counts as complete\n";
    assert_eq!(shell.remarks("put mail k --jid b --depends a --depends nope"), nope);
    assert_eq!(shell.remarks("put mail k --jid c --depends nope --json"), nope);
    assert_eq!(shell.remarks("put mail k --jid d --depends a"), "");
    assert_eq!(shell.remarks("depend b a nope"), nope);
    let none = shell.try_run("depend b nope", &[]);
    assert_eq!((none.code, none.out.as_str()), (1, "depends on a\n"));
    assert!(none.err.contains("there is no job nope"), "{}", none.err);
    // A complete job is one that exists.
    let token = shell.pop("mail");
    shell.run(&format!("complete a --token {token}"));
    assert_eq!(shell.remarks("put mail k --jid e --depends a"), "");
    let job = shell.json("pop mail")[0].clone();
    let (jid, token) = (job["jid"].as_str().unwrap(), job["token"].as_str().unwrap());
    assert_eq!(shell.remarks(&format!("complete {jid} --token {token} --next news --depends nope")), nope);
}

#[test]
fn names_of_queues_that_do_not_exist_are_remarked_on() {
    let shell = shell();
    shell.run("put mail k --jid a");
    for line in ["queues nope", "stats nope", "resume nope", "forget queue nope"] {
        let refused = shell.refused(line);
        assert!(refused.contains("there is no queue nope; `geartrain queues` lists"), "{line}: {refused}");
    }
    assert_eq!(shell.try_run("queues nope --json", &[]).out, "[]\n");
    assert_eq!(shell.remarks("queues mail") + &shell.remarks("stats mail"), "");
    assert!(shell.remarks("jobs --queue nope").contains("there is no queue nope"));
    assert_eq!(shell.remarks("resume mail"), "geartrain: mail was not paused\n");
    // Something was done for one of the names.
    let paused = shell.try_run("pause mail later", &[]);
    assert_eq!((paused.code, paused.out.as_str()), (0, "paused mail later\n"));
    assert!(paused.err.starts_with("geartrain: later has had no jobs yet; it is paused"), "{}", paused.err);
    assert_eq!(shell.remarks("resume mail later"), "");
    let forgotten = shell.try_run("forget queue mail nope", &[]);
    assert_eq!((forgotten.code, forgotten.out.as_str()), (0, "forgot mail\n"));
    assert!(
        forgotten.err.contains("mail is off the list, but has 1 job that can still be popped"),
        "{}",
        forgotten.err
    );
    assert!(forgotten.err.contains("there is no queue nope"), "{}", forgotten.err);
    assert_eq!(shell.json("jobs --queue mail")[0]["jid"], "a");
    // It is off the list already.
    let again = shell.try_run("forget queue mail", &[]);
    assert_eq!((again.code, again.out.as_str()), (1, ""));
    assert!(again.err.contains("mail is off the list, but has 1 job"), "{}", again.err);
    assert!(shell.remarks("peek nope").contains("there is no queue nope"));
}

#[test]
fn names_of_workers_that_do_not_exist_are_refused() {
    let shell = shell();
    shell.put_many("mail", 1);
    shell.pop("mail");
    for line in ["worker-lost nope", "forget worker nope", "workers nope"] {
        let refused = shell.refused(line);
        assert!(refused.contains("there is no worker nope; `geartrain workers` lists"), "{line}: {refused}");
    }
    let listed = shell.try_run("workers nope --json", &[]);
    assert_eq!((listed.code, listed.out.as_str()), (1, "[]\n"));
    let printed = shell.try_run("worker-lost nope --json", &[]);
    assert_eq!((printed.code, printed.out.as_str()), (1, "{\"jids\":[],\"worker\":\"nope\"}\n"));
    assert_eq!(shell.remarks("worker-lost w1"), "");
    assert_eq!(shell.json("queues mail")[0]["waiting"], 1);
}

#[test]
fn a_running_job_shows_how_long_it_runs_and_how_long_its_lock_lasts() {
    let shell = shell();
    shell.put_many("mail", 1);
    shell.pop("mail");
    let table = shell.run("jobs");
    let note = table.lines().nth(1).unwrap();
    assert!(
        note.contains("  running ") && note.contains("s, lock ") && note.ends_with(" left, w1"),
        "{note}"
    );
}

#[test]
fn on_a_narrow_terminal_the_lock_of_a_job_stands_under_it() {
    let mut shell = shell();
    shell.run("put mail Reports::Monthly::Render --jid 0199f3a1b2c37d4e8f90a1b2c3d4e5f6");
    shell.pop("mail");
    for width in [40, 80] {
        shell.width = Some(width);
        let table = shell.run("jobs");
        assert!(table.lines().all(|line| line.width() <= width), "{table}");
        let note = table.lines().nth(2).unwrap();
        assert!(note.starts_with("    running ") && note.ends_with(" left, w1"), "{table}");
    }
}

const TRACEBACK: &str =
    "Traceback (most recent call last):\n\tFile \"mail.py\", line 3\nValueError: \u{1b}[31mbad\n";

#[test]
fn failed_jobs_are_listed_with_their_messages() {
    let mut shell = shell();
    shell.fail("j1", "smtp", "it said 451");
    shell.fail("j2", "smtp", TRACEBACK);
    let table = shell.run("failed smtp");
    assert!(
        table.starts_with("JID  QUEUE    KLASS  WORKER  FAILED\nj2   failing  k      w1      now\n"),
        "{table}"
    );
    let shown = "\n    Traceback (most recent call last):\n        File \"mail.py\", line 3\n    ValueError: \\u{1b}[31mbad\nj1 ";
    assert!(table.contains(shown) && table.ends_with("\n    it said 451\n"), "{table}");
    let card = shell.run("get j2");
    let shown = ", w1):\n          Traceback (most recent call last):\n          \tFile";
    assert!(card.contains("failure   smtp (") && card.contains(shown), "{card}");

    // On a terminal, the middle of a long message is left out.
    let long: Vec<String> = (1..=40).map(|number| format!("line {number}")).collect();
    shell.fail("j3", "java", &long.join("\n"));
    assert_eq!(shell.run("failed java").lines().count(), 42);
    shell.width = Some(80);
    let table = shell.run("failed java");
    assert_eq!(table.lines().count(), 14);
    for line in ["    line 6\n    … 29 more lines, see `geartrain get j3`\n    line 36\n", "    line 40\n"]
    {
        assert!(table.contains(line), "{line:?} is not in\n{table}");
    }
}

#[test]
fn stats_count_failed_jobs_by_the_rule_of_qless() {
    let shell = shell();
    let failed = |count: u32| {
        let failed = format!("failures 1, failed jobs that were not put again or cancelled {count}\n");
        let stats = shell.run("stats mail");
        assert!(stats.ends_with(&failed), "{stats}");
    };
    shell.run("put mail k --jid j1");
    assert_eq!(shell.run("queues").lines().nth(1).unwrap().split_whitespace().nth(7), Some("0"));
    shell.pop("mail");
    shell.run("progress j1 3/10 --worker w1");
    assert_eq!(shell.json("get j1")["progress"]["percent"], 30);
    shell.run("fail j1 smtp 451 --worker w1");
    assert_eq!(shell.run("queues").lines().nth(1).unwrap().split_whitespace().nth(7), Some("1"));
    failed(1);
    // Into a named queue it is Qless's call, which leaves the statistics of the day alone.
    shell.run("unfail smtp --queue mail");
    failed(1);
    shell.run("cancel j1");
    failed(1);
}

#[test]
fn lists_fit_the_terminal_and_are_whole_without_one() {
    let mut shell = shell();
    let queue = "kundenbestellungen-größe-日本語-".repeat(3);
    shell.run(&format!(
        "put {queue} Reports::Monthly::Render::WithALongName --jid 0199f3a1b2c37d4e8f90a1b2c3d4e5f6"
    ));
    let worker = "worker-with-a-long-name.eu-central-1.example.org-4711";
    for command in ["jobs", "queues", "workers", "failed g"] {
        shell.width = None;
        if command == "workers" {
            shell.run(&format!("pop {queue} --worker {worker}"));
        }
        if command == "failed g" {
            shell.run(&format!("fail 0199f3a1b2c37d4e8f90a1b2c3d4e5f6 g no --worker {worker}"));
        }
        let whole = shell.run(command);
        assert!(whole.contains(&queue) || whole.contains(worker), "{whole}");
        for width in [70, 80, 100, 120] {
            shell.width = Some(width);
            let fitted = shell.run(command);
            assert!(fitted.lines().all(|line| line.width() <= width), "{command} at {width}:\n{fitted}");
            assert!(fitted.contains('…') || command != "jobs", "{command} at {width}:\n{fitted}");
        }
    }
}
