//! What each response does to the job.

use geartrain_push::{ClientErrorPolicy, PushOptions};

use crate::attempts::{push, retry};
use crate::server::Server;

fn failing() -> PushOptions {
    let mut options = PushOptions::default();
    options.client_errors = ClientErrorPolicy::Fail;
    options
}

#[tokio::test]
async fn every_2xx_completes_with_its_body() {
    for (status, body) in [("200 OK", r#"{"sent":1}"#), ("202 Accepted", "later"), ("299 Odd", "")] {
        let server = Server::answering(status, "", body).await;
        assert_eq!(push(&server.url("/"), PushOptions::default()).await, format!("complete {body}"));
    }
}

#[tokio::test]
async fn a_server_error_retries_with_status_and_beginning_of_the_body() {
    let body = format!("Traceback\n{}", "x".repeat(100_000));
    let server = Server::answering("500 Internal Server Error", "", &body).await;
    let message = format!("the target answered 500 Internal Server Error: Traceback {}…", "x".repeat(490));
    assert_eq!(push(&server.url("/"), failing()).await, retry("mail-http-500", &message));
    let server = Server::answering("502 Bad Gateway", "", "").await;
    let message = "the target answered 502 Bad Gateway";
    assert_eq!(push(&server.url("/"), failing()).await, retry("mail-http-502", message));
}

#[tokio::test]
async fn retry_after_delays_the_retry_of_429_and_503_alone() {
    for (status, group, delay) in [
        ("429 Too Many Requests", "mail-http-429", "Some(7s)"),
        ("503 Service Unavailable", "mail-http-503", "Some(7s)"),
        ("500 Internal Server Error", "mail-http-500", "None"),
    ] {
        let server = Server::answering(status, "Retry-After: 7\r\n", "busy").await;
        let message = format!("the target answered {status}: busy");
        let expected = format!("Retry {{ delay: {delay} }}, group: Some({group:?}), message: {message:?}");
        assert_eq!(push(&server.url("/"), failing()).await, expected);
    }
    let date = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nRetry-After: Sun, 06 Nov 1994 08:51:37 GMT\r\n";
    let server = Server::answering("503 Service Unavailable", date, "").await;
    assert!(push(&server.url("/"), failing()).await.starts_with("Retry { delay: Some(120s) }"));
    let server = Server::answering("429 Too Many Requests", "Retry-After: soon\r\n", "").await;
    assert!(push(&server.url("/"), failing()).await.starts_with("Retry { delay: None }"));
}

#[tokio::test]
async fn other_client_errors_follow_the_policy() {
    let server = Server::answering("404 Not Found", "", "no route").await;
    let message = "the target answered 404 Not Found: no route";
    let default = push(&server.url("/"), PushOptions::default()).await;
    assert_eq!(default, retry("mail-http-404", message));
    let failed = format!("Fail, group: Some(\"mail-http-404\"), message: {message:?}");
    assert_eq!(push(&server.url("/"), failing()).await, failed);
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    // A loop: the location is the server itself.
    let server = Server::answering("307 Temporary Redirect", "Location: /again\r\n", "").await;
    let message =
        "the target answered 307 Temporary Redirect, and redirects are not followed (Location: /again)";
    let default = push(&server.url("/"), PushOptions::default()).await;
    assert_eq!(default, retry("mail-http-307", message));
    assert_eq!(server.requests().len(), 1);
    assert!(push(&server.url("/"), failing()).await.starts_with("Fail, group: Some(\"mail-http-307\")"));
    assert_eq!(server.requests().len(), 2);
}
