//! Reservation: an upper estimate of the log space a command needs, so that it can be refused before it is
//! executed if the disk is full.

use geartrain_core::engine::Engine;
use geartrain_core::{
    ATTEMPT_MESSAGE_BYTES_MAX, Act, AnnounceChange, BulkAct, CALLER_BYTES_MAX, CASCADE_MAX, Capability,
    Command, EndSetAside, FUNCTION_BYTES_MAX, GROUP_BYTES_MAX, JobResult, Payload, Pop, PutOptions,
    QueueName, SELECT_MAX, SpillLocation, TransferEnd,
};

/// Log bytes of a command without arguments, generously.
const COMMAND_BYTES: usize = 1 << 10;
/// Log bytes per popped job, besides the name of its queue.
const POPPED_JOB_BYTES: usize = 256;
/// Log bytes per step of a tick.
const TICK_STEP_BYTES: usize = 1 << 10;
/// Log bytes per job of a periodic job, besides its payload and names, with its events.
const FIRED_JOB_BYTES: usize = 2 << 10;
/// Log bytes per cancelled job.
const CANCELLED_JOB_BYTES: usize = 64;
/// Log bytes per job that a bulk change moves, with an event that may be retained.
const MOVED_JOB_BYTES: usize = 192;
/// Log bytes per flushed item: a job, or the text of an option or a tag.
const FLUSHED_BYTES: usize = 64;
/// A command with more argument bytes does not count as freeing space.
const FREEING_BYTES_MAX: usize = 64 << 10;
/// Log bytes per step of a dependency policy: a job that fails, with message and event.
const POLICY_STEP_BYTES: usize = 512;
/// Log bytes per announced capability, besides its names.
const CAPABILITY_BYTES: usize = 32;

/// Log bytes of freeing a name, or of moving a lock's deadline, at most.
pub(crate) const UPKEEP_BYTES: usize = 16;
/// Log bytes of a payload: a spilled one takes only its location.
fn payload_bytes(payload: &Payload) -> usize {
    if payload.spill_location().is_none() { payload.byte_len() } else { size_of::<SpillLocation>() }
}

/// Log bytes of a pop. Each popped job may cause an event that names its queue.
pub(crate) fn pop_bytes(pop: &Pop) -> usize {
    let longest = pop.queues.iter().map(|queue| queue.as_str().len()).max().unwrap_or_default();
    names_bytes(&pop.queues) + (POPPED_JOB_BYTES + longest) * pop.count.get()
}

/// Log bytes of a command that names queues.
pub(crate) fn names_bytes(queues: &[QueueName]) -> usize {
    COMMAND_BYTES + queues.iter().map(|queue| queue.as_str().len()).sum::<usize>()
}

/// Whether a command may use the log space held back for a full disk: it frees space, or leads to that, and
/// has small arguments. A heartbeat does not, but without it a worker loses the job that it is about to
/// complete.
pub(crate) fn frees_space(command: &Command, engine: &Engine) -> bool {
    match command {
        Command::Pop(_)
        | Command::Cancel(_)
        | Command::Act(Act { act: BulkAct::Cancel { .. }, .. })
        | Command::Release(_)
        | Command::Relock(_)
        | Command::EndSetAside(EndSetAside { end: TransferEnd::Remove, .. })
        | Command::Unrecur(_)
        | Command::RemovePeriodic(_)
        | Command::ForgetQueues(_)
        | Command::ForgetWorkers(_)
        | Command::Detach(_)
        | Command::Tick(_)
        | Command::Flush(_)
        // Reads that also move jobs that have come due.
        | Command::Peek(_)
        | Command::Jobs(_)
        | Command::Queues(_)
        | Command::Workers(_)
        | Command::WorkerJobs(_)
        | Command::WhyQueue(_)
        | Command::PriorityCounts(_) => true,
        Command::Complete(_) | Command::Fail(_) | Command::Retry(_) => {
            own_bytes(command, engine) <= FREEING_BYTES_MAX
        }
        Command::Heartbeat(heartbeat) => heartbeat.payload.is_none(),
        other => command_bytes(other, engine) == 0,
    }
}

/// Log bytes of a command and of the dependency policies that it may apply; 0 if it only reads.
pub(crate) fn command_bytes(command: &Command, engine: &Engine) -> usize {
    own_bytes(command, engine) + POLICY_STEP_BYTES * engine.policy_steps(command)
}

/// Log bytes of a command: its arguments and a generous amount for what it moves; 0 if it only reads.
fn own_bytes(command: &Command, engine: &Engine) -> usize {
    let payload = |payload: &Option<Payload>| payload.as_ref().map_or(0, payload_bytes);
    let options = |put: &PutOptions| {
        put.unique.as_ref().map_or(0, |key| key.as_bytes().len())
            + payload(&put.metadata)
            + put.failure.as_ref().map_or(0, |failure| 2 * (failure.0.as_str().len() + failure.1.len()))
    };
    // A result may be stored as well as delivered, and a message is in an event that may be retained too.
    let result =
        |result: &Option<Box<JobResult>>| result.as_ref().map_or(0, |result| 2 * result.bytes.bytes().len());
    let message = |message: &Option<String>| message.as_ref().map_or(0, |message| 2 * message.len());
    let capability = |of: &Capability| {
        CAPABILITY_BYTES + of.queue.as_str().len() + of.klass.as_ref().map_or(0, |k| k.as_str().len())
    };
    let argument_bytes = match command {
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
        | Command::Canceled(_)
        | Command::Periodics(_)
        | Command::DuePeriodics(_)
        | Command::Select(_)
        // A chunk is delivered and not stored.
        | Command::Chunk(_) => return 0,
        // A new name is logged as well, and an event names the queue.
        Command::Put(put) => {
            let names = 2 * put.queue.as_str().len() + put.klass.as_str().len();
            payload_bytes(&put.payload) + names + put.options.as_deref().map_or(0, options)
        }
        Command::Heartbeat(beat) => payload(&beat.payload),
        Command::Complete(complete) => {
            let next = complete.next.as_ref().map_or(0, |next| 2 * next.queue.as_str().len());
            payload(&complete.payload) + result(&complete.result) + next
        }
        Command::Fail(fail) => 2 * fail.message.len() + payload(&fail.payload) + result(&fail.result),
        // In the end of the attempt as well, as far as that is stored.
        Command::Retry(retry) => message(&retry.message) + ATTEMPT_MESSAGE_BYTES_MAX + GROUP_BYTES_MAX,
        Command::Release(release) => release.message.as_ref().map_or(0, |_| ATTEMPT_MESSAGE_BYTES_MAX),
        // The caller and the reason are in the delta of each job.
        Command::Cancel(cancel) => {
            let because = cancel.because.as_ref().map_or(0, String::len);
            let jobs = if cancel.cascade { CASCADE_MAX } else { cancel.jids.len() };
            (CANCELLED_JOB_BYTES + CALLER_BYTES_MAX + because) * jobs
        }
        Command::Act(act) => act_bytes(act),
        // Logged as evidence, and again in the failure of each job that it ends.
        Command::WorkerLost(lost) => {
            engine.held_by(&lost.worker) * (COMMAND_BYTES + 2 * message(&lost.evidence))
        }
        Command::Announce(announce) => match &announce.change {
            AnnounceChange::Can(all) | AnnounceChange::Only(all) => all.iter().map(capability).sum(),
            AnnounceChange::Cannot(_) => 0,
        },
        Command::Tick(tick) => TICK_STEP_BYTES * tick.count.get(),
        Command::Flush(flush) => FLUSHED_BYTES * flush.count.get(),
        Command::Log(log) => log.message.len() + log.data.as_ref().map_or(0, String::len),
        Command::Recur(recur) => recur.payload.bytes().len(),
        // The template is logged as it is sent.
        Command::PutPeriodic(put) => put.template.encoded_bytes(),
        Command::FirePeriodic(fire) => {
            // An earlier job may be cancelled for each new one.
            let each = FIRED_JOB_BYTES + CANCELLED_JOB_BYTES + engine.periodic_bytes(&fire.jid);
            each * fire.runs.len()
        }
        Command::UpdateRecurring(update) => payload(&update.payload),
        Command::Pop(pop) => return pop_bytes(pop),
        Command::Relock(relock) => {
            let jobs = engine.held_by(&relock.worker).min(relock.count.get());
            (POPPED_JOB_BYTES + FUNCTION_BYTES_MAX) * jobs
        }
        Command::SetConfig(set) => 2 * set.value.len(),
        // The last failure is part of what is logged.
        Command::SetAside(set) => {
            let each = MOVED_JOB_BYTES + GROUP_BYTES_MAX + set.to.len();
            each * set.jids.len() + engine.failure_bytes(&set.jids)
        }
        Command::EndSetAside(end) => {
            (MOVED_JOB_BYTES + GROUP_BYTES_MAX) * end.jids.len() + engine.failure_bytes(&end.jids)
        }
        _ => 0,
    };
    argument_bytes + COMMAND_BYTES
}

/// Log bytes of a bulk change.
fn act_bytes(act: &Act) -> usize {
    let jobs = act.count.get().max(act.only.len());
    let queue = |queue: &Option<QueueName>| queue.as_ref().map_or(0, |queue| queue.as_str().len());
    match &act.act {
        // As many again, and more, may depend on them.
        BulkAct::Cancel { because } => {
            let because = because.as_ref().map_or(0, String::len);
            (CANCELLED_JOB_BYTES + CALLER_BYTES_MAX + because) * (jobs + 2 * SELECT_MAX)
        }
        BulkAct::AddTags { tags } | BulkAct::RemoveTags { tags } => {
            let tags: usize = tags.iter().map(|tag| MOVED_JOB_BYTES + tag.as_str().len()).sum();
            tags * jobs
        }
        BulkAct::Requeue { queue: to } | BulkAct::Unfail { queue: to } => {
            (MOVED_JOB_BYTES + queue(to)) * jobs
        }
        _ => MOVED_JOB_BYTES * jobs,
    }
}

#[cfg(test)]
mod tests {
    use geartrain_core::engine::{Effects, Limits};
    use geartrain_core::{
        FirePeriodic, Jid, Klass, METADATA_BYTES_MAX, Period, PeriodicTemplate, Put, PutPeriodic, Seconds,
        Tag, Timestamp, UniqueKey,
    };

    use super::*;

    /// The log bytes of a command that is executed.
    fn executed(engine: &mut Engine, command: Command) -> usize {
        let mut effects = Effects::default();
        engine.execute(Timestamp::ZERO, command, &mut effects).expect("it is valid");
        let mut bytes = Vec::new();
        effects.deltas.iter().for_each(|delta| delta.encode(&mut bytes));
        bytes.len()
    }

    #[test]
    fn a_periodic_job_with_many_tags_and_metadata_fits_its_reservation() {
        let mut engine = Engine::new(Limits::default());
        let name = |number: u32| format!("{number:0>500}");
        let options = PutOptions {
            metadata: Some(vec![0xff; METADATA_BYTES_MAX].into()),
            unique: Some(UniqueKey::new("u".repeat(500)).expect("a key")),
            ..PutOptions::default()
        };
        let put = Put {
            tags: Some((0..1_000).map(|number| Tag::new(name(number)).expect("a name")).collect()),
            options: Some(Box::new(options)),
            ..Put::new(
                QueueName::new(name(0)).expect("a name"),
                Jid::new("nightly").expect("a name"),
                Klass::new(name(1)).expect("a name"),
                vec![0xff; 10_000],
            )
        };
        let jid = put.jid.clone();
        let template = PeriodicTemplate::new(put, Period::Interval(Seconds::from(1)));
        let fire = FirePeriodic {
            jid,
            expected: Some(Timestamp::ZERO),
            runs: vec![Timestamp::ZERO],
            next: Some(1.into()),
        };
        for command in [Command::from(PutPeriodic::new(template, Timestamp::ZERO)), fire.into()] {
            let reserved = command_bytes(&command, &engine);
            let name = command.name();
            let logged = executed(&mut engine, command);
            assert!(logged > 500_000 && logged <= reserved, "{name}: {logged} bytes, {reserved} reserved");
        }
    }
}
