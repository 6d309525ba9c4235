//! `geartrain ping`: what answers, and exit code 3 if nothing does.

use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;

use crate::server_process::ServerProcess;

fn ping(arguments: &[&str]) -> (String, String, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_geartrain"))
        .arg("ping")
        .args(arguments)
        .env_remove("GEARTRAIN_URL")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code())
}

#[test]
fn ping_names_the_server_on_both_ports_and_its_version() {
    let server = ServerProcess::start(&[]);
    let gearman = format!("gearman://127.0.0.1:{}", server.gearman_port());
    for (url, backend) in [(server.url(), "redis"), (gearman, "gearman"), ("memory:".to_owned(), "memory")] {
        let (out, err, code) = ping(&["--url", &url, "--json"]);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{url}");
        let answer: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (&answer["backend"], &answer["software"]),
            (&backend.into(), &"geartrain".into()),
            "{url}"
        );
        assert_eq!(answer["version"], env!("CARGO_PKG_VERSION"), "{url}");
        assert!(answer["milliseconds"].as_f64().is_some_and(|time| time > 0.0), "{answer}");
    }
    let (out, ..) = ping(&["--url", &server.url()]);
    let begin = format!("geartrain {} at {}", env!("CARGO_PKG_VERSION"), server.url());
    assert!(out.starts_with(&begin) && out.contains(": answered in ") && out.ends_with(" ms\n"), "{out}");
}

#[test]
fn ping_of_a_closed_port_exits_3() {
    // Bound and closed again, so that nothing listens there.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (out, err, code) = ping(&["--url", &format!("redis://127.0.0.1:{port}")]);
    assert_eq!((code, out.as_str()), (Some(3), ""), "{err}");
    assert!(err.contains(&port.to_string()), "{err}");
}
