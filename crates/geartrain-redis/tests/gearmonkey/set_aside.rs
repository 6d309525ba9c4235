//! Jobs that are set aside for a move: what peers left among them, and keys that belong to something else.

use geartrain_core::{EndSetAside, SetAside, SetAsideReply, StayReason, TransferEnd};
use geartrain_testkit::peers::RedisServer;

use super::peer::Peer;
use super::*;

fn set_aside(backend: &dyn Backend, ids: &[&str]) -> Result<SetAsideReply, Refusal> {
    let jids = ids.iter().map(|id| jid(id)).collect();
    run(backend, SetAside { jids, to: "redis://new".into() }).map(|reply| *reply)
}

fn end(backend: &dyn Backend, ids: &[&str], end: TransferEnd) -> u64 {
    let jids = ids.iter().map(|id| jid(id)).collect();
    run(backend, EndSetAside { jids, end }).unwrap().ended
}

fn list(peer: &mut Peer, queue: &str) -> Vec<String> {
    peer.say(&format!("LRANGE queue:{queue} 0 -1"))
}

#[test]
fn jobs_leave_their_queue_whatever_else_is_in_it_and_return_to_their_places() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, ""), Peer::of(&redis));
    // The separator of the layout is part of the function's name.
    let function = "a:b";
    for (input, priority) in
        [(&[0, 255, 10][..], "normal"), (b"", "normal"), (b"3", "high"), (b"4", "low"), (b"5", "normal")]
    {
        peer.run(function, input, priority, 0);
    }
    assert_eq!(peer.run(function, b"later", "scheduled", 4_000_000_000), "6");
    let (lists, scheduled) =
        (["a:b:high", "a:b:normal", "a:b:low"], |peer: &mut Peer| -> Vec<(String, i64)> {
            peer.say("ZRANGE queue:a:b:scheduled 0 -1 WITHSCORES")
        });
    let before: Vec<Vec<String>> = lists.iter().map(|queue| list(&mut peer, queue)).collect();
    let due = scheduled(&mut peer);
    // Without a hash, without fields, of another type, ended, taken by another worker, and unknown.
    peer.say::<i64>("RPUSH queue:a:b:normal 20 21 22 23");
    peer.say::<i64>("HSET job:a:b:21 status idle");
    peer.say::<i64>("LPUSH job:a:b:22 x");
    peer.say::<i64>("HSET job:a:b:23 status error input x");
    peer.say::<i64>("HSET job:a:b:24 status busy input x");
    let all = [
        "a:b:3", "a:b:20", "a:b:21", "a:b:22", "a:b:23", "a:b:24", "a:b:25", "a:b:2", "a:b:1", "a:b:5",
        "a:b:4", "a:b:6",
    ];
    let SetAsideReply { jobs, stay, .. } = set_aside(&*backend, &all).unwrap();
    let found: Vec<(String, &[u8])> =
        jobs.iter().map(|job| (job.jid.to_string(), job.payload.bytes())).collect();
    let expected: [(&str, &[u8]); 6] = [
        ("a:b:3", b"3"),
        ("a:b:2", b""),
        ("a:b:1", &[0, 255, 10]),
        ("a:b:5", b"5"),
        ("a:b:4", b"4"),
        ("a:b:6", b"later"),
    ];
    assert_eq!(found, expected.map(|(id, input)| (id.to_owned(), input)));
    let unknown = ["20", "21", "22"].map(|id| (jid(&format!("a:b:{id}")), StayReason::Unknown));
    let others = [
        (jid("a:b:23"), StayReason::Complete),
        (jid("a:b:24"), StayReason::Running),
        (jid("a:b:25"), StayReason::Unknown),
    ];
    assert_eq!(stay, [unknown, others].concat());
    assert_eq!(take(&*backend, function), None, "what is set aside is not handed out");
    assert!(lists.iter().all(|queue| list(&mut peer, queue).is_empty()), "nor to other workers");

    // Named again, they are the same, for this target only.
    assert_eq!(set_aside(&*backend, &["a:b:1", "a:b:6"]).unwrap().jobs.len(), 2);
    let other = SetAside { jids: vec![jid("a:b:1")], to: "redis://other".into() };
    assert_eq!(run(&*backend, other).unwrap().stay, [(jid("a:b:1"), StayReason::OtherTarget)]);

    // The order of the jids is that of their places, from the front.
    let back = ["a:b:3", "a:b:1", "a:b:2", "a:b:5", "a:b:4", "a:b:6", "a:b:25"];
    assert_eq!(end(&*backend, &back, TransferEnd::Return), 6);
    assert_eq!(lists.map(|queue| list(&mut peer, queue)), *before);
    assert_eq!(scheduled(&mut peer), due);
    assert_eq!(end(&*backend, &back, TransferEnd::Return), 0);

    // Jobs that are not next to each other, and are removed.
    assert_eq!(set_aside(&*backend, &["a:b:2", "a:b:4"]).unwrap().jobs.len(), 2);
    assert_eq!(end(&*backend, &["a:b:2", "a:b:4", "a:b:4"], TransferEnd::Remove), 2);
    assert_eq!(list(&mut peer, "a:b:normal"), ["5", "1"]);
    assert_eq!(list(&mut peer, "a:b:low"), [] as [&str; 0]);
    for (id, is_there) in [("1", true), ("2", false), ("4", false), ("5", true), ("22", true), ("23", true)] {
        assert_eq!(peer.say::<bool>(&format!("EXISTS job:a:b:{id}")), is_there, "{id}");
    }
}

#[test]
fn keys_of_another_type_keep_a_move_from_changing_anything() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, ""), Peer::of(&redis));
    peer.run("up", b"x", "normal", 0);
    for (write, why) in [
        ("SET geartrain:gm:up:moving x", "geartrain:gm:up:moving is a string, not a hash"),
        ("SET geartrain:gm:up:transfers x", "geartrain:gm:up:transfers is a string, not a hash"),
        ("HSET queue:up:high a b", "queue:up:high is a hash, not a list"),
        ("LPUSH queue:up:scheduled x", "queue:up:scheduled is a list, not a zset"),
    ] {
        peer.say::<redis::Value>(write);
        let before = keys(&redis);
        let refused = set_aside(&*backend, &["up:1"]).unwrap_err();
        assert_eq!(refused.to_string(), format!("key {why}"));
        let remove = EndSetAside { jids: vec![jid("up:1")], end: TransferEnd::Remove };
        assert_eq!(run(&*backend, remove).unwrap_err(), refused);
        assert_eq!((keys(&redis), list(&mut peer, "up:normal")), (before, vec!["1".to_owned()]));
        peer.say::<i64>(&format!("DEL {}", why.split(' ').next().unwrap()));
    }
    assert_eq!(set_aside(&*backend, &["up", "up:x"]).unwrap().stay.len(), 2, "no jids of functions");
    assert_eq!(set_aside(&*backend, &["up:1"]).unwrap().jobs.len(), 1);
}
