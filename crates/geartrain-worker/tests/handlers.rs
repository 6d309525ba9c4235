//! Handlers: how jobs reach them, and what their return value does.

use std::time::Duration;

use geartrain_core::{JobState, StateName};
use geartrain_worker::{Context, Job, JobDefaults, JobError, State, Worker, WorkerError};
use serde::{Deserialize, Serialize};

use crate::support::{job, memory, put, result, run, state};

#[derive(Serialize, Deserialize)]
pub(crate) struct Sum {
    numbers: Vec<i64>,
}

impl Job for Sum {
    const QUEUE: &'static str = "sums";
    const KLASS: &'static str = "sum";
    const DEFAULTS: JobDefaults = JobDefaults::NONE;
}

#[tokio::test]
async fn a_typed_handler_gets_its_job_and_state_and_its_value_is_the_result() {
    let backend = memory();
    run(&backend, put("sums", "j1", "sum", r#"{"numbers":[1,2,3]}"#)).await;
    let report = Worker::new(backend.clone())
        .with_state(100)
        .on(async |job: Sum, State(base), cx: Context| {
            cx.progress(1, 2).await?;
            Ok(base + job.numbers.iter().sum::<i64>())
        })
        .drain(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    assert_eq!((report.completed, report.attempts()), (1, 1));
    assert_eq!(state(&backend, "j1").await, StateName::Complete);
    assert_eq!(result(&backend, "j1").await.as_deref(), Some("106"));
}

#[tokio::test]
async fn a_blocking_handler_runs_on_another_thread() {
    let backend = memory();
    run(&backend, put("sums", "j1", "sum", r#"{"numbers":[4]}"#)).await;
    let own = std::thread::current().id();
    Worker::new(backend.clone())
        .on_blocking(move |job: Sum, _, _| {
            assert_ne!(std::thread::current().id(), own);
            Ok(job.numbers)
        })
        .drain(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    assert_eq!(result(&backend, "j1").await.as_deref(), Some("[4]"));
}

#[tokio::test]
async fn a_handler_of_bytes_needs_no_type() {
    let backend = memory();
    run(&backend, put("mail", "j1", "welcome", "any text")).await;
    Worker::new(backend.clone())
        .queues(["mail"])
        .on_klass("welcome", async |payload, _, _| Ok(payload.bytes().to_ascii_uppercase()))
        .drain(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    assert_eq!(result(&backend, "j1").await.as_deref(), Some("ANY TEXT"));
}

#[tokio::test]
async fn jobs_of_other_klasses_stay_in_their_queue() {
    let backend = memory();
    run(&backend, put("sums", "mine", "sum", r#"{"numbers":[]}"#)).await;
    run(&backend, put("sums", "other", "product", "{}")).await;
    Worker::new(backend.clone())
        .on(async |_: Sum, _, _| Ok(()))
        .drain(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    assert_eq!(state(&backend, "mine").await, StateName::Complete);
    assert_eq!(state(&backend, "other").await, StateName::Waiting);
}

/// Runs one attempt at a job with this handler, and returns the job.
async fn after_one(
    payload: &str,
    outcome: impl Fn() -> Result<i64, JobError> + Send + Sync + 'static,
) -> geartrain_core::Job {
    let backend = memory();
    run(&backend, put("sums", "j1", "sum", payload)).await;
    Worker::new(backend.clone())
        .on(move |_: Sum, _, _| std::future::ready(outcome()))
        .once(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    job(&backend, "j1").await
}

fn failure(job: &geartrain_core::Job) -> (&str, &str) {
    let failure = job.failure().expect("it failed");
    (failure.group.as_str(), failure.message.as_str())
}

const PAYLOAD: &str = r#"{"numbers":[1]}"#;

#[tokio::test]
async fn an_error_retries_the_job_with_its_backoff_and_type() {
    let job = after_one(PAYLOAD, || Ok("x".parse::<i64>()?)).await;
    assert_eq!((job.state.name(), job.remaining), (StateName::Scheduled, 4));
    assert_eq!(failure(&job), ("sums-ParseIntError", "invalid digit found in string"));
}

#[tokio::test]
async fn an_error_may_choose_the_delay_and_the_group() {
    let minute = Duration::from_secs(60);
    let job = after_one(PAYLOAD, move || Err(JobError::retry("451").after(minute).group("smtp"))).await;
    let JobState::Scheduled { .. } = job.state else { panic!("{:?}", job.state) };
    assert_eq!(failure(&job), ("smtp", "451"));
    let job = after_one(PAYLOAD, move || Err(JobError::retry("451").after(Duration::ZERO))).await;
    assert_eq!(job.state, JobState::Waiting);
}

#[tokio::test]
async fn an_error_may_fail_the_job_for_good() {
    let job = after_one(PAYLOAD, || Err(JobError::fail("no-such-user", "there is no such user"))).await;
    assert_eq!(
        (job.state.name(), failure(&job)),
        (StateName::Failed, ("no-such-user", "there is no such user"))
    );
    let job = after_one(PAYLOAD, || "x".parse().map_err(|error| JobError::from(error).give_up())).await;
    assert_eq!((job.state.name(), failure(&job).0), (StateName::Failed, "sums-ParseIntError"));
}

#[tokio::test]
async fn an_error_without_a_retry_left_counts_as_a_failure() {
    let backend = memory();
    run(&backend, geartrain_core::Put { retries: Some(0), ..put("mail", "j1", "k", "") }).await;
    let report = Worker::new(backend.clone())
        .queues(["mail"])
        .on_klass("k", async |_, _, _| Err::<String, _>(JobError::retry("451")))
        .once(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    assert_eq!((report.failed, report.retried), (1, 0));
    assert_eq!(state(&backend, "j1").await, StateName::Failed);
}

#[tokio::test]
async fn a_released_job_loses_no_retry() {
    let job = after_one(PAYLOAD, || Err(JobError::release("not on this machine"))).await;
    assert_eq!((job.state.name(), job.remaining), (StateName::Waiting, 5));
    assert_eq!(job.attempts[0].message.as_deref(), Some("not on this machine"));
}

#[tokio::test]
async fn a_snoozed_job_runs_later_and_loses_no_retry() {
    let job = after_one(PAYLOAD, || Err(JobError::snooze(Duration::from_secs(3_600)))).await;
    assert_eq!((job.state.name(), job.remaining), (StateName::Scheduled, 5));
}

#[tokio::test]
async fn a_panic_fails_the_job_with_its_message() {
    let job = after_one(PAYLOAD, || panic!("index out of {}", "bounds")).await;
    assert_eq!((job.state.name(), failure(&job)), (StateName::Failed, ("sums-panic", "index out of bounds")));
}

#[tokio::test]
async fn a_payload_that_does_not_parse_fails_the_job_with_the_reason() {
    let job = after_one(r#"{"numbers":"many"}"#, || Ok(1)).await;
    assert_eq!((job.state.name(), failure(&job).0), (StateName::Failed, "sums-bad-payload"));
    let message = failure(&job).1;
    assert!(message.starts_with("the payload is no sum job: invalid type: string \"many\""), "{message}");
}

#[tokio::test]
async fn a_result_that_is_too_large_fails_the_job() {
    let backend = memory();
    run(&backend, put("mail", "j1", "k", "")).await;
    Worker::new(backend.clone())
        .queues(["mail"])
        .on_klass("k", async |_, _, _| Ok(vec![0; geartrain_core::PAYLOAD_BYTES_MAX + 1]))
        .once(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    let job = job(&backend, "j1").await;
    assert_eq!((job.state.name(), failure(&job).0), (StateName::Failed, "mail-result-refused"));
}

#[tokio::test]
async fn a_worker_without_handlers_queues_or_good_names_does_not_start() {
    let end = std::future::ready(());
    let error = Worker::new(memory()).queues(["q"]).run_until(end.clone()).await.unwrap_err();
    assert!(matches!(error, WorkerError::NoHandlers));
    let worker = Worker::new(memory()).on_klass("k", async |payload, _, _| Ok(payload));
    assert!(matches!(worker.run_until(end.clone()).await.unwrap_err(), WorkerError::NoQueues));
    let worker = Worker::new(memory()).queues([""]).on_klass("k", async |payload, _, _| Ok(payload));
    assert!(matches!(worker.run_until(end.clone()).await.unwrap_err(), WorkerError::Name(_)));
    let worker = Worker::new(memory()).resume(true).on(async |_: Sum, _, _| Ok(()));
    assert!(matches!(worker.run_until(end).await.unwrap_err(), WorkerError::ResumeWithoutName));
}
