//! The model by itself: the worked trace of section 13, and what the specification says in numbers elsewhere.

use geartrain_core::*;

use geartrain_testkit::model::Model;
use geartrain_testkit::trace::{Tokens, generate, limits};

fn at(seconds: f64) -> Timestamp {
    Timestamp::new(seconds).unwrap()
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn worker(name: &str) -> WorkerName {
    WorkerName::new(name).unwrap()
}

fn jid(text: &str) -> Jid {
    Jid::new(text).unwrap()
}

fn group(name: &str) -> Group {
    Group::new(name).unwrap()
}

fn held_by(name: &str) -> Holder {
    Holder::Worker(worker(name))
}

fn put(to: &str, id: &str) -> Put {
    Put { existing: Existing::Replace, ..Put::new(queue(to), jid(id), Klass::new("k").unwrap(), "{}") }
}

/// Runs an operation that is not refused, and takes its answer and its events.
fn run<O: Operation>(model: &mut Model, now: f64, operation: O) -> (O::Reply, Vec<Event>) {
    let (answer, events) = model.run(at(now), &operation.into());
    (O::answer(answer.unwrap()).unwrap(), events)
}

fn ask<O: Operation>(model: &mut Model, now: f64, operation: O) -> O::Reply {
    run(model, now, operation).0
}

fn refused(model: &mut Model, now: f64, operation: impl Operation) -> Refusal {
    let (answer, events) = model.run(at(now), &operation.into());
    assert_eq!(events, []);
    answer.unwrap_err()
}

fn pop(model: &mut Model, now: f64, from: &str, by: &str, count: i64) -> Vec<Jid> {
    let pop = Pop { count: Count::new(count).unwrap(), ..Pop::new(queue(from), worker(by)) };
    ask(model, now, pop).jobs.into_iter().map(|popped| popped.jid).collect()
}

fn get(model: &mut Model, id: &str) -> Job {
    *ask(model, 0.0, Get { jid: jid(id) }).unwrap()
}

fn stats(model: &mut Model, of: &str, date: f64) -> StatsReply {
    *ask(model, 0.0, Stats { queue: queue(of), date: at(date) })
}

#[test]
fn the_worked_trace_of_the_specification() {
    let model = &mut Model::default();
    let tag = Tag::new("t").unwrap();
    let a = jid("a");

    let first = Put {
        priority: Some(Priority::from(5)),
        tags: Some(vec![tag.clone()]),
        caller: Some(worker("w1")),
        ..put("q", "a")
    };
    let (reply, events) = run(model, 0.0, first);
    assert_eq!(reply, PutReply::Created);
    assert_eq!(events, [Event::Put { jid: a.clone(), queue: queue("q") }]);
    let tagged = ask(model, 0.0, Tagged { tag: tag.clone(), page: Page::default() });
    assert_eq!(tagged, Listed { total: 1, jids: vec![a.clone()] });

    let (reply, _) = run(model, 10.0, Pop { whole: true, ..Pop::new(queue("q"), worker("w1")) });
    assert_eq!(reply.jobs[0].lock.expires, at(70.0));
    assert_eq!(reply.jobs[0].job.as_ref().unwrap().qless.state, "running");
    let wait = stats(model, "q", 0.0).wait;
    assert_eq!((wait.count, wait.mean, wait.std, wait.histogram[10]), (1, 10.0, 0.0, 1));
    assert_eq!(wait.histogram.len(), 148);

    let (reply, events) = run(model, 70.0, Pop::new(queue("q"), worker("w2")));
    assert_eq!(reply.jobs, []);
    assert_eq!(events, [Event::LockLost { jid: a.clone(), worker: worker("w1") }]);
    let job = get(model, "a");
    assert_eq!(job.qless.expires, at(70.0));
    let JobState::Running { lock } = job.state else { panic!("it is in grace") };
    assert_eq!(lock.expires, at(80.0));
    assert_eq!(ask(model, 70.0, WorkerJobs { worker: worker("w1") }), WorkerJobsReply::default());
    assert_eq!(stats(model, "q", 0.0).retries, 1);

    let heartbeat = Heartbeat { jid: a.clone(), holder: held_by("w1"), payload: None };
    assert_eq!(ask(model, 75.0, heartbeat.clone()), at(135.0));

    let (reply, events) = run(model, 135.0, Pop::new(queue("q"), worker("w2")));
    assert_eq!((reply.jobs[0].remaining, reply.jobs[0].lock.expires), (4, at(195.0)));
    assert_eq!(events, [Event::Popped { jid: a.clone(), queue: queue("q"), worker: worker("w2") }]);

    assert_eq!(
        refused(model, 136.0, heartbeat),
        Refusal::HeldByAnother { jid: a.clone(), worker: worker("w1"), holder: worker("w2") }
    );

    let complete = Complete {
        queue: Some(queue("q")),
        payload: Some("[]".into()),
        next: Some(Next { delay: Seconds::from(5), ..Next::new(queue("r")) }),
        ..Complete::new(a.clone(), held_by("w2"))
    };
    let (reply, events) = run(model, 140.0, complete);
    assert_eq!(reply, CompleteReply::Scheduled);
    assert_eq!(events, [Event::Advanced { jid: a.clone(), queue: queue("q"), to: queue("r") }]);
    let job = get(model, "a");
    assert_eq!((job.state, job.qless.state), (JobState::Scheduled { due: at(145.0) }, "waiting"));
    assert_eq!((job.remaining, job.payload.bytes()), (5, b"[]".as_slice()));
    assert_eq!(stats(model, "q", 0.0).run.mean, 5.0);

    assert_eq!(pop(model, 146.0, "r", "w3", 1), std::slice::from_ref(&a));
    let fail = Fail::new(a.clone(), held_by("w3"), group("g"), "oops");
    let ((), events) = run(model, 147.8, fail);
    assert_eq!(
        events,
        [Event::Failed {
            jid: a.clone(),
            queue: queue("r"),
            worker: Some(worker("w3")),
            group: group("g"),
            message: "oops".to_owned(),
            by: FailedBy::Worker,
        }]
    );
    let failure = get(model, "a").failure().unwrap().clone();
    assert_eq!((failure.when, failure.worker), (at(147.0), Some(worker("w3"))));
    assert_eq!(ask(model, 150.0, Failures), [(group("g"), 1)].into());

    let (reply, events) = run(model, 151.0, Cancel::new(vec![a.clone()]));
    assert_eq!(reply, 1);
    assert_eq!(events, [Event::Canceled { jid: a.clone(), was: Some((queue("r"), None)) }]);
    assert_eq!((stats(model, "r", 0.0).failures, stats(model, "r", 0.0).failed), (1, 0));
    assert_eq!(ask(model, 151.0, Get { jid: a }), None);
    assert_eq!(ask(model, 151.0, Tagged { tag, page: Page::default() }), Listed::default());
}

#[test]
fn a_backlog_of_one_spawns_two_on_a_boundary_and_one_elsewhere() {
    for (now, names) in [(600.0, vec!["r-1", "r-2"]), (630.0, vec!["r-1"])] {
        let model = &mut Model::default();
        let klass = Klass::new("k").unwrap();
        let recur = Recur { backlog: 1, ..Recur::new(queue("q"), jid("r"), klass, "{}", Seconds::from(60)) };
        ask(model, 0.0, recur);
        assert_eq!(pop(model, now, "q", "w1", 10), names.into_iter().map(jid).collect::<Vec<_>>());
    }
}

#[test]
fn a_fractional_first_time_is_floored_when_it_spawns() {
    let model = &mut Model::default();
    let klass = Klass::new("k").unwrap();
    let offset = Seconds::new(5.7).unwrap();
    ask(model, 0.0, Recur { offset, ..Recur::new(queue("q"), jid("r"), klass, "{}", Seconds::from(10)) });
    assert_eq!(pop(model, 5.5, "q", "w1", 1), []);
    assert_eq!(pop(model, 5.8, "q", "w1", 1), [jid("r-1")]);
    assert_eq!(get(model, "r-1").history[0].when, at(5.0));
    assert_eq!(ask(model, 5.8, GetRecurring { jid: jid("r") }).unwrap().next, at(15.0));
}

#[test]
fn a_recurring_job_passes_over_numbers_in_use() {
    let model = &mut Model::default();
    for taken in ["r-1", "r-2"] {
        ask(model, 0.0, put("elsewhere", taken));
    }
    ask(model, 0.0, Recur::new(queue("q"), jid("r"), Klass::new("k").unwrap(), "{}", Seconds::from(60)));
    assert_eq!(pop(model, 0.0, "q", "w1", 5), [jid("r-3")]);
}

#[test]
fn order_is_priority_then_moment_then_arrival_and_a_timed_out_job_is_before_all() {
    let model = &mut Model::default();
    for (now, id, priority) in
        [(2.0, "late", 0), (1.0, "b", 0), (1.0, "a", 0), (3.0, "high", 1), (4.0, "out", -9)]
    {
        ask(model, now, Put { priority: Some(Priority::from(priority)), ..put("q", id) });
    }
    assert_eq!(pop(model, 5.0, "q", "w1", 9), ["high", "b", "a", "late", "out"].map(jid));
    ask(model, 5.0, Timeout { jids: vec![jid("out"), jid("a")] });
    ask(model, 5.0, put("q", "late"));
    ask(model, 6.0, put("q", "b"));
    ask(model, 7.0, SetPriority { jid: jid("b"), priority: Priority::ZERO });
    let waiting = Jobs { which: Listing::Waiting(queue("q")), page: Page::default() };
    assert_eq!(ask(model, 7.0, waiting), ["out", "a", "b", "late"].map(jid));
}

#[test]
fn only_the_attempt_that_ended_last_is_answered_again() {
    let model = &mut Model::default();
    ask(model, 0.0, put("q", "a"));
    let token = |model: &mut Model| ask(model, 1.0, Pop::new(queue("q"), worker("w1"))).jobs[0].lock.token;
    let first = token(model);
    let onwards =
        Complete { next: Some(Next::new(queue("q"))), ..Complete::new(jid("a"), Holder::Token(first)) };
    assert_eq!(ask(model, 2.0, onwards.clone()), CompleteReply::Waiting);
    let second = token(model);
    assert_eq!(run(model, 3.0, onwards.clone()), (CompleteReply::Waiting, vec![]));
    let lost = Refusal::LockLost { jid: jid("a"), state: StateName::Running };
    assert_eq!(refused(model, 3.0, Complete { next: None, ..onwards.clone() }), lost);
    assert_eq!(ask(model, 4.0, Retry::new(jid("a"), Holder::Token(second))), 4);
    let lost = Refusal::LockLost { jid: jid("a"), state: StateName::Waiting };
    assert_eq!(refused(model, 5.0, onwards), lost);
}

// Beyond Qless: docs/decisions/0009-beyond-qless.md.

fn put_on(to: &str, id: &str, terms: PutOptions) -> Put {
    Put { options: Some(Box::new(terms)), ..put(to, id) }
}

fn key(text: &str) -> Option<UniqueKey> {
    Some(UniqueKey::new(text).unwrap())
}

fn waiter(number: u64) -> ResultWaiter {
    ResultWaiter { stream_id: 1, connection: 1, number }
}

fn details(model: &mut Model, id: &str) -> JobDetails {
    get(model, id)
        .details
        .map_or_else(|| JobDetails { submissions: 1, ..JobDetails::default() }, |details| *details)
}

fn holder_of(model: &mut Model, of: &str, text: &str) -> Option<Jid> {
    let of = StatusOf::Unique(queue(of), key(text).unwrap());
    ask(model, 0.0, Status { of }).map(|status| status.jid)
}

fn reasons(model: &mut Model, now: f64, id: &str) -> Vec<Reason> {
    ask(model, now, Why { jid: jid(id) }).reasons
}

fn limit(model: &mut Model, of: &str, limits: QueueLimits) {
    ask(model, 0.0, SetLimits { queue: queue(of), limits });
}

fn gone(model: &mut Model, now: f64, by: &str, evidence: Option<&str>) -> (Vec<Jid>, Vec<Event>) {
    run(model, now, WorkerLost { worker: worker(by), evidence: evidence.map(str::to_owned) })
}

fn tick(model: &mut Model, now: f64, count: i64) -> (u64, Option<f64>, Vec<Event>) {
    let (TickReply { done, next }, events) = run(model, now, Tick { count: Count::new(count).unwrap() });
    (done, next.map(Timestamp::get), events)
}

#[test]
fn a_put_with_the_key_of_an_unfinished_job_joins_it() {
    let model = &mut Model::default();
    let awaited = PutOptions {
        unique: key("k"),
        attach: Some(waiter(1)),
        orphan_policy: OrphanPolicy::WhileAwaited,
        result_ttl: Some(Seconds::from(5)),
        ..PutOptions::default()
    };
    ask(model, 0.0, put_on("q", "a", awaited.clone()));
    // A key holds in one queue, and one who waits for one job cannot wait for another.
    let elsewhere = PutOptions { attach: Some(waiter(2)), ..awaited.clone() };
    assert_eq!(ask(model, 0.0, put_on("r", "b", elsewhere)), PutReply::Created);
    let both = PutOptions { attach: Some(waiter(2)), ..awaited.clone() };
    assert_eq!(
        refused(model, 0.0, put_on("q", "c", both)),
        Refusal::BadArgument { what: "waiter".into(), why: String::new() }
    );
    let second = PutOptions { unique: key("k"), attach: Some(waiter(3)), ..PutOptions::default() };
    let (reply, events) = run(model, 0.0, put_on("q", "c", second));
    assert_eq!(reply, PutReply::Coalesced { jid: jid("a") });
    assert_eq!(events, [Event::Coalesced { jid: jid("a"), queue: queue("q"), submissions: 2 }]);
    let joined = details(model, "a");
    assert_eq!((joined.submissions, joined.attached, joined.orphan_policy), (2, 2, OrphanPolicy::Always));
    assert_eq!(joined.result_ttl, Some(Seconds::from(5)));

    ask(model, 1.0, Pop::new(queue("q"), worker("w1")));
    let result = Some(Box::new(JobResult { code: 7, bytes: "out".into() }));
    let complete = Complete { result, ..Complete::new(jid("a"), held_by("w1")) };
    let (_, events) = run(model, 2.0, complete);
    assert_eq!(events[1], Event::ResultStored { jid: jid("a") });
    let told: Vec<ResultWaiter> = model.deliveries().iter().map(|delivery| delivery.waiter).collect();
    assert_eq!(told, [waiter(1), waiter(3)]);
    assert!(ask(model, 6.9, GetResult { jid: jid("a") }).is_some());
    assert_eq!(ask(model, 7.0, GetResult { jid: jid("a") }), None);
    assert_eq!(ask(model, 2.0, put_on("q", "c", awaited)), PutReply::Created);
}

#[test]
fn a_key_goes_with_its_job_as_far_as_it_is_free() {
    let model = &mut Model::default();
    let terms = PutOptions { unique: key("k"), ..PutOptions::default() };
    ask(model, 0.0, put_on("q", "a", terms.clone()));
    ask(model, 0.0, put_on("r", "b", terms.clone()));
    assert_eq!(holder_of(model, "q", "k"), Some(jid("a")));
    // Put again where the key is taken, it runs without one; the next put in its old queue gets the key.
    ask(model, 0.0, put("r", "a"));
    assert_eq!((holder_of(model, "q", "k"), holder_of(model, "r", "k")), (None, Some(jid("b"))));
    ask(model, 0.0, put_on("q", "c", terms));
    ask(model, 0.0, Cancel::new(vec![jid("b")]));
    assert_eq!(holder_of(model, "r", "k"), None);
    // Completed into the queue that it is in, it takes it there.
    assert_eq!(pop(model, 1.0, "r", "w1", 1), [jid("a")]);
    ask(model, 1.0, Complete { next: Some(Next::new(queue("r"))), ..Complete::new(jid("a"), held_by("w1")) });
    assert_eq!(holder_of(model, "r", "k"), Some(jid("a")));
    // A failed job has let go of it, and takes it again when it comes back.
    assert_eq!(pop(model, 2.0, "q", "w1", 1), [jid("c")]);
    ask(model, 2.0, Fail::new(jid("c"), held_by("w1"), group("g"), ""));
    assert_eq!(holder_of(model, "q", "k"), None);
    ask(model, 3.0, Unfail { queue: queue("q"), group: group("g"), count: Count::ONE });
    assert_eq!(holder_of(model, "q", "k"), Some(jid("c")));
}

#[test]
fn what_comes_back_is_before_its_equals_in_the_order_in_which_it_went_out() {
    let model = &mut Model::default();
    for (id, priority) in [("a", 0), ("b", 0), ("c", 1), ("d", 0), ("e", 0)] {
        ask(model, 0.0, Put { priority: Some(Priority::from(priority)), ..put("q", id) });
    }
    assert_eq!(pop(model, 1.0, "q", "w1", 9), ["c", "a", "b", "d", "e"].map(jid));
    ask(model, -5.0, put("q", "early"));
    ask(model, 2.0, Timeout { jids: vec![jid("e")] });
    for id in ["d", "b", "c", "a"] {
        let ((), events) = run(model, 3.0, Release::new(jid(id), held_by("w1")));
        let back = Event::Released { jid: jid(id), queue: queue("q"), worker: worker("w1"), crashed: false };
        assert_eq!(events, [back]);
    }
    let back = get(model, "a");
    assert_eq!((back.remaining, back.qless.worker, back.qless.state), (5, None, "waiting"));
    assert_eq!(pop(model, 4.0, "q", "w1", 9), ["e", "c", "a", "b", "d", "early"].map(jid));
}

#[test]
fn the_jobs_of_a_dead_worker_come_back_by_token_or_fail() {
    let model = &mut Model::default();
    ask(model, 0.0, put("q", "a"));
    ask(model, 0.0, Put { retries: Some(0), ..put("q", "b") });
    ask(model, 0.0, put_on("q", "c", PutOptions { crashes_max: Some(1), ..PutOptions::default() }));
    ask(
        model,
        0.0,
        put_on("q", "d", PutOptions { orphan_policy: OrphanPolicy::WhileAwaited, ..PutOptions::default() }),
    );
    assert_eq!(pop(model, 1.0, "q", "w1", 9), ["a", "b", "c", "d"].map(jid));
    let (jids, events) = gone(model, 2.5, "w1", Some("signal 9"));
    assert_eq!(jids, ["a", "b", "c", "d"].map(jid));
    let failed = |id: &str, of: &str, message: &str, by| Event::Failed {
        jid: jid(id),
        queue: queue("q"),
        worker: Some(worker("w1")),
        group: group(of),
        message: message.to_owned(),
        by,
    };
    let back =
        |id: &str| Event::Released { jid: jid(id), queue: queue("q"), worker: worker("w1"), crashed: true };
    let aside = "Job was set aside after 1 of its workers died: signal 9";
    let used_up = "Job exhausted retries in queue \"q\"";
    assert_eq!(
        events,
        [
            back("a"),
            failed("b", "failed-retries-q", used_up, FailedBy::WorkerLost),
            failed("c", "crashed-q", aside, FailedBy::Crashes),
            back("d"),
            Event::Abandoned { jid: jid("d"), queue: queue("q") },
            Event::WorkerLost { worker: worker("w1") },
        ]
    );
    let failure = get(model, "c").failure().unwrap().clone();
    assert_eq!((failure.when, failure.worker), (at(2.5), None));
    let set_aside =
        Reason::SetAside { group: group("crashed-q"), crashes: 1, evidence: Some("signal 9".to_owned()) };
    assert_eq!(reasons(model, 3.0, "c"), [set_aside]);
    assert_eq!((get(model, "a").remaining, details(model, "a").crashes), (4, 1));
    assert_eq!(gone(model, 3.0, "w1", None), (vec![], vec![]));

    // The option is the default for jobs that set none.
    for _ in 0..2 {
        assert_eq!(pop(model, 4.0, "q", "w1", 9), [jid("a")]);
        gone(model, 4.0, "w1", None);
    }
    assert_eq!(get(model, "a").failure().unwrap().message, "Job was set aside after 3 of its workers died");
}

#[test]
fn jobs_start_as_often_as_their_queue_lets_them() {
    let model = &mut Model::default();
    for number in 0..9 {
        ask(model, 0.0, put("q", &format!("j{number}")));
    }
    let rate = Some(Rate::new(1, Seconds::from(10), 2).unwrap());
    limit(model, "q", QueueLimits { rate, ..QueueLimits::default() });
    let started = |model: &mut Model, now| pop(model, now, "q", "w1", 9).len();
    assert_eq!([started(model, 100.0), started(model, 100.0)], [2, 0]);
    assert!(reasons(model, 100.0, "j8").contains(&Reason::RateLimit { until: at(110.0) }));
    assert_eq!([started(model, 109.0), started(model, 110.0), started(model, 119.0)], [0, 1, 0]);
    assert_eq!(started(model, 150.0), 2);
    assert_eq!(started(model, 151.0), 0);
    // The clock goes back a little, and then a lot: only then what was started later counts no more.
    assert_eq!([started(model, 149.0), started(model, 130.0)], [0, 2]);
}

#[test]
fn a_take_over_is_a_start() {
    let model = &mut Model::default();
    ask(model, 0.0, SetConfig::new("grace-period", "0"));
    ask(model, 0.0, put("q", "a"));
    let rate = Some(Rate::new(1, Seconds::from(100), 1).unwrap());
    limit(model, "q", QueueLimits { rate, ..QueueLimits::default() });
    assert_eq!(pop(model, 0.0, "q", "w1", 1), [jid("a")]);
    assert_eq!(pop(model, 60.0, "q", "w2", 1), []);
    assert_eq!(get(model, "a").remaining, 5);
    assert_eq!(pop(model, 100.0, "q", "w2", 1), [jid("a")]);
    assert_eq!(pop(model, 199.0, "q", "w2", 1), []);
}

#[test]
fn a_full_queue_takes_no_new_jobs_of_a_priority() {
    let model = &mut Model::default();
    let by_priority = vec![(Priority::from(0), 2), (Priority::from(10), 3)];
    limit(model, "q", QueueLimits { jobs_max: Some(4), by_priority, rate: None });
    let put = |id: &str, priority| Put { priority: Some(Priority::from(priority)), ..put("q", id) };
    let full = |jobs, max| Refusal::QueueFull { queue: queue("q"), jobs, max };
    ask(model, 0.0, put("a", -5));
    ask(model, 0.0, put("b", 0));
    assert_eq!(refused(model, 0.0, put("c", -5)), full(2, 2));
    assert_eq!(refused(model, 0.0, put("c", 9)), full(2, 2));
    ask(model, 0.0, put("c", 10));
    assert_eq!(refused(model, 0.0, put("d", 99)), full(3, 3));
    assert_eq!(ask(model, 0.0, put("a", 0)), PutReply::Replaced);
}

#[test]
fn an_attempt_ends_at_its_deadline_and_a_late_job_does_not_start() {
    let model = &mut Model::default();
    let backoff = Some(Backoff::exponential(Seconds::from(3), 2.0, Seconds::from(60), 0.0).unwrap());
    let terms = PutOptions { attempt_max: Some(Seconds::from(20)), backoff, ..PutOptions::default() };
    ask(model, 0.0, Put { retries: Some(1), ..put_on("q", "a", terms) });
    let ability = |klass, max| Capability { queue: queue("q"), klass, attempt_max: Some(Seconds::from(max)) };
    let can = vec![ability(None, 10), ability(Some(Klass::new("k").unwrap()), 30)];
    ask(model, 0.0, Announce { worker: worker("w1"), change: AnnounceChange::Can(can) });
    pop(model, 5.0, "q", "w1", 1);
    ask(model, 20.0, Heartbeat { jid: jid("a"), holder: held_by("w1"), payload: None });
    assert_eq!(tick(model, 24.9, 9), (0, Some(25.0), vec![]));
    let (done, _, events) = tick(model, 25.5, 9);
    assert_eq!(done, 1);
    let lost = Event::LockLost { jid: jid("a"), worker: worker("w1") };
    assert_eq!(events, [lost.clone(), Event::Retried { jid: jid("a"), queue: queue("q") }]);
    let job = get(model, "a");
    assert_eq!(job.state, JobState::Scheduled { due: at(28.5) });
    let failure = job.failure().unwrap();
    assert_eq!((failure.when, failure.group.as_str()), (at(25.0), "timed-out-q"));
    assert_eq!(failure.worker, Some(worker("w1")));

    pop(model, 30.0, "q", "w1", 1);
    let (_, _, events) = tick(model, 50.0, 9);
    assert_eq!(events.len(), 2);
    assert!(matches!(events[1], Event::Failed { by: FailedBy::Deadline, .. }));
    let failure = get(model, "a").failure().unwrap().clone();
    assert_eq!((failure.when, failure.worker), (at(50.0), None));

    let late = |expires| PutOptions { expires: Some(at(expires)), ..PutOptions::default() };
    ask(model, 50.0, put_on("q", "late", late(60.0)));
    ask(model, 50.0, put_on("q", "later", late(70.0)));
    ask(model, 50.0, put("q", "last"));
    assert_eq!(tick(model, 60.0, 9).0, 0);
    assert_eq!(tick(model, 61.0, 0).1, Some(60_f64.next_up()));
    assert_eq!(tick(model, 61.0, 1).0, 1);
    let (reply, events) = run(model, 71.0, Pop::new(queue("q"), worker("w2")));
    assert_eq!(reply.jobs[0].jid, jid("last"));
    assert!(matches!(&events[0], Event::Failed { by: FailedBy::Expired, worker: None, .. }));
}

#[test]
fn a_silent_worker_no_longer_counts() {
    let model = &mut Model::default();
    let can = |klass| vec![Capability { queue: queue("q"), klass, attempt_max: None }];
    let announce = |by, change| Announce { worker: worker(by), change };
    ask(model, 0.0, announce("w1", AnnounceChange::Can(can(None))));
    ask(model, 1.0, announce("w2", AnnounceChange::Can(can(Some(Klass::new("k").unwrap())))));
    let call = |klass: &str| RollCall { queue: queue("q"), klass: Some(Klass::new(klass).unwrap()) };
    assert_eq!((ask(model, 1.0, call("k")), ask(model, 1.0, call("other"))), (2, 1));
    assert_eq!(tick(model, 60.0, 9), (0, Some(60_f64.next_up()), vec![]));
    assert_eq!(tick(model, 60.5, 9).2, [Event::WorkerLost { worker: worker("w1") }]);
    assert_eq!((ask(model, 60.5, call("k")), ask(model, 60.5, Workers).len()), (1, 2));
    let roll_call = PutOptions { roll_call: true, ..PutOptions::default() };
    let other = Put { klass: Klass::new("other").unwrap(), ..put_on("q", "a", roll_call) };
    assert!(matches!(refused(model, 60.5, other), Refusal::NoCapableWorker { .. }));
}

#[test]
fn old_results_are_evicted_by_newer_ones_and_not_by_forgotten_jobs() {
    let model = &mut Model::default();
    ask(model, 0.0, SetConfig::new("results-bytes", "300"));
    let terms =
        PutOptions { result_ttl: Some(Seconds::from(100)), on_end: OnEnd::Forget, ..PutOptions::default() };
    let complete = |model: &mut Model, id: &str, bytes: usize| {
        ask(model, 0.0, put_on("q", id, terms.clone()));
        pop(model, 0.0, "q", "w1", 1);
        let result = Some(Box::new(JobResult { code: 0, bytes: vec![0; bytes].into() }));
        let complete = Complete { result, ..Complete::new(jid(id), held_by("w1")) };
        model.run(at(0.0), &complete.into()).0
    };
    for id in ["a", "b", "c"] {
        assert_eq!(complete(model, id, 10), Ok(Reply::Complete(CompleteReply::Complete)));
    }
    let kept = |model: &mut Model, id: &str| ask(model, 1.0, GetResult { jid: jid(id) }).is_some();
    assert_eq!(["a", "b", "c"].map(|id| kept(model, id)), [false, true, true]);
    assert!(model.jids().is_empty());
    let attach = |id: &str| Attach { jid: jid(id), waiter: waiter(1) };
    assert!(matches!(ask(model, 1.0, attach("b")), AttachReply::Ended { state: None, result: Some(_) }));
    assert_eq!(refused(model, 1.0, attach("a")), Refusal::NoSuchJob { jid: jid("a") });
    let large = Refusal::TooLarge { what: "result".into(), bytes: 173, max: 172 };
    assert_eq!(complete(model, "d", 173), Err(large));
    assert_eq!(get(model, "d").state.name(), StateName::Running);
}

#[test]
fn an_orphan_job_lives_while_a_waiter_or_a_dependent_needs_it() {
    let model = &mut Model::default();
    let awaited = |number| PutOptions {
        attach: Some(waiter(number)),
        orphan_policy: OrphanPolicy::WhileAwaited,
        ..PutOptions::default()
    };
    for (number, id) in [(1, "a"), (2, "b"), (3, "c")] {
        ask(model, 0.0, put_on("q", id, awaited(number)));
    }
    ask(model, 0.0, Put { depends: vec![jid("b")], ..put("q", "d") });
    assert_eq!(pop(model, 0.0, "q", "w1", 1), [jid("a")]);
    let (left, events) = run(model, 1.0, Detach { scope: DetachScope::Stream(1) });
    assert_eq!((left, events), (3, vec![Event::Abandoned { jid: jid("c"), queue: queue("q") }]));
    let (_, events) = run(model, 1.0, Retry::new(jid("a"), held_by("w1")));
    assert_eq!(events[1], Event::Abandoned { jid: jid("a"), queue: queue("q") });
    assert_eq!(model.jids(), ["b", "d"].map(jid));
}

#[test]
fn why_names_what_is_in_the_way() {
    let model = &mut Model::default();
    ask(model, 0.0, put("q", "a"));
    let no_worker =
        |asked| Reason::NoWorker { klass: Klass::new("k").unwrap(), asked, others: Vec::new(), workers: 0 };
    assert_eq!(reasons(model, 0.0, "a"), [no_worker(None)]);
    pop(model, 0.0, "q", "w1", 1);
    assert_eq!(
        reasons(model, 0.0, "a"),
        [Reason::Running { worker: worker("w1"), until: at(60.0), warned: false }]
    );
    ask(model, 1.0, put("q", "b"));
    ask(model, 1.0, Put { delay: Seconds::from(5), ..put("q", "c") });
    assert_eq!(reasons(model, 1.0, "b"), [Reason::Next]);
    assert_eq!(reasons(model, 1.0, "c"), [Reason::Scheduled { at: at(6.0) }]);
    assert_eq!(reasons(model, 6.0, "c"), [Reason::Behind { jobs: 1 }]);
    ask(model, 1.0, SetConfig::new("max-concurrency-q", "1"));
    ask(model, 1.0, Pause { queues: vec![queue("q")] });
    let full = Reason::Concurrency { max: 1, held: vec![(jid("a"), worker("w1"))], running: 1 };
    assert_eq!(reasons(model, 2.0, "b"), [Reason::Paused { queue: queue("q") }, full]);
    let stalled = Reason::Stalled { worker: worker("w1"), since: at(60.0), remaining: 5, warned: false };
    assert_eq!(reasons(model, 60.0, "a"), [stalled, Reason::Paused { queue: queue("q") }]);
    let paused = Reason::Paused { queue: queue("q") };
    assert_eq!(reasons(model, 61.0, "b"), [paused, no_worker(Some(at(0.0)))]);
}

#[test]
fn whatever_happens_the_model_agrees_with_itself() {
    for seed in 0..200 {
        let (mut model, mut tokens) = (Model::new(limits()), Tokens::default());
        for step in generate(seed) {
            let (answer, _) = model.run(step.now, &tokens.command(&step.command));
            tokens.learn(step.number, &answer);
            let told = model.deliveries().len();
            assert!(answer.is_ok() || told == 0, "trace {seed}, {step}");
            model.check().unwrap_or_else(|wrong| panic!("trace {seed}, {step}: {wrong}"));
        }
    }
}

#[test]
fn numbers_never_repeat_and_jobs_are_counted_by_priority() {
    let model = &mut Model::default();
    let allot =
        |counter: &str, count| AllocateIds { counter: counter.into(), count: Count::new(count).unwrap() };
    assert_eq!([1, 5, 1].map(|count| ask(model, 0.0, allot("a", count))), [1, 2, 7]);
    assert_eq!(ask(model, 0.0, allot("b", 1)), 1);
    for (id, priority, delay) in [("a", 1, 0), ("b", 0, 0), ("c", -1, 5), ("d", -1, 50)] {
        let delay = Seconds::from(delay);
        ask(model, 0.0, Put { priority: Some(Priority::from(priority)), delay, ..put("q", id) });
    }
    let counts = PriorityCounts { queue: queue("q") };
    assert_eq!(ask(model, 5.0, counts.clone()), PriorityCountsReply { above: 1, at: 1, below: 1 });
    assert_eq!(pop(model, 5.0, "q", "w1", 9), ["a", "b", "c"].map(jid));
    ask(model, 6.0, Timeout { jids: vec![jid("c")] });
    ask(model, 6.0, Release::new(jid("b"), held_by("w1")));
    assert_eq!(ask(model, 6.0, counts), PriorityCountsReply { above: 1, at: 1, below: 0 });
}
