//! How much room what is asked may take in the log, so that it can be turned away before anything is done.

use geartrain_core::engine::Engine;
use geartrain_core::{
    AnnounceChange, Capability, Command, JobResult, Payload, Pop, PutOptions, QueueName, SpillLocation,
};

/// What a command that brings nothing makes the store write down, and then some.
const MOVED_BYTES: usize = 1 << 10;
/// The same for each job that is popped, besides its queue's name.
const POPPED_BYTES: usize = 256;
/// The same for each thing that a tick does.
const TICKED_BYTES: usize = 1 << 10;
/// The same for each job that is cancelled.
const CANCELLED_BYTES: usize = 64;
/// How much a command may bring that frees room.
const FREEING_BYTES_MAX: usize = 64 << 10;
/// The same for each thing that a worker announces, besides its names.
const ABILITY_BYTES: usize = 32;

/// What freeing a name, or giving a lock another deadline, makes the store write down at the most.
pub(crate) const UPKEEP_BYTES: usize = 16;
/// How much a payload takes in the log: one in a file only says where it is.
fn for_payload(payload: &Payload) -> usize {
    if payload.spill_location().is_none() { payload.byte_len() } else { size_of::<SpillLocation>() }
}

/// About how much a pop makes the store write down. Each job that it hands out may be told in an event that names its queue.
pub(crate) fn for_pop(pop: &Pop) -> usize {
    let longest = pop.queues.iter().map(|queue| queue.as_str().len()).max().unwrap_or_default();
    for_names(&pop.queues) + (POPPED_BYTES + longest) * pop.count.get()
}

/// The same for queues that are named and no more.
pub(crate) fn for_names(queues: &[QueueName]) -> usize {
    MOVED_BYTES + queues.iter().map(|queue| queue.as_str().len()).sum::<usize>()
}

/// Whether a command may use the reserve of a full disk: it frees room, or leads to that, and brings little.
/// A heartbeat does not, but without it a worker loses the job that it is about to complete.
pub(crate) fn frees_room(command: &Command, engine: &Engine) -> bool {
    match command {
        Command::Pop(_)
        | Command::Cancel(_)
        | Command::Release(_)
        | Command::Unrecur(_)
        | Command::ForgetQueues(_)
        | Command::ForgetWorkers(_)
        | Command::Detach(_)
        | Command::Tick(_)
        // They show what there is, and move on what has come due.
        | Command::Peek(_)
        | Command::Jobs(_)
        | Command::Queues(_)
        | Command::Workers(_)
        | Command::WorkerJobs(_)
        | Command::PriorityCounts(_) => true,
        Command::Complete(_) | Command::Fail(_) | Command::Retry(_) => {
            for_command(command, engine) <= FREEING_BYTES_MAX
        }
        Command::Heartbeat(heartbeat) => heartbeat.payload.is_none(),
        other => for_command(other, engine) == 0,
    }
}

/// About how much a command makes the store write down: what it brings, and a good deal for what it moves; nothing if it only reads.
pub(crate) fn for_command(command: &Command, engine: &Engine) -> usize {
    let payload = |payload: &Option<Payload>| payload.as_ref().map_or(0, for_payload);
    let kept = |terms: &PutOptions| {
        terms.unique.as_ref().map_or(0, |key| key.as_bytes().len()) + payload(&terms.metadata)
    };
    // A result may be kept besides being told, and a message is told in an event that may be kept too.
    let result = |result: &Option<Box<JobResult>>| result.as_ref().map_or(0, |it| 2 * it.bytes.bytes().len());
    let message = |message: &Option<String>| message.as_ref().map_or(0, |message| 2 * message.len());
    let ability = |of: &Capability| {
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
            for_payload(&put.payload) + names + put.options.as_deref().map_or(0, kept)
        }
        Command::Heartbeat(beat) => payload(&beat.payload),
        Command::Complete(complete) => {
            let next = complete.next.as_ref().map_or(0, |next| 2 * next.queue.as_str().len());
            payload(&complete.payload) + result(&complete.result) + next
        }
        Command::Fail(fail) => 2 * fail.message.len() + payload(&fail.payload) + result(&fail.result),
        Command::Retry(retry) => message(&retry.message),
        Command::Cancel(cancel) => CANCELLED_BYTES * cancel.jids.len(),
        // Written as evidence, and again in what is said of a job that fails for it.
        Command::WorkerLost(gone) => {
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
