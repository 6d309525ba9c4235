//! Keys that belong to something else, and processes whose keys do not fit together: an error names the key and
//! the problem, and nothing else is disturbed.

use geartrain_core::{Get, Jobs, Listing, Page, Peek, Queues, Release, Retry, Timeout};

use super::peer::{Native, Sets, connection, listen, next};
use super::*;

fn dump(redis: &RedisServer) -> Vec<(String, Option<Vec<u8>>)> {
    let value = |key: String| (key.clone(), ask(redis.port(), &["DUMP", &key]).unwrap());
    keys(redis).into_iter().map(value).collect()
}

fn set(redis: &RedisServer, key: &str) {
    let _: String = ask(redis.port(), &["SET", key, "x"]).unwrap();
}

#[test]
fn a_queue_key_of_another_type_is_named() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    take(&*backend, 1);
    set(&redis, "worqr:queues:q");
    let before = dump(&redis);
    let is_a_string = "worqr:queues:q is a string, not a list: the key belongs to something else";
    let other_type = "worqr:queues:q has another type than in Worqr";
    assert_eq!(run(&*backend, put("a")).unwrap_err().to_string(), is_a_string);
    assert_eq!(run(&*backend, pop(1)).unwrap_err().to_string(), is_a_string);
    let peek = Peek { queue: queue("q"), count: Count::ONE };
    assert_eq!(run(&*backend, peek).unwrap_err().to_string(), other_type);
    let cancelled = block_on(backend.cancel_tasks(queue("q"), "a".into())).unwrap_err();
    assert_eq!(cancelled.to_string(), is_a_string);
    assert_eq!(dump(&redis), before);
    // In a batch, the others go on.
    let batch = vec![Call::from(put("a")), Call::from(put_in("p", b"b"))];
    let answers = block_on(backend.execute(batch)).unwrap();
    assert!(answers[0].is_err() && answers[1].is_ok());
    assert_eq!(run(&*backend, Queues::default()).unwrap().len(), 1, "it is no queue");
}

#[test]
fn keys_of_a_process_of_another_type_are_named_and_the_task_stays_where_it_is() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    run(&*backend, put("a")).unwrap();
    run(&*backend, put("b")).unwrap();
    let job = take(&*backend, 1).remove(0);
    let id = ids(&redis).remove(0);
    let own = format!("worqr:workingProcesses:{id}_q");
    let _: i64 = ask(redis.port(), &["DEL", &own]).unwrap();
    set(&redis, &own);
    let before = dump(&redis);
    let expected = format!("{own} is a string, not a set: the key belongs to something else");
    assert_eq!(run(&*backend, complete(&job)).unwrap_err().to_string(), expected);
    assert_eq!(run(&*backend, pop(1)).unwrap_err().to_string(), expected);
    assert_eq!(run(&*backend, Release::of(&job)).unwrap_err().to_string(), expected);
    assert_eq!(run(&*backend, Retry::new(job.jid.clone(), job.holder())).unwrap_err().to_string(), expected);
    assert_eq!(dump(&redis), before);

    let _: i64 = ask(redis.port(), &["DEL", &own]).unwrap();
    let process = format!("worqr:processes:{}", job.jid);
    set(&redis, &process);
    let other_type = format!("{process} has another type than in Worqr");
    assert_eq!(run(&*backend, Get { jid: job.jid.clone() }).unwrap_err().to_string(), other_type);
    let expected = format!("{process} is a string, not a list: the key belongs to something else");
    assert_eq!(run(&*backend, complete(&job)).unwrap_err().to_string(), expected);

    set(&redis, "geartrain:wq:worqr:attempts:p");
    run(&*backend, put_in("p", b"c")).unwrap();
    let jobs = run(&*backend, Pop { queues: vec![queue("p")], ..pop(1) }).unwrap().jobs;
    assert_eq!(tasks(&jobs), ["c"], "without the counts it is handed out all the same");
    let refused = run(&*backend, Retry::new(jobs[0].jid.clone(), jobs[0].holder())).unwrap_err().to_string();
    assert!(refused.starts_with("geartrain:wq:worqr:attempts:p is a string, not a hash"), "{refused}");
}

#[test]
fn a_process_without_a_task_is_lost_and_one_without_a_set_can_be_returned() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    run(&*backend, put("a")).unwrap();
    let job = take(&*backend, 1).remove(0);
    let _: i64 = ask(redis.port(), &["DEL", &format!("worqr:processes:{}", job.jid)]).unwrap();
    assert!(run(&*backend, complete(&job)).is_err());
    assert_eq!(run(&*backend, Get { jid: job.jid.clone() }), Ok(None));

    let orphan = "worqr:processes:q_00000000-0000-7000-8000-000000000000";
    let _: i64 = ask(redis.port(), &["LPUSH", orphan, "b"]).unwrap();
    let stalled = || Jobs { which: Listing::Stalled(queue("q")), page: Page::default() };
    let found = run(&*backend, stalled()).unwrap();
    assert_eq!(found, [jid(orphan.strip_prefix("worqr:processes:").unwrap())], "it is reported");
    run(&*backend, Timeout { jids: found }).unwrap();
    assert_eq!(waiting(&redis, "q"), ["b"]);
    assert_eq!(run(&*backend, stalled()), Ok(Vec::new()));
    let unknown = run(&*backend, Timeout { jids: vec![jid("x")] }).unwrap_err();
    assert_eq!(unknown.to_string(), "job x does not exist");
}

#[test]
fn what_cannot_be_returned_of_a_dead_worker_stays_and_the_rest_returns() {
    let redis = RedisServer::start(&[]);
    let mut native = Native::new(&redis, Sets::Own);
    native.enqueue("q", &["1", "2"]);
    native.enqueue("p", &["3"]);
    native.start_worker();
    for name in ["q", "p"] {
        native.start_work(name);
    }
    let held = [native.dequeue("q").unwrap(), native.dequeue("q").unwrap(), native.dequeue("p").unwrap()];
    let add = |member: &[u8]| {
        let set = format!("worqr:workingProcesses:{}_q", native.id);
        let mut connection = connection(&redis);
        let _: i64 = redis::cmd("SADD").arg(set).arg(member).query(&mut connection).unwrap();
    };
    add(b"no process");
    add(b"\xff\xfe_1");
    add(b"q_without-a-key");
    let bad = format!("worqr:processes:{}", held[0].process);
    let _: i64 = ask(redis.port(), &["DEL", &bad]).unwrap();
    set(&redis, &bad);
    let _: i64 = ask(redis.port(), &["SADD", "worqr:expiringWorkers", "stale"]).unwrap();
    native.die();

    let mut hearing = connection(&redis);
    let mut listening = listen(&mut hearing, &["worqr_q_work"]);
    let backend = worqr(&redis, LONG);
    take(&*backend, 0);
    assert_eq!(next(&mut listening).1, "1");
    assert_eq!((waiting(&redis, "q"), waiting(&redis, "p")), (vec!["2".into()], vec!["3".into()]));
    assert_eq!(ask::<String>(redis.port(), &["GET", &bad]).unwrap(), "x", "it is left alone");
    assert!(ids(&redis).contains(&native.id), "what is left of it is looked at again");
    until("others are removed", || {
        !ask::<bool>(redis.port(), &["SISMEMBER", "worqr:expiringWorkers", "stale"]).unwrap()
    });
}

#[test]
fn names_that_other_workers_would_misread_are_refused() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    let colon = "queue must have no colon, which separates the parts of Worqr's keys: a:b";
    assert_eq!(run(&*backend, put_in("a:b", b"x")).unwrap_err().to_string(), colon);
    let other = Pop { queues: vec![queue("q"), queue("a:b")], ..pop(1) };
    assert_eq!(run(&*backend, other).unwrap_err().to_string(), colon);
    let long = "q".repeat(476);
    let refused = run(&*backend, put_in(&long, b"x")).unwrap_err().to_string();
    assert_eq!(refused, "queue has at most 475 bytes, because Worqr's process IDs contain it");
    for name in ["a_b", "a:b", "a*"] {
        let refused = run(&*backend, Pop { worker: worker(name), ..pop(1) }).unwrap_err().to_string();
        assert_eq!(refused, format!("worker must have only letters, digits, - and . in Worqr, not {name}"));
    }
    assert_eq!(keys(&redis), [] as [&str; 0]);
    let url = format!("worqr+{}?prefix=my_app", redis.url());
    assert!(url.parse::<geartrain_redis::worqr::WorqrUrl>().is_err());
    let own = worqr(&redis, "?prefix=my.app");
    run(&*own, put_in(&"q".repeat(475), b"x")).unwrap();
    assert!(keys(&redis)[0].starts_with("my.app:queues:qqq"));
    let jobs = run(&*own, Pop { queues: vec![queue(&"q".repeat(475))], ..pop(1) }).unwrap().jobs;
    assert_eq!(jobs[0].jid.to_string().len(), 512);
}
