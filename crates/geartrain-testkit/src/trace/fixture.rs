//! The names that all traces use.

use std::collections::BTreeSet;

use geartrain_core::{
    AllConfig, AllocateIds, Announced, Canceled, Command, Count, Detach, DetachScope, Failed, Failures,
    Filter, Get, GetConfig, GetLimits, GetRecurring, GetResult, Group, Jid, Jobs, Klass, Length, Listing,
    Page, Pop, QueueName, Queues, RollCall, Select, Stats, Status, StatusOf, Tag, Tagged, Tick, Timestamp,
    TopTags, Tracked, UniqueKey, Why, WorkerJobs, WorkerName, Workers,
};

/// Jids. Some are the names that recurring jobs give to their next child.
const JIDS: [&str; 13] = [
    "00000000000000000000000000000001",
    "0198c0ffee0000000000000000000001",
    "0198c0ffee0000000000000000000002",
    "ffffffffffffffffffffffffffffffff",
    "a",
    "b",
    "c",
    "night",
    "night-1",
    "night-2",
    "night-1-1",
    "Ä",
    "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF",
];

/// Options that matter to the rules, each with values that matter.
pub(super) const OPTIONS: [(&str, &[&str]); 28] = [
    ("heartbeat", &["60", "5", "0.5", "0", "-1", "1e308", "20", "10000000"]),
    ("q-heartbeat", &["3", "30", "-2"]),
    ("heartbeat-q", &["7", "0"]),
    ("mail-heartbeat", &["4", "15", "-1"]),
    ("heartbeat-mail", &["12"]),
    ("grace-period", &["10", "0", "-3", "0.5", "1000", "2"]),
    ("jobs-history-count", &["0", "1", "2", "3", "2.7", "-1", "50000", "1e300"]),
    ("jobs-history", &["-1", "0", "5", "100", "86400", "-1e308", "1e308"]),
    ("max-job-history", &["0", "1", "2", "3", "5", "-1", "2.9", "0.5"]),
    ("canceled-history", &["0", "5", "100", "-1", "86400", "soon"]),
    ("canceled-history-max", &["0", "1", "2", "3", "2.7", "-1", "few"]),
    ("q-max-concurrency", &["0", "1", "2", "1.5", "-1"]),
    ("max-concurrency-q", &["1", "3"]),
    ("max-concurrency-mail", &["2", "0.5"]),
    ("mail-max-concurrency", &["1", "0"]),
    ("stats-history", &["0", "1", "2", "30", "-1", "0.5", "1e308"]),
    ("histogram-history", &["0", "1", "3", "-1", "1.5", "1e305"]),
    ("max-worker-age", &["0", "10", "3600", "-5", "86400"]),
    ("results-bytes", &["300", "200", "500", "140", "100", "0", "-1", "67108864", "few"]),
    ("crashes-max", &["1", "2", "1.5", "0", "-1", "few"]),
    ("max-concurrency", &["1"]),
    ("application", &["geartrain", ""]),
    ("colour", &["blue", "soon"]),
    ("heartbeat", &["soon", "", "nan", "inf", "1e999"]),
    ("x-heartbeat", &["1", "later", "-inf"]),
    ("max-concurrency-x", &["2", "many"]),
    ("", &["1"]),
    ("nul\0", &["1"]),
];

/// Counters for allocated ids.
pub(super) const COUNTERS: [&str; 3] = ["handles", "fronts", "\0Ä"];

/// All names.
#[derive(Debug, Clone)]
pub(super) struct Fixture {
    pub(super) jids: Vec<Jid>,
    pub(super) recurring: Vec<Jid>,
    pub(super) queues: Vec<QueueName>,
    pub(super) workers: Vec<WorkerName>,
    pub(super) klasses: Vec<Klass>,
    pub(super) tags: Vec<Tag>,
    /// Groups that workers name.
    pub(super) groups: Vec<Group>,
    pub(super) keys: Vec<UniqueKey>,
}

impl Fixture {
    pub(super) fn new() -> Fixture {
        fn named<T, E: std::fmt::Debug>(texts: &[&str], name: impl Fn(&str) -> Result<T, E>) -> Vec<T> {
            texts.iter().map(|text| name(text).expect("the world's names are good ones")).collect()
        }
        Fixture {
            jids: named(&JIDS, |text| Jid::new(text)),
            recurring: named(&["night", "night-1", "0198c0ffee0000000000000000000003"], |text| {
                Jid::new(text)
            }),
            queues: named(&["q", "mail", "r"], |text| QueueName::new(text)),
            workers: named(&["w1", "w2", "w3"], |text| WorkerName::new(text)),
            klasses: named(&["send", "sweep", "bill"], |text| Klass::new(text)),
            tags: named(&["red", "blue", "big", "Ä"], |text| Tag::new(text)),
            groups: named(&["oops", "timeout"], |text| Group::new(text)),
            keys: named(&["report", "-", "\0\u{ff}"], |text| UniqueKey::new(text)),
        }
    }

    /// Groups that workers name, and the default groups.
    pub(super) fn all_groups(&self) -> Vec<Group> {
        let mut groups = self.groups.clone();
        groups.extend(Group::new(geartrain_core::TRANSFER_GROUP));
        for kind in ["failed-retries", "crashed", "timed-out", "expired", "upstream"] {
            groups.extend(self.queues.iter().map(|queue| {
                Group::new(format!("{kind}-{queue}")).expect("there is room for a queue's name")
            }));
        }
        groups
    }

    /// Commands that show what goes beyond Qless, and change nothing.
    fn readings_beyond(&self, jids: &BTreeSet<&Jid>) -> Vec<Command> {
        let mut commands: Vec<Command> = vec![Announced { worker: None }.into()];
        for jid in jids.iter().map(|jid| (*jid).clone()) {
            commands.push(GetResult { jid: jid.clone() }.into());
            commands.push(Canceled { jid: jid.clone() }.into());
            commands.push(Status { of: StatusOf::Jid(jid.clone()) }.into());
            commands.push(Why { jid }.into());
        }
        for queue in &self.queues {
            commands.push(GetLimits { queue: queue.clone() }.into());
            commands.push(RollCall { queue: queue.clone(), klass: None }.into());
            commands.extend(
                self.klasses.iter().map(|klass| {
                    Command::from(RollCall { queue: queue.clone(), klass: Some(klass.clone()) })
                }),
            );
            commands.extend(
                self.keys
                    .iter()
                    .map(|key| Command::from(Status { of: StatusOf::Unique(queue.clone(), key.clone()) })),
            );
        }
        commands
    }
}

/// The queues of every trace.
pub fn queues() -> Vec<QueueName> {
    Fixture::new().queues
}

/// Commands that read all visible state at the end of a trace: the given jobs and those of the fixture, every
/// list and count, and the statistics of each day. Then every queue is emptied, due work is done, all waiters
/// detach and each counter is read once more, which shows what reads do not: the order in which jobs come
/// out.
pub fn final_reads(jobs: &[Jid], days: &BTreeSet<Timestamp>) -> Vec<Command> {
    let world = Fixture::new();
    let page = Page { offset: 0, count: Count::MAX };
    let jids: BTreeSet<&Jid> = jobs.iter().chain(&world.jids).collect();
    let mut commands: Vec<Command> = jids.iter().map(|jid| Get { jid: (*jid).clone() }.into()).collect();
    commands.extend(world.readings_beyond(&jids));
    let listings: [fn(QueueName) -> Listing; 6] = [
        Listing::Waiting,
        Listing::Running,
        Listing::Stalled,
        Listing::Depends,
        Listing::Recurring,
        Listing::Scheduled,
    ];
    for queue in &world.queues {
        commands.push(Length { queue: queue.clone() }.into());
        commands.extend(listings.map(|which| Command::from(Jobs { which: which(queue.clone()), page })));
        commands.push(Jobs { which: Listing::Waiting(queue.clone()), page }.into());
        commands.push(Queues { queue: Some(queue.clone()) }.into());
        for day in days {
            commands.push(Stats { queue: queue.clone(), date: *day }.into());
        }
    }
    commands.push(Jobs { which: Listing::Complete, page }.into());
    commands.push(Queues { queue: None }.into());
    commands.extend(world.workers.iter().map(|worker| Command::from(WorkerJobs { worker: worker.clone() })));
    commands.push(Workers.into());
    commands.push(Tracked.into());
    commands.push(Failures.into());
    commands.extend(world.all_groups().into_iter().map(|group| Command::from(Failed { group, page })));
    commands.extend(world.tags.iter().map(|tag| Command::from(Tagged { tag: tag.clone(), page })));
    commands.push(TopTags { page }.into());
    commands.push(Select::new(Filter::default()).into());
    commands.push(AllConfig.into());
    commands
        .extend(OPTIONS.iter().map(|(option, _)| Command::from(GetConfig { option: (*option).to_owned() })));
    commands.extend(world.recurring.iter().map(|jid| Command::from(GetRecurring { jid: jid.clone() })));
    for (queue, worker) in world.queues.iter().zip(&world.workers) {
        let count = Count::new(20).expect("20 is a count");
        commands.push(Pop { count, whole: true, ..Pop::new(queue.clone(), worker.clone()) }.into());
    }
    commands.push(Tick { count: Count::MAX }.into());
    commands.push(Detach { scope: DetachScope::All }.into());
    commands.extend(jids.into_iter().map(|jid| Command::from(Why { jid: jid.clone() })));
    let allot = |counter: &str| Command::from(AllocateIds { counter: counter.to_owned(), count: Count::ONE });
    commands.extend(COUNTERS.map(allot));
    commands
}
