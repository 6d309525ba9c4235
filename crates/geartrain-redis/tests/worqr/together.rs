//! Both sides of each queue: our clients with other workers, and our workers with other clients.

use geartrain_core::{
    Count, Fail, Group, Heartbeat, Holder, Peek, PopOrder, PutOptions, PutReply, Refusal, Release, Retry,
    StateName, UniqueKey,
};

use super::peer::{Native, Sets, connection, listen, next};
use super::*;

/// MD5 of `a`.
const MD5_A: &str = "0cc175b9c0f1b6a831c399e269772661";

#[test]
fn the_payload_is_on_the_redis_byte_for_byte_and_the_keys_are_those_of_worqr() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    let binary = [0, 255, b'"', b'\n', 0xc3];
    assert_eq!(run(&*backend, put_in("q", &binary)), Ok(PutReply::Unnamed));
    let stored: Vec<Vec<u8>> = ask(redis.port(), &["LRANGE", "worqr:queues:q", "0", "-1"]).unwrap();
    assert_eq!(stored, [binary]);
    assert_eq!(keys(&redis), ["worqr:queues:q"]);

    let job = take(&*backend, 5).remove(0);
    assert_eq!((job.payload.bytes(), job.klass.as_str(), job.queue.as_str()), (&binary[..], "q", "q"));
    let id = ids(&redis).remove(0);
    assert!(id.starts_with("w1."), "{id}");
    let mut expected = [
        "worqr:workers".to_owned(),
        "worqr:expiringWorkers".to_owned(),
        format!("worqr:workerTimers:{id}"),
        format!("worqr:workingQueues:{id}"),
        format!("worqr:workingProcesses:{id}_q"),
        format!("worqr:processes:{}", job.jid),
    ];
    expected.sort();
    assert_eq!(keys(&redis), expected);
    let member: Vec<String> = ask(redis.port(), &["SMEMBERS", &format!("worqr:workingQueues:{id}")]).unwrap();
    assert_eq!(member, [format!("{id}_q")], "and never the queue alone");
    let timer: String = ask(redis.port(), &["GET", &format!("worqr:workerTimers:{id}")]).unwrap();
    assert_eq!(timer, "RUN");

    run(&*backend, complete(&job)).unwrap();
    drop(backend);
    assert_eq!(keys(&redis), [] as [&str; 0], "an idle worker is removed with its backend");
}

#[test]
fn empty_tasks_are_tasks() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    run(&*backend, put("")).unwrap();
    let jobs = take(&*backend, 2);
    assert_eq!(tasks(&jobs), [""]);
    run(&*backend, complete(&jobs[0])).unwrap();
    Native::new(&redis, Sets::Shared).enqueue("q", &["", "x"]);
    assert_eq!(tasks(&take(&*backend, 2)), ["", "x"]);
}

#[test]
fn other_workers_take_our_tasks_in_order_and_both_hear_each_end() {
    for sets in [Sets::Shared, Sets::Own] {
        let redis = RedisServer::start(&[]);
        let backend = worqr(&redis, LONG);
        let mut hearing = connection(&redis);
        let mut listening = listen(&mut hearing, &["worqr_q_work", "worqr_q_done"]);
        let batch: Vec<Call> = ["a", "b", "c"].map(|task| Call::from(put(task))).into();
        let answers = block_on(backend.execute(batch)).unwrap();
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(next(&mut listening), ("worqr_q_work".to_owned(), "3".to_owned()), "one step for a batch");
        run(&*backend, put("d")).unwrap();
        assert_eq!(next(&mut listening), ("worqr_q_work".to_owned(), "1".to_owned()));

        let mut native = Native::new(&redis, sets);
        native.start_worker();
        native.start_work("q");
        let mut events = block_on(backend.subscribe()).unwrap();
        for task in ["a", "b", "c", "d"] {
            let taken = native.dequeue("q").unwrap();
            assert_eq!(taken.task, task.as_bytes());
            native.finish("q", &taken, MD5_A, Some("7"));
            let event = block_on(events.next()).unwrap();
            assert!(
                matches!(&*event.event, geartrain_core::Event::Completed { queue, .. } if queue.as_str() == "q")
            );
            assert_eq!(next(&mut listening).0, "worqr_q_done");
        }
        assert!(native.dequeue("q").is_none());
    }
}

#[test]
fn we_take_the_tasks_of_other_clients_in_order_and_they_read_our_ends() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    let mut native = Native::new(&redis, Sets::Shared);
    native.enqueue("my_work", &["1", "2", "3"]);
    let mut hearing = connection(&redis);
    let mut listening = listen(&mut hearing, &["worqr_my_work_done"]);
    let jobs = run(&*backend, Pop { queues: vec![queue("my_work")], ..pop(9) }).unwrap().jobs;
    assert_eq!(tasks(&jobs), ["1", "2", "3"]);
    assert!(jobs.windows(2).all(|two| two[0].jid < two[1].jid), "the IDs sort by age");
    let id = ids(&redis).remove(0);
    run(&*backend, complete(&jobs[0])).unwrap();
    run(&*backend, complete_with(&jobs[1], r#"{"ok":"é"}"#)).unwrap();
    let (group, holder) = (Group::new("g").unwrap(), jobs[2].holder());
    run(&*backend, Fail::new(jobs[2].jid.clone(), holder, group, "no \"paper\"")).unwrap();
    for expected in [
        format!(r#"{{"workerId":"{id}","task":"1"}}"#),
        format!(r#"{{"workerId":"{id}","task":"2","result":{{"ok":"é"}}}}"#),
        format!(r#"{{"workerId":"{id}","task":"3","result":{{"error":"no \"paper\""}}}}"#),
    ] {
        assert_eq!(next(&mut listening).1, expected);
    }
}

#[test]
fn a_parked_pop_hears_of_a_new_task() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    std::thread::scope(|scope| {
        let popping = scope.spawn(|| block_on(backend.pop_or_wait(pop(1), limit())).unwrap().jobs);
        until("it is subscribed", || {
            let channels: Vec<String> = ask(redis.port(), &["PUBSUB", "CHANNELS", "worqr_q_*"]).unwrap();
            channels.len() == 2
        });
        Native::new(&redis, Sets::Shared).enqueue("q", &["a"]);
        assert_eq!(tasks(&popping.join().unwrap()), ["a"]);
    });
    assert!(!block_on(backend.ready_or_wait(vec![queue("q")], Seconds::ZERO)).unwrap());
    run(&*backend, put("b")).unwrap();
    assert!(block_on(backend.ready_or_wait(vec![queue("q")], limit())).unwrap());
}

#[test]
fn several_queues_are_served_in_turn_or_strictly() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    for task in ["1", "2", "3"] {
        run(&*backend, put_in("a", task.as_bytes())).unwrap();
        run(&*backend, put_in("b", task.as_bytes())).unwrap();
    }
    let both = Pop { queues: vec![queue("a"), queue("b")], ..pop(3) };
    let turns = Pop { order: PopOrder::RoundRobin { turn: 1 }, ..both.clone() };
    let reply = run(&*backend, turns).unwrap();
    let from = |jobs: &[Popped]| jobs.iter().map(|job| job.queue.to_string()).collect::<String>();
    assert_eq!((from(&reply.jobs).as_str(), reply.turn), ("bab", 0));
    assert_eq!(from(&run(&*backend, both.clone()).unwrap().jobs), "aab");
    run(&*backend, put_in("a", b"4")).unwrap();
    let klasses = Some(vec![Klass::new("b").unwrap()]);
    assert_eq!(run(&*backend, Pop { klasses, ..both }).unwrap().jobs, [], "a klass is a queue");
}

#[test]
fn a_unique_task_is_queued_again_when_it_is_finished() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    let unique = |key: &str| {
        let options = PutOptions { unique: Some(UniqueKey::new(key).unwrap()), ..PutOptions::default() };
        Put { options: Some(Box::new(options)), ..put("a") }
    };
    let refused = run(&*backend, unique("b")).unwrap_err().to_string();
    assert_eq!(refused, "unique key must be the payload itself: Worqr compares whole tasks");
    assert_eq!(run(&*backend, unique("a")), Ok(PutReply::Unnamed));
    assert_eq!(ask::<String>(redis.port(), &["GET", &format!("worqr:uniqueTasks:{MD5_A}")]).unwrap(), " ");
    let refused = run(&*backend, unique("a")).unwrap_err().to_string();
    assert!(refused.starts_with("unique key is taken: an equal task is unfinished"), "{refused}");
    let mut native = Native::new(&redis, Sets::Shared);
    assert!(!native.enqueue_unique("q", "a", MD5_A), "they respect each other's markers");

    let job = take(&*backend, 2).remove(0);
    assert!(run(&*backend, unique("a")).is_err(), "it is running");
    run(&*backend, complete(&job)).unwrap();
    assert!(native.enqueue_unique("q", "a", MD5_A));
    assert!(run(&*backend, unique("a")).is_err());
    let taken = native.dequeue("q").unwrap();
    native.finish("q", &taken, MD5_A, None);
    run(&*backend, unique("a")).unwrap();
    assert_eq!(block_on(backend.cancel_tasks(queue("q"), "a".into())).unwrap(), 1);
    run(&*backend, unique("a")).unwrap();
}

#[test]
fn returned_tasks_go_to_the_front_and_are_announced() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    for task in ["1", "2", "3"] {
        run(&*backend, put(task)).unwrap();
    }
    let jobs = take(&*backend, 2);
    let mut hearing = connection(&redis);
    let mut listening = listen(&mut hearing, &["worqr_q_work"]);
    run(&*backend, Release::of(&jobs[1])).unwrap();
    assert_eq!(next(&mut listening).1, "1");
    assert_eq!(waiting(&redis, "q"), ["2", "3"]);
    run(&*backend, Release::new(jobs[0].jid.clone(), by("w1"))).unwrap();
    assert_eq!(waiting(&redis, "q"), ["1", "2", "3"]);
    let late = run(&*backend, complete(&jobs[0])).unwrap_err();
    assert_eq!(late, Refusal::LockLost { jid: jobs[0].jid.clone(), state: StateName::Waiting });
}

#[test]
fn a_failing_task_is_retried_to_its_limit_and_then_finished_with_the_error() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, &format!("{LONG}&retries=2&backoff=0"));
    run(&*backend, put("a")).unwrap();
    let mut hearing = connection(&redis);
    let mut listening = listen(&mut hearing, &["worqr_q_done"]);
    for left in [1, 0, -1] {
        let job = take(&*backend, 1).remove(0);
        assert_eq!((job.retries, job.remaining), (2, left + 1));
        let retry = Retry {
            random: Some(geartrain_core::RandomUnit::HALF),
            message: Some("no paper".to_owned()),
            ..Retry::new(job.jid.clone(), job.holder())
        };
        assert_eq!(run(&*backend, retry), Ok(left));
        let counts: i64 = ask(redis.port(), &["HLEN", "geartrain:wq:worqr:attempts:q"]).unwrap();
        assert_eq!(counts, i64::from(left >= 0));
    }
    let done: serde_json::Value = serde_json::from_str(&next(&mut listening).1).unwrap();
    assert_eq!((&done["task"], &done["result"]), (&"a".into(), &serde_json::json!({ "error": "no paper" })));
    assert_eq!(waiting(&redis, "q"), [] as [&str; 0]);
}

#[test]
fn a_worker_pauses_after_a_returned_task_and_others_do_not() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, &format!("{LONG}&backoff=3600"));
    run(&*backend, put("a")).unwrap();
    let job = take(&*backend, 1).remove(0);
    let random = Some(geartrain_core::RandomUnit::HALF);
    run(&*backend, Retry { random, ..Retry::new(job.jid.clone(), job.holder()) }).unwrap();
    assert_eq!(take(&*backend, 1), []);
    let other = Pop { worker: worker("w2"), ..pop(1) };
    assert_eq!(tasks(&run(&*backend, other).unwrap().jobs), ["a"]);
    let quick = worqr(&redis, &format!("{LONG}&backoff=0.02"));
    run(&*quick, put("b")).unwrap();
    let job = take(&*quick, 1).remove(0);
    run(&*quick, Retry { random, ..Retry::new(job.jid.clone(), job.holder()) }).unwrap();
    assert_eq!(tasks(&block_on(quick.pop_or_wait(pop(1), limit())).unwrap().jobs), ["b"]);
}

#[test]
fn another_process_may_end_a_job_by_its_token_or_its_worker() {
    let redis = RedisServer::start(&[]);
    let (backend, other) = (worqr(&redis, LONG), worqr(&redis, LONG));
    for task in ["1", "2", "3"] {
        run(&*backend, put(task)).unwrap();
    }
    let jobs = take(&*backend, 3);
    run(&*other, complete(&jobs[0])).unwrap();
    let heartbeat = |holder: Holder| Heartbeat { jid: jobs[1].jid.clone(), holder, payload: None };
    assert!(run(&*other, heartbeat(by("w1"))).is_ok());
    let held = run(&*other, heartbeat(by("w2"))).unwrap_err();
    assert!(matches!(held, Refusal::HeldByAnother { .. }), "{held}");
    let foreign = run(&*other, heartbeat(jobs[2].holder())).unwrap_err();
    assert!(matches!(foreign, Refusal::LockLost { state: StateName::Running, .. }), "{foreign}");
    run(&*other, Complete::new(jobs[1].jid.clone(), by(&ids(&redis)[0]))).unwrap();
    let late = run(&*backend, heartbeat(jobs[1].holder())).unwrap_err();
    assert!(matches!(late, Refusal::LockLost { .. }), "{late}");
    let wrong = Complete { queue: Some(queue("other")), ..complete(&jobs[2]) };
    assert!(matches!(run(&*other, wrong), Err(Refusal::WrongQueue { .. })));
    run(&*backend, complete(&jobs[2])).unwrap();
}

#[test]
fn waiting_and_running_tasks_are_shown() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    for task in ["1", "2", "3"] {
        run(&*backend, put(task)).unwrap();
    }
    let job = take(&*backend, 1).remove(0);
    let peeked = run(&*backend, Peek { queue: queue("q"), count: Count::MAX }).unwrap();
    let texts: Vec<&str> = peeked.iter().map(|job| job.payload.text().unwrap()).collect();
    assert_eq!((texts, peeked[0].jid.to_string()), (vec!["2", "3"], "-".to_owned()));
    let one = run(&*backend, Peek { queue: queue("q"), count: Count::ONE }).unwrap();
    assert_eq!(one[0].payload.text(), Some("2"));
    let shown = run(&*backend, geartrain_core::Get { jid: job.jid.clone() }).unwrap().unwrap();
    assert_eq!((shown.state.name(), shown.payload.text()), (StateName::Running, Some("1")));
    let counts = run(&*backend, geartrain_core::Queues::default()).unwrap();
    assert_eq!((counts.len(), counts[0].waiting, counts[0].running, counts[0].stalled), (1, 2, 1, 0));
    assert_eq!(run(&*backend, geartrain_core::Length { queue: queue("q") }), Ok(3));
    let running = geartrain_core::Jobs {
        which: geartrain_core::Listing::Running(queue("q")),
        page: geartrain_core::Page::default(),
    };
    assert_eq!(run(&*backend, running), Ok(vec![job.jid.clone()]));
    let workers = run(&*backend, geartrain_core::Workers).unwrap();
    assert_eq!((workers.len(), workers[0].jobs), (1, 1));
    let jobs = run(&*backend, geartrain_core::WorkerJobs { worker: workers[0].name.clone() }).unwrap();
    assert_eq!(jobs.jobs, std::slice::from_ref(&job.jid));
    let mut native = Native::new(&redis, Sets::Shared);
    native.start_worker();
    let call = || geartrain_core::RollCall { queue: queue("q"), klass: None };
    assert_eq!(run(&*backend, call()), Ok(1), "the other does not work there");
    native.start_work("q");
    assert_eq!(run(&*backend, call()), Ok(2));
    let announced = run(&*backend, geartrain_core::Announced { worker: None }).unwrap();
    assert!(announced.iter().all(|worker| worker.capabilities[0].queue == queue("q")));
    assert_eq!(announced.len(), 2);
    native.die();
    assert_eq!(run(&*backend, call()), Ok(1));
}
