//! What WorkKit has no notion of is refused by name, and bad input is refused before anything is written.

use geartrain_core::{
    AddTags, Announce, AnnounceChange, Cancel, Command, Existing, Get, GetResult, Missed, Overlap, Pause,
    Period, Priority, Put, PutOptions, PutPeriodic, Queues, Recur, Refusal, Seconds, SetConfig, SetPriority,
    Stats, Tag, UniqueKey, Workers,
};
use geartrain_testkit::peers::RedisServer;
use pollster::block_on;

use super::recurring::periodic;
use super::{Call, ask, at, connect, jid, klass, put, queue, run_at, worker};

fn with(change: impl FnOnce(&mut Put)) -> Command {
    let mut put = put("[]");
    change(&mut put);
    put.into()
}

fn with_options(change: impl FnOnce(&mut PutOptions)) -> Command {
    with(|put| change(put.options.get_or_insert_default()))
}

fn recurring(change: impl FnOnce(&mut PutPeriodic)) -> Command {
    let mut put = periodic("* * * * * * *", "[]");
    change(&mut put);
    put.into()
}

#[test]
fn what_workkit_does_not_have_is_refused_by_name() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    let tag = || vec![Tag::new("t").unwrap()];
    let commands: Vec<(Command, &str)> = vec![
        (with(|put| put.priority = Some(Priority::from(1))), "order jobs by priority: use several schedules"),
        (with(|put| put.tags = Some(tag())), "tag a job"),
        (with(|put| put.depends = vec![jid("x")]), "make a job depend on others"),
        (with(|put| put.existing = Existing::Replace), "put a job again: its id is its content"),
        (
            with_options(|options| options.unique = Some(UniqueKey::new("k").unwrap())),
            "take a unique key: equal jobs of one second are one job",
        ),
        (with_options(|options| options.result_ttl = Some(Seconds::from(9))), "keep a result"),
        (with_options(|options| options.expires = Some(at(9.0))), "let a job expire"),
        (
            with_options(|options| options.attempt_max = Some(Seconds::from(9))),
            "limit how long an attempt takes",
        ),
        (with_options(|options| options.crashes_max = Some(1)), "count lost workers"),
        (with_options(|options| options.roll_call = true), "call the roll of workers"),
        (
            recurring(|put| put.template.every = Period::Interval(Seconds::from(60))),
            "run a job at an interval: use a cron expression",
        ),
        (
            recurring(|put| put.template.missed = Missed::All),
            "keep with a job what happens to missed runs: listeners choose with ?catch_up=true",
        ),
        (
            recurring(|put| put.template.overlap = Overlap::Skip),
            "keep with a job whether runs overlap: listeners choose with ?no_overlap=true",
        ),
        (recurring(|put| put.template.expires_in = Some(Seconds::from(9))), "let a job expire"),
        (recurring(|put| put.template.is_paused = true), "pause a recurring job"),
        (
            recurring(|put| put.template.every = Period::Cron("CRON_TZ=Europe/Berlin 0 9 * * *".into())),
            "run a job in a time zone: its cron strings are in UTC",
        ),
        (
            Recur::new(queue("s"), jid("r"), klass("a/b"), "[]", Seconds::from(60)).into(),
            "run a job at an interval: use a cron expression",
        ),
        (
            SetPriority { jid: jid("x"), priority: Priority::from(1) }.into(),
            "order jobs by priority: use several schedules",
        ),
        (AddTags { jid: jid("x"), tags: tag() }.into(), "tag a job"),
        (Pause { queues: vec![queue("s")] }.into(), "pause a schedule"),
        (SetConfig::new("heartbeat", "5").into(), "keep options: they are part of the URL"),
        (Stats { queue: queue("s"), date: at(0.0) }.into(), "keep statistics"),
        (Workers.into(), "list workers"),
        (GetResult { jid: jid("x") }.into(), "keep a result or wait for one"),
        (
            Announce { worker: worker("w"), change: AnnounceChange::Only(Vec::new()) }.into(),
            "announce capabilities",
        ),
        (
            Cancel { because: Some("no".into()), ..Cancel::new(vec![jid("x")]) }.into(),
            "remember why a job was cancelled",
        ),
    ];
    for (command, operation) in commands {
        let name = command.name();
        let answer = block_on(backend.execute(vec![Call::at(at(0.0), command)])).unwrap().remove(0);
        let refusal = Refusal::Unsupported { operation: operation.into(), backend: "workkit".into() };
        assert_eq!(answer, Err(refusal), "{name}");
    }
    assert!(block_on(backend.subscribe()).is_err());
    assert!(block_on(backend.open_result_stream(1)).is_err());
    assert_eq!(super::keys(&redis), [] as [&str; 0]);
}

#[test]
fn bad_input_is_refused_and_nothing_is_written() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    let refused = |answer: Result<bool, Refusal>| match answer {
        Err(Refusal::BadArgument { what, why }) => format!("{what} {why}"),
        other => panic!("not refused: {other:?}"),
    };
    for (cron, expected) in [
        ("* 2 30 * 0 0 0", "cron "),
        ("* * * * * * */0", "cron "),
        ("* * * * 22-2 0 0", "cron "),
        ("* * * 7 0 0 0", "cron "),
        ("* * * * * * 60", "cron "),
        ("2013 * * * * * *", "cron 2013 * * * * * * never comes again"),
        ("* * * 0/6 0 0 0", "cron "),
        ("* * * * * *,, *", "cron "),
        ("0 0 L * *", "cron "),
        ("", "cron "),
        (" * * * * * * *", "cron "),
        ("0 0 */2 * 1", "cron 0 0 0 */2 * 1 cannot be written in WorkKit's seven fields"),
    ] {
        let why = refused(run_at(&*backend, 0.0, periodic(cron, "[]")));
        assert!(why.starts_with(expected), "{cron}: {why}");
    }
    for (put, expected) in [
        (put(r#"{"to":1}"#), "payload must be a JSON array, the arguments of the function"),
        (put("[1"), "payload must be JSON: EOF while parsing a list at line 1 column 2"),
        (Put { klass: klass("mail"), ..put("[]") }, "klass must name a function with its namespace"),
        (Put { klass: klass("(fn [] 1)"), ..put("[]") }, "klass must name a function with its namespace"),
        (
            Put { delay: Seconds::new(1e12).unwrap(), ..put("[]") },
            "delay must end between the years 1970 and 9999",
        ),
    ] {
        let why = refused(run_at(&*backend, 0.0, put).map(|_| true));
        assert!(why.starts_with(expected), "{why}");
    }
    assert_eq!(super::keys(&redis), [] as [&str; 0]);
}

#[test]
fn keys_of_other_programs_are_no_schedules() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    ask::<i64>(redis.port(), &["ZADD", "other:next", "1", "x"]).unwrap();
    ask::<i64>(redis.port(), &["LPUSH", "other:jobs", "x"]).unwrap();
    ask::<i64>(redis.port(), &["ZADD", "alone:next", "1", "x"]).unwrap();
    assert_eq!(run_at(&*backend, 0.0, Queues::default()), Ok(Vec::new()));
    assert_eq!(run_at(&*backend, 0.0, Get { jid: jid("x") }), Ok(None));
    let refused = run_at(&*backend, 0.0, Put { queue: queue("other"), ..put("[]") }).unwrap_err().to_string();
    assert_eq!(refused, "queue is not a WorkKit schedule: the Redis has a key of another type");
    // And the rest goes on.
    assert!(run_at(&*backend, 0.0, put("[]")).is_ok());
    assert_eq!(run_at(&*backend, 0.0, Get { jid: jid("x") }), Ok(None));
}
