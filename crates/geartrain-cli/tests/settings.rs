//! The configuration file, contexts, and `geartrain config show`: docs/configuration.md.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::sandbox::Sandbox;
use crate::server_process::ServerProcess;

impl Sandbox {
    /// A command with this configuration file, and without settings of the user who runs the test.
    fn configured(&self, file: &str, variables: &[(&str, &str)], arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_geartrain"));
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GEARTRAIN_"))
        {
            command.env_remove(name);
        }
        command
            .env("HOME", &self.directory)
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("CREDENTIALS_DIRECTORY");
        command.env("GEARTRAIN_CONFIG", file).envs(variables.iter().copied());
        command.args(arguments).stdin(Stdio::null()).current_dir(&self.directory);
        command
    }
}

/// What a command prints on standard output and error, and its exit code.
fn outcome(mut command: Command) -> (String, String, i32) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code().unwrap())
}

fn succeed(command: Command) -> String {
    let (out, err, code) = outcome(command);
    assert_eq!(code, 0, "{err}");
    out
}

/// The settings by name, of `config show --json`.
fn shown(command: Command) -> impl Fn(&str) -> Value {
    let list: Value = serde_json::from_str(&succeed(command)).unwrap();
    move |name: &str| {
        let found = list.as_array().unwrap().iter().find(|setting| setting["name"] == name);
        found.cloned().unwrap_or_else(|| panic!("{name} is not shown: {list}"))
    }
}

const SHOW: [&str; 3] = ["config", "show", "--json"];

#[test]
fn a_flag_comes_before_the_environment_the_file_and_the_default() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("c.toml", "[server]\nhttp = \"127.0.0.1:1\"\nsync = \"50ms\"\n");
    let show = |variables: &[(&str, &str)], flags: &[&str]| {
        shown(sandbox.configured(&file, variables, &[&SHOW, flags].concat()))
    };
    let all = show(&[("GEARTRAIN_HTTP", "127.0.0.1:2")], &["--http", "127.0.0.1:3"])("server.http");
    assert_eq!(
        (&all["value"], &all["origin"], &all["flag"]),
        (&json!("127.0.0.1:3"), &json!("flag"), &json!("--http"))
    );
    let without_flag = show(&[("GEARTRAIN_HTTP", "127.0.0.1:2")], &[])("server.http");
    assert_eq!(
        (&without_flag["value"], &without_flag["variable"]),
        (&json!("127.0.0.1:2"), &json!("GEARTRAIN_HTTP"))
    );
    let of_file = show(&[], &[]);
    let http = of_file("server.http");
    assert_eq!(
        (&http["value"], &http["origin"], &http["line"]),
        (&json!("127.0.0.1:1"), &json!("file"), &json!(2))
    );
    assert_eq!(http["file"], json!(file));
    let default = of_file("server.gearman");
    assert_eq!((&default["value"], &default["origin"]), (&json!("127.0.0.1:4730"), &json!("default")));
    assert_eq!(show(&[], &["--config", "off"])("server.http")["origin"], "default");
    // The file of the flag comes before that of the environment.
    let other = sandbox.file("other.toml", "[server]\nhttp = \"127.0.0.1:9\"\n");
    assert_eq!(show(&[], &["--config", &other])("server.http")["value"], "127.0.0.1:9");
}

#[test]
fn a_server_goes_by_its_file() {
    let sandbox = Sandbox::new();
    let text = format!(
        "[server]\nhttp_host = [\"queue.example\"]\nread_only = true\naudit_log = \"{}\"\n",
        sandbox.path("audit")
    );
    let file = sandbox.file("c.toml", &text);
    let server = ServerProcess::start_in(&[("GEARTRAIN_CONFIG", &file)], &["--http", "127.0.0.1:0"]);
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--header", "Host: queue.example"]);
    let who = succeed({
        curl.arg(format!("http://{}/v1/whoami", server.http()));
        curl
    });
    assert_eq!(serde_json::from_str::<Value>(&who).unwrap()["read_only"], true, "{who}");
    let mut curl = Command::new("curl");
    curl.args(["--silent", &format!("http://{}/v1/settings", server.http())]);
    let setting = shown(curl);
    let hosts = setting("server.http_host");
    assert_eq!((&hosts["value"], &hosts["origin"]), (&json!(["queue.example"]), &json!("file")));
    assert_eq!((&hosts["file"], &hosts["line"]), (&json!(file), &json!(2)));
    assert_eq!(setting("server.http")["flag"], "--http");
    assert_eq!(setting("server.gearman")["value"], "127.0.0.1:0");
    assert_eq!(setting("server.sync")["origin"], "default");
    let put = sandbox.configured("off", &[], &["put", "q", "k", "--url", &server.url(), "--json"]);
    let (_, refused, code) = outcome(put);
    assert_eq!((code, refused.contains("read-only")), (1, true), "{refused}");
    assert!(Path::new(&sandbox.path("audit")).exists());
}

#[test]
fn a_mistake_in_the_file_is_named_with_its_line_and_what_is_meant() {
    let sandbox = Sandbox::new();
    for (text, position, why) in [
        ("[server]\n\nhtp = \"off\"\n", "3:1", "there is no setting htp in [server] (did you mean http?)"),
        (
            "[server]\nread_only = \"yes\"\n",
            "2:13",
            "read_only must be true or false, and is of the type string",
        ),
        (
            "[server]\njob_retries = \"5\"\n",
            "2:15",
            "job_retries must be a whole number, and is of the type string",
        ),
        ("[server]\nhttp_host = \"a\"\n", "2:13", "http_host must be a list, and is of the type string"),
        ("[server]\nresp = 7411\n", "2:8", "resp must be a text in quotes, and is of the type integer"),
        (
            "[server]\nresp = \"7411\"\n",
            "2:8",
            "resp: the value \"7411\" is invalid: write it like 127.0.0.1:7411",
        ),
        ("[server]\naudit = \"some\"\n", "2:9", "audit: the value \"some\" is none of administrative, all"),
        ("http = \"off\"\n", "1:1", "http belongs in the table [server]"),
        ("[sever]\n", "1:2", "there is no setting sever in the file (did you mean server?)"),
        (
            "[context.a]\nurl = \"memory:\"\nproductoin = true\n",
            "3:1",
            "there is no setting productoin in [context.a] (did you mean production?)",
        ),
        ("[context.a]\nproduction = true\n", "1:10", "the context a has no url"),
        ("[context.a]\nurl = \"radis://h\"\n", "2:7", "radis"),
        ("[context.a]\nurl = \"memory:\"\nproduction = 1\n", "3:14", "production must be true or false"),
        (
            "default_context = \"man\"\n[context.main]\nurl = \"memory:\"\n",
            "1:1",
            "there is no context man (did you mean main?)",
        ),
        ("[server]\nhttp = \"off\"\nhttp = \"off\"\n", "3:1", "duplicate key"),
        ("[server\n", "1:", ""),
    ] {
        let file = sandbox.file("c.toml", text);
        let (out, err, code) = outcome(sandbox.configured(&file, &[], &["queues", "--url", "memory:"]));
        assert_eq!((out.as_str(), code), ("", 2), "{text}: {err}");
        assert!(
            err.starts_with(&format!("geartrain: {file}:{position}")) && err.contains(why),
            "{text}: {err}"
        );
    }
    let missing = sandbox.path("missing.toml");
    let (_, err, code) = outcome(sandbox.configured(&missing, &[], &["queues", "--url", "memory:"]));
    assert_eq!((code, err.contains("cannot read the configuration file")), (2, true), "{err}");
    // What needs no queue works nevertheless.
    succeed(sandbox.configured(&missing, &[], &["version"]));
}

/// Two contexts: `a` and `b`, which is in production.
fn contexts(sandbox: &Sandbox) -> String {
    let (a, b) = (sandbox.url("a"), sandbox.url("b"));
    let text = format!(
        "default_context = \"a\"\n[context.a]\nurl = \"{a}\"\n[context.b]\nurl = \"{b}\"\nproduction = true\n"
    );
    sandbox.file("c.toml", &text)
}

#[test]
fn a_context_names_the_queue() {
    let sandbox = Sandbox::new();
    let file = contexts(&sandbox);
    let run = |variables: &[(&str, &str)], arguments: &[&str]| {
        succeed(sandbox.configured(&file, variables, arguments))
    };
    let names = |variables: &[(&str, &str)], flags: &[&str]| -> Vec<String> {
        let list: Value =
            serde_json::from_str(&run(variables, &[&["queues", "--json"], flags].concat())).unwrap();
        let name = |queue: &Value| queue["name"].as_str().unwrap().to_owned();
        list.as_array().unwrap().iter().map(name).collect()
    };
    run(&[], &["put", "of-a", "k"]);
    run(&[], &["put", "of-b", "k", "--context", "b", "--yes"]);
    run(&[], &["put", "of-c", "k", "--url", &sandbox.url("c")]);
    let c = sandbox.url("c");
    for (variables, flags, expected) in [
        (&[][..], &[][..], "of-a"),
        (&[], &["--context", "b"], "of-b"),
        (&[("GEARTRAIN_CONTEXT", "b")], &[], "of-b"),
        (&[("GEARTRAIN_CONTEXT", "b")], &["--context", "a"], "of-a"),
        (&[("GEARTRAIN_CONTEXT", "b"), ("GEARTRAIN_URL", &c)], &[], "of-c"),
        (&[("GEARTRAIN_URL", &c)], &["--context", "b"], "of-b"),
        (&[("GEARTRAIN_CONTEXT", "b")], &["--url", &c], "of-c"),
    ] {
        assert_eq!(names(variables, flags), [expected], "{variables:?} {flags:?}");
    }
    for (arguments, why) in [
        (&["queues", "--context", "bb"][..], "there is no context bb (did you mean b?)"),
        (&["queues", "--context", "a", "--url", "memory:"], "--context and --url both name a queue"),
        (&["queues", "--context", "a", "--config", "off"], "there is no configuration file"),
        (&["server", "--context", "a"], "--url and --context are for clients"),
    ] {
        let (_, err, code) = outcome(sandbox.configured(&file, &[], arguments));
        assert_eq!((code, err.contains(why)), (2, true), "{arguments:?}: {err}");
    }
}

/// Runs a command in a terminal, and types an answer.
fn in_terminal(command: &Command, answer: &str) -> (String, i32) {
    const TERMINAL: &str =
        "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
    let mut terminal = Command::new("python3");
    terminal.args(["-c", TERMINAL]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => terminal.env(name, value),
            None => terminal.env_remove(name),
        };
    }
    let mut child =
        terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(format!("{answer}\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code().unwrap())
}

#[test]
fn changes_of_a_context_in_production_are_confirmed() {
    let sandbox = Sandbox::new();
    let file = contexts(&sandbox);
    let on = |arguments: &[&str]| sandbox.configured(&file, &[], &[arguments, &["--context", "b"]].concat());
    let count = || {
        let list: Value = serde_json::from_str(&succeed(on(&["queues", "--json"]))).unwrap();
        list.as_array().unwrap().len()
    };
    // Without a terminal, changes need --yes; what only reads does not.
    for arguments in [
        &["put", "q", "k"][..],
        &["put", "q", "k", "--json"],
        &["pause", "q"],
        &["pop", "q", "--worker", "w"],
        &["cancel", "j1"],
        &["config", "set", "heartbeat", "90"],
        &["recur", "add", "q", "k", "--every", "1h"],
        &["limits", "q", "--max", "5"],
    ] {
        let (out, err, code) = outcome(on(arguments));
        assert_eq!((out.as_str(), code), ("", 2), "{arguments:?}: {err}");
        assert!(
            err.contains("b is a context in production") && err.contains("--yes"),
            "{arguments:?}: {err}"
        );
    }
    assert_eq!(count(), 0);
    succeed(on(&["put", "q", "k", "--yes"]));
    assert_eq!(count(), 1);
    // In a terminal its name is asked for.
    let (asked, code) = in_terminal(&on(&["put", "r", "k"]), "yes");
    assert_eq!((code, count()), (1, 1), "{asked}");
    assert!(asked.contains("b is a context in production: type its name to change it: "), "{asked}");
    assert!(asked.contains("that is not b: nothing was changed"), "{asked}");
    let (asked, code) = in_terminal(&on(&["put", "r", "k"]), "b");
    assert_eq!((code, count()), (0, 2), "{asked}");
    let (asked, code) = in_terminal(&on(&["pause", "q"]), "b");
    assert_eq!((code, asked.matches("type its name").count()), (0, 1), "{asked}");
    let (shown, code) = in_terminal(&on(&["queues"]), "");
    assert_eq!((code, shown.contains("production")), (0, false), "{shown}");
}

#[test]
fn a_context_has_a_password_file_that_is_not_shown() {
    let sandbox = Sandbox::new();
    let secret = "s3cret-of-the-test";
    let password = sandbox.file("password", &format!("{secret}\n"));
    let server = ServerProcess::start(&["--password-file", &password]);
    let text = format!(
        "[context.main]\nurl = \"{}\"\npassword_file = \"~/password\"\n\
         [context.other]\nurl = \"redis://:{secret}@{}\"\n[server]\npassword_file = \"{password}\"\n",
        server.url(),
        server.address(),
    );
    let file = sandbox.file("c.toml", &text);
    let run = |variables: &[(&str, &str)], arguments: &[&str]| {
        outcome(sandbox.configured(&file, variables, arguments))
    };
    assert_eq!(run(&[], &["queues", "--context", "main"]).2, 0);
    assert_eq!(run(&[], &["queues", "--context", "other"]).2, 0);
    assert_eq!(run(&[], &["queues", "--url", &server.url()]).2, 3, "it has no password");
    // A named context keeps its own.
    assert_eq!(run(&[("GEARTRAIN_PASSWORD", "wrong")], &["queues", "--context", "main"]).2, 0);
    let environment = [("GEARTRAIN_CONTEXT", "main"), ("GEARTRAIN_PASSWORD", "wrong")];
    assert_eq!(run(&environment, &["queues"]).2, 3, "what is in the environment comes first");
    for variables in
        [&[][..], &[("GEARTRAIN_PASSWORD", secret)], &[("GEARTRAIN_STORE", "redis://:s3cret-of-the-test@h")]]
    {
        for flags in [&[][..], &["--json"], &["--context", "other"], &["--context", "main", "--json"]] {
            let (out, err, code) = run(variables, &[&["config", "show"], flags].concat());
            assert_eq!(code, 0, "{err}");
            assert!(!out.contains(secret) && !err.contains(secret), "{variables:?} {flags:?}: {out}{err}");
        }
    }
    let show = shown(sandbox.configured(&file, &[("GEARTRAIN_PASSWORD", secret)], &SHOW));
    assert_eq!(show("password")["value"], "(not shown)");
    let show = shown(sandbox.configured(&file, &[], &[&SHOW[..], &["--context", "main"]].concat()));
    assert_eq!((&show("context")["value"], &show("context")["flag"]), (&json!("main"), &json!("--context")));
    assert_eq!((&show("url")["origin"], &show("url")["line"]), (&json!("file"), &json!(2)));
    assert_eq!(show("password_file")["value"], json!(password));
    assert_eq!(show("server.password_file")["line"], 7);
}

#[test]
fn a_move_takes_contexts_with_their_passwords_and_confirms_production() {
    let sandbox = Sandbox::new();
    let password = sandbox.file("password", "secret");
    let (from, to) = (
        ServerProcess::start(&["--password-file", &password]),
        ServerProcess::start(&["--password-file", &password]),
    );
    let context = |name: &str, server: &ServerProcess, rest: &str| {
        format!("[context.{name}]\nurl = \"{}\"\npassword_file = \"{password}\"\n{rest}", server.url())
    };
    let text = context("old", &from, "") + &context("new", &to, "production = true\n");
    let file = sandbox.file("c.toml", &text);
    let run = |arguments: &[&str]| outcome(sandbox.configured(&file, &[], arguments));
    assert_eq!(run(&["put", "mail", "k", "--context", "old"]).2, 0);
    let change = ["move", "--from", "old", "--to", "new", "mail", "--json"];
    let by_url = ["move", "--from", "old", "--to", &to.url(), "mail", "--json"];
    for arguments in [&change, &by_url] {
        let (out, err, code) = run(arguments);
        assert_eq!((out.as_str(), code), ("", 2), "{err}");
        assert!(err.contains("new is a context in production"), "{err}");
    }
    let (out, err, code) = run(&[&change[..], &["--dry-run"]].concat());
    assert!(code == 0 && out.contains("\"moved\":1"), "{out}{err}");
    let (out, err, code) = run(&[&change[..], &["--yes"]].concat());
    assert!(code == 0 && out.contains("\"moved\":1"), "{out}{err}");
    let (queues, err, _) = run(&["queues", "mail", "--json", "--context", "new"]);
    assert!(queues.contains("\"waiting\":1"), "{queues}{err}");
}

#[test]
fn servers_and_clients_take_socket_files_and_host_names() {
    let sandbox = Sandbox::new();
    let (resp, http) =
        (format!("unix:{}", sandbox.path("resp.sock")), format!("unix:{}", sandbox.path("http.sock")));
    let mut server = ServerProcess::start(&["--resp", &resp, "--http", &http]);
    assert_eq!((server.address(), server.http()), (resp.clone(), http));
    succeed(sandbox.configured("off", &[], &["put", "q", "k", "--url", &resp]));
    let as_redis = format!("redis+{}", resp.replacen("unix:", "unix://", 1));
    let queues = succeed(sandbox.configured("off", &[], &["queues", "--json", "--url", &as_redis]));
    assert!(queues.contains("\"waiting\":1"), "{queues}");
    let mut curl = Command::new("curl");
    curl.args([
        "--silent",
        "--fail",
        "--unix-socket",
        &sandbox.path("http.sock"),
        "http://localhost/v1/queues",
    ]);
    assert!(succeed(curl).contains("\"waiting\":1"));
    assert_eq!(server.terminate(), Some(0));
    assert!(!Path::new(&sandbox.path("resp.sock")).exists(), "the socket files go with the server");

    let server = ServerProcess::start(&["--resp", "localhost:0", "--http", "localhost:0"]);
    let port = |address: String| address.rsplit_once(':').unwrap().1.to_owned();
    let url = format!("redis://localhost:{}", port(server.address()));
    succeed(sandbox.configured("off", &[], &["put", "q", "k", "--url", &url]));
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--fail", &format!("http://localhost:{}/v1/queues", port(server.http()))]);
    assert!(succeed(curl).contains("\"waiting\":1"));
}

#[test]
fn the_file_of_the_page_is_valid() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md"));
    let page = page.unwrap();
    let (_, rest) = page.split_once("```toml\n").unwrap();
    let sandbox = Sandbox::new();
    let file = sandbox.file("c.toml", rest.split_once("```").unwrap().0);
    let show = shown(sandbox.configured(&file, &[], &SHOW));
    assert_eq!(show("server.resp")["value"], "unix:/run/geartrain/queue.sock");
    assert_eq!(show("server.job_retries")["line"], 9);
    assert_eq!(
        (&show("context")["value"], &show("url")["value"]),
        (&json!("dev"), &json!("redis://127.0.0.1:7411"))
    );
    assert_eq!(show("context.main.production")["value"], true);
    // Without a name, the file of the user is read.
    let directory = sandbox.directory.join(".config/geartrain");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::copy(&file, directory.join("geartrain.toml")).unwrap();
    let mut of_user = sandbox.configured("", &[], &SHOW);
    of_user.env_remove("GEARTRAIN_CONFIG");
    let show = shown(of_user);
    assert_eq!(show("context")["value"], "dev");
}
