//! Names in the layout: keys, channels, process IDs, and which queues and workers can have them.

use geartrain_core::{Jid, Payload, QueueName, Refusal, Token, WorkerName};
use md5::{Digest, Md5};
use uuid::Uuid;

use crate::layout::bad_argument;

/// The longest queue name: a process ID, which is our jid, has 37 bytes more.
const QUEUE_BYTES_MAX: usize = 512 - 37;
/// Hex digits behind the name of a worker in its ID.
const SUFFIX: usize = 12;

/// The names of one installation, which has a prefix.
#[derive(Debug, Clone)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    /// The prefix was checked by the URL.
    pub(super) fn new(prefix: String) -> Names {
        Names { prefix }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// List: tasks, the next one on the right.
    pub(super) fn queue(&self, queue: &str) -> String {
        format!("{}:queues:{queue}", self.prefix)
    }

    /// List: the task of a process.
    pub(super) fn process(&self, process: &str) -> String {
        format!("{}:processes:{process}", self.prefix)
    }

    /// Set: all workers.
    pub(super) fn workers(&self) -> String {
        format!("{}:workers", self.prefix)
    }

    /// Set: workers with a timer.
    pub(super) fn expiring(&self) -> String {
        format!("{}:expiringWorkers", self.prefix)
    }

    /// Set: workers that never expire.
    pub(super) fn permanent(&self) -> String {
        format!("{}:permanentWorkers", self.prefix)
    }

    /// String: says that a worker is alive.
    pub(super) fn timer(&self, worker: &str) -> String {
        format!("{}:workerTimers:{worker}", self.prefix)
    }

    /// Set: the names of a worker's process sets.
    pub(super) fn work(&self, worker: &str) -> String {
        format!("{}:workingQueues:{worker}", self.prefix)
    }

    /// Set: the processes of one worker on one queue, or of all native workers on a queue.
    pub(super) fn processes(&self, member: &str) -> String {
        format!("{}:workingProcesses:{member}", self.prefix)
    }

    /// String: says that an equal task is unfinished.
    pub(super) fn marker(&self, digest: &str) -> String {
        format!("{}:uniqueTasks:{digest}", self.prefix)
    }

    /// Hash of our own: the MD5 of a task to its failed attempts.
    pub(super) fn attempts(&self, queue: &str) -> String {
        format!("geartrain:wq:{}:attempts:{queue}", self.prefix)
    }

    /// Hash of our own: the IDs of tasks that are set aside.
    pub(super) fn moving(&self, queue: &str) -> String {
        format!("geartrain:wq:{}:moving:{queue}", self.prefix)
    }

    pub(super) fn channel(&self, queue: &str, notice: Notice) -> String {
        format!("{}_{queue}_{}", self.prefix, notice.as_str())
    }

    /// The queue and the notice of a channel.
    pub(super) fn parts_of_channel<'a>(&self, channel: &'a str) -> Option<(&'a str, Notice)> {
        let rest = channel.strip_prefix(&self.prefix)?.strip_prefix('_')?;
        let (queue, notice) = rest.rsplit_once('_')?;
        Some((queue, Notice::ALL.into_iter().find(|known| known.as_str() == notice)?))
    }

    /// A pattern for names that begin with the prefix and a text.
    pub(super) fn pattern(&self, rest: &str) -> String {
        format!("{}{rest}*", self.prefix)
    }
}

/// What a channel of a queue carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// There are tasks, and how many.
    Work,
    /// A task is finished.
    Done,
    /// All equal tasks are cancelled.
    Cancel,
    /// The queue was deleted.
    Delete,
}

impl Notice {
    pub(super) const ALL: [Notice; 4] = [Notice::Work, Notice::Done, Notice::Cancel, Notice::Delete];

    fn as_str(self) -> &'static str {
        match self {
            Notice::Work => "work",
            Notice::Done => "done",
            Notice::Cancel => "cancel",
            Notice::Delete => "delete",
        }
    }
}

/// Lower-case hexadecimal MD5 of a task.
pub(super) fn digest(task: &[u8]) -> String {
    Md5::digest(task).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a prefix can stand in front of keys and channels.
pub(super) fn is_prefix(prefix: &str) -> bool {
    !prefix.is_empty() && !prefix.contains(['_', ':', '*', '?', '[', ']', '\\'])
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.')
}

/// Refuses a queue whose name other workers would misread.
pub(super) fn check_queue(queue: &QueueName) -> Result<(), Refusal> {
    if queue.as_str().contains(':') {
        let why = format!("must have no colon, which separates the parts of Worqr's keys: {queue}");
        return Err(bad_argument("queue", why));
    }
    if queue.as_str().len() > QUEUE_BYTES_MAX {
        let why = format!("has at most {QUEUE_BYTES_MAX} bytes, because Worqr's process IDs contain it");
        return Err(bad_argument("queue", why));
    }
    Ok(())
}

/// A new ID for a worker of this name: a name may be used by several processes, and a worker that was declared
/// dead needs another ID.
pub(super) fn new_worker_id(name: &WorkerName) -> Result<String, Refusal> {
    if !name.as_str().bytes().all(is_plain) {
        let why = format!("must have only letters, digits, - and . in Worqr, not {name}");
        return Err(bad_argument("worker", why));
    }
    let random = Uuid::now_v7().simple().to_string();
    Ok(format!("{name}.{}", &random[random.len() - SUFFIX..]))
}

/// Whether a worker's ID is this name, or was made for it.
pub(super) fn is_worker_of(id: &str, name: &str) -> bool {
    let made = |id: &str| {
        let (of, suffix) = id.rsplit_once('.')?;
        (of == name && suffix.len() == SUFFIX && suffix.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .then_some(())
    };
    id == name || made(id).is_some()
}

/// The ID of a process, which is the jid of a running task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) id: String,
    pub(super) queue: QueueName,
}

impl Process {
    /// A new ID. The IDs of one worker sort by age.
    pub(super) fn new(queue: &QueueName) -> Process {
        Process { id: format!("{queue}_{}", Uuid::now_v7()), queue: queue.clone() }
    }

    /// The queue is everything before the last underscore.
    pub(super) fn parse(id: &str) -> Option<Process> {
        let (queue, uuid) = id.rsplit_once('_')?;
        let is_uuid = !uuid.is_empty() && !uuid.contains(':');
        Some(Process { id: id.to_owned(), queue: QueueName::new(queue).ok().filter(|_| is_uuid)? })
    }

    pub(super) fn jid(&self) -> Jid {
        Jid::new(&self.id).expect("it is at most 512 bytes: the queue was checked")
    }

    /// The token of the attempt: each process is a single attempt, so that its ID tells it.
    pub(super) fn token(&self) -> Token {
        let uuid = self.id.rsplit_once('_').and_then(|(_, uuid)| Uuid::try_parse(uuid).ok());
        // IDs of other workers may be no UUIDs.
        Token::new(uuid.map_or(0, |uuid| uuid.as_u64_pair().1))
    }
}

/// Refuses a unique key other than the task: a marker is made of the task.
pub(super) fn check_unique(key: &[u8], task: &Payload) -> Result<(), Refusal> {
    if key == task.bytes() {
        return Ok(());
    }
    Err(bad_argument("unique key", "must be the payload itself: Worqr compares whole tasks"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names::new("worqr".to_owned())
    }

    #[test]
    fn a_channel_is_cut_at_its_last_underscore() {
        let names = names();
        for (channel, parts) in [
            ("worqr_mail_work", Some(("mail", Notice::Work))),
            ("worqr_my_work_cancel", Some(("my_work", Notice::Cancel))),
            ("worqr__done", Some(("", Notice::Done))),
            ("worqr_work", None),
            ("worqr_mail_gone", None),
            ("other_mail_work", None),
        ] {
            assert_eq!(names.parts_of_channel(channel), parts, "{channel}");
        }
        assert_eq!(names.channel("my_work", Notice::Delete), "worqr_my_work_delete");
    }

    #[test]
    fn a_process_id_is_cut_at_its_last_underscore() {
        let queue = QueueName::new("a_b").expect("it is a name");
        let (first, second) = (Process::new(&queue), Process::new(&queue));
        assert!(first.id < second.id, "they sort by age");
        assert_ne!(first.token(), second.token());
        assert_eq!(Process::parse(&first.id), Some(first));
        for bad in ["", "mail", "_1", "mail_", "mail_a:b"] {
            assert_eq!(Process::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_worker_is_found_by_its_name_and_by_its_id() {
        let name = WorkerName::new("host.example-7").expect("it is a name");
        let id = new_worker_id(&name).expect("it is plain");
        assert!(is_worker_of(&id, "host.example-7") && is_worker_of(&id, &id));
        for other in ["host", "host.example", "host.example-", ""] {
            assert!(!is_worker_of(&id, other), "{other}");
        }
        for bad in ["a*", "a_b", "a:b", "ä"] {
            assert!(new_worker_id(&WorkerName::new(bad).expect("it is a name")).is_err(), "{bad}");
        }
    }

    #[test]
    fn digests_are_those_of_everyone() {
        assert_eq!(digest(b""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(digest(b"message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
    }
}
