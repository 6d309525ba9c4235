//! Hosts, origins, passwords, bodies.

use std::sync::Arc;
use std::time::Duration;

use geartrain_front::{AUTHENTICATE_WITHIN, Admission};
use geartrain_http::{AccessControl, Options};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::{Messages, Server};

const JSON: &str = "Content-Type: application/json\r\n";

#[tokio::test]
async fn requests_under_other_names_are_refused() {
    let server =
        Server::with(Options { hosts: vec!["queue.example".to_owned()], ..Options::default() }).await;
    for (host, status) in [
        ("Host: evil.example\r\n", 403),
        ("Host: localhost.evil.example:7410\r\n", 403),
        ("Host: queue.example\r\n", 200),
        ("Host: [::1]:7410\r\n", 200),
    ] {
        let response = server.send_with("GET", "/healthz", host, b"").await;
        assert_eq!(response.status, status, "{host}");
    }
    server.end().await;
}

#[tokio::test]
async fn a_page_of_another_site_can_change_nothing() {
    let server = Server::start().await;
    let put = br#"{"klass":"k"}"#;
    for headers in [
        format!("{JSON}Origin: http://evil.example\r\n"),
        format!("{JSON}Sec-Fetch-Site: cross-site\r\n"),
        "Sec-Fetch-Site: cross-site\r\n".to_owned(),
    ] {
        let response = server.send_with("POST", "/v1/queues/q/jobs", &headers, put).await;
        assert_eq!(response.refusal(), (403, "cross-origin".to_owned()), "{headers}");
    }
    // The types that a form can send.
    for content_type in
        ["", "Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n"]
    {
        let response = server.send_with("POST", "/v1/queues/q/jobs", content_type, put).await;
        assert_eq!(response.refusal(), (415, "not-json-content".to_owned()), "{content_type}");
    }
    assert_eq!(server.ask("GET", "/v1/queues", "").await, serde_json::json!([]));
    server.end().await;
}

#[tokio::test]
async fn a_password_is_required_of_every_request_about_the_queue() {
    let server = Server::with(Options {
        access: Arc::new(AccessControl::open().with_password("secret")),
        ..Options::default()
    })
    .await;
    for path in ["/v1/queues", "/v1/events", "/metrics", "/v1/nothing"] {
        let response = server.send("GET", path, "").await;
        assert_eq!(response.refusal(), (401, "unauthorized".to_owned()), "{path}");
        assert!(response.head.contains("www-authenticate: bearer"), "{}", response.head);
    }
    for wrong in
        ["Authorization: Bearer wrong\r\n", "Authorization: Basic secret\r\n", "Authorization: secret\r\n"]
    {
        assert_eq!(server.send_with("GET", "/v1/queues", wrong, b"").await.status, 401, "{wrong}");
    }
    let right = "Authorization: Bearer secret\r\n";
    assert_eq!(server.send_with("GET", "/v1/queues", right, b"").await.status, 200);
    assert_eq!(server.send("GET", "/healthz", "").await.status, 200);
    server.end().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let server = Server::with(Options { body_bytes_max: 100, ..Options::default() }).await;
    let body = format!(r#"{{"klass":"k","payload":"{}"}}"#, "x".repeat(100));
    assert_eq!(server.refused("POST", "/v1/queues/q/jobs", &body).await, (413, "too-large".to_owned()));
    server.end().await;
}

#[tokio::test]
async fn replies_tell_browsers_to_keep_and_frame_nothing() {
    let server = Server::start().await;
    let response = server.send("GET", "/v1/queues", "").await;
    for header in ["cache-control: no-store", "x-content-type-options: nosniff", "x-frame-options: deny"] {
        assert!(response.head.contains(header), "{}", response.head);
    }
    assert!(!response.head.contains("access-control-"), "{}", response.head);
    server.end().await;
}

/// Reads until the connection ends, with or without an error.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn a_slow_head_or_body_ends_the_request() {
    let (head_timeout, body_timeout) = (Duration::from_millis(50), Duration::from_millis(50));
    let server = Server::with(Options { head_timeout, body_timeout, ..Options::default() }).await;
    let mut head = TcpStream::connect(server.address).await.unwrap();
    head.write_all(b"GET /v1/queues HTTP/1.1\r\nHost: localh").await.unwrap();
    // Closed, with or without a response.
    let answer = rest(&mut head).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    let mut body = TcpStream::connect(server.address).await.unwrap();
    let request =
        format!("POST /v1/batch HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: 100\r\n\r\n{{");
    body.write_all(request.as_bytes()).await.unwrap();
    let answer = rest(&mut body).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("slow-request"), "{answer}");
    server.end().await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_disconnected() {
    let write_timeout = Duration::from_millis(50);
    let admission = Admission::with_limits(1, AUTHENTICATE_WITHIN);
    let server = Server::with(Options { write_timeout, admission, ..Options::default() }).await;
    // More than the buffers of both kernels hold.
    let payload = "x".repeat(32 << 20);
    let put = format!(r#"{{"klass":"k","jid":"j1","payload":"{payload}"}}"#);
    assert_eq!(server.send("POST", "/v1/queues/q/jobs", &put).await.status, 200);
    let unread = server.open("GET", "/v1/jobs/j1", "", b"").await;
    // There is one connection at a time, so this one is answered when the other was closed.
    let answered = async {
        loop {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            // Fails on a connection that is refused.
            let _ = stream
                .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                .await;
            let answer = rest(&mut stream).await;
            if answer.starts_with("HTTP/1.1 200") {
                return;
            }
        }
    };
    answered.await;
    drop(unread);
    server.end().await;
}

#[tokio::test]
async fn too_many_connections_are_refused_until_one_ends() {
    let admission = Admission::with_limits(2, AUTHENTICATE_WITHIN);
    let server = Server::with(Options { admission: admission.clone(), ..Options::default() }).await;
    let accept = "Accept: text/event-stream\r\n";
    let first = Messages::of(server.open("GET", "/v1/events", accept, b"").await).await;
    let _second = Messages::of(server.open("GET", "/v1/events", accept, b"").await).await;
    let mut third = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(rest(&mut third).await, "");
    drop(first);
    // The server notices by itself that a client has gone, since it also reads.
    while admission.admit(false).is_err() {
        tokio::task::yield_now().await;
    }
    server.end().await;
}

#[tokio::test]
async fn connections_without_a_key_are_closed() {
    let access = Arc::new(AccessControl::open().with_password("secret"));
    let admission = Admission::with_limits(100, Duration::from_millis(50));
    let server = Server::with(Options { access, admission, ..Options::default() }).await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(rest(&mut idle).await, "");
    server.end().await;
}

#[tokio::test]
async fn no_header_is_made_of_what_a_client_sends() {
    let server = Server::start().await;
    for path in [
        "/v1/queues/a%0d%0aSet-Cookie:%20x=y",
        "/v1/jobs/a%0d%0aX-Injected:%201",
        "/login?failed%0d%0aX-Injected:%201",
        "/%0d%0aX-Injected:%201",
    ] {
        let response = server.send("GET", path, "").await;
        let has_injected = response
            .head
            .lines()
            .any(|line| line.starts_with("x-injected") || line.starts_with("set-cookie"));
        assert!(!has_injected, "{path}: {}", response.head);
    }
    // A line end in a header ends the header; two hosts are one too many.
    let response =
        server.send_with("GET", "/v1/queues", "Host: localhost\r\nHost: evil.example\r\n", b"").await;
    assert_eq!(response.refusal(), (403, "bad-host".to_owned()));
    server.end().await;
}

#[tokio::test]
async fn no_path_leads_out_of_what_is_served() {
    let server = Server::start().await;
    for path in [
        "/../etc/passwd",
        "/assets/../../etc/passwd",
        "/assets/x/..%2f..%2f..%2fetc%2fpasswd",
        "/assets/x/%2e%2e/%2e%2e/etc/passwd",
        "/assets//etc/passwd",
        "/.%00/etc/passwd",
        "/v1/../../etc/passwd",
    ] {
        let response = server.send("GET", path, "").await;
        assert!(matches!(response.status, 400 | 404), "{path}: {} {}", response.status, response.body);
        assert!(!response.body.contains("root:"), "{path}");
    }
    server.end().await;
}

#[tokio::test]
async fn a_head_over_the_limit_is_refused() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    // The server may close before it was all written.
    let _ = stream.write_all(head.as_bytes()).await;
    let answer = rest(&mut stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    server.end().await;
}
