//! A key of another type in the namespace: a command that meets it fails before its first write, so that no
//! job is left without a queue.

use crate::support;

use std::collections::BTreeMap;

use geartrain_core::wire::{self, Request};
use geartrain_core::{
    Answer, Call, Cancel, Command, Complete, Existing, Fail, Group, Heartbeat, Holder, Jid, Klass, Next, Pop,
    Put, QueueName, Release, Relock, Reply, Retry, Seconds, Tag, Timeout, Timestamp, Token, WorkerName,
};
use geartrain_redis::script;
use redis::Connection;
use support::{Server, joined};

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn jid(name: &str) -> Jid {
    Jid::new(name).unwrap()
}

fn put(name: &str) -> Put {
    Put::new(queue("q"), jid(name), Klass::new("k").unwrap(), "{}")
}

fn execute(
    connection: &mut Connection,
    prefix: &str,
    commands: Vec<Command>,
) -> redis::RedisResult<Vec<Answer>> {
    let at = |command| Call { now: Some(Timestamp::new(1000.0).unwrap()), ..Call::from(command) };
    let request = Request::Batch(commands.into_iter().map(at).collect()).encode();
    let answer =
        redis::cmd("FCALL").arg(&script::library().name).arg(1).arg(prefix).arg(request).query(connection)?;
    Ok(wire::decode_answers(&joined(answer)?).unwrap())
}

/// A queue with a job in each state. Returns the token of the running one.
fn fill(connection: &mut Connection, prefix: &str) -> Token {
    let pop = Pop::new(queue("q"), WorkerName::new("w").unwrap());
    let dependent = Put { depends: vec![jid("waiting")], ..put("depends") };
    let commands: Vec<Command> = vec![
        put("running").into(),
        pop.into(),
        put("waiting").into(),
        put("waiting-2").into(),
        Put { delay: Seconds::from(100), ..put("scheduled") }.into(),
        dependent.into(),
    ];
    let answers = execute(connection, prefix, commands).unwrap();
    let Ok(Reply::Pop(reply)) = &answers[1] else { panic!("{answers:?}") };
    reply.jobs[0].lock.token
}

/// All keys of the namespace that locate a job, except one.
fn jobs(connection: &mut Connection, prefix: &str, but: &str) -> BTreeMap<String, Vec<u8>> {
    let keys: Vec<String> = redis::cmd("KEYS").arg(format!("{prefix}ql:*")).query(connection).unwrap();
    let holds_jobs = |key: &String| {
        let name = &key[prefix.len()..];
        let kinds = ["ql:j:", "ql:q:", "ql:w:", "ql:f:", "ql:completed"];
        key != but && kinds.iter().any(|kind| name.starts_with(kind)) && !name.ends_with("-history")
    };
    let mut found = BTreeMap::new();
    for key in keys.into_iter().filter(holds_jobs) {
        let dump = redis::cmd("DUMP").arg(&key).query(connection).unwrap();
        found.insert(key, dump);
    }
    found
}

/// Operations to try, given the token of the running job.
fn operations(token: Token) -> Vec<(&'static str, Vec<Command>)> {
    let holder = || Holder::Token(token);
    let pop = Pop::new(queue("q"), WorkerName::new("w").unwrap());
    let running = || jid("running");
    let run = (0..20).map(|number| put(&format!("run-{number}")).into()).collect();
    let advance = Complete { next: Some(Next::new(queue("q2"))), ..Complete::new(running(), holder()) };
    let group = Group::new("g").unwrap();
    vec![
        ("put", vec![put("new").into()]),
        ("put with a tag", vec![Put { tags: Some(vec![Tag::new("t").unwrap()]), ..put("new") }.into()]),
        ("a run of puts", run),
        ("put later", vec![Put { delay: Seconds::from(9), ..put("new") }.into()]),
        ("put depending", vec![Put { depends: vec![jid("waiting")], ..put("new") }.into()]),
        ("put again", vec![Put { existing: Existing::Replace, ..put("scheduled") }.into()]),
        ("pop", vec![pop.into()]),
        ("heartbeat", vec![Heartbeat { jid: running(), holder: holder(), payload: None }.into()]),
        ("complete", vec![Complete::new(running(), holder()).into()]),
        ("advance", vec![advance.into()]),
        ("fail", vec![Fail::new(running(), holder(), group, "m").into()]),
        ("retry", vec![Retry::new(running(), holder()).into()]),
        ("retry later", vec![Retry { delay: Seconds::from(5), ..Retry::new(running(), holder()) }.into()]),
        ("timeout", vec![Timeout { jids: vec![running()] }.into()]),
        ("hand back", vec![Release::new(running(), holder()).into()]),
        (
            "hand back later",
            vec![Release { delay: Seconds::from(5), ..Release::new(running(), holder()) }.into()],
        ),
        ("relock", vec![Relock::new(WorkerName::new("w").unwrap()).into()]),
        ("cancel", vec![Cancel::new(vec![running(), jid("scheduled")]).into()]),
    ]
}

/// Keys that these operations write, by content. Those of a new queue are among them.
const KEYS: [&str; 26] = [
    "ql:q:q-work",
    "ql:q:q-locks",
    "ql:q:q-scheduled",
    "ql:q:q-depends",
    "ql:q:q2-work",
    "ql:w:w:jobs",
    "ql:workers",
    "ql:queues",
    "ql:completed",
    "ql:failures",
    "ql:f:g",
    "ql:tags",
    "ql:t:t",
    "ql:j:new-history",
    "ql:j:running-history",
    "ql:j:waiting-history",
    "ql:j:scheduled-history",
    "ql:j:waiting-dependents",
    "ql:j:new-dependencies",
    "ql:s:wait:0:q",
    "ql:s:run:0:q",
    "ql:s:stats:0:q",
    "gt:days:q",
    "gt:order:q",
    "gt:order:q2",
    "gt:token",
];

#[test]
fn a_command_that_meets_a_key_of_the_wrong_type_changes_no_job() {
    let server = Server::start();
    let mut connection = server.connect();
    let library = &script::library().text;
    redis::cmd("FUNCTION").arg("LOAD").arg(library).exec(&mut connection).unwrap();
    let (mut wrong, mut failed) = (Vec::new(), 0);
    for (number, key) in KEYS.iter().enumerate() {
        let count = operations("1.0".parse().unwrap()).len();
        for place in 0..count {
            let prefix = format!("{number}.{place}:");
            let token = fill(&mut connection, &prefix);
            let (name, commands) = operations(token).swap_remove(place);
            let key = format!("{prefix}{key}");
            // A list, which none of these keys is, except those that are lists.
            redis::cmd("DEL").arg(&key).exec(&mut connection).unwrap();
            if key.contains("-history") || key.contains("ql:f:") {
                redis::cmd("SET").arg(&key).arg("x").exec(&mut connection).unwrap();
            } else {
                redis::cmd("RPUSH").arg(&key).arg("x").exec(&mut connection).unwrap();
            }
            let before = jobs(&mut connection, &prefix, &key);
            if execute(&mut connection, &prefix, commands).is_ok() {
                continue;
            }
            failed += 1;
            let after = jobs(&mut connection, &prefix, &key);
            let differs = |key: &&String| before.get(*key) != after.get(*key);
            let changed: Vec<&String> = before.keys().chain(after.keys()).filter(differs).collect();
            if !changed.is_empty() {
                wrong.push(format!("{name} met {key} and changed {changed:?}"));
            }
        }
    }
    assert!(failed > KEYS.len(), "only {failed} commands met a wrong type");
    assert!(wrong.is_empty(), "{} of {failed}:\n{}", wrong.len(), wrong.join("\n"));
}
