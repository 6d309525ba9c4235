//! Running third-party programs, and the server that they use.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use geartrain_server::{GearmanSettings, Server, Settings};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// How long a program may take to print a line.
const WAIT: Duration = Duration::from_secs(30);

/// A running program, killed when dropped.
pub(crate) struct Program {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    complaints: Arc<Mutex<String>>,
}

impl Program {
    pub(crate) fn start(command: &mut Command) -> Program {
        let name = format!("{command:?}");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!("{name}: {error} (./test installs all that is needed: gearman-tools, python3-venv, nodejs, npm)")
        });
        let input = child.stdin.take();
        let (line, lines) = channel();
        let output = BufReader::new(child.stdout.take().expect("it was piped"));
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|said| line.send(said)));
        // Read as it comes, so that the program never blocks; shown if the test fails.
        let complaints = Arc::new(Mutex::new(String::new()));
        let (kept, errors) = (complaints.clone(), BufReader::new(child.stderr.take().expect("it was piped")));
        std::thread::spawn(move || {
            for complaint in errors.lines().map_while(Result::ok) {
                kept.lock().expect("no thread panics with it").push_str(&format!("{complaint}\n"));
            }
        });
        Program { name, child, input, lines, complaints }
    }

    /// Its next line.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        match self.lines.recv_timeout(WAIT) {
            Ok(line) => line,
            Err(why) => panic!("{} said nothing more: {why}", self.name),
        }
    }

    /// Its next line, parsed as JSON.
    #[track_caller]
    pub(crate) fn read_json(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{} said {line:?}: {error}", self.name))
    }

    /// Sends a request without waiting for a reply.
    #[track_caller]
    pub(crate) fn send(&mut self, request: &Value) {
        let input = self.input.as_mut().expect("its input is open");
        writeln!(input, "{request}").unwrap_or_else(|error| panic!("{} does not listen: {error}", self.name));
    }

    /// Sends a request and returns the next reply.
    #[track_caller]
    pub(crate) fn answer(&mut self, request: &Value) -> Value {
        self.send(request);
        self.read_json()
    }

    /// Submits a background job and returns its handle.
    #[track_caller]
    pub(crate) fn submit_background(&mut self, request: Value) -> String {
        let mut request = request;
        request["background"] = json!(true);
        self.created(&request)
    }

    /// Submits a job and returns its handle.
    #[track_caller]
    pub(crate) fn created(&mut self, request: &Value) -> String {
        let said = self.answer(request);
        let handle = said["created"].as_str();
        handle.unwrap_or_else(|| panic!("{} said {said} to {request}", self.name)).to_owned()
    }

    /// Submits a job and returns its end.
    #[track_caller]
    pub(crate) fn run(&mut self, request: &Value) -> Value {
        self.created(request);
        self.read_json()
    }

    /// The payload of the next job that the worker reports.
    #[track_caller]
    pub(crate) fn took(&mut self) -> String {
        let said = self.read_json();
        let took = said["took"].as_str();
        took.unwrap_or_else(|| panic!("{} said {said}", self.name)).to_owned()
    }

    /// Lets a worker finish the job that it holds.
    pub(crate) fn finish_job(&mut self) {
        let input = self.input.as_mut().expect("its input is open");
        input.write_all(b"go on\n").expect("it listens");
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            let complaints = self.complaints.lock().map(|said| said.clone()).unwrap_or_default();
            eprintln!("{} complained:\n{complaints}", self.name);
        }
    }
}

/// The output and the exit code of a program.
#[derive(Debug, PartialEq)]
pub(crate) struct ProgramOutput {
    pub(crate) code: Option<i32>,
    pub(crate) output: Vec<u8>,
    pub(crate) complaints: String,
}

impl ProgramOutput {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.output).expect("it prints text")
    }
}

/// A program that runs to its end in the background, killed when dropped.
pub(crate) struct Running {
    name: String,
    child: Child,
    output: Option<JoinHandle<Vec<u8>>>,
    complaints: Option<JoinHandle<String>>,
}

impl Running {
    /// Starts it with this standard input.
    pub(crate) fn start(command: &mut Command, input: &[u8]) -> Running {
        let name = format!("{command:?}");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!("{name}: {error} (on Debian and Ubuntu: apt-get install gearman-tools)")
        });
        let mut writer = child.stdin.take().expect("it was piped");
        let input = input.to_vec();
        // A program need not read all of it.
        std::thread::spawn(move || drop(writer.write_all(&input)));
        let (mut reader, mut errors) =
            (child.stdout.take().expect("it is piped"), child.stderr.take().expect("it is piped"));
        let output = std::thread::spawn(move || {
            let mut output = Vec::new();
            reader.read_to_end(&mut output).expect("a pipe can be read");
            output
        });
        let complaints = std::thread::spawn(move || {
            let mut said = String::new();
            errors.read_to_string(&mut said).expect("it complains in words");
            said
        });
        Running { name, child, output: Some(output), complaints: Some(complaints) }
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn output(mut self) -> ProgramOutput {
        geartrain_testkit::peers::until(&format!("{} ends", self.name), || {
            self.child.try_wait().expect("it was started here").is_some()
        });
        let code = self.child.wait().expect("it was started here").code();
        let output = self.output.take().map(|output| output.join().expect("it was read"));
        let complaints = self.complaints.take().map(|said| said.join().expect("it was read"));
        ProgramOutput { code, output: output.unwrap_or_default(), complaints: complaints.unwrap_or_default() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Gearman library, used by programs in peers/.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Library {
    Gear,
    Python3Gearman,
    Gearmanode,
}

impl Library {
    pub(crate) fn worker(self, port: u16, functions: &[&str]) -> Program {
        let mut worker = Program::start(self.command("worker", port).args(functions));
        assert_eq!(worker.read_json(), json!({"ready": true}));
        worker
    }

    pub(crate) fn client(self, port: u16) -> Program {
        Program::start(&mut self.command("client", port))
    }

    fn command(self, role: &str, port: u16) -> Command {
        let mut command = match self {
            Library::Gear => python(&format!("gear_{role}.py")),
            Library::Python3Gearman => python(&format!("gearman_{role}.py")),
            Library::Gearmanode => {
                let mut command = Command::new("node");
                command.arg(peers().join(format!("gearman-node/{role}.js")));
                command.env("GEARMAN_NODE", &*NODE);
                command
            }
        };
        command.args(["--port", &port.to_string()]);
        command
    }
}

fn python(program: &str) -> Command {
    let mut command = Command::new(&*PYTHON);
    // No bytecode files beside the programs.
    command.arg(peers().join("gearman-py").join(program)).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// The interpreter with the libraries, and the module directory for Node. Installed on first use.
static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| set_up("gearman-py"));
static NODE: LazyLock<PathBuf> = LazyLock::new(|| set_up("gearman-node"));

fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../peers")
}

fn set_up(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("..").join(name);
    let setup =
        Command::new(peers().join(name).join("setup")).arg(directory).stderr(Stdio::inherit()).output();
    let setup = setup.expect("python3 is there (on Debian and Ubuntu: apt-get install python3 python3-venv)");
    assert!(setup.status.success(), "{name} cannot be set up; it said why");
    PathBuf::from(String::from_utf8(setup.stdout).expect("its path is text").trim_end())
}

/// A geartrain server, stopped when dropped.
pub(crate) struct Geartrain {
    pub(crate) runtime: Runtime,
    server: Option<Server>,
}

impl Geartrain {
    /// A server in memory.
    pub(crate) fn start() -> Geartrain {
        Geartrain::with("memory:", |_| {})
    }

    pub(crate) fn with(store: &str, choose: impl FnOnce(&mut GearmanSettings)) -> Geartrain {
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut gearman = GearmanSettings::new(free);
        gearman.host = Some("here".to_owned());
        choose(&mut gearman);
        let settings = Settings { gearman: Some(gearman), ..Settings::new(store, free) };
        let runtime = Runtime::new().expect("threads can be started");
        let server = runtime.block_on(Server::start(&settings)).expect("the server starts");
        Geartrain { runtime, server: Some(server) }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs until the end")
    }

    /// The Gearman port.
    pub(crate) fn port(&self) -> u16 {
        self.server().gearman().unwrap().ip().unwrap().port()
    }

    /// Waits until an administrator has sent `shutdown`.
    #[track_caller]
    pub(crate) fn is_shutdown_requested(&self) {
        let asked = async { tokio::time::timeout(WAIT, self.server().shutdown_requested()).await };
        self.runtime.block_on(asked).expect("it is asked to end");
    }

    /// Our client, on the RESP port.
    pub(crate) fn client(&self) -> geartrain::Client {
        let url = format!("redis://{}", self.server().resp());
        self.runtime.block_on(geartrain::connect(&url)).expect("the server is there")
    }
}

impl Drop for Geartrain {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
    }
}
