//! A pop that is dropped loses no job, on a server and through the socket file of a directory.

use std::sync::{Arc, mpsc};

use geartrain::{RedisBackend, connect};
use geartrain_core::{Backend, SystemClock};
use geartrain_resp::{Front, Options};
use geartrain_store::StoreBackend;
use geartrain_testkit::cancellation::{Return, cancel_pops, drop_backends};
use geartrain_testkit::scaled;
use pollster::block_on;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Runs a server while `test` runs with its URL.
fn with_server(test: impl FnOnce(&str)) {
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let (address, addresses) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            address.send(listener.local_addr().unwrap()).unwrap();
            let clock = Arc::new(SystemClock);
            let store = StoreBackend::in_memory(clock.clone()).unwrap();
            Front::new(Arc::new(store), clock, Options::default()).serve_tcp(listener, stop).await;
        });
    });
    test(&format!("redis://{}", addresses.recv().unwrap()));
    drop(_stop);
    thread.join().unwrap();
}

fn driver(url: &str) -> Arc<dyn Backend> {
    Arc::new(block_on(RedisBackend::connect(url.parse().unwrap())).unwrap())
}

#[test]
fn a_dropped_pop_returns_its_jobs_to_a_server() {
    with_server(|url| cancel_pops(&driver(url), scaled(1_000, 100_000), Return::Soon));
}

#[test]
fn a_client_that_is_dropped_after_its_pop_returns_the_jobs_to_a_server() {
    with_server(|url| drop_backends(&driver(url), scaled(50, 1_000), || driver(url)));
}

#[test]
fn a_dropped_pop_returns_its_jobs_through_a_socket_file() {
    let directory = std::env::temp_dir().join(format!("geartrain-cancel-{}", std::process::id()));
    let url = format!("embedded:{}?sync=never", directory.display());
    let owner = block_on(connect(&url)).unwrap();
    let forwarded = || {
        let client = block_on(connect(&url)).unwrap();
        assert!(!client.is_own_directory());
        client.backend().clone()
    };
    cancel_pops(&forwarded(), scaled(1_000, 100_000), Return::Soon);
    drop_backends(owner.backend(), scaled(50, 1_000), forwarded);
    drop(owner);
    std::fs::remove_dir_all(directory).unwrap();
}
