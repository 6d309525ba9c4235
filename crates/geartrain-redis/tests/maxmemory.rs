//! A Redis that has reached `maxmemory`: puts are refused, but jobs can be read, finished and cancelled,
//! which frees memory.

use crate::peers;

use std::sync::Arc;

use geartrain_core::{
    Answer, Backend, BackendError, Call, Cancel, Command, Complete, Fail, ForgetQueues, Get, Group,
    Heartbeat, Holder, Jid, Klass, Pop, PopReply, Put, QueueName, Queues, Release, Reply, Seconds, Tick,
    WorkerName,
};
use geartrain_redis::RedisBackend;
use geartrain_testkit::peers::RedisServer;
use peers::ask;
use pollster::block_on;

fn connect(redis: &RedisServer) -> Arc<dyn Backend> {
    Arc::new(block_on(RedisBackend::connect(redis.url().parse().unwrap())).unwrap())
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn jid(number: usize) -> Jid {
    Jid::new(format!("j{number}")).unwrap()
}

fn put(number: usize) -> Put {
    Put::new(queue(), jid(number), Klass::new("k").unwrap(), "{}")
}

fn pop() -> Pop {
    Pop::new(queue(), WorkerName::new("w").unwrap())
}

fn run(backend: &dyn Backend, command: impl Into<Command>) -> Result<Answer, BackendError> {
    block_on(backend.execute(vec![Call::from(command.into())])).map(|mut answers| answers.remove(0))
}

fn popped(backend: &dyn Backend) -> PopReply {
    match run(backend, pop()).unwrap() {
        Ok(Reply::Pop(reply)) => reply,
        other => panic!("{other:?}"),
    }
}

fn is_full(answer: Result<Answer, BackendError>) -> bool {
    matches!(answer, Err(BackendError::Broken { source, .. }) if source.to_string().contains("OOM"))
}

#[test]
fn beyond_maxmemory_jobs_are_read_worked_off_and_cancelled_and_only_new_ones_are_refused() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis);
    for number in 0..10 {
        run(&*backend, put(number)).unwrap().unwrap();
    }
    // It is due by the time it is read.
    run(&*backend, Put { delay: Seconds::new(0.001).unwrap(), ..put(10) }).unwrap().unwrap();
    ask::<String>(redis.port(), &["CONFIG", "SET", "maxmemory", "1"]).unwrap();

    assert!(is_full(run(&*backend, put(11))));
    let mixed = vec![Call::from(Cancel::new(vec![jid(9)])), Call::from(put(11))];
    assert!(block_on(backend.execute(mixed)).is_err());
    assert!(matches!(run(&*backend, Get { jid: jid(9) }).unwrap(), Ok(Reply::Get(Some(_)))));
    run(&*backend, Queues { queue: None }).unwrap().unwrap();
    run(&*backend, Tick { count: geartrain_core::Count::ONE }).unwrap().unwrap();

    let job = popped(&*backend).jobs.remove(0);
    let holder = || Holder::Token(job.lock.token);
    run(&*backend, Heartbeat { jid: job.jid.clone(), holder: holder(), payload: None }).unwrap().unwrap();
    run(&*backend, Complete::new(job.jid.clone(), holder())).unwrap().unwrap();
    let job = popped(&*backend).jobs.remove(0);
    let group = Group::new("g").unwrap();
    run(&*backend, Fail::new(job.jid, Holder::Token(job.lock.token), group, "m")).unwrap().unwrap();
    let job = block_on(backend.pop_or_wait(pop(), Seconds::from(1))).unwrap().jobs.remove(0);
    run(&*backend, Release::new(job.jid, Holder::Token(job.lock.token))).unwrap().unwrap();
    run(&*backend, Cancel::new((2..11).map(jid).collect())).unwrap().unwrap();
    run(&*backend, ForgetQueues { queues: vec![queue()] }).unwrap().unwrap();

    ask::<String>(redis.port(), &["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    run(&*backend, put(11)).unwrap().unwrap();
}

#[test]
fn a_replica_executes_commands_that_only_read() {
    let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
    let writes = connect(&master);
    run(&*writes, put(1)).unwrap().unwrap();
    let port = master.port().to_string();
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &port]);
    peers::until("the replica has what the master has", || {
        ask::<String>(replica.port(), &["INFO", "replication"])
            .is_ok_and(|info| info.contains("master_link_status:up"))
    });
    let reads = connect(&replica);
    assert!(matches!(run(&*reads, Get { jid: jid(1) }).unwrap(), Ok(Reply::Get(Some(_)))));
    let answer = run(&*reads, Queues { queue: None }).unwrap();
    let Ok(Reply::Queues(queues)) = answer else { panic!("{answer:?}") };
    assert_eq!(queues.len(), 1);
}
