//! The client over TLS: which servers it trusts. The certificates are for tests only; the authority's key was
//! not kept.
use crate::common;
use crate::workers;

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use common::Server;
use geartrain_front::{Admission, Tls, TlsFiles};
use geartrain_gearman::client::GearmanBackend;
use geartrain_gearman::front::Options;
use workers::{complete, connect, jid_of, pop_one, put, run};

fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/fixtures/tls", name].iter().collect()
}

async fn encrypted() -> Server {
    encrypted_with(Options::default()).await
}

async fn encrypted_with(options: Options) -> Server {
    let files =
        TlsFiles { certificate: fixture("server.pem"), key: fixture("server.key"), authorities: None };
    Server::with(Options { tls: Some(Tls::load(files).unwrap()), ..options }).await
}

#[tokio::test]
async fn a_server_signed_by_a_trusted_authority_is_accepted() {
    let server = encrypted().await;
    let backend =
        connect(&format!("gearmans://{}?ca={}", server.address, fixture("authority.pem").display())).await;
    let jid = jid_of(&backend, put("resize", "cat")).await;
    let job = pop_one(&backend, "resize").await.unwrap();
    assert_eq!(job.jid, jid);
    run(&backend, complete(&job, "")).await;
}

#[tokio::test]
async fn an_untrusted_server_is_refused() {
    let server = encrypted().await;
    for (ca, why) in [
        (String::new(), "invalid peer certificate"),
        (format!("?ca={}", fixture("server.key").display()), "has no certificates"),
        ("?ca=/nowhere/at/all".to_owned(), "/nowhere/at/all has no certificates"),
    ] {
        let url = format!("gearmans://{}{ca}", server.address).parse().unwrap();
        let error = GearmanBackend::connect(url).await.err().unwrap();
        let said = error.source().unwrap().to_string();
        assert!(said.contains(why), "{said}");
    }
}

/// With TLS a client sends first, so a silent one is closed, and so is one that stops in mid-handshake.
#[tokio::test]
async fn a_connection_that_does_not_finish_the_handshake_in_time_is_closed() {
    let admission = Admission::with_limits(10, Duration::from_millis(100));
    let server = encrypted_with(Options { admission, ..Options::default() }).await;
    let backend =
        connect(&format!("gearmans://{}?ca={}", server.address, fixture("authority.pem").display())).await;
    let mut silent = server.peer().await;
    assert!(silent.is_closed().await);
    let mut slow = server.peer().await;
    slow.raw(b"\x16\x03\x01\x02\x00").await;
    assert!(slow.is_closed().await);
    // A client that has finished the handshake may be silent for ever.
    jid_of(&backend, put("resize", "cat")).await;
}
