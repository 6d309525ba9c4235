//! The server as a service: TLS and SIGHUP, notifications for systemd, passwords from files, and its log.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use geartrain_testkit::peers::{RedisServer, Scratch};
use geartrain_testkit::tls::Authority;

use crate::sandbox::Sandbox;
use crate::server_process::{ServerProcess, until};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn sighup_reloads_the_certificate_and_keeps_the_old_one_if_the_new_one_is_bad() {
    let (sandbox, scratch) = (Sandbox::new(), Scratch::new("service"));
    let authority = Authority::new();
    let (certificate, key) = authority.sign(&scratch, "server", "127.0.0.1");
    let tls = ["--resp-tls-cert", text(&certificate), "--resp-tls-key", text(&key), "--log", "info"];
    let mut server = ServerProcess::start(&tls);
    let url_with = |ca: &Path| format!("rediss://{}?ca={}&patience=1", server.address(), ca.display());
    let first = authority.write(&scratch, "first.pem");
    sandbox.run(&["put", "mail", "k", "--url", &url_with(&first)]);

    std::fs::write(&certificate, "garbage").unwrap();
    server.signal("-HUP");
    until("an error in the log", || !server.logged("stays in use").is_empty());
    assert!(server.logged("stays in use")[0].contains("server.pem"));
    sandbox.run(&["put", "mail", "k", "--url", &url_with(&first)]);

    let other = Authority::new();
    other.sign(&scratch, "server", "127.0.0.1");
    server.signal("-HUP");
    until("a line in the log", || !server.logged("reloaded the certificate").is_empty());
    let second = other.write(&scratch, "second.pem");
    sandbox.run(&["put", "mail", "k", "--url", &url_with(&second)]);
    assert_eq!(sandbox.try_run(&["queues", "--url", &url_with(&first)]).2, 3);
    assert_eq!(sandbox.json(&["queues", "mail", "--url", &url_with(&second)])[0]["waiting"], 3);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn sighup_does_not_end_a_server_without_certificates() {
    let mut server = ServerProcess::start(&["--log", "info"]);
    server.signal("-HUP");
    until("a line in the log", || !server.logged("no certificates to reload").is_empty());
    Sandbox::new().run(&["put", "mail", "k", "--url", &server.url()]);
    assert_eq!(server.terminate(), Some(0));
}

/// A server with a service manager, killed when dropped.
struct Service {
    child: Child,
    manager: UnixDatagram,
}

impl Service {
    /// `ExecStart` of the unit of the Debian package, on free ports and in a directory of this test.
    fn start(address: &str, manager: UnixDatagram, scratch: &Scratch) -> Service {
        manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/debian");
        let unit = std::fs::read_to_string(packaging.join("geartrain.service")).unwrap();
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/geartrain ")).unwrap();
        let settings = packaging.join("geartrain.toml");
        let mut command = Command::new(env!("CARGO_BIN_EXE_geartrain"));
        command.args(start.replace("/etc/geartrain/geartrain.toml", text(&settings)).split(' '));
        command.arg("--json").env("GEARTRAIN_DATA", scratch.path().join("data"));
        command.env("GEARTRAIN_RESP", "127.0.0.1:0").env("GEARTRAIN_GEARMAN", "off");
        command.env("GEARTRAIN_HTTP", "off").env("GEARTRAIN_LOG", "error");
        command.env("NOTIFY_SOCKET", address).env("WATCHDOG_USEC", "20000");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        Service { child: command.spawn().unwrap(), manager }
    }

    fn next(&self) -> String {
        let mut state = [0; 1_024];
        let bytes = self.manager.recv(&mut state).unwrap();
        String::from_utf8(state[..bytes].to_vec()).unwrap()
    }

    /// Skips the watchdog's notifications.
    fn next_other(&self) -> String {
        (0..100_000).map(|_| self.next()).find(|state| state != "WATCHDOG=1").unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_service_manager_learns_of_the_start_the_watchdog_and_the_stop() {
    let scratch = Scratch::new("notify");
    let path: PathBuf = scratch.path().join("notify.sock");
    let in_file = (text(&path).to_owned(), UnixDatagram::bind(&path).unwrap());
    #[cfg(target_os = "linux")]
    let abstract_socket = {
        use std::os::linux::net::SocketAddrExt as _;
        let name = format!("geartrain-test-{}", uuid::Uuid::now_v7().simple());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        (format!("@{name}"), UnixDatagram::bind_addr(&address).unwrap())
    };
    #[cfg(not(target_os = "linux"))]
    let abstract_socket = {
        let path = scratch.path().join("other.sock");
        (text(&path).to_owned(), UnixDatagram::bind(&path).unwrap())
    };
    for (address, manager) in [in_file, abstract_socket] {
        let mut service = Service::start(&address, manager, &scratch);
        let ready = service.next();
        assert!(ready.starts_with("READY=1\nSTATUS=RESP on 127.0.0.1:"), "{ready}");
        assert_eq!(service.next(), "WATCHDOG=1");
        assert_eq!(service.next(), "WATCHDOG=1");
        let mut line = String::new();
        BufReader::new(service.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("\"ready\":true"), "{line}");
        let pid = service.child.id().to_string();
        let signal =
            |name: &str| assert!(Command::new("kill").args([name, pid.as_str()]).status().unwrap().success());
        signal("-HUP"); // ExecReload
        assert_eq!(service.next(), "WATCHDOG=1");
        signal("-TERM");
        assert_eq!(service.next_other(), "STOPPING=1");
        assert_eq!(service.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn the_password_comes_from_a_file_or_the_environment() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("password", "s@cret/%\n");
    let server = ServerProcess::start(&["--password-file", &file, "--log", "info"]);
    let url = server.url();
    sandbox.run(&["put", "mail", "k", "--url", &url, "--password-file", &file]);
    let by_variable = |name: &str, value: &str| {
        let output = sandbox.command(&["queues", "--url", &url]).env(name, value).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(by_variable("GEARTRAIN_PASSWORD", "s@cret/%"), (Some(0), String::new()));
    assert_eq!(by_variable("GEARTRAIN_PASSWORD_FILE", &file), (Some(0), String::new()));
    assert_eq!(by_variable("GEARTRAIN_PASSWORD", "wrong").0, Some(3));
    assert_eq!(by_variable("GEARTRAIN_PASSWORD", "").0, Some(3));
    assert!(server.logged("password file").is_empty());

    // Other users can read the file: a warning, and it works.
    let status = Command::new("chmod").args(["644", &file]).status().unwrap();
    assert!(status.success());
    let (_, err, code) = sandbox.try_run(&["queues", "--url", &url, "--password-file", &file]);
    assert!(code == 0 && err.contains("can read the password file") && err.contains("chmod 600"), "{err}");
    let server = ServerProcess::start(&["--password-file", &file, "--log", "info"]);
    until("a warning in the log", || !server.logged("can read the password file").is_empty());
}

#[test]
fn a_password_on_the_command_line_is_refused_and_not_repeated() {
    let sandbox = Sandbox::new();
    for arguments in [
        &["server", "--password", "secret"][..],
        &["queues", "--password=secret"],
        &["--password", "secret", "queues"],
    ] {
        let (out, err, code) = sandbox.try_run(arguments);
        assert_eq!((out.as_str(), code), ("", 2), "{err}");
        assert!(err.contains("--password-file") && err.contains("GEARTRAIN_PASSWORD"), "{err}");
        assert!(!err.contains("secret"), "{err}");
    }
    let empty = sandbox.file("empty", "\n");
    for arguments in [["queues", "--password-file", &empty], ["server", "--password-file", &empty]] {
        let (_, err, code) = sandbox.try_run(&arguments);
        assert_eq!(code, 2, "{err}");
        assert!(err.contains("it is empty"), "{err}");
    }
}

#[test]
fn the_log_has_the_figures_of_the_start_connections_and_slow_commands() {
    let arguments = ["--log", "info,geartrain_resp=debug,geartrain_gearman=debug", "--log-slow", "0s"];
    let mut server = ServerProcess::start(&arguments);
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "mail", "k", "--url", &server.url()]);
    drop(std::net::TcpStream::connect(("127.0.0.1", server.gearman_port())).unwrap());
    until("a connection is closed", || !server.logged("RESP connection 1 from 127.0.0.1:").is_empty());
    until("a connection is closed", || server.logged("is closed after").len() >= 2);
    until("a connection of Gearman", || !server.logged("Gearman connection 1 from 127.0.0.1:").is_empty());
    until("a slow command", || !server.logged("slow: ").is_empty());
    let slow = &server.logged("slow: ")[0];
    assert!(
        slow.contains(" took 0.") && slow.contains("sent by RESP connection 1 from 127.0.0.1:"),
        "{slow}"
    );
    let loaded = server.logged("the stored jobs are loaded");
    assert!(loaded.len() == 1 && loaded[0].contains("jobs=0"), "{loaded:?}");
    server.restart();
    until("figures of the second start", || server.logged("the stored jobs are loaded").len() == 2);
    let loaded = &server.logged("the stored jobs are loaded")[1];
    for figure in ["jobs=1", "replayed_changes=", "replayed_bytes=", "checkpoint_bytes=", "seconds="] {
        assert!(loaded.contains(figure), "{loaded}");
    }
    assert!(!loaded.contains("replayed_changes=0"), "{loaded}");
}

#[test]
fn bench_reports_the_sync_mode_of_the_server_and_never_its_password() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("password", "secret");
    let quick = ["--quick", "--only", "put", "--json"];
    let bench = |url: &str| -> String { sandbox.run(&[&["bench", "--url", url], &quick[..]].concat()) };
    let server = ServerProcess::start(&["--sync", "50ms", "--password-file", &file]);
    let report = bench(&format!("redis://:secret@{}", server.address()));
    assert!(report.contains("\"sync\":\"50ms\"") && !report.contains("secret"), "{report}");
    let server = ServerProcess::start(&["--sync", "never"]);
    // Through the socket of the owner, whatever this URL says.
    for url in [server.url(), format!("embedded:{}?sync=always", server.data().display())] {
        assert!(bench(&url).contains("\"sync\":\"never\""), "{url}");
    }
    let redis = RedisServer::start(&[]);
    assert!(bench(&redis.url()).contains("\"sync\":\"never\""));
    let redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    assert!(bench(&redis.url()).contains("\"sync\":\"everysec\""));
    let front = ServerProcess::start(&["--store", &redis.url()]);
    assert!(bench(&front.url()).contains("\"sync\":\"everysec\""));
}
