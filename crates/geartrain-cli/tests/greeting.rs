//! What `geartrain server` prints when it is ready: on a terminal, in a log, under a service manager.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::sandbox::Sandbox;
use crate::server_process::until;

/// A server on a terminal of its own, killed when dropped.
struct OnTerminal {
    script: Child,
    /// What it has printed, line by line, without control sequences.
    lines: Vec<String>,
    sandbox: Sandbox,
}

impl OnTerminal {
    fn start(sandbox: Sandbox, arguments: &str) -> OnTerminal {
        let server = format!(
            "stty cols 120 rows 50; exec geartrain server --log error --data data --resp 127.0.0.1:0 --gearman off {arguments}"
        );
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--flush", "--command", &server, "/dev/null"]);
        command
            .env("PATH", path())
            .env("TERM", "xterm")
            .env_remove("GEARTRAIN_URL")
            .current_dir(&sandbox.directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script =
            command.spawn().expect("script is installed (on Debian and Ubuntu: apt-get install bsdutils)");
        let mut lines = Vec::new();
        for line in BufReader::new(script.stdout.take().unwrap()).lines() {
            let line = without_styles(line.unwrap().trim_end());
            let is_last = line.starts_with("Stop it with Ctrl-C");
            lines.push(line);
            if is_last {
                break;
            }
        }
        OnTerminal { script, lines, sandbox }
    }

    /// The value of a row such as `Dashboard  http://127.0.0.1:7410/`.
    fn row(&self, name: &str) -> Option<&str> {
        let row = self.lines.iter().find_map(|line| line.trim_start().strip_prefix(name))?;
        row.split_whitespace().next()
    }

    /// The commands to try.
    fn commands(&self) -> Vec<&str> {
        self.lines
            .iter()
            .map(|line| line.trim())
            .filter(|line| line.starts_with("geartrain ") && !line.ends_with("ready."))
            .collect()
    }

    /// Runs a line in a shell, as it is.
    fn paste(&self, line: &str) -> String {
        let output = self.shell(line).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{line}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    fn shell(&self, line: &str) -> Command {
        let mut shell = Command::new("sh");
        // A single command takes the place of the shell, so that a signal reaches it.
        let exec = if line.starts_with("geartrain ") { "exec " } else { "" };
        shell.args(["-c", &format!("{exec}{line}")]).env("PATH", path()).env_remove("GEARTRAIN_URL");
        shell.current_dir(&self.sandbox.directory).stdin(Stdio::null());
        shell
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        // It ends its program with SIGTERM.
        let _ = Command::new("kill").args(["-TERM", &self.script.id().to_string()]).status();
        let _ = self.script.wait();
    }
}

/// The path on which the program under test is found.
fn path() -> String {
    let (program, _) = env!("CARGO_BIN_EXE_geartrain").rsplit_once('/').unwrap();
    format!("{program}:{}", std::env::var("PATH").unwrap())
}

fn without_styles(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    first + &parts.map(|part| part.split_once('m').map_or("", |(_, text)| text)).collect::<String>()
}

#[test]
fn on_a_terminal_the_dashboard_comes_first_and_the_commands_work_when_pasted() {
    let server = OnTerminal::start(Sandbox::new(), "--http 127.0.0.1:0");
    let text = server.lines.join("\n");
    let rows: Vec<&str> =
        server.lines.iter().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next()).collect();
    assert_eq!(rows[..4], ["Dashboard", "Jobs", "RESP", "HTTP"], "{text}");
    let dashboard = server.row("Dashboard").unwrap();
    let address = dashboard.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let page = std::io::read_to_string(stream).unwrap();
    assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("<!doctype html>"), "{page}");

    let [put, why, work] = server.commands()[..] else { panic!("{text}") };
    server.paste(put);
    assert!(server.paste(why).contains("mail"), "{text}");
    let mut worker = server.shell(work).spawn().unwrap();
    let queues = format!("geartrain --url {} queues --json", server.row("RESP").unwrap());
    until("the job is done", || server.paste(&queues).contains(r#""waiting":0,"running":0"#));
    Command::new("kill").args(["-TERM", &worker.id().to_string()]).status().unwrap();
    assert!(worker.wait().unwrap().success());
}

#[test]
fn the_commands_of_the_demonstration_work_when_pasted() {
    let server = OnTerminal::start(Sandbox::new(), "--http off --demo");
    assert_eq!(server.row("Dashboard"), None, "{:?}", server.lines);
    let commands = server.commands();
    assert_eq!(commands.len(), 3, "{commands:?}");
    for command in commands {
        // The sample jobs are put just now.
        until(command, || server.shell(command).output().unwrap().status.success());
    }
}

#[test]
fn a_server_with_keys_says_how_to_get_one() {
    let sandbox = Sandbox::new();
    sandbox.run(&["key", "add", "ann", "--role", "admin", "--data", &sandbox.path("data")]);
    let server = OnTerminal::start(sandbox, "--http 127.0.0.1:0");
    assert!(server.lines.iter().any(|line| line.ends_with("log in with a key")), "{:?}", server.lines);
    let key = server.lines.iter().find(|line| line.contains(" key add ")).unwrap();
    server.paste(key);
    let commands = server.commands();
    assert_eq!(commands.len(), 3, "{commands:?}");
    for command in &commands[..2] {
        // The server reads the file once a second.
        until(command, || server.shell(command).output().unwrap().status.success());
    }
    let said = server.shell(commands[0]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stderr), "", "only its owner can read the key");
}

#[test]
fn a_read_only_server_suggests_what_it_answers() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "mail", "welcome", "--url", &sandbox.url("data")]);
    let server = OnTerminal::start(sandbox, "--http off --read-only");
    for command in server.commands() {
        server.paste(command);
    }
}

/// What a server prints that ends after a moment, without a terminal.
fn printed(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let sandbox = Sandbox::new();
    let mut command =
        sandbox.command(&["server", "--log", "info", "--resp", "127.0.0.1:0", "--gearman", "off"]);
    command.args(["--http", "127.0.0.1:0", "--data", &sandbox.path("data")]).args(arguments);
    command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut log = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("the server is ready") {
        line.clear();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "it has ended");
    }
    // It prints before it ends.
    Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap();
    std::io::copy(&mut log, &mut std::io::sink()).unwrap();
    let mut text = String::new();
    server.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(server.wait().unwrap().success());
    text
}

#[test]
fn without_a_terminal_it_is_one_line_and_nothing_for_a_service_manager() {
    let text = printed(&[], &[]);
    assert!(
        text.starts_with("geartrain ") && text.contains(" is ready: RESP on redis://127.0.0.1:"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");

    let document: serde_json::Value = serde_json::from_str(&printed(&["--json"], &[])).unwrap();
    assert_eq!((&document["ready"], &document["gearman"]), (&json!(true), &json!(null)));

    let directory = Sandbox::new();
    let socket = directory.path("notify");
    let _listener = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    assert_eq!(printed(&[], &[("NOTIFY_SOCKET", &socket)]), "");
}
