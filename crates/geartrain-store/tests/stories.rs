//! Whatever the disk does, what was acknowledged is there, and what was not is wholly there or wholly absent.
//!
//! A random story is told to a store on a simulated disk and to the model, with several commands under way at a time. At some operation the power
//! goes, the process dies, or a write or a sync fails. What is there afterwards must be what the model knew after some command: not before the last
//! one whose acknowledgement promised that it is kept, and not after the last one that was sent. No number that a counter handed out comes again. When the engine works and when something is
//! written is drawn too, and nothing else moves by itself: a seed always tells the same story. In half of the stories no payload stays in memory.
//! `GEARTRAIN_SEED=n` tells one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fastrand::Rng;
use geartrain_core::engine::Limits;
use geartrain_core::*;
use geartrain_store::log::{Disk, LogOptions};
use geartrain_store::{Lockstep, Sent, StoreOptions, SyncMode};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;
use geartrain_testkit::model::Model;
use geartrain_testkit::story::{Step, Tokens, readings, tell};

const STORIES: u64 = 400;
/// How many operations of the disk a story may see before something goes wrong.
const OPERATIONS: u64 = 600;
/// How many commands may be under way.
const UNDER_WAY: usize = 4;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mishap {
    PowerCut,
    Killed,
    OneFailure,
}

const MISHAPS: [Mishap; 3] = [Mishap::PowerCut, Mishap::Killed, Mishap::OneFailure];

#[test]
fn what_was_acknowledged_survives_whatever_the_disk_does() {
    let seed = std::env::var("GEARTRAIN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = seed.map_or(0..STORIES, |seed: u64| seed..seed + 1);
    let (mut rolled_back, mut checkpoints, mut spilled, mut numbers) = (0, 0, 0, 0);
    for seed in seeds {
        let mishap = MISHAPS[(seed % 3) as usize];
        let told = Telling::tell(seed, mishap, None)
            .unwrap_or_else(|why| panic!("GEARTRAIN_SEED={seed}, {mishap:?}: {why}"));
        rolled_back += u64::from(told.rolled_back);
        checkpoints += u64::from(told.checkpointed);
        spilled += u64::from(told.spilled);
        numbers += u64::from(told.numbers > 0);
    }
    if seed.is_none() {
        // Otherwise the stories would no longer show anything.
        assert!(
            rolled_back > 20 && checkpoints > 50 && spilled > 100 && numbers > 100,
            "{rolled_back} rolled back, {checkpoints} with a checkpoint, {spilled} with payloads in files, {numbers} with numbers"
        );
    }
}

/// The same story again and again, with the mishap at each operation in turn.
#[test]
fn there_is_no_moment_at_which_the_power_must_not_go_or_the_disk_must_not_fail() {
    let seed = 3;
    for mishap in [Mishap::PowerCut, Mishap::OneFailure] {
        for after in 0..OPERATIONS / 2 {
            Telling::tell(seed, mishap, Some(after))
                .unwrap_or_else(|why| panic!("{mishap:?} of {seed} after {after}: {why}"));
        }
    }
}

#[test]
fn a_seed_always_tells_the_same_story() {
    for seed in 0..30 {
        let tell = || Telling::tell(seed, MISHAPS[(seed % 3) as usize], None).unwrap();
        assert_eq!(tell(), tell(), "seed {seed}");
    }
}

/// What came of a story.
#[derive(Debug, PartialEq)]
struct Told {
    /// Something that was sent, and not promised, is not there.
    rolled_back: bool,
    checkpointed: bool,
    /// Some payloads were in files of their own.
    spilled: bool,
    /// How many counters had handed out numbers.
    numbers: usize,
    /// All answers, how much the disk had to do, and what is on it.
    answers: Vec<Answer>,
    operations: u64,
    files: Vec<(String, u64)>,
}

/// A story that is being told.
struct Telling<'a> {
    rng: Rng,
    store: Lockstep,
    model: Model,
    tokens: Tokens,
    model_tokens: Tokens,
    /// What the model knew after each command that may be the last that is kept.
    possible: VecDeque<Model>,
    /// How many commands were sent before those.
    before: usize,
    under_way: VecDeque<UnderWay<'a>>,
    sent: usize,
    /// The last command that came to nothing, or to nobody knows what, or after which what was kept was read again.
    failed: Option<usize>,
    /// Everyone has left since, in all that is possible.
    left: bool,
    /// The last number that each counter handed out to somebody.
    allotted: BTreeMap<String, u64>,
    answers: Vec<Answer>,
}

/// A command without an answer.
struct UnderWay<'a> {
    number: usize,
    step: &'a Step,
    reply: Sent,
    expected: Answer,
    events: Vec<Event>,
}

impl<'a> Telling<'a> {
    fn tell(seed: u64, mishap: Mishap, after: Option<u64>) -> Result<Told, String> {
        let mut rng = Rng::with_seed(seed);
        let disk = SimDisk::new(seed);
        let spills = seed / 3 % 2 == 1;
        let store = open(&disk, spills)?;
        // Opening is part of the story only when it is opened again.
        let after = after.unwrap_or(rng.u64(..OPERATIONS));
        match mishap {
            Mishap::PowerCut => disk.cut_power_after(after),
            Mishap::OneFailure => disk.fail_after(after),
            Mishap::Killed => {}
        }
        let story = tell(seed);
        let killed_at = rng.usize(..story.len());
        let end = if mishap == Mishap::Killed { killed_at } else { story.len() };
        let model = Model::new(Limits::default());
        let mut telling = Telling {
            rng,
            store,
            possible: VecDeque::from([model.clone()]),
            model,
            tokens: Tokens::default(),
            model_tokens: Tokens::default(),
            before: 0,
            under_way: VecDeque::new(),
            sent: 0,
            failed: None,
            left: false,
            allotted: BTreeMap::new(),
            answers: Vec::new(),
        };
        telling.go_through(&story[..end], mishap)?;
        let now = telling.sent.checked_sub(1).map_or(Timestamp::ZERO, |last| story[last].now);
        let files = disk.list().unwrap_or_default();
        let checkpointed = files.iter().any(|(name, _)| name.starts_with("checkpoint-"));
        let spilled = disk.names().iter().any(|name| name.starts_with("payloads-"));
        let Telling { mut store, mut possible, answers, left, mut model, allotted, .. } = telling;
        let disk = match mishap {
            // Here the store goes on by itself, on the same disk.
            Mishap::OneFailure => disk,
            Mishap::PowerCut => disk.crash(),
            Mishap::Killed => disk.kill(),
        };
        disk.heal();
        let is_another = if mishap == Mishap::OneFailure {
            // If what was kept has still to be read again, that happens now.
            let _ = ask(&mut store, Failures.into())?;
            store.recoveries() > 0
        } else {
            store = open(&disk, spills)?;
            true
        };
        if is_another && !left {
            all_leave(&mut possible, now);
        }
        let rolled_back = compare(&mut store, &possible, now)?;
        let numbers = allotted.len();
        for (counter, last) in allotted {
            goes_on_counting(&mut store, &mut model, &counter, last)?;
        }
        Ok(Told {
            rolled_back,
            checkpointed,
            spilled,
            numbers,
            answers,
            operations: disk.operations(),
            files,
        })
    }

    fn go_through(&mut self, story: &'a [Step], mishap: Mishap) -> Result<(), String> {
        for step in story {
            // Whoever has a token has been told of it.
            let has_token = matches!(
                step.command,
                Command::Heartbeat(_)
                    | Command::Complete(_)
                    | Command::Fail(_)
                    | Command::Retry(_)
                    | Command::Progress(_)
                    | Command::Chunk(_)
                    | Command::Release(_)
            );
            while self.under_way.len() > self.rng.usize(..UNDER_WAY)
                || has_token && !self.under_way.is_empty()
            {
                self.move_on(mishap)?;
            }
            if self.failed.is_some() {
                break;
            }
            self.send(step);
            if self.rng.bool() {
                self.store.engine_step();
            }
            self.listen(mishap)?;
        }
        // A process that is killed leaves things under way.
        while mishap != Mishap::Killed && !self.under_way.is_empty() {
            self.move_on(mishap)?;
        }
        Ok(())
    }

    fn send(&mut self, step: &'a Step) {
        let (expected, events) = self.model.run(step.now, &self.model_tokens.command(&step.command));
        self.model_tokens.learn(step.number, &expected);
        self.possible.push_back(self.model.clone());
        self.sent += 1;
        let call = Call { now: Some(step.now), command: self.tokens.command(&step.command) };
        let reply = self.store.send(vec![call]);
        self.under_way.push_back(UnderWay { number: self.sent, step, reply, expected, events });
    }

    /// One step of the engine or of the writer.
    fn move_on(&mut self, mishap: Mishap) -> Result<(), String> {
        if self.rng.bool() {
            self.store.engine_step();
        } else {
            self.store.writer_step(self.rng.usize(1..4));
        }
        self.listen(mishap)
    }

    /// Takes the answers that have come.
    fn listen(&mut self, mishap: Mishap) -> Result<(), String> {
        if self.store.recoveries() > 0 && self.failed.is_none() {
            // Something failed that nobody waited for. What was told and not promised may be lost all the same.
            self.failed = Some(self.sent - self.under_way.len());
        }
        while let Some(answers) = self.under_way.front().and_then(|first| first.reply.answers()) {
            let Some(UnderWay { number, step, expected, events, .. }) = self.under_way.pop_front() else {
                break;
            };
            let answer = match answers.map(|mut answers| answers.pop()) {
                // The power is out when it is to be read.
                Ok(Some(Err(Refusal::Unreadable { .. }))) if mishap == Mishap::PowerCut => {
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
            self.notice_numbers(step, &answer)?;
            if let Some(failed) = self.failed {
                // It was sent before the mishap and done after it, on whatever was left then.
                self.possible.truncate(failed + 1 - self.before);
                if !std::mem::replace(&mut self.left, true) {
                    all_leave(&mut self.possible, step.now);
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

    /// Whoever is handed a number is the only one, before a mishap and after it.
    fn notice_numbers(&mut self, step: &Step, answer: &Answer) -> Result<(), String> {
        let (Command::AllocateIds(allot), Ok(Reply::AllocateIds(first))) = (&step.command, answer) else {
            return Ok(());
        };
        let last = self.allotted.entry(allot.counter.clone()).or_default();
        if first <= last {
            return Err(format!("{step}\nwas answered with {first}, and somebody has {last}"));
        }
        *last = first + allot.count.get() as u64 - 1;
        Ok(())
    }
}

/// The next number of a counter was handed out to nobody, and those in between were asked for.
fn goes_on_counting(store: &mut Lockstep, model: &mut Model, counter: &str, last: u64) -> Result<(), String> {
    let command = Command::from(AllocateIds { counter: counter.to_owned(), count: Count::ONE });
    let next = ask(store, Call { now: None, command: command.clone() })?;
    match (next, model.run(Timestamp::ZERO, &command).0) {
        (Ok(Reply::AllocateIds(next)), Ok(Reply::AllocateIds(most))) if next > last && next <= most => Ok(()),
        (next, most) => Err(format!(
            "{counter} goes on with {next:?} after {last}; all that was asked for ends before {most:?}"
        )),
    }
}

/// Whoever waited for a job did so through a process, or a stream, that is gone.
fn all_leave(possible: &mut VecDeque<Model>, now: Timestamp) {
    let everyone = Command::from(Detach { scope: DetachScope::All });
    for model in possible {
        let _ = model.run(now, &everyone);
    }
}

fn open(disk: &SimDisk, spills: bool) -> Result<Lockstep, String> {
    let options = StoreOptions {
        sync: SyncMode::Always,
        log: LogOptions { segment_bytes: 32 << 10, spare_segments: 1 },
        checkpoint_bytes_min: 4 << 10,
        payload_memory: if spills { 0 } else { u64::MAX },
        memory_limit: None,
        spill_bytes_min: 0,
        payload_file_bytes: 256,
        // A third or so of the payloads that the stories put.
        own_file_bytes_min: if spills { 12 } else { usize::MAX },
        events_held_max: 0,
    };
    Lockstep::open_on(Arc::new(disk.clone()), options, ManualClock::new())
        .map_err(|error| format!("{error:?}"))
}

/// Asks a store, and has it do all it must to answer.
fn ask(store: &mut Lockstep, call: Call) -> Result<Answer, String> {
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

/// Whether an answer means that all so far is kept. It does if something changed that is worth it, and nothing less: a pop or a heartbeat may
/// be told before it is synced, and so may what changes nothing.
fn promises(command: &Command, answer: &Answer, events: &[Event]) -> bool {
    match command {
        _ if answer.is_err() => false,
        Command::Put(_)
        | Command::Complete(_)
        | Command::Fail(_)
        | Command::Retry(_)
        | Command::Release(_)
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

/// Whether what is there is what the model knew at one of those times; and whether that was before the last.
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
    // Only what changes nothing, so that one try does not spoil the next.
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
    for command in readings(&model.jids(), &days).into_iter().filter(looks) {
        let call = Call { now: Some(now), command: command.clone() };
        let answer = match ask(store, call) {
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
