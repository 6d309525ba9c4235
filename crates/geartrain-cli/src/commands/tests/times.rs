//! Times in words: `--at`, `--in`, `--expires`, `--zone` and `next`.

use serde_json::json;

use super::{Shell, shell};
use crate::timestamp;

/// Runs a command whose last argument has blanks in it, with --json.
fn json_of(shell: &Shell, line: &str, last: &str) -> serde_json::Value {
    let printed = shell.try_run(line, &[last, "--json"]);
    assert_eq!((printed.code, printed.err.as_str()), (0, ""), "{line} {last}");
    serde_json::from_str(&printed.out).unwrap()
}

#[test]
fn a_put_takes_phrases_and_shows_the_time_that_they_mean() {
    let shell = shell();
    let put = |line: &str, last: &str| shell.try_run(line, &[last]);
    let printed = put("put mail k --jid j1 --zone Europe/Berlin --at", "2100-01-01 01:00");
    assert_eq!((printed.out.as_str(), printed.code), ("j1\n", 0));
    assert!(printed.err.starts_with("geartrain: due in "), "{}", printed.err);
    assert!(printed.err.contains("(2100-01-01T00:00:00Z)"), "{}", printed.err);
    assert_eq!(shell.json("get j1")["due"].as_f64().map(f64::round), Some(4_102_444_800.0));

    let printed = shell.try_run("put mail k --jid j2 --json --at", &["tomorrow at noon utc"]);
    let view: serde_json::Value = serde_json::from_str(&printed.out).unwrap();
    assert_eq!(printed.err, "");
    let noon = timestamp::now().day().get() + 129_600.0;
    assert_eq!(view["due"].as_f64(), Some(noon));
    assert_eq!(shell.json("get j2")["due"].as_f64().map(f64::round), Some(noon));

    let printed = put("put mail k --jid j3 --in", "5 minutes");
    assert!(
        printed.err.starts_with("geartrain: due in 5m (") || printed.err.contains("in 4m59s"),
        "{}",
        printed.err
    );
    let left = shell.json("get j3")["due"].as_f64().unwrap() - timestamp::now().get();
    assert!((240.0..=300.0).contains(&left), "{left}");

    let view = json_of(&shell, "put mail k --jid j4 --in", "1 month");
    let left = view["due"].as_f64().unwrap() - timestamp::now().get();
    assert!((27.9 * 86_400.0..=31.1 * 86_400.0).contains(&left), "{left}");

    // The old forms print nothing beside the jid.
    for line in ["put mail k --jid j5 --in 1h30m", "put mail k --jid j6 --at 2100-01-01T00:00:00Z"] {
        assert_eq!(shell.try_run(line, &[]).err, "");
    }
    // An exact time in the past means now, a phrase is refused.
    assert_eq!(shell.run("put mail k --jid j7 --at 2014-03-06T19:00:00Z"), "j7\n");
    let arguments = ["geartrain", "put", "mail", "k", "--at", "yesterday"];
    assert!(crate::args::parse(arguments).unwrap_err().to_string().contains("in the past"));

    for (text, why) in [("5 minutes tomorrow", "\"tomorrow\" at byte 10"), ("7pm", "is not a duration")] {
        let arguments = ["geartrain", "put", "mail", "k", "--in", text];
        assert!(crate::args::parse(arguments).unwrap_err().to_string().contains(why), "{text}");
    }

    let printed = put("put mail k --jid j8 --expires", "tomorrow");
    assert!(printed.err.contains("expires in "), "{}", printed.err);
    let printed = put("recur add mail k --jid r1 --every 1d --at", "7pm tomorrow");
    assert!(printed.err.contains("due in "), "{}", printed.err);
    let view = json_of(&shell, "put mail k --jid r2 --in 5m --every", "2 hours");
    assert_eq!(view["outcome"], "recurring");
    assert_eq!(shell.json("recur get r2")["every"], json!(7_200));
}

#[test]
fn next_previews_recurrences_and_moments() {
    let shell = shell();
    let line = "next --from 2014-03-05T09:34:16Z";
    assert_eq!(
        json_of(&shell, &format!("{line} --count 2"), "every 2nd sunday at 7pm"),
        json!({ "kind": "recurring", "cron": "* * * 0/2 19 0 0", "zone": "UTC",
            "moments": [1_394_391_600_i64, 1_395_601_200_i64] })
    );
    assert_eq!(
        json_of(&shell, &format!("{line} --zone Europe/Berlin --count 1"), "weekdays at 9:00"),
        json!({ "kind": "recurring", "cron": "* * * 1-5 9 0 0", "zone": "Europe/Berlin",
            "moments": [1_394_092_800_i64] })
    );
    // Seven fields have no way to say that both day fields must match.
    assert_eq!(json_of(&shell, line, "0 0 */2 * 1")["cron"], json!(null));
    assert_eq!(
        json_of(&shell, &format!("{line} --utc"), "7pm tomorrow"),
        json!({ "kind": "once", "cron": "2014 3 6 * 19 0 0", "zone": "UTC", "moments": [1_394_132_400_i64] })
    );
    // The runs end with the year.
    assert_eq!(json_of(&shell, line, "2014-2016/2 3 1 * 0 0 0")["moments"], json!([1_456_790_400_i64]));
    let printed =
        shell.try_run("next --from 2026-10-24T22:00:00Z --count 2", &["CRON_TZ=Europe/Berlin 30 2 * * *"]);
    assert_eq!(printed.err, "geartrain: recurs: * * * * 2 30 0 in Europe/Berlin\n");
    let shown: Vec<&str> = printed.out.lines().map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(shown, ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]);
    assert!(printed.out.contains("Sunday"), "{}", printed.out);
    let never = shell.try_run("next", &["2013 1 1 * 0 0 0"]);
    assert_eq!(never.code, 1);
    assert!(never.err.contains("has no moment from "), "{}", never.err);
    let bad = shell.try_run("next", &["every other friday"]);
    assert_eq!(bad.code, 2);
    assert!(bad.err.contains("\"other\" at byte 6: ambiguous"), "{}", bad.err);
}

#[test]
fn recurring_jobs_by_cron_have_put_options_and_a_life_of_their_own() {
    let shell = shell();
    let add = |jid: &str, more: &[&str]| {
        let printed = shell.try_run(&format!("recur add reports nightly {{}} --jid {jid}"), more);
        assert_eq!(printed.code, 0, "{}", printed.err);
        printed
    };
    let printed =
        add("night", &["--cron", "0 3 * * *", "--timeout", "10m", "--overlap", "skip", "--tag", "t"]);
    assert!(printed.err.starts_with("geartrain: runs first "), "{}", printed.err);
    add("digest", &["--cron", "weekdays at 9:00", "--backlog", "skip"]);
    add("often", &["--every", "1h", "--expires-in", "5m"]);
    add("qless", &["--every", "1h"]);
    for put in
        ["put reports nightly {} --jid each --every 1h", "put reports nightly {} --jid night2 --cron @daily"]
    {
        let more =
            ["--timeout", "10m", "--backoff", "5s", "--keep-result", "--unique", "u", "--expires", "5m"];
        assert_eq!(shell.try_run(put, &more).code, 0, "{put}");
    }
    let each = shell.json("recur get each");
    for (key, value) in [("every", 3_600), ("timeout", 600), ("expires_in", 300), ("keep_result", 90_000)] {
        assert_eq!(each[key], json!(value), "{key}");
    }
    assert_eq!((&each["unique"], &each["text"]), (&json!("u"), &json!(null)));
    assert!(shell.run("recur get each").contains("backoff      5s\n"));
    let daily = shell.json("recur get night2");
    assert_eq!((&daily["text"], &daily["cron"]), (&json!("@daily"), &json!("* * * * 0 0 0")));
    assert_eq!(shell.run("recur rm each night2"), "2 recurring jobs removed\n");
    let view = shell.json("recur get night");
    for (key, value) in [
        ("cron", json!("* * * * 3 0 0")),
        ("timeout", json!(600)),
        ("overlap", json!("skip")),
        ("backlog", json!(1)),
        ("tags", json!(["t"])),
        ("retries", json!(5)),
        ("paused", json!(false)),
    ] {
        assert_eq!(view[key], value, "{key}");
    }
    assert_eq!(shell.json("recur get digest")["backlog"], json!(null));
    assert_eq!(shell.json("recur get often")["every"], json!(3_600));
    let listed = shell.json("recur ls");
    let jids: Vec<&str> = listed.as_array().unwrap().iter().map(|job| job["jid"].as_str().unwrap()).collect();
    assert_eq!(jids, ["qless", "digest", "night", "often"], "those of Qless come first");
    assert_eq!(shell.json("recur pause night")["next"], json!(null));
    assert_eq!(shell.run("recur run night"), "night-1\n");
    assert_eq!(shell.json("get night-1")["spawned_from"], "night");
    let refused = shell.try_run("recur run night", &[]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("not finished"), "{}", refused.err);
    assert!(shell.json("recur resume night")["next"].is_number());
    assert_eq!(shell.json("recur edit night --overlap allow --priority 3")["priority"], json!(3));
    assert_eq!(shell.run("recur run night"), "night-2\n");
    assert_eq!(shell.run("recur rm night digest often qless"), "4 recurring jobs removed\n");
    assert_eq!(shell.json("recur ls"), json!([]));
}

/// A phrase is shown as it was given, beside the fields that it stands for.
#[test]
fn a_recurring_job_shows_the_text_of_its_author() {
    let shell = shell();
    let add = |jid: &str, more: &[&str]| {
        let printed = shell.try_run(&format!("recur add q k --jid {jid}"), more);
        assert_eq!(printed.code, 0, "{}", printed.err);
    };
    add("phrase", &["--cron", "weekdays at 9:00"]);
    add("zoned", &["--cron", "0 9 * * *", "--zone", "Europe/Berlin"]);
    add("fields", &["--cron", "*/20 9 * * *"]);
    let shown = |jid: &str| {
        let job = shell.json(&format!("recur get {jid}"));
        let text = |key: &str| job[key].as_str().unwrap_or_default().to_owned();
        (text("text"), text("cron"))
    };
    let texts = |text: &str, cron: &str| (text.to_owned(), cron.to_owned());
    assert_eq!(shown("phrase"), texts("weekdays at 9:00", "* * * 1-5 9 0 0"));
    assert_eq!(shown("zoned"), texts("0 9 * * *", "CRON_TZ=Europe/Berlin * * * * 9 0 0"));
    let listed = shell.run("recur ls");
    for every in [" weekdays at 9:00 ", " 0 9 * * * Europe/Berlin ", " */20 9 * * * "] {
        assert!(listed.contains(every), "{listed}");
    }
    let card = shell.run("recur get phrase");
    assert!(card.contains("\nevery     weekdays at 9:00\ncron      * * * 1-5 9 0 0\n"), "{card}");
    assert!(card.lines().all(|line| line.split_whitespace().count() > 1), "an empty row: {card}");
    // Another schedule has no phrase any more.
    assert_eq!(shell.json("recur edit phrase --every 1h")["text"], json!(null));
}

#[test]
fn why_explains_recurring_jobs() {
    let shell = shell();
    shell.try_run("recur add q k --jid night", &["--cron", "0 9 * * *"]);
    shell.run("recur add q k --jid often --every 1h");
    let why = shell.run("why night");
    assert!(why.starts_with("night is a recurring job of q: its next run is due in "), "{why}");
    assert!(shell.run("why often").ends_with("; its jobs are made when a worker pops q, as in Qless\n"));
    shell.run("recur pause night");
    assert_eq!(shell.json("why night")["reasons"], json!([{ "reason": "paused" }]));
    let why = shell.run("why night");
    assert!(why.ends_with("it is paused; `geartrain recur resume night` resumes it\n"), "{why}");
    assert_eq!(shell.try_run("why missing", &[]).code, 1);
}

#[test]
fn what_never_recurs_is_refused() {
    let shell = shell();
    let refused = |more: &[&str]| shell.try_run("recur add reports nightly", more);
    let past = refused(&["--cron", "2020 1 1 * 0 0 0"]);
    assert_eq!(past.code, 1, "{}", past.err);
    assert!(past.err.contains("never run"), "{}", past.err);
    for (line, why) in [
        (&["geartrain", "recur", "add", "q", "k", "--cron", "61 * * * *"][..], "61"),
        (&["geartrain", "recur", "add", "q", "k", "--cron", "7pm tomorrow"], "names one time"),
        (&["geartrain", "recur", "add", "q", "k", "--cron", "every other friday"], "other"),
        (&["geartrain", "recur", "add", "q", "k", "--every", "1h", "--overlap", "no"], "cancel-old"),
        (&["geartrain", "recur", "add", "q", "k", "--every", "1h", "--backlog", "many"], "skip"),
        (&["geartrain", "recur", "add", "q", "k"], "--every"),
        (&["geartrain", "recur", "add", "q", "k", "--cron", "@daily", "--in", "1h"], "--in"),
        (&["geartrain", "recur", "add", "q", "k", "--every", "1h", "--in", "1h", "--at", "9am"], "--at"),
        (&["geartrain", "put", "q", "k", "--every", "1h", "--depends", "j"], "--depends"),
        (&["geartrain", "put", "q", "k", "--cron", "@daily", "--on-dependency-failure", "fail"], "--on-dep"),
    ] {
        let error = crate::args::parse(line.iter().copied()).unwrap_err().to_string();
        assert!(error.contains(why), "{line:?}: {error}");
    }
    let moment = shell.try_run("put q k --every 1h", &["--expires", "2040-01-01"]);
    assert_eq!(moment.code, 2);
    assert!(moment.err.contains("a duration after each run"), "{}", moment.err);
    for verb in ["pause", "resume", "run", "get", "rm"] {
        assert_eq!(shell.try_run(&format!("recur {verb} missing"), &[]).code, 1, "{verb}");
    }
}
