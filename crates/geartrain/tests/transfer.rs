//! Moving jobs between two queue systems.

use std::time::Duration;

use geartrain::transfer::{Stay, Transfer, TransferError};
use geartrain::{
    Client, EndSetAside, Fail, GetMany, Jid, JobState, QueueName, Recur, Seconds, SetAside, StateName,
    TransferEnd, UniqueKey,
};

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn jid(name: &str) -> Jid {
    Jid::new(name).unwrap()
}

async fn memory() -> Client {
    geartrain::connect("memory:").await.unwrap()
}

async fn moved(from: &Client, to: &Client, queues: &[&str]) -> Transfer {
    let queues = queues.iter().map(|name| queue(name)).collect();
    let mut transfer = Transfer::between(from.clone(), to.clone(), "memory:b", queues);
    transfer.run(&mut |_| {}).await.unwrap();
    transfer
}

async fn state(client: &Client, name: &str) -> Option<StateName> {
    client.get(&jid(name)).await.unwrap().map(|job| job.state.name())
}

/// What names the jobs that stay, and why.
fn reasons(stay: &[Stay]) -> Vec<(String, String)> {
    stay.iter().map(|stay| (stay.jid.to_string(), stay.why.clone())).collect()
}

#[tokio::test]
async fn a_job_of_each_state_arrives_with_all_that_it_has() {
    let (from, to) = (memory().await, memory().await);
    let put = from.put("mail", "welcome", "hello").jid("waiting").priority(3.0).tag("new").retries(7);
    put.unique("u").timeout(Duration::from_secs(60)).await.unwrap();
    from.put("mail", "welcome", "later").jid("scheduled").delay(Duration::from_secs(3_600)).await.unwrap();
    from.put("mail", "welcome", "then").jid("depends").after(&jid("waiting")).await.unwrap();
    from.put("failing", "welcome", "oops").jid("failed").await.unwrap();
    let popped = from.pop("failing", "w").await.unwrap().unwrap();
    from.run(Fail::new(popped.jid.clone(), popped.holder(), geartrain::Group::new("io").unwrap(), "no host"))
        .await
        .unwrap();
    let recur = Recur::new(
        queue("mail"),
        jid("night"),
        geartrain::Klass::new("k").unwrap(),
        "{}",
        Seconds::from(3_600),
    );
    from.run(recur).await.unwrap();

    let transfer = moved(&from, &to, &["mail", "failing"]).await;
    let report = transfer.report();
    assert_eq!((report.moved, report.recurring, &report.stay), (4, 1, &vec![]));
    let waiting = to.get(&jid("waiting")).await.unwrap().unwrap();
    assert_eq!((waiting.priority.get(), waiting.retries, waiting.payload.bytes()), (3.0, 7, &b"hello"[..]));
    assert_eq!(waiting.tags.iter().map(ToString::to_string).collect::<Vec<_>>(), ["new"]);
    let details = waiting.details.unwrap();
    assert_eq!(
        (details.attempt_max, details.unique),
        (Some(Seconds::from(60)), Some(UniqueKey::new("u").unwrap()))
    );
    assert_eq!(waiting.dependents, [jid("depends")]);
    let JobState::Failed { failure } = to.get(&jid("failed")).await.unwrap().unwrap().state else {
        panic!("it failed")
    };
    assert_eq!((failure.group.as_str(), failure.message.as_str()), ("io", "no host"));
    assert_eq!(state(&to, "scheduled").await, Some(StateName::Scheduled));
    let names = ["waiting", "scheduled", "depends", "failed"];
    assert!(from.run(GetMany { jids: names.map(jid).to_vec() }).await.unwrap().is_empty());
    let again = moved(&from, &to, &["mail", "failing"]).await;
    assert_eq!((again.report().moved, again.report().recurring), (0, 0));
}

#[tokio::test]
async fn jobs_that_depend_on_each_other_go_together_or_stay() {
    let (from, to) = (memory().await, memory().await);
    // One graph over two queues, one with a job that runs, and one with a job of a queue that is not moved.
    from.put("mail", "k", "").jid("a").await.unwrap();
    from.put("post", "k", "").jid("b").after(&jid("a")).await.unwrap();
    from.put("mail", "k", "").jid("c").after(&jid("b")).after(&jid("a")).await.unwrap();
    from.put("run", "k", "").jid("runs").await.unwrap();
    let running = from.pop("run", "w").await.unwrap().unwrap();
    from.put("mail", "k", "").jid("behind").after(&jid("runs")).await.unwrap();
    from.put("mail", "k", "").jid("first").await.unwrap();
    from.put("other", "k", "").jid("elsewhere").after(&jid("first")).await.unwrap();
    let transfer = moved(&from, &to, &["mail", "post", "run"]).await;
    let report = transfer.report();
    assert_eq!((report.moved, report.running), (3, 1));
    let stay = reasons(&report.stay);
    let why =
        |name: &str| stay.iter().find(|(jid, _)| jid == name).map(|(_, why)| why.clone()).unwrap_or_default();
    assert_eq!(why("behind"), "belongs together with job runs, which is running");
    assert_eq!(why("first"), "belongs together with job elsewhere of queue other, which is not moved");
    for (name, expected) in [("a", StateName::Waiting), ("b", StateName::Depends), ("c", StateName::Depends)]
    {
        assert_eq!((state(&from, name).await, state(&to, name).await), (None, Some(expected)), "{name}");
    }
    for (name, expected) in
        [("first", StateName::Waiting), ("elsewhere", StateName::Depends), ("behind", StateName::Depends)]
    {
        assert_eq!((state(&from, name).await, state(&to, name).await), (Some(expected), None), "{name}");
    }
    // Once it is complete, the other one can go.
    from.complete(&running).await.unwrap();
    assert_eq!(moved(&from, &to, &["mail"]).await.report().moved, 1);
    assert_eq!(state(&to, "behind").await, Some(StateName::Waiting));
}

#[tokio::test]
async fn an_interrupted_move_is_finished_or_put_back() {
    for is_put in [false, true] {
        for abort in [false, true] {
            let (from, to) = (memory().await, memory().await);
            for name in ["a", "b"] {
                from.put("mail", "k", name).jid(name).await.unwrap();
            }
            // Killed after it set both aside, and after it put one.
            let aside = SetAside { jids: vec![jid("a"), jid("b")], to: "memory:b".into() };
            assert_eq!(from.run(aside).await.unwrap().jobs.len(), 2);
            if is_put {
                to.put("mail", "k", "a").jid("a").await.unwrap();
            }
            let mut transfer = Transfer::between(from.clone(), to.clone(), "memory:b", vec![queue("mail")]);
            if abort {
                transfer.abort().await.unwrap();
                let back = if is_put { None } else { Some(StateName::Waiting) };
                assert_eq!(
                    (state(&from, "a").await, state(&from, "b").await),
                    (back, Some(StateName::Waiting))
                );
                assert_eq!(state(&to, "b").await, None);
                assert_eq!(transfer.report().returned, if is_put { 1 } else { 2 });
            } else {
                transfer.run(&mut |_| {}).await.unwrap();
                assert_eq!((transfer.report().resumed, transfer.report().moved), (2, 2));
                assert_eq!((state(&from, "a").await, state(&from, "b").await), (None, None));
                assert_eq!(to.queues().await.unwrap()[0].waiting, 2);
            }
        }
    }
}

#[tokio::test]
async fn another_target_is_refused_until_the_first_move_is_over() {
    let (from, to) = (memory().await, memory().await);
    from.put("mail", "k", "").jid("a").await.unwrap();
    from.run(SetAside { jids: vec![jid("a")], to: "memory:c".into() }).await.unwrap();
    let mut transfer = Transfer::between(from.clone(), to.clone(), "memory:b", vec![queue("mail")]);
    let error = transfer.run(&mut |_| {}).await.unwrap_err();
    assert!(matches!(error, TransferError::OtherTarget { jid: of } if of == jid("a")));
    from.run(EndSetAside { jids: vec![jid("a")], end: TransferEnd::Return }).await.unwrap();
    assert_eq!(moved(&from, &to, &["mail"]).await.report().moved, 1);
}

#[tokio::test]
async fn what_the_target_refuses_is_put_back_with_the_reason() {
    let (from, to) = (memory().await, memory().await);
    // A job of the target has the id, and another one follows from the refusal.
    to.put("mail", "other", "x").jid("a").await.unwrap();
    from.put("mail", "k", "").jid("a").await.unwrap();
    from.put("mail", "k", "").jid("b").after(&jid("a")).await.unwrap();
    from.put("mail", "k", "").jid("c").await.unwrap();
    let transfer = moved(&from, &to, &["mail"]).await;
    assert_eq!(transfer.report().moved, 1);
    let stay = reasons(&transfer.report().stay);
    assert!(stay.contains(&("a".into(), "another job of the target has its id".into())), "{stay:?}");
    assert!(stay.contains(&("b".into(), "depends on a job that stays".into())), "{stay:?}");
    assert_eq!(
        (state(&from, "a").await, state(&from, "b").await),
        (Some(StateName::Waiting), Some(StateName::Depends))
    );
    assert_eq!((state(&to, "b").await, state(&to, "c").await), (None, Some(StateName::Waiting)));
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let (from, to) = (memory().await, memory().await);
    for number in 0..1_500 {
        from.put("mail", "k", format!("{number}")).await.unwrap();
    }
    let mut transfer = Transfer::between(from.clone(), to.clone(), "memory:b", vec![queue("mail")]);
    transfer.dry_run().await.unwrap();
    assert_eq!(transfer.report().moved, 1_500);
    assert_eq!(from.queues().await.unwrap()[0].waiting, 1_500);
    assert!(to.queues().await.unwrap().is_empty());
}

#[tokio::test]
async fn jobs_arrive_in_their_order() {
    let (from, to) = (memory().await, memory().await);
    for number in 0..2_500 {
        from.put("mail", "k", format!("{number}")).await.unwrap();
    }
    moved(&from, &to, &["mail"]).await;
    for number in 0..2_500 {
        let popped = to.pop("mail", "w").await.unwrap().unwrap();
        assert_eq!(popped.payload.bytes(), format!("{number}").as_bytes());
    }
}
