//! Which of the library's functions executes a request: Redis decides by the function's flags what is allowed
//! beyond `maxmemory` and on replicas.

use geartrain_core::wire::Request;
use geartrain_core::{Act, BulkAct, Command, EndSetAside, Heartbeat, TransferEnd};

/// What a request does to memory, as far as that is known beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Allocates nothing. Allowed beyond `maxmemory` and on replicas (`no-writes`). Redis refuses a read that
    /// must write first, because a job fell due; it is sent again as `Frees`.
    Reads,
    /// Allocates little and releases jobs: allowed beyond `maxmemory` (`allow-oom`), which would never end
    /// otherwise.
    Frees,
    /// Everything else, and batches that contain it.
    Any,
}

impl Effect {
    pub(crate) fn of(request: &Request) -> Effect {
        match request {
            Request::Batch(calls) => {
                calls.iter().map(|call| of_command(&call.command)).fold(Effect::Reads, |all, one| {
                    match (all, one) {
                        (Effect::Any, _) | (_, Effect::Any) => Effect::Any,
                        (Effect::Frees, _) | (_, Effect::Frees) => Effect::Frees,
                        (Effect::Reads, Effect::Reads) => Effect::Reads,
                    }
                })
            }
            // Pops and their parking, which takes a few bytes that expire.
            Request::Park { .. } | Request::Unpark { .. } => Effect::Frees,
            Request::Since { .. } => Effect::Reads,
            _ => Effect::Any,
        }
    }
}

fn of_command(command: &Command) -> Effect {
    match command {
        Command::Peek(_)
        | Command::Tracked(_)
        | Command::Tagged(_)
        | Command::TopTags(_)
        | Command::Get(_)
        | Command::GetMany(_)
        | Command::Length(_)
        | Command::Jobs(_)
        | Command::Failures(_)
        | Command::Failed(_)
        | Command::Queues(_)
        | Command::Workers(_)
        | Command::WorkerJobs(_)
        | Command::Stats(_)
        | Command::GetConfig(_)
        | Command::AllConfig(_)
        | Command::GetRecurring(_)
        | Command::Periodics(_)
        | Command::DuePeriodics(_)
        | Command::RollCall(_)
        | Command::Announced(_)
        | Command::GetLimits(_)
        | Command::GetResult(_)
        | Command::Canceled(_)
        | Command::Status(_)
        | Command::Why(_)
        | Command::PriorityCounts(_)
        | Command::Select(_)
        | Command::Figures(_)
        | Command::WhyQueue(_) => Effect::Reads,
        // Heartbeats and reports of an attempt free nothing, but without them the attempt could not end.
        Command::Pop(_)
        | Command::Heartbeat(Heartbeat { payload: None, .. })
        | Command::Complete(_)
        | Command::Fail(_)
        | Command::Retry(_)
        | Command::Timeout(_)
        | Command::Release(_)
        | Command::Relock(_)
        | Command::Progress(_)
        | Command::Chunk(_)
        | Command::Cancel(_)
        | Command::Act(Act { act: BulkAct::Cancel { .. }, .. })
        | Command::EndSetAside(EndSetAside { end: TransferEnd::Remove, .. })
        | Command::Unrecur(_)
        | Command::RemovePeriodic(_)
        | Command::ForgetQueues(_)
        | Command::ForgetWorkers(_)
        | Command::UnsetConfig(_)
        | Command::Detach(_)
        | Command::WorkerLost(_)
        | Command::Tick(_)
        | Command::Flush(_) => Effect::Frees,
        _ => Effect::Any,
    }
}

#[cfg(test)]
mod tests {
    use geartrain_core::{Call, Cancel, Get, Jid, Klass, Put, QueueName};

    use super::*;

    #[test]
    fn a_batch_has_the_effect_of_its_most_demanding_command() {
        let jid = || Jid::new("j").expect("a name");
        let put =
            Put::new(QueueName::new("q").expect("a name"), jid(), Klass::new("k").expect("a name"), "{}");
        let (get, cancel) = (Get { jid: jid() }, Cancel::new(vec![jid()]));
        let of = |commands: Vec<Command>| {
            Effect::of(&Request::Batch(commands.into_iter().map(Call::from).collect()))
        };
        assert_eq!(of(vec![get.clone().into(), get.clone().into()]), Effect::Reads);
        assert_eq!(of(vec![get.clone().into(), cancel.clone().into()]), Effect::Frees);
        assert_eq!(of(vec![cancel.into(), put.into(), get.into()]), Effect::Any);
    }
}
