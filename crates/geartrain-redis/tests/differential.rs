//! Differential test: in random traces, a Redis with our script and the engine give the same answers.
//!
//! `GEARTRAIN_SEED=7041` replays one trace, `GEARTRAIN_TRACES=100` runs that many. A failing trace is
//! printed after shrinking.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use geartrain_core::engine::{Effects, Engine, Limits};
use geartrain_core::{
    Answer, Backend, Call, Command, Event, Jobs, Listing, Reason, Refusal, Reply, Timestamp,
};
use geartrain_redis::RedisBackend;
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::peers::RedisServer;
use geartrain_testkit::seeds;
use geartrain_testkit::trace::{Coverage, Step, Tokens, final_reads, generate_timely, shrink};

/// Enough for more than a hundred thousand commands.
const TRACES: u64 = 300;

#[test]
fn a_redis_agrees_with_the_engine_whatever_happens() {
    let seeds = seeds(TRACES);
    let redis = RedisServer::start(&[]);
    let mut coverage = Coverage::default();
    let mut executed = 0;
    for seed in seeds.clone() {
        let trace = generate_timely(seed);
        match run_trace(&redis, &trace, &mut coverage) {
            Ok(commands) => executed += commands,
            Err(why) => report(&redis, seed, trace, &why),
        }
    }
    println!("{executed} commands\n{coverage}");
    if seeds == (0..TRACES) {
        assert!(executed >= 100_000, "only {executed} commands");
    }
}

fn report(redis: &RedisServer, seed: u64, trace: Vec<Step>, why: &str) -> ! {
    let length = trace.len();
    let short = shrink(trace, |steps| run_trace(redis, steps, &mut Coverage::default()).is_err());
    let short_why = run_trace(redis, &short, &mut Coverage::default()).err().unwrap_or_default();
    let steps: Vec<String> = short.iter().map(Step::to_string).collect();
    panic!(
        "GEARTRAIN_SEED={seed} goes wrong: {why}\n\nCut from {length} steps to {}:\n\n{}\n\n{short_why}\n",
        short.len(),
        steps.join("\n")
    );
}

/// Runs a trace on an engine and on a Redis, and returns the first difference.
fn run_trace(redis: &RedisServer, trace: &[Step], coverage: &mut Coverage) -> Result<usize, String> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let url = format!("{}?prefix=trace{number}:", redis.url()).parse().expect("it is a URL");
    let backend = RedisBackend::with_clock(url, ManualClock::new());
    let backend = pollster::block_on(backend).map_err(|error| format!("{error:?}"))?;
    let mut pair = Pair {
        engine: Engine::new(Limits::default()),
        effects: Effects { listening: true, ..Effects::default() },
        engine_tokens: Tokens::default(),
        redis: backend,
        redis_tokens: Tokens::default(),
    };
    let mut jids = BTreeSet::new();
    for step in trace {
        let (answer, events) = pair.tell(step)?;
        coverage.count(&step.command, &answer, &events, &[]);
        for event in &events {
            if let Event::Put { jid, .. } | Event::Popped { jid, .. } = event {
                jids.insert(jid.clone());
            }
        }
    }
    let Some(last) = trace.last() else { return Ok(0) };
    let days: BTreeSet<Timestamp> = trace.iter().map(|step| step.now.day()).collect();
    let jids: Vec<_> = jids.into_iter().collect();
    let reads = final_reads(&jids, &days);
    let executed = trace.len() + reads.len();
    for (place, command) in reads.into_iter().enumerate() {
        let _ = pair.tell(&Step { number: last.number + 1 + place, now: last.now, command })?;
    }
    Ok(executed)
}

/// An engine and a Redis that get the same commands.
struct Pair {
    engine: Engine,
    effects: Effects,
    engine_tokens: Tokens,
    redis: RedisBackend,
    redis_tokens: Tokens,
}

impl Pair {
    fn tell(&mut self, step: &Step) -> Result<(Answer, Vec<Event>), String> {
        let asked = self.engine_tokens.command(&step.command);
        self.effects.by = step.by();
        let engine = self.engine.execute(step.now, asked, &mut self.effects);
        let events = std::mem::take(&mut self.effects.events);
        let events: Vec<Event> = events.into_iter().map(|timed| timed.event).collect();
        self.effects.deliveries.clear();
        let by = step.by();
        let call = Call { by, ..Call::at(step.now, self.redis_tokens.command(&step.command)) };
        let answers = pollster::block_on(self.redis.execute(vec![call]));
        let redis =
            answers.map_err(|error| format!("{step}\n{error:?}"))?.pop().ok_or("there is an answer")?;
        self.engine_tokens.learn(step.number, &engine);
        self.redis_tokens.learn(step.number, &redis);
        let expected = comparable(self.engine_tokens.answer(engine.clone()));
        let answer = comparable(self.redis_tokens.answer(redis));
        same(step, &sorted(&step.command, answer), &sorted(&step.command, expected))?;
        Ok((engine, events))
    }
}

/// The text about a bad argument may differ.
fn comparable(answer: Answer) -> Answer {
    answer.map_err(|refusal| match refusal {
        Refusal::BadArgument { what, .. } => Refusal::BadArgument { what, why: String::new() },
        other => other,
    })
}

/// Lists whose equal items a Redis orders by name, and the engine by arrival. Waiting jobs are not among
/// them.
fn sorted(command: &Command, mut answer: Answer) -> Answer {
    match (command, &mut answer) {
        (Command::Jobs(Jobs { which: Listing::Waiting(_), .. }), _) => {}
        (_, Ok(Reply::Jobs(jids))) => jids.sort(),
        (_, Ok(Reply::WorkerJobs(reply))) => {
            reply.jobs.sort();
            reply.stalled.sort();
        }
        (_, Ok(Reply::Why(why))) => {
            for reason in &mut why.reasons {
                if let Reason::Concurrency { held, .. } = reason {
                    held.clear();
                }
            }
        }
        _ => {}
    }
    answer
}

/// Whether two answers are equal, with numbers compared to 14 digits.
fn same(step: &Step, redis: &Answer, engine: &Answer) -> Result<(), String> {
    if redis == engine {
        return Ok(());
    }
    let (redis, engine) = (format!("{redis:#?}"), format!("{engine:#?}"));
    let alike =
        |(one, other): (&str, &str)| one == other || shown(one).is_some_and(|one| Some(one) == shown(other));
    let lines = redis.lines().count() == engine.lines().count();
    if lines && redis.lines().zip(engine.lines()).all(alike) {
        return Ok(());
    }
    let differ: Vec<String> = redis
        .lines()
        .zip(engine.lines())
        .filter(|pair| !alike(*pair))
        .map(|(one, other)| format!("redis {one}\nengine {other}"))
        .take(6)
        .collect();
    Err(format!(
        "the answers differ at\n{step}\n{}\n--- redis\n{redis}\n--- engine\n{engine}",
        differ.join("\n")
    ))
}

/// A line of debug text that is a number, rounded.
fn shown(line: &str) -> Option<String> {
    let (name, number) = line.rsplit_once(' ').unwrap_or(("", line));
    let number: f64 = number.trim().trim_end_matches(',').parse().ok()?;
    Some(format!("{name} {number:.13e}"))
}
