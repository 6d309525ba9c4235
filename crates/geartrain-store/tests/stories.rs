//! Whatever the disk does, what was acknowledged is there, and what was not is wholly there or wholly absent.
//!
//! A random story is told to a store on a simulated disk, command by command, and to the model. At some operation the power goes, the process dies, or a
//! write or a sync fails. What is there afterwards must be what the model knew after some command: not before the last one whose
//! acknowledgement promised that it is kept, and not after the last one that was sent. `GEARTRAIN_SEED=n` tells one story.

#![allow(clippy::unwrap_used, reason = "in a test, that is how to fail")]

use std::collections::BTreeSet;
use std::sync::Arc;

use geartrain_core::engine::Limits;
use geartrain_core::*;
use geartrain_store::log::{Disk, LogOptions};
use geartrain_store::{StoreBackend, StoreOptions, SyncMode};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;
use geartrain_testkit::model::Model;
use geartrain_testkit::story::{Step, Tokens, readings, tell};
use pollster::block_on;

const STORIES: u64 = 400;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mishap {
    PowerCut,
    Killed,
    OneFailure,
}

#[test]
fn what_was_acknowledged_survives_whatever_the_disk_does() {
    let seed = std::env::var("GEARTRAIN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = seed.map_or(0..STORIES, |seed: u64| seed..seed + 1);
    let (mut rolled_back, mut checkpoints) = (0, 0);
    for seed in seeds {
        let mishap = [Mishap::PowerCut, Mishap::Killed, Mishap::OneFailure][(seed % 3) as usize];
        let told =
            Told::tell(seed, mishap).unwrap_or_else(|why| panic!("GEARTRAIN_SEED={seed}, {mishap:?}: {why}"));
        rolled_back += u64::from(told.rolled_back);
        checkpoints += u64::from(told.checkpointed);
    }
    if seed.is_none() {
        // Otherwise the stories would no longer show anything.
        assert!(
            rolled_back > 20 && checkpoints > 50,
            "{rolled_back} rolled back, {checkpoints} with a checkpoint"
        );
    }
}

struct Told {
    /// Something that was sent, and not promised, is not there.
    rolled_back: bool,
    checkpointed: bool,
}

impl Told {
    fn tell(seed: u64, mishap: Mishap) -> Result<Told, String> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = SimDisk::new(seed);
        let backend = open(&disk)?;
        // Opening is part of the story only when it is opened again.
        let mishap_after = rng.u64(..600);
        match mishap {
            Mishap::PowerCut => disk.cut_power_after(mishap_after),
            Mishap::OneFailure => disk.fail_after(mishap_after),
            Mishap::Killed => {}
        }
        let story = tell(seed);
        let killed_at = rng.usize(..story.len());
        let mut model = Model::new(Limits::default());
        let (mut tokens, mut model_tokens) = (Tokens::default(), Tokens::default());
        // What the model knew after each command that may be the last that is kept.
        let mut possible = vec![model.clone()];
        let mut last_step = None;
        for (told, step) in story.iter().enumerate() {
            if mishap == Mishap::Killed && told == killed_at {
                break;
            }
            last_step = Some(step);
            let (expected, events) = model.run(step.now, &model_tokens.command(&step.command));
            possible.push(model.clone());
            let call = Call { now: Some(step.now), command: tokens.command(&step.command) };
            let Ok(mut answers) = block_on(backend.execute(vec![call])) else { break };
            let answer = answers.pop().ok_or("no answer")?;
            if promises(&step.command, &answer, &events) {
                possible.drain(..possible.len() - 1);
            }
            tokens.learn(step.number, &answer);
            model_tokens.learn(step.number, &expected);
            if answer.is_ok() != expected.is_ok() {
                return Err(format!("{step}\nwas answered with {answer:?}, not {expected:?}"));
            }
        }
        let checkpointed =
            disk.list().is_ok_and(|files| files.iter().any(|(name, _)| name.starts_with("checkpoint-")));
        let disk = match mishap {
            // Here the store goes on by itself, on the same disk.
            Mishap::OneFailure => {
                disk.heal();
                return compare(&backend, &possible, last_step)
                    .map(|rolled_back| Told { rolled_back, checkpointed });
            }
            Mishap::PowerCut => disk.crash(),
            Mishap::Killed => disk.kill(),
        };
        drop(backend);
        disk.heal();
        let backend = open(&disk)?;
        compare(&backend, &possible, last_step).map(|rolled_back| Told { rolled_back, checkpointed })
    }
}

fn open(disk: &SimDisk) -> Result<StoreBackend, String> {
    let options = StoreOptions {
        sync: SyncMode::Always,
        log: LogOptions { segment_bytes: 32 << 10, spare_segments: 1 },
        checkpoint_bytes_min: 4 << 10,
    };
    StoreBackend::open_on(Arc::new(disk.clone()), options, ManualClock::new())
        .map_err(|error| format!("{error:?}"))
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
        | Command::Timeout(_) => !events.is_empty(),
        Command::Log(_)
        | Command::SetPriority(_)
        | Command::SetConfig(_)
        | Command::Recur(_)
        | Command::Pause(_) => true,
        _ => false,
    }
}

/// Whether what is there is what the model knew at one of those times; and whether that was before the last.
fn compare(backend: &StoreBackend, possible: &[Model], last: Option<&Step>) -> Result<bool, String> {
    let now = last.map_or(Timestamp::ZERO, |step| step.now);
    let mut wrong = String::new();
    for (back, model) in possible.iter().rev().enumerate() {
        match differs(backend, model.clone(), now) {
            None => return Ok(back > 0),
            Some(difference) => wrong = difference,
        }
    }
    Err(format!(
        "what is there is none of {} things that it could be; the last try:\n{wrong}",
        possible.len()
    ))
}

fn differs(backend: &StoreBackend, mut model: Model, now: Timestamp) -> Option<String> {
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
        )
    };
    for command in readings(&model.jids(), &days).into_iter().filter(looks) {
        let call = Call { now: Some(now), command: command.clone() };
        let answer = match block_on(backend.execute(vec![call])) {
            Ok(mut answers) => answers.pop(),
            Err(error) => return Some(format!("{command:?} is not answered: {error:?}")),
        };
        let (expected, _) = model.run(now, &command);
        let (answer, expected) = (answer.map(without_tokens), Some(without_tokens(expected)));
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
