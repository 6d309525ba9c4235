//! `geartrain top` in a pseudo-terminal, on the real command and server.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

use crate::sandbox::Sandbox;
use crate::server_process::{ServerProcess, until};

/// A terminal in which `geartrain top` runs; killed when dropped.
struct Terminal {
    child: Child,
    /// The end of the person at the terminal.
    keyboard: File,
    /// The end of the program.
    device: OwnedFd,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    fn open(columns: u16, rows: u16, variables: &[(&str, &str)], arguments: &[&str]) -> Terminal {
        let controller =
            rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        rustix::pty::grantpt(&controller).unwrap();
        rustix::pty::unlockpt(&controller).unwrap();
        let name = rustix::pty::ptsname(&controller, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let device = rustix::fs::open(&*name, flags, Mode::empty()).unwrap();
        tcsetwinsize(&device, Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        // It becomes the controlling terminal, as that of a shell would be.
        let mut command = Command::new("setsid");
        command
            .args(["--ctty", env!("CARGO_BIN_EXE_geartrain"), "top", "--interval", "100ms"])
            .args(arguments);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR").envs(variables.iter().copied());
        let end = || Stdio::from(device.try_clone().unwrap());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let mut output = File::from(controller.try_clone().unwrap());
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let shown = screen.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..read]);
            }
        });
        Terminal { child, keyboard: controller.into(), device, screen }
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    fn until_shows(&self, text: &str) {
        until(&format!("{text:?} on the screen"), || self.text().contains(text));
    }

    /// Types keys, and waits for what they show.
    fn type_until(&mut self, keys: &str, text: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self.until_shows(text);
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.device).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Waits for the end of the program, and checks that the terminal is as it was.
    fn end(mut self) -> i32 {
        let mut status = None;
        until("the end of the program", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(!self.is_raw());
        until("the screen of the shell", || {
            let screen = self.screen.lock().unwrap();
            !screen.screen().alternate_screen() && !screen.screen().hide_cursor()
        });
        status.and_then(|status| status.code()).unwrap_or(-1)
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.text());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_queue_is_seen_filtered_paused_and_explained_in_a_terminal() {
    let (sandbox, server) = (Sandbox::new(), ServerProcess::start(&[]));
    let url = server.url();
    let on_server = |line: &str| {
        let arguments: Vec<&str> = line.split(' ').chain(["--url", &url]).collect();
        sandbox.run(&arguments)
    };
    for number in 0..3 {
        on_server(&format!("put mail welcome {{}} --jid mail-{number}"));
    }
    on_server("put reports monthly {} --jid monthly-1");
    let mut terminal = Terminal::open(100, 30, &[], &["--url", &url]);
    terminal.until_shows("Queues 2");
    terminal.until_shows("waiting 4");
    assert!(terminal.is_raw() && terminal.screen.lock().unwrap().screen().alternate_screen());

    on_server("put mail welcome {} --jid mail-3");
    terminal.until_shows("waiting 5");
    on_server("pop mail --worker office-1");
    terminal.until_shows("welcome of mail for");

    terminal.type_until("/REP\r", "Queues 1 /REP");
    assert!(!terminal.text().contains("mail  "), "{}", terminal.text());
    terminal.type_until("p", "pause reports, so that its jobs are not handed out? (y/n)");
    terminal.type_until("y", "paused: reports");
    let queues: Value = serde_json::from_str(&on_server("queues reports --json")).unwrap();
    assert_eq!(queues[0]["paused"], true);

    terminal.type_until("\r", "monthly-1");
    terminal.type_until("\r", "job monthly-1 of reports is waiting: queue reports is paused");
    terminal.type_until("\x1b", "Jobs of queue reports");
    terminal.type_until("\x1b", "Queues 1 /REP");
    terminal.type_until("py", "resumed reports");

    // A smaller window: the pane of the cursor remains.
    let small = Winsize { ws_col: 40, ws_row: 12, ws_xpixel: 0, ws_ypixel: 0 };
    terminal.screen.lock().unwrap().screen_mut().set_size(12, 40);
    tcsetwinsize(&terminal.device, small).unwrap();
    until("the small display", || {
        let text = terminal.text();
        text.contains("Queues") && !text.contains("Workers")
    });
    terminal.keyboard.write_all(b"q").unwrap();
    assert_eq!(terminal.end(), 0);
}

#[test]
fn a_lost_connection_is_said_and_a_signal_restores_the_terminal() {
    let mut server = ServerProcess::start(&[]);
    let url = format!("{}?patience=1", server.url());
    let terminal = Terminal::open(80, 24, &[("NO_COLOR", "1")], &["--url", &url]);
    terminal.until_shows("no queues yet");
    server.kill();
    terminal.until_shows("reconnecting");
    server.restart();
    until("the display goes on", || !terminal.text().contains("reconnecting"));
    let has_colors = |screen: &vt100::Screen| {
        let cells = (0..24).flat_map(|row| (0..80).map(move |column| (row, column)));
        cells
            .filter_map(|(row, column)| screen.cell(row, column))
            .any(|cell| cell.fgcolor() != vt100::Color::Default)
    };
    assert!(!has_colors(terminal.screen.lock().unwrap().screen()));
    terminal.signal("-TERM");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn a_viewer_is_told_that_the_role_may_not_pause() {
    let sandbox = Sandbox::new();
    let keys = sandbox.path("keys");
    let viewer = sandbox.json(&["key", "add", "ana", "--role", "viewer", "--keys-file", &keys]);
    let operator = sandbox.json(&["key", "add", "bob", "--role", "operator", "--keys-file", &keys]);
    let [viewer, operator] = [viewer, operator].map(|added| added["key"].as_str().unwrap().to_owned());
    let server = ServerProcess::start(&["--keys-file", &keys]);
    let operator = sandbox.file("operator", &operator);
    sandbox.run(&["put", "mail", "k", "--url", &server.url(), "--password-file", &operator]);
    let variables = [("GEARTRAIN_PASSWORD", viewer.as_str())];
    let mut terminal = Terminal::open(100, 24, &variables, &["--url", &server.url()]);
    terminal.until_shows("Queues 1");
    terminal.type_until("p", "(y/n)");
    terminal.type_until("y", "pause needs the role operator, and this access has the role viewer");
    terminal.keyboard.write_all(b"\x03").unwrap();
    assert_eq!(terminal.end(), 0);
}

#[test]
fn without_a_terminal_the_overview_is_printed_once() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "mail", "welcome", "{}"]);
    let overview = sandbox.json(&["top"]);
    assert_eq!((&overview["waiting"], &overview["queues"][0]["name"]), (&1.into(), &"mail".into()));
    let table = sandbox.run(&["top", "--once"]);
    assert!(table.contains("QUEUE  WAITING") && table.contains("1 waiting, 0 running"), "{table}");
    assert_eq!(sandbox.run(&["top", "--url", "memory:"]).lines().nth(1), Some("0 waiting, 0 running"));
    let (_, error, code) = sandbox.try_run(&["top", "--interval", "10ms"]);
    assert!(code == 2 && error.contains("it must be at least 100ms"), "{error}");
    assert_eq!(sandbox.try_run(&["top", "--url", "redis://127.0.0.1:1"]).2, 3);
}
