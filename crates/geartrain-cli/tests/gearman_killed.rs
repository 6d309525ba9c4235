//! kill -9 of a server while Debian's Gearman tools use it.

use crate::server_process;

use std::process::{Child, Command, Stdio};

use geartrain_testkit::peers::Scratch;
use server_process::{ServerProcess, until};

/// A running tool, killed when dropped.
struct Tool(Child);

impl Tool {
    fn start(command: &mut Command) -> Tool {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Tool(command.spawn().expect("gearman is there (on Debian and Ubuntu: apt-get install gearman-tools)"))
    }

    /// Its output, after it has ended by itself.
    fn output(mut self) -> String {
        let mut output = self.0.stdout.take().unwrap();
        let text = std::thread::spawn(move || std::io::read_to_string(&mut output).unwrap());
        until("the tool ends", || self.0.try_wait().unwrap().is_some());
        text.join().unwrap()
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn gearman(port: u16) -> Command {
    let mut command = Command::new("gearman");
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]);
    command
}

fn gearadmin(port: u16, words: &[&str]) -> String {
    let mut command = Command::new("gearadmin");
    command.args(["--host", "127.0.0.1", "--port", &port.to_string()]).args(words);
    Tool::start(&mut command).output()
}

/// Submits a background job and returns its handle.
fn submit_background(port: u16, data: &str) -> String {
    let said = Tool::start(gearman(port).args(["-v", "-b", "-f", "work", data])).output();
    said.trim_end().strip_prefix("Task created: ").unwrap_or_else(|| panic!("it said {said:?}")).to_owned()
}

/// Background jobs survive a crash under the same handles, including one that was running.
#[test]
fn background_jobs_survive_a_killed_server() {
    let mut server = ServerProcess::start(&["--handle-host", "here"]);
    let scratch = Scratch::new("tools");
    let here = |name: &str| scratch.path().join(name);
    std::fs::write(here("here"), "").unwrap();
    // Its job runs until the end of the test, whatever happens to the worker.
    let script = "echo >> started; while [ -e here ]; do sleep 0.02; done";
    let mut command = gearman(server.gearman_port());
    command.args(["-w", "-f", "work", "--", "sh", "-c", script]).current_dir(scratch.path());
    let worker = Tool::start(&mut command);
    let mut handles = vec![submit_background(server.gearman_port(), "one ")];
    until("the first job is running", || here("started").exists());
    handles.extend(["two ", "three "].map(|data| submit_background(server.gearman_port(), data)));
    assert_eq!(handles, ["H:here:1", "H:here:2", "H:here:3"]);
    // A foreground job: it is removed with its client's connection.
    let waiting = Tool::start(gearman(server.gearman_port()).args(["-f", "work", "nobody's "]));
    until("it is there", || gearadmin(server.gearman_port(), &["--status"]) == "work\t4\t1\t1\n.\n");

    server.kill();
    drop((worker, waiting));
    server.restart();

    // The worker was lost, so its job is in the queue again.
    let jobs = "H:here:1\t1\t0\t1\nH:here:2\t0\t0\t1\nH:here:3\t0\t0\t1\n.\n";
    assert_eq!(gearadmin(server.gearman_port(), &["--show-jobs"]), jobs);
    assert_eq!(gearadmin(server.gearman_port(), &["--status"]), "work\t3\t0\t0\n.\n");
    // Handles are not reused.
    let fourth = submit_background(server.gearman_port(), "four ");
    assert!(!handles.contains(&fourth) && fourth != "H:here:4", "{fourth} was another job's");
    let next = Tool::start(gearman(server.gearman_port()).args(["-w", "-f", "work", "-c", "4"]));
    assert_eq!(next.output(), "one two three four ");
    assert_eq!(gearadmin(server.gearman_port(), &["--status"]), "work\t0\t0\t0\n.\n");
}
