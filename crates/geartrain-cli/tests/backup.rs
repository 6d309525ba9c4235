//! Backups of a running server: over its URL, through its socket file, and as an archive.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use geartrain::Client;
use geartrain_drill::{Ledger, LoadClients};
use geartrain_testkit::peers::{RedisServer, until};
use pollster::block_on;
use sandbox::Sandbox;
use serde_json::json;

use crate::sandbox;
use crate::server_process::ServerProcess;

fn connect(url: &str) -> Client {
    block_on(geartrain::connect(url)).unwrap()
}

/// Unpacks an archive as the documentation says.
fn unpack(archive: &Path, directory: &str) {
    let script = "mkdir -m 700 \"$1\" && tar -xf \"$0\" -C \"$1\"";
    assert!(Command::new("sh").args(["-c", script]).arg(archive).arg(directory).status().unwrap().success());
}

fn assert_has(sandbox: &Sandbox, copy: &str, acknowledged: &Ledger) {
    sandbox.run(&["check", "--copy", &sandbox.path(copy)]);
    let opened = connect(&sandbox.url(copy));
    acknowledged.verify(&**opened.backend()).unwrap().assert_kept();
    drop(opened);
    std::fs::remove_dir_all(sandbox.path(copy)).unwrap();
}

/// Submits jobs with payloads so large that a backup takes a while.
fn put_large(sandbox: &Sandbox, url: &str, jobs: usize) {
    let payload = sandbox.directory.join("payload");
    std::fs::write(&payload, vec![b'x'; 4 << 20]).unwrap();
    for _ in 0..jobs {
        sandbox.run(&["--url", url, "put", "mail", "welcome", &format!("@{}", payload.display())]);
    }
}

fn partial(directory: &str) -> PathBuf {
    PathBuf::from(format!("{directory}.partial"))
}

#[test]
fn every_copy_has_what_was_acknowledged_before_while_clients_are_at_work() {
    let (sandbox, server) = (Sandbox::new(), ServerProcess::start(&[]));
    let clients = LoadClients::start(4, "load", || Ok(connect(&server.url()).backend().clone())).unwrap();
    let embedded = format!("embedded:{}", server.data().display());
    for round in 0..3 {
        clients.wait_for_completed(60).unwrap();
        for url in [&server.url(), &embedded] {
            let (acknowledged, copy) = (clients.acknowledged(), format!("copy-{round}"));
            let out = sandbox.path(&copy);
            let summary = sandbox.json(&["--url", url, "backup", &out]);
            assert_eq!(summary["directory"], json!(out));
            assert!(summary["jobs"].as_u64() > Some(0) && summary["bytes"].as_u64() > Some(0), "{summary}");
            assert!(summary["position"]["segment"].as_u64() > Some(0), "{summary}");
            assert_has(&sandbox, &copy, &acknowledged);
        }
        let (acknowledged, archive) = (clients.acknowledged(), sandbox.directory.join("copy.tar"));
        let made = sandbox.command(&["--url", &server.url(), "backup", "-", "--json"]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let summary: serde_json::Value = serde_json::from_slice(&made.stderr).unwrap();
        assert_eq!(summary["directory"], json!(null));
        std::fs::write(&archive, made.stdout).unwrap();
        unpack(&archive, &sandbox.path("unpacked"));
        assert_has(&sandbox, "unpacked", &acknowledged);
    }
    let ledger = clients.finish();
    assert_eq!(ledger.unanswered, 0, "{:?}", ledger.errors);
    ledger.verify(&**connect(&server.url()).backend()).unwrap().assert_kept();
}

#[test]
fn a_server_killed_during_a_backup_leaves_no_copy_that_looks_complete() {
    let (sandbox, mut server) = (Sandbox::new(), ServerProcess::start(&[]));
    put_large(&sandbox, &server.url(), 10);
    let out = sandbox.path("out");
    // Again if the kill came too late, and the copy is complete.
    until("the server is killed during a backup", || {
        let client =
            sandbox.command(&["--url", &server.url(), "backup", &out]).stderr(Stdio::piped()).spawn();
        until("the backup has begun", || partial(&out).exists() || Path::new(&out).exists());
        server.kill();
        let ended = client.unwrap().wait_with_output().unwrap();
        if Path::new(&out).exists() {
            sandbox.run(&["check", "--copy", &out]);
            std::fs::remove_dir_all(&out).unwrap();
            server.restart();
            return false;
        }
        assert_eq!(ended.status.code(), Some(3), "{ended:?}");
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(said.contains("the backup is not complete") || said.contains("cannot reach"), "{said}");
        partial(&out).exists()
    });
    sandbox.run(&["check", "--url", &format!("embedded:{}", server.data().display())]);

    server.restart();
    sandbox.run(&["--url", &server.url(), "backup", &out]);
    assert!(!partial(&out).exists());
    assert_eq!(sandbox.json(&["check", "--copy", &out])["jobs"]["waiting"], 10);

    // An archive: what came so far cannot be taken for all of it.
    let (mut to_client, mut begun) = begin_archive(&sandbox, &server.url());
    server.kill();
    to_client.stdout.take().unwrap().read_to_end(&mut begun).unwrap();
    assert_eq!(to_client.wait().unwrap().code(), Some(3));
    let archive = sandbox.directory.join("cut.tar");
    std::fs::write(&archive, begun).unwrap();
    let cut = sandbox.path("cut");
    std::fs::create_dir(&cut).unwrap();
    let _ = Command::new("tar").arg("-xf").arg(&archive).args(["-C", &cut]).stderr(Stdio::null()).status();
    assert_eq!(sandbox.try_run(&["check", "--copy", &cut]).2, 1);
}

#[test]
fn a_server_stopped_during_a_backup_leaves_nothing_of_it() {
    let (sandbox, mut server) = (Sandbox::new(), ServerProcess::start(&[]));
    put_large(&sandbox, &server.url(), 10);
    let out = sandbox.path("out");
    let mut client =
        sandbox.command(&["--url", &server.url(), "backup", &out]).stderr(Stdio::null()).spawn().unwrap();
    until("the backup has begun", || partial(&out).exists() || Path::new(&out).exists());
    assert_eq!(server.terminate(), Some(0));
    assert!(!partial(&out).exists());
    client.wait().unwrap();
    // Unless it was complete already.
    if Path::new(&out).exists() {
        sandbox.run(&["check", "--copy", &out]);
    }
}

/// Starts a client of an archive that waits for its reader, and so does the server. Also returns its first byte.
fn begin_archive(sandbox: &Sandbox, url: &str) -> (Child, Vec<u8>) {
    let mut client = sandbox.command(&["--url", url, "backup", "-"]);
    let mut client = client.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut first = vec![0];
    client.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    (client, first)
}

/// Whether a backup of the server is running.
fn is_running(sandbox: &Sandbox, url: &str) -> bool {
    let name = format!("probe-{}", uuid::Uuid::now_v7().simple());
    let (_, err, code) = sandbox.try_run(&["--url", url, "backup", &sandbox.path(&name)]);
    if code == 0 {
        return false;
    }
    assert!(code == 1 && err.contains("another backup of this queue is running"), "{code}: {err}");
    true
}

#[test]
fn a_backup_ends_with_its_client() {
    let (sandbox, server) = (Sandbox::new(), ServerProcess::start(&[]));
    put_large(&sandbox, &server.url(), 10);
    let (mut client, _) = begin_archive(&sandbox, &server.url());
    assert!(is_running(&sandbox, &server.url()));
    client.kill().unwrap();
    client.wait().unwrap();
    until("the backup has ended", || !is_running(&sandbox, &server.url()));
    // A client that stops a backup into a directory leaves nothing.
    let out = sandbox.path("out");
    let mut client = sandbox.command(&["--url", &server.url(), "backup", &out]).spawn().unwrap();
    until("the backup has begun", || partial(&out).exists() || Path::new(&out).exists());
    client.kill().unwrap();
    client.wait().unwrap();
    until("the backup has ended", || !partial(&out).exists());
}

#[test]
fn an_archive_whose_reader_ends_is_an_error() {
    let sandbox = Sandbox::new();
    put_large(&sandbox, &sandbox.url("data"), 2);
    let mut client = sandbox.command(&["backup", "-"]);
    let mut client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(client.stdout.take());
    let ended = client.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(3), "{said}");
    assert!(said.contains("the archive cannot be written"), "{said}");
}

#[test]
fn a_copy_that_cannot_be_written_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    let payload = sandbox.directory.join("payload");
    std::fs::write(&payload, vec![b'x'; 24 << 20]).unwrap();
    sandbox.run(&["put", "mail", "welcome", &format!("@{}", payload.display())]);
    // A limit of 12 MiB on files that are written, which the copy of the payload reaches half-way.
    let script = "trap '' XFSZ; ulimit -f 24576; exec \"$0\" \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_geartrain")]);
    let out = sandbox.path("out");
    let ended = shell.args(["--url", &sandbox.url("data"), "backup", &out]).output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(
        said.contains("cannot make a backup: ") && said.contains(&format!("{out}.partial/payloads-")),
        "{said}"
    );
    assert!(!Path::new(&out).exists() && !partial(&out).exists());
    sandbox.run(&["backup", &out]);
    sandbox.run(&["check", "--copy", &out]);
}

#[test]
fn what_cannot_be_backed_up_is_refused_with_advice() {
    let sandbox = Sandbox::new();
    let redis = RedisServer::start(&[]);
    let (memory, in_front) =
        (ServerProcess::start(&["--store", "memory:"]), ServerProcess::start(&["--store", &redis.url()]));
    let out = sandbox.path("out");
    for target in [&out[..], "-"] {
        for (url, advice) in [
            (&memory.url(), "a memory: queue stores nothing on disk"),
            (&in_front.url(), "`redis-cli --rdb FILE`"),
            (&redis.url(), "`redis-cli --rdb FILE`"),
        ] {
            let (stdout, err, code) = sandbox.try_run(&["--url", url, "backup", target]);
            assert_eq!((stdout.as_str(), code), ("", 1), "{err}");
            assert!(err.contains(advice) && err.matches('\n').count() == 1, "{err}");
        }
    }
    assert!(!Path::new(&out).exists() && !partial(&out).exists());
    let server = ServerProcess::start(&[]);
    std::fs::create_dir(&out).unwrap();
    std::fs::write(sandbox.directory.join("out/notes"), "not ours").unwrap();
    let (_, err, code) = sandbox.try_run(&["--url", &server.url(), "backup", &out]);
    assert!(code == 1 && err.contains("is not empty"), "{code}: {err}");
}

#[test]
fn a_copy_is_checked_by_its_name() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "mail", "welcome", "--jid", "j1"]);
    let out = sandbox.path("out");
    sandbox.run(&["backup", &out]);
    assert_eq!(sandbox.json(&["check", "--copy", &out])["jobs"]["waiting"], 1);
    let log = sandbox.directory.join("out/log-00000000000000000001");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[2 * 4096 + 80] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let (_, err, code) = sandbox.try_run(&["check", "--copy", &out]);
    assert!(code == 1 && err.contains("(file log-00000000000000000001) is damaged at byte 8192"), "{err}");
    // The advice works as it is written.
    let advice = format!("`geartrain check --url embedded:{out} --salvage OUT`");
    assert!(err.trim_end().ends_with(&advice), "{err}");
    sandbox.run(&["check", "--url", &format!("embedded:{out}"), "--salvage", &sandbox.path("saved")]);
    let (_, err, code) = sandbox.try_run(&["check", "--copy", &log.display().to_string()]);
    assert!(code == 2 && err.contains("tar -xf"), "{code}: {err}");
    std::fs::create_dir(sandbox.path("empty")).unwrap();
    let (_, err, code) = sandbox.try_run(&["check", "--copy", &sandbox.path("empty")]);
    assert!(code == 1 && err.contains("has no log"), "{code}: {err}");
    // Nor is a directory without a queue made into one, and backed up.
    let (url, copy) = (sandbox.url("empty"), sandbox.path("copy"));
    let (_, err, code) = sandbox.try_run(&["--url", &url, "backup", &copy]);
    assert!(code == 3 && err.contains("there is no queue in "), "{code}: {err}");
    assert_eq!(std::fs::read_dir(sandbox.path("empty")).unwrap().count(), 0);
    assert!(!Path::new(&copy).exists());
}
