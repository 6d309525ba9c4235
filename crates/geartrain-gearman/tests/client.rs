//! The client against our own front-end and against gearmand: put, work, wait, and ask.
use crate::common;
use crate::workers;

use std::time::Duration;

use common::Server;
use geartrain_core::{
    Announced, Attach, AttachReply, Backend, Cancel, Chunk, ChunkKind, Complete, CompleteReply, Detach,
    DetachScope, Fail, Get, Group, Heartbeat, Holder, Jid, JobEnding, JobResult, Length, Payload, Pop,
    Portion, Priority, PriorityCounts, PriorityCountsReply, Progress, Progressed, Put, PutOptions, Queues,
    Refusal, ResultWaiter, RollCall, Seconds, StateName, Status, StatusOf, StreamItem, Token, UniqueKey,
    Workers,
};
use geartrain_gearman::client::GearmanBackend;
use workers::{complete, each_kind, jid_of, pop, pop_one, put, queue, refusal, run, with_options, worker};

const WAITER: ResultWaiter = ResultWaiter { stream_id: 7, connection: 1, number: 1 };

async fn status(backend: &GearmanBackend, jid: &Jid) -> Option<(StateName, Option<Portion>)> {
    let status = run(backend, Status { of: StatusOf::Jid(jid.clone()) }).await?;
    Some((status.state, status.progress.map(|progress| progress.portion)))
}

#[tokio::test]
async fn a_job_is_put_popped_and_completed() {
    for server in each_kind().await {
        let backend = server.connect().await;
        let jid = jid_of(&backend, put("resize", "cat\0\u{ff}")).await;
        assert_eq!(status(&backend, &jid).await, Some((StateName::Waiting, None)));
        assert_eq!(run(&backend, Length { queue: queue("resize") }).await, 1);

        let job = pop_one(&backend, "resize").await.unwrap();
        assert_eq!((&job.jid, job.queue.as_str(), job.klass.as_str()), (&jid, "resize", "resize"));
        assert_eq!(job.payload.bytes(), "cat\0\u{ff}".as_bytes());
        assert_eq!(status(&backend, &jid).await, Some((StateName::Running, None)));
        assert!(pop_one(&backend, "resize").await.is_none());

        let progress = Progressed { portion: Portion::new(1, 4).unwrap(), seconds_left: None };
        run(&backend, Progress::new(jid.clone(), job.holder(), progress)).await;
        assert_eq!(
            status(&backend, &jid).await,
            Some((StateName::Running, Some(Portion::new(1, 4).unwrap())))
        );

        let until = run(&backend, Heartbeat { jid: jid.clone(), holder: job.holder(), payload: None }).await;
        assert!(until > job.lock.expires - Seconds::from(3_600));
        assert_eq!(run(&backend, complete(&job, "small cat")).await, CompleteReply::Complete);
        assert_eq!(status(&backend, &jid).await, None);
        assert_eq!(refusal(&backend, complete(&job, "")).await, Refusal::NoSuchJob { jid });
    }
}

#[tokio::test]
async fn a_waiting_client_receives_all_reports_and_the_result() {
    for server in each_kind().await {
        let backend = server.connect().await;
        let mut stream = backend.open_result_stream(WAITER.stream_id).await.unwrap();
        let options = PutOptions { attach: Some(WAITER), ..PutOptions::default() };
        let jid = jid_of(&backend, with_options(put("resize", "cat"), options)).await;
        let job = pop_one(&backend, "resize").await.unwrap();
        let chunk = |kind, bytes: &str| Chunk {
            jid: jid.clone(),
            holder: job.holder(),
            kind,
            bytes: Payload::from(bytes),
        };
        run(&backend, chunk(ChunkKind::Data, "half")).await;
        run(&backend, chunk(ChunkKind::Warning, "dim")).await;
        let progress = Progressed { portion: Portion::new(1, 2).unwrap(), seconds_left: None };
        run(&backend, Progress::new(jid.clone(), job.holder(), progress)).await;
        // An attach of a waiter that is attached already succeeds.
        let attach = || Attach { jid: jid.clone(), waiter: WAITER };
        assert_eq!(run(&backend, attach()).await, AttachReply::Attached);
        run(&backend, complete(&job, "whole")).await;

        let mut told = Vec::new();
        for _ in 0..4 {
            let delivery = stream.next().await.unwrap();
            assert_eq!((delivery.waiter, &delivery.jid), (WAITER, &jid));
            told.push(delivery.item);
        }
        let expected = [
            StreamItem::Chunk(ChunkKind::Data, "half".into()),
            StreamItem::Chunk(ChunkKind::Warning, "dim".into()),
            StreamItem::Progress { progress, text: None },
            StreamItem::Ended(JobEnding::Completed, JobResult { code: 0, bytes: "whole".into() }),
        ];
        assert_eq!(told, expected);
        assert_eq!(run(&backend, attach()).await, AttachReply::Attached);
    }
}

#[tokio::test]
async fn a_waiting_client_receives_the_failure_reason() {
    for server in each_kind().await {
        let backend = server.connect().await;
        let mut stream = backend.open_result_stream(WAITER.stream_id).await.unwrap();
        for (number, message, heard) in [
            (1, "no such cat", ("gearman-exception", "no such cat")),
            (2, "", ("gearman-fail", "the worker or the server reported a failure without a reason")),
        ] {
            let attach = Some(ResultWaiter { number, ..WAITER });
            jid_of(
                &backend,
                with_options(put("resize", "cat"), PutOptions { attach, ..PutOptions::default() }),
            )
            .await;
            let job = pop_one(&backend, "resize").await.unwrap();
            run(&backend, Fail::new(job.jid.clone(), job.holder(), Group::new("cats").unwrap(), message))
                .await;
            let how = JobEnding::Failed { group: Group::new(heard.0).unwrap(), message: heard.1.to_owned() };
            let outcome = JobResult { code: 1, bytes: message.into() };
            assert_eq!(stream.next().await.unwrap().item, StreamItem::Ended(how, outcome));
        }
    }
}

#[tokio::test]
async fn an_abandoned_foreground_job_is_not_run() {
    for server in each_kind().await {
        let backend = server.connect().await;
        let stream = backend.open_result_stream(WAITER.stream_id).await.unwrap();
        let attach =
            |number| PutOptions { attach: Some(ResultWaiter { number, ..WAITER }), ..PutOptions::default() };
        for number in 0..3 {
            jid_of(&backend, with_options(put("resize", "cat"), attach(number))).await;
        }
        let kept = jid_of(&backend, put("resize", "dog")).await;
        let one = DetachScope::One(ResultWaiter { number: 0, ..WAITER });
        assert_eq!(run(&backend, Detach { scope: one }).await, 1);
        assert_eq!(run(&backend, Detach { scope: one }).await, 0);
        drop(stream);
        // The server may assign such a job until it has read that the connections are closed. The job that no
        // client waits for stays.
        server.until_connected(1).await;
        server.until_it_has_jobs(&backend, "resize", 1).await;
        assert_eq!(pop_one(&backend, "resize").await.unwrap().jid, kept);
        let refused = refusal(&backend, with_options(put("resize", "cat"), attach(9))).await;
        assert_eq!(refused.to_string(), "waiter has no open result stream");
    }
}

#[tokio::test]
async fn puts_with_the_same_key_are_one_job() {
    for server in each_kind().await {
        let backend = server.connect().await;
        let keyed = || PutOptions { unique: Some(UniqueKey::new("cat-7").unwrap()), ..PutOptions::default() };
        let first = jid_of(&backend, with_options(put("resize", "cat"), keyed())).await;
        let second = jid_of(&backend, with_options(put("resize", "dog"), keyed())).await;
        assert_eq!(first, second);
        let key = || UniqueKey::new("cat-7").unwrap();
        let asked = run(&backend, Status { of: StatusOf::Unique(queue("resize"), key()) }).await.unwrap();
        assert_eq!((asked.state, asked.queue), (StateName::Waiting, queue("resize")));
        let job = pop_one(&backend, "resize").await.unwrap();
        assert_eq!(job.details.unwrap().unique, Some(key()));
        let unknown = StatusOf::Unique(queue("resize"), UniqueKey::new("cat-8").unwrap());
        assert_eq!(run(&backend, Status { of: unknown }).await, None);
    }
}

#[tokio::test]
async fn jobs_are_popped_by_priority_and_carry_their_reducer() {
    for server in each_kind().await {
        let backend = server.connect().await;
        for (payload, priority) in [("low", -1), ("normal", 0), ("high", 5)] {
            jid_of(&backend, Put { priority: Some(Priority::from(priority)), ..put("resize", payload) })
                .await;
        }
        let counts = run(&backend, PriorityCounts { queue: queue("resize") }).await;
        assert_eq!(counts, PriorityCountsReply { above: 1, at: 1, below: 1 });
        let mut order = Vec::new();
        for _ in 0..3 {
            order.push(pop_one(&backend, "resize").await.unwrap().payload.text().unwrap().to_owned());
        }
        assert_eq!(order, ["high", "normal", "low"]);
        jid_of(
            &backend,
            with_options(
                put("sum", "1"),
                PutOptions { metadata: Some("add".into()), ..PutOptions::default() },
            ),
        )
        .await;
        let job = pop_one(&backend, "sum").await.unwrap();
        assert_eq!(job.details.unwrap().metadata, Some("add".into()));
    }
}

#[tokio::test]
async fn one_pop_takes_several_jobs_from_several_queues() {
    for server in each_kind().await {
        let backend = server.connect().await;
        for name in ["a", "b", "c"] {
            jid_of(&backend, put(name, name)).await;
        }
        let asked = Pop {
            queues: vec![queue("a"), queue("b")],
            count: geartrain_core::Count::new(5).unwrap(),
            ..pop("a")
        };
        let mut names: Vec<_> =
            run(&backend, asked).await.jobs.into_iter().map(|job| job.queue.to_string()).collect();
        names.sort();
        assert_eq!(names, ["a", "b"]);
        let none = refusal(&backend, Pop { queues: Vec::new(), ..pop("a") }).await;
        assert_eq!(none.to_string(), "queues must be 1 to 1024, not 0");
    }
}

#[tokio::test]
async fn an_idle_worker_is_woken_by_a_job() {
    for server in each_kind().await {
        let (sleeper, other) = (server.connect().await, server.connect().await);
        let asleep = sleeper.pop_or_wait(pop("resize"), Seconds::from(60));
        let waking = async {
            // An idle worker is one that the server lists.
            server.until_a_worker_offers(&other, "resize").await;
            jid_of(&other, put("resize", "cat")).await
        };
        let (popped, jid) = tokio::join!(asleep, waking);
        assert_eq!(popped.unwrap().jobs[0].jid, jid);
        let nothing = sleeper.pop_or_wait(pop("resize"), Seconds::new(0.01).unwrap()).await.unwrap();
        assert_eq!(nothing.jobs, []);
    }
}

#[tokio::test]
async fn a_job_assigned_to_a_dropped_wait_goes_to_the_next() {
    for server in each_kind().await {
        let backend = server.connect().await;
        for round in 0..20 {
            let mut waits = Vec::new();
            for _ in 0..5 {
                let mut wait = backend.pop_or_wait(pop("resize"), Seconds::from(60));
                // Started, then neither polled nor dropped while the job arrives.
                let _ = tokio::time::timeout(Duration::from_millis(1), &mut wait).await;
                waits.push(wait);
            }
            let jid = jid_of(&backend, put("resize", "cat")).await;
            if round % 2 == 0 {
                // The job is assigned to one of the waits before all are dropped.
                while status(&backend, &jid).await != Some((StateName::Running, None)) {}
            }
            drop(waits);
            let popped = backend.pop_or_wait(pop("resize"), Seconds::from(60)).await.unwrap();
            assert_eq!(popped.jobs[0].jid, jid);
            run(&backend, complete(&popped.jobs[0], "")).await;
            assert_eq!(status(&backend, &jid).await, None);
        }
    }
}

#[tokio::test]
async fn a_cancelled_job_is_removed_and_reports_on_it_are_refused() {
    for server in each_kind().await {
        let backend = server.connect().await;
        let first = jid_of(&backend, put("resize", "cat")).await;
        let unknown = Jid::new("H:nowhere:1").unwrap();
        assert_eq!(run(&backend, Cancel::new(vec![first.clone(), unknown.clone()])).await, 1);
        assert!(pop_one(&backend, "resize").await.is_none());
        let blank = refusal(&backend, Cancel::new(vec![Jid::new("a b").unwrap()])).await;
        assert_eq!(blank.to_string(), "jid a b holds a blank, which no handle does");
        let lost = Complete::new(unknown.clone(), Holder::Token(Token::new(3)));
        assert_eq!(refusal(&backend, lost).await, Refusal::NoSuchJob { jid: unknown });
    }
}

#[tokio::test]
async fn only_the_holder_of_a_job_may_report_on_it() {
    for server in each_kind().await {
        let (mine, theirs) = (server.connect().await, server.connect().await);
        let jid = jid_of(&mine, put("resize", "cat")).await;
        let job = pop_one(&mine, "resize").await.unwrap();
        let lost = Refusal::LockLost { jid: jid.clone(), state: StateName::Running };
        assert_eq!(refusal(&theirs, complete(&job, "")).await, lost);
        let other = Holder::Worker(worker("w2"));
        assert_eq!(refusal(&mine, Complete::new(jid.clone(), other)).await, lost);
        let elsewhere = Complete { queue: Some(queue("b")), ..complete(&job, "") };
        let wrong = Refusal::WrongQueue { jid: jid.clone(), queue: queue("resize"), given: queue("b") };
        assert_eq!(refusal(&mine, elsewhere).await, wrong);
        run(&mine, Complete::new(jid, Holder::Worker(worker("w1")))).await;

        // A lock is a connection: it ends with the process that holds it.
        let jid = jid_of(&mine, put("resize", "dog")).await;
        let job = pop_one(&mine, "resize").await.unwrap();
        drop(mine);
        let again = theirs.pop_or_wait(pop("resize"), Seconds::from(60)).await.unwrap();
        assert_eq!((&again.jobs[0].jid, &job.jid), (&jid, &jid));
    }
}

#[tokio::test]
async fn queues_and_workers_are_counted_as_far_as_servers_report_them() {
    for server in each_kind().await {
        let backend = server.connect().await;
        for payload in ["1", "2", "3"] {
            jid_of(&backend, put("resize", payload)).await;
        }
        let job = pop_one(&backend, "resize").await.unwrap();
        let counts = run(&backend, Queues { queue: Some(queue("resize")) }).await.remove(0);
        assert_eq!((counts.waiting, counts.running), (2, 1));
        let all = run(&backend, Queues::default()).await;
        assert!(all.contains(&counts), "{all:?}");
        assert_eq!(run(&backend, RollCall { queue: queue("resize"), klass: None }).await, 1);
        assert_eq!(run(&backend, RollCall { queue: queue("unknown"), klass: None }).await, 0);
        let workers = run(&backend, Workers).await;
        assert_eq!(workers.iter().map(|worker| worker.name.as_str()).collect::<Vec<_>>(), ["w1"]);
        let said = run(&backend, Announced { worker: Some(worker("w1")) }).await.remove(0);
        assert_eq!(said.capabilities.iter().map(|can| can.queue.as_str()).collect::<Vec<_>>(), ["resize"]);
        run(&backend, complete(&job, "")).await;
    }
}

#[tokio::test]
async fn unsupported_operations_are_refused_by_name() {
    let server = workers::ours().await;
    let backend = server.connect().await;
    let jid = Jid::new("H:lap:1").unwrap();
    assert_eq!(
        refusal(&backend, Get { jid: jid.clone() }).await.to_string(),
        "the gearman backend cannot show a job: ask for its status"
    );
    assert_eq!(
        refusal(&backend, Attach { jid, waiter: WAITER }).await.to_string(),
        "the gearman backend cannot wait for a job put by another client"
    );
    let error = backend.subscribe().await.err().unwrap();
    assert_eq!(error.to_string(), "the gearman backend cannot tell what happens");
}

#[tokio::test]
async fn a_refusal_quotes_the_server() {
    let server = Server::start().await;
    let mut admin = server.peer().await;
    assert_eq!(admin.ask("maxqueue resize 1").await, "OK");
    let url = format!("gearman://{}", server.address);
    let backend = GearmanBackend::connect(url.parse().unwrap()).await.unwrap();
    jid_of(&backend, put("resize", "cat")).await;
    let refused = refusal(&backend, put("resize", "dog")).await.to_string();
    let expected = format!("this was refused by the Gearman server at {}: ", server.address);
    assert!(refused.starts_with(&expected) && refused.contains("QUEUE_ERROR"), "{refused}");
}
