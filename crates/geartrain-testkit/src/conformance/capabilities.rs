//! Announced capabilities and roll calls.

use super::prelude::*;

fn cannot(by: &str, at: &str, kind: Option<&str>) -> Announce {
    announce(by, AnnounceChange::Cannot(vec![(queue(at), kind.map(klass))]))
}

/// A put that is refused without a capable worker.
fn called(to: &str, name: &str) -> Put {
    on_terms(put(to, name), PutOptions { roll_call: true, ..PutOptions::default() })
}

/// Those count who can do the klass or any, each once; without a klass, all who can do anything there.
pub async fn a_roll_call_counts_each_worker_once(system: System) -> Checked {
    system.at(0, can("w1", "mail", Some("k"))).await?;
    system.at(0, can("w1", "mail", None)).await?;
    system.at(0, can("w1", "mail", Some("other"))).await?;
    system.at(0, can("w2", "mail", Some("k"))).await?;
    system.at(0, can("w3", "mail", None)).await?;
    system.at(0, can("w4", "post", Some("k"))).await?;
    assert_eq!(system.capable_workers("mail", Some("k")).await?, 3);
    assert_eq!(system.capable_workers("mail", Some("other")).await?, 2);
    assert_eq!(system.capable_workers("mail", None).await?, 3);
    assert_eq!(system.capable_workers("post", Some("k")).await?, 1);
    Ok(())
}

/// A roll call counts announced capabilities only.
pub async fn a_roll_call_without_announcements_finds_no_worker(system: System) -> Checked {
    assert_eq!(system.ignores(0, RollCall { queue: queue("mail"), klass: None }).await?, 0);
    system.at(0, can("w1", "mail", Some("k"))).await?;
    let call = RollCall { queue: queue("mail"), klass: Some(klass("other")) };
    assert_eq!(system.ignores(1, call).await?, 0);
    assert_eq!(system.capable_workers("post", None).await?, 0);
    Ok(())
}

/// A worker can do more, less, or something else; what it says of the same queue and klass replaces what it
/// said.
pub async fn a_worker_may_change_what_it_can_do(system: System) -> Checked {
    let slow = Capability { attempt_max: Some(seconds(9)), ..ability("mail", Some("k")) };
    let abilities = async || {
        let announced = system.ask(Announced { worker: Some(worker("w1")) }).await?;
        Ok::<_, Surprise>(announced.into_iter().flat_map(|one| one.capabilities).collect::<Vec<_>>())
    };
    system.at(0, announce("w1", AnnounceChange::Can(vec![slow.clone(), ability("mail", None)]))).await?;
    assert_eq!(abilities().await?, [ability("mail", None), slow.clone()]);
    system.at(1, can("w1", "mail", Some("k"))).await?;
    assert_eq!(abilities().await?, [ability("mail", None), ability("mail", Some("k"))]);
    system.at(2, can("w1", "a", Some("k"))).await?;
    system.at(3, cannot("w1", "mail", None)).await?;
    system.at(3, cannot("w1", "unknown", None)).await?;
    assert_eq!(abilities().await?, [ability("a", Some("k")), ability("mail", Some("k"))]);
    system.at(4, announce("w1", AnnounceChange::Only(vec![slow.clone()]))).await?;
    assert_eq!(abilities().await?, [slow]);
    system.at(5, announce("w1", AnnounceChange::Only(vec![]))).await?;
    assert!(abilities().await?.is_empty());
    assert_eq!(system.capable_workers("mail", None).await?, 0);
    Ok(())
}

/// What workers announced is listed by their names, with when they were last seen.
pub async fn announcements_are_listed_by_worker(system: System) -> Checked {
    let mut listener = system.listen().await?;
    system.at(1, can("w2", "mail", None)).await?;
    system.at(2, can("w1", "mail", Some("k"))).await?;
    let announced = |name| Event::Announced { worker: worker(name) };
    listener.heard(&system, [announced("w2"), announced("w1")]).await?;
    let entry = |name, seen: i32, abilities| Announcement {
        worker: worker(name),
        seen: Some(moment(seen)),
        capabilities: vec![abilities],
    };
    let (first, second) = (entry("w1", 2, ability("mail", Some("k"))), entry("w2", 1, ability("mail", None)));
    let all = system.ignores(3, Announced { worker: None }).await?;
    assert_eq!(all, [first, second.clone()]);
    assert_eq!(system.ask(Announced { worker: Some(worker("w2")) }).await?, [second]);
    assert_eq!(system.workers(3).await?, ["w1", "w2"]);
    assert_eq!(system.registered().await?, ["mail"]);
    Ok(())
}

/// A put with roll call is refused without a capable worker.
pub async fn a_put_may_require_a_capable_worker(system: System) -> Checked {
    system.refuses(0, called("mail", "a"), no::body_can("mail", "k")).await?;
    system.at(1, can("w1", "mail", Some("other"))).await?;
    system.refuses(1, called("mail", "a"), no::body_can("mail", "k")).await?;
    system.at(2, can("w1", "mail", Some("k"))).await?;
    assert_eq!(system.at(2, called("mail", "a")).await?, PutReply::Created);
    system.at(3, gone("w1")).await?;
    system.refuses(4, called("mail", "b"), no::body_can("mail", "k")).await?;
    let again = Put { existing: Existing::Replace, ..called("mail", "a") };
    system.refuses(4, again, no::body_can("mail", "k")).await?;
    assert_eq!(system.at(4, put_again("mail", "a")).await?, PutReply::Replaced);
    assert_eq!(system.at(4, put("mail", "b")).await?, PutReply::Created);
    Ok(())
}

/// The roll is called for a new job, after all that makes it none and before there is a look at the room.
pub async fn a_roll_call_comes_after_ids_keys_and_expiry(system: System) -> Checked {
    system.at(0, unique("mail", "a", "report")).await?;
    system.at(0, limit("mail", QueueLimits { jobs_max: Some(1), ..QueueLimits::default() })).await?;
    assert_eq!(system.ignores(1, called("mail", "a")).await?, PutReply::Existing);
    let calling = PutOptions { roll_call: true, ..PutOptions::default() };
    let joins = PutOptions { unique: Some(key("report")), ..calling.clone() };
    assert_eq!(system.at(1, on_terms(put("mail", "b"), joins)).await?, PutReply::Coalesced { jid: jid("a") });
    let late = PutOptions { expires: Some(moment(1)), ..calling };
    system.refuses(1, on_terms(put("mail", "b"), late), no::good("expires")).await?;
    system.refuses(1, called("mail", "b"), no::body_can("mail", "k")).await?;
    system.at(2, can("w1", "mail", None)).await?;
    system.refuses(2, called("mail", "b"), no::room("mail", 1, 1)).await?;
    Ok(())
}

/// A worker that is silent for more than a minute no longer counts, once a tick has found that out.
pub async fn a_silent_worker_no_longer_counts(system: System) -> Checked {
    system.at(100, can("w1", "mail", None)).await?;
    let mut listener = system.listen().await?;
    system.tick(160).await?;
    assert_eq!(system.capable_workers("mail", None).await?, 1);
    listener.heard(&system, []).await?;
    system.tick(160.5).await?;
    listener.heard(&system, [heard::worker_gone("w1")]).await?;
    assert_eq!(system.capable_workers("mail", None).await?, 0);
    assert_eq!(system.workers(161).await?, ["w1"]);
    system.refuses(161, called("mail", "a"), no::body_can("mail", "k")).await?;
    system.tick(162).await?;
    listener.heard(&system, []).await?;
    system.at(170, can("w1", "mail", None)).await?;
    assert_eq!(system.capable_workers("mail", None).await?, 1);
    Ok(())
}

/// To pop or to announce is to show a sign of life.
pub async fn a_worker_that_shows_signs_of_life_counts(system: System) -> Checked {
    for by in ["pops", "announces"] {
        system.at(100, can(by, "mail", None)).await?;
    }
    system.pop(150, "elsewhere", "pops", 1).await?;
    system.at(150, cannot("announces", "post", None)).await?;
    system.tick(200).await?;
    assert_eq!(system.capable_workers("mail", None).await?, 2);
    system.tick(211).await?;
    assert_eq!(system.capable_workers("mail", None).await?, 0);
    Ok(())
}

/// A worker that is gone, forgotten or long out of sight can do nothing.
pub async fn abilities_end_with_their_worker(system: System) -> Checked {
    for by in ["gone", "forgotten", "aged"] {
        system.at(0, can(by, "mail", None)).await?;
    }
    system.at(1, gone("gone")).await?;
    assert_eq!(system.capable_workers("mail", None).await?, 2);
    system.at(1, ForgetWorkers { workers: vec![worker("forgotten")] }).await?;
    assert_eq!(system.capable_workers("mail", None).await?, 1);
    assert_eq!(system.workers(100_000).await?, NONE);
    assert_eq!(system.capable_workers("mail", None).await?, 0);
    assert_eq!(system.ask(Announced { worker: None }).await?, []);
    Ok(())
}

/// A worker can do 1,024 things at the most.
pub async fn too_many_abilities_are_refused(system: System) -> Checked {
    let many = |count: usize| (0..count).map(|number| ability(&format!("q{number}"), None)).collect();
    system.refuses(0, announce("w1", AnnounceChange::Can(many(1025))), no::good("abilities")).await?;
    system.refuses(0, announce("w1", AnnounceChange::Only(many(1025))), no::good("abilities")).await?;
    system.at(0, announce("w1", AnnounceChange::Can(many(1024)))).await?;
    system.refuses(0, can("w1", "one-more", None), no::good("abilities")).await?;
    system.at(1, announce("w1", AnnounceChange::Can(many(1024)))).await?;
    system.at(2, cannot("w1", "q0", None)).await?;
    system.at(3, can("w1", "one-more", None)).await?;
    assert_eq!(system.capable_workers("one-more", Some("k")).await?, 1);
    Ok(())
}
