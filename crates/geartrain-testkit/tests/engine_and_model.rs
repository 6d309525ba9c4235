//! Engine and model agree on random traces.
//!
//! `GEARTRAIN_SEED=7041` replays one trace, `GEARTRAIN_TRACES=100` runs that many. A trace that fails is
//! shrunk and printed, to become a named test.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use geartrain_core::engine::{Delta, Effects, Engine};
use geartrain_core::{Answer, Command, Count, Event, Flush, Refusal, Reply, StreamMessage, Timestamp};
use geartrain_testkit::model::Model;
use geartrain_testkit::trace::{Coverage, Step, Tokens, final_reads, generate, limits, queues, shrink};
use geartrain_testkit::{scaled, seeds};

/// Enough for more than a million commands.
const TRACES: u64 = 4000;

/// How often the engine checks its invariants, because a check is slow.
const STEPS_PER_CHECK: usize = 50;

#[test]
fn the_engine_agrees_with_the_model_whatever_happens() {
    let seeds = seeds(TRACES);
    let mut coverage = Coverage::default();
    for seed in seeds.clone() {
        let trace = generate(seed);
        if let Err(why) = replay(&trace, &mut coverage, Reclaims::WhatNothingNeeds) {
            report(seed, trace, &why);
        }
    }
    println!("{coverage}");
    if seeds == (0..TRACES) {
        assert!(coverage.total() >= 1_000_000, "only {} commands", coverage.total());
        assert_eq!(
            coverage.missing(100),
            Vec::<&str>::new(),
            "traces no longer cover everything\n{coverage}"
        );
    }
}

/// The model does not age workers and statistics; but engines that replay the deltas must agree.
#[test]
fn engines_that_follow_agree_on_what_was_reclaimed() {
    for seed in 0..scaled(300, 4_000) {
        let trace = generate(seed);
        if let Err(why) = replay(&trace, &mut Coverage::default(), Reclaims::AlsoWhatIsOld) {
            panic!("GEARTRAIN_SEED={seed} goes wrong: {why}");
        }
    }
}

/// After a flush all reads answer as in a new engine, except for allocated ids. A crash in the middle leaves
/// some of its deltas, so each of them leads to a sound state.
#[test]
fn a_flushed_engine_answers_like_a_new_one() {
    for seed in 0..scaled(100, 1_000) {
        let trace = generate(seed);
        let Some(last) = trace.last() else { continue };
        let mut pair = Pair::new(Reclaims::WhatNothingNeeds);
        for step in &trace {
            pair.execute(step).unwrap_or_else(|why| panic!("GEARTRAIN_SEED={seed} goes wrong: {why}"));
        }
        let mut follower = Follower { engine: Engine::new(limits()), name: "the engine that is flushed" };
        follower.catch_up(&pair.effects.deltas).unwrap();
        pair.effects.deltas.clear();
        let flush = || Flush { count: Count::new(1 + seed as i64 % 50).unwrap() };
        while pair.engine.execute(last.now, flush().into(), &mut pair.effects) == Ok(Reply::Flush(true)) {}
        for delta in &pair.effects.deltas {
            follower.catch_up(std::slice::from_ref(delta)).unwrap_or_else(|why| {
                panic!("GEARTRAIN_SEED={seed} goes wrong: after {delta:?} {why}");
            });
        }
        let days: BTreeSet<Timestamp> = trace.iter().map(|step| step.now.day()).collect();
        let mut new = Engine::new(limits());
        for command in final_reads(&pair.model.jids(), &days) {
            if matches!(command, Command::AllocateIds(_)) {
                continue;
            }
            let answer =
                |engine: &mut Engine| engine.execute(last.now, command.clone(), &mut Effects::default());
            let (flushed, expected) = (answer(&mut follower.engine), answer(&mut new));
            assert_eq!(flushed, expected, "GEARTRAIN_SEED={seed}: {command:?}");
        }
    }
}

/// Which names an engine removes during a trace.
#[derive(Clone, Copy, PartialEq)]
enum Reclaims {
    /// Only names whose absence is invisible, so that the engine can be compared with the model.
    WhatNothingNeeds,
    /// All, by the time of the trace.
    AlsoWhatIsOld,
}

/// Fails with the shrunk trace.
fn report(seed: u64, trace: Vec<Step>, why: &str) -> ! {
    let length = trace.len();
    // A trace that makes the engine panic does so many times while it is shrunk; one message is enough.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let reclaims = Reclaims::WhatNothingNeeds;
    let short = shrink(trace, |steps| replay(steps, &mut Coverage::default(), reclaims).is_err());
    let short_why = replay(&short, &mut Coverage::default(), reclaims).err().unwrap_or_default();
    std::panic::set_hook(hook);
    let steps: Vec<String> = short.iter().map(Step::to_string).collect();
    panic!(
        "GEARTRAIN_SEED={seed} goes wrong: {why}\n\nCut from {length} steps to {}:\n\n{}\n\n{short_why}\n",
        short.len(),
        steps.join("\n")
    );
}

/// Runs a trace on an engine and on the model, and reports the first difference. A panic is one too.
fn replay(trace: &[Step], coverage: &mut Coverage, reclaims: Reclaims) -> Result<(), String> {
    let lived = catch_unwind(AssertUnwindSafe(|| Pair::new(reclaims).replay(trace, coverage)));
    lived.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(format!("panic: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?")))
    })
}

/// An engine and the model, which execute the same commands.
struct Pair {
    engine: Engine,
    effects: Effects,
    engine_tokens: Tokens,
    model: Model,
    model_tokens: Tokens,
    reclaims: Reclaims,
}

impl Pair {
    fn new(reclaims: Reclaims) -> Pair {
        Pair {
            engine: Engine::new(limits()),
            effects: Effects { listening: true, ..Effects::default() },
            engine_tokens: Tokens::default(),
            model: Model::new(limits()),
            model_tokens: Tokens::default(),
            reclaims,
        }
    }

    fn replay(&mut self, trace: &[Step], coverage: &mut Coverage) -> Result<(), String> {
        let mut snapshot = Snapshot::default();
        for (told, step) in trace.iter().enumerate() {
            if told == trace.len() / 3 {
                snapshot.begin(self);
            }
            let answers = self.execute(step)?;
            if told % 5 == 0 {
                self.reclaim(step.now);
            }
            snapshot.go_on(self, told % 3);
            coverage.count(&step.command, &answers.model, &answers.events, &answers.deliveries);
            if told % STEPS_PER_CHECK == STEPS_PER_CHECK - 1 {
                self.look_over(step)?;
            }
        }
        let Some(last) = trace.last() else { return Ok(()) };
        self.look_over(last)?;

        // Replicas that apply the deltas, from the start or from a snapshot, must be in the same state and
        // continue alike.
        let mut from_nothing =
            Follower { engine: Engine::new(limits()), name: "the engine rebuilt from deltas" };
        from_nothing.catch_up(&self.effects.deltas)?;
        let mut from_snapshot = snapshot.follower(self)?;
        let days: BTreeSet<Timestamp> = trace.iter().map(|step| step.now.day()).collect();
        for (place, command) in final_reads(&self.model.jids(), &days).into_iter().enumerate() {
            let step = Step { number: last.number + 1 + place, now: last.now, command };
            let answers = self.execute(&step)?;
            from_nothing.execute(&step, &answers)?;
            from_snapshot.execute(&step, &answers)?;
        }
        self.look_over(last)?;
        from_nothing.check()?;
        from_snapshot.check()
    }

    /// Has the engine remove names, of which it examines a few at a time.
    fn reclaim(&mut self, now: Timestamp) {
        let beginning = Timestamp::new(f64::MIN).expect("it is finite");
        let now = if self.reclaims == Reclaims::AlsoWhatIsOld { now } else { beginning };
        self.engine.reclaim(now, 3, &mut self.effects);
    }

    /// Checks the engine's invariants, and its next due time.
    fn look_over(&self, step: &Step) -> Result<(), String> {
        self.engine.check().map_err(|wrong| format!("the engine is not sound after\n{step}\n{wrong}"))?;
        let beginning = Timestamp::new(f64::MIN).map_err(|error| error.to_string())?;
        if self.reclaims == Reclaims::AlsoWhatIsOld {
            return Ok(());
        }
        for queue in queues() {
            let (due, expected) = (self.engine.next_due(&queue, beginning), self.model.next_due(&queue));
            same(step, &format!("the next moments due in {queue}"), "engine", &due, "model", &expected)?;
        }
        Ok(())
    }

    /// Executes one step on both, and compares answers, events and deliveries.
    fn execute(&mut self, step: &Step) -> Result<Answers, String> {
        let deltas_before = self.effects.deltas.len();
        let asked: Command = self.engine_tokens.command(&step.command);
        self.effects.by = step.by();
        let engine = self.engine.execute(step.now, asked, &mut self.effects);
        let events = untimed(std::mem::take(&mut self.effects.events));
        let deliveries = std::mem::take(&mut self.effects.deliveries);
        if engine.is_err() && self.effects.deltas.len() != deltas_before {
            return Err(format!("{step}\nwas refused with {engine:?}, and yet changed something"));
        }
        let asked = self.model_tokens.command(&step.command);
        let (model, expected_events) = self.model.run_by(step.by().as_deref(), step.now, &asked);
        self.engine_tokens.learn(step.number, &engine);
        self.model_tokens.learn(step.number, &model);
        if self.reclaims == Reclaims::AlsoWhatIsOld {
            return Ok(Answers { engine, model, events, deliveries });
        }
        let answer = comparable(self.engine_tokens.answer(engine.clone()));
        let expected = comparable(self.model_tokens.answer(model.clone()));
        same(step, "the answers", "engine", &answer, "model", &expected)?;
        same(step, "the events", "engine", &events, "model", &expected_events)?;
        let expected_deliveries = self.model.deliveries().to_vec();
        same(step, "the deliveries", "engine", &deliveries, "model", &expected_deliveries)?;
        Ok(Answers { engine, model, events, deliveries })
    }
}

/// The model's events have no times.
fn untimed(events: Vec<geartrain_core::TimedEvent>) -> Vec<Event> {
    events.into_iter().map(|timed| timed.event).collect()
}

/// A replica: applies deltas only.
struct Follower {
    engine: Engine,
    name: &'static str,
}

impl Follower {
    fn catch_up(&mut self, deltas: &[Delta]) -> Result<(), String> {
        deltas.iter().for_each(|delta| self.engine.apply(delta));
        self.check()
    }

    fn check(&self) -> Result<(), String> {
        self.engine.check().map_err(|wrong| format!("in {}: {wrong}", self.name))
    }

    fn execute(&mut self, step: &Step, answers: &Answers) -> Result<(), String> {
        let mut effects = Effects { listening: true, ..Effects::default() };
        let answer = self.engine.execute(step.now, step.command.clone(), &mut effects);
        same(step, &format!("in {} the answers", self.name), "follower", &answer, "engine", &answers.engine)?;
        same(
            step,
            &format!("in {} the events", self.name),
            "follower",
            &untimed(effects.events),
            "engine",
            &answers.events,
        )?;
        same(
            step,
            &format!("in {} the deliveries", self.name),
            "follower",
            &effects.deliveries,
            "engine",
            &answers.deliveries,
        )
    }
}

/// A snapshot that is taken while the trace continues.
#[derive(Default)]
struct Snapshot {
    head: Vec<u8>,
    jobs: Vec<Vec<u8>>,
    /// The number of deltas before it.
    after: usize,
    begun: bool,
}

impl Snapshot {
    fn begin(&mut self, of: &mut Pair) {
        (self.after, self.begun) = (of.effects.deltas.len(), true);
        of.engine.begin_snapshot(&mut self.head);
    }

    fn go_on(&mut self, with: &mut Pair, jobs: usize) -> bool {
        let mut piece = Vec::new();
        let done = !self.begun || with.engine.continue_snapshot(jobs, &mut piece);
        self.jobs.push(piece);
        done
    }

    fn follower(mut self, of: &mut Pair) -> Result<Follower, String> {
        while !self.go_on(of, 2) {}
        let mut restoring = Engine::restore(limits(), &self.head).map_err(|error| error.to_string())?;
        for jobs in &self.jobs {
            restoring.add(jobs).map_err(|error| error.to_string())?;
        }
        let engine = restoring.finish();
        let mut follower = Follower { engine, name: "the engine restored from a snapshot" };
        follower.catch_up(&of.effects.deltas[self.after..])?;
        Ok(follower)
    }
}

struct Answers {
    engine: Answer,
    model: Answer,
    events: Vec<Event>,
    deliveries: Vec<StreamMessage>,
}

/// The text of a bad argument is the engine's own.
fn comparable(answer: Answer) -> Answer {
    answer.map_err(|refusal| match refusal {
        Refusal::BadArgument { what, .. } => Refusal::BadArgument { what, why: String::new() },
        other => other,
    })
}

fn same<T: PartialEq + std::fmt::Debug>(
    step: &Step,
    what: &str,
    one: &str,
    got: &T,
    other: &str,
    expected: &T,
) -> Result<(), String> {
    if got == expected {
        return Ok(());
    }
    let (got, expected) = (format!("{got:#?}"), format!("{expected:#?}"));
    let (got, expected) = apart(got.lines().collect(), expected.lines().collect());
    Err(format!("{what} differ at\n{step}\n--- {one}\n{got}\n--- {other}\n{expected}"))
}

/// Two texts without their common first and last lines, but for a few.
fn apart(mut one: Vec<&str>, mut other: Vec<&str>) -> (String, String) {
    const KEPT: usize = 3;
    let in_common = |one: &[&str], other: &[&str]| {
        let same = one.iter().zip(other).take_while(|(one, other)| one == other).count();
        same.saturating_sub(KEPT)
    };
    for _ in 0..2 {
        let begin = in_common(&one, &other);
        one.drain(..begin);
        other.drain(..begin);
        one.reverse();
        other.reverse();
    }
    (one.join("\n"), other.join("\n"))
}
