//! Waiting for results and for events.

use geartrain_core::{
    Attach, AttachReply, Detach, DetachScope, Event, JobEnding, PutOptions, Refusal, ResultStream,
    ResultWaiter, StreamItem, SubscriptionEnd,
};

use super::peer::{Native, Sets};
use super::*;

fn awaited(task: &str, number: u64) -> Put {
    let options = PutOptions { attach: Some(waiter(number)), ..PutOptions::default() };
    Put { options: Some(Box::new(options)), ..put(task) }
}

fn waiter(number: u64) -> ResultWaiter {
    ResultWaiter { stream_id: 1, connection: 0, number }
}

fn end(stream: &mut dyn ResultStream) -> (u64, JobEnding, String) {
    let message = block_on(stream.next()).unwrap();
    match message.item {
        StreamItem::Ended(ending, result) => {
            (message.waiter.number, ending, result.bytes.text().unwrap().to_owned())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_waits_for_the_result_of_its_task() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    let mut stream = block_on(backend.open_result_stream(1)).unwrap();
    for (task, number) in [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("a", 5)] {
        run(&*backend, awaited(task, number)).unwrap();
    }
    let attach = |number| Attach { jid: jid("-"), waiter: waiter(number) };
    assert_eq!(run(&*backend, attach(1)), Ok(AttachReply::Attached));
    let late = run(&*backend, attach(9)).unwrap_err();
    assert_eq!(late.to_string(), "the worqr backend cannot wait for a task that was put earlier");

    let mut native = Native::new(&redis, Sets::Shared);
    let taken = native.dequeue("q").unwrap();
    native.finish("q", &taken, "x", Some(r#"{"sum":42}"#));
    assert_eq!(end(&mut *stream), (1, JobEnding::Completed, r#"{"sum":42}"#.to_owned()));
    let job = take(&*backend, 1).remove(0);
    let group = geartrain_core::Group::new("g").unwrap();
    run(&*backend, geartrain_core::Fail::new(job.jid.clone(), job.holder(), group, "no paper")).unwrap();
    let (number, ending, _) = end(&mut *stream);
    assert!(matches!(ending, JobEnding::Failed { message, .. } if message == "no paper" && number == 2));
    native.cancel("q", "c");
    assert_eq!(end(&mut *stream), (3, JobEnding::Canceled, String::new()));
    assert_eq!(run(&*backend, Detach { scope: DetachScope::One(waiter(4)) }), Ok(1));
    let jobs = take(&*backend, 2);
    assert_eq!(tasks(&jobs), ["d", "a"]);
    run(&*backend, complete_with(&jobs[0], "nobody waits")).unwrap();
    run(&*backend, complete_with(&jobs[1], "plain")).unwrap();
    assert_eq!(end(&mut *stream), (5, JobEnding::Completed, "plain".to_owned()));
    let twice = block_on(backend.open_result_stream(1)).err().unwrap();
    assert_eq!(twice.to_string(), "result stream is open already");
}

#[test]
fn a_lost_connection_ends_what_listens() {
    let mut redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    let mut stream = block_on(backend.open_result_stream(1)).unwrap();
    run(&*backend, awaited("a", 1)).unwrap();
    let mut events = block_on(backend.subscribe()).unwrap();
    redis.kill();
    assert!(block_on(stream.next()).is_err());
    assert_eq!(block_on(events.next()), Err(SubscriptionEnd::Closed));
    redis.start_again();
    // And goes on afterwards.
    let mut events = block_on(backend.subscribe()).unwrap();
    run(&*backend, put("b")).unwrap();
    assert!(matches!(&*block_on(events.next()).unwrap().event, Event::Put { .. }));
    assert_eq!(block_on(backend.pop_or_wait(pop(1), limit())).unwrap().jobs.len(), 1);
}

#[test]
fn what_is_published_are_events() {
    let redis = RedisServer::start(&[]);
    let backend = worqr(&redis, LONG);
    let mut events = block_on(backend.subscribe()).unwrap();
    let mut next = || {
        let next = block_on(events.next()).unwrap();
        (next.position, (*next.event).clone())
    };
    run(&*backend, put_in("a_b", b"1")).unwrap();
    assert_eq!(next(), (1, Event::Put { jid: jid("-"), queue: queue("a_b") }));
    let job = run(&*backend, Pop { queues: vec![queue("a_b")], ..pop(1) }).unwrap().jobs.remove(0);
    run(&*backend, complete(&job)).unwrap();
    assert_eq!(next(), (2, Event::Completed { jid: jid("-"), queue: queue("a_b") }));
    let publish = |channel: &str, text: &str| {
        let _: i64 = ask(redis.port(), &["PUBLISH", channel, text]).unwrap();
    };
    publish("worqr_q_done", "no JSON");
    publish("worqr_q_gone", "1");
    publish("worqr_q_done", r#"{"workerId":"w","result":{"error":"no paper"}}"#);
    let (_, failed) = next();
    assert!(matches!(failed, Event::Failed { message, worker: Some(_), .. } if message == "no paper"));
    for (channel, text, by) in [
        ("worqr_q_done", r#"{"workerId":"w","task":"t","result":{"cancelled":true}}"#, Some("w")),
        ("worqr_q_cancel", "t", None),
        ("worqr_q_delete", "", None),
    ] {
        publish(channel, text);
        let was = Some((queue("q"), by.map(worker)));
        assert_eq!(next().1, Event::Canceled { jid: jid("-"), was });
    }
    let after = block_on(backend.subscribe_from(3)).err().unwrap();
    assert!(matches!(
        after,
        geartrain_core::BackendError::Refused(Refusal::Unsupported { operation, .. })
            if operation == "keep events: they are only published"
    ));
}
