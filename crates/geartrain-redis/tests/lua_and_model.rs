//! Whatever happens, in whatever order, the Lua in a real Redis tells the same story as the model, and the same events.
//!
//! Where a double cannot tell jobs apart, or Redis orders equals by jid, the two may differ, as docs/formats/redis.md says. So the stories are tamed: no two commands
//! come at one moment, one job is popped at a time, priorities are whole and not huge, and a story ends where only the order of jobs differs.
//! `GEARTRAIN_SEED=7041` replays one story, `GEARTRAIN_STORIES=100` tells that many.

#![allow(clippy::unwrap_used, reason = "in a test, what goes wrong should stop it")]

mod support;

use geartrain_core::engine::Limits;
use geartrain_core::wire::{self, Answers, Happened, Request};
use geartrain_core::{Answer, Call, Command, Count, Event, Priority, Refusal, Reply, Timestamp};
use geartrain_redis::script;
use geartrain_testkit::model::Model;
use geartrain_testkit::story::{Step, Tokens, readings, shrink, tell};
use support::Server;

const STORIES: u64 = 150;

/// The time from one command of a story to the next, at least. A power of two, so that sums stay exact.
const APART: f64 = 1.0 / 512.0;

/// So far off that nothing kept until then ends in a story.
const FAR_OFF: f64 = 1e300;

#[test]
fn the_lua_agrees_with_the_model_whatever_happens() {
    let server = Server::start();
    let library = &script::library().text;
    redis::cmd("FUNCTION").arg("LOAD").arg(library).exec(&mut server.connect()).unwrap();
    let seeds = match number_from("GEARTRAIN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number_from("GEARTRAIN_STORIES").unwrap_or(STORIES),
    };
    let (told, mut to_the_end) = (seeds.end - seeds.start, 0);
    for seed in seeds {
        let story: Vec<Step> = tell(seed).iter().map(tamed).collect();
        match live_through(&server, &story) {
            Lived::ToTheEnd => to_the_end += 1,
            Lived::UntilTheOrderDiffered => {}
            Lived::Apart(why) => report(&server, seed, story, &why),
        }
    }
    assert!(
        told < 10 || to_the_end * 10 > told * 8,
        "only {to_the_end} of {told} stories were told to the end"
    );
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not {text}")))
}

fn report(server: &Server, seed: u64, story: Vec<Step>, why: &str) -> ! {
    let short = shrink(story, |steps| matches!(live_through(server, steps), Lived::Apart(_)));
    let steps: Vec<String> = short.iter().map(Step::to_string).collect();
    let short_why = match live_through(server, &short) {
        Lived::Apart(why) => why,
        Lived::ToTheEnd | Lived::UntilTheOrderDiffered => String::new(),
    };
    panic!("GEARTRAIN_SEED={seed} goes wrong: {why}\n\nCut short:\n\n{}\n\n{short_why}\n", steps.join("\n"));
}

/// A step in which nothing hangs on what a double or a sorted set cannot tell apart.
fn tamed(step: &Step) -> Step {
    let mut step = step.clone();
    let later = step.now.get() + step.number as f64 * APART;
    step.now = Timestamp::new(later).unwrap_or(step.now);
    match &mut step.command {
        Command::Pop(pop) if pop.count.get() > 1 => pop.count = Count::ONE,
        Command::Put(put) => put.priority = put.priority.map(tame),
        Command::SetPriority(set) => set.priority = tame(set.priority),
        Command::Recur(recur) => recur.priority = tame(recur.priority),
        Command::UpdateRecurring(update) => update.priority = update.priority.map(tame),
        Command::SetLimits(set) => {
            set.limits.by_priority.iter_mut().for_each(|(priority, _)| *priority = tame(*priority));
        }
        _ => {}
    }
    step
}

fn tame(priority: Priority) -> Priority {
    let whole = (priority.get() * 100.0).round().clamp(-30_000.0, 30_000.0);
    Priority::new(whole).unwrap_or(priority)
}

enum Lived {
    ToTheEnd,
    UntilTheOrderDiffered,
    Apart(String),
}

fn live_through(server: &Server, story: &[Step]) -> Lived {
    let mut pair = Pair::new(server);
    for step in story {
        match pair.tell(step) {
            Lived::ToTheEnd => {}
            other => return other,
        }
    }
    let Some(last) = story.last() else { return Lived::ToTheEnd };
    let days = story.iter().map(|step| step.now.day()).collect();
    for (place, command) in readings(&pair.model.jids(), &days).into_iter().enumerate() {
        let step = tamed(&Step { number: last.number + 1 + place, now: last.now, command });
        match pair.tell(&step) {
            Lived::ToTheEnd => {}
            other => return other,
        }
    }
    Lived::ToTheEnd
}

/// A Redis and the model, who are told the same.
struct Pair {
    connection: redis::Connection,
    redis_tokens: Tokens,
    model: Model,
    model_tokens: Tokens,
    /// The position of the last event that was heard.
    last: u64,
}

impl Pair {
    fn new(server: &Server) -> Pair {
        let mut connection = server.connect();
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
        let mut pair = Pair {
            connection,
            redis_tokens: Tokens::default(),
            model: Model::new(Limits::default()),
            model_tokens: Tokens::default(),
            last: 0,
        };
        pair.last = pair.ask(&Request::Listen { now: Timestamp::new(FAR_OFF).ok() }).unwrap();
        pair
    }

    fn ask<T: serde::de::DeserializeOwned>(&mut self, request: &Request) -> Result<T, String> {
        let name = &script::library().name;
        let answer: Vec<u8> = redis::cmd("FCALL")
            .arg(name)
            .arg(1)
            .arg("")
            .arg(request.encode())
            .query(&mut self.connection)
            .map_err(|error| error.to_string())?;
        wire::decode(&answer).map_err(|error| error.to_string())
    }

    fn tell(&mut self, step: &Step) -> Lived {
        let apart = |why: String| Lived::Apart(format!("{step}\n{why}"));
        let call = Call { now: Some(step.now), command: self.redis_tokens.command(&step.command) };
        let got = match self.ask::<Answers>(&Request::Batch(vec![call])) {
            Ok(mut answers) => without_far_off(answers.remove(0)),
            Err(error) => return apart(error),
        };
        let heard: Vec<Event> =
            match self.ask::<Happened>(&Request::Since { after: self.last, count: Count::MAX }) {
                Ok(Ok(happened)) => {
                    self.last = happened.last().map_or(self.last, |(position, _)| *position);
                    happened.into_iter().map(|(_, event)| event).collect()
                }
                Ok(Err(refusal)) => return apart(refusal.to_string()),
                Err(error) => return apart(error),
            };
        let (expected, events) = self.model.run(step.now, &self.model_tokens.command(&step.command));
        self.redis_tokens.learn(step.number, &got);
        self.model_tokens.learn(step.number, &expected);
        let got = comparable(self.redis_tokens.answer(got));
        let expected = comparable(self.model_tokens.answer(expected));
        if got == expected && heard == events {
            return Lived::ToTheEnd;
        }
        let (redis, model) = (format!("{got:#?}\n{heard:#?}"), format!("{expected:#?}\n{events:#?}"));
        if self.nameless(&redis) == self.nameless(&model) {
            return Lived::UntilTheOrderDiffered;
        }
        apart(format!("--- redis\n{redis}\n--- model\n{model}"))
    }

    /// The lines of a text in no order and without the names of jobs.
    fn nameless(&self, text: &str) -> Vec<String> {
        let jids: Vec<String> = self.model.jids().iter().map(|jid| format!("{jid:?}")).collect();
        let nameless =
            |line: &str| jids.iter().fold(line.trim().to_owned(), |line, jid| line.replace(jid, "_"));
        let mut lines: Vec<String> = text.lines().map(nameless).collect();
        lines.sort_unstable();
        lines
    }
}

/// That nobody listens any more some day is not the model's affair.
fn without_far_off(answer: Answer) -> Answer {
    answer.map(|mut reply| {
        if let Reply::Tick(tick) = &mut reply {
            tick.next = tick.next.filter(|next| next.get() < FAR_OFF);
        }
        reply
    })
}

/// How a bad argument is explained is everybody's own affair.
fn comparable(answer: Answer) -> Answer {
    answer.map_err(|refusal| match refusal {
        Refusal::BadArgument { what, .. } => Refusal::BadArgument { what, why: String::new() },
        other => other,
    })
}
