//! Removing everything.

use super::prelude::*;

/// What all reads that know a name show, for names that the cases use.
async fn shown(system: &System) -> Result<String, Surprise> {
    let (mail, all) = (queue("mail"), Page { offset: 0, count: Count::MAX });
    let mut shown = vec![format!("{:?}", system.snapshot(0.0).await?)];
    for day in [0, 86_400] {
        let stats = system.ask(Stats { queue: mail.clone(), date: moment(day) }).await?;
        shown.push(format!("{stats:?}"));
    }
    shown.push(format!("{:?}", system.ask(TopTags { page: all }).await?));
    shown.push(format!("{:?}", system.ask(Tagged { tag: tags(["t"]).remove(0), page: all }).await?));
    shown.push(format!("{:?}", system.ask(AllConfig).await?));
    shown.push(format!("{:?}", system.ask(Tracked).await?));
    shown.push(format!("{:?}", system.ask(Workers).await?));
    shown.push(format!("{:?}", system.ask(WorkerJobs { worker: worker("w1") }).await?));
    shown.push(format!("{:?}", system.ask(Announced { worker: None }).await?));
    shown.push(format!("{:?}", system.capable_workers("mail", None).await?));
    shown.push(format!("{:?}", system.ask(GetLimits { queue: mail.clone() }).await?));
    shown.push(format!("{:?}", system.ask(Queues { queue: Some(mail.clone()) }).await?));
    shown.push(format!("{:?}", system.ask(Length { queue: mail }).await?));
    for name in ["kept", "running", "waiting", "every"] {
        shown.push(format!("{:?}", system.ask(GetResult { jid: jid(name) }).await?));
        shown.push(format!("{:?}", system.ask(Get { jid: jid(name) }).await?));
        shown.push(format!("{:?}", system.ask(GetRecurring { jid: jid(name) }).await?));
        shown.push(format!("{:?}", system.ask(status(name)).await?));
    }
    shown.push(format!("{:?}", system.tick(0).await?));
    Ok(shown.join("\n"))
}

/// Something of every kind.
async fn fill(system: &System) -> Checked {
    system.at(0, limit("mail", rate(1000, 1, 1000))).await?;
    system.at(0, can("w1", "mail", None)).await?;
    let kept = PutOptions {
        result_ttl: Some(seconds(1e8)),
        unique: Some(key("k")),
        attempt_max: Some(seconds(1e6)),
        ..PutOptions::default()
    };
    let tagged = |job: Put| Put { tags: Some(tags(["t", "u"])), ..job };
    system.run(0, tagged(on_terms(put("mail", "kept"), kept)), "w1").await?;
    system.at(1, complete_with("kept", "w1", 0, "result")).await?;
    system.run(1, put("mail", "failed"), "w1").await?;
    system.at(2, fail("failed", "w1", "g")).await?;
    system.run(2, tagged(put("mail", "running")), "w1").await?;
    system.at(3, tagged(put("mail", "waiting"))).await?;
    system.at(3, add_tags("waiting", ["t"])).await?;
    system.at(3, Put { delay: seconds(1e6), ..put("mail", "scheduled") }).await?;
    system.at(3, Put { depends: jids(["waiting", "running"]), ..put("post", "blocked") }).await?;
    system.at(3, Put { depends: jids(["blocked"]), ..put("post", "deeper") }).await?;
    system.at(3, recur("mail", "every", 1e6)).await?;
    system.at(3, track("waiting")).await?;
    system.at(3, pause("mail")).await?;
    system.ask(set("heartbeat", "7")).await?;
    system.ask(set("mail-heartbeat", "8")).await?;
    Ok(())
}

/// A flush removes everything, in parts of any size, and what is put afterwards starts from nothing.
pub async fn a_flushed_system_is_as_new(system: System) -> Checked {
    let new = shown(&system).await?;
    for part in [100_000, 1] {
        fill(&system).await?;
        assert_ne!(shown(&system).await?, new);
        let mut parts = 0;
        while system.at(4, Flush { count: count(part) }).await? {
            parts += 1;
            assert!(parts < 1000, "a flush ends");
        }
        assert_eq!(shown(&system).await?, new);
        let popped = system.run(5, put("mail", "again"), "w2").await?;
        assert_eq!(popped.lock.expires, moment(65));
        system.at(6, complete("again", "w2")).await?;
        while system.at(7, Flush { count: count(part) }).await? {}
    }
    assert_eq!(shown(&system).await?, new);
    Ok(())
}

/// Numbers are not given out a second time after a flush, and workers from before have lost their jobs.
pub async fn a_flush_gives_no_number_twice(system: System) -> Checked {
    let before = system.run(0, put("mail", "a"), "w1").await?;
    let first = system.ask(AllocateIds { counter: "c".into(), count: count(5) }).await?;
    while system.at(1, Flush { count: count(100) }).await? {}
    system.refuses(2, Complete::new(jid("a"), holding(&before)), no::such_job("a")).await?;
    let after = system.run(3, put("mail", "a"), "w1").await?;
    assert!(before.lock.token < after.lock.token);
    system.refuses(4, Complete::new(jid("a"), holding(&before)), no::lock("a", StateName::Running)).await?;
    let next = system.ask(AllocateIds { counter: "c".into(), count: count(1) }).await?;
    assert_eq!((first, next), (1, 6));
    Ok(())
}

/// A client that waits for a flushed job is told that the job was cancelled. No event is published for it,
/// and a subscriber goes on to hear of what comes later.
pub async fn a_flush_tells_clients_that_wait(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    system.at(0, awaited("mail", "a", 1)).await?;
    let mut listener = system.listen().await?;
    while system.at(1, Flush { count: count(100) }).await? {}
    listener.heard(&system, []).await?;
    system.at(2, put("mail", "b")).await?;
    listener.heard(&system, [heard::put("b", "mail")]).await?;
    follower.told(&system, [told::canceled(1, "a")]).await?;
    Ok(())
}

/// A flush of nothing at a time would never end.
pub async fn a_flush_of_nothing_is_refused(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    system.refuses(1, Flush { count: count(0) }, no::good("count")).await?;
    Ok(())
}
