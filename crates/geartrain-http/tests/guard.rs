//! Hosts, origins, passwords, bodies.

use geartrain_http::Options;

use crate::common::Server;

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
    let server = Server::with(Options { password: Some("secret".to_owned()), ..Options::default() }).await;
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
