//! The gate of a job's socket: what it admits, and what it refuses by name.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use geartrain::{
    Backend, Call, Cancel, Chunk, ChunkKind, Client, Complete, Get, GetMany, Heartbeat, Holder, Log, Pop,
    Popped, Portion, Progress, Progressed, QueueName, Seconds, WorkerName,
};
use geartrain_process::{JobGate, JobSocket};
use geartrain_testkit::peers::Scratch;

/// Two running jobs, and a gate for the first.
async fn two_jobs() -> (Client, Popped, Popped, Arc<JobGate>) {
    let client = geartrain::connect("memory:").await.unwrap();
    let mut jobs = Vec::new();
    for jid in ["own", "other"] {
        client.put("q", "k", "{}").jid(jid).await.unwrap();
        jobs.push(client.pop("q", "w1").await.unwrap().unwrap());
    }
    let gate = Arc::new(JobGate::new(client.backend().clone()));
    gate.admit(&jobs[0]);
    let other = jobs.pop().unwrap();
    (client, jobs.pop().unwrap(), other, gate)
}

fn reports(job: &Popped, holder: &Holder) -> Vec<Call> {
    let (jid, holder) = (job.jid.clone(), holder.clone());
    let progress = Progressed { portion: Portion::new(1, 2).unwrap(), seconds_left: None };
    let chunk = Chunk { jid: jid.clone(), holder: holder.clone(), kind: ChunkKind::Data, bytes: "x".into() };
    vec![
        Call::from(Heartbeat { jid: jid.clone(), holder: holder.clone(), payload: None }),
        Call::from(Progress::new(jid, holder, progress)),
        Call::from(chunk),
    ]
}

#[tokio::test]
async fn reports_on_the_own_job_are_admitted() {
    let (client, own, _, gate) = two_jobs().await;
    let mut calls = reports(&own, &own.holder());
    calls.push(Call::from(Log { jid: own.jid.clone(), message: "hi".into(), data: None }));
    calls.push(Call::from(Get { jid: own.jid.clone() }));
    let answers = gate.execute(calls).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(answers.len(), 5);
    // After the attempt nothing is.
    gate.dismiss(&own);
    let answers = gate.execute(reports(&own, &own.holder())).await.unwrap();
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    assert!(client.heartbeat(&own).await.is_ok());
}

#[tokio::test]
async fn other_jobs_other_tokens_and_other_commands_are_refused_by_name() {
    let (client, own, other, gate) = two_jobs().await;
    let foreign = gate.execute(reports(&other, &other.holder())).await.unwrap();
    assert!(
        foreign.iter().all(|answer| answer
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("job other is not the job"))
    );
    let by_name = Holder::Worker(WorkerName::new("w1").unwrap());
    for holder in [other.holder(), by_name] {
        let answers = gate.execute(reports(&own, &holder)).await.unwrap();
        assert!(
            answers.iter().all(|answer| answer
                .as_ref()
                .unwrap_err()
                .to_string()
                .contains("the token is not"))
        );
    }
    let pop = Pop::new(QueueName::new("q").unwrap(), WorkerName::new("w1").unwrap());
    let refused: Vec<(Call, &str)> = vec![
        (Call::from(Complete::new(own.jid.clone(), own.holder())), "Complete"),
        (Call::from(Cancel::new(vec![own.jid.clone()])), "Cancel"),
        (Call::from(GetMany { jids: vec![own.jid.clone()] }), "GetMany"),
        (Call::from(Log { jid: other.jid.clone(), message: "x".into(), data: None }), "job other"),
        (Call::from(Get { jid: other.jid.clone() }), "job other"),
        (Call::from(pop.clone()), "Pop"),
    ];
    for (call, name) in refused {
        let answer = gate.execute(vec![call]).await.unwrap().remove(0);
        assert!(answer.as_ref().unwrap_err().to_string().starts_with(name), "{answer:?}");
    }
    assert!(gate.pop_or_wait(pop, Seconds::ZERO).await.is_err());
    assert!(gate.subscribe().await.is_err());
    assert!(gate.publish(b"channel", b"x").await.is_err());
    assert!(gate.open_result_stream(1).await.is_err());
    // The refused commands changed nothing, and one that is admitted among them is executed.
    let mixed = vec![Call::from(Cancel::new(vec![own.jid.clone()])), reports(&own, &own.holder()).remove(0)];
    let answers = gate.execute(mixed).await.unwrap();
    assert!(answers[0].is_err() && answers[1].is_ok(), "{answers:?}");
    assert!(client.get(&own.jid).await.unwrap().is_some());
}

#[tokio::test]
async fn the_socket_is_for_this_user_only_and_goes_away() {
    let (_client, _, _, gate) = two_jobs().await;
    let scratch = Scratch::new("socket");
    let socket = JobSocket::serve(scratch.path(), "0", gate).unwrap();
    let path = scratch.path().join("0.sock");
    assert_eq!(socket.url(), format!("redis+unix://{}", path.display()));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(socket);
    assert!(!path.exists());
}
