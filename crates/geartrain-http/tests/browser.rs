//! The dashboard in Chromium, where the router is part of another program.

use std::sync::Arc;

use geartrain_core::SystemClock;
use geartrain_http::Options;
use geartrain_store::StoreBackend;
use geartrain_testkit::peers::browse;
use tokio::net::TcpListener;

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_works_under_a_prefix() {
    let backend = Arc::new(StoreBackend::in_memory(Arc::new(SystemClock)).unwrap());
    let app = axum::Router::new()
        .route("/", axum::routing::get(async || "the program's own page"))
        .nest("/ops/queue", geartrain_http::router(backend, Options::default()));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let home = format!("http://{}/ops/queue", listener.local_addr().unwrap());
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let browse = move || browse("prefix.mjs", &[&home], |line| panic!("unknown: {line}"));
    tokio::task::spawn_blocking(browse).await.unwrap();
    server.abort();
}
