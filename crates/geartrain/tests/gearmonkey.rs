//! A worker and a client on GearMonkey functions.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use geartrain::{Client, Context, JobEnding, JobError, Payload, State, Worker};
use geartrain_testkit::peers::RedisServer;

type Inputs = Arc<Mutex<Vec<String>>>;

async fn connect(redis: &RedisServer) -> Client {
    geartrain::connect(&format!("gearmonkey+{}", redis.url())).await.unwrap()
}

#[tokio::test]
async fn a_worker_runs_jobs_and_a_client_gets_their_results() {
    let redis = RedisServer::start(&[]);
    let client = connect(&redis).await;
    let inputs: Inputs = Arc::default();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = Worker::new(connect(&redis).await)
        .queues(["up"])
        .with_state(inputs.clone())
        .on_klass("up", async |input: Payload, State(inputs): State<Inputs>, _: Context| {
            let input = input.text().unwrap().to_owned();
            inputs.lock().unwrap().push(input.clone());
            if input == "bad" { Err(JobError::fail("broken", "it is bad")) } else { Ok(input.to_uppercase()) }
        })
        .run_until(async move {
            let _ = stopped.await;
        });
    let calls = async move {
        let wait = Some(Duration::from_secs(60));
        let ended = client.put_and_wait(client.put("up", "up", "hello"), wait).await.unwrap();
        assert_eq!((ended.jid.to_string().as_str(), ended.result.bytes.bytes()), ("up:1", &b"HELLO"[..]));
        let ended = client.put_and_wait(client.put("up", "up", "bad"), wait).await.unwrap();
        let JobEnding::Failed { group, message } = ended.ending else { panic!("{:?}", ended.ending) };
        assert_eq!((group.as_str(), message.as_str()), ("broken", "it is bad"));
        let first = geartrain::Jid::new("up:1").unwrap();
        assert_eq!(client.wait_for(&first, wait).await.unwrap().result.bytes.bytes(), b"HELLO");
        stop.send(()).unwrap();
    };
    let (report, ()) = tokio::join!(worker, calls);
    let report = report.unwrap();
    assert_eq!((report.completed, report.failed), (1, 1));
    assert_eq!(*inputs.lock().unwrap(), ["hello", "bad"]);
}
