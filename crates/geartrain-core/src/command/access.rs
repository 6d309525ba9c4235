//! Roles, and the role that each command needs.

use std::fmt;

use super::{Command, Existing, SetConfig, UnsetConfig};
use crate::{OptionInfo, OptionScope};

/// What a caller may do. Each role may also do what the roles before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads, waits for results, follows events.
    Viewer,
    /// Puts, pops and reports jobs; changes jobs, queues and recurring jobs.
    Operator,
    /// Changes options, forgets queues and workers, makes backups, reads the audit log.
    Admin,
}

impl Role {
    /// All roles, the least first.
    pub const ALL: [Role; 3] = [Role::Viewer, Role::Operator, Role::Admin];

    /// The role's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }

    /// The role of this name.
    pub fn find(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Command {
    /// The role that a caller needs. Commands for a viewer change nothing that a caller could ask to change.
    pub fn access(&self) -> Role {
        match self {
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
            // A role that reads results may also wait for them.
            | Command::Attach(_)
            | Command::Detach(_)
            | Command::RollCall(_)
            | Command::Announced(_)
            | Command::GetLimits(_)
            | Command::GetResult(_)
            | Command::Status(_)
            | Command::Why(_)
            | Command::PriorityCounts(_)
            | Command::Canceled(_)
            | Command::Select(_)
            | Command::Figures(_)
            | Command::WhyQueue(_)
            | Command::Periodics(_)
            | Command::DuePeriodics(_) => Role::Viewer,
            Command::Put(_)
            | Command::Pop(_)
            | Command::Heartbeat(_)
            | Command::Complete(_)
            | Command::Fail(_)
            | Command::Retry(_)
            | Command::Timeout(_)
            | Command::Cancel(_)
            | Command::Unfail(_)
            | Command::SetPriority(_)
            | Command::Depend(_)
            | Command::Log(_)
            | Command::Track(_)
            | Command::AddTags(_)
            | Command::RemoveTags(_)
            | Command::Pause(_)
            | Command::Resume(_)
            | Command::Recur(_)
            | Command::Unrecur(_)
            | Command::UpdateRecurring(_)
            | Command::TagRecurring(_)
            | Command::UntagRecurring(_)
            | Command::Progress(_)
            | Command::Chunk(_)
            | Command::Release(_)
            | Command::WorkerLost(_)
            | Command::Announce(_)
            | Command::SetLimits(_)
            | Command::Tick(_)
            | Command::AllocateIds(_)
            | Command::Act(_)
            | Command::Relock(_)
            | Command::PutPeriodic(_)
            | Command::RemovePeriodic(_)
            | Command::FirePeriodic(_)
            | Command::SetAside(_)
            | Command::EndSetAside(_) => Role::Operator,
            Command::SetConfig(SetConfig { option, .. })
            | Command::UnsetConfig(UnsetConfig { option }) => match OptionInfo::find(option) {
                // A limit of a queue, like those of `SetLimits`.
                Some((OptionInfo { scope: OptionScope::Queue, .. }, _)) => Role::Operator,
                _ => Role::Admin,
            },
            Command::ForgetQueues(_) | Command::ForgetWorkers(_) | Command::Flush(_) => Role::Admin,
        }
    }

    /// Whether this is a decision of an operator or administrator, which the audit log records: not a put, and
    /// not what workers send for each job.
    pub fn is_administrative(&self) -> bool {
        match self {
            // That of an existing job is a requeue.
            Command::Put(put) => put.existing == Existing::Require,
            // A worker fires what is due; without a time it is run now.
            Command::FirePeriodic(fire) => fire.expected.is_none(),
            Command::Pop(_)
            | Command::Heartbeat(_)
            | Command::Complete(_)
            | Command::Fail(_)
            | Command::Retry(_)
            | Command::Log(_)
            | Command::Progress(_)
            | Command::Chunk(_)
            | Command::Release(_)
            | Command::Announce(_)
            | Command::Tick(_)
            | Command::AllocateIds(_)
            | Command::Relock(_) => false,
            command => command.access() > Role::Viewer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Length, QueueName};

    #[test]
    fn options_need_an_admin_and_limits_of_a_queue_an_operator() {
        for (option, role) in [
            ("mail-max-concurrency", Role::Operator),
            ("heartbeat", Role::Admin),
            ("mail-heartbeat", Role::Admin),
            ("unknown", Role::Admin),
        ] {
            assert_eq!(Command::from(SetConfig::new(option, "1")).access(), role, "{option}");
            let unset = UnsetConfig { option: option.to_owned() };
            assert_eq!(Command::from(unset).access(), role, "{option}");
        }
    }

    #[test]
    fn a_role_has_one_name_and_a_rank() {
        assert!(Role::Viewer < Role::Operator && Role::Operator < Role::Admin);
        for role in Role::ALL {
            assert_eq!(Role::find(role.as_str()), Some(role));
        }
        assert_eq!(Role::find("Admin"), None);
        let length = Length { queue: QueueName::new("q").unwrap() };
        assert!(!Command::from(length).is_administrative());
    }
}
