//! Command dispatch: what each command does on a schedule, or the refusal if WorkKit has no notion of it.

use std::sync::Arc;

use geartrain_core::{Call, Command, Pop, PopReply, QueueName, Release, Reply, StatusOf, Timestamp};

use super::session::{NAME, Session, unsupported};
use crate::driver::Shared;
use crate::layout::{CallError, Layout};

impl Layout for Session {
    const NAME: &'static str = NAME;

    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    async fn pop(&self, pop: &Pop, now: Timestamp) -> Result<(PopReply, Option<Timestamp>), CallError> {
        self.pop(pop, now).await
    }

    async fn ready(
        &self,
        queues: &[QueueName],
        now: Timestamp,
    ) -> Result<(bool, Option<Timestamp>), CallError> {
        self.ready(queues, now).await
    }

    async fn release(&self, release: &Release) -> Result<(), CallError> {
        self.release(release, self.shared.clock.now()).await
    }

    async fn call(&self, call: Call) -> Result<Reply, CallError> {
        let now = call.now.unwrap_or_else(|| self.shared.clock.now());
        Ok(match call.command {
            Command::Put(put) => Reply::Put(self.put(&put, now).await?),
            Command::Pop(pop) => Reply::Pop(self.pop(&pop, now).await?.0),
            Command::Peek(peek) => Reply::Peek(self.peek(&peek.queue, peek.count.get(), now).await?),
            Command::Heartbeat(heartbeat) => Reply::Heartbeat(self.heartbeat(&heartbeat, now).await?),
            Command::Complete(complete) => Reply::Complete(self.complete(&complete).await?),
            Command::Fail(fail) => {
                self.fail(&fail, now).await?;
                Reply::Fail(())
            }
            Command::Retry(retry) => Reply::Retry(self.retry(&retry, now).await?),
            Command::Release(release) => {
                self.release(&release, now).await?;
                Reply::Release(())
            }
            Command::Cancel(cancel) => Reply::Cancel(self.cancel(&cancel).await?),
            Command::Get(get) => Reply::Get(self.find(&get.jid, now).await?.map(Box::new)),
            Command::GetMany(get) => {
                let mut jobs = Vec::with_capacity(get.jids.len());
                for jid in &get.jids {
                    jobs.extend(self.find(jid, now).await?);
                }
                Reply::GetMany(jobs)
            }
            Command::Status(status) => match status.of {
                StatusOf::Jid(jid) => Reply::Status(self.status(&jid, now).await?),
                _ => return Err(unsupported("take a unique key").into()),
            },
            Command::Jobs(jobs) => Reply::Jobs(self.jobs(&jobs.which, jobs.page, now).await?),
            Command::Queues(queues) => Reply::Queues(self.queues(queues.queue, now).await?),
            Command::Length(length) => Reply::Length(self.length(&length.queue).await?),
            Command::Failures(_) => Reply::Failures(self.failures().await?),
            Command::Failed(failed) => Reply::Failed(self.failed(&failed).await?),
            Command::SetAside(set) => Reply::SetAside(Box::new(self.set_aside(&set, now).await?)),
            Command::EndSetAside(end) => Reply::EndSetAside(self.end_set_aside(&end).await?),
            Command::PutPeriodic(put) => Reply::PutPeriodic(self.put_periodic(&put, now).await?),
            Command::RemovePeriodic(remove) => {
                Reply::RemovePeriodic(self.remove_periodic(&remove.jid).await?)
            }
            Command::Periodics(periodics) => {
                Reply::Periodics(Box::new(self.periodics(&periodics, now).await?))
            }
            // Recurring jobs are periodic ones.
            Command::GetRecurring(_) => Reply::GetRecurring(None),
            // Nothing is left of a cancelled job.
            Command::Canceled(_) => Reply::Canceled(None),
            other => return Err(unsupported(operation(&other)).into()),
        })
    }
}

/// The operation to name in a refusal.
fn operation(command: &Command) -> &'static str {
    match command {
        Command::Relock(_) => "lock a worker's jobs again",
        Command::Timeout(_) => "take a job away from its worker",
        Command::Unfail(_) => "queue failed jobs again: put them",
        Command::SetPriority(_) | Command::PriorityCounts(_) => {
            "order jobs by priority: use several schedules"
        }
        Command::Depend(_) => "make a job depend on others",
        Command::Log(_) => "keep a job's history",
        Command::Track(_) | Command::Tracked(_) => "track a job",
        Command::AddTags(_) | Command::RemoveTags(_) | Command::Tagged(_) | Command::TopTags(_) => {
            "tag a job"
        }
        Command::Workers(_) | Command::WorkerJobs(_) | Command::ForgetWorkers(_) => "list workers",
        Command::Stats(_) | Command::Figures(_) => "keep statistics",
        Command::Pause(_) | Command::Resume(_) => "pause a schedule",
        Command::ForgetQueues(_) => "forget a schedule: it is gone with its last job",
        Command::GetConfig(_) | Command::AllConfig(_) | Command::SetConfig(_) | Command::UnsetConfig(_) => {
            "keep options: they are part of the URL"
        }
        Command::Recur(_) => "run a job at an interval: use a cron expression",
        Command::Unrecur(_)
        | Command::UpdateRecurring(_)
        | Command::TagRecurring(_)
        | Command::UntagRecurring(_) => "keep recurring jobs with an interval",
        Command::DuePeriodics(_) | Command::FirePeriodic(_) => {
            "fire recurring jobs: listeners take them when due"
        }
        Command::Attach(_) | Command::Detach(_) | Command::GetResult(_) => "keep a result or wait for one",
        Command::Progress(_) => "report progress",
        Command::Chunk(_) => "send parts of a result",
        Command::WorkerLost(_) => "mark a worker as lost: its leases expire",
        Command::Announce(_) | Command::Announced(_) | Command::RollCall(_) => "announce capabilities",
        Command::SetLimits(_) | Command::GetLimits(_) => "limit a queue",
        Command::Why(_) | Command::WhyQueue(_) => "explain why a job is not running",
        Command::Select(_) | Command::Act(_) => "select jobs by a filter",
        Command::Tick(_) => "run due work: pops do",
        Command::AllocateIds(_) => "allocate ids",
        Command::Flush(_) => "remove everything",
        other => other.name(),
    }
}
