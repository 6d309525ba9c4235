//! Timers, dead workers of either kind, and cancellation of running tasks.

use geartrain_core::{
    Get, Heartbeat, Jobs, Listing, Page, Refusal, StateName, Timeout, WorkerJobs, WorkerLost, Workers,
};

use super::peer::{Native, Sets, connection, listen, next};
use super::*;

fn heartbeat(job: &Popped) -> Heartbeat {
    Heartbeat { jid: job.jid.clone(), holder: job.holder(), payload: None }
}

fn put_all(backend: &dyn Backend, tasks: &[&str]) {
    for task in tasks {
        run(backend, put(task)).unwrap();
    }
}

#[test]
fn a_worker_whose_timer_ran_out_gives_its_jobs_up_and_goes_on_under_another_id() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    put_all(&*backend, &["1", "2", "3"]);
    let jobs = take(&*backend, 2);
    let before = ids(&redis).remove(0);
    let mut hearing = connection(&redis);
    let mut listening = listen(&mut hearing, &["worqr_q_work"]);
    end_timer(&redis, &before);
    assert_eq!(next(&mut listening).1, "3", "it returns its tasks itself");
    assert_eq!(waiting(&redis, "q"), ["1", "2", "3"]);
    for job in &jobs {
        let lost = Refusal::LockLost { jid: job.jid.clone(), state: StateName::Waiting };
        assert_eq!(run(&*backend, heartbeat(job)), Err(lost.clone()));
        assert_eq!(run(&*backend, complete(job)), Err(lost), "nothing is finished twice");
    }
    assert_eq!(tasks(&take(&*backend, 9)), ["1", "2", "3"]);
    let after = ids(&redis);
    assert!(after.len() == 1 && after[0] != before, "{after:?}");
}

#[test]
fn a_take_checks_the_timer_even_if_nothing_else_noticed() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, "?timer=3600&heartbeat=1200&reap=1200");
    put_all(&*backend, &["1", "2"]);
    let job = take(&*backend, 1).remove(0);
    let before = ids(&redis).remove(0);
    end_timer(&redis, &before);
    assert_eq!(tasks(&take(&*backend, 9)), ["1", "2"], "its own task is back at the front");
    assert!(matches!(run(&*backend, heartbeat(&job)), Err(Refusal::LockLost { .. })));
    assert!(!ids(&redis).contains(&before));
    end_timer(&redis, &ids(&redis)[0]);
    let second = run(&*backend, pop(1)).unwrap();
    assert_eq!(second.jobs.len(), 1);
    end_timer(&redis, &ids(&redis)[0]);
    assert!(matches!(run(&*backend, heartbeat(&second.jobs[0])), Err(Refusal::LockLost { .. })));
}

#[test]
fn a_timer_is_renewed_again_and_again() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    put_all(&*backend, &["1"]);
    let job = take(&*backend, 1).remove(0);
    let key = format!("worqr:workerTimers:{}", ids(&redis)[0]);
    let mut last = 0_i64;
    let mut renewals = 0;
    until("the timer is renewed", || {
        let left: i64 = ask(redis.port(), &["PTTL", &key]).unwrap();
        renewals += u64::from(left > last);
        last = left;
        renewals > 3
    });
    run(&*backend, complete(&job)).unwrap();
}

#[test]
fn our_dead_worker_is_failed_by_a_native_reaper_and_only_its_tasks_return() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, "?timer=3600&heartbeat=1200&reap=1200");
    put_all(&*backend, &["1", "2"]);
    let mut native = Native::new(&redis, Sets::Shared);
    native.start_worker();
    native.start_work("q");
    let theirs = native.dequeue("q").unwrap();
    let job = take(&*backend, 1).remove(0);
    let id = ids(&redis).into_iter().find(|id| id.starts_with("w1.")).unwrap();
    end_timer(&redis, &id);
    native.reap();
    assert_eq!(waiting(&redis, "q"), ["2"], "the native task runs on");
    assert!(keys(&redis).iter().all(|key| !key.contains(&id)), "{:?}", keys(&redis));
    assert!(matches!(run(&*backend, complete(&job)), Err(Refusal::LockLost { .. })));
    native.finish("q", &theirs, "x", None);
}

#[test]
fn a_native_worker_that_stops_work_leaves_our_task_alone() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    put_all(&*backend, &["1"]);
    let job = take(&*backend, 1).remove(0);
    let mut native = Native::new(&redis, Sets::Shared);
    native.start_worker();
    native.start_work("q");
    native.stop_work("q");
    assert_eq!(waiting(&redis, "q"), [] as [&str; 0]);
    run(&*backend, complete(&job)).unwrap();
}

#[test]
fn dead_workers_of_others_are_failed_unless_live_ones_share_their_sets() {
    let redis = RedisServer::start(&[]);
    let (mut one, mut other) = (Native::new(&redis, Sets::Shared), Native::new(&redis, Sets::Shared));
    let mut design = Native::new(&redis, Sets::Own);
    one.enqueue("q", &["1", "2", "3", "4"]);
    for native in [&mut one, &mut other, &mut design] {
        native.start_worker();
        native.start_work("q");
        native.dequeue("q").unwrap();
    }
    one.die();
    design.die();
    let mut hearing = connection(&redis);
    let mut listening = listen(&mut hearing, &["worqr_q_work"]);
    let backend = worqr(&redis, "?timer=60&heartbeat=0.05&reap=0.05");
    // It looks for dead workers as soon as it has a worker.
    run(&*backend, Pop { queues: vec![queue("idle")], ..pop(1) }).unwrap();
    assert_eq!(next(&mut listening).1, "2", "that of the design, whose set is its own");
    assert_eq!(waiting(&redis, "q"), ["3", "4"]);
    let live = ids(&redis);
    assert!(live.contains(&one.id), "the live native worker fails it itself");

    other.die();
    assert_eq!(next(&mut listening).1, "4", "none is alive: the shared set goes back");
    assert_eq!(waiting(&redis, "q"), ["1", "2", "3", "4"]);
    until("they are removed", || ids(&redis).len() == 1);
    assert!(keys(&redis).iter().all(|key| !key.contains(&one.id) && !key.contains(&other.id)));
}

#[test]
fn a_lost_worker_can_be_reported_and_a_process_taken_away() {
    let redis = RedisServer::start(&[]);
    let (backend, admin) = (worqr(&redis, LONG), worqr(&redis, LONG));
    put_all(&*backend, &["1", "2", "3"]);
    let jobs = take(&*backend, 3);
    run(&*admin, Timeout { jids: vec![jobs[2].jid.clone()] }).unwrap();
    assert_eq!(waiting(&redis, "q"), ["3"]);
    let lost = run(&*admin, WorkerLost { worker: worker("w1"), evidence: None }).unwrap();
    assert_eq!(lost, [jobs[0].jid.clone(), jobs[1].jid.clone()]);
    assert_eq!(waiting(&redis, "q"), ["1", "2", "3"]);
    assert_eq!(run(&*admin, WorkerLost { worker: worker("w9"), evidence: None }), Ok(Vec::new()));
    until("its own process notices", || run(&*backend, heartbeat(&jobs[0])).is_err());

    // A native worker cannot be failed without taking the tasks of those that share its set.
    let (mut one, mut other) = (Native::new(&redis, Sets::Shared), Native::new(&redis, Sets::Shared));
    for native in [&mut one, &mut other] {
        native.start_worker();
        native.start_work("q");
    }
    let held = one.dequeue("q").unwrap();
    let refused = run(&*admin, WorkerLost { worker: worker(&one.id), evidence: None }).unwrap_err();
    assert!(refused.to_string().starts_with("worker shares its processes with live workers"), "{refused}");
    other.die();
    let lost = run(&*admin, WorkerLost { worker: worker(&one.id), evidence: None }).unwrap();
    assert_eq!(lost, [jid(&held.process)]);
}

#[test]
fn cancel_removes_all_equal_tasks_and_finishes_those_that_run() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    put_all(&*backend, &["a", "b", "a", "a"]);
    let jobs = take(&*backend, 2);
    let mut hearing = connection(&redis);
    let mut listening = listen(&mut hearing, &["worqr_q_done", "worqr_q_cancel"]);
    assert_eq!(block_on(backend.cancel_tasks(queue("q"), "a".into())).unwrap(), 2);
    assert_eq!(next(&mut listening), ("worqr_q_cancel".to_owned(), "a".to_owned()));
    let (channel, done) = next(&mut listening);
    assert_eq!(channel, "worqr_q_done");
    assert!(done.ends_with(r#""task":"a","result":{"cancelled":true}}"#), "{done}");
    let gone = Refusal::NoSuchJob { jid: jobs[0].jid.clone() };
    assert_eq!(run(&*backend, heartbeat(&jobs[0])), Err(gone), "its handler is told that it is cancelled");
    let held = run(&*backend, WorkerJobs { worker: worker("w1") }).unwrap();
    assert_eq!(held.jobs, [jobs[1].jid.clone()]);
    run(&*backend, complete(&jobs[1])).unwrap();
    assert_eq!(block_on(backend.cancel_tasks(queue("q"), "a".into())).unwrap(), 0);

    // A cancellation by another client is heard too.
    put_all(&*backend, &["c"]);
    let job = take(&*backend, 1).remove(0);
    Native::new(&redis, Sets::Shared).cancel("q", "c");
    until("the task is finished", || run(&*backend, Get { jid: job.jid.clone() }).unwrap().is_none());
    assert_eq!(run(&*backend, heartbeat(&job)), Err(Refusal::NoSuchJob { jid: job.jid.clone() }));
}

#[test]
fn work_on_a_queue_and_a_worker_can_be_stopped() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    put_all(&*backend, &["1", "2"]);
    run(&*backend, put_in("p", b"3")).unwrap();
    take(&*backend, 2);
    let other = run(&*backend, Pop { queues: vec![queue("p")], ..pop(1) }).unwrap().jobs;
    assert_eq!(block_on(backend.stop_work(worker("w1"), queue("q"))).unwrap(), 2);
    assert_eq!(waiting(&redis, "q"), ["1", "2"]);
    assert!(block_on(backend.stop_work(worker("w1"), queue("q"))).is_err());
    assert!(run(&*backend, heartbeat(&other[0])).is_ok());
    assert_eq!(block_on(backend.stop_worker(worker("w1"))).unwrap(), 1);
    assert_eq!(waiting(&redis, "p"), ["3"]);
    assert_eq!(keys(&redis), ["worqr:queues:p", "worqr:queues:q"]);
}

#[test]
fn a_backend_that_ends_with_a_job_leaves_it_the_time_of_its_timer() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    put_all(&*backend, &["1", "2"]);
    let jobs = take(&*backend, 2);
    drop(backend);
    let other = worqr(&redis, LONG);
    run(&*other, complete(&jobs[0])).unwrap();
    let id = ids(&redis).remove(0);
    end_timer(&redis, &id);
    let stalled = Jobs { which: Listing::Stalled(queue("q")), page: Page::default() };
    assert_eq!(run(&*other, stalled), Ok(vec![jobs[1].jid.clone()]));
    assert_eq!(run(&*other, Workers).unwrap()[0].stalled, 1);
    assert_eq!(tasks(&block_on(other.pop_or_wait(pop(1), limit())).unwrap().jobs), ["2"]);
}

#[test]
fn a_cancelled_pop_returns_its_task_at_once() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    {
        let mut popping = backend.pop_or_wait(pop(1), limit());
        // Started, and dropped before it is answered.
        let waker = std::task::Waker::noop();
        let _ = popping.as_mut().poll(&mut std::task::Context::from_waker(waker));
        put_all(&*backend, &["a"]);
    }
    let other = worqr(&redis, LONG);
    let job = block_on(other.pop_or_wait(pop(1), limit())).unwrap().jobs;
    assert_eq!(tasks(&job), ["a"]);
}

#[test]
fn what_a_take_without_a_reply_took_goes_back() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, &format!("{LONG}&patience=1"));
    put_all(&*backend, &["1", "2"]);
    let job = take(&*backend, 1).remove(0);
    redis.freeze();
    assert!(block_on(backend.execute(vec![Call::from(pop(1))])).is_err());
    redis.thaw();
    run(&*backend, heartbeat(&job)).unwrap();
    let other = worqr(&redis, LONG);
    let other_pop = Pop { worker: worker("w2"), ..pop(1) };
    assert_eq!(tasks(&block_on(other.pop_or_wait(other_pop, limit())).unwrap().jobs), ["2"]);
    run(&*backend, complete(&job)).unwrap();
}

#[test]
fn native_sets_are_those_of_the_release() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, &format!("{LONG}&native_sets=true"));
    put_all(&*backend, &["1", "2", "3", "4"]);
    let jobs = take(&*backend, 3);
    let id = ids(&redis).remove(0);
    let members: Vec<String> =
        ask(redis.port(), &["SMEMBERS", &format!("worqr:workingQueues:{id}")]).unwrap();
    assert_eq!(members, ["q"]);
    assert_eq!(ask::<i64>(redis.port(), &["SCARD", "worqr:workingProcesses:q"]).unwrap(), 3);
    let mut native = Native::new(&redis, Sets::Shared);
    native.start_worker();
    native.start_work("q");
    let theirs = native.dequeue("q").unwrap();
    run(&*backend, complete(&jobs[0])).unwrap();
    // Our own worker knows which processes are its own.
    assert_eq!(block_on(backend.stop_work(worker("w1"), queue("q"))).unwrap(), 2);
    assert_eq!(waiting(&redis, "q"), ["2", "3"]);
    assert_eq!(ask::<i64>(redis.port(), &["SCARD", "worqr:workingProcesses:q"]).unwrap(), 1);
    native.finish("q", &theirs, "x", None);
}
