//! A worker process that is killed: its job comes back, and the counter of its function falls.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use geartrain_core::{Backend, Pop, RollCall, Seconds};
use geartrain_redis::gearmonkey::GearMonkeyBackend;
use geartrain_testkit::peers::{RedisServer, until};
use pollster::block_on;

use super::peer::Peer;
use super::{connect, jid, queue, registered, run, run_in, worker};

/// Set for a process of this test that is a worker: the port of the Redis.
const WORKER: &str = "GEARTRAIN_TEST_GEARMONKEY_WORKER";
const NAME: &str = "gearmonkey::killed::the_job_of_a_killed_worker_comes_back_and_the_count_falls";

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // SIGKILL; it fails only if the process has ended by itself.
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

/// Registers, takes a job, and never ends it.
fn work(port: u16) -> ! {
    let url = format!("gearmonkey+redis://127.0.0.1:{port}?lease=5");
    let backend = block_on(GearMonkeyBackend::connect(url.parse().unwrap())).unwrap();
    run(&backend, registered("killed", &["up"])).unwrap();
    let job = block_on(backend.pop_or_wait(Pop::new(queue("up"), worker("killed")), Seconds::from(60)));
    assert_eq!(job.unwrap().jobs.len(), 1);
    loop {
        std::thread::park_timeout(Duration::from_secs(60));
    }
}

#[test]
fn the_job_of_a_killed_worker_comes_back_and_the_count_falls() {
    if let Ok(port) = std::env::var(WORKER) {
        work(port.parse().unwrap());
    }
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, "?lease=5"), Peer::of(&redis));
    peer.accept("up");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(WORKER, redis.port().to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let killed = Killed(child);
    until("the worker is registered", || peer.workers("up") == 2);
    let id = peer.run("up", b"x", "high", 0);
    until("the worker has the job", || peer.status("up", &id).as_deref() == Some("busy"));
    drop(killed);
    assert_eq!(run_in(&*backend, 4.0, RollCall { queue: queue("up"), klass: None }), Ok(2), "not yet");

    // After the deadlines of the registration and of the lease, any of our processes notices.
    assert_eq!(run_in(&*backend, 16.0, RollCall { queue: queue("up"), klass: None }), Ok(1));
    assert_eq!(run_in(&*backend, 16.0, RollCall { queue: queue("up"), klass: None }), Ok(1), "once");
    assert_eq!(peer.status("up", &id).as_deref(), Some("idle"));
    assert_eq!(peer.pop("up"), Some((id.clone(), "high".to_owned())), "for any worker");
    peer.begin("up", &id);
    peer.finish("up", &id, "success", b"y");
    let job = run(&*backend, geartrain_core::Get { jid: jid(&format!("up:{id}")) }).unwrap().unwrap();
    assert_eq!(job.state.name(), geartrain_core::StateName::Complete);
}
