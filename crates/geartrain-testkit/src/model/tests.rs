//! The model by itself: the worked trace of section 13, and what the specification says in numbers elsewhere.

use geartrain_core::*;

use super::Model;

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

    let (reply, events) = run(model, 151.0, Cancel { jids: vec![a.clone()] });
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
