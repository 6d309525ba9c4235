//! What the audit log says about a command: a name, a target, and a count.

use geartrain_core::{BulkAct, Command, DependChange, Reply};

use super::AuditEvent;
use crate::access::Caller;

/// The longest target; a longer one is cut.
const TARGET_BYTES_MAX: usize = 256;

/// A command of a caller, before its outcome is known.
pub(crate) struct Action(AuditEvent);

impl Action {
    pub(crate) fn of(command: &Command, caller: &Caller) -> Action {
        let (target, count) = target(command);
        let target = target.map(cut);
        Action(AuditEvent { target, count, outcome: "begun", ..caller.event(action_name(command)) })
    }

    /// The record of an action whose outcome is not waited for.
    pub(crate) fn begun(self) -> AuditEvent {
        self.0
    }

    pub(crate) fn finish(self, outcome: Result<&Reply, &'static str>) -> AuditEvent {
        match outcome {
            Ok(reply) => AuditEvent { outcome: "ok", count: count(reply).or(self.0.count), ..self.0 },
            Err(outcome) => AuditEvent { outcome, count: None, ..self.0 },
        }
    }
}

/// The name of an action, as operations in JSON and the command call it.
pub(crate) fn action_name(command: &Command) -> &'static str {
    match command {
        Command::Put(put) if put.existing == geartrain_core::Existing::Require => "requeue",
        Command::Put(_) => "put",
        Command::Pop(_) => "pop",
        Command::Heartbeat(_) => "heartbeat",
        Command::Complete(_) => "complete",
        Command::Fail(_) => "fail",
        Command::Retry(_) => "retry",
        Command::Timeout(_) => "timeout",
        Command::Cancel(_) => "cancel",
        Command::Unfail(_) => "unfail",
        Command::SetPriority(_) => "priority",
        Command::Depend(depend) => match depend.change {
            DependChange::On(_) => "depend",
            DependChange::Off(_) | DependChange::OffAll => "undepend",
        },
        Command::Log(_) => "log",
        Command::Track(track) => {
            if track.on {
                "track"
            } else {
                "untrack"
            }
        }
        Command::AddTags(_) => "tag",
        Command::RemoveTags(_) => "untag",
        Command::Pause(_) => "pause",
        Command::Resume(_) => "resume",
        Command::ForgetQueues(_) | Command::ForgetWorkers(_) => "forget",
        Command::SetConfig(_) => "set-config",
        Command::UnsetConfig(_) => "unset-config",
        Command::Recur(_) | Command::PutPeriodic(_) => "recur",
        Command::Unrecur(_) | Command::RemovePeriodic(_) => "unrecur",
        Command::UpdateRecurring(_) | Command::TagRecurring(_) | Command::UntagRecurring(_) => "recur-edit",
        Command::FirePeriodic(_) => "recur-run",
        Command::Progress(_) => "progress",
        Command::Chunk(_) => "chunk",
        Command::Release(_) => "release",
        Command::WorkerLost(_) => "worker-lost",
        Command::Announce(_) => "announce",
        Command::SetLimits(_) => "limits",
        Command::Tick(_) => "tick",
        Command::Flush(_) => "flush",
        Command::Relock(_) => "relock",
        Command::SetAside(_) | Command::EndSetAside(_) => "move",
        Command::Act(act) => match act.act {
            BulkAct::Cancel { .. } => "bulk-cancel",
            BulkAct::Requeue { .. } => "bulk-requeue",
            BulkAct::Unfail { .. } => "bulk-unfail",
            BulkAct::SetPriority { .. } => "bulk-priority",
            BulkAct::AddTags { .. } => "bulk-tag",
            BulkAct::RemoveTags { .. } => "bulk-untag",
            _ => "bulk",
        },
        command => command.name(),
    }
}

/// What a command is about, and how many things it names.
fn target(command: &Command) -> (Option<String>, Option<u64>) {
    fn list<T: ToString>(names: &[T]) -> (Option<String>, Option<u64>) {
        let shown: Vec<String> = names.iter().take(8).map(ToString::to_string).collect();
        (Some(shown.join(" ")), Some(names.len() as u64))
    }
    let one = |name: &dyn ToString| (Some(name.to_string()), None);
    match command {
        Command::Put(put) => one(&put.jid),
        Command::Pop(pop) => list(&pop.queues),
        Command::Heartbeat(heartbeat) => one(&heartbeat.jid),
        Command::Complete(complete) => one(&complete.jid),
        Command::Fail(fail) => one(&fail.jid),
        Command::Retry(retry) => one(&retry.jid),
        Command::Timeout(timeout) => list(&timeout.jids),
        Command::Cancel(cancel) => list(&cancel.jids),
        Command::Unfail(unfail) => one(&unfail.group),
        Command::SetPriority(set) => one(&set.jid),
        Command::Depend(depend) => one(&depend.jid),
        Command::Log(log) => one(&log.jid),
        Command::Track(track) => one(&track.jid),
        Command::AddTags(tags) => one(&tags.jid),
        Command::RemoveTags(tags) => one(&tags.jid),
        Command::Pause(pause) => list(&pause.queues),
        Command::Resume(resume) => list(&resume.queues),
        Command::ForgetQueues(forget) => list(&forget.queues),
        Command::ForgetWorkers(forget) => list(&forget.workers),
        // The value of an option may be long, and is in the options.
        Command::SetConfig(set) => one(&set.option),
        Command::UnsetConfig(unset) => one(&unset.option),
        Command::Recur(recur) => one(&recur.jid),
        Command::PutPeriodic(put) => one(&put.jid),
        Command::Unrecur(unrecur) => one(&unrecur.jid),
        Command::RemovePeriodic(remove) => one(&remove.jid),
        Command::UpdateRecurring(update) => one(&update.jid),
        Command::TagRecurring(tag) => one(&tag.jid),
        Command::UntagRecurring(tag) => one(&tag.jid),
        Command::FirePeriodic(fire) => one(&fire.jid),
        Command::Progress(progress) => one(&progress.jid),
        Command::Chunk(chunk) => one(&chunk.jid),
        Command::Release(release) => one(&release.jid),
        Command::WorkerLost(lost) => one(&lost.worker),
        Command::Announce(announce) => one(&announce.worker),
        Command::SetLimits(limits) => one(&limits.queue),
        Command::Relock(relock) => one(&relock.worker),
        Command::SetAside(set) => list(&set.jids),
        Command::EndSetAside(end) => list(&end.jids),
        Command::Act(act) => one(&act.filter),
        _ => (None, None),
    }
}

/// How many jobs were changed.
fn count(reply: &Reply) -> Option<u64> {
    match reply {
        Reply::Cancel(count) | Reply::Unfail(count) => Some(*count),
        Reply::Act(reply) => Some(reply.acted),
        Reply::WorkerLost(jids) => Some(jids.len() as u64),
        Reply::Pop(reply) => Some(reply.jobs.len() as u64),
        _ => None,
    }
}

fn cut(mut text: String) -> String {
    if text.len() > TARGET_BYTES_MAX {
        let end = (0..=TARGET_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}
