//! What a target receives.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use geartrain_core::Priority;
use geartrain_push::{Push, PushOptions, Secret};

use crate::attempts::{attempt, attempt_until, job, push, send};
use crate::server::Server;

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

#[tokio::test]
async fn the_body_is_the_payload_and_headers_are_the_facts() {
    let server = Server::answering("200 OK", "", "done").await;
    let mut put = job("j1", r#"{"to":"a"}"#);
    put.priority = Some(Priority::new(7.0).unwrap());
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    put.options.get_or_insert_default().traceparent = Some(traceparent.parse().unwrap());
    let hour = Duration::from_secs(3_600);
    let context = attempt_until(put, Some(Instant::now() + hour)).await;
    let sender = Push::new(&server.url("/jobs?key=1"), PushOptions::default()).unwrap();
    assert_eq!(send(sender, context).await, "complete done");

    let requests = server.requests();
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!(request.line, "POST /jobs?key=1 HTTP/1.1");
    assert_eq!(request.body, br#"{"to":"a"}"#);
    for (name, value) in [
        ("content-type", "application/json"),
        ("geartrain-jid", "j1"),
        ("geartrain-queue", "mail"),
        ("geartrain-klass", "welcome"),
        ("geartrain-attempt", "1"),
        ("geartrain-priority", "7"),
        ("traceparent", traceparent),
        ("webhook-id", "j1"),
        ("user-agent", concat!("geartrain/", env!("CARGO_PKG_VERSION"))),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
    assert_eq!(request.header("webhook-signature"), None);
    let number = |name| request.header(name).unwrap().parse::<u64>().unwrap();
    let left = number("geartrain-deadline") - number("webhook-timestamp");
    assert!((3_000..=3_600).contains(&left), "{left} s left of an hour");
}

#[tokio::test]
async fn python_verifies_the_signatures_of_both_secrets() {
    let server = Server::answering("204 No Content", "", "").await;
    let mut options = PushOptions::default();
    options.secrets = vec![Secret::new(NEW).unwrap(), Secret::new(OLD).unwrap()];
    // Names that a header cannot carry, and a dot that would make the signed text ambiguous.
    let context = attempt(job("re\r\nport.1", vec![0, 255, b'\n'])).await;
    let sender = Push::new(&server.url("/"), options).unwrap();
    assert_eq!(send(sender, context).await, "complete ");

    let request = server.requests().pop().unwrap();
    assert_eq!(request.header("geartrain-jid"), Some("re%0D%0Aport.1"));
    assert_eq!(request.header("webhook-id"), Some("re%0D%0Aport%2E1"));
    assert_eq!(request.header("content-type"), Some("application/octet-stream"));
    let timestamp = request.header("webhook-timestamp").unwrap();
    let age =
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() - timestamp.parse::<u64>().unwrap();
    assert!(age < 300, "the timestamp is {age} s old");

    let script = r#"
import base64, hashlib, hmac, sys
secret, id, timestamp, body = sys.argv[1:]
key = base64.b64decode(secret.removeprefix("whsec_"))
text = f"{id}.{timestamp}.".encode() + bytes.fromhex(body)
print("v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode(), end="")
"#;
    let sign = |secret: &str| {
        let body: String = request.body.iter().map(|byte| format!("{byte:02x}")).collect();
        let python = Command::new("python3")
            .args(["-c", script, secret, request.header("webhook-id").unwrap(), timestamp, &body])
            .output()
            .unwrap();
        assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
        String::from_utf8(python.stdout).unwrap()
    };
    let both = format!("{} {}", sign(NEW), sign(OLD));
    assert_eq!(request.header("webhook-signature"), Some(both.as_str()));
}

#[tokio::test]
async fn connections_are_used_again_and_many_requests_run_at_once() {
    let server = Server::answering("200 OK", "", "ok").await;
    let sender = Push::new(&server.url("/"), PushOptions::default()).unwrap();
    for number in 0..10 {
        let context = attempt(job(&format!("j{number}"), "1")).await;
        assert_eq!(send(sender.clone(), context).await, "complete ok");
    }
    assert_eq!(server.connections(), 1);

    // No request is answered before all have arrived.
    let all = std::sync::Arc::new(tokio::sync::Barrier::new(50));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let target = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut open = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let all = std::sync::Arc::clone(&all);
            open.spawn(async move {
                let mut buffer = vec![0; 4_096];
                let read = stream.read(&mut buffer).await.unwrap();
                assert!(read > 0);
                all.wait().await;
                let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
                stream.write_all(response).await.unwrap();
            });
        }
        open.join_all().await;
    });
    let sender = Push::new(&url, PushOptions::default()).unwrap();
    let mut sent = tokio::task::JoinSet::new();
    for number in 0..50 {
        let context = attempt(job(&format!("j{number}"), "1")).await;
        sent.spawn(send(sender.clone(), context));
    }
    assert!(sent.join_all().await.iter().all(|verdict| verdict == "complete ok"));
    target.await.unwrap();
}

#[tokio::test]
async fn an_interrupted_attempt_closes_its_request_and_releases_the_job() {
    let server = Server::start(|_| vec![crate::server::Step::Hang]).await;
    let mut options = PushOptions::default();
    options.timeout = Duration::from_secs(3_600);
    let sender = Push::new(&server.url("/"), options).unwrap();
    let context = attempt(job("j1", "1")).await;
    let token = context.cancellation().clone();
    let sent = tokio::spawn(send(sender, context));
    while server.requests().is_empty() {
        tokio::task::yield_now().await;
    }
    token.cancel();
    assert_eq!(sent.await.unwrap(), r#"Release, group: None, message: "the request was interrupted""#);
}

#[tokio::test]
async fn three_secrets_are_refused() {
    let mut options = PushOptions::default();
    options.secrets = vec![Secret::new(NEW).unwrap(); 3];
    let error = Push::new("http://127.0.0.1/", options).unwrap_err();
    assert_eq!(error.to_string(), "at most two secrets can sign a request: the new one and the old one");
}

#[tokio::test]
async fn a_large_payload_arrives_whole() {
    let server = Server::start(|request| {
        let body = request.body.len().to_string();
        vec![crate::server::Step::Send(crate::server::response("200 OK", "", &body))]
    })
    .await;
    let sender = Push::new(&server.url("/"), PushOptions::default()).unwrap();
    let context = attempt(job("j1", vec![b'x'; 5_000_000])).await;
    assert_eq!(send(sender, context).await, "complete 5000000");
    assert_eq!(push(&server.url("/"), PushOptions::default()).await, "complete 10");
}
