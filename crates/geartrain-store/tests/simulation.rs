//! Simulation of the store on a failing disk: every acknowledged command is there, and every other one is
//! there completely or not at all.
//!
//! A random trace is executed by a store on a simulated disk and by the model, with several commands in
//! flight at a time. At some operation the power goes, the process dies, or a write or a sync fails. The
//! state afterwards must be the model's after some command: not before the last one whose acknowledgement
//! promised durability, and not after the last one that was sent. No number that a counter allocated is
//! allocated again. When the engine and the committer run is drawn too, and nothing else is concurrent: a
//! seed always gives the same history. In half of the histories all payloads are spilled. `GEARTRAIN_SEED=n`
//! runs one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fastrand::Rng;
use geartrain_core::engine::Limits;
use geartrain_core::*;
use geartrain_store::wal::{Disk, WalOptions};
use geartrain_store::{Lockstep, Sent, StoreOptions, SyncMode};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;
use geartrain_testkit::model::Model;
use geartrain_testkit::trace::{Step, Tokens, final_reads, generate};

const HISTORIES: u64 = 400;
/// Disk operations before the fault, at most.
const OPERATIONS_MAX: u64 = 600;
/// Commands in flight, at most.
const IN_FLIGHT_MAX: usize = 4;

/// The fault.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    PowerCut,
    Killed,
    OneFailure,
}

const FAULTS: [Fault; 3] = [Fault::PowerCut, Fault::Killed, Fault::OneFailure];

#[test]
fn acknowledged_commands_survive_random_faults() {
    let seeds = geartrain_testkit::seeds(HISTORIES);
    let (mut rolled_back, mut checkpoints, mut spilled, mut numbers) = (0, 0, 0, 0);
    for seed in seeds.clone() {
        let fault = FAULTS[(seed % 3) as usize];
        let outcome = Simulation::run(seed, fault, None)
            .unwrap_or_else(|why| panic!("GEARTRAIN_SEED={seed}, {fault:?}: {why}"));
        rolled_back += u64::from(outcome.rolled_back);
        checkpoints += u64::from(outcome.checkpointed);
        spilled += u64::from(outcome.spilled);
        numbers += u64::from(outcome.numbers > 0);
    }
    if seeds == (0..HISTORIES) {
        // Otherwise the histories would cover nothing.
        assert!(
            rolled_back > 20 && checkpoints > 50 && spilled > 100 && numbers > 100,
            "{rolled_back} rolled back, {checkpoints} with a checkpoint, {spilled} with payloads in files, {numbers} with numbers"
        );
    }
}

/// The same history again and again, with the fault at each operation in turn.
#[test]
fn acknowledged_commands_survive_a_fault_at_any_operation() {
    let seed = 3;
    for fault in [Fault::PowerCut, Fault::OneFailure] {
        for after in 0..OPERATIONS_MAX / 2 {
            Simulation::run(seed, fault, Some(after))
                .unwrap_or_else(|why| panic!("{fault:?} of {seed} after {after}: {why}"));
        }
    }
}

#[test]
fn a_seed_always_gives_the_same_history() {
    for seed in 0..30 {
        let run = || Simulation::run(seed, FAULTS[(seed % 3) as usize], None).unwrap();
        assert_eq!(run(), run(), "seed {seed}");
    }
}

/// The outcome of a history.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// A command that was sent, and not promised, is not there.
    rolled_back: bool,
    checkpointed: bool,
    /// Some payloads were spilled.
    spilled: bool,
    /// Counters that had allocated numbers.
    numbers: usize,
    /// All answers, the number of disk operations, and the files.
    answers: Vec<Answer>,
    operations: u64,
    files: Vec<(String, u64)>,
}

/// A running history.
struct Simulation<'a> {
    rng: Rng,
    store: Lockstep,
    model: Model,
    tokens: Tokens,
    model_tokens: Tokens,
    /// The model after each command that may be the last durable one.
    possible: VecDeque<Model>,
    /// Commands sent before those.
    before: usize,
    in_flight: VecDeque<InFlight<'a>>,
    sent: usize,
    /// The last command that failed, or whose outcome is unknown, or after which the store recovered.
    failed: Option<usize>,
    /// All clients were detached since, in all possible models.
    detached: bool,
    /// The last number that each counter allocated.
    allocated: BTreeMap<String, u64>,
    answers: Vec<Answer>,
}

/// A command without an answer.
struct InFlight<'a> {
    number: usize,
    step: &'a Step,
    reply: Sent,
    expected: Answer,
    events: Vec<Event>,
}

impl<'a> Simulation<'a> {
    fn run(seed: u64, fault: Fault, after: Option<u64>) -> Result<Outcome, String> {
        let mut rng = Rng::with_seed(seed);
        let disk = SimDisk::new(seed);
        let spills = seed / 3 % 2 == 1;
        let store = open(&disk, spills)?;
        // Opening is part of the history only when the store is opened again.
        let after = after.unwrap_or(rng.u64(..OPERATIONS_MAX));
        match fault {
            Fault::PowerCut => disk.cut_power_after(after),
            Fault::OneFailure => disk.fail_after(after),
            Fault::Killed => {}
        }
        let mut trace = generate(seed);
        if spills {
            // By values of a payload in a file jobs are changed in two steps, and the model has one.
            trace.retain(|step| !matches!(&step.command, Command::Act(act) if act.filter.needs_payload()));
        }
        let killed_at = rng.usize(..trace.len());
        let end = if fault == Fault::Killed { killed_at } else { trace.len() };
        let model = Model::new(Limits::default());
        let mut simulation = Simulation {
            rng,
            store,
            possible: VecDeque::from([model.clone()]),
            model,
            tokens: Tokens::default(),
            model_tokens: Tokens::default(),
            before: 0,
            in_flight: VecDeque::new(),
            sent: 0,
            failed: None,
            detached: false,
            allocated: BTreeMap::new(),
            answers: Vec::new(),
        };
        simulation.run_trace(&trace[..end], fault)?;
        let now = simulation.sent.checked_sub(1).map_or(Timestamp::ZERO, |last| trace[last].now);
        let files = disk.list().unwrap_or_default();
        let checkpointed = files.iter().any(|(name, _)| name.starts_with("checkpoint-"));
        let spilled = disk.names().iter().any(|name| name.starts_with("payloads-"));
        let Simulation { mut store, mut possible, answers, detached, mut model, allocated, .. } = simulation;
        let disk = match fault {
            // Here the store recovers by itself, on the same disk.
            Fault::OneFailure => disk,
            Fault::PowerCut => disk.crash(),
            Fault::Killed => disk.kill(),
        };
        disk.heal();
        let is_another = if fault == Fault::OneFailure {
            // If a recovery is still due, it happens now.
            let _ = execute(&mut store, Failures.into())?;
            store.recoveries() > 0
        } else {
            store = open(&disk, spills)?;
            true
        };
        if is_another && !detached {
            detach_all(&mut possible, now);
        }
        let rolled_back = compare(&mut store, &possible, now)?;
        let numbers = allocated.len();
        for (counter, last) in allocated {
            check_counter(&mut store, &mut model, &counter, last)?;
        }
        Ok(Outcome {
            rolled_back,
            checkpointed,
            spilled,
            numbers,
            answers,
            operations: disk.operations(),
            files,
        })
    }

    fn run_trace(&mut self, trace: &'a [Step], fault: Fault) -> Result<(), String> {
        for step in trace {
            // A worker that has a token got it in a reply.
            let has_token = matches!(
                step.command,
                Command::Heartbeat(_)
                    | Command::Complete(_)
                    | Command::Fail(_)
                    | Command::Retry(_)
                    | Command::Progress(_)
                    | Command::Chunk(_)
                    | Command::Release(_)
                    | Command::Relock(_)
            );
            while self.in_flight.len() > self.rng.usize(..IN_FLIGHT_MAX)
                || has_token && !self.in_flight.is_empty()
            {
                self.step_store(fault)?;
            }
            if self.failed.is_some() {
                break;
            }
            self.send(step);
            if self.rng.bool() {
                self.store.engine_step();
            }
            self.take_answers(fault)?;
        }
        // A process that is killed leaves commands in flight.
        while fault != Fault::Killed && !self.in_flight.is_empty() {
            self.step_store(fault)?;
        }
        Ok(())
    }

    fn send(&mut self, step: &'a Step) {
        let (expected, events) = self.model.run(step.now, &self.model_tokens.command(&step.command));
        self.model_tokens.learn(step.number, &expected);
        self.possible.push_back(self.model.clone());
        self.sent += 1;
        let call = Call::at(step.now, self.tokens.command(&step.command));
        let reply = self.store.send(vec![call]);
        self.in_flight.push_back(InFlight { number: self.sent, step, reply, expected, events });
    }

    /// One step of the engine or of the committer.
    fn step_store(&mut self, fault: Fault) -> Result<(), String> {
        if self.rng.bool() {
            self.store.engine_step();
        } else {
            self.store.writer_step(self.rng.usize(1..4));
        }
        self.take_answers(fault)
    }

    /// Takes the answers that have arrived.
    fn take_answers(&mut self, fault: Fault) -> Result<(), String> {
        if self.store.recoveries() > 0 && self.failed.is_none() {
            // A background operation failed. What was published and not promised may be lost all the same.
            self.failed = Some(self.sent - self.in_flight.len());
        }
        while let Some(answers) = self.in_flight.front().and_then(|first| first.reply.answers()) {
            let Some(InFlight { number, step, expected, events, .. }) = self.in_flight.pop_front() else {
                break;
            };
            let answer = match answers.map(|mut answers| answers.pop()) {
                // The power is out when the payload is to be read.
                Ok(Some(Err(Refusal::Unreadable { .. }))) if fault == Fault::PowerCut => {
                    self.failed = Some(number);
                    continue;
                }
                Ok(Some(answer)) => answer,
                Ok(None) => return Err(format!("{step}\nhas no answer")),
                Err(_) => {
                    self.failed = Some(number);
                    continue;
                }
            };
            self.check_numbers(step, &answer)?;
            if let Some(failed) = self.failed {
                // Sent before the fault and executed after it, on what was left then.
                self.possible.truncate(failed + 1 - self.before);
                // A payload whose own file cannot be written refuses its command, and nothing is recovered.
                if self.store.recoveries() > 0 && !std::mem::replace(&mut self.detached, true) {
                    detach_all(&mut self.possible, step.now);
                }
                let command = self.model_tokens.command(&step.command);
                for model in &mut self.possible {
                    let _ = model.run(step.now, &command);
                }
                continue;
            }
            if promises(&step.command, &answer, &events) {
                self.possible.drain(..number - self.before);
                self.before = number;
            }
            self.tokens.learn(step.number, &answer);
            if answer.is_ok() != expected.is_ok() {
                return Err(format!("{step}\nwas answered with {answer:?}, not {expected:?}"));
            }
            self.answers.push(answer);
        }
        Ok(())
    }

    /// Every allocated number is unique, before a fault and after it.
    fn check_numbers(&mut self, step: &Step, answer: &Answer) -> Result<(), String> {
        let (Command::AllocateIds(allocate), Ok(Reply::AllocateIds(first))) = (&step.command, answer) else {
            return Ok(());
        };
        let last = self.allocated.entry(allocate.counter.clone()).or_default();
        if first <= last {
            return Err(format!("{step}\nwas answered with {first}, but {last} was allocated already"));
        }
        *last = first + allocate.count.get() as u64 - 1;
        Ok(())
    }
}

/// The next number of a counter was never allocated, and those in between were requested.
fn check_counter(store: &mut Lockstep, model: &mut Model, counter: &str, last: u64) -> Result<(), String> {
    let command = Command::from(AllocateIds { counter: counter.to_owned(), count: Count::ONE });
    let next = execute(store, Call::from(command.clone()))?;
    match (next, model.run(Timestamp::ZERO, &command).0) {
        (Ok(Reply::AllocateIds(next)), Ok(Reply::AllocateIds(most))) if next > last && next <= most => Ok(()),
        (next, most) => Err(format!(
            "{counter} goes on with {next:?} after {last}; the requested numbers end before {most:?}"
        )),
    }
}

/// All result streams of the previous process, or of the failed store, have ended.
fn detach_all(possible: &mut VecDeque<Model>, now: Timestamp) {
    let detach_all = Command::from(Detach { scope: DetachScope::All });
    for model in possible {
        let _ = model.run(now, &detach_all);
    }
}

fn open(disk: &SimDisk, spills: bool) -> Result<Lockstep, String> {
    let options = StoreOptions {
        sync: SyncMode::Always,
        wal: WalOptions { segment_bytes: 32 << 10, spare_segments: 1 },
        checkpoint_bytes_min: 4 << 10,
        payload_memory: if spills { 0 } else { u64::MAX },
        memory_limit: None,
        spill_bytes_min: 0,
        payload_file_bytes: 256,
        // About a third of the payloads in the traces.
        own_file_bytes_min: if spills { 12 } else { usize::MAX },
        events_held_max: 0,
    };
    Lockstep::open_on(Arc::new(disk.clone()), options, ManualClock::new())
        .map_err(|error| format!("{error:?}"))
}

/// Executes a command, with all steps that its answer needs.
fn execute(store: &mut Lockstep, call: Call) -> Result<Answer, String> {
    let sent = store.send(vec![call]);
    for _ in 0..100 {
        store.engine_step();
        store.writer_step(usize::MAX);
        if let Some(answers) = sent.answers() {
            let mut answers = answers.map_err(|error| format!("{error:?}"))?;
            return answers.pop().ok_or("there is no answer in the batch".to_owned());
        }
    }
    Err("there is no answer".to_owned())
}

/// Whether an answer promises that everything so far is durable. It does if the command changed something
/// that must be synced, and nothing less: a pop or a heartbeat may be published before it is synced, and so
/// may a command that changes nothing.
fn promises(command: &Command, answer: &Answer, events: &[Event]) -> bool {
    match command {
        _ if answer.is_err() => false,
        Command::Put(_)
        | Command::Complete(_)
        | Command::Fail(_)
        | Command::Retry(_)
        | Command::Release(_)
        | Command::Relock(_)
        | Command::WorkerLost(_)
        | Command::Timeout(_) => !events.is_empty(),
        Command::Log(_)
        | Command::SetPriority(_)
        | Command::SetConfig(_)
        | Command::Recur(_)
        | Command::AllocateIds(_)
        | Command::Pause(_) => true,
        _ => false,
    }
}

/// Whether the store's state is one of the possible models; and whether that is not the last one.
fn compare(store: &mut Lockstep, possible: &VecDeque<Model>, now: Timestamp) -> Result<bool, String> {
    let mut wrong = String::new();
    for (back, model) in possible.iter().rev().enumerate() {
        match differs(store, model.clone(), now) {
            None => return Ok(back > 0),
            Some(difference) => wrong = difference,
        }
    }
    Err(format!(
        "what is there is none of {} things that it could be; the last try:\n{wrong}",
        possible.len()
    ))
}

fn differs(store: &mut Lockstep, mut model: Model, now: Timestamp) -> Option<String> {
    let days = BTreeSet::from([now.day()]);
    // Only commands that change nothing, so that one comparison does not spoil the next.
    let looks = |command: &Command| {
        matches!(
            command,
            Command::Get(_)
                | Command::Length(_)
                | Command::Stats(_)
                | Command::Failures(_)
                | Command::Failed(_)
                | Command::Tagged(_)
                | Command::TopTags(_)
                | Command::AllConfig(_)
                | Command::GetRecurring(_)
                | Command::GetResult(_)
                | Command::GetLimits(_)
                | Command::Status(_)
                | Command::Why(_)
                | Command::Announced(_)
                | Command::RollCall(_)
        )
    };
    for command in final_reads(&model.jids(), &days).into_iter().filter(looks) {
        let call = Call::at(now, command.clone());
        let answer = match execute(store, call) {
            Ok(answer) => without_tokens(answer),
            Err(error) => return Some(format!("{command:?} is not answered: {error}")),
        };
        let (expected, _) = model.run(now, &command);
        let expected = without_tokens(expected);
        if answer != expected {
            return Some(format!("{command:?}\n{answer:?}\n{expected:?}"));
        }
    }
    None
}

/// Tokens differ between a store and the model.
fn without_tokens(mut answer: Answer) -> Answer {
    if let Ok(Reply::Get(Some(job))) = &mut answer
        && let JobState::Running { lock } = &mut job.state
    {
        lock.token = Token::new(0);
    }
    answer
}
