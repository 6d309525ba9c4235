//! Tasks that are set aside for a move: any bytes, any queue, and keys that belong to something else.

use geartrain_core::{EndSetAside, SetAside, SetAsideReply, StayReason, TransferEnd};

use super::peer::{Native, Sets};
use super::*;

fn set_aside(backend: &dyn Backend, ids: &[&str]) -> Result<SetAsideReply, Refusal> {
    let jids = ids.iter().map(|id| jid(id)).collect();
    run(backend, SetAside { jids, to: "redis://new".into() }).map(|reply| *reply)
}

fn end(backend: &dyn Backend, ids: &[&str], end: TransferEnd) -> u64 {
    let jids = ids.iter().map(|id| jid(id)).collect();
    run(backend, EndSetAside { jids, end }).unwrap().ended
}

#[test]
fn tasks_leave_their_queue_byte_for_byte_and_return_to_its_front() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    // The separator of process IDs is part of the queue's name.
    let name = "a_+b";
    let tasks: [&[u8]; 4] = [b"", &[0, 255, 10], b" + ", b"last"];
    for task in tasks {
        run(&*backend, put_in(name, task)).unwrap();
    }
    let SetAsideReply { jobs, stay, .. } =
        set_aside(&*backend, &["a_+b_+1", "a_+b_+2", "a_+b_+3", "a_+b_4", "none_+1", "none"]).unwrap();
    let found: Vec<(String, &[u8])> =
        jobs.iter().map(|job| (job.jid.to_string(), job.payload.bytes())).collect();
    let expected = [("a_+b_1", tasks[0]), ("a_+b_2", tasks[1]), ("a_+b_3", tasks[2])];
    assert_eq!(found, expected.map(|(id, task)| (id.to_owned(), task)));
    let unknown = ["a_+b_4", "none_+1", "none"].map(|id| (jid(id), StayReason::Unknown));
    assert_eq!(stay, unknown);

    let other = SetAside { jids: vec![jid("a_+b_1")], to: "redis://other".into() };
    assert_eq!(run(&*backend, other).unwrap().stay, [(jid("a_+b_1"), StayReason::OtherTarget)]);
    assert_eq!(set_aside(&*backend, &["a_+b_2"]).unwrap().jobs[0].payload.bytes(), tasks[1]);
    assert_eq!(end(&*backend, &["a_+b_1", "a_+b_2", "a_+b_9"], TransferEnd::Return), 2);
    assert_eq!(end(&*backend, &["a_+b_3", "a_+b_3", "none"], TransferEnd::Remove), 1);
    let mut native = Native::new(&redis, Sets::Own);
    let taken: Vec<Vec<u8>> = (0..3).map(|_| native.dequeue(name).unwrap().task).collect();
    assert_eq!(taken, [tasks[0], tasks[1], tasks[3]]);
}

#[test]
fn keys_of_another_type_keep_a_move_from_changing_anything() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    run(&*backend, put("a")).unwrap();
    let set = || set_aside(&*backend, &["q_+1"]).unwrap_err().to_string();
    let moving = "geartrain:wq:worqr:moving:q";
    let _: String = ask(redis.port(), &["SET", moving, "x"]).unwrap();
    let before = keys(&redis);
    let refused = set();
    assert!(refused.contains(moving) && refused.contains("is a string, not a hash"), "{refused}");
    let remove = EndSetAside { jids: vec![jid("q_1")], end: TransferEnd::Remove };
    assert!(run(&*backend, remove).unwrap_err().to_string().contains(moving));
    assert_eq!((keys(&redis), waiting(&redis, "q")), (before, vec!["a".to_owned()]));
    let _: i64 = ask(redis.port(), &["DEL", moving, "worqr:queues:q"]).unwrap();
    let _: i64 = ask(redis.port(), &["HSET", "worqr:queues:q", "a", "b"]).unwrap();
    let refused = set();
    assert!(refused.contains("worqr:queues:q is a hash, not a list"), "{refused}");
    assert_eq!(keys(&redis), ["worqr:queues:q"]);
    let colon = set_aside(&*backend, &["a:b_+1"]).unwrap_err().to_string();
    assert_eq!(colon, "queue must have no colon, which separates the parts of Worqr's keys: a:b");
}
