//! Command dispatch: what each command does in Worqr, or the refusal if it has no notion of it.

use std::collections::BTreeMap;

use geartrain_core::{Call, Command, Listed, Refusal, Reply, StatusOf};

use super::names::Process;
use super::session::{Session, unsupported};
use super::streams;
use crate::layout::{CallError, transfer_group};

impl Session {
    pub(super) async fn run_call(&self, call: Call) -> Result<Reply, CallError> {
        let now = call.now.unwrap_or_else(|| self.shared.clock.now());
        Ok(match call.command {
            Command::Put(put) => Reply::Put(self.put(&put).await?),
            Command::Pop(pop) => Reply::Pop(self.pop_now(&pop).await?),
            Command::Peek(peek) => Reply::Peek(self.peek(&peek.queue, peek.count.get()).await?),
            Command::Heartbeat(heartbeat) => Reply::Heartbeat(self.heartbeat(&heartbeat, now).await?),
            Command::Complete(complete) => Reply::Complete(self.complete(&complete).await?),
            Command::Fail(fail) => {
                self.fail(&fail).await?;
                Reply::Fail(())
            }
            Command::Retry(retry) => Reply::Retry(self.retry(&retry).await?),
            Command::Release(release) => {
                self.give_back(&release).await?;
                Reply::Release(())
            }
            Command::Timeout(timeout) => {
                self.timeout(&timeout).await?;
                Reply::Timeout(())
            }
            Command::Get(get) => Reply::Get(self.get(&get.jid, now).await?.map(Box::new)),
            Command::GetMany(get) => {
                let mut jobs = Vec::with_capacity(get.jids.len());
                for jid in &get.jids {
                    jobs.extend(self.get(jid, now).await?);
                }
                Reply::GetMany(jobs)
            }
            Command::Status(status) => match status.of {
                StatusOf::Jid(jid) => Reply::Status(self.status(&jid, now).await?),
                _ => return Err(unsupported("find a task by its unique key").into()),
            },
            Command::Jobs(jobs) => Reply::Jobs(self.jobs(&jobs.which, jobs.page).await?),
            Command::Queues(queues) => Reply::Queues(self.queues(queues.queue).await?),
            Command::Length(length) => Reply::Length(self.length(&length.queue).await?),
            Command::Workers(_) => Reply::Workers(self.worker_counts().await?),
            Command::WorkerJobs(jobs) => Reply::WorkerJobs(self.worker_jobs(&jobs.worker).await?),
            Command::WorkerLost(lost) => {
                let returned = self.worker_lost(&lost.worker).await?;
                Reply::WorkerLost(returned.iter().map(Process::jid).collect())
            }
            Command::RollCall(call) => Reply::RollCall(self.roll_call(&call).await?),
            Command::Announced(of) => Reply::Announced(self.announced(of.worker.as_ref()).await?),
            Command::Attach(attach) => Reply::Attach(self.streams.lock().state_of(attach.waiter)?),
            Command::Detach(detach) => {
                let scope = detach.scope;
                Reply::Detach(self.streams.lock().detach(|waiter| streams::has(scope, waiter)))
            }
            Command::SetAside(set) => Reply::SetAside(Box::new(self.set_aside(&set).await?)),
            Command::EndSetAside(end) => Reply::EndSetAside(self.end_set_aside(&end).await?),
            // A task that failed for good is finished, so that only those are listed that are set aside.
            Command::Failures(_) => {
                let aside = self.aside().await?.len() as u64;
                let groups = (aside > 0).then(|| (transfer_group(), aside));
                Reply::Failures(groups.into_iter().collect::<BTreeMap<_, _>>())
            }
            Command::Failed(failed) if failed.group == transfer_group() => {
                let jids = self.aside().await?;
                let (total, page) = (jids.len() as u64, failed.page);
                let jids = jids.into_iter().skip(page.offset).take(page.count.get()).collect();
                Reply::Failed(Listed { total, jids })
            }
            Command::Failed(_) => Reply::Failed(Listed::default()),
            // Nothing is left of a cancelled task.
            Command::Canceled(_) => Reply::Canceled(None),
            other => return Err(refusal(&other).into()),
        })
    }
}

/// The refusal of a command that Worqr has no notion of.
fn refusal(command: &Command) -> Refusal {
    unsupported(match command {
        Command::Cancel(_) => "cancel a job by its id: cancel all equal tasks by queue and payload",
        Command::Relock(_) => "lock a worker's jobs again",
        Command::Unfail(_) => "keep failed tasks",
        Command::SetPriority(_) | Command::PriorityCounts(_) => "order tasks by priority",
        Command::Depend(_) => "make a task depend on others",
        Command::Log(_) => "keep a task's history",
        Command::Track(_) | Command::Tracked(_) => "track a task",
        Command::AddTags(_) | Command::RemoveTags(_) | Command::Tagged(_) | Command::TopTags(_) => {
            "tag a task"
        }
        Command::ForgetWorkers(_) => "forget a worker: it is gone when its timer runs out",
        Command::ForgetQueues(_) => "forget a queue: it is gone with its last task",
        Command::Stats(_) | Command::Figures(_) => "keep statistics",
        Command::Pause(_) | Command::Resume(_) => "pause a queue",
        Command::GetConfig(_) | Command::AllConfig(_) | Command::SetConfig(_) | Command::UnsetConfig(_) => {
            "keep options: they are part of the URL"
        }
        Command::Recur(_)
        | Command::Unrecur(_)
        | Command::GetRecurring(_)
        | Command::UpdateRecurring(_)
        | Command::TagRecurring(_)
        | Command::UntagRecurring(_)
        | Command::PutPeriodic(_)
        | Command::RemovePeriodic(_)
        | Command::Periodics(_)
        | Command::DuePeriodics(_)
        | Command::FirePeriodic(_) => "keep recurring jobs",
        Command::GetResult(_) => "keep a result",
        Command::Progress(_) => "report progress",
        Command::Chunk(_) => "send parts of a result",
        Command::Announce(_) => "announce capabilities: its workers are registered by queue",
        Command::SetLimits(_) | Command::GetLimits(_) => "limit a queue",
        Command::Why(_) | Command::WhyQueue(_) => "explain why a job is not running",
        Command::Select(_) | Command::Act(_) => "select jobs by a filter",
        Command::Tick(_) => "run due work: nothing falls due",
        Command::AllocateIds(_) => "allocate ids",
        Command::Flush(_) => "remove everything",
        other => other.name(),
    })
}
