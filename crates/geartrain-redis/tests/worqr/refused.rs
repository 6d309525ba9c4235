//! What Worqr has no notion of is refused by name, also if it comes in a later version of ours.

use std::collections::BTreeMap;

use geartrain_core::{
    Cancel, CompleteReply, Existing, Heartbeat, Listing, Next, Page, Priority, PutOptions, Refusal, Release,
    Retry, Status, StatusOf, Tag, Timestamp, UniqueKey,
};
use geartrain_testkit::trace::generate;

use super::*;

/// Commands that Worqr has, at least in part.
const SUPPORTED: &[&str] = &[
    "Announced",
    "Attach",
    "Canceled",
    "Complete",
    "Detach",
    "EndSetAside",
    "Fail",
    "Failed",
    "Failures",
    "Get",
    "GetMany",
    "Heartbeat",
    "Jobs",
    "Length",
    "Peek",
    "Pop",
    "Put",
    "Queues",
    "Release",
    "Retry",
    "RollCall",
    "SetAside",
    "Status",
    "Timeout",
    "WorkerJobs",
    "WorkerLost",
    "Workers",
];

fn operation(answer: Result<impl std::fmt::Debug, Refusal>) -> String {
    match answer {
        Err(Refusal::Unsupported { operation, backend }) => {
            assert_eq!(backend, "worqr");
            operation.into_owned()
        }
        other => panic!("not refused by name: {other:?}"),
    }
}

#[test]
fn every_other_command_is_refused_by_name() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    // One of each kind. Traces have them all.
    let mut commands: BTreeMap<&str, Command> = BTreeMap::new();
    for step in (0..100).flat_map(generate) {
        commands.entry(step.command.name()).or_insert(step.command);
    }
    assert!(commands.len() > 60, "{}", commands.len());
    assert!(SUPPORTED.iter().all(|name| commands.contains_key(name)));
    for (name, command) in commands.into_iter().filter(|(name, _)| !SUPPORTED.contains(name)) {
        let answer = block_on(backend.execute(vec![Call::from(command)])).unwrap().remove(0);
        let operation = operation(answer);
        assert!(operation != name && operation.contains(' '), "{name} needs a text: {operation}");
    }
    assert_eq!(keys(&redis), [] as [&str; 0]);
}

#[test]
fn parts_of_commands_that_worqr_does_not_have_are_refused_by_name() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    let with = |change: fn(&mut Put)| {
        let mut put = put("a");
        change(&mut put);
        put
    };
    fn options(put: &mut Put) -> &mut PutOptions {
        put.options.get_or_insert_default()
    }
    let one = Seconds::from(1);
    for (put, expected) in [
        (with(|put| put.delay = Seconds::from(1)), "delay a task"),
        (with(|put| put.priority = Some(Priority::from(1))), "order tasks by priority"),
        (with(|put| put.retries = Some(1)), "keep retries with a task: they are an option of the URL"),
        (with(|put| put.tags = Some(vec![Tag::new("t").unwrap()])), "tag a task"),
        (with(|put| put.depends = vec![jid("x")]), "make a task depend on others"),
        (with(|put| put.existing = Existing::Replace), "put a task again: it has no id"),
        (with(|put| options(put).result_ttl = Some(limit())), "keep a result"),
        (with(|put| options(put).expires = Some(Timestamp::ZERO)), "let a task expire"),
        (with(|put| options(put).attempt_max = Some(limit())), "limit how long an attempt takes"),
        (with(|put| options(put).crashes_max = Some(1)), "count lost workers"),
        (with(|put| options(put).roll_call = true), "call the roll of workers with a put"),
        (with(|put| options(put).on_end = geartrain_core::OnEnd::Forget), "keep such an option with a task"),
    ] {
        assert_eq!(operation(run(&*backend, put)), expected);
    }
    let klass = run(&*backend, with(|put| put.klass = Klass::new("k").unwrap())).unwrap_err().to_string();
    assert_eq!(klass, "klass must be q, as the queue is: a task of Worqr has no other kind");
    let too_large = vec![0; geartrain_core::PAYLOAD_BYTES_MAX + 1];
    assert!(matches!(run(&*backend, put_in("q", &too_large)), Err(Refusal::TooLarge { .. })));
    assert_eq!(keys(&redis), [] as [&str; 0]);

    run(&*backend, put("a")).unwrap();
    let job = take(&*backend, 1).remove(0);
    let (id, holder) = (|| job.jid.clone(), || job.holder());
    let next = Complete { next: Some(Next::new(queue("p"))), ..complete(&job) };
    assert_eq!(operation(run(&*backend, next)), "send a task on to another queue");
    let changed = Complete { payload: Some("b".into()), ..complete(&job) };
    assert_eq!(operation(run(&*backend, changed)), "change a task");
    let changed = Heartbeat { jid: id(), holder: holder(), payload: Some("b".into()) };
    assert_eq!(operation(run(&*backend, changed)), "change a task");
    let later = Retry { delay: one, ..Retry::new(id(), holder()) };
    assert_eq!(operation(run(&*backend, later)), "delay a retry: its worker pauses instead");
    let later = Release { delay: one, ..Release::new(id(), holder()) };
    assert_eq!(operation(run(&*backend, later)), "delay a task");
    let unique = StatusOf::Unique(queue("q"), UniqueKey::new("a").unwrap());
    assert_eq!(operation(run(&*backend, Status { of: unique })), "find a task by its unique key");
    let waiting = geartrain_core::Jobs { which: Listing::Waiting(queue("q")), page: Page::default() };
    assert_eq!(operation(run(&*backend, waiting)), "list waiting tasks by id: they have none, see peek");
    assert_eq!(
        operation(run(&*backend, Cancel::new(vec![id()]))),
        "cancel a job by its id: cancel all equal tasks by queue and payload"
    );
    assert_eq!(run(&*backend, complete(&job)), Ok(CompleteReply::Complete), "it is held still");
}
