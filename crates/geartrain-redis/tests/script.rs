//! The Lua program in each of its forms, loaded into a Redis.

use crate::support;

use geartrain_core::wire::{self, Answers, Request};
use geartrain_core::{
    Call, Jid, Klass, Length, Put, PutReply, QueueName, Refusal, Reply, Timestamp, WorkerName,
};
use geartrain_redis::script;
use redis::{Connection, RedisResult};
use support::{Server, fcall, joined};

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn put(jid: &str) -> Put {
    Put::new(queue("q"), Jid::new(jid).unwrap(), Klass::new("k").unwrap(), "{}")
}

fn batch(commands: Vec<geartrain_core::Command>) -> Vec<u8> {
    let now = Some(Timestamp::from(5));
    Request::Batch(commands.into_iter().map(|command| Call { now, ..Call::from(command) }).collect()).encode()
}

fn load(library: &str, connection: &mut Connection) -> RedisResult<String> {
    redis::cmd("FUNCTION").arg("LOAD").arg(library).query(connection)
}

fn length(name: &str, connection: &mut Connection) -> Reply {
    let bytes = fcall(name, &batch(vec![Length { queue: queue("q") }.into()]), connection).unwrap();
    wire::decode::<Answers>(&bytes).unwrap().remove(0).unwrap()
}

#[test]
fn the_library_does_a_batch_command_by_command() {
    let server = Server::start();
    let connection = &mut server.connect();
    let library = script::library();
    assert_eq!(load(&library.text, connection).unwrap(), library.name);
    let beat = geartrain_core::Heartbeat {
        jid: Jid::new("nobody").unwrap(),
        holder: geartrain_core::Holder::Worker(WorkerName::new("w").unwrap()),
        payload: None,
    };
    let asked = batch(vec![put("a").into(), beat.into(), put("a").into(), put("b").into()]);
    let answers: Answers = wire::decode(&fcall(&library.name, &asked, connection).unwrap()).unwrap();
    assert_eq!(
        answers,
        [
            Ok(Reply::Put(PutReply::Created)),
            Err(Refusal::NoSuchJob { jid: Jid::new("nobody").unwrap() }),
            Ok(Reply::Put(PutReply::Existing)),
            Ok(Reply::Put(PutReply::Created)),
        ]
    );
    assert_eq!(length(&library.name, connection), Reply::Length(2));
}

#[test]
fn two_versions_of_the_library_live_side_by_side() {
    let server = Server::start();
    let connection = &mut server.connect();
    let ours = script::library();
    let other_name = "geartrain_0123456789abcdef";
    let other = ours.text.replace(&ours.name, other_name);
    load(&ours.text, connection).unwrap();
    load(&other, connection).unwrap();
    fcall(&ours.name, &batch(vec![put("a").into()]), connection).unwrap();
    fcall(other_name, &batch(vec![put("b").into()]), connection).unwrap();
    for name in [&ours.name, other_name] {
        assert_eq!(length(name, connection), Reply::Length(2));
    }
}

#[test]
fn the_name_of_the_library_depends_on_its_text() {
    let library = script::library();
    let hash = library.name.strip_prefix("geartrain_").unwrap();
    assert!(hash.len() == 16 && hash.bytes().all(|digit| digit.is_ascii_hexdigit()), "{hash}");
    assert!(library.text.starts_with(&format!("#!lua name={}\n", library.name)));
}

#[test]
fn the_script_serves_both_apis() {
    let server = Server::start();
    let connection = &mut server.connect();
    let script = script::script();
    let text: String = redis::cmd("EVAL")
        .arg(&script.text)
        .arg(0)
        .arg(&["put", "0", "w", "q", "a", "k", "{}", "0"])
        .query(connection)
        .unwrap();
    assert_eq!(text, "a");
    let answer = redis::cmd("EVALSHA")
        .arg(&script.sha)
        .arg(1)
        .arg("")
        .arg(batch(vec![Length { queue: queue("q") }.into()]))
        .query(connection)
        .unwrap();
    assert_eq!(wire::decode::<Answers>(&joined(answer).unwrap()).unwrap(), [Ok(Reply::Length(1))]);
    let error = redis::cmd("EVALSHA").arg(&script.sha).arg(2).arg("a").arg("b").exec(connection).unwrap_err();
    assert!(error.to_string().contains("No Keys should be provided"), "{error}");
}

#[test]
fn prefixes_are_separate() {
    let server = Server::start();
    let connection = &mut server.connect();
    let library = script::library();
    load(&library.text, connection).unwrap();
    let asked = batch(vec![put("a").into()]);
    redis::cmd("FCALL").arg(&library.name).arg(1).arg("{shop}").arg(asked).exec(connection).unwrap();
    assert_eq!(length(&library.name, connection), Reply::Length(0));
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(connection).unwrap();
    assert!(keys.iter().all(|key| key.starts_with("{shop}")), "{keys:?}");
}

#[test]
fn a_malformed_request_is_an_error_and_changes_nothing() {
    let server = Server::start();
    let connection = &mut server.connect();
    let library = script::library();
    load(&library.text, connection).unwrap();
    let unknown = wire::encode_value(&(1, std::collections::BTreeMap::from([("Dance", 1)])));
    let other_version = wire::encode_value(&(2, "Batch"));
    // A put, followed by an unknown command.
    let mut half = batch(vec![put("a").into(), put("b").into()]);
    let at = half.windows(3).rposition(|bytes| bytes == b"Put").unwrap();
    half[at..at + 3].copy_from_slice(b"Pot");
    for (request, said) in [
        (vec![], "cannot be read"),
        (b"\x92\x01".to_vec(), "cannot be read"),
        (unknown, "there is no request Dance"),
        (other_version, "this is version 2 of the wire, and version 1 is spoken here"),
        (half, "there is no command Pot"),
    ] {
        let error = fcall(&library.name, &request, connection).unwrap_err().to_string();
        assert!(error.contains(said), "{error}, and not {said}");
    }
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(connection).unwrap();
    assert_eq!(keys, Vec::<String>::new());
}

#[test]
fn the_program_can_be_part_of_a_users_script() {
    let server = Server::start();
    let connection = &mut server.connect();
    // Moves a job only if fewer than two are there already.
    let user_script = format!(
        "{}
        return geartrain.within('', tonumber(ARGV[1]), function(queue)
          if queue.length('q') < 2 then
            queue.put({{ queue = 'q', jid = ARGV[2], klass = 'k', data = '{{}}', delay = 0, depends = {{}}, existing = 'Keep' }})
          end
          return queue.length('q')
        end)",
        script::composable()
    );
    let run = |jid: &str, connection: &mut Connection| -> i64 {
        redis::cmd("EVAL").arg(&user_script).arg(0).arg(7).arg(jid).query(connection).unwrap()
    };
    assert_eq!(["a", "b", "c"].map(|jid| run(jid, connection)), [1, 2, 2]);
}

#[test]
fn a_foreign_pop_invalidates_the_token() {
    let server = Server::start();
    let connection = &mut server.connect();
    let library = script::library();
    load(&library.text, connection).unwrap();
    let pop = geartrain_core::Pop::new(queue("q"), WorkerName::new("w").unwrap());
    let asked = batch(vec![put("a").into(), pop.into()]);
    let mut answers: Answers = wire::decode(&fcall(&library.name, &asked, connection).unwrap()).unwrap();
    let Ok(Reply::Pop(popped)) = answers.remove(1) else { panic!("it is there") };
    let token = popped.jobs[0].lock.token;
    // What a foreign pop writes to the job.
    redis::cmd("HSET")
        .arg("ql:j:a")
        .arg(&["worker", "w", "expires", "100", "state", "running", "time", "40.00000000000000000000"])
        .exec(connection)
        .unwrap();
    let jid = Jid::new("a").unwrap();
    let complete = geartrain_core::Complete::new(jid.clone(), geartrain_core::Holder::Token(token));
    let bytes = fcall(&library.name, &batch(vec![complete.into()]), connection).unwrap();
    let lost = Refusal::LockLost { jid, state: geartrain_core::StateName::Running };
    assert_eq!(wire::decode::<Answers>(&bytes).unwrap(), [Err(lost)]);
}
