//! What a server prints when it is ready: on a terminal where everything is and three commands to paste, else one line.

use std::fmt;
use std::path::Path;

use geartrain::Target;
use geartrain_server::{Address, Server, Settings};

use crate::text::{FAINT, HEADING, clean};

/// A server that is ready, and how clients reach it.
pub(super) struct Greeting<'a> {
    stored_in: &'a Target,
    resp: &'a Address,
    gearman: Option<&'a Address>,
    http: Option<&'a Address>,
    resp_tls: bool,
    http_tls: bool,
    login: Login<'a>,
    read_only: bool,
    demo: bool,
}

/// What clients send.
#[derive(Clone, Copy)]
enum Login<'a> {
    Nothing,
    Password,
    /// A key of this file.
    Key(&'a Path),
}

impl<'a> Greeting<'a> {
    pub(super) fn new(server: &'a Server, settings: &'a Settings) -> Greeting<'a> {
        let login = match (server.requires_login(), &settings.password, &settings.keys) {
            (false, ..) => Login::Nothing,
            (true, None, Some(file)) => Login::Key(file),
            (true, ..) => Login::Password,
        };
        Greeting {
            stored_in: server.target(),
            resp: server.resp(),
            gearman: server.gearman(),
            http: server.http(),
            resp_tls: settings.resp_tls.is_some(),
            http_tls: settings.http.as_ref().is_some_and(|http| http.tls.is_some()),
            login,
            read_only: settings.read_only,
            demo: settings.demo,
        }
    }

    /// One line, for logs and scripts.
    pub(super) fn line(&self) -> String {
        let gearman = self.gearman.map(|address| format!(", Gearman on {address}")).unwrap_or_default();
        let http = self.http_url().map(|url| format!(", HTTP on {url}")).unwrap_or_default();
        let text = format!(
            "geartrain {} is ready: RESP on {}{gearman}{http}; jobs are stored in {}",
            env!("CARGO_PKG_VERSION"),
            self.resp_url(),
            self.stored_in
        );
        clean(&text).into_owned()
    }

    fn resp_url(&self) -> String {
        match (self.resp, self.resp_tls) {
            (Address::Unix(_), _) => self.resp.to_string(),
            (address, false) => format!("redis://{}", reachable(address)),
            (address, true) => format!("rediss://{}", reachable(address)),
        }
    }

    fn http_url(&self) -> Option<String> {
        Some(match (self.http?, self.http_tls) {
            (address @ Address::Unix(_), _) => address.to_string(),
            (address, false) => format!("http://{}", reachable(address)),
            (address, true) => format!("https://{}", reachable(address)),
        })
    }

    /// The URL for a browser, which knows no socket files.
    fn dashboard(&self) -> Option<String> {
        self.http_url().filter(|url| url.starts_with("http")).map(|url| format!("{url}/"))
    }

    /// The command that makes a key, if clients need one.
    fn key_command(&self) -> Option<String> {
        let Login::Key(file) = self.login else { return None };
        // Another terminal may be in another directory.
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let file = file.display();
        Some(format!("(umask 077; geartrain key add try --role operator --keys-file '{file}' > try.key)"))
    }

    /// The commands to try.
    fn commands(&self) -> [String; 3] {
        let mut with = match (&self.resp_url()[..], self.resp_tls) {
            // The default.
            ("redis://127.0.0.1:7411", false) => String::new(),
            (url, false) => format!(" --url {url}"),
            (url, true) => format!(" --url '{url}?ca=FILE'"),
        };
        with.push_str(match self.login {
            Login::Nothing => "",
            Login::Password => " --password-file FILE",
            Login::Key(_) => " --password-file try.key",
        });
        let tries = match (self.demo, self.read_only) {
            (true, _) => ["put mail welcome '{\"to\":\"you\"}' --wait 30s", "why send-881", "queues"],
            (false, true) => ["queues", "jobs --state failed", "why --queue mail"],
            (false, false) => ["put mail welcome '{\"to\":\"ann\"}'", "why --queue mail", "work mail -- cat"],
        };
        tries.map(|arguments| format!("geartrain{with} {arguments}"))
    }
}

/// Where a client on this machine finds a server that listens on all addresses.
fn reachable(address: &Address) -> String {
    match address.ip() {
        Some(ip) if ip.ip().is_unspecified() && ip.is_ipv4() => format!("127.0.0.1:{}", ip.port()),
        Some(ip) if ip.ip().is_unspecified() => format!("[::1]:{}", ip.port()),
        _ => address.to_string(),
    }
}

impl fmt::Display for Greeting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{HEADING}geartrain {} is ready.{HEADING:#}\n", env!("CARGO_PKG_VERSION"))?;
        let mut row = |name: &str, value: &str, what: &str| {
            writeln!(f, "  {HEADING}{name:<10}{HEADING:#} {:<28} {FAINT}{what}{FAINT:#}", clean(value))
        };
        if let Some(url) = self.dashboard() {
            let what = match self.login {
                Login::Nothing => "",
                Login::Password => "log in with the password",
                Login::Key(_) => "log in with a key",
            };
            row("Dashboard", &url, what)?;
        }
        let sample = if self.demo { "sample jobs are running" } else { "" };
        let what = if self.read_only { "every change is refused" } else { sample };
        row("Jobs in", &self.stored_in.to_string(), what)?;
        row("RESP", &self.resp_url(), "the geartrain command, programs in Rust, Python and Node, Qless")?;
        if let Some(address) = self.gearman {
            row("Gearman", &reachable(address), "Gearman clients and workers, gearadmin")?;
        }
        if let Some(url) = self.http_url() {
            row("HTTP", &url, "JSON for every language")?;
        }
        if let Some(command) = self.key_command() {
            let what = "Clients need a key. To make one, which is valid a second later:";
            writeln!(f, "\n{what}\n\n  {}", clean(&command))?;
        }
        writeln!(f, "\nTry, in another terminal:\n")?;
        for command in self.commands() {
            writeln!(f, "  {}", clean(&command))?;
        }
        if self.resp_tls {
            let what = "FILE has the certificate of the authority that signed the server's";
            writeln!(f, "\n{FAINT}{what}{FAINT:#}")?;
        }
        writeln!(f, "\nStop it with Ctrl-C.")
    }
}
