//! What the command prints, and its exit code, when a queue cannot be reached or a server cannot start: each
//! cause once, with what to do about it.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use geartrain_testkit::peers::{RedisServer, Scratch, free_port};
use geartrain_testkit::tls::Authority;

use crate::sandbox::Sandbox;
use crate::server_process::{ServerProcess, until};

/// A program that listens on a port and is no queue. Its thread ends with the test process.
fn stranger(serve: impl Fn(TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(serve));
    port
}

fn web_server() -> u16 {
    stranger(|mut stream| {
        let _ = stream.read(&mut [0; 1_024]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    })
}

/// Accepts connections and never answers.
fn silent_server() -> u16 {
    let (keep, kept) = std::sync::mpsc::channel();
    // The streams stay open as long as the channel exists.
    std::mem::forget(kept);
    stranger(move |stream| drop(keep.send(stream)))
}

const START: &str = "start a server with `geartrain server`, or name another queue with --url, such as \
     embedded:./geartrain-data";
const CHECK: &str = "check the password: in --password-file, in GEARTRAIN_PASSWORD, or in the URL; a server that \
     requires none refuses every password";
const GIVE: &str = "give the password: with --password-file FILE, in GEARTRAIN_PASSWORD, or as in \
     redis://:PASSWORD@HOST:PORT";
const NOT_RESP: &str = "the port does not speak RESP, or only with TLS: check the port, or write rediss://";
const NOT_TLS: &str = "the port does not speak TLS: write the URL with redis:// or gearman://";
const NETWORK: &str = "check the address and the port, and that no firewall is between";
const STORE: &str = "start it, or name another one with --store";
const AUTHORITY: &str =
    "if a private authority signed the certificate, name its file behind the URL: ?ca=FILE";
const IDENTITY: &str = "the server may require a client certificate: name its files behind the URL, as in \
     ?cert=FILE&key=FILE";

/// Runs the command. Its error is one line, which begins and ends like this.
fn assert_fails(sandbox: &Sandbox, arguments: &[&str], code: i32, begins: &str, ends: &str) {
    let (out, err, exit) = sandbox.try_run(arguments);
    assert_eq!((out.as_str(), exit), ("", code), "{arguments:?}: {err}");
    let line = err.strip_suffix('\n').unwrap_or(&err);
    assert!(!line.contains('\n'), "one line: {err}");
    assert!(
        line.starts_with(&format!("geartrain: {begins}")),
        "{arguments:?}\nsaid   {line}\nbegins {begins}"
    );
    assert!(line.ends_with(ends), "{arguments:?}\nsaid {line}\nends {ends}");
    assert_eq!(line.matches("cannot answer").count(), 0, "said by the rest of the sentence: {line}");
    assert!(!line.contains("ResponseError") && !line.contains("s3cret"), "{line}");
}

#[test]
fn a_client_that_cannot_connect_says_why_and_what_to_do() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("password", "s3cret");
    let protected = ServerProcess::start(&["--password-file", &file]);
    let open = ServerProcess::start(&[]);
    let acl = RedisServer::start(&["--user", "ann", "on", ">s3cret", "~*", "+ping"]);
    let (scratch, authority) = (Scratch::new("failures"), Authority::new());
    let path = |path: &Path| path.display().to_string();
    let (certificate, key) = authority.sign(&scratch, "server", "127.0.0.1");
    let (certificate, key) = (path(&certificate), path(&key));
    let other_key = path(&authority.sign(&scratch, "other", "127.0.0.1").1);
    let ca = path(&authority.write(&scratch, "ca.pem"));
    let tls = ["--resp-tls-cert", &certificate, "--resp-tls-key", &key];
    let encrypted = ServerProcess::start(&tls);
    let mutual = ServerProcess::start(&[&tls[..], &["--resp-tls-ca", &ca]].concat());
    let closed = free_port();
    let at = |scheme: &str, server: &ServerProcess| format!("{scheme}://{}", server.address());
    let not_resp = &format!("its reply is not RESP; {NOT_RESP}");
    let reach = |url: &str| format!("cannot reach the queue at {url}: ");
    for (url, code, begins, ends) in [
        (
            format!("redis://127.0.0.1:{closed}"),
            3,
            format!("{}Connection refused", reach(&format!("redis://127.0.0.1:{closed}"))),
            START,
        ),
        (format!("gearman://127.0.0.1:{closed}"), 3, reach(&format!("gearman://127.0.0.1:{closed}")), START),
        ("redis+unix:///nowhere/q.sock".into(), 3, reach("redis+unix:///nowhere/q.sock"), START),
        (
            "redis://no-such-host.invalid".into(),
            3,
            reach("redis://no-such-host.invalid:6379"),
            "check the host name in --url",
        ),
        (
            format!("redis://127.0.0.1:{}?patience=1", silent_server()),
            3,
            "cannot reach the queue at redis://127.0.0.1:".into(),
            NETWORK,
        ),
        (
            format!("redis://127.0.0.1:{}?patience=1", web_server()),
            3,
            "cannot reach the queue at redis://127.0.0.1:".into(),
            not_resp,
        ),
        (
            at("redis", &protected),
            3,
            format!("{}NOAUTH Authentication required; ", reach(&protected.url())),
            GIVE,
        ),
        (
            protected.url().replace("//", "//:wrong@"),
            3,
            format!("{}the password was refused", reach(&protected.url())),
            CHECK,
        ),
        // A password that the server does not require.
        (
            open.url().replace("//", "//:wrong@"),
            3,
            format!("{}the password was refused", reach(&open.url())),
            CHECK,
        ),
        (
            acl.url().replace("//", "//ann:s3cret@"),
            3,
            format!("{}NOPERM ", reach(&acl.url())),
            "the user of the URL lacks a permission (ACL) on that Redis",
        ),
        // TLS on one side only, and certificates.
        (format!("{}?patience=1", at("redis", &encrypted)), 3, reach(&at("redis", &encrypted)), NOT_RESP),
        (format!("{}?patience=1", at("rediss", &open)), 3, reach(&at("rediss", &open)), NOT_TLS),
        (format!("{}?patience=1", at("rediss", &encrypted)), 3, reach(&at("rediss", &encrypted)), AUTHORITY),
        (format!("{}?patience=1&ca={ca}", at("rediss", &mutual)), 3, reach(&at("rediss", &mutual)), IDENTITY),
        (
            format!("{}?ca=/nowhere.pem", at("rediss", &encrypted)),
            3,
            format!(
                "{}cannot use the list of authorities /nowhere.pem: No such file",
                reach(&at("rediss", &encrypted))
            ),
            "check the files that ca=, cert= and key= name in the URL",
        ),
        (
            format!("{}?ca={ca}&cert={certificate}&key={other_key}", at("rediss", &mutual)),
            3,
            reach(&at("rediss", &mutual)),
            "check the files that ca=, cert= and key= name in the URL",
        ),
        // URLs that name no queue.
        ("redis://".into(), 2, "\"redis://\" is not the URL of a queue: ".into(), ""),
        ("http://127.0.0.1".into(), 2, "\"http://127.0.0.1\" is not the URL of a queue: ".into(), ""),
        (format!("{}?ca={ca}", open.url()), 2, "\"redis://".into(), "and only behind rediss://"),
    ] {
        assert_fails(&sandbox, &["queues", "--url", &url], code, &begins, ends);
    }
}

#[test]
fn a_server_that_cannot_start_says_why_and_what_to_do() {
    let sandbox = Sandbox::new();
    let running = ServerProcess::start(&[]);
    let taken = running.address();
    let gearman = format!("127.0.0.1:{}", running.gearman_port());
    let file = sandbox.file("password", "s3cret");
    let protected = ServerProcess::start(&["--password-file", &file]);
    let down = format!("redis://127.0.0.1:{}", free_port());
    let (wrong, no_file) = (protected.url().replace("//", "//:wrong@"), sandbox.path("missing"));
    let garbage = sandbox.file("garbage.pem", "garbage");
    let in_use = running.data().display().to_string();
    let port = "127.0.0.1:0";
    for (arguments, code, begins, ends) in [
        (
            &["--resp", &taken, "--store", "memory:"][..],
            3,
            format!("cannot listen on {taken}: another program listens there; "),
            "or choose another address with --resp",
        ),
        (
            &["--resp", port, "--gearman", &gearman, "--store", "memory:"],
            3,
            format!("cannot listen on {gearman}: another program listens there; "),
            "or choose another address with --gearman",
        ),
        (
            &["--resp", "192.0.2.1:7411", "--store", "memory:", "--insecure"],
            3,
            "cannot listen on 192.0.2.1:7411: this machine does not have that address; ".into(),
            "choose one of its own with --resp",
        ),
        (
            &["--resp", port, "--gearman", "off", "--store", &down],
            3,
            format!("cannot reach the queue at {down}: Connection refused"),
            STORE,
        ),
        (
            &["--resp", port, "--gearman", "off", "--store", &wrong],
            3,
            format!("cannot reach the queue at {}: the password was refused; ", protected.url()),
            "out of `ps`)",
        ),
        (
            &["--resp", port, "--gearman", "off", "--data", &in_use],
            3,
            format!("another process uses {in_use}: "),
            "--data",
        ),
        (
            &["--resp", port, "--gearman", "off", "--resp-tls-cert", &garbage, "--resp-tls-key", &garbage],
            2,
            format!("cannot use the certificate {garbage}: "),
            "it contains no certificate",
        ),
        (
            &["--resp", port, "--gearman", "off", "--password-file", &no_file],
            2,
            format!("cannot use the password file {no_file}: No such file or directory"),
            "",
        ),
        (
            &["--resp", "0.0.0.0:0", "--gearman", "off"],
            2,
            "0.0.0.0:0 can be reached from other machines, and clients need no key or password: ".into(),
            "or --insecure",
        ),
        (
            &["--resp", port, "--gearman", "off", "--http", "0.0.0.0:0", "--store", "memory:"],
            2,
            "0.0.0.0:0 can be reached from other machines, and clients need no key or password: ".into(),
            "or --insecure",
        ),
    ] {
        let http = if arguments.contains(&"--http") { &[][..] } else { &["--http", "off"] };
        let arguments = [&["server", "--log", "error"], arguments, http].concat();
        assert_fails(&sandbox, &arguments, code, &begins, ends);
    }
}

/// A server in front of a Redis that is gone: the cause is said once, not once for each of the two.
#[test]
fn the_innermost_cause_is_said_once() {
    let sandbox = Sandbox::new();
    let mut redis = RedisServer::start(&[]);
    let store = format!("{}?patience=1", redis.url());
    let server = ServerProcess::start(&["--store", &store, "--log", "warn"]);
    redis.kill();
    let (_, err, code) = sandbox.try_run(&["queues", "--url", &server.url()]);
    assert_eq!(code, 3, "{err}");
    let begins = "geartrain: the queue cannot answer: the Redis behind it: ";
    assert!(err.starts_with(begins) && err.contains("refused"), "{err}");
    assert_eq!(err.matches("cannot answer").count(), 1, "{err}");
    assert!(!err.contains("ResponseError") && !err.contains("backend"), "{err}");
    // The server's log has the cause too.
    until("a sweep has failed", || !server.logged("cannot process what is due").is_empty());
    let logged = server.logged("cannot process what is due");
    assert!(logged[0].contains("refused"), "{logged:?}");
}
