//! Why attempts ended, and what is left of cancelled jobs.

use super::*;

#[test]
fn a_job_tells_the_story_of_its_attempts() {
    let shell = shell();
    shell.run("put mail welcome --jid j1");
    let token = shell.pop("mail");
    let retry = shell.try_run(
        &format!("retry j1 --token {token} --delay 0s --group smtp --message"),
        &["it said \u{1b}451"],
    );
    assert_eq!(retry.code, 0, "{}", retry.err);
    let token = shell.pop("mail");
    assert_eq!(shell.try_run(&format!("release j1 --token {token} --message"), &["a deployment"]).code, 0);
    shell.pop("mail");
    shell.run("worker-lost w1 --evidence oom");
    shell.pop("mail");
    let shown = shell.run("get j1");
    let history: Vec<&str> = shown
        .split_once("History\n")
        .unwrap()
        .1
        .lines()
        .map(|line| line.rsplit_once("  ").unwrap().1)
        .collect();
    let expected = [
        "submitted to mail",
        "attempt 1: popped by w1",
        "attempt 1: retried by w1: smtp: it said 451",
        "attempt 2: popped by w1",
        "attempt 2: released by w1: a deployment",
        "attempt 3: popped by w1",
        "attempt 3: worker w1 died: oom",
        "attempt 4: popped by w1",
    ];
    assert_eq!(history.iter().map(|line| line.replace("\\u{1b}", "")).collect::<Vec<_>>(), expected);
    let history = &shell.json("get j1")["history"];
    let when = &history[2]["when"];
    assert_eq!(
        history[2],
        json!({ "when": when, "what": "attempt-ended", "reason": "retried", "worker": "w1", "group": "smtp",
            "message": "it said \u{1b}451" })
    );
    let kinds: Vec<&str> = (0..8).map(|at| history[at]["what"].as_str().unwrap()).collect();
    let ended = "attempt-ended";
    assert_eq!(kinds, ["put", "popped", ended, "popped", ended, "popped", ended, "popped"]);
}

#[test]
fn a_cancelled_job_says_who_cancelled_it_and_why() {
    let shell = Shell { client: shell().client.named("ana@desk"), width: None };
    shell.run("put mail welcome --jid j1");
    shell.run("put mail welcome --jid j2");
    assert_eq!(shell.try_run("cancel j1 --because", &["the account is closed"]).code, 0);
    shell.run("cancel j2");
    let expected = "job j1 was cancelled just now by ana@desk, because the account is closed; \
                    it was waiting in queue mail";
    for line in ["get j1", "why j1", "log j1 hello"] {
        let refused = shell.refused(line);
        // A second may have passed.
        assert_eq!(refused.replace("1s ago", "just now"), expected, "{line}");
    }
    assert!(shell.refused("get j2").ends_with(" by ana@desk; it was waiting in queue mail"));
    shell.run("put mail welcome --jid j3");
    shell.run("put mail welcome --jid j4 --depends j3");
    shell.run("cancel j4");
    assert!(shell.refused("get j4").ends_with(" by ana@desk; it depended on others, in queue mail"));
    let printed = shell.try_run("get j1 --json", &[]);
    let mut left: Value = serde_json::from_str(&printed.out).unwrap();
    assert_eq!(printed.code, 1);
    assert!(left["when"].take().as_f64().unwrap() <= timestamp::now().get());
    let expected = json!({
        "jid": "j1", "state": "cancelled", "queue": "mail", "klass": "welcome", "was": "waiting", "when": null,
        "by": "ana@desk", "because": "the account is closed",
    });
    assert_eq!(left, expected);
    assert_eq!(shell.json("put mail welcome --jid j1")["outcome"], "created");
    shell.run("get j1");
    assert!(shell.refused("get unknown").contains("does not exist"));
    let long = shell.try_run("cancel j1 --because", &["x".repeat(1_025).as_str()]);
    assert_eq!((long.code, long.err.as_str()), (1, "because of 1025 bytes is over the limit of 1024"));
    shell.run("get j1");
}
