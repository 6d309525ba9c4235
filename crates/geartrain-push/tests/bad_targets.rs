//! Targets that are slow, endless, broken or not there.

use std::time::Duration;

use geartrain_push::{Push, PushOptions};
use geartrain_testkit::peers::free_port;

use crate::attempts::{attempt, job, push, retry, send};
use crate::server::{Server, Step, response};

fn patient_for(timeout: Duration) -> PushOptions {
    let mut options = PushOptions::default();
    options.timeout = timeout;
    options
}

const SHORT: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_target_without_an_answer_times_out() {
    let silent: [fn() -> Vec<Step>; 2] =
        [|| vec![Step::Hang], || vec![Step::Send(b"HTTP/1.1 200 OK\r\nX-Slow: ".to_vec()), Step::Hang]];
    for steps in silent {
        let server = Server::start(move |_| steps()).await;
        let url = server.url("/slow");
        let message = format!("POST {url} took longer than 200ms");
        assert_eq!(push(&url, patient_for(SHORT)).await, retry("mail-http-timeout", &message));
    }
}

#[tokio::test]
async fn a_slow_body_times_out_but_the_status_of_an_error_counts() {
    let begun = |status: &str| format!("HTTP/1.1 {status}\r\nContent-Length: 100\r\n\r\nbegun").into_bytes();
    let bytes = begun("200 OK");
    let server = Server::start(move |_| vec![Step::Send(bytes.clone()), Step::Hang]).await;
    let url = server.url("/");
    let message = format!("POST {url} took longer than 200ms after 200 OK");
    assert_eq!(push(&url, patient_for(SHORT)).await, retry("mail-http-timeout", &message));

    let bytes = begun("400 Bad Request");
    let server = Server::start(move |_| vec![Step::Send(bytes.clone()), Step::Hang]).await;
    let verdict = push(&server.url("/"), patient_for(SHORT)).await;
    assert_eq!(verdict, retry("mail-http-400", "the target answered 400 Bad Request: begun"));
}

#[tokio::test]
async fn a_body_without_end_stops_at_the_limit() {
    let head = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
    let endless = move |_: &_| vec![Step::Send(head.clone()), Step::SendForever(vec![b'x'; 65_536])];
    let server = Server::start(endless).await;
    let mut options = PushOptions::default();
    options.response_bytes_max = 1_000_000;
    let url = server.url("/");
    let message = format!("POST {url}: the body after 200 OK is longer than 1000000 bytes");
    assert_eq!(push(&url, options.clone()).await, retry("mail-http-body", &message));

    // The same for one whose length is known beforehand, and nothing of it is read.
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000001\r\n\r\n".to_vec();
    let server = Server::start(move |_| vec![Step::Send(head.clone()), Step::Hang]).await;
    let url = server.url("/");
    let message = format!("POST {url}: the body after 200 OK is longer than 1000000 bytes");
    assert_eq!(push(&url, options.clone()).await, retry("mail-http-body", &message));

    // The body of an error may be endless too.
    let head = b"HTTP/1.1 500 Oops\r\n\r\n".to_vec();
    let server =
        Server::start(move |_| vec![Step::Send(head.clone()), Step::SendForever(vec![b'x'; 65_536])]).await;
    let message = format!("the target answered 500 Internal Server Error: {}…", "x".repeat(500));
    assert_eq!(push(&server.url("/"), options).await, retry("mail-http-500", &message));
}

#[tokio::test]
async fn a_body_of_exactly_the_limit_is_accepted() {
    let server = Server::answering("200 OK", "", "12345").await;
    let mut options = PushOptions::default();
    options.response_bytes_max = 5;
    assert_eq!(push(&server.url("/"), options.clone()).await, "complete 12345");
    options.response_bytes_max = 4;
    assert!(push(&server.url("/"), options).await.contains("mail-http-body"));
}

#[tokio::test]
async fn connections_that_break_retry() {
    let url = format!("http://127.0.0.1:{}/", free_port());
    let verdict = push(&url, PushOptions::default()).await;
    let connection = r#"Retry { delay: None }, group: Some("mail-http-connection"), message: "POST "#;
    assert!(verdict.starts_with(connection) && verdict.contains("Connection refused"), "{verdict}");

    for bytes in [&b""[..], b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"]
    {
        let server = Server::start(move |_| vec![Step::Send(bytes.to_vec()), Step::Close]).await;
        let verdict = push(&server.url("/"), PushOptions::default()).await;
        assert!(verdict.starts_with(connection), "{verdict}");
    }
}

#[tokio::test]
async fn a_connection_that_the_target_closes_is_replaced() {
    let bytes = response("200 OK", "Connection: close\r\n", "ok");
    let server = Server::start(move |_| vec![Step::Send(bytes.clone()), Step::Close]).await;
    let sender = Push::new(&server.url("/"), PushOptions::default()).unwrap();
    for number in 1..=5 {
        let context = attempt(job("j1", "1")).await;
        assert_eq!(send(sender.clone(), context).await, "complete ok");
        assert_eq!(server.connections(), number);
    }
}
