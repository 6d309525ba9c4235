//! A real Redis for one test: started on a free port in a directory of its own, and ended with the test.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// How often it is looked whether the server answers, and how long in between.
const LOOKS: (u32, std::time::Duration) = (1_000, std::time::Duration::from_millis(5));

/// A redis-server.
pub(crate) struct Server {
    child: Child,
    directory: PathBuf,
    pub(crate) port: u16,
}

impl Server {
    /// Starts one. Between finding a free port and taking it another program may, so that it is tried again.
    pub(crate) fn start() -> Server {
        (0..10)
            .find_map(|_| Server::try_start())
            .expect("redis-server starts on a free port (see what it says when it is started by hand)")
    }

    fn try_start() -> Option<Server> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("geartrain-redis-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a temporary directory can be made");
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|free| free.local_addr())
            .expect("a port is free")
            .port();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .arg("--dir")
            .arg(&directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server can be run: install it, for example with `apt-get install redis-server`");
        let mut server = Server { child, directory, port };
        for _ in 0..LOOKS.0 {
            if server.client().get_connection().is_ok() {
                return Some(server);
            }
            if server.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return None;
            }
            std::thread::sleep(LOOKS.1);
        }
        None
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn client(&self) -> redis::Client {
        redis::Client::open(self.url()).expect("it is a URL")
    }

    pub(crate) fn connect(&self) -> redis::Connection {
        self.client().get_connection().expect("the server answers")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
