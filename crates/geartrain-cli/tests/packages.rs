//! The packages of `packaging/`: installed from local files into clean environments, and what their files name exists.
//!
//! They are made of the program under test; in `./test long` of the one that is published (profile dist). There the
//! Debian package is installed as well: packaging/tests/debian.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use geartrain_testkit::peers::{RedisServer, Scratch};
use serde_json::{Value, json};

use crate::sandbox::Sandbox;
use crate::security::get;
use crate::server_process::{ServerProcess, until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_geartrain");

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").canonicalize().unwrap()
}

/// A command in an environment without settings of ours, or of Python and npm.
fn clean(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    let is_setting =
        |name: &str| name.starts_with("GEARTRAIN_") || name.starts_with("PYTHON") || name.starts_with("npm_");
    for (name, _) in std::env::vars().filter(|(name, _)| is_setting(name)) {
        command.env_remove(name);
    }
    command.env("GEARTRAIN_CONFIG", "off").env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
    command
}

/// Runs a command; returns its output, what it says, and its exit code.
fn try_output(command: &mut Command) -> (String, String, i32) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code().unwrap_or(-1))
}

fn output(command: &mut Command) -> String {
    let (out, err, code) = try_output(command);
    assert_eq!(code, 0, "{command:?}: {out}{err}");
    out
}

/// Makes a package with one of the scripts.
fn package(script: &str, out: &Path) -> PathBuf {
    let mut command = clean(packaging().join(script));
    command.arg("--out").arg(out);
    if std::env::var_os("GEARTRAIN_LONG").is_none() {
        command.args(["--program", PROGRAM]);
    }
    PathBuf::from(output(&mut command).lines().last().unwrap())
}

/// The server of a package.
struct PackagedServer {
    child: Child,
    url: String,
}

impl PackagedServer {
    fn start(program: &Path, data: &Path) -> PackagedServer {
        let mut command = clean(program);
        command.args(["server", "--json", "--log", "error", "--resp", "127.0.0.1:0", "--gearman", "off"]);
        command.args(["--http", "off", "--data"]).arg(data).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = serde_json::from_str::<Value>(&line).ok();
        let url = url.and_then(|ready| Some(format!("redis://{}", ready["resp"].as_str()?)));
        // The child is ended even if it said nothing.
        let mut server = PackagedServer { child, url: String::new() };
        server.url = url.unwrap_or_else(|| panic!("not ready: {line:?}"));
        server
    }

    /// SIGTERM, which has to reach the server itself.
    fn terminate(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let mut status = None;
        until("the server has stopped", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(0));
    }
}

impl Drop for PackagedServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Puts with the installed command, works with the installed library, and reads the result with the command again.
fn put_work_result(program: &Path, server: &PackagedServer, worker: &mut Command) {
    let run = |arguments: &[&str]| output(clean(program).args(arguments).env("GEARTRAIN_URL", &server.url));
    run(&["put", "mail", "welcome", r#"{"to":"ann"}"#, "--jid", "j1", "--keep-result"]);
    output(worker.env("GEARTRAIN_URL", &server.url));
    for (jid, to) in [("j1", "ann"), ("j2", "bob")] {
        let result: Value = serde_json::from_str(&run(&["result", jid])).unwrap();
        assert_eq!(result, json!({ "sent": to }));
    }
    run(&["put", "mail", "welcome", "text", "--jid", "j3", "--keep-result"]);
    run(&["work", "mail", "--drain", "--", "cat"]);
    assert_eq!(run(&["result", "j3"]), "text");
}

#[test]
fn the_wheel_runs_server_put_and_worker() {
    const WORKER: &str = r#"
from geartrain import Client, Worker
client = Client()
assert client.put("mail", "welcome", {"to": "bob"}, jid="j2", keep_result=True) == "j2"
worker = Worker(["mail"])
@worker.on("welcome")
def welcome(job): return {"sent": job.payload["to"]}
worker.run(drain=True)
assert client.wait("j2", 30) == {"sent": "bob"}
"#;
    let scratch = Scratch::new("wheel");
    let wheel = package("wheel", scratch.path());
    let venv = scratch.path().join("venv");
    output(clean("python3").args(["-m", "venv"]).arg(&venv));
    let pip = |wheel: &Path| {
        let mut command = clean(venv.join("bin/python"));
        command.args(["-m", "pip", "--disable-pip-version-check", "install", "--no-index", "--quiet"]);
        try_output(command.arg(wheel))
    };

    // On another platform pip refuses it.
    let name = wheel.file_name().unwrap().to_str().unwrap();
    let (front, _) = name.split_once("manylinux").expect("the tag names the glibc");
    let foreign = scratch.path().join(format!("{front}macosx_11_0_arm64.whl"));
    std::fs::copy(&wheel, &foreign).unwrap();
    let (_, err, code) = pip(&foreign);
    assert!(code != 0 && err.contains("is not a supported wheel on this platform"), "{err}");

    let (out, err, code) = pip(&wheel);
    assert_eq!(code, 0, "{out}{err}");
    let program = venv.join("bin/geartrain");
    let server = PackagedServer::start(&program, &scratch.path().join("data"));
    put_work_result(&program, &server, clean(venv.join("bin/python")).args(["-c", WORKER]));
    server.terminate();
    assert_eq!(try_output(clean(&program).arg("putt")).2, 2, "exit codes come through");
    let shown = output(clean(venv.join("bin/python")).args(["-m", "pip", "show", "--files", "geartrain"]));
    for file in ["geartrain/py.typed", "geartrain/django/backend.py", "licenses/LICENSE-MIT"] {
        assert!(shown.contains(file), "{shown}");
    }

    // Without the program, as in an installation from source, the command says what to do.
    let find = "import geartrain.command; print(geartrain.command.PROGRAM)";
    let path = output(clean(venv.join("bin/python")).args(["-c", find]));
    std::fs::remove_file(path.trim()).unwrap();
    let (_, err, code) = try_output(clean(&program).arg("ping"));
    assert!(code == 2 && err.contains("has no program for Linux") && err.contains("cargo install"), "{err}");
}

#[test]
fn the_npm_package_runs_server_put_and_worker() {
    const WORKER: &str = r#"
import { Client, Worker } from 'geartrain'
import assert from 'node:assert'
const client = new Client()
assert.equal(await client.put('mail', 'welcome', { to: 'bob' }, { jid: 'j2', keep_result: true }), 'j2')
const worker = new Worker(['mail'])
worker.on('welcome', async (job) => ({ sent: job.payload.to }))
await worker.run({ drain: true })
assert.deepEqual(await client.wait('j2', 30), { sent: 'bob' })
client.close()
"#;
    let scratch = Scratch::new("npm");
    let tarball = package("npm", scratch.path());
    let project = scratch.path().join("project");
    std::fs::create_dir(&project).unwrap();
    std::fs::write(project.join("package.json"), r#"{"name":"project","private":true}"#).unwrap();
    let npm = |tarball: &Path| {
        let mut command = clean("npm");
        command.args(["install", "--offline", "--no-audit", "--no-fund", "--ignore-scripts", "--cache"]);
        try_output(command.arg(scratch.path().join("cache")).arg(tarball).current_dir(&project))
    };

    // npm refuses a package for another platform: the same one, made for macOS.
    let foreign = scratch.path().join("foreign.tgz");
    let tar = |arguments: &[&str]| output(clean("tar").current_dir(scratch.path()).args(arguments));
    tar(&["--extract", "--file", tarball.to_str().unwrap()]);
    let manifest = scratch.path().join("package/package.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("\"linux\"", "\"darwin\"")).unwrap();
    tar(&["--create", "--gzip", "--file", "foreign.tgz", "package"]);
    let (_, err, code) = npm(&foreign);
    assert!(code != 0 && err.contains("EBADPLATFORM") && err.contains("darwin"), "{err}");
    assert!(!project.join("node_modules/geartrain").exists());

    let (out, err, code) = npm(&tarball);
    assert_eq!(code, 0, "{out}{err}");
    assert!(project.join("node_modules/geartrain/LICENSE-MIT").is_file());
    let program = project.join("node_modules/.bin/geartrain");
    let server = PackagedServer::start(&program, &scratch.path().join("data"));
    std::fs::write(project.join("worker.mjs"), WORKER).unwrap();
    put_work_result(&program, &server, clean("node").arg("worker.mjs").current_dir(&project));
    server.terminate();
}

#[test]
fn the_archive_holds_the_program_its_pages_and_completions() {
    let scratch = Scratch::new("archive");
    let archive = package("binary", scratch.path());
    output(clean("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(scratch.path()));
    let prefix = scratch.path().join("usr");
    std::fs::create_dir(&prefix).unwrap();
    let mut tar = clean("tar");
    tar.args(["--extract", "--strip-components=1", "--file"]).arg(&archive).arg("--directory").arg(&prefix);
    output(&mut tar);
    let version = output(clean(prefix.join("bin/geartrain")).arg("version"));
    assert_eq!(version, format!("geartrain {}\n", env!("CARGO_PKG_VERSION")));
    for file in [
        "share/man/man1/geartrain.1",
        "share/man/man1/geartrain-recur-add.1",
        "share/bash-completion/completions/geartrain",
        "share/zsh/site-functions/_geartrain",
        "share/fish/vendor_completions.d/geartrain.fish",
        "share/doc/geartrain/LICENSE-APACHE",
        "share/doc/geartrain/LICENSE-MIT",
        "share/doc/geartrain/geartrain.toml",
        "share/doc/geartrain/geartrain.service",
    ] {
        assert!(prefix.join(file).is_file(), "{file}");
    }
    // The name of the archive says which glibc the program needs.
    let name = archive.file_name().unwrap().to_str().unwrap();
    let symbols = output(clean("objdump").arg("-T").arg(prefix.join("bin/geartrain")));
    let minors = symbols.split("GLIBC_2.").skip(1).map(|rest| rest.split(|c: char| !c.is_ascii_digit()));
    let newest: u32 = minors.filter_map(|mut parts| parts.next()?.parse().ok()).max().unwrap();
    assert!(name.ends_with(&format!("-linux-glibc2.{newest}.tar.gz")), "{name}: 2.{newest}");
}

#[test]
fn a_program_of_another_version_is_not_packed() {
    let scratch = Scratch::new("version");
    let (_, err, code) = try_output(
        clean(packaging().join("binary")).arg("--out").arg(scratch.path()).args(["--program", "/bin/true"]),
    );
    assert!(code != 0 && err.contains("/bin/true is not geartrain"), "{err}");
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "nothing is left");
}

// Settings and the unit ---------------------------------------------------------------------------------------

#[test]
fn every_setting_of_the_example_is_one() {
    let sandbox = Sandbox::new();
    let example = std::fs::read_to_string(packaging().join("debian/geartrain.toml")).unwrap();
    let is_setting = |line: &&str| line.contains(" = ") || line.starts_with('[');
    let uncomment = |line: &'static str| line.strip_prefix("# ").filter(is_setting).unwrap_or(line);
    let example: &'static str = example.leak();
    let all: String = example.lines().map(uncomment).flat_map(|line| [line, "\n"]).collect();
    assert!(all.matches(" = ").count() > 15, "{all}");
    for text in [example, &all] {
        let file = sandbox.file("geartrain.toml", text);
        let shown = sandbox.run(&["config", "show", "--config", &file]);
        assert!(shown.contains("/var/lib/geartrain"), "{shown}");
    }
}

#[test]
fn systemd_accepts_the_unit() {
    let scratch = Scratch::new("unit");
    let unit = std::fs::read_to_string(packaging().join("debian/geartrain.service")).unwrap();
    let file = scratch.path().join("geartrain.service");
    std::fs::write(&file, unit.replace("/usr/bin/geartrain", PROGRAM)).unwrap();
    let mut analyze = clean("systemd-analyze");
    analyze.args(["verify", "--man=no"]).arg(&file);
    let (out, err, code) = try_output(&mut analyze);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    // 0 is best and 10 is worst.
    let mut security = clean("systemd-analyze");
    security.args(["security", "--offline=yes", "--threshold=20"]).arg(&file);
    output(&mut security);
}

// Containers and monitoring ----------------------------------------------------------------------------------

/// The documents of a YAML file.
fn yaml(path: &str) -> Vec<Value> {
    const AS_JSON: &str = "puts JSON.generate(YAML.load_stream(File.read(ARGV[0])))";
    let file = packaging().join(path);
    let json = output(clean("ruby").args(["-r", "yaml", "-r", "json", "-e", AS_JSON]).arg(file));
    serde_json::from_str(&json).unwrap()
}

fn words(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().filter_map(Value::as_str).collect()
}

#[test]
fn the_containers_are_given_flags_and_probes_that_exist() {
    let compose = &yaml("docker/compose.yaml")[0];
    let documents = yaml("kubernetes/geartrain.yaml");
    let of_kind = |kind: &str| documents.iter().find(|document| document["kind"] == kind).unwrap();
    let container = &of_kind("StatefulSet")["spec"]["template"]["spec"]["containers"][0];
    for arguments in [&compose["services"]["geartrain"]["command"], &container["args"]] {
        // An unknown flag or a wrong value comes before the help.
        output(clean(PROGRAM).args(words(arguments)).arg("--help"));
    }
    let server = ServerProcess::start(&["--http", "127.0.0.1:0", "--store", "memory:"]);
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap();
        assert_eq!(get(&server.http(), path, "").0, 200, "{path}");
    }
    let service = of_kind("Service");
    assert_eq!(service["spec"]["selector"], of_kind("StatefulSet")["spec"]["template"]["metadata"]["labels"]);
    assert_eq!(service["spec"]["selector"], of_kind("StatefulSet")["spec"]["selector"]["matchLabels"]);
    // The instructions of the Dockerfile that start the program.
    let dockerfile = std::fs::read_to_string(packaging().join("docker/Dockerfile")).unwrap();
    for (instruction, line) in [("CMD ", "server"), ("HEALTHCHECK ", "ping")] {
        let command = dockerfile.lines().find(|text| text.starts_with(instruction)).unwrap();
        assert!(command.contains(&format!("\"{line}\"]")), "{command}");
        output(clean(PROGRAM).args([line, "--help"]));
    }
}

/// The metrics that a text names.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    let words = text.split(|c| !is_part(c));
    let is_metric = |word: &&str| {
        (word.starts_with("geartrain_") || word.starts_with("process_")) && !word.ends_with('_')
    };
    words.filter(is_metric).map(str::to_owned).collect()
}

#[test]
fn dashboard_and_alert_rules_name_metrics_that_the_server_has() {
    let alerts = yaml("monitoring/alerts.yml")[0].clone();
    let rules = alerts["groups"][0]["rules"].as_array().unwrap();
    let dashboard = std::fs::read_to_string(packaging().join("monitoring/grafana.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries: Vec<&str> =
        targets.chain(rules).map(|query| query["expr"].as_str().expect("an expression")).collect();
    let mut named: BTreeSet<String> = queries.iter().flat_map(|query| metrics_in(query)).collect();
    named.extend(metrics_in(&dashboard["templating"].to_string()));
    assert!(named.len() > 15, "{named:?}");

    // What a server shows that has done a bit of everything, on a directory and on a Redis.
    let redis = RedisServer::start(&[]);
    let on_redis = ["--http", "127.0.0.1:0", "--store", &redis.url()];
    let sandbox = Sandbox::new();
    let mut shown = String::new();
    for arguments in [&["--http", "127.0.0.1:0"][..], &on_redis] {
        let server = ServerProcess::start(arguments);
        let run = |words: &[&str]| sandbox.run(&[&["--url", server.url().as_str()], words].concat());
        run(&["put", "mail", "welcome", "{}", "--jid", "j1"]);
        run(&["put", "mail", "welcome", "{}", "--jid", "j2"]);
        run(&["pop", "mail", "--worker", "w1", "--count", "2"]);
        run(&["complete", "j1", "--worker", "w1"]);
        run(&["fail", "j2", "smtp", "broken", "--worker", "w1"]);
        // The counters of queues are sampled in the background.
        let mut text = String::new();
        until("a sample of the queue", || {
            text = get(&server.http(), "/metrics", "").1;
            text.contains("geartrain_run_seconds_count{")
        });
        shown.push_str(&text);
    }
    let samples = shown.lines().filter(|line| !line.starts_with('#'));
    let existing: BTreeSet<String> = samples.flat_map(metrics_in).collect();
    let missing: Vec<&String> = named.difference(&existing).collect();
    assert!(missing.is_empty(), "/metrics has no {missing:?}, but {existing:?}");
    // Labels with fixed values.
    for query in &queries {
        for selector in query.split('{').skip(1).filter_map(|rest| rest.split_once('}')) {
            for (label, value) in selector.0.split(", ").filter_map(|pair| pair.split_once("=\"")) {
                let (label, value) = (label.trim_end_matches('!'), value.trim_end_matches('"'));
                if label != "job" && label.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
                    assert!(shown.contains(&format!("{label}=\"{value}\"")), "{label}={value}: {query}");
                }
            }
        }
    }
}
