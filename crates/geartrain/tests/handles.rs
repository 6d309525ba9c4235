//! Handles of queues and jobs: each method does what its command does.

use std::time::{Duration, SystemTime};

use geartrain::*;
use pollster::block_on;

#[test]
fn a_queue_handle_runs_the_operations_of_its_queue() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let mail = client.queue("mail");
        assert_eq!(mail.name().unwrap().as_str(), "mail");
        let jid = mail.put("welcome", "{}").await.unwrap();
        mail.put("welcome", "{}").delay(Duration::from_secs(60)).await.unwrap();
        let counts = mail.counts().await.unwrap();
        assert_eq!((counts.waiting, counts.scheduled, counts.paused), (1, 1, false));
        assert_eq!(mail.length().await.unwrap(), 2);
        assert_eq!(mail.jobs(Listing::Waiting, Page::default()).await.unwrap(), vec![jid.clone()]);
        assert_eq!(mail.peek(5).await.unwrap()[0].jid, jid);
        assert_eq!(mail.why().await.unwrap().counts.waiting, 1);

        mail.pause().await.unwrap();
        assert!(mail.counts().await.unwrap().paused);
        assert!(mail.pop("w1").await.unwrap().is_none());
        mail.resume().await.unwrap();
        let job = mail.pop_wait("w1", Duration::from_secs(60)).await.unwrap().unwrap();
        client.fail(&job, "smtp", "it said 451").await.unwrap();
        assert_eq!(mail.figures().await.unwrap().failed, 1);
        assert_eq!(mail.stats(SystemTime::now()).await.unwrap().failed, 1);
        assert_eq!(mail.unfail("smtp", 10).await.unwrap(), 1);
        assert_eq!(mail.counts().await.unwrap().waiting, 1);

        let limits = QueueLimits { jobs_max: Some(2), ..QueueLimits::default() };
        mail.set_limits(limits.clone()).await.unwrap();
        assert_eq!(mail.limits().await.unwrap(), limits);
        assert!(matches!(mail.put("k", "").await, Err(Error::Refused(Refusal::QueueFull { .. }))));

        assert_eq!(mail.option("heartbeat").await.unwrap(), None);
        mail.set_option("heartbeat", "90").await.unwrap();
        assert_eq!(mail.option("heartbeat").await.unwrap().as_deref(), Some("90"));
        mail.unset_option("heartbeat").await.unwrap();
        assert_eq!(mail.option("heartbeat").await.unwrap(), None);
        assert!(mail.set_option("hartbeat", "90").await.is_err());

        mail.forget().await.unwrap();
        assert!(client.queues().await.unwrap().is_empty());
    });
}

#[test]
fn an_invalid_queue_name_is_reported_by_every_operation() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let long = "q".repeat(513);
        for (name, why) in [("", "needs at least one byte"), (&*long, "has at most 512 bytes")] {
            let queue = client.queue(name);
            let bad = |error: Error| assert!(matches!(error, Error::Input(_)), "{error}");
            bad(queue.name().unwrap_err());
            bad(queue.pause().await.unwrap_err());
            bad(queue.put("k", "").await.unwrap_err());
            bad(queue.pop("w1").await.unwrap_err());
            let error = queue.counts().await.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    });
}

#[test]
fn a_job_handle_runs_the_operations_of_its_job() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let first = client.put("mail", "welcome", "{}").jid("a").await.unwrap();
        let second = client.put("mail", "welcome", "{}").jid("b").after(&first).await.unwrap();
        let third = client.put("mail", "welcome", "{}").jid("c").await.unwrap();
        let (a, b, c) = (client.job(&first), client.job(&second), client.job(&third));
        assert_eq!((a.jid(), a.get().await.unwrap().unwrap().jid), (&first, first.clone()));

        b.depend(std::slice::from_ref(&third)).await.unwrap();
        assert_eq!(b.get().await.unwrap().unwrap().dependencies(), [first.clone(), third.clone()]);
        b.undepend(&[third]).await.unwrap();
        assert_eq!(b.get().await.unwrap().unwrap().dependencies().len(), 1);
        b.undepend_all().await.unwrap();
        assert_eq!(b.status().await.unwrap().unwrap().state, StateName::Waiting);
        assert_eq!(b.why().await.unwrap().state, StateName::Waiting);

        a.set_priority(5.0).await.unwrap();
        assert_eq!(a.get().await.unwrap().unwrap().priority, Priority::from(5));
        assert!(a.set_priority(f64::NAN).await.is_err());
        assert_eq!(a.tag(["x", "y"]).await.unwrap().len(), 2);
        assert_eq!(a.untag(["x"]).await.unwrap()[0].as_str(), "y");
        assert!(a.track().await.unwrap() && a.get().await.unwrap().unwrap().tracked);
        assert!(a.untrack().await.unwrap() && !a.untrack().await.unwrap());
        a.log("by hand").await.unwrap();
        let history = a.get().await.unwrap().unwrap().history;
        assert!(
            matches!(&history.last().unwrap().what, HistoryEvent::Log { message, .. } if message == "by hand")
        );

        let job = client.pop("mail", "w1").await.unwrap().unwrap();
        assert_eq!(job.jid, first);
        a.time_out().await.unwrap();
        assert!(client.complete(&job).await.is_err());

        assert!(c.cancel_because("closed").await.unwrap());
        assert_eq!(c.tombstone().await.unwrap().unwrap().because.as_deref(), Some("closed"));
        assert!(!c.cancel().await.unwrap());
        assert!(b.cancel().await.unwrap());
    });
}

#[test]
fn a_job_is_requeued_where_it_was_or_elsewhere() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let jid = client.put("mail", "welcome", "{}").await.unwrap();
        let handle = client.job(&jid);
        let job = client.pop("mail", "w1").await.unwrap().unwrap();
        client.complete_with(&job, ()).await.unwrap();
        handle.requeue().await.unwrap();
        assert_eq!(handle.status().await.unwrap().unwrap().queue.as_str(), "mail");
        handle.requeue_to("later").await.unwrap();
        assert_eq!(handle.status().await.unwrap().unwrap().queue.as_str(), "later");
        let missing = client.job(&Jid::new("missing").unwrap());
        assert!(matches!(missing.requeue().await, Err(Error::Refused(Refusal::NoSuchJob { .. }))));
    });
}

#[test]
fn a_cascade_cancels_the_jobs_that_depend_on_a_job() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let first = client.put("mail", "welcome", "{}").await.unwrap();
        let second = client.put("mail", "welcome", "{}").after(&first).await.unwrap();
        assert!(client.job(&first).cancel().await.is_err());
        assert_eq!(client.job(&first).cancel_cascade().await.unwrap(), 2);
        assert!(client.get(&second).await.unwrap().is_none());
    });
}
