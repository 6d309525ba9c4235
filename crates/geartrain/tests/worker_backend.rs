//! The backend of a client, as a worker takes it.

use std::sync::Arc;

use geartrain::*;
use geartrain_redis::{RedisBackend, RedisUrl};
use geartrain_testkit::peers::Scratch;
use pollster::block_on;

#[test]
fn a_directory_stays_shared_while_only_its_backend_lives() {
    block_on(async {
        let scratch = Scratch::new("worker-backend");
        let directory = scratch.path().join("data");
        let client = connect(&format!("embedded:{}", directory.display())).await.unwrap();
        assert!(client.is_own_directory());
        let jid = client.put("mail", "welcome", "{}").await.unwrap();
        let backend: Arc<dyn Backend> = client.into();

        let socket = directory.join("geartrain.sock");
        let other = RedisBackend::connect(RedisUrl::of_socket(socket.clone())).await.unwrap();
        let other = Client::new(Arc::new(other));
        assert!(other.get(&jid).await.unwrap().is_some());
        drop(other);

        drop(backend);
        assert!(!socket.exists(), "the socket is closed with the last user of the directory");
        let again = connect(&format!("embedded:{}", directory.display())).await.unwrap();
        assert!(again.get(&jid).await.unwrap().is_some());
    });
}

/// A method that the wrapper of a shared directory leaves to its default would answer like a backend that
/// cannot do it.
#[test]
fn the_backend_of_a_directory_can_do_all_that_its_store_can() {
    block_on(async {
        let scratch = Scratch::new("shared-store");
        let url = format!("embedded:{}?sync=never", scratch.path().join("data").display());
        let backend: Arc<dyn Backend> = connect(&url).await.unwrap().into();
        assert!(backend.now().is_some());
        assert_eq!(backend.sync_mode().await.unwrap().as_deref(), Some("never"));
        assert_eq!(backend.identify().await.unwrap().name, "geartrain");
        let mail = QueueName::new("mail").unwrap();
        assert!(!backend.ready_or_wait(vec![mail.clone()], Seconds::ZERO).await.unwrap());
        let pop = Pop::new(mail, WorkerName::new("w1").unwrap());
        assert!(backend.pop_or_wait(pop, Seconds::ZERO).await.unwrap().jobs.is_empty());
        let newest = backend.subscribe().await.unwrap().position();
        drop(backend.subscribe_from(newest).await.unwrap());
        drop(backend.open_result_stream(1).await.unwrap());
        drop(backend.backup(BackupTarget::Archive).await.unwrap());
        backend.flush_events().await;
        backend.ack_events(0);
        assert_eq!(backend.publish(b"channel", b"message").await.unwrap(), 0);
    });
}
