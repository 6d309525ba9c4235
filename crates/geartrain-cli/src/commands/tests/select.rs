//! Lists by filter, and changes of many jobs.

use super::*;

/// Runs a command with a filter, which has blanks.
fn filtered(shell: &Shell, line: &str, filter: &str) -> Printed {
    shell.try_run(line, &["--where", filter])
}

fn filtered_json(shell: &Shell, line: &str, filter: &str) -> Value {
    let printed = filtered(shell, &format!("{line} --json"), filter);
    serde_json::from_str(&printed.out).unwrap_or_else(|error| panic!("{line}: {error}: {}", printed.err))
}

/// Jobs a to e in mail, of which a failed and b is complete; f in news.
fn six_jobs() -> Shell {
    let shell = shell();
    for jid in ["a", "b", "c", "d", "e"] {
        shell.run(&format!(r#"put mail welcome {{"user":{{"id":"{jid}"}}}} --jid {jid}"#));
    }
    shell.run("put news digest {} --jid f");
    let token = shell.pop("mail");
    shell.run(&format!("fail a smtp oops --token {token}"));
    let token = shell.pop("mail");
    shell.run(&format!("complete b --token {token}"));
    shell
}

fn jids(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|job| job["jid"].as_str().unwrap()).collect()
}

#[test]
fn jobs_are_listed_by_a_filter_and_flags_add_terms() {
    let shell = six_jobs();
    assert_eq!(jids(&filtered_json(&shell, "jobs", "queue=mail state=waiting")), ["c", "d", "e"]);
    assert_eq!(jids(&filtered_json(&shell, "jobs --state waiting", "args.user.id=d")), ["d"]);
    assert_eq!(jids(&filtered_json(&shell, "jobs --queue news", "age<1h")), ["f"]);
    assert_eq!(jids(&shell.json("jobs --state complete --queue mail")), ["b"]);
    assert_eq!(shell.json("jobs --state complete --queue news"), json!([]));
    let page = filtered_json(&shell, "jobs --paged --limit 2", "state=waiting");
    assert_eq!(
        (jids(&page["items"]), &page["total"], &page["next"]),
        (vec!["c", "d"], &json!(null), &json!(2))
    );
    let page = filtered_json(&shell, "jobs --paged --limit 2 --offset 2", "state=waiting");
    assert_eq!((jids(&page["items"]), &page["total"]), (vec!["e", "f"], &json!(4)));
    let none = filtered(&shell, "jobs", "klass=unknown");
    assert_eq!((none.out.as_str(), none.err.as_str(), none.code), ("", "geartrain: no such jobs\n", 0));
}

#[test]
fn a_bad_filter_is_a_usage_error_with_its_position() {
    let error = args::parse(["geartrain", "jobs", "--where", "queue=mail stat=failed"]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("at position 12: there is no field stat (did you mean state?)"), "{text}");
}

#[test]
fn a_dry_run_counts_and_shows_three() {
    let shell = six_jobs();
    let printed = filtered(&shell, "cancel --dry-run", "queue=mail");
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert!(printed.out.starts_with("queue=mail selects 5 jobs\n"), "{}", printed.out);
    assert!(printed.out.ends_with("… and 2 more\n"), "{}", printed.out);
    let view = filtered_json(&shell, "cancel --dry-run", "state=failed");
    assert_eq!((&view["matching"], keys(&view).len()), (&json!(1), 2));
    let sample = &view["samples"][0];
    assert_eq!(
        (&sample["jid"], &sample["group"], &sample["attempts"]),
        (&json!("a"), &json!("smtp"), &json!(1))
    );
    assert_eq!(jids(&filtered_json(&shell, "jobs", "klass=welcome")).len(), 5);
}

#[test]
fn many_jobs_are_changed_and_summed_up() {
    let shell = six_jobs();
    let printed = filtered(&shell, "unfail --yes", "state=failed");
    assert!(printed.out.ends_with("1 job requeued\n"), "{}", printed.out);
    let view = filtered_json(&shell, "priority -5 --yes", "queue=mail state=waiting");
    assert_eq!((&view["matching"], &view["acted"], &view["unchanged"]), (&json!(4), &json!(4), &json!(0)));
    let view = filtered_json(&shell, "priority -5 --yes", "queue=mail");
    assert_eq!((&view["acted"], &view["unchanged"], &view["changed"]), (&json!(1), &json!(4), &json!(0)));
    let view = filtered_json(&shell, "tag hot new --yes --rate 1000000/s", "queue=mail");
    assert_eq!(view["acted"], 5);
    let printed = filtered(&shell, "tag hot --yes", "queue=mail");
    assert!(printed.out.ends_with("0 jobs tagged, 5 left as they were\n"), "{}", printed.out);
    let printed = filtered(&shell, "untag hot --yes", "tag=hot state=complete");
    assert!(printed.out.ends_with("1 job untagged\n"), "{}", printed.out);
    let view = filtered_json(&shell, "requeue --queue news --yes", "state=complete");
    assert_eq!(view["acted"], 1);
    assert_eq!(shell.json("get b")["queue"], "news");
    let printed = filtered(&shell, "cancel --yes", "queue=unknown");
    assert_eq!((printed.code, printed.err.as_str()), (0, "geartrain: queue=unknown selects no jobs\n"));
    assert_eq!(shell.json("cancel --all --yes")["acted"], 6);
    assert_eq!(shell.json("jobs"), json!([]));
}

#[test]
fn a_refused_job_is_named_and_the_others_are_changed() {
    let shell = shell();
    shell.run("put mail welcome {} --jid base");
    shell.run("put news welcome {} --jid top --depends base");
    shell.run("put mail welcome {} --jid free");
    let printed = filtered(&shell, "cancel --yes", "queue=mail");
    assert_eq!(printed.code, 1);
    assert!(printed.out.ends_with("1 job cancelled, 1 refused\n"), "{}", printed.out);
    let why = "1 job refused, such as: job top depends on job base: cancel both or neither";
    assert!(printed.err.ends_with(why), "{}", printed.err);
    assert_eq!(filtered_json(&shell, "cancel --yes", "klass=welcome")["acted"], 2);
}

#[test]
fn many_jobs_are_not_changed_without_consent() {
    let shell = six_jobs();
    for (line, filter, why) in [
        ("cancel", Some("queue=mail"), "give --yes"),
        ("cancel --yes", Some(""), "give --all"),
        ("cancel --all", None, "give --yes"),
        ("requeue a --dry-run", None, "go with --where or --all"),
        ("priority a 5 --yes", Some("queue=mail"), "either a job id or a filter"),
        ("priority 5", None, "a job id and a priority"),
        ("priority high --yes", Some("queue=mail"), "is no priority"),
        ("tag a", None, "a job id and at least one tag"),
        ("unfail smtp --rate 5/s", None, "go with --where or --all"),
    ] {
        let more: Vec<&str> = filter.map_or(Vec::new(), |filter| vec!["--where", filter]);
        let printed = shell.try_run(line, &more);
        assert_eq!(printed.code, 2, "{line}: {}", printed.err);
        assert!(printed.err.contains(why), "{line}: {}", printed.err);
    }
    for line in ["cancel a --where queue=mail", "requeue a --all", "unfail smtp --all", "cancel", "requeue"] {
        assert!(args::parse(["geartrain"].into_iter().chain(line.split(' '))).is_err(), "{line}");
    }
    assert_eq!(shell.json("jobs").as_array().unwrap().len(), 6);
}

#[test]
fn a_filter_into_payloads_that_are_not_json_is_refused() {
    let shell = six_jobs();
    shell.run("put mail raw text --jid raw");
    for line in ["jobs", "cancel --yes", "cancel --dry-run"] {
        let refused = filtered(&shell, line, "queue=mail args.user.id=d");
        assert_eq!((refused.out.as_str(), refused.code), ("", 1), "{line}");
        assert!(refused.err.contains("that of 1 job is not JSON"), "{line}: {}", refused.err);
    }
    assert_eq!(shell.json("get d")["state"], "waiting");
    let narrow = filtered(&shell, "cancel --yes", "queue=mail klass=welcome args.user.id=d");
    assert_eq!(narrow.code, 0, "{}", narrow.err);
}
