//! A Redis master that is stopped (SIGSTOP) while its connections stay open: no call waits longer than
//! `patience`, and what the sentinels' new master does not have was not acknowledged.

use crate::peers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use geartrain_core::{
    Backend, BackendError, Call, GetMany, Jid, Klass, Pop, Put, QueueName, Reply, Seconds, WorkerName,
};
use geartrain_redis::RedisBackend;
use geartrain_testkit::peers::RedisServer;
use geartrain_testkit::scaled;
use peers::{SentinelGroup, until};
use pollster::block_on;

/// Clients that put jobs, for each URL.
const CLIENTS: usize = 4;

/// Pause of a client between puts. In the large size the nodes would otherwise hold so many jobs in the end
/// that a node takes minutes to become a replica.
fn pace() -> Duration {
    scaled(Duration::from_millis(1), Duration::from_millis(50))
}

/// `patience=` of these tests, in seconds.
const PATIENCE: u64 = 10;

/// How much longer a call may take on a loaded machine.
const SLACK: Duration = Duration::from_secs(5);

/// Without `?replicas=`, a put acknowledged so shortly before the master stopped may be lost: replication is
/// asynchronous.
const WINDOW: Duration = Duration::from_secs(1);

/// How long a reply may be on its way from a node that has stopped meanwhile. No sentinel promotes another
/// that fast.
const READ_MAX: Duration = Duration::from_millis(500);

fn connect(url: &str) -> Arc<dyn Backend> {
    Arc::new(block_on(RedisBackend::connect(url.parse().unwrap())).unwrap())
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

/// Results of the clients of one URL.
#[derive(Default, Clone)]
struct Seen {
    /// Acknowledged puts, with their times.
    put: Vec<(Jid, Instant)>,
    errors: usize,
    /// The longest call, beyond the time that it was asked to wait.
    longest: Duration,
}

/// Clients that put jobs, and one with a parked pop that never gets a job.
struct Load {
    seen: Arc<Mutex<Seen>>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(url: &str) -> Load {
        let (seen, over) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let shared = connect(url);
        let mut threads = Vec::new();
        for client in 0..CLIENTS {
            // Half of them share a connection, as the connections of one server do.
            let backend = if client % 2 == 0 { shared.clone() } else { connect(url) };
            let (seen, over) = (seen.clone(), over.clone());
            threads.push(std::thread::spawn(move || put_until_over(client, &*backend, &seen, &over)));
        }
        let (seen_here, over_here) = (seen.clone(), over.clone());
        threads.push(std::thread::spawn(move || wait_until_over(&*shared, &seen_here, &over_here)));
        Load { seen, over, threads }
    }

    /// Waits for so many more acknowledged puts.
    fn goes_on(&self, more: usize) {
        let target = self.seen.lock().unwrap().put.len() + more;
        until("puts are acknowledged", || self.seen.lock().unwrap().put.len() >= target);
    }

    fn so_far(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }

    fn finish(self) -> Seen {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

fn put_until_over(client: usize, backend: &dyn Backend, seen: &Mutex<Seen>, over: &AtomicBool) {
    for number in 0_u64.. {
        if over.load(Ordering::Relaxed) {
            return;
        }
        std::thread::sleep(pace());
        let jid = Jid::new(format!("{client}-{number}")).unwrap();
        let put = Put::new(queue("load"), jid.clone(), Klass::new("k").unwrap(), "{}");
        let begun = Instant::now();
        let answer = block_on(backend.execute(vec![Call::from(put)]));
        let mut seen = seen.lock().unwrap();
        seen.longest = seen.longest.max(begun.elapsed());
        match answer {
            Ok(_) => seen.put.push((jid, Instant::now())),
            Err(_) => seen.errors += 1,
        }
    }
}

fn wait_until_over(backend: &dyn Backend, seen: &Mutex<Seen>, over: &AtomicBool) {
    let pop = Pop::new(queue("empty"), WorkerName::new("w").unwrap());
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let answer = block_on(backend.pop_or_wait(pop.clone(), Seconds::from(1)));
        let mut seen = seen.lock().unwrap();
        seen.longest = seen.longest.max(begun.elapsed().saturating_sub(Duration::from_secs(1)));
        seen.errors += usize::from(answer.is_err());
    }
}

/// Acknowledged puts that are missing.
fn lost(url: &str, seen: &Seen) -> Vec<(Jid, Instant)> {
    let backend = connect(url);
    let mut lost = Vec::new();
    for puts in seen.put.chunks(1_000) {
        let jids = puts.iter().map(|(jid, _)| jid.clone()).collect();
        let mut answers = block_on(backend.execute(vec![Call::from(GetMany { jids })])).unwrap();
        let Reply::GetMany(jobs) = answers.remove(0).unwrap() else { panic!("not the answer to GetMany") };
        let found: std::collections::HashSet<Jid> = jobs.into_iter().map(|job| job.jid).collect();
        lost.extend(puts.iter().filter(|(jid, _)| !found.contains(jid)).cloned());
    }
    lost
}

/// Only puts acknowledged shortly before one of these times may be lost.
fn check(url: &str, seen: &Seen, frozen_at: &[Instant]) {
    let lost = lost(url, seen);
    let (put, errors, longest) = (seen.put.len(), seen.errors, seen.longest);
    eprintln!("{put} puts acknowledged, {} lost, {errors} errors, longest call {longest:?}", lost.len());
    for (jid, acknowledged) in &lost {
        // The client reads a reply a little after the node sent it, which was before the node stopped.
        let is_in_window =
            |froze: &Instant| *acknowledged + WINDOW > *froze && *acknowledged < *froze + READ_MAX;
        let age = acknowledged.elapsed();
        assert!(frozen_at.iter().any(is_in_window), "{jid}, acknowledged {age:?} ago, is lost");
    }
}

#[test]
fn a_frozen_master_is_left_for_the_new_one_and_no_acknowledged_put_goes_to_it_after_it_thaws() {
    let (rounds, frozen_for) = scaled((1, Duration::from_secs(3)), (10, Duration::from_secs(60)));
    let group = SentinelGroup::start(&[], &[]);
    let at = |query: &str| format!("{}?patience={PATIENCE}&prefix={query}", group.url());
    let (confirmed_at, plain_at) = (at("c:&replicas=1"), at("p:"));
    let (confirmed, plain) = (Load::start(&confirmed_at), Load::start(&plain_at));
    let mut frozen_at = Vec::new();
    for round in 0..rounds {
        let (old, new) = (round % 2, (round + 1) % 2);
        confirmed.goes_on(200);
        plain.goes_on(200);
        group.nodes[old].freeze();
        frozen_at.push(Instant::now());
        group.until_master(new);
        // With ?replicas=1 nothing is acknowledged now: no replica can confirm it.
        plain.goes_on(200);
        let froze = *frozen_at.last().unwrap();
        until("the master was frozen long enough", || froze.elapsed() > frozen_for);
        group.nodes[old].thaw();
        // The old master accepts writes now, until it is made a replica.
        plain.goes_on(200);
        if scaled(true, false) {
            group.make_replica(old, new);
        }
        group.until_replica(old);
        confirmed.goes_on(200);
        plain.goes_on(200);
        check(&confirmed_at, &confirmed.so_far(), &[]);
        check(&plain_at, &plain.so_far(), &frozen_at);
    }
    let (confirmed, plain) = (confirmed.finish(), plain.finish());
    for seen in [&confirmed, &plain] {
        assert!(seen.longest <= Duration::from_secs(PATIENCE) + SLACK, "a call took {:?}", seen.longest);
    }
    check(&confirmed_at, &confirmed, &[]);
    check(&plain_at, &plain, &frozen_at);
}

#[test]
fn a_call_to_a_frozen_redis_fails_after_patience_and_the_next_one_is_answered_when_it_thaws() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&format!("{}?patience=2", redis.url()));
    let put = |jid: &str| {
        let put = Put::new(queue("q"), Jid::new(jid).unwrap(), Klass::new("k").unwrap(), "{}");
        block_on(backend.execute(vec![Call::from(put)]))
    };
    put("before").unwrap();
    redis.freeze();
    let answer = put("meanwhile");
    assert!(matches!(answer, Err(BackendError::Broken { .. })), "{answer:?}");
    let pop = Pop::new(queue("empty"), WorkerName::new("w").unwrap());
    let waited = block_on(backend.pop_or_wait(pop, Seconds::from(1)));
    assert!(matches!(waited, Err(BackendError::Broken { .. })), "{waited:?}");
    redis.thaw();
    put("after").unwrap();
}
