//! Leases: renewed while they live, released when they are dropped, and lost with their job.

use std::sync::Arc;
use std::time::Duration;

use geartrain::*;
use geartrain_redis::{RedisBackend, RedisUrl};
use geartrain_testkit::peers::{RedisServer, Scratch};

const LONG: Duration = Duration::from_secs(60);

/// Runs a case in memory, in a directory, and on a Redis.
fn on_each_backend(case: impl AsyncFn(&Client)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let scratch = Scratch::new("lease");
    let redis = RedisServer::start(&[]);
    runtime.block_on(async {
        case(&connect("memory:").await.unwrap()).await;
        let url = format!("embedded:{}", scratch.path().join("data").display());
        case(&connect(&url).await.unwrap()).await;
        let backend = RedisBackend::connect(redis.url().parse::<RedisUrl>().unwrap()).await.unwrap();
        case(&Client::new(Arc::new(backend))).await;
    });
}

async fn lease(client: &Client) -> Lease {
    client.lease("mail", "w1", LONG).await.unwrap().unwrap()
}

#[test]
fn a_verdict_consumes_the_lease() {
    on_each_backend(async |client| {
        for jid in ["a", "b", "c", "d"] {
            client.put("mail", "welcome", "[1]").jid(jid).keep_result(LONG).await.unwrap();
        }
        let first = lease(client).await;
        assert_eq!(first.json::<(u8,)>().unwrap(), (1,));
        assert!(first.json::<String>().unwrap_err().to_string().contains("not what klass welcome needs"));
        first.progress(1, 2).await.unwrap();
        first.log("half").await.unwrap();
        assert_eq!(first.complete("sent").await.unwrap(), CompleteReply::Complete);
        lease(client).await.fail("smtp", "it said 550").await.unwrap();
        assert_eq!(lease(client).await.retry("smtp", "it said 451").await.unwrap(), 4);
        let next =
            |complete: &mut Complete| complete.next = Some(Next::new(QueueName::new("later").unwrap()));
        assert_eq!(lease(client).await.complete_as(next).await.unwrap(), CompleteReply::Waiting);

        let state =
            async |jid: &str| client.get(&Jid::new(jid).unwrap()).await.unwrap().unwrap().state.name();
        assert_eq!(state("a").await, StateName::Complete);
        assert_eq!(state("b").await, StateName::Failed);
        assert_eq!(state("c").await, StateName::Scheduled);
        assert_eq!(state("d").await, StateName::Waiting);
        let ended = client.wait_for(&Jid::new("a").unwrap(), None).await.unwrap();
        assert_eq!(ended.json::<String>().unwrap(), "sent");
        assert!(client.lease("mail", "w1", Duration::ZERO).await.unwrap().is_none());
    });
}

#[test]
fn a_dropped_lease_returns_its_job_with_all_retries() {
    on_each_backend(async |client| {
        let jid = client.put("mail", "welcome", "{}").await.unwrap();
        for _ in 0..3 {
            let held = lease(client).await;
            assert_eq!((&held.job().jid, held.job().remaining), (&jid, 5));
            drop(held);
        }
        lease(client).await.release().await.unwrap();
        let popped = lease(client).await.into_popped();
        assert_eq!(client.job(&jid).status().await.unwrap().unwrap().state, StateName::Running);
        client.complete(&popped).await.unwrap();
    });
}

#[test]
fn a_lease_outlives_its_first_lock() {
    on_each_backend(async |client| {
        client.queue("mail").set_option("heartbeat", "0.3").await.unwrap();
        client.put("mail", "welcome", "{}").await.unwrap();
        let held = lease(client).await;
        let first = held.job().lock.expires;
        // Until the lock was renewed a few times.
        loop {
            let JobState::Running { lock } = client.get(&held.job().jid).await.unwrap().unwrap().state else {
                panic!("it is running");
            };
            if lock.expires - first > Seconds::new(0.5).unwrap() {
                break;
            }
            tokio::task::yield_now().await;
        }
        assert!(!held.is_lost() && held.interruption().is_none());
        held.complete(()).await.unwrap();
    });
}

#[test]
fn a_lease_is_lost_with_its_job() {
    on_each_backend(async |client| {
        for (jid, why) in [("a", Interruption::Cancelled), ("b", Interruption::LockLost)] {
            let jid = client.put("mail", "welcome", "{}").jid(jid).await.unwrap();
            let held = lease(client).await;
            match why {
                Interruption::Cancelled => drop(client.cancel(&jid).await.unwrap()),
                _ => client.job(&jid).time_out().await.unwrap(),
            }
            held.lost().cancelled().await;
            assert_eq!(held.interruption(), Some(why));
            let refused = held.complete(()).await;
            assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
        }
        // The release of a lost lease would be refused, and takes nothing away from the next worker.
        lease(client).await.complete(()).await.unwrap();
    });
}

#[test]
fn a_verdict_that_is_not_accepted_releases_the_job() {
    on_each_backend(async |client| {
        let jid = client.put("mail", "welcome", "{}").await.unwrap();
        assert!(lease(client).await.fail("", "a group needs a name").await.is_err());
        let again = lease(client).await;
        assert_eq!(again.job().jid, jid);
        again.complete(()).await.unwrap();
    });
}

/// The runtime drops the task that holds the lease, and can run no other.
#[test]
fn a_lease_that_ends_with_its_runtime_is_released() {
    let scratch = Scratch::new("lease-shutdown");
    let redis = RedisServer::start(&[]);
    let outside = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clients = outside.block_on(async {
        let url = format!("embedded:{}", scratch.path().join("data").display());
        let redis = RedisBackend::connect(redis.url().parse::<RedisUrl>().unwrap()).await.unwrap();
        [connect("memory:").await.unwrap(), connect(&url).await.unwrap(), Client::new(Arc::new(redis))]
    });
    for client in clients {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            client.put("mail", "welcome", "{}").await.unwrap();
            let held = lease(&client).await;
            tokio::spawn(async move {
                held.lost().cancelled().await;
                unreachable!("it is not lost");
            });
        });
        drop(runtime);
        let again = outside.block_on(client.pop_wait("mail", "w2", LONG)).unwrap().unwrap();
        assert_eq!(again.remaining, 5);
    }
}
