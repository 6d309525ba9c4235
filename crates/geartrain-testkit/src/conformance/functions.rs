//! What Gearman needs: long names, metadata beside the payload, and unchecked progress.

use super::prelude::*;

/// A job with something beside its payload.
fn with_aside(name: &str, bytes: &[u8]) -> Put {
    on_terms(put("mail", name), PutOptions { metadata: Some(bytes.into()), ..PutOptions::default() })
}

/// The name of a queue or of a klass has 512 bytes, unless it is that of a function: then it has 4,096.
pub async fn only_functions_have_long_names(_: System) -> Checked {
    let too_long = |bytes, max| BadNameWhy::TooLong { bytes, max };
    for (text, why) in [
        (String::new(), BadNameWhy::Empty),
        ("a\0b".to_owned(), BadNameWhy::Nul),
        ("x".repeat(4097), too_long(4097, 4096)),
    ] {
        assert_eq!(QueueName::of_function(&text), Err(BadName { what: "queue", why }));
        assert_eq!(Klass::of_function(&text), Err(BadName { what: "klass", why }));
    }
    let long = "x".repeat(513);
    assert_eq!(QueueName::new(&long), Err(BadName { what: "queue", why: too_long(513, 512) }));
    assert_eq!(Klass::new(&long), Err(BadName { what: "klass", why: too_long(513, 512) }));
    Ok(())
}

/// A queue with the longest name is like any other, and so is all that is named after it.
pub async fn the_longest_functions_work(system: System) -> Checked {
    let long = "é".repeat(2048);
    let job = |name: &str| Put { klass: klass(&long), ..put(&long, name) };
    let in_group = async |kind: &str| system.ask(failed(&format!("{kind}-{long}"))).await;
    let mut listener = system.listen().await?;
    system.at(0, job("a")).await?;
    listener.heard(&system, [heard::put("a", &long)]).await?;
    let popped = system.take(0, &long, "w1").await?;
    assert_eq!((popped.queue, popped.klass), (queue(&long), klass(&long)));
    assert_eq!(system.worker_jobs(1, "w1").await?.0, ["a"]);
    system.at(1, advance("a", "w1", &long)).await?;
    assert_eq!(system.registered().await?, [long.as_str()]);
    assert_eq!(system.counts(1, &long).await?.waiting, 1);
    assert_eq!(system.at(1, PriorityCounts { queue: queue(&long) }).await?.at, 1);
    system.at(1, cancel(["a"])).await?;

    system.run(2, Put { retries: Some(0), ..job("spent") }, "w1").await?;
    assert_eq!(system.at(2, retry("spent", "w1")).await?, -1);
    assert_eq!(texts(in_group("failed-retries").await?.jids), ["spent"]);
    let group = format!("failed-retries-{long}");
    assert_eq!(system.at(2, unfail(&long, &group, 1)).await?, 1);
    system.at(2, cancel(["spent"])).await?;
    let crashed = PutOptions { crashes_max: Some(1), ..PutOptions::default() };
    system.run(3, on_terms(job("crashed"), crashed), "w1").await?;
    system.at(3, gone("w1")).await?;
    assert_eq!(texts(in_group("crashed").await?.jids), ["crashed"]);
    let slow = PutOptions { attempt_max: Some(seconds(1)), ..PutOptions::default() };
    system.run(4, Put { retries: Some(0), ..on_terms(job("slow"), slow) }, "w1").await?;
    let late = PutOptions { expires: Some(moment(5)), ..PutOptions::default() };
    system.at(4, Put { delay: seconds(50), ..on_terms(job("late"), late) }).await?;
    system.tick(6).await?;
    assert_eq!(texts(in_group("timed-out").await?.jids), ["slow"]);
    assert_eq!(texts(in_group("expired").await?.jids), ["late"]);

    system.at(7, set(format!("{long}-heartbeat"), "5")).await?;
    system.at(7, set(format!("{long}-max-concurrency"), "1")).await?;
    system.at(7, limit(&long, rate(1, 1, 5))).await?;
    assert_eq!(system.ask(GetLimits { queue: queue(&long) }).await?, rate(1, 1, 5));
    let popped = system.run(7, unique(&long, "b", "key"), "w1").await?;
    assert_eq!(popped.lock.expires, moment(12));
    let joined = system.at(7, unique(&long, "c", "key")).await?;
    assert_eq!(joined, PutReply::Coalesced { jid: jid("b") });
    let by_key = Status { of: StatusOf::Unique(queue(&long), key("key")) };
    assert_eq!(system.ask(by_key).await?.map(|status| status.jid), Some(jid("b")));
    system.at(7, job("d")).await?;
    let held = vec![(jid("b"), worker("w1"))];
    assert!(system.why(7, "d").await?.contains(&Reason::Concurrency { max: 1, held, running: 1 }));
    assert_eq!(system.stats(&long, 7).await?.failures, 4);

    system.at(8, can("w2", &long, Some(&long))).await?;
    assert_eq!(system.capable_workers(&long, Some(&long)).await?, 1);
    let announced = system.ask(Announced { worker: Some(worker("w2")) }).await?;
    assert_eq!(announced[0].capabilities, [ability(&long, Some(&long))]);
    system.at(8, recur(&long, "r", 60)).await?;
    assert_eq!(system.recurring("r").await?.queue, queue(&long));
    system.at(8, pause(&long)).await?;
    assert!(system.counts(8, &long).await?.paused);
    system.at(8, ForgetQueues { queues: vec![queue(&long)] }).await?;
    assert_eq!(system.registered().await?, NONE);
    Ok(())
}

/// A parked pop on a queue with the longest name is served.
pub async fn a_waiting_worker_gets_a_job_of_the_longest_function(system: System) -> Checked {
    let long = "x".repeat(4096);
    let waiter = system.waits(pop(&long, "w1"), 600).await?;
    let word = system.waits_for_word([long.as_str()], 600).await?;
    let batch = ["a", "b"].map(|name| Call::from(put(&long, name)));
    system.backend.execute(batch.into()).await?;
    assert_eq!(waiter.served(&system).await?, ["a"]);
    assert!(word.answered(&system).await?);
    Ok(())
}

/// What is carried beside the payload comes to the worker as it was given, is shown, and stays with the job
/// wherever it goes.
pub async fn what_is_carried_aside_stays_with_the_job(system: System) -> Checked {
    let longest = vec![0xff; 4096];
    for (name, bytes) in
        [("text", &b"sum"[..]), ("empty", b""), ("json", b"{}"), ("bytes", b"\0\xff\xfe"), ("long", &longest)]
    {
        let popped = system.run(0, with_aside(name, bytes), name).await?;
        assert_eq!(popped.payload, "{}".into());
        let aside = popped.details.and_then(|details| details.metadata);
        assert_eq!(aside, Some(bytes.into()), "{name}");
        assert_eq!(system.details(name).await?.metadata, aside, "{name}");
    }
    let aside =
        async || -> Result<Option<Payload>, Unexpected> { Ok(system.details("text").await?.metadata) };
    let sum = Some(Payload::from("sum"));
    system.at(1, retry("text", "text")).await?;
    assert_eq!(aside().await?, sum);
    system.take(1, "mail", "w1").await?;
    system.at(1, advance("text", "w1", "post")).await?;
    assert_eq!(aside().await?, sum);
    system.take(2, "post", "w1").await?;
    system.at(2, fail("text", "w1", "g")).await?;
    system.at(3, unfail("mail", "g", 1)).await?;
    assert_eq!(aside().await?, sum);
    let popped = system.take(4, "mail", "w1").await?;
    assert_eq!(popped.details.and_then(|details| details.metadata), sum);
    Ok(())
}

/// A job that is put again carries what the new options say, and without any what it carried.
pub async fn a_job_put_again_carries_what_the_new_terms_say(system: System) -> Checked {
    let again = |job: Put| Put { existing: Existing::Replace, ..job };
    system.at(0, with_aside("a", b"old")).await?;
    system.at(1, put_again("mail", "a")).await?;
    assert_eq!(system.details("a").await?.metadata, Some("old".into()));
    system.at(2, again(with_aside("a", b"new"))).await?;
    assert_eq!(system.details("a").await?.metadata, Some("new".into()));
    system.at(3, again(unique("mail", "a", "key"))).await?;
    assert_eq!(system.details("a").await?.metadata, None);
    Ok(())
}

/// A put that joins another job leaves what that one carries as it is.
pub async fn what_a_put_that_joins_carries_is_dropped(system: System) -> Checked {
    let with = |name: &str, aside: Option<Payload>| {
        on_terms(
            put("mail", name),
            PutOptions { unique: Some(key("report")), metadata: aside, ..PutOptions::default() },
        )
    };
    system.at(0, with("a", Some("first".into()))).await?;
    for aside in [Some("second".into()), None] {
        assert_eq!(system.at(1, with("b", aside)).await?, PutReply::Coalesced { jid: jid("a") });
    }
    let details = system.details("a").await?;
    assert_eq!((details.submissions, details.metadata), (3, Some("first".into())));
    Ok(())
}

/// What is carried aside has 4,096 bytes at the most.
pub async fn too_much_aside_is_refused(system: System) -> Checked {
    system.at(0, with_aside("a", b"old")).await?;
    let before = system.snapshot(1.0).await?;
    let large = vec![b'x'; 4_097];
    too_large(system.at(1, with_aside("b", &large)).await, "aside");
    too_large(system.at(1, Put { existing: Existing::Replace, ..with_aside("a", &large) }).await, "aside");
    assert_eq!(system.snapshot(1.0).await?, before);
    Ok(())
}

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const OTHER_TRACE: &str = "00-ffffffffffffffffffffffffffffffff-00f067aa0ba902b7-00";

fn traced(name: &str, trace: &str) -> Put {
    let traceparent = Some(trace.parse().expect("a case's contexts are good ones"));
    on_terms(put("mail", name), PutOptions { traceparent, ..PutOptions::default() })
}

/// The trace context of a job comes to each of its workers, is shown, and stays with the job wherever it
/// goes.
pub async fn a_trace_context_stays_with_the_job(system: System) -> Checked {
    let told = |popped: Popped| popped.details.and_then(|details| Some(details.traceparent?.to_string()));
    let trace = Some(TRACE.to_owned());
    assert_eq!(told(system.run(0, traced("a", TRACE), "w1").await?), trace);
    assert_eq!(system.details("a").await?.traceparent.map(|context| context.to_string()), trace);
    let [again] = &system.at(1, Relock::new(worker("w1"))).await?[..] else { panic!("it has one job") };
    assert_eq!(told(again.clone()), trace);
    system.at(1, retry("a", "w1")).await?;
    assert_eq!(told(system.take(1, "mail", "w1").await?), trace);
    system.at(2, hand_back("a", "w1")).await?;
    assert_eq!(told(system.take(2, "mail", "w1").await?), trace);
    system.at(3, advance("a", "w1", "post")).await?;
    assert_eq!(told(system.take(3, "post", "w1").await?), trace);
    system.at(4, fail("a", "w1", "g")).await?;
    system.at(4, unfail("mail", "g", 1)).await?;
    assert_eq!(told(system.take(5, "mail", "w1").await?), trace);
    system.at(6, complete("a", "w1")).await?;
    // As it is, put again.
    system.at(7, put_again("mail", "a")).await?;
    assert_eq!(told(system.take(8, "mail", "w1").await?), trace);
    Ok(())
}

/// A job that is put again has the trace of the new options; of a put that joins another the trace is
/// dropped.
pub async fn a_trace_context_is_that_of_the_last_put(system: System) -> Checked {
    let trace = async |name: &str| -> Result<Option<String>, Unexpected> {
        Ok(system.details(name).await?.traceparent.map(|context| context.to_string()))
    };
    let again = |job: Put| Put { existing: Existing::Replace, ..job };
    let with_metadata = |trace: &str| {
        let mut job = traced("a", trace);
        job.options.as_mut().expect("it has options").metadata = Some("sum".into());
        job
    };
    system.at(0, with_metadata(TRACE)).await?;
    let details = system.details("a").await?;
    assert_eq!((details.metadata, trace("a").await?), (Some("sum".into()), Some(TRACE.into())));
    system.at(1, again(traced("a", OTHER_TRACE))).await?;
    let details = system.details("a").await?;
    assert_eq!((details.metadata, trace("a").await?), (None, Some(OTHER_TRACE.into())));
    system.at(2, again(unique("mail", "a", "report"))).await?;
    assert_eq!(trace("a").await?, None);
    let mut joins = traced("b", TRACE);
    joins.options.as_mut().expect("it has options").unique = Some(key("report"));
    assert_eq!(system.at(3, joins).await?, PutReply::Coalesced { jid: jid("a") });
    assert_eq!(trace("a").await?, None);
    Ok(())
}

/// The text of a progress report reaches result waiters unchanged, and is not stored.
pub async fn a_progress_text_is_delivered_and_not_stored(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    let popped = system.run(0, awaited("mail", "a", 1), "w1").await?;
    let mut listener = system.listen().await?;
    let said = [Some(Payload::from("half")), Some("".into()), Some((&[0xff, 0][..]).into()), None];
    for said in said.clone() {
        system.at(1, Progress { text: said, ..progress("a", holding(&popped), 1, 2) }).await?;
        assert_eq!(system.details("a").await?.progress, Some(portion(1, 2)));
    }
    let told = |said| StreamItem::Progress { progress: portion(1, 2), text: said };
    let delivery = |said| StreamMessage { waiter: waiter(1), jid: jid("a"), item: told(said) };
    let event = || Event::Progress { jid: jid("a"), progress: portion(1, 2) };
    listener.heard(&system, [event(), event(), event(), event()]).await?;
    follower.told(&system, said.map(delivery)).await?;
    Ok(())
}

/// A worker says no more about its progress than fits into a chunk.
pub async fn too_much_said_is_refused(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    let before = system.snapshot(1.0).await?;
    let said = Some(Payload::from(vec![b' '; (64 << 20) + 1]));
    too_large(system.at(1, Progress { text: said, ..progress("a", held_by("w1"), 1, 2) }).await, "progress");
    assert_eq!(system.snapshot(1.0).await?, before);
    Ok(())
}

/// Progress beyond 100 percent is shown as the worker reported it.
pub async fn progress_is_shown_as_it_was_said(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    let popped = system.run(0, awaited("mail", "a", 1), "w1").await?;
    let mut listener = system.listen().await?;
    let as_said = [(0, 0), (5, 4), (7, 0), (u32::MAX, 1), (1, u32::MAX)]
        .map(|(part, whole)| Progressed { portion: Portion::unchecked(part, whole), seconds_left: None });
    assert_eq!(as_said.map(|said| said.portion.percent()), [0, 100, 0, 100, 0]);
    for further in as_said {
        system.at(1, Progress::new(jid("a"), holding(&popped), further)).await?;
        assert_eq!(system.details("a").await?.progress, Some(further));
        let status = system.ask(status("a")).await?.ok_or("an unfinished job has a status")?;
        assert_eq!(status.progress, Some(further));
    }
    let event = |progress| Event::Progress { jid: jid("a"), progress };
    listener.heard(&system, as_said.map(event)).await?;
    let told = |progress| StreamItem::Progress { progress, text: None };
    let delivery = |progress| StreamMessage { waiter: waiter(1), jid: jid("a"), item: told(progress) };
    follower.told(&system, as_said.map(delivery)).await?;
    Ok(())
}
