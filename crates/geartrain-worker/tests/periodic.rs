//! Periodic jobs on a Redis, where the processes fire them.

use std::sync::Arc;
use std::time::Duration;

use geartrain_core::{
    Backend, Call, Count, FilterState, Jid, Klass, Missed, Period, PeriodicTemplate, Periodics, Put,
    PutPeriodic, QueueName, Reply, Seconds, Select, Term, Timestamp,
};
use geartrain_redis::RedisBackend;
use geartrain_testkit::peers::RedisServer;
use geartrain_worker::fire_periodics;

async fn one(backend: &dyn Backend, command: impl Into<geartrain_core::Command>) -> Reply {
    let answers = backend.execute(vec![Call::from(command.into())]).await.expect("the Redis is there");
    answers.into_iter().next().expect("it is one").expect("it is not refused")
}

/// Three processes look for due runs; each run is fired by one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_processes_fire_each_run_once() {
    const RUNS: u64 = 20;
    let redis = RedisServer::start(&[]);
    let mut backends: Vec<Arc<dyn Backend>> = Vec::new();
    for _ in 0..3 {
        let url = redis.url().parse().expect("it is a URL");
        backends.push(Arc::new(RedisBackend::connect(url).await.expect("the Redis is there")));
    }
    let queue = QueueName::new("q").expect("a name");
    let jid = Jid::new("often").expect("a name");
    let put = Put::new(queue.clone(), jid.clone(), Klass::new("k").expect("a name"), "{}");
    let every = Period::Interval(Seconds::new(0.05).expect("it is finite"));
    let template = PeriodicTemplate { missed: Missed::All, ..PeriodicTemplate::new(put, every) };
    let now = backends[0].now().expect("the driver has a clock");
    one(&*backends[0], PutPeriodic::new(template, now)).await;
    let firing: Vec<_> =
        backends.iter().map(|backend| tokio::spawn(fire_periodics(backend.clone()))).collect();
    let fired = async {
        loop {
            let Reply::Periodics(found) = one(&*backends[0], Periodics::one(jid.clone())).await else {
                panic!("it lists periodic jobs")
            };
            if found.periodics[0].count >= RUNS {
                assert!(found.watched.is_some());
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), fired).await.expect("the runs are fired");
    firing.iter().for_each(tokio::task::JoinHandle::abort);
    for task in firing {
        let _ = task.await;
    }
    let filter = geartrain_core::Filter { terms: vec![Term::State(FilterState::Waiting)] };
    let Reply::Select(page) =
        one(&*backends[0], Select { filter, after: None, count: Count::new(1_000).expect("few") }).await
    else {
        panic!("it selects jobs")
    };
    let mut runs: Vec<Timestamp> = Vec::new();
    for job in &page.jobs {
        let Reply::Get(Some(job)) = one(&*backends[0], geartrain_core::Get { jid: job.jid.clone() }).await
        else {
            panic!("it is there")
        };
        assert_eq!(job.spawned_from, Some(jid.clone()));
        runs.push(job.history[0].when);
    }
    let Reply::Periodics(found) = one(&*backends[0], Periodics::one(jid)).await else {
        panic!("it is there")
    };
    assert_eq!(runs.len() as u64, found.periodics[0].count, "every number is a job");
    let span = found.periodics[0].next.expect("it goes on") - now;
    assert_eq!((span.get() / 0.05).round() as usize, runs.len(), "one job for each run");
}
