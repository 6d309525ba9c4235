//! README and the guide, replayed: every block of every page runs, in order, in a directory of the page's own.
//!
//! The blocks of `sh` of one page are one shell, against a server on free ports, which take the place of the default
//! ports in the text. What the other blocks are is said at `Block::script`. A page tells the test three things:
//!
//! - a line with a comment `until Ctrl-C` goes on in the background, and is told to end after the last block;
//! - a block of `text` directly behind another one is what that one prints, where `…` stands for anything;
//! - a block marked `no_run` is not run, as `sh,no_run`; there may be `NOT_RUN_MAX` of these.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use geartrain_testkit::peers::{RedisServer, free_port, until};
use serde_json::Value;

use crate::clients::{interpreter, repository};
use crate::sandbox::Sandbox;

/// How many blocks may be marked as not to be run. Those of Rust are compiled instead.
const NOT_RUN_MAX: usize = 2;
/// How long a page may take. Most take less than a second.
const PAGE_MAX: Duration = Duration::from_secs(300);

/// A test for each page.
macro_rules! pages {
    ($($name:ident: $path:literal),* $(,)?) => {
        const PAGES: &[&str] = &[$($path),*];

        mod page {
            $(#[test]
            fn $name() {
                super::replay($path);
            })*
        }
    };
}

pages! {
    readme: "README.md",
    start: "docs/guide/start.md",
    concepts: "docs/guide/concepts.md",
    put: "docs/guide/put.md",
    work: "docs/guide/work.md",
    worker_python: "docs/guide/worker-python.md",
    worker_node: "docs/guide/worker-node.md",
    worker_bash: "docs/guide/worker-bash.md",
    worker_ruby: "docs/guide/worker-ruby.md",
    worker_perl: "docs/guide/worker-perl.md",
    python: "docs/guide/python.md",
    node: "docs/guide/node.md",
    schedules: "docs/guide/schedules.md",
    failure: "docs/guide/failure.md",
    limits: "docs/guide/limits.md",
    explain: "docs/guide/explain.md",
    production: "docs/guide/production.md",
    coming: "docs/guide/coming.md",
    from_qless: "docs/guide/from-qless.md",
    from_gearman: "docs/guide/from-gearman.md",
    from_gearmonkey: "docs/guide/from-gearmonkey.md",
    from_workkit: "docs/guide/from-workkit.md",
    from_worqr: "docs/guide/from-worqr.md",
}

fn text_of(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A fenced block of a page.
struct Block {
    line: usize,
    language: String,
    is_run: bool,
    text: String,
    /// Nothing but empty lines is between this block and the one before it.
    follows: bool,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut is_open, mut follows) = (false, false);
    for (index, line) in text_of(page).lines().enumerate() {
        match (line.strip_prefix("```"), is_open) {
            (Some(info), false) => {
                let mut words = info.split(',');
                let language = words.next().unwrap_or_default().to_owned();
                let is_run = words.all(|word| word != "no_run");
                blocks.push(Block { line: index + 1, language, is_run, text: String::new(), follows });
                is_open = true;
            }
            (Some(_), true) => (is_open, follows) = (false, true),
            (None, true) => {
                let block = blocks.last_mut().unwrap();
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, false) => follows &= line.is_empty(),
        }
    }
    assert!(!is_open, "{page}: a block is not closed");
    blocks
}

/// The shell's part of the replay. Each block has files for what it prints.
const PRELUDE: &str = r#"
set -eE -o pipefail
trap 'echo "exit code $?: $BASH_COMMAND" >&2' ERR
BACKGROUND=

step() {
    STEP=$1
    echo "$STEP" >"$REPLAY/step"
    exec >"$REPLAY/$STEP.out" 2>"$REPLAY/$STEP.err"
}

# Polls until a command succeeds, or the program that was started last in the background has ended.
await() {
    for _ in $(seq 600); do
        if "$@" >/dev/null 2>&1; then return; fi
        kill -0 $! || break
        sleep 0.1
    done
    echo "in vain: $*" >&2
    return 1
}

# All jobs have ended.
is_idle() {
    geartrain queues --json | jq -e 'all(.[]; .waiting + .running + .stalled + .scheduled == 0)'
}

# A program has its handler of SIGTERM, so that it can be told to end.
catches_sigterm() {
    local caught
    caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status")
    ((0x$caught & 1 << 14))
}

# A worker of a library has asked for jobs: the name of its process is in its own.
is_worker() {
    geartrain workers --json | grep -q -- "-$1\""
}

# The last TOKEN or JID that the block has printed as JSON.
latest() {
    grep -o "\"$1\":\"[^\"]*\"" "$REPLAY/$STEP.out" | tail -n 1 | cut -d '"' -f 4
}

# Ends what runs in the background, the last one first: each must end by itself, with success.
end_all() {
    local pid
    for pid in $BACKGROUND; do
        kill -TERM "$pid" 2>/dev/null || true
        wait "$pid"
    done
}
"#;

/// Waits until a worker of a library, which was just started in the background, can be told to end.
const WORKER_STARTED: &str = "await is_worker $!\n";
/// A job for the workers that the README shows, and the end of the worker.
const WORKER_OF_THE_README: &str = r#"
geartrain put mail welcome '{"to":"ann"}' --wait 60s | jq -e '.sent == "ann"'
kill -TERM $!
wait $!
"#;

impl Block {
    /// The file that a program says it is, by a comment in its first line such as `# worker.py`.
    fn file_name(&self) -> Option<&str> {
        let first = self.text.lines().next()?;
        let name = first.strip_prefix("# ").or_else(|| first.strip_prefix("// "))?;
        let is_name = name.contains('.') && !name.contains(' ') && !name.ends_with('.');
        is_name.then_some(name)
    }

    /// What the shell does in place of the block.
    fn script(&self, number: usize) -> String {
        let source = format!("\"$REPLAY/{number}\"");
        let program = |command: String| match self.file_name() {
            Some(name) => format!("cp {source} {name}\n"),
            None if self.text.contains("worker.run()") => {
                format!("{command} &\n{WORKER_STARTED}{WORKER_OF_THE_README}")
            }
            None => format!("{command}\n"),
        };
        match &self.language[..] {
            "sh" => shell(&self.text),
            _ if is_shown_file(&self.text) => String::new(),
            "python" if self.text.contains("import qless") => program(format!("\"$QLESS_PYTHON\" {source}")),
            "python" => program(format!("python {source}")),
            // Packages are found beside the file.
            "js" => program(format!("cp {source} {number}.mjs; node {number}.mjs")),
            "toml" => {
                format!("python -c 'import sys, tomllib; tomllib.load(open(sys.argv[1], \"rb\"))' {source}\n")
            }
            "json" => format!("jq . {source}\n"),
            // Rust is compiled, and run unless it is marked, as documentation of the library. A picture says
            // nothing.
            "rust" | "text" => String::new(),
            other => panic!("line {}: how is {other:?} run?", self.line),
        }
    }
}

/// A block of `sh`: waits until what it starts in the background does its part.
fn shell(text: &str) -> String {
    let mut script = String::new();
    let mut starts_worker = false;
    for line in text.lines() {
        let (command, comment) = line.split_once(" # ").unwrap_or((line, ""));
        let command = command.trim_end();
        let goes_on = comment.contains("until Ctrl-C");
        let line = if goes_on { format!("{command} &") } else { line.to_owned() };
        let line = line.replace("TOKEN", "\"$(latest token)\"").replace("JID", "\"$(latest jid)\"");
        script.push_str(&line);
        script.push('\n');
        if goes_on || (command.ends_with('&') && !command.ends_with("&&")) {
            let is_server = command.split_whitespace().any(|word| word == "server");
            starts_worker |= !is_server;
            script.push_str("BACKGROUND=\"$! $BACKGROUND\"\n");
            script.push_str(match command {
                _ if is_server => "await geartrain ping\n",
                _ if command.starts_with("geartrain") => "await catches_sigterm $!\n",
                _ => WORKER_STARTED,
            });
        }
    }
    if starts_worker {
        script.push_str("await is_idle\n");
    }
    script
}

/// Whether a block shows a file of the examples, which the page has copied.
fn is_shown_file(text: &str) -> bool {
    let languages = std::fs::read_dir(repository().join("examples/workers")).unwrap();
    let mut files =
        languages.flat_map(|language| std::fs::read_dir(language.unwrap().path()).into_iter().flatten());
    files.any(|file| std::fs::read_to_string(file.unwrap().path()).is_ok_and(|file| file == text))
}

/// A shell with everything that it has started, killed when dropped.
struct Shell(Child);

impl Shell {
    fn end(&mut self, page: &str) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < PAGE_MAX, "{page} has not ended");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The shell leads a group of its own.
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

fn replay(page: &str) {
    let blocks = blocks(page);
    for attempt in 1.. {
        match replay_once(page, &blocks) {
            Ok(()) => return,
            // Another program took a port before the server of the page did.
            Err(error) if attempt < 3 && error.contains("another program listens there") => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn replay_once(page: &str, blocks: &[Block]) -> Result<(), String> {
    let (sandbox, root) = (Sandbox::new(), repository());
    let [resp, http, gearman, second_gearman] = [(); 4].map(|()| free_port().to_string());
    let redis = text_of(page).contains(":6379").then(|| RedisServer::start(&[]));
    let redis_port = redis.as_ref().map_or_else(String::new, |redis| redis.port().to_string());
    let temporary = sandbox.path("tmp/");
    let in_sandbox = |text: &str| {
        let ports = [
            ("7411", &resp),
            ("7410", &http),
            ("4730", &gearman),
            ("4731", &second_gearman),
            ("6379", &redis_port),
        ];
        ports.into_iter().fold(text.replace("/tmp/", &temporary), |text, (default, port)| {
            text.replace(&format!(":{default}"), &format!(":{port}"))
                .replace(&format!("-p {default}"), &format!("-p {port}"))
        })
    };

    // The programs that a reader has, the packages, and a checkout.
    for directory in ["bin", "home", "tmp", "replay", "page", "page/node_modules"] {
        std::fs::create_dir(sandbox.path(directory)).unwrap();
    }
    let link = |from: &Path, to: &str| std::os::unix::fs::symlink(from, sandbox.path(to)).unwrap();
    link(Path::new(env!("CARGO_BIN_EXE_geartrain")), "bin/geartrain");
    link(&root.join("clients/node"), "page/node_modules/geartrain");
    link(&root.join("examples"), "page/examples");
    // What would be built and installed is the program under test.
    let cargo = "#!/bin/sh\ntest \"$*\" = 'install --locked --path crates/geartrain-cli'\n";
    executable(&sandbox, "bin/cargo", cargo);
    sandbox.file("home/.curlrc", "fail-with-body\nsilent\nshow-error\n");

    let mut script = PRELUDE.to_owned();
    let is_server = |block: &Block| block.language == "sh" && block.text.contains("server");
    if !blocks.iter().any(is_server) {
        // That of the first page of the guide.
        script.push_str("step 0\n");
        script.push_str(&shell("geartrain server &\n"));
    }
    for (number, block) in (1..).zip(blocks) {
        let block_in_sandbox =
            Block { text: in_sandbox(&block.text), language: block.language.clone(), ..*block };
        sandbox.file(&format!("replay/{number}"), &block_in_sandbox.text);
        if block.is_run {
            write!(script, "step {number}\n{}", block_in_sandbox.script(number)).unwrap();
        }
    }
    script.push_str("step end\nend_all\n");
    let script = sandbox.file("replay/script", &script);

    let python = interpreter("peers/json/setup");
    let path = [
        sandbox.path("bin"),
        Path::new(&python).parent().unwrap().display().to_string(),
        std::env::var("PATH").unwrap(),
    ];
    let mut command = Command::new("bash");
    command.arg(&script).current_dir(sandbox.path("page")).stdin(Stdio::null()).process_group(0);
    command
        .env("PATH", path.join(":"))
        .env("HOME", sandbox.path("home"))
        .env("REPLAY", sandbox.path("replay"));
    command.env("PYTHONPATH", root.join("clients/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("GEARTRAIN_URL", format!("redis://127.0.0.1:{resp}"));
    for (name, port) in [("RESP", &resp), ("HTTP", &http), ("GEARMAN", &gearman)] {
        command.env(format!("GEARTRAIN_{name}"), format!("127.0.0.1:{port}"));
    }
    if text_of(page).contains("import qless") {
        command.env("QLESS_PYTHON", interpreter("peers/qless-py/setup"));
    }
    let status = Shell(command.spawn().unwrap()).end(page);

    let read =
        |name: &str| std::fs::read_to_string(sandbox.path(&format!("replay/{name}"))).unwrap_or_default();
    let step = read("step");
    // Shown if the test fails, or with --nocapture.
    for number in (0..=blocks.len()).map(|number| number.to_string()).chain(["end".to_owned()]) {
        let (printed, errors) = (read(&format!("{number}.out")), read(&format!("{number}.err")));
        let line = number.parse().ok().and_then(|number: usize| blocks.get(number.checked_sub(1)?));
        let line = line.map_or(0, |block| block.line);
        println!("{page}, line {line}:\n{}--- prints\n{printed}--- errors\n{errors}", read(&number));
        if number == step.trim() && !status.success() {
            return Err(format!("{page}, line {line}: {status}\n{}{printed}{errors}", read(&number)));
        }
    }
    for (number, pair) in (1..).zip(blocks.windows(2)) {
        if pair[0].language != "text" && pair[1].language == "text" && pair[1].follows {
            let (expected, printed) = (in_sandbox(&pair[1].text), read(&format!("{number}.out")));
            if !is_like(&printed, &expected) {
                return Err(format!("{page}, line {}: this is printed:\n{printed}", pair[1].line));
            }
        }
    }
    Ok(())
}

fn executable(sandbox: &Sandbox, name: &str, text: &str) {
    let path = sandbox.file(name, text);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
}

/// Whether a text is what a page shows, in which `…` stands for anything within a line. Spaces at the ends of lines do
/// not count.
fn is_like(printed: &str, shown: &str) -> bool {
    let is_like = |printed: &str, shown: &str| {
        let mut parts = shown.trim_end().split('…');
        let Some(mut rest) = printed.trim_end().strip_prefix(parts.next().unwrap_or_default()) else {
            return false;
        };
        let mut parts = parts.peekable();
        let mut is_whole = rest.is_empty();
        while let Some(part) = parts.next() {
            let found = if parts.peek().is_some() { rest.find(part) } else { rest.rfind(part) };
            let Some(found) = found else { return false };
            rest = &rest[found + part.len()..];
            is_whole = part.is_empty() || rest.is_empty();
        }
        is_whole
    };
    printed.lines().count() == shown.lines().count()
        && printed.lines().zip(shown.lines()).all(|(printed, shown)| is_like(printed, shown))
}

#[test]
fn what_a_page_shows_is_compared_with_what_is_printed() {
    for (printed, shown) in
        [("", ""), ("a  b \nc\n", "a  b\nc\n"), ("a 12 b 3", "a … b …"), ("12 b", "… b"), ("abab", "a…ab")]
    {
        assert!(is_like(printed, shown), "{printed:?} {shown:?}");
    }
    for (printed, shown) in
        [("a", ""), ("a\nb", "a"), ("ab", "a"), ("a 12 c", "a … b"), ("a b c", "a … b"), ("b a", "a…")]
    {
        assert!(!is_like(printed, shown), "{printed:?} {shown:?}");
    }
}

#[test]
fn every_page_is_replayed() {
    let summary = text_of("docs/guide/SUMMARY.md");
    let links = summary.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let pages: Vec<String> = links.map(|page| format!("docs/guide/{page}")).collect();
    assert_eq!(PAGES[0], "README.md");
    assert_eq!(PAGES[1..], pages);
    let files = std::fs::read_dir(repository().join("docs/guide")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let written = names.filter(|name| name.ends_with(".md") && name != "SUMMARY.md");
    let written: BTreeSet<String> = written.map(|name| format!("docs/guide/{name}")).collect();
    assert_eq!(written, pages.into_iter().collect(), "the summary has every page");
}

#[test]
fn the_readme_names_this_version_of_the_library() {
    let dependency = concat!(
        "geartrain = \"",
        env!("CARGO_PKG_VERSION_MAJOR"),
        ".",
        env!("CARGO_PKG_VERSION_MINOR"),
        "\""
    );
    assert!(text_of("README.md").contains(dependency), "{dependency}");
}

mod readme_worker {
    include!("fixtures/readme_worker.rs");

    pub(super) fn run() {
        main().unwrap();
    }
}

/// It runs until Ctrl-C, in a process of its own: this test, called again.
#[test]
fn the_worker_of_the_readme_runs() {
    const CALLED_AGAIN: &str = "README_WORKER";
    if std::env::var_os(CALLED_AGAIN).is_some() {
        return readme_worker::run();
    }
    let program = include_str!("fixtures/readme_worker.rs");
    assert!(text_of("README.md").contains(&format!("```rust,no_run\n{program}```")), "it is another program");

    let sandbox = Sandbox::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "guide::the_worker_of_the_readme_runs"]).env(CALLED_AGAIN, "1");
    command.current_dir(&sandbox.directory).stdout(Stdio::null());
    let mut worker = Shell(command.process_group(0).spawn().unwrap());
    let url = sandbox.url("jobs");
    until("the job is complete", || {
        let (jobs, _, code) = sandbox.try_run(&["stats", "mail", "--url", &url, "--json"]);
        code == 0 && serde_json::from_str::<Value>(&jobs).unwrap()["run"]["count"] == 1
    });
    assert!(Command::new("kill").args(["-INT", &worker.0.id().to_string()]).status().unwrap().success());
    assert!(worker.end("README.md").success());
}

#[test]
fn few_blocks_are_not_run_and_those_of_rust_are_compiled() {
    let library = text_of("crates/geartrain/src/lib.rs");
    let (mut count, mut not_run) = (0, Vec::new());
    for page in PAGES {
        for block in blocks(page) {
            count += 1;
            let place = format!("{page}, line {}", block.line);
            if block.language == "rust" {
                assert!(
                    library.contains(&format!("include_str!(\"../../../{page}\")")),
                    "{place} is not compiled"
                );
            } else if !block.is_run {
                not_run.push(place);
            }
        }
    }
    println!("{count} blocks, of which {} are not run: {not_run:?}", not_run.len());
    assert!(not_run.len() <= NOT_RUN_MAX, "{not_run:?}");
}
