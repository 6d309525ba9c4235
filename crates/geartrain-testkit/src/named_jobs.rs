//! The cases that every backend takes, also one that names its jobs itself: GearMonkey functions, Worqr's queues,
//! WorkKit schedules. Those where callers choose jids take them too, so that the rules are the same everywhere.
//!
//! What a backend lacks is listed with the refusal: a case that needs it checks that the backend refuses it so. A
//! backend's tests are one line, [`named_jobs!`](crate::named_jobs!), and get a test for each case.

#![allow(missing_docs, reason = "the name of a case is the rule")]

use std::fmt::Debug;
use std::sync::Arc;

use geartrain_core::*;
use pollster::block_on;

/// What a backend may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Jids for jobs that wait.
    Jids,
    /// Payloads of any bytes.
    Bytes,
    /// A klass that is not given by the queue.
    Klasses,
    /// Priorities of jobs.
    Priorities,
    /// Delays of puts.
    Delays,
    /// Delays of retries.
    RetryDelays,
    /// Retries that a put chooses.
    Retries,
    /// Tags.
    Tags,
    /// Dependencies.
    Dependencies,
    /// Unique keys.
    UniqueKeys,
    /// Recurring jobs with an interval.
    Recurring,
    /// Paused queues.
    Pauses,
    /// Cancellation by jid.
    Cancel,
    /// Progress of running jobs.
    Progress,
    /// Results that are kept.
    Results,
    /// Clients that wait for a result.
    Waits,
    /// Reports that a worker was lost.
    LostWorkers,
    /// Events from a position on.
    EventsAfter,
    /// Filters.
    Filters,
}

/// A backend under test.
pub struct System {
    /// A fresh one.
    pub backend: Arc<dyn Backend>,
    /// The klass of jobs; that of the queue if there is none.
    pub klass: Option<&'static str>,
    /// A payload that the backend takes, with some text in it.
    pub payload: fn(&str) -> String,
    /// What it lacks: code and text of the refusal. `{queue}` in the text is the queue of the case.
    pub lacks: &'static [(Feature, &'static str, &'static str)],
    /// What must live as long as the backend.
    pub server: Box<dyn std::any::Any>,
}

const QUEUE: &str = "mail";
const HOUR: f64 = 3600.0;

fn queue() -> QueueName {
    QueueName::new(QUEUE).expect("it is a name")
}

fn worker(name: &str) -> WorkerName {
    WorkerName::new(name).expect("it is a name")
}

fn seconds(seconds: f64) -> Seconds {
    Seconds::new(seconds).expect("it is a number")
}

fn waiter() -> ResultWaiter {
    ResultWaiter { stream_id: 7, connection: 0, number: 0 }
}

impl System {
    fn klass(&self) -> Klass {
        Klass::new(self.klass.unwrap_or(QUEUE)).expect("it is a name")
    }

    /// Gives a command some seconds from now.
    #[track_caller]
    fn at<O: Operation>(&self, after: f64, operation: O) -> Result<O::Reply, Refusal> {
        let now = self.backend.now().expect("it has a clock") + seconds(after);
        let call = Call::at(now, operation);
        let mut answers = block_on(self.backend.execute(vec![call])).expect("it is reached");
        answers.remove(0).map(|reply| O::answer(reply).expect("a command has its own reply"))
    }

    #[track_caller]
    fn run<O: Operation>(&self, operation: O) -> Result<O::Reply, Refusal> {
        self.at(0.0, operation)
    }

    fn text(&self, text: &str) -> Payload {
        (self.payload)(text).as_str().into()
    }

    /// A put with a jid, which a backend that names jobs ignores.
    fn put_of(&self, text: &str) -> Put {
        let jid = Jid::new(format!("j-{text}")).expect("it is a name");
        Put::new(queue(), jid, self.klass(), self.text(text))
    }

    /// Puts a job some seconds from now, and returns its jid, if it has one.
    #[track_caller]
    fn put_at(&self, after: f64, text: &str) -> Option<Jid> {
        let put = self.put_of(text);
        let jid = put.jid.clone();
        self.named(jid, self.at(after, put).expect("it is put"))
    }

    /// Puts a job that may be retried. Where a put does not choose that, all may be.
    fn put_with_retries(&self, text: &str) {
        let is_chosen = self.lacks.iter().all(|(feature, ..)| *feature != Feature::Retries);
        let put = Put { retries: is_chosen.then_some(3), ..self.put_of(text) };
        self.run(put).expect("it is put");
    }

    fn named(&self, jid: Jid, reply: PutReply) -> Option<Jid> {
        match reply {
            PutReply::Created => Some(jid),
            PutReply::Named { jid } => Some(jid),
            PutReply::Unnamed => None,
            other => panic!("the job is not new: {other:?}"),
        }
    }

    fn pop_at(&self, after: f64, by: &str, count: i64) -> Vec<Popped> {
        let count = Count::new(count).expect("it is a count");
        self.at(after, Pop { count, ..Pop::new(queue(), worker(by)) }).expect("a pop is answered").jobs
    }

    fn pop(&self) -> Option<Popped> {
        self.pop_at(0.0, "w1", 1).pop()
    }

    #[track_caller]
    fn popped(&self) -> Popped {
        self.pop().expect("there is a job")
    }

    /// The position of an event, if the backend has positions.
    fn position(&self) -> u64 {
        let Ok(mut events) = block_on(self.backend.subscribe()) else { return 0 };
        self.put_at(0.0, "event");
        let position = block_on(events.next()).expect("the put is an event").position;
        self.run(complete(&self.popped())).expect("it is held");
        position
    }

    fn texts(&self, jobs: &[Popped]) -> Vec<String> {
        jobs.iter().map(|job| job.payload.text().expect("it is text").to_owned()).collect()
    }

    /// The payloads of jobs with these texts.
    fn payloads(&self, texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (self.payload)(text)).collect()
    }

    /// Waiting and running jobs.
    fn counts(&self) -> (u64, u64) {
        let counts = self.run(Queues { queue: Some(queue()) }).expect("queues are counted");
        counts.first().map_or((0, 0), |of| (of.waiting, of.running))
    }

    /// The answer to a command that needs a feature; none if the backend lacks it, and then it is refused so.
    #[track_caller]
    fn needs<T: Debug>(&self, feature: Feature, answer: Result<T, Refusal>) -> Option<T> {
        let Some((_, code, text)) = self.lacks.iter().find(|(lacked, ..)| *lacked == feature) else {
            return Some(answer.unwrap_or_else(|refusal| panic!("{feature:?} is refused: {refusal}")));
        };
        let refusal = answer.expect_err("what the backend lacks is refused");
        assert_eq!((refusal.code(), refusal.to_string().as_str()), (*code, *text), "{feature:?}");
        None
    }
}

fn complete(job: &Popped) -> Complete {
    Complete::new(job.jid.clone(), job.holder())
}

fn group() -> Group {
    Group::new("io").expect("it is a name")
}

pub fn a_job_is_handed_out_once_and_as_it_was_put(system: &System) {
    let jid = system.put_at(0.0, "a");
    assert_eq!(system.counts(), (1, 0));
    let job = system.popped();
    assert_eq!((&job.queue, &job.klass), (&queue(), &system.klass()));
    assert_eq!(system.texts(std::slice::from_ref(&job)), system.payloads(&["a"]));
    assert!(jid.is_none_or(|jid| jid == job.jid));
    assert_eq!(system.counts(), (0, 1));
    assert_eq!(system.pop(), None);
    assert_eq!(system.run(complete(&job)), Ok(CompleteReply::Complete));
    assert_eq!((system.pop(), system.counts()), (None, (0, 0)));
}

pub fn a_put_tells_the_jid_unless_jobs_have_none(system: &System) {
    let is_lacking = system.lacks.iter().any(|(feature, ..)| *feature == Feature::Jids);
    let jid = system.put_at(0.0, "a");
    assert_eq!(jid.is_none(), is_lacking);
    if let Some(jid) = jid {
        let job = system.run(Get { jid }).expect("it is answered").expect("it is there");
        assert_eq!((job.state, job.payload), (JobState::Waiting, system.text("a")));
    }
}

pub fn payloads_are_kept_byte_for_byte(system: &System) {
    for bytes in [&b"\0"[..], b"\xff\xfe{}\r\n", b"", b" {\"a\" : 1} "] {
        let put = Put { payload: bytes.into(), ..system.put_of("a") };
        let put = Put { jid: Jid::new(format!("j-{}", bytes.len())).expect("it is a name"), ..put };
        if system.needs(Feature::Bytes, system.run(put)).is_none() {
            assert_eq!(system.counts(), (0, 0));
            return;
        }
        let job = system.popped();
        assert_eq!(job.payload.bytes(), bytes);
        system.run(complete(&job)).expect("it is complete");
    }
}

pub fn jobs_are_handed_out_in_the_order_of_their_puts(system: &System) {
    for (after, text) in [(0.0, "c"), (1.0, "a"), (2.0, "b")] {
        system.put_at(after, text);
    }
    let count = Count::new(10).expect("it is a count");
    let peeked = system.at(9.0, Peek { queue: queue(), count }).expect("it is answered");
    let peeked: Vec<&str> = peeked.iter().filter_map(|job| job.payload.text()).collect();
    assert_eq!(peeked, system.payloads(&["c", "a", "b"]));
    assert_eq!(system.texts(&system.pop_at(9.0, "w1", 10)), system.payloads(&["c", "a", "b"]));
}

pub fn a_higher_priority_is_handed_out_first(system: &System) {
    system.put_at(0.0, "normal");
    let put = |text, priority: i32| Put { priority: Some(Priority::from(priority)), ..system.put_of(text) };
    if system.needs(Feature::Priorities, system.run(put("low", -1))).is_some() {
        system.run(put("high", 1)).expect("it is put");
        assert_eq!(system.texts(&system.pop_at(1.0, "w1", 3)), system.payloads(&["high", "normal", "low"]));
    } else {
        assert_eq!(system.texts(&system.pop_at(1.0, "w1", 3)), system.payloads(&["normal"]));
    }
}

pub fn a_delayed_job_waits_until_it_is_due(system: &System) {
    let put = Put { delay: seconds(HOUR), ..system.put_of("a") };
    if system.needs(Feature::Delays, system.run(put)).is_some() {
        assert_eq!(system.pop_at(HOUR / 2.0, "w1", 1), []);
        assert_eq!(system.texts(&system.pop_at(HOUR + 2.0, "w1", 1)), system.payloads(&["a"]));
    } else {
        assert_eq!(system.counts(), (0, 0));
    }
}

pub fn only_the_holder_ends_a_job(system: &System) {
    system.put_at(0.0, "a");
    let job = system.popped();
    let other = || Holder::Worker(worker("w2"));
    let jid = || job.jid.clone();
    let refusals = [
        system.run(Complete::new(jid(), other())).map(|_| ()),
        system.run(Fail::new(jid(), other(), group(), "no")),
        system.run(Retry::new(jid(), other())).map(|_| ()),
        system.run(Release::new(jid(), other())),
        system.run(Heartbeat { jid: jid(), holder: other(), payload: None }).map(|_| ()),
    ];
    for refusal in refusals {
        assert_eq!(refusal.expect_err("another worker has it").code(), "held-by-another");
    }
    assert_eq!(system.run(complete(&job)), Ok(CompleteReply::Complete));
}

pub fn a_job_that_is_handed_back_is_the_next_one(system: &System) {
    system.put_at(0.0, "a");
    system.put_at(1.0, "b");
    let job = system.pop_at(2.0, "w1", 1).remove(0);
    system.at(2.0, Release::new(job.jid.clone(), job.holder())).expect("it is handed back");
    assert_eq!(system.texts(&system.pop_at(3.0, "w2", 9)), system.payloads(&["a", "b"]));
    let late = system.at(3.0, complete(&job)).expect_err("it has another holder");
    assert!(["held-by-another", "lock-lost"].contains(&late.code()), "{late}");
}

pub fn a_retried_job_is_handed_out_again(system: &System) {
    system.put_with_retries("a");
    let job = system.popped();
    system.run(Retry::new(job.jid.clone(), job.holder())).expect("retries are left");
    let again = system.pop_at(1.0, "w2", 9);
    assert_eq!(system.texts(&again), system.payloads(&["a"]));
    assert_eq!(system.at(1.0, complete(&again[0])), Ok(CompleteReply::Complete));
}

pub fn a_retry_may_be_delayed(system: &System) {
    system.put_with_retries("a");
    let job = system.popped();
    let retry = Retry { delay: seconds(HOUR), ..Retry::new(job.jid.clone(), job.holder()) };
    if system.needs(Feature::RetryDelays, system.run(retry)).is_some() {
        assert_eq!(system.pop_at(HOUR / 2.0, "w1", 1), []);
        assert_eq!(system.texts(&system.pop_at(HOUR + 2.0, "w1", 1)), system.payloads(&["a"]));
    } else {
        assert_eq!(system.run(complete(&job)), Ok(CompleteReply::Complete), "it is held still");
    }
}

pub fn a_job_fails_when_no_retry_is_left(system: &System) {
    let put = Put { retries: Some(1), ..system.put_of("a") };
    if system.needs(Feature::Retries, system.run(put)).is_some() {
        for (after, is_last) in [(0.0, false), (1.0, true)] {
            let job = system.pop_at(after, "w1", 1).remove(0);
            let left = system.at(after, Retry::new(job.jid.clone(), job.holder())).expect("it is answered");
            assert_eq!(left < 0, is_last, "{left}");
        }
        assert_eq!(system.pop_at(2.0, "w1", 1), []);
    } else {
        assert_eq!(system.counts(), (0, 0));
    }
}

pub fn a_failed_job_is_not_handed_out_again(system: &System) {
    system.put_at(0.0, "a");
    let job = system.popped();
    system.run(Fail::new(job.jid.clone(), job.holder(), group(), "no such host")).expect("it fails");
    assert_eq!((system.pop_at(1.0, "w1", 1), system.counts()), (Vec::new(), (0, 0)));
    assert!(system.run(complete(&job)).is_err(), "its end is over");
}

pub fn a_heartbeat_extends_the_lock(system: &System) {
    system.put_at(0.0, "a");
    let job = system.popped();
    let heartbeat = |holder| Heartbeat { jid: job.jid.clone(), holder, payload: None };
    let until = system.at(1.0, heartbeat(job.holder())).expect("it is held");
    assert!(until > system.backend.now().expect("it has a clock"), "{until:?}");
    assert_eq!(system.run(complete(&job)), Ok(CompleteReply::Complete));
    let refused = system.run(heartbeat(job.holder())).expect_err("it is over");
    assert!(["not-running", "lock-lost", "no-such-job"].contains(&refused.code()), "{refused}");
}

pub fn progress_is_shown_while_a_job_runs(system: &System) {
    system.put_at(0.0, "a");
    let job = system.popped();
    let progressed = Progressed { portion: Portion::unchecked(1, 4), seconds_left: None };
    let reported = system.run(Progress::new(job.jid.clone(), job.holder(), progressed));
    if system.needs(Feature::Progress, reported).is_some() {
        let status = system.run(Status { of: StatusOf::Jid(job.jid.clone()) }).expect("it is answered");
        let status = status.expect("it is unfinished");
        assert_eq!((status.state, status.progress), (StateName::Running, Some(progressed)));
    }
    assert_eq!(system.run(complete(&job)), Ok(CompleteReply::Complete));
}

pub fn a_result_is_kept_for_a_while(system: &System) {
    let options = PutOptions { result_ttl: Some(seconds(HOUR)), ..PutOptions::default() };
    let put = Put { options: Some(Box::new(options)), ..system.put_of("a") };
    if system.needs(Feature::Results, system.run(put)).is_none() {
        assert_eq!(system.counts(), (0, 0));
        let jid = Jid::new("mail_1").expect("it is a name");
        assert!(system.run(GetResult { jid }).is_err());
        return;
    }
    let job = system.popped();
    let result = JobResult { code: 0, bytes: "done".into() };
    system.run(Complete { result: Some(Box::new(result.clone())), ..complete(&job) }).expect("it is held");
    let kept = system.run(GetResult { jid: job.jid.clone() }).expect("it is answered").expect("it is kept");
    assert_eq!((kept.ending, kept.result), (JobEnding::Completed, result));
}

pub fn a_client_that_waits_is_sent_the_result(system: &System) {
    let opened = block_on(system.backend.open_result_stream(waiter().stream_id));
    let opened = opened.map_err(|error| match error {
        BackendError::Refused(refusal) => refusal,
        broken => panic!("{broken}"),
    });
    if system.needs(Feature::Waits, opened.as_ref().map(|_| ()).map_err(Clone::clone)).is_none() {
        return;
    }
    let Ok(mut stream) = opened else { return };
    for (text, is_failed) in [("a", false), ("b", true)] {
        let options = PutOptions { attach: Some(waiter()), ..PutOptions::default() };
        system.run(Put { options: Some(Box::new(options)), ..system.put_of(text) }).expect("it is put");
        let job = system.popped();
        let result = JobResult { code: 0, bytes: "done".into() };
        match is_failed {
            true => system.run(Fail::new(job.jid.clone(), job.holder(), group(), "no such host")),
            false => system.run(Complete { result: Some(Box::new(result)), ..complete(&job) }).map(|_| ()),
        }
        .expect("it is held");
        let message = block_on(stream.next()).expect("the stream is open");
        match message.item {
            StreamItem::Ended(JobEnding::Completed, result) if !is_failed => {
                assert_eq!(result.bytes.text(), Some("done"));
            }
            StreamItem::Ended(JobEnding::Failed { message, .. }, _) if is_failed => {
                assert_eq!(message, "no such host");
            }
            other => panic!("{other:?}"),
        }
    }
}

pub fn a_cancelled_job_is_not_handed_out(system: &System) {
    let jid = system.put_at(0.0, "a").unwrap_or_else(|| Jid::new("mail_1").expect("it is a name"));
    let cancelled = system.run(Cancel::new(vec![jid]));
    if system.needs(Feature::Cancel, cancelled).is_some() {
        assert_eq!((system.pop(), system.counts()), (None, (0, 0)));
    } else {
        assert_eq!(system.counts(), (1, 0));
    }
}

pub fn the_job_of_a_lost_worker_is_handed_out_again(system: &System) {
    system.put_at(0.0, "a");
    let job = system.popped();
    let lost = system.run(WorkerLost { worker: worker("w1"), evidence: None });
    let mut again = Vec::new();
    if let Some(jids) = system.needs(Feature::LostWorkers, lost) {
        assert_eq!(jids, std::slice::from_ref(&job.jid));
        again = system.pop_at(0.0, "w2", 9);
    }
    // Else its lock expires, and a first pop may only warn the holder.
    for after in [HOUR, HOUR + 60.0] {
        if again.is_empty() {
            again = system.pop_at(after, "w2", 9);
        }
    }
    assert_eq!(system.texts(&again), system.payloads(&["a"]));
    let late = system.run(complete(&job)).expect_err("the lost worker has it no more");
    assert!(["held-by-another", "lock-lost", "no-such-job"].contains(&late.code()), "{late}");
}

pub fn a_waiting_pop_is_answered_by_the_next_put(system: &System) {
    let nothing = block_on(system.backend.pop_or_wait(Pop::new(queue(), worker("w1")), seconds(0.01)));
    assert_eq!(nothing.map(|reply| reply.jobs).ok(), Some(Vec::new()));
    std::thread::scope(|scope| {
        let backend = system.backend.clone();
        let pop = Pop::new(queue(), worker("w1"));
        let waiting = scope.spawn(move || block_on(backend.pop_or_wait(pop, seconds(60.0))));
        system.put_at(0.0, "a");
        let popped = waiting.join().expect("it does not panic").expect("it is answered");
        assert_eq!(system.texts(&popped.jobs), system.payloads(&["a"]));
    });
}

pub fn a_pop_takes_from_several_queues_in_their_order(system: &System) {
    let other = QueueName::new("news").expect("it is a name");
    let klass = system.klass.unwrap_or("news");
    let klass = Klass::new(klass).expect("it is a name");
    system.run(Put { queue: other.clone(), klass, ..system.put_of("a") }).expect("it is put");
    system.put_at(0.0, "b");
    let count = Count::new(9).expect("it is a count");
    let pop = Pop { queues: vec![queue(), other], count, ..Pop::new(queue(), worker("w1")) };
    let jobs = system.at(1.0, pop).expect("it is answered").jobs;
    assert_eq!(system.texts(&jobs), system.payloads(&["b", "a"]));
}

pub fn what_the_backend_lacks_is_refused_by_name_and_changes_nothing(system: &System) {
    let position = system.position();
    let jid = system.put_at(0.0, "a").unwrap_or_else(|| Jid::new("mail_1").expect("it is a name"));
    let counts = system.counts();
    let other = || system.put_of("b");
    let klass = Klass::new("other/klass").expect("it is a name");
    let tag = Tag::new("t").expect("it is a tag");
    let unique = UniqueKey::new("k").expect("it is a key");
    let options = PutOptions { unique: Some(unique), ..PutOptions::default() };
    let recur = Recur::new(queue(), jid.clone(), system.klass(), system.text("r"), Seconds::from(60));
    let select = Select::new(Filter { terms: vec![Term::Queue(queue())] });
    let refused = |answer: Result<(), BackendError>| match answer {
        Ok(()) => Ok(()),
        Err(BackendError::Refused(refusal)) => Err(refusal),
        Err(broken) => panic!("{broken}"),
    };
    let after = block_on(system.backend.subscribe_from(position)).map(|_| ());
    let answers: Vec<(Feature, Result<(), Refusal>)> = vec![
        (Feature::Klasses, system.run(Put { klass, ..other() }).map(|_| ())),
        (Feature::Tags, system.run(Put { tags: Some(vec![tag]), ..other() }).map(|_| ())),
        (Feature::Dependencies, system.run(Put { depends: vec![jid.clone()], ..other() }).map(|_| ())),
        (Feature::UniqueKeys, system.run(Put { options: Some(Box::new(options)), ..other() }).map(|_| ())),
        (Feature::Recurring, system.run(recur)),
        (Feature::Pauses, system.run(Pause { queues: vec![queue()] })),
        (Feature::EventsAfter, refused(after)),
        (Feature::Filters, system.run(select).map(|_| ())),
    ];
    let mut lacking = 0;
    for (feature, answer) in answers {
        lacking += usize::from(system.needs(feature, answer).is_none());
    }
    if lacking == 8 {
        assert_eq!(system.counts(), counts);
    }
}

/// Makes a test of every case. It is given a function that makes a fresh [`System`].
#[macro_export]
macro_rules! named_jobs {
    ($system:expr) => {
        $crate::named_jobs! {
            $system =>
            a_job_is_handed_out_once_and_as_it_was_put
            a_put_tells_the_jid_unless_jobs_have_none
            payloads_are_kept_byte_for_byte
            jobs_are_handed_out_in_the_order_of_their_puts
            a_higher_priority_is_handed_out_first
            a_delayed_job_waits_until_it_is_due
            only_the_holder_ends_a_job
            a_job_that_is_handed_back_is_the_next_one
            a_retried_job_is_handed_out_again
            a_retry_may_be_delayed
            a_job_fails_when_no_retry_is_left
            a_failed_job_is_not_handed_out_again
            a_heartbeat_extends_the_lock
            progress_is_shown_while_a_job_runs
            a_result_is_kept_for_a_while
            a_client_that_waits_is_sent_the_result
            a_cancelled_job_is_not_handed_out
            the_job_of_a_lost_worker_is_handed_out_again
            a_waiting_pop_is_answered_by_the_next_put
            a_pop_takes_from_several_queues_in_their_order
            what_the_backend_lacks_is_refused_by_name_and_changes_nothing
        }
    };
    ($system:expr => $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                $crate::named_jobs::$case(&($system)());
            }
        )*
    };
}
