//! Jobs that are set aside for a transfer: no listener of any kind finds them, and they come back as they were.

use geartrain_core::{
    Cancel, Count, EndSetAside, Failed, Get, Group, Jid, JobState, Listing, Page, Period, Periodics, Put,
    Refusal, Seconds, SetAside, StayReason, TRANSFER_GROUP, TransferEnd,
};
use geartrain_testkit::peers::RedisServer;

use super::peer::Peer;
use super::recurring::periodic;
use super::{NOW_MS, ask, at, connect, jid, named, put, queue, run_at, take};

fn set(jids: &[&Jid], to: &str) -> SetAside {
    SetAside { jids: jids.iter().map(|jid| (*jid).clone()).collect(), to: to.into() }
}

fn end(jids: &[&Jid], end: TransferEnd) -> EndSetAside {
    EndSetAside { jids: jids.iter().map(|jid| (*jid).clone()).collect(), end }
}

/// What other implementations see, and the retries.
fn contents(redis: &RedisServer) -> [Vec<String>; 3] {
    let sorted = |command: &[&str]| {
        let mut all: Vec<String> = ask(redis.port(), command).unwrap();
        all.sort();
        all
    };
    [
        sorted(&["HGETALL", "s:jobs"]),
        sorted(&["ZRANGE", "s:next", "0", "-1", "WITHSCORES"]),
        sorted(&["HGETALL", "geartrain:wk:s:retry"]),
    ]
}

#[test]
fn jobs_leave_the_schedule_and_come_back_as_they_were() {
    let redis = RedisServer::start(&[]);
    let (backend, peer) = (connect(&redis, ""), Peer::of(&redis, "s"));
    let once = named(run_at(&*backend, 0.0, Put { retries: Some(3), ..put(r#"["é\n"]"#) }).unwrap());
    let later = named(run_at(&*backend, 0.0, Put { delay: Seconds::from(60), ..put("[2]") }).unwrap());
    run_at(&*backend, 0.0, periodic("* * * * * * *", "[3]")).unwrap();
    let [recurring] = &run_at(&*backend, 0.0, Periodics { only: None, after: None, count: Count::MAX })
        .unwrap()
        .periodics[..]
    else {
        panic!()
    };
    let recurring = recurring.template.put.jid.clone();
    // Spelled by another implementation.
    let odd = jid("ab");
    let payload = r##"{"args": [4], "cron": "2014 3 5 * 9 34 16", "job": "#'a/b", "later": 1}"##;
    let _: i64 = ask(redis.port(), &["HSET", "s:jobs", "ab", payload]).unwrap();
    let _: i64 = ask(redis.port(), &["ZADD", "s:next", &NOW_MS.to_string(), r#"{ "id": "ab" }"#]).unwrap();
    let before = contents(&redis);

    let all = [&once, &later, &recurring, &odd];
    let reply = run_at(&*backend, 0.0, set(&all, "redis://a")).unwrap();
    assert_eq!(reply.stay, []);
    let states: Vec<_> = reply.jobs.iter().map(|job| (&job.jid, job.state.clone(), job.remaining)).collect();
    let scheduled = JobState::Scheduled { due: at(60.0) };
    assert_eq!(states, [(&once, JobState::Waiting, 3), (&later, scheduled, 0), (&odd, JobState::Waiting, 0)]);
    assert_eq!(reply.jobs[2].payload.text(), Some("[4]"));
    let [of] = &reply.recurring[..] else { panic!("{:?}", reply.recurring) };
    assert_eq!((&of.template.put.jid, of.next), (&recurring, Some(at(0.0))));
    assert_eq!(of.template.every, Period::Cron("* * * * * * *".into()));

    // No listener finds them, although they are due, and a recurring one is not adopted.
    assert_eq!(contents(&redis), [const { Vec::<String>::new() }; 3]);
    assert!(peer.listen_once(NOW_MS + 1_000_000).is_none());
    for seconds in [0.0, 61.0, 122.0, 183.0] {
        assert!(take(&*backend, seconds).is_none());
    }
    // Another process finds what is set aside, and only for its target.
    let other = connect(&redis, "");
    let group = Group::new(TRANSFER_GROUP).unwrap();
    let page = Page { offset: 0, count: Count::MAX };
    let mut listed = run_at(&*other, 0.0, Failed { group, page }).unwrap().jids;
    listed.sort();
    let mut expected = all.map(Clone::clone);
    expected.sort();
    assert_eq!(listed, expected);
    let shown = run_at(&*other, 0.0, Get { jid: once.clone() }).unwrap().unwrap();
    assert!(matches!(shown.state, JobState::Failed { failure } if failure.message.contains("redis://a")));
    let refused = run_at(&*other, 0.0, set(&[&once], "redis://b")).unwrap();
    assert_eq!(refused.stay, [(once.clone(), StayReason::OtherTarget)]);
    assert_eq!(run_at(&*other, 0.0, set(&all, "redis://a")).unwrap(), reply);

    let ended = run_at(&*other, 9.0, end(&all, TransferEnd::Return)).unwrap();
    assert_eq!((ended.ended, ended.stay), (4, vec![]));
    assert_eq!(contents(&redis), before);
    run_at(&*other, 9.0, set(&all, "redis://b")).unwrap();
    assert_eq!(run_at(&*other, 9.0, end(&all, TransferEnd::Remove)).unwrap().ended, 4);
    assert_eq!(super::keys(&redis), ["geartrain:wk:schedules"]);
    let again = run_at(&*other, 9.0, end(&[&once], TransferEnd::Return)).unwrap();
    assert_eq!(again.stay, [(once, StayReason::NotSetAside)]);
}

#[test]
fn what_cannot_leave_stays_with_the_reason() {
    let redis = RedisServer::start(&[]);
    let (backend, peer) = (connect(&redis, ""), Peer::of(&redis, "s"));
    peer.enqueue("literal", r#"{"args":[],"cron":"2014 3 5 * 9 34 16","job":"(fn [] 1)"}"#, NOW_MS);
    peer.enqueue("damaged", "{", NOW_MS);
    let _: i64 = ask(redis.port(), &["ZADD", "s:next", "5", r#"{"id":"nothing"}"#]).unwrap();
    run_at(&*backend, 0.0, periodic("* * * * * * *", "[]")).unwrap();
    let recurring = take(&*backend, 0.0).unwrap().jid;
    let running = named(run_at(&*backend, 0.0, put("[]")).unwrap());
    assert_eq!(take(&*backend, 0.0).unwrap().jid, running);
    let twice = named(run_at(&*backend, 0.0, put("[2]")).unwrap());
    run_at(&*backend, 0.0, Put { queue: queue("t"), ..put("[2]") }).unwrap();
    let before = contents(&redis);

    let jids = ["literal", "damaged", "nothing"].map(jid);
    let all = [&jids[0], &jids[1], &jids[2], &recurring, &running, &twice];
    let reply = run_at(&*backend, 0.0, set(&all, "x")).unwrap();
    use StayReason::{InSeveral, Literal, Running, Unknown, Unreadable};
    let reasons = [Literal, Unreadable, Unknown, Running, Running, InSeveral];
    let stay: Vec<(Jid, StayReason)> = all.map(Clone::clone).into_iter().zip(reasons).collect();
    assert_eq!((reply.jobs, reply.recurring, reply.stay), (vec![], vec![], stay));
    let listed = Page { offset: 0, count: Count::MAX };
    let waiting = geartrain_core::Jobs { which: Listing::Waiting(queue("s")), page: listed };
    assert!(!run_at(&*backend, 0.0, waiting).unwrap().contains(&jids[2]), "the entry without a job is gone");
    assert_eq!(contents(&redis)[0], before[0]);
    assert_eq!(run_at(&*connect(&redis, "?schedule=t"), 0.0, set(&[&twice], "x")).unwrap().jobs.len(), 1);

    assert_eq!(run_at(&*backend, 0.0, Cancel::new(vec![twice.clone()])), Err(several(&twice)));
}

fn several(jid: &Jid) -> Refusal {
    let why = format!("must be in one schedule: {jid} is in s and in t, choose with ?schedule= in the URL");
    Refusal::BadArgument { what: "jid".into(), why }
}
