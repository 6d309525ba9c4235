//! The current protocol, as clients and workers see it.
use crate::common;

use std::sync::Arc;

use common::Server;
use geartrain_gearman::front::Options;
use geartrain_gearman::packet::{JobStatus, Mode, Priority, ReportBody, Request, Response};

#[tokio::test]
async fn a_client_receives_all_reports_and_then_the_result() {
    let server = Server::start().await;
    let (mut client, mut worker) = (server.peer().await, server.worker("resize").await);
    let handle = client.foreground("resize", "", "cat.png").await;
    assert_eq!(handle, "H:lap:1");
    assert_eq!(client.status(&handle).await, JobStatus { known: true, ..JobStatus::default() });
    let job = worker.grab().await.unwrap();
    assert_eq!((&job.handle, &job.function[..], &job.data[..]), (&handle, &b"resize"[..], &b"cat.png"[..]));
    worker.report(&handle, ReportBody::Status { numerator: "1.5", denominator: "abc" }).await;
    worker.report(&handle, ReportBody::Data("half")).await;
    worker.report(&handle, ReportBody::Warning("hot")).await;
    worker.report(&handle, ReportBody::Complete("whole")).await;
    let numbers = ReportBody::Status { numerator: "1.5".into(), denominator: "abc".into() };
    assert_eq!(client.next_report().await, (handle.clone(), numbers));
    assert_eq!(client.next_report().await, (handle.clone(), ReportBody::Data("half".into())));
    assert_eq!(client.next_report().await, (handle.clone(), ReportBody::Warning("hot".into())));
    assert_eq!(client.next_report().await, (handle.clone(), ReportBody::Complete("whole".into())));
    assert_eq!(client.status(&handle).await, JobStatus::default());
    assert_eq!(worker.grab().await, None);
    server.end().await;
}

#[tokio::test]
async fn a_job_wakes_an_idle_worker_and_one_that_is_idle_while_a_job_is_ready_is_woken_at_once() {
    let server = Server::start().await;
    let (mut client, mut worker) = (server.peer().await, server.worker("f").await);
    worker.sleep().await;
    worker.sync().await;
    client.background("f", "", "1").await;
    worker.expect_noop().await;
    // It is idle again without a grab, while the job is still there.
    worker.sleep().await;
    worker.expect_noop().await;
    let job = worker.grab().await.unwrap();
    worker.report(&job.handle, ReportBody::Complete("")).await;
    worker.sleep().await;
    // No job is left. A job of a function that it adds while idle wakes it.
    client.background("g", "", "2").await;
    worker.send(Request::CanDo { function: "g", timeout: None }).await;
    worker.expect_noop().await;
    assert_eq!(worker.grab().await.unwrap().data, "2");
    server.end().await;
}

#[tokio::test]
async fn jobs_are_assigned_by_priority_over_all_functions() {
    let server = Server::start().await;
    let mut client = server.peer().await;
    let mut worker = server.worker("a").await;
    worker.send(Request::CanDo { function: "b", timeout: None }).await;
    for (function, data, priority) in [
        ("a", "low", Priority::Low),
        ("a", "normal", Priority::Normal),
        ("b", "high", Priority::High),
        ("b", "low too", Priority::Low),
    ] {
        client.submit(function, "", data, Mode::Background(priority)).await;
    }
    let mut order = Vec::new();
    while let Some(job) = worker.grab().await {
        order.push(String::from_utf8(job.data.to_vec()).unwrap());
    }
    assert_eq!(order[..2], ["high", "normal"]);
    assert_eq!(order.len(), 4);
    server.end().await;
}

#[tokio::test]
async fn submissions_with_one_unique_id_are_one_job_and_each_client_gets_its_result() {
    let server = Server::start().await;
    let (mut one, mut other) = (server.peer().await, server.peer().await);
    let mut worker = server.worker("f").await;
    let handle = one.foreground("f", "same", "first").await;
    assert_eq!(one.foreground("f", "same", "second").await, handle);
    assert_eq!(other.foreground("f", "same", "third").await, handle);
    assert_ne!(other.foreground("g", "same", "elsewhere").await, handle);
    let job = worker.grab().await.unwrap();
    assert_eq!((&job.data[..], &job.unique[..]), (&b"first"[..], &b"same"[..]));
    worker.report(&handle, ReportBody::Complete("done")).await;
    for client in [&mut one, &mut other] {
        assert_eq!(client.next_report().await, (handle.clone(), ReportBody::Complete("done".into())));
    }
    // The first client submitted twice, so it receives the result twice.
    assert_eq!(one.next_report().await, (handle.clone(), ReportBody::Complete("done".into())));
    one.sync().await;
    assert_ne!(one.foreground("f", "same", "again").await, handle);
    server.end().await;
}

#[tokio::test]
async fn jobs_of_a_disconnected_worker_go_to_the_next() {
    let server = Server::start().await;
    let (mut client, mut worker) = (server.peer().await, server.worker("f").await);
    let first = client.background("f", "", "1").await;
    let second = client.background("f", "", "2").await;
    let third = client.background("f", "", "3").await;
    assert_eq!(worker.grab().await.unwrap().handle, first);
    assert_eq!(worker.grab().await.unwrap().handle, second);
    let mut next = server.worker("f").await;
    next.send(Request::<&str>::PreSleep).await;
    next.expect_noop().await;
    assert_eq!(next.grab().await.unwrap().handle, third);
    next.sleep().await;
    next.sync().await;
    drop(worker);
    next.expect_noop().await;
    // In the order in which they were assigned.
    assert_eq!(next.grab().await.unwrap().handle, first);
    assert_eq!(next.grab().await.unwrap().handle, second);
    assert_eq!(next.grab().await, None);
    server.end().await;
}

#[tokio::test]
async fn an_abandoned_job_is_removed_unless_it_runs_or_another_client_submitted_it() {
    let server = Server::start().await;
    let (mut client, mut other) = (server.peer().await, server.peer().await);
    let mut worker = server.worker("f").await;
    let running = client.foreground("f", "r", "running").await;
    assert_eq!(worker.grab().await.unwrap().handle, running);
    let queued = client.foreground("f", "q", "queued").await;
    let needed = client.foreground("f", "n", "needed").await;
    assert_eq!(other.background("f", "n", "needed").await, needed);
    drop(client);
    // The server takes a moment to notice.
    while other.status(&queued).await.known {}
    assert!(other.status(&running).await.running);
    assert!(other.status(&needed).await.known);
    // A late client of a running job gets its result.
    assert_eq!(other.foreground("f", "r", "").await, running);
    worker.report(&running, ReportBody::Complete("late")).await;
    assert_eq!(other.next_report().await, (running, ReportBody::Complete("late".into())));
    assert_eq!(worker.grab().await.unwrap().handle, needed);
    assert_eq!(worker.grab().await, None);
    server.end().await;
}

#[tokio::test]
async fn exceptions_reach_clients_that_set_the_option_and_others_receive_a_failure() {
    let server = Server::start().await;
    let (mut plain, mut curious) = (server.peer().await, server.peer().await);
    let mut worker = server.worker("f").await;
    curious.send(Request::SetOption { option: "exceptions" }).await;
    assert_eq!(curious.next().await, Response::OptionSet { option: "exceptions".into() });
    let handle = plain.foreground("f", "u", "").await;
    assert_eq!(curious.foreground("f", "u", "").await, handle);
    worker.grab().await.unwrap();
    worker.report(&handle, ReportBody::Exception("boom")).await;
    // Some workers send both; the second report is ignored.
    worker.report(&handle, ReportBody::Fail).await;
    worker.sync().await;
    assert_eq!(plain.next_report().await, (handle.clone(), ReportBody::Fail));
    assert_eq!(curious.next_report().await, (handle.clone(), ReportBody::Exception("boom".into())));
    // A report on a job that the worker never held is an error.
    worker.report(&"H:lap:999".into(), ReportBody::Complete("")).await;
    let Response::Error { code, text } = worker.next().await else { panic!("no error") };
    assert_eq!((&code[..], &text[..]), (&b"JOB_NOT_FOUND"[..], &b"Job given in work result not found"[..]));
    server.end().await;
}

#[tokio::test]
async fn admin_commands_show_functions_workers_and_jobs() {
    let server = Server::start().await;
    let (mut client, mut worker) = (server.peer().await, server.worker("f").await);
    worker.send(Request::SetClientId { id: "my worker" }).await;
    client.background("f", "u1", "").await;
    client.submit("f", "", "", Mode::Background(Priority::High)).await;
    client.submit("f", "", "", Mode::Background(Priority::Low)).await;
    client.foreground("g", "u2", "").await;
    worker.grab().await.unwrap();
    let mut admin = server.peer().await;
    assert_eq!(admin.list("status").await, ["f\t3\t1\t1", "g\t1\t0\t0"]);
    assert_eq!(admin.list("prioritystatus").await, ["f\t0\t1\t1\t1", "g\t0\t1\t0\t0"]);
    assert_eq!(
        admin.list("workers").await,
        ["1 127.0.0.1 - :", "2 127.0.0.1 my_worker : f", "3 127.0.0.1 - :"]
    );
    let mut jobs = admin.list("show jobs").await;
    jobs.sort();
    assert_eq!(jobs, ["H:lap:1\t0\t0\t1", "H:lap:2\t0\t0\t1", "H:lap:3\t0\t0\t1", "H:lap:4\t0\t0\t0"]);
    let mut uniques = admin.list("show unique jobs").await;
    uniques.sort();
    assert_eq!(uniques, ["", "", "u1", "u2"]);
    assert_eq!(admin.ask("cancel job H:lap:4").await, "OK");
    assert_eq!(client.next_report().await, ("H:lap:4".into(), ReportBody::Fail));
    assert_eq!(admin.ask("cancel job H:lap:4").await, "ERR UNKNOWN_JOB");
    assert_eq!(admin.ask("create function h").await, "OK");
    assert_eq!(admin.list("status").await, ["f\t3\t1\t1", "g\t0\t0\t0", "h\t0\t0\t0"]);
    assert_eq!(admin.ask("drop function h").await, "OK");
    assert_eq!(admin.ask("drop function h").await, "ERR function not found");
    assert_eq!(
        admin.ask("drop function f").await,
        "ERR there are still connected workers or executing clients"
    );
    assert_eq!(admin.ask("maxqueue g 1").await, "OK");
    client.background("g", "", "").await;
    client
        .send(Request::Submit(geartrain_gearman::packet::Submission {
            function: "g",
            unique: "",
            data: "",
            mode: Mode::Background(Priority::Normal),
        }))
        .await;
    let Response::Error { code, text } = client.next().await else { panic!("no error") };
    assert_eq!((&code[..], &text[..]), (&b"QUEUE_ERROR"[..], &b"Job queue is full"[..]));
    assert!(admin.ask("version").await.starts_with("OK 1.1.20-geartrain-"));
    assert_eq!(admin.ask("getpid").await, format!("OK {}", std::process::id()));
    assert_eq!(admin.ask("shutdown").await, "ERR UNKNOWN_COMMAND Unknown+server+commandshutdown");
    server.end().await;
}

#[tokio::test]
async fn no_task_outlives_the_front_end() {
    let shutdown = Some(tokio_util::sync::CancellationToken::new());
    let server = Server::with(Options { shutdown, ..Options::default() }).await;
    let backend = server.backend.clone();
    let (mut client, mut worker) = (server.peer().await, server.worker("f").await);
    // The backend is watched for an idle worker, and a graceful shutdown waits for a job that never runs.
    worker.sleep().await;
    worker.sync().await;
    client.background("g", "", "").await;
    assert_eq!(client.ask("shutdown graceful").await, "OK");
    server.end().await;
    assert_eq!(Arc::strong_count(&backend), 1);
}
