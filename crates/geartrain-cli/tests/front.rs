//! Protection of a server from its clients: HTTP requests are rejected, connections cannot exhaust the
//! store's file descriptors, and clients cannot flood the log.

use crate::sandbox::Sandbox;
use crate::server_process;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use geartrain::{Client, Jid};
use geartrain_testkit::scaled;
use pollster::block_on;
use server_process::{ServerProcess, until};

/// The timeout of answers that must come.
const TIMEOUT: Duration = Duration::from_secs(60);

fn connect(url: &str) -> Client {
    block_on(geartrain::connect(url)).unwrap()
}

fn open(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Reads until the connection ends, possibly with a reset, if the peer did not read everything.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    bytes
}

fn resp_port(server: &ServerProcess) -> u16 {
    server.address().rsplit(':').next().unwrap().parse().unwrap()
}

/// A packet that submits a job in the background.
fn submission(function: &str) -> Vec<u8> {
    let data = format!("{function}\0\0payload");
    [&b"\0REQ\0\0\0\x12"[..], &(data.len() as u32).to_be_bytes(), data.as_bytes()].concat()
}

/// A request as a browser sends it for `fetch` or a form.
fn http(method: &str, port: u16, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: keep-alive\r\nContent-Length: {}\r\n\
         Content-Type: text/plain;charset=UTF-8\r\nAccept: */*\r\nOrigin: http://evil.example\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

#[test]
fn a_web_page_cannot_send_commands_to_either_port() {
    let server = ServerProcess::start(&["--log", "warn", "--allow-flush", "--allow-shutdown"]);
    let client = connect(&server.url());
    block_on(client.put("kept", "k", "{}").jid("kept").into_future()).unwrap();
    let (resp, gearman) = (resp_port(&server), server.gearman_port());
    let calls = b"FLUSHALL\r\nEVAL \"\" 0 put 0 w stolen j k {} 0\r\n*1\r\n$8\r\nFLUSHALL\r\n".to_vec();
    let lines = [&submission("stolen")[..], b"create function stolen\ncancel job kept\nshutdown\n"].concat();
    for (port, body) in [(resp, &calls), (gearman, &lines)] {
        for method in ["POST", "GET", "PUT", "OPTIONS", "HEAD", "DELETE", "PATCH", "post"] {
            let mut stream = open(port);
            stream.write_all(&http(method, port, body)).unwrap();
            rest(stream);
        }
        // Only the header, in pieces, and in the middle of a connection.
        let request = [b"Host: 127.0.0.1\r\n", &body[..]].concat();
        let mut stream = open(port);
        for byte in &request {
            if stream.write_all(&[*byte]).is_err() {
                break;
            }
        }
        rest(stream);
        let fine = if port == resp { &b"PING\r\n"[..] } else { b"version\n" };
        let mut stream = open(port);
        stream.write_all(&[fine, &http("POST", port, body)].concat()).unwrap();
        let answer = rest(stream);
        assert!(answer.starts_with(if port == resp { b"+PONG\r\n" } else { b"OK 1" }), "{answer:?}");
    }
    let queues = block_on(client.queues()).unwrap();
    let names: Vec<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
    assert_eq!(names, ["kept"]);
    assert!(block_on(client.get(&Jid::new("kept").unwrap())).unwrap().is_some());
    until("a warning in the log", || !server.logged("possible attack").is_empty());
    assert!(server.logged("possible attack").len() < 20, "once a second, and not once for each request");
}

/// The descriptor limit of this process, and how many connections it may open.
fn affordable(wanted: usize) -> (u64, usize) {
    let limit = geartrain_server::raise_descriptor_limit().unwrap();
    (limit, wanted.min(usize::try_from(limit).unwrap().saturating_sub(200)))
}

/// Submits jobs that fill several WAL segments, so that files have to be opened.
fn assert_writes_work(client: &Client, round: usize) {
    let payload = format!("\"{}\"", "x".repeat(2 << 20));
    for number in 0..scaled(16, 64) {
        let jid = format!("job-{round}-{number}");
        block_on(client.put("q", "k", payload.as_str()).jid(&jid).into_future()).unwrap();
    }
}

#[test]
fn thousands_of_idle_connections_do_not_stop_writes() {
    let (limit, count) = affordable(scaled(1_500, 12_000));
    let server = ServerProcess::start_under(Some((1_024.min(limit), 16_000.min(limit))), &[]);
    let ports = [resp_port(&server), server.gearman_port()];
    let mut idle: Vec<TcpStream> = (0..count).map(|number| open(ports[number % 2])).collect();
    let client = connect(&server.url());
    assert_writes_work(&client, 0);
    // None of them was refused.
    for (number, stream) in idle.iter_mut().enumerate() {
        let (asked, expected): (&[u8], &[u8]) = match number % 2 {
            0 => (b"PING\r\n", b"+PONG\r\n"),
            _ => (b"verbose\n", b"OK INFO\n"),
        };
        stream.write_all(asked).unwrap();
        let mut answer = vec![0; expected.len()];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, expected);
    }
    assert_writes_work(&client, 1);
}

#[test]
fn connections_beyond_the_limit_are_refused_and_writes_still_work() {
    let (limit, count) = affordable(1_500);
    let hard = 1_024.min(limit);
    let server = ServerProcess::start_under(Some((hard, hard)), &["--log", "warn"]);
    let ports = [resp_port(&server), server.gearman_port()];
    let client = connect(&server.url());
    assert_writes_work(&client, 0);
    let idle: Vec<TcpStream> = (0..count).map(|number| open(ports[number % 2])).collect();
    assert_writes_work(&client, 1);
    // Connections are accepted in order: once a later one is refused, the earlier ones are decided.
    let mut last = open(ports[0]);
    let mut text = String::new();
    last.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("-ERR there are ") && text.contains("raise the limit of open files"), "{text}");
    assert!(rest(open(ports[1])).is_empty());
    assert!(
        server.logged("cannot be accepted").is_empty(),
        "the surplus was refused before descriptors ran out"
    );
    assert!((1..30).contains(&server.logged("connection is refused").len()));
    drop(idle);
    // New connections are accepted once the server has noticed the closed ones.
    until("room for a new connection", || {
        let mut stream = open(ports[0]);
        let mut answer = [0; 7];
        stream.write_all(b"PING\r\n").is_ok()
            && stream.read_exact(&mut answer).is_ok()
            && answer == *b"+PONG\r\n"
    });
    assert_writes_work(&client, 2);
}

#[test]
fn unauthenticated_connections_do_not_block_others() {
    let (limit, count) = affordable(1_500);
    let hard = 1_024.min(limit);
    let sandbox = Sandbox::new();
    let file = sandbox.file("password", "secret");
    let arguments = ["--password-file", &file, "--gearman", "off", "--log", "warn"];
    let server = ServerProcess::start_under(Some((hard, hard)), &arguments);
    let port = resp_port(&server);
    let strangers: Vec<TcpStream> = (0..count).map(|_| open(port)).collect();
    let client = connect(&format!("redis://:secret@{}", server.address()));
    assert_writes_work(&client, 0);
    // The oldest are closed, even before their timeout.
    let first = strangers.into_iter().next().unwrap();
    assert!(rest(first).is_empty());
    assert!(server.logged("cannot be accepted").is_empty());
    // Wrong passwords are logged, but rate limited.
    let mut guesser = open(port);
    guesser.write_all(&b"AUTH guess\r\n".repeat(8)).unwrap();
    let mut answers =
        vec![0; 8 * b"-WRONGPASS invalid username-password pair or user is disabled.\r\n".len()];
    guesser.read_exact(&mut answers).unwrap();
    until("a warning in the log", || !server.logged("wrong password or key from 127.0.0.1").is_empty());
    assert!(server.logged("wrong password").len() < 8);
}
