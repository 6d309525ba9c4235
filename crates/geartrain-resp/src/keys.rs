//! Reads of Qless's documented keys. Released clients read some of them directly, for example `ZCARD` of a
//! queue's parts. There are no keys here: a read becomes commands of the backend, whose counts are the answer.

use bytes::Bytes;
use geartrain_core::{
    AllConfig, Answer, Call, Command, Count, Failures, Get, GetRecurring, Group, Jid, Job, JobState, Jobs,
    Listing, Page, QueueCounts, QueueName, Queues, Reply, Setting, Tag, Tagged, Timestamp, Tracked, Workers,
};

use crate::frame::Output;

/// Reads carry a time before all others: listings of queues make due jobs waiting, and those of workers
/// forget silent ones, but a read of a key changes nothing.
const BEFORE_ALL: f64 = -1e18;

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// A documented key.
#[derive(Debug, Clone, PartialEq)]
enum Key {
    Part { queue: QueueName, part: Part },
    Job(Jid),
    History(Jid),
    Dependencies(Jid),
    Dependents(Jid),
    Recurring(Jid),
    Config,
    Queues,
    Workers,
    Tracked,
    Completed,
    Failures,
    Group(Group),
    Tag(Tag),
}

/// The sorted sets of a queue.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    Work,
    Locks,
    Scheduled,
    Depends,
    Recur,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    SortedSet,
    Hash,
    List,
    Set,
}

/// What is asked about keys.
#[derive(Debug)]
enum Question {
    Cardinality,
    Score(Jid),
    Exists,
    Kind,
}

/// A read whose commands are under way.
#[derive(Debug)]
pub(crate) struct KeyRead {
    question: Question,
    /// One for each command.
    keys: Vec<Key>,
}

/// Whether a request reads keys.
pub(crate) fn is_read(name: &[u8]) -> bool {
    [&b"zcard"[..], b"zscore", b"exists", b"type"].iter().any(|word| name.eq_ignore_ascii_case(word))
}

/// The commands that answer a request, whose number of arguments is right; or the error reply.
pub(crate) fn read(request: &[Bytes]) -> Result<(Vec<Call>, KeyRead), String> {
    let name = request[0].to_ascii_uppercase();
    let unknown = |key: &[u8]| {
        format!(
            "ERR geartrain has no keys, and {} of '{}' is not among the reads that it answers: see docs/resp.md",
            String::from_utf8_lossy(&name),
            String::from_utf8_lossy(&key[..key.len().min(128)])
        )
    };
    let key = |at: usize| Key::parse(&request[at]).ok_or_else(|| unknown(&request[at]));
    let (question, keys) = match &name[..] {
        b"ZCARD" => match key(1)? {
            // Only listing all of them would tell.
            Key::Completed => return Err(unknown(&request[1])),
            key => (Question::Cardinality, vec![key]),
        },
        b"ZSCORE" => {
            let (key, jid) = (key(1)?, std::str::from_utf8(&request[2]).ok().map(Jid::new));
            if key.kind() == Kind::SortedSet && !key.has_scores() {
                return Err(unknown(&request[1]));
            }
            match jid {
                Some(Ok(jid)) => (Question::Score(jid), vec![key]),
                // No member has such a name.
                _ => (Question::Cardinality, Vec::new()),
            }
        }
        b"EXISTS" => (Question::Exists, (1..request.len()).map(key).collect::<Result<Vec<_>, String>>()?),
        _ => (Question::Kind, vec![key(1)?]),
    };
    let now = Timestamp::new(BEFORE_ALL).ok();
    let calls = keys.iter().map(|key| Call { now, ..Call::from(key.command(&question)) }).collect();
    Ok((calls, KeyRead { question, keys }))
}

impl KeyRead {
    /// How many answers it needs.
    pub(crate) fn commands(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn write(self, answers: Vec<Answer>, out: &mut Output) {
        let replies: Result<Vec<Reply>, _> = answers.into_iter().collect();
        let replies = match replies {
            Ok(replies) if replies.len() == self.keys.len() => replies,
            Ok(_) => return out.error("ERR the backend sent too few answers"),
            Err(refusal) => return out.error(&format!("ERR {refusal}")),
        };
        let mut found = self.keys.iter().zip(&replies);
        if let Question::Exists = self.question {
            let count = found.filter(|(key, reply)| key.cardinality(reply) > 0).count();
            return out.integer(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let Some((key, reply)) = found.next() else { return out.nil() };
        match &self.question {
            Question::Kind if key.cardinality(reply) == 0 => out.simple("none"),
            Question::Kind => out.simple(match key.kind() {
                Kind::SortedSet => "zset",
                Kind::Hash => "hash",
                Kind::List => "list",
                Kind::Set => "set",
            }),
            _ if key.kind() != Kind::SortedSet && key.cardinality(reply) > 0 => out.error(WRONG_TYPE),
            Question::Score(_) => match key.score(reply) {
                Some(score) => out.double(score.get()),
                None => out.nil(),
            },
            _ => out.integer(i64::try_from(key.cardinality(reply)).unwrap_or(i64::MAX)),
        }
    }
}

impl Key {
    fn parse(key: &[u8]) -> Option<Key> {
        let key = std::str::from_utf8(key).ok()?.strip_prefix("ql:")?;
        let fixed = match key {
            "config" => Some(Key::Config),
            "queues" => Some(Key::Queues),
            "workers" => Some(Key::Workers),
            "tracked" => Some(Key::Tracked),
            "completed" => Some(Key::Completed),
            "failures" => Some(Key::Failures),
            _ => None,
        };
        if fixed.is_some() {
            return fixed;
        }
        let (kind, name) = key.split_once(':')?;
        let jid = |name: &str| Jid::new(name).ok();
        match kind {
            "q" => {
                let (queue, part) = name.rsplit_once('-')?;
                let part = match part {
                    "work" => Part::Work,
                    "locks" => Part::Locks,
                    "scheduled" => Part::Scheduled,
                    "depends" => Part::Depends,
                    "recur" => Part::Recur,
                    _ => return None,
                };
                Some(Key::Part { queue: QueueName::of_function(queue).ok()?, part })
            }
            "j" => match name.rsplit_once('-') {
                Some((of, "history")) => jid(of).map(Key::History),
                Some((of, "dependencies")) => jid(of).map(Key::Dependencies),
                Some((of, "dependents")) => jid(of).map(Key::Dependents),
                _ => jid(name).map(Key::Job),
            },
            "r" => jid(name).map(Key::Recurring),
            "f" => Group::new(name).ok().map(Key::Group),
            "t" => Tag::new(name).ok().map(Key::Tag),
            _ => None,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Key::Part { .. } | Key::Queues | Key::Workers | Key::Tracked | Key::Completed | Key::Tag(_) => {
                Kind::SortedSet
            }
            Key::Job(_) | Key::Recurring(_) | Key::Config => Kind::Hash,
            Key::History(_) | Key::Group(_) => Kind::List,
            Key::Dependencies(_) | Key::Dependents(_) | Key::Failures => Kind::Set,
        }
    }

    /// Whether a job tells its score in this sorted set.
    fn has_scores(&self) -> bool {
        match self {
            Key::Part { part, .. } => matches!(part, Part::Locks | Part::Scheduled | Part::Recur),
            Key::Completed => true,
            _ => false,
        }
    }

    /// The command that answers a question about this key.
    fn command(&self, question: &Question) -> Command {
        let one = Page { offset: 0, count: Count::ONE };
        match (self, question) {
            (Key::Part { part: Part::Recur, .. }, Question::Score(jid)) => {
                GetRecurring { jid: jid.clone() }.into()
            }
            (Key::Part { .. } | Key::Completed, Question::Score(jid)) => Get { jid: jid.clone() }.into(),
            (Key::Part { queue, .. }, _) => Queues { queue: Some(queue.clone()) }.into(),
            (Key::Job(jid) | Key::History(jid) | Key::Dependencies(jid) | Key::Dependents(jid), _) => {
                Get { jid: jid.clone() }.into()
            }
            (Key::Recurring(jid), _) => GetRecurring { jid: jid.clone() }.into(),
            (Key::Config, _) => AllConfig.into(),
            (Key::Queues, _) => Queues { queue: None }.into(),
            (Key::Workers, _) => Workers.into(),
            (Key::Tracked, _) => Tracked.into(),
            (Key::Completed, _) => Jobs { which: Listing::Complete, page: one }.into(),
            (Key::Failures | Key::Group(_), _) => Failures.into(),
            (Key::Tag(tag), _) => Tagged { tag: tag.clone(), page: one }.into(),
        }
    }

    /// How many members the key has, by the reply to its command; of hashes and lists only whether there are
    /// any. Redis has no empty keys.
    fn cardinality(&self, reply: &Reply) -> u64 {
        match (self, reply) {
            (Key::Part { part, .. }, Reply::Queues(queues)) => {
                queues.first().map_or(0, |queue| part.size(queue))
            }
            (Key::Dependencies(_), Reply::Get(Some(job))) => job.dependencies().len() as u64,
            (Key::Dependents(_), Reply::Get(Some(job))) => job.dependents.len() as u64,
            (_, Reply::Get(found)) => u64::from(found.is_some()),
            (_, Reply::GetRecurring(found)) => u64::from(found.is_some()),
            (_, Reply::AllConfig(options)) => {
                options.values().filter(|setting| matches!(setting, Setting::Chosen(_))).count() as u64
            }
            (_, Reply::Queues(queues)) => queues.len() as u64,
            (_, Reply::Workers(workers)) => workers.len() as u64,
            (_, Reply::Tracked(tracked)) => (tracked.jobs.len() + tracked.expired.len()) as u64,
            (_, Reply::Jobs(jids)) => jids.len() as u64,
            (Key::Group(group), Reply::Failures(groups)) => groups.get(group).copied().unwrap_or_default(),
            (_, Reply::Failures(groups)) => groups.len() as u64,
            (_, Reply::Tagged(listed)) => listed.total,
            _ => 0,
        }
    }

    /// The score of the job that was asked for.
    fn score(&self, reply: &Reply) -> Option<Timestamp> {
        match (self, reply) {
            (Key::Part { queue, part: Part::Recur }, Reply::GetRecurring(Some(found))) => {
                (found.queue == *queue).then_some(found.next)
            }
            (Key::Part { queue, part }, Reply::Get(Some(job))) if job.queue.as_ref() == Some(queue) => {
                part.score(job)
            }
            (Key::Completed, Reply::Get(Some(job))) => match job.state {
                JobState::Complete { at } => Some(at),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Part {
    fn size(self, queue: &QueueCounts) -> u64 {
        match self {
            Part::Work => queue.waiting,
            Part::Locks => queue.running + queue.stalled,
            Part::Scheduled => queue.scheduled,
            Part::Depends => queue.depends,
            Part::Recur => queue.recurring,
        }
    }

    fn score(self, job: &Job) -> Option<Timestamp> {
        match (self, &job.state) {
            (Part::Locks, JobState::Running { lock }) => Some(lock.expires),
            (Part::Scheduled, JobState::Scheduled { due }) => Some(*due),
            _ => None,
        }
    }
}
