//! Whatever happens, in whatever order, a Redis with our script and the engine tell the same story.
//!
//! `GEARTRAIN_SEED=7041` replays one story, `GEARTRAIN_STORIES=100` tells that many. A story that fails is printed as short as it could be made.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use geartrain_core::engine::{Effects, Engine, Limits};
use geartrain_core::{
    Answer, Backend, Call, Command, Event, Jobs, Listing, Reason, Refusal, Reply, Timestamp,
};
use geartrain_redis::RedisBackend;
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::peers::RedisServer;
use geartrain_testkit::trace::{Coverage, Step, Tokens, final_reads, generate_timely, shrink};

/// Enough for more than a hundred thousand commands.
const STORIES: u64 = 300;

#[test]
fn a_redis_agrees_with_the_engine_whatever_happens() {
    let seed = number_from("GEARTRAIN_SEED");
    let stories = number_from("GEARTRAIN_STORIES");
    let seeds = match seed {
        Some(seed) => seed..seed + 1,
        None => 0..stories.unwrap_or(STORIES),
    };
    let redis = RedisServer::start(&[]);
    let mut coverage = Coverage::default();
    let mut told = 0;
    for seed in seeds {
        let story = generate_timely(seed);
        match live_through(&redis, &story, &mut coverage) {
            Ok(commands) => told += commands,
            Err(why) => report(&redis, seed, story, &why),
        }
    }
    println!("{told} commands\n{coverage}");
    if seed.is_none() && stories.is_none() {
        assert!(told >= 100_000, "only {told} commands");
    }
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not {text}")))
}

fn report(redis: &RedisServer, seed: u64, story: Vec<Step>, why: &str) -> ! {
    let length = story.len();
    let short = shrink(story, |steps| live_through(redis, steps, &mut Coverage::default()).is_err());
    let short_why = live_through(redis, &short, &mut Coverage::default()).err().unwrap_or_default();
    let steps: Vec<String> = short.iter().map(Step::to_string).collect();
    panic!(
        "GEARTRAIN_SEED={seed} goes wrong: {why}\n\nCut from {length} steps to {}:\n\n{}\n\n{short_why}\n",
        short.len(),
        steps.join("\n")
    );
}

/// Tells a story to an engine and to a Redis, and says what they disagree about.
fn live_through(redis: &RedisServer, story: &[Step], coverage: &mut Coverage) -> Result<usize, String> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let url = format!("{}?prefix=story{number}:", redis.url()).parse().expect("it is a URL");
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
    for step in story {
        let (answer, events) = pair.tell(step)?;
        coverage.count(&step.command, &answer, &events, &[]);
        for event in &events {
            if let Event::Put { jid, .. } | Event::Popped { jid, .. } = event {
                jids.insert(jid.clone());
            }
        }
    }
    let Some(last) = story.last() else { return Ok(0) };
    let days: BTreeSet<Timestamp> = story.iter().map(|step| step.now.day()).collect();
    let jids: Vec<_> = jids.into_iter().collect();
    let readings = final_reads(&jids, &days);
    let told = story.len() + final_reads.len();
    for (place, command) in final_reads.into_iter().enumerate() {
        let _ = pair.tell(&Step { number: last.number + 1 + place, now: last.now, command })?;
    }
    Ok(told)
}

/// An engine and a Redis, who are told the same.
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
        let engine = self.engine.execute(step.now, asked, &mut self.effects);
        let events = std::mem::take(&mut self.effects.events);
        self.effects.deliveries.clear();
        let call = Call { now: Some(step.now), command: self.redis_tokens.command(&step.command) };
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

/// How a bad argument is explained is each one's own affair.
fn comparable(answer: Answer) -> Answer {
    answer.map_err(|refusal| match refusal {
        Refusal::BadArgument { what, .. } => Refusal::BadArgument { what, why: String::new() },
        other => other,
    })
}

/// A list whose equals a Redis orders by their names, and the engine by when they came. The order of waiting jobs is not among them.
fn sorted(command: &Command, mut answer: Answer) -> Answer {
    match (command, &mut answer) {
        (Command::Jobs(Jobs { which: Listing::Waiting(_), .. }), _) => {}
        (_, Ok(Reply::Jobs(jids))) => jids.sort(),
        (_, Ok(Reply::Tagged(listed))) => listed.jids.sort(),
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

/// Whether two answers are the same, with numbers as they are shown: to 14 digits.
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

/// A line of a debug text that is a number, rounded.
fn shown(line: &str) -> Option<String> {
    let (name, number) = line.rsplit_once(' ').unwrap_or(("", line));
    let number: f64 = number.trim().trim_end_matches(',').parse().ok()?;
    Some(format!("{name} {number:.13e}"))
}
