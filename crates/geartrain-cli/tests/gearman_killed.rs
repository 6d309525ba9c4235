//! The server killed under Debian's Gearman tools.

use crate::served;

use std::process::{Child, Command, Stdio};

use geartrain_testkit::peers::Scratch;
use served::{Served, until};

/// A tool while it runs. It is ended with this.
struct Tool(Child);

impl Tool {
    fn start(command: &mut Command) -> Tool {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Tool(command.spawn().expect("gearman is there (on Debian and Ubuntu: apt-get install gearman-tools)"))
    }

    /// All that it printed, when it has ended by itself.
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

/// Leaves a job, and answers its handle.
fn leave(port: u16, data: &str) -> String {
    let said = Tool::start(gearman(port).args(["-v", "-b", "-f", "work", data])).output();
    said.trim_end().strip_prefix("Task created: ").unwrap_or_else(|| panic!("it said {said:?}")).to_owned()
}

/// What was left in the background is there after a crash, under the handles that clients know, also what a worker was at.
#[test]
fn jobs_in_the_background_outlive_a_server_that_is_killed() {
    let mut server = Served::start(&["--handle-host", "here"]);
    let scratch = Scratch::new("tools");
    let here = |name: &str| scratch.path().join(name);
    std::fs::write(here("here"), "").unwrap();
    // Its job lasts until the test is over, whatever became of the worker.
    let script = "echo >> begun; while [ -e here ]; do sleep 0.02; done";
    let mut command = gearman(server.gearman_port());
    command.args(["-w", "-f", "work", "--", "sh", "-c", script]).current_dir(scratch.path());
    let worker = Tool::start(&mut command);
    let mut handles = vec![leave(server.gearman_port(), "one ")];
    until("the first one has begun", || here("begun").exists());
    handles.extend(["two ", "three "].map(|data| leave(server.gearman_port(), data)));
    assert_eq!(handles, ["H:here:1", "H:here:2", "H:here:3"]);
    // This one is nobody's as soon as its client has nobody to ask.
    let waiting = Tool::start(gearman(server.gearman_port()).args(["-f", "work", "nobody's "]));
    until("it is there", || gearadmin(server.gearman_port(), &["--status"]) == "work\t4\t1\t1\n.\n");

    server.kill();
    drop((worker, waiting));
    server.start_again();

    // The worker is gone, so its job has come back.
    let jobs = "H:here:1\t1\t0\t1\nH:here:2\t0\t0\t1\nH:here:3\t0\t0\t1\n.\n";
    assert_eq!(gearadmin(server.gearman_port(), &["--show-jobs"]), jobs);
    assert_eq!(gearadmin(server.gearman_port(), &["--status"]), "work\t3\t0\t0\n.\n");
    // A handle is not given out twice.
    let fourth = leave(server.gearman_port(), "four ");
    assert!(!handles.contains(&fourth) && fourth != "H:here:4", "{fourth} was another job's");
    let next = Tool::start(gearman(server.gearman_port()).args(["-w", "-f", "work", "-c", "4"]));
    assert_eq!(next.output(), "one two three four ");
    assert_eq!(gearadmin(server.gearman_port(), &["--status"]), "work\t0\t0\t0\n.\n");
}
