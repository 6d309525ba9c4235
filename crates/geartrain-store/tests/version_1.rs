//! Format compatibility: directories written by versions 1 and 2 of the log stay readable.
//!
//! `fixtures/store-v1` is a data directory as a process left it at a clean shutdown, without its lock file
//! and spare segments. It was written on 2026-11-15 through `StoreBackend::open` with segments of 16 KiB
//! (`segment_bytes: 16 << 10, spare_segments: 1`), `checkpoint_bytes_min: 12_000`, and a `ManualClock`. Each
//! line is a batch, `@` is the time of the clock:
//!
//! ```text
//! @1000  set heartbeat = 90, mail-max-concurrency = 4
//!        put mail done welcome "{}" tags new,eu   put mail lost welcome "payload" retries 2   put mail plain welcome ff 00 fe
//! @1010  pop mail w1 x2 (done, lost)
//! @1015  complete done   fail lost smtp "it said 451" payload "changed"
//! @1020  put mail large welcome 4000 times "x", priority -1.5        (with this, a checkpoint begins)
//! @1030  peek mail, again and again until the checkpoint has its name
//! @1100  put mail later welcome "soon" delay 500 priority 3   put mail after notify "" depends on later
//!        recur reports r1 nightly "{\"r\":1}" every 86400, offset 60, tags night, backlog 2
//! @1110  put news held digest "h" tags new   track held   log held "looked at" {"by":"me"}
//! @1120  pop news w2 (held)
//! @1130  put news again digest "a"   pop news w3 (again)
//! @1140  retry again delay 0 group net message "reset"
//! @1150  pause news   unset mail-max-concurrency
//! ```
//!
//! The batches before the peeks are in the checkpoint, the rest is in the log behind it. If the format gets
//! another version, this directory stays as it is, and another one is added.
//!
//! `fixtures/store-v2` is that directory, opened on 2026-11-16 at @1155 with `checkpoint_bytes_min: 20_000`,
//! in which `set heartbeat = 90` was repeated until no segment of version 1 was left and there were two
//! checkpoints; then closed.

use std::path::Path;

use geartrain_core::*;
use geartrain_store::wal::WalOptions;
use geartrain_store::{StoreBackend, StoreOptions};
use geartrain_testkit::clock::ManualClock;
use pollster::block_on;

use crate::scratch::Scratch;

#[test]
fn a_directory_of_version_1_stays_readable() {
    check_readable("store-v1");
}

#[test]
fn a_directory_of_version_2_stays_readable() {
    check_readable("store-v2");
}

fn check_readable(fixture: &str) {
    let directory = scratch_with(fixture);
    let report = geartrain_store::check(directory.path()).unwrap();
    assert!(report.checkpoint_bytes > 0 && report.changes > 0, "{report:?}");
    let clock = ManualClock::new();
    clock.set(1155);
    let backend = StoreBackend::open(directory.path(), StoreOptions::default(), clock).unwrap();
    assert_eq!(dump(&backend), EXPECTED.trim_start());
}

#[test]
fn a_directory_of_version_1_continues_in_version_2() {
    let directory = scratch_with("store-v1");
    let clock = ManualClock::new();
    clock.set(1155);
    let wal = WalOptions { segment_bytes: 16 << 10, spare_segments: 1 };
    let options = StoreOptions { wal, ..StoreOptions::default() };
    let open = || StoreBackend::open(directory.path(), options.clone(), clock.clone()).unwrap();
    // Only the log's format changes, and only when a segment begins: until then a program of version 1 can
    // open it.
    drop(open());
    assert!(!directory.path().join("manifest").exists());
    let backend = open();
    for _ in 0..10 {
        run(&backend, SetConfig::new("heartbeat", "90"));
    }
    drop(backend);
    assert!(directory.path().join("manifest").exists());
    geartrain_store::check(directory.path()).unwrap();
    assert_eq!(dump(&open()), EXPECTED.trim_start());
    let names = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let newest = names.filter(|name| name.to_string_lossy().starts_with("log-")).max().unwrap();
    std::fs::remove_file(directory.path().join(newest)).unwrap();
    assert!(geartrain_store::check(directory.path()).unwrap_err().is_damage(), "its loss goes unnoticed");
}

const EXPECTED: &str = r#"
done: welcome in none, complete at 1015, priority 0, retries 5 of 5, {}, tags ["new", "eu"], tracked false: put mail, popped w1, done
lost: welcome in mail, failed (smtp: it said 451 at 1015 by w1), priority 0, retries 2 of 2, changed, tags [], tracked false: put mail, popped w1, failed smtp
plain: welcome in mail, waiting, priority 0, retries 5 of 5, \xff\x00\xfe, tags [], tracked false: put mail
large: welcome in mail, waiting, priority -1.5, retries 5 of 5, 4000 bytes, tags [], tracked false: put mail
later: welcome in mail, scheduled for 1600, priority 3, retries 5 of 5, soon, tags [], tracked false: put mail
after: notify in mail, depends on ["later"], priority 0, retries 5 of 5, , tags [], tracked false: put mail
held: digest in news, running at w2 until 1210, priority 0, retries 5 of 5, h, tags ["new"], tracked true: put news, log looked at Some("{\"by\":\"me\"}"), popped w2
again: digest in news, waiting (net: reset at 1140 by w3), priority 0, retries 4 of 5, a, tags [], tracked false: put news, popped w3
mail: 2 waiting, 0 running, 0 stalled, 1 scheduled, 1 depends, 0 recurring, paused false
reports: 0 waiting, 0 running, 0 stalled, 0 scheduled, 0 depends, 1 recurring, paused false
news: 1 waiting, 1 running, 0 stalled, 0 scheduled, 0 depends, 0 recurring, paused true
heartbeat: chosen 90
mail-max-concurrency: none
r1: reports nightly {\"r\":1} every 86400 next 1160 backlog 2 count 0 tags ["night"]
tracked: ["held"]
mail: waited 2 for 10 s, ran 1 for 5 s, failures 1"#;

/// Everything that the test checks, one line each.
fn dump(backend: &StoreBackend) -> String {
    let mut lines: Vec<String> = ["done", "lost", "plain", "large", "later", "after", "held", "again"]
        .map(|jid| job(backend, jid))
        .into();
    let Reply::Queues(queues) = run(backend, Queues { queue: None }) else { panic!() };
    for queue in queues {
        lines.push(format!(
            "{}: {} waiting, {} running, {} stalled, {} scheduled, {} depends, {} recurring, paused {}",
            queue.name,
            queue.waiting,
            queue.running,
            queue.stalled,
            queue.scheduled,
            queue.depends,
            queue.recurring,
            queue.paused
        ));
    }
    for option in ["heartbeat", "mail-max-concurrency"] {
        let Reply::GetConfig(setting) = run(backend, GetConfig { option: option.into() }) else { panic!() };
        let text = match setting {
            Some(Setting::Chosen(value)) => format!("chosen {value}"),
            Some(Setting::Default(value)) => format!("default {value}"),
            None => "none".into(),
        };
        lines.push(format!("{option}: {text}"));
    }
    let Reply::GetRecurring(Some(r1)) = run(backend, GetRecurring { jid: jid("r1") }) else { panic!() };
    let Every::Interval(every) = r1.every else { panic!() };
    lines.push(format!(
        "r1: {} {} {} every {every} next {} backlog {} count {} tags {:?}",
        r1.queue,
        r1.klass,
        text(&r1.payload),
        r1.next,
        r1.backlog,
        r1.count,
        texts(&r1.tags)
    ));
    let Reply::Tracked(tracked) = run(backend, Tracked) else { panic!() };
    lines.push(format!("tracked: {:?}", texts(&tracked.jobs.iter().map(|job| &job.jid).collect::<Vec<_>>())));
    let date = Timestamp::from(1_000);
    let Reply::Stats(stats) = run(backend, Stats { queue: queue("mail"), date }) else { panic!() };
    lines.push(format!(
        "mail: waited {} for {} s, ran {} for {} s, failures {}",
        stats.wait.count, stats.wait.mean, stats.run.count, stats.run.mean, stats.failures
    ));
    lines.join("\n")
}

/// The relevant fields of a job, on a line.
fn job(backend: &StoreBackend, name: &str) -> String {
    let Reply::Get(Some(job)) = run(backend, Get { jid: jid(name) }) else { panic!("{name} is gone") };
    let state = match &job.state {
        JobState::Scheduled { due } => format!("scheduled for {due}"),
        JobState::Depends { on, .. } => format!("depends on {:?}", texts(on)),
        JobState::Waiting => "waiting".into(),
        JobState::Running { lock } => format!("running at {} until {}", lock.worker, lock.expires),
        JobState::Complete { at } => format!("complete at {at}"),
        JobState::Failed { .. } => "failed".into(),
    };
    let failure = job.failure().map(|why| {
        let worker = why.worker.as_ref().map_or("nobody", WorkerName::as_str);
        format!(" ({}: {} at {} by {worker})", why.group, why.message, why.when)
    });
    let history: Vec<String> = job.history.iter().map(|entry| history_line(&entry.what)).collect();
    format!(
        "{name}: {} in {}, {state}{}, priority {}, retries {} of {}, {}, tags {:?}, tracked {}: {}",
        job.klass,
        job.queue.as_ref().map_or("none", QueueName::as_str),
        failure.unwrap_or_default(),
        job.priority.get(),
        job.remaining,
        job.retries,
        text(&job.payload),
        texts(&job.tags),
        job.tracked,
        history.join(", ")
    )
}

fn history_line(event: &HistoryEvent) -> String {
    match event {
        HistoryEvent::Put { queue } => format!("put {queue}"),
        HistoryEvent::Popped { worker } => format!("popped {worker}"),
        HistoryEvent::Done => "done".into(),
        HistoryEvent::Failed { group, .. } => format!("failed {group}"),
        HistoryEvent::TimedOut => "timed out".into(),
        HistoryEvent::Log { message, data } => format!("log {message} {data:?}"),
        other => panic!("version 1 knows nothing of {other:?}"),
    }
}

fn run(backend: &StoreBackend, command: impl Into<Command>) -> Reply {
    let call = Call::from(command);
    block_on(backend.execute(vec![call])).unwrap().remove(0).unwrap()
}

fn text(payload: &Payload) -> String {
    match payload.bytes() {
        bytes if bytes.len() > 100 => format!("{} bytes", bytes.len()),
        bytes => bytes.escape_ascii().to_string(),
    }
}

fn texts(names: &[impl ToString]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn jid(name: &str) -> Jid {
    Jid::new(name).unwrap()
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

/// A copy of a fixture.
fn scratch_with(fixture: &str) -> Scratch {
    let scratch = Scratch::new("version-1");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(fixture);
    for file in std::fs::read_dir(fixture).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), scratch.path().join(file.file_name())).unwrap();
    }
    scratch
}
