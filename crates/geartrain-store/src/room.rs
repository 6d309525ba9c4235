//! How much room what is asked may take in the log, so that it can be turned away before anything is done.

use geartrain_core::engine::Engine;
use geartrain_core::{Ability, AnnounceChange, Command, Outcome, Payload, Pop, QueueName, Terms};

/// What a command that brings nothing makes the store write down, and then some.
const MOVED_BYTES: usize = 1 << 10;
/// The same for each job that is popped, besides its queue's name.
const POPPED_BYTES: usize = 256;
/// The same for each thing that a tick does.
const TICKED_BYTES: usize = 1 << 10;
/// The same for each thing that a worker announces, besides its names.
const ABILITY_BYTES: usize = 32;

/// What freeing a name, or giving a lock another deadline, makes the store write down at the most.
pub(crate) const UPKEEP_BYTES: usize = 16;

/// About how much a pop makes the store write down. Each job that it hands out may be told in an event that names its queue.
pub(crate) fn for_pop(pop: &Pop) -> usize {
    let longest = pop.queues.iter().map(|queue| queue.as_str().len()).max().unwrap_or_default();
    for_names(&pop.queues) + (POPPED_BYTES + longest) * pop.count.get()
}

/// The same for queues that are named and no more.
pub(crate) fn for_names(queues: &[QueueName]) -> usize {
    MOVED_BYTES + queues.iter().map(|queue| queue.as_str().len()).sum::<usize>()
}

/// About how much a command makes the store write down: what it brings, and a good deal for what it moves; nothing if it only reads.
pub(crate) fn for_command(command: &Command, engine: &Engine) -> usize {
    let payload = |payload: &Option<Payload>| payload.as_ref().map_or(0, |payload| payload.bytes().len());
    let kept =
        |terms: &Terms| terms.unique.as_ref().map_or(0, |key| key.as_bytes().len()) + payload(&terms.aside);
    // A result may be kept besides being told, and a message is told in an event that may be kept too.
    let result = |result: &Option<Box<Outcome>>| result.as_ref().map_or(0, |it| 2 * it.bytes.bytes().len());
    let message = |message: &Option<String>| message.as_ref().map_or(0, |message| 2 * message.len());
    let ability = |of: &Ability| {
        ABILITY_BYTES + of.queue.as_str().len() + of.klass.as_ref().map_or(0, |k| k.as_str().len())
    };
    let brought = match command {
        Command::Get(_)
        | Command::GetMany(_)
        | Command::Length(_)
        | Command::Stats(_)
        | Command::GetConfig(_)
        | Command::AllConfig(_)
        | Command::Tagged(_)
        | Command::TopTags(_)
        | Command::Tracked(_)
        | Command::Failures(_)
        | Command::Failed(_)
        | Command::GetRecurring(_)
        | Command::GetLimits(_)
        | Command::GetResult(_)
        | Command::Status(_)
        | Command::Why(_)
        | Command::RollCall(_)
        | Command::Announced(_)
        // It is passed on and not kept.
        | Command::Chunk(_) => return 0,
        // A name that is new is written down as well, and an event names the queue.
        Command::Put(put) => {
            let names = 2 * put.queue.as_str().len() + put.klass.as_str().len();
            put.payload.bytes().len() + names + put.terms.as_deref().map_or(0, kept)
        }
        Command::Heartbeat(beat) => payload(&beat.payload),
        Command::Complete(complete) => {
            let next = complete.next.as_ref().map_or(0, |next| 2 * next.queue.as_str().len());
            payload(&complete.payload) + result(&complete.result) + next
        }
        Command::Fail(fail) => 2 * fail.message.len() + payload(&fail.payload) + result(&fail.result),
        Command::Retry(retry) => message(&retry.message),
        // Written as evidence, and again in what is said of a job that fails for it.
        Command::Gone(gone) => {
            engine.held_by(&gone.worker) * (MOVED_BYTES + 2 * message(&gone.evidence))
        }
        Command::Announce(announce) => match &announce.change {
            AnnounceChange::Can(all) | AnnounceChange::Only(all) => all.iter().map(ability).sum(),
            AnnounceChange::Cannot(_) => 0,
        },
        Command::Tick(tick) => TICKED_BYTES * tick.count.get(),
        Command::Log(log) => log.message.len() + log.data.as_ref().map_or(0, String::len),
        Command::Recur(recur) => recur.payload.bytes().len(),
        Command::UpdateRecurring(update) => payload(&update.payload),
        Command::Pop(pop) => return for_pop(pop),
        Command::SetConfig(set) => 2 * set.value.len(),
        _ => 0,
    };
    brought + MOVED_BYTES
}
