//! Command dispatch: what each command does on a function, or the refusal if GearMonkey has no notion of it.

use std::sync::Arc;

use geartrain_core::{Call, Command, Pop, PopReply, QueueName, Release, Reply, StatusOf, Timestamp};
use tokio::sync::broadcast;

use super::keys::channel_of;
use super::session::{NAME, Session, unsupported};
use crate::driver::Shared;
use crate::layout::{CallError, Layout, Notice, Topic};

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

    async fn notices(&self, queues: &[QueueName]) -> Option<broadcast::Receiver<Notice>> {
        let topics = queues.iter().map(|queue| Topic::Channel(channel_of(queue.as_str())));
        self.notices.listen(topics.collect()).await.ok()
    }

    fn wakes(&self, queues: &[QueueName], channel: &str, message: &str) -> bool {
        let function = channel.strip_prefix("channel:");
        message.starts_with("create:") && queues.iter().any(|queue| Some(queue.as_str()) == function)
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
            Command::Progress(progress) => {
                self.progress(&progress, now).await?;
                Reply::Progress(())
            }
            Command::Complete(complete) => Reply::Complete(self.complete(&complete).await?),
            Command::Fail(fail) => {
                self.fail(&fail).await?;
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
                StatusOf::Unique(queue, key) => {
                    Reply::Status(self.status_of_transfer(&queue, &key, now).await?)
                }
                _ => return Err(unsupported("look a job up in this way").into()),
            },
            Command::GetResult(get) => Reply::GetResult(self.result(&get.jid, now).await?.map(Box::new)),
            Command::Attach(attach) => Reply::Attach(self.attach(&attach, now).await?),
            Command::Detach(detach) => Reply::Detach(self.streams.detach(detach.scope)),
            Command::Jobs(jobs) => Reply::Jobs(self.jobs(&jobs.which, jobs.page, now).await?),
            Command::SetAside(set) => Reply::SetAside(Box::new(self.set_aside(&set, now).await?)),
            Command::EndSetAside(end) => Reply::EndSetAside(self.end_set_aside(&end).await?),
            Command::Failures(_) => Reply::Failures(self.failures().await?),
            Command::Failed(failed) => Reply::Failed(self.failed(&failed).await?),
            Command::Queues(queues) => Reply::Queues(self.queues(queues.queue, now).await?),
            Command::Length(length) => Reply::Length(self.length(&length.queue, now).await?),
            Command::PriorityCounts(of) => Reply::PriorityCounts(self.priority_counts(&of.queue).await?),
            Command::Announce(announce) => {
                self.announce(&announce, now).await?;
                Reply::Announce(())
            }
            Command::RollCall(roll_call) => Reply::RollCall(self.roll_call(&roll_call, now).await?),
            Command::Announced(announced) => {
                Reply::Announced(self.announced(announced.worker.as_ref()).await?)
            }
            Command::WorkerJobs(of) => Reply::WorkerJobs(self.worker_jobs(&of.worker, now).await?),
            Command::Workers(_) => Reply::Workers(self.workers(now).await?),
            // Nothing recurs, and a cancelled job is still there.
            Command::GetRecurring(_) => Reply::GetRecurring(None),
            Command::Canceled(_) => Reply::Canceled(None),
            other => return Err(unsupported(operation(&other)).into()),
        })
    }
}

/// The operation to name in a refusal.
fn operation(command: &Command) -> &'static str {
    match command {
        Command::Relock(_) => "lock a worker's jobs again",
        Command::Timeout(_) => "take a job away from its worker: queue it again with requeue",
        Command::Unfail(_) => "run a failed job again: put it anew",
        Command::SetPriority(_) => "change a job's priority",
        Command::Depend(_) => "make a job depend on others",
        Command::Log(_) => "keep a job's history",
        Command::Track(_) | Command::Tracked(_) => "track a job",
        Command::AddTags(_) | Command::RemoveTags(_) | Command::Tagged(_) | Command::TopTags(_) => {
            "tag a job"
        }
        Command::ForgetWorkers(_) => "forget a worker: its registration expires",
        Command::Stats(_) | Command::Figures(_) => "keep statistics",
        Command::Pause(_) | Command::Resume(_) => "pause a function",
        Command::ForgetQueues(_) => "forget a function: its counter names its jobs",
        Command::GetConfig(_) | Command::AllConfig(_) | Command::SetConfig(_) | Command::UnsetConfig(_) => {
            "keep options: they are part of the URL"
        }
        Command::Recur(_)
        | Command::Unrecur(_)
        | Command::UpdateRecurring(_)
        | Command::TagRecurring(_)
        | Command::UntagRecurring(_)
        | Command::PutPeriodic(_)
        | Command::RemovePeriodic(_)
        | Command::Periodics(_)
        | Command::DuePeriodics(_)
        | Command::FirePeriodic(_) => "run a job again and again",
        Command::Chunk(_) => "send parts of a result",
        Command::WorkerLost(_) => "mark a worker as lost: its leases expire",
        Command::SetLimits(_) | Command::GetLimits(_) => "limit a function",
        Command::Why(_) | Command::WhyQueue(_) => "explain why a job is not running",
        Command::Select(_) | Command::Act(_) => "select jobs by a filter",
        Command::Tick(_) => "run due work: pops do",
        Command::AllocateIds(_) => "allocate ids",
        Command::Flush(_) => "remove everything",
        other => other.name(),
    }
}
