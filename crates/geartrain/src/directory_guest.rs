//! A directory that another process owns: used through the owner's socket, and opened here when the owner ends.
//!
//! A thread holds a connection to the owner's socket and reads from it. The end of that connection is the end of
//! the owner; then the thread opens the directory, or connects to the process that was faster. Calls in flight
//! meanwhile are resent by the Redis driver, to the same socket file, which this process then serves itself.
//! (Without the feature `socket` it serves none: such a call fails when the driver gives up, and the next one
//! succeeds.)

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use flume::{Receiver, RecvTimeoutError, Sender};
use geartrain_core::{
    Answer, Backend, BackendError, Backup, BackupTarget, Call, Measures, Pending, Pop, PopReply, QueueName,
    ResultStream, Seconds, Software, Subscription, SystemClock, Timestamp,
};
use geartrain_redis::{ConnectionError, RedisBackend};
use geartrain_store::{OpenError, StoreBackend, StoreOptions};

use crate::embedded::socket_in;
use crate::shared_store::SharedStore;

/// The name in errors: the kind of backend that the user chose, not that of the connection to its owner.
const NAME: &str = "embedded";

/// The pauses between two attempts to find an owner or to become it: the shortest, and the longest. The owner
/// closes its connections a moment before it releases the directory.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The backend of a client whose directory is owned by another process, at first.
pub(crate) struct DirectoryGuest {
    /// Declared before the store, whose socket its last calls may use.
    owner: RedisBackend,
    shared: Arc<Shared>,
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    directory: PathBuf,
    options: StoreOptions,
    /// The store, from when this process owns the directory.
    store: OnceLock<SharedStore>,
    watch: Mutex<Watch>,
}

/// What the thread waits for.
#[derive(Default)]
struct Watch {
    /// The connection whose end is the end of the owner.
    connection: Option<UnixStream>,
    is_stopped: bool,
    /// Why the directory without an owner cannot be opened.
    error: Option<Arc<OpenError>>,
}

/// The owner does not answer.
#[derive(Debug, thiserror::Error)]
enum OwnerError {
    #[error("the process that has {directory} open does not answer: {source}")]
    Unreachable { directory: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the process that had {directory} open has ended, and the directory cannot be opened: {source}")]
    Open { directory: String, source: Arc<OpenError> },
}

impl DirectoryGuest {
    pub(crate) fn start(
        owner: RedisBackend,
        directory: PathBuf,
        options: StoreOptions,
    ) -> std::io::Result<DirectoryGuest> {
        // The program may change its working directory meanwhile.
        let directory = std::path::absolute(directory)?;
        let shared = Arc::new(Shared { directory, options, store: OnceLock::new(), watch: Mutex::default() });
        let (stop, stopped) = flume::bounded(0);
        let watched = shared.clone();
        let thread = std::thread::Builder::new().name("geartrain-owner".into());
        let thread = thread.spawn(move || watched.run(&stopped))?;
        Ok(DirectoryGuest { owner, shared, stop: Some(stop), thread: Some(thread) })
    }

    fn backend(&self) -> &dyn Backend {
        match self.shared.store.get() {
            Some(store) => store,
            None => &self.owner,
        }
    }

    /// An answer, with errors of the connection to the owner in words about the directory.
    fn told<'a, T: Send + 'a>(&'a self, pending: Pending<'a, T>) -> Pending<'a, T> {
        if self.shared.store.get().is_some() {
            return pending;
        }
        Box::pin(async move { pending.await.map_err(|error| self.shared.explain(error)) })
    }
}

impl Drop for DirectoryGuest {
    fn drop(&mut self) {
        self.stop.take();
        {
            let mut watch = self.shared.watch();
            watch.is_stopped = true;
            if let Some(connection) = watch.connection.take() {
                // Ends the thread's read. Fails if the owner has closed the connection, which does so too.
                let _ = connection.shutdown(std::net::Shutdown::Both);
            }
        }
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed by the panic hook.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn watch(&self) -> MutexGuard<'_, Watch> {
        // No code between lock and unlock panics.
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end of one owner after the other, until this process is the owner or the client is
    /// dropped.
    fn run(&self, stopped: &Receiver<()>) {
        let mut pause = PAUSE.0;
        loop {
            if let Ok(connection) = UnixStream::connect(socket_in(&self.directory)) {
                let since = std::time::Instant::now();
                if !self.read_to_end(connection) {
                    return;
                }
                // A connection that ends at once may have been refused, for example one too many.
                if since.elapsed() > PAUSE.1 {
                    pause = PAUSE.0;
                }
            } else {
                match self.open() {
                    Ok(store) => {
                        let _ = self.store.set(SharedStore::new(Arc::new(store), &self.directory, false));
                        #[cfg(feature = "socket")]
                        tracing::info!(
                            directory = %self.directory.display(),
                            "this process now owns the data directory: the process that did has ended"
                        );
                        return;
                    }
                    // The owner is about to end, or has just begun.
                    Err(OpenError::InUse) => self.watch().error = None,
                    Err(error) => self.watch().error = Some(Arc::new(error)),
                }
            }
            if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    fn open(&self) -> Result<StoreBackend, OpenError> {
        if !self.directory.is_dir() {
            // Removed: opening would create it again, empty.
            return Err(OpenError::Io(std::io::ErrorKind::NotFound.into()));
        }
        StoreBackend::open(&self.directory, self.options.clone(), Arc::new(SystemClock))
    }

    /// Returns when the owner closes the connection. False if the client was dropped.
    fn read_to_end(&self, mut connection: UnixStream) -> bool {
        let Ok(handle) = connection.try_clone() else { return true };
        {
            let mut watch = self.watch();
            if watch.is_stopped {
                return false;
            }
            watch.error = None;
            watch.connection = Some(handle);
        }
        let mut buffer = [0; 64];
        loop {
            match connection.read(&mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Ok(1..) => {}
                Ok(0) | Err(_) => break,
            }
        }
        let mut watch = self.watch();
        watch.connection = None;
        !watch.is_stopped
    }

    fn explain(&self, error: BackendError) -> BackendError {
        let BackendError::Broken { source, .. } = error else { return error };
        let is_connection = source.downcast_ref().is_some_and(ConnectionError::is_transient);
        let directory = self.directory.display().to_string();
        let source = match self.watch().error.clone() {
            Some(source) if is_connection => OwnerError::Open { directory, source }.into(),
            None if is_connection => OwnerError::Unreachable { directory, source }.into(),
            // The owner's own words.
            _ => source,
        };
        BackendError::Broken { backend: NAME, source }
    }
}

/// A new method of [`Backend`] with a default must be added here, or the default hides the store's.
impl Backend for DirectoryGuest {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        self.told(self.backend().execute(batch))
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        self.told(self.backend().pop_or_wait(pop, wait))
    }

    fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        self.told(self.backend().ready_or_wait(queues, wait))
    }

    fn now(&self) -> Option<Timestamp> {
        self.backend().now()
    }

    fn identify(&self) -> Pending<'_, Software> {
        self.told(self.backend().identify())
    }

    fn sync_mode(&self) -> Pending<'_, Option<String>> {
        self.told(self.backend().sync_mode())
    }

    fn measure(&self) -> Measures {
        self.backend().measure()
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        self.told(self.backend().subscribe())
    }

    fn subscribe_from(&self, after: u64) -> Pending<'_, Box<dyn Subscription>> {
        self.told(self.backend().subscribe_from(after))
    }

    fn flush_events(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.backend().flush_events()
    }

    fn publish(&self, channel: &[u8], message: &[u8]) -> Pending<'_, u64> {
        self.told(self.backend().publish(channel, message))
    }

    fn ack_events(&self, position: u64) {
        self.backend().ack_events(position);
    }

    fn open_result_stream(&self, stream_id: u64) -> Pending<'_, Box<dyn ResultStream>> {
        self.told(self.backend().open_result_stream(stream_id))
    }

    fn backup(&self, to: BackupTarget) -> Pending<'_, Box<dyn Backup>> {
        self.told(self.backend().backup(to))
    }
}

#[cfg(all(test, feature = "socket"))]
mod tests {
    use super::*;
    use crate::{Client, connect};

    /// A directory that is removed when the test ends.
    struct Directory(std::path::PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let name = format!("geartrain-guest-{name}-{}", std::process::id());
            Directory(std::env::temp_dir().join(name))
        }

        async fn connect(&self) -> Client {
            connect(&format!("embedded:{}", self.0.display())).await.expect("the directory can be opened")
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[tokio::test]
    async fn a_client_opens_the_directory_itself_when_its_owner_ends() {
        let directory = Directory::new("opens");
        let owner = directory.connect().await;
        let (guest, other) = (directory.connect().await, directory.connect().await);
        assert!(owner.is_own_directory() && !guest.is_own_directory() && !other.is_own_directory());
        owner.put("mail", "k", "1").jid("j1").await.unwrap();
        drop(owner);
        // One of the two opens the directory, and the other one connects to it.
        guest.put("mail", "k", "2").jid("j2").await.unwrap();
        for client in [&other, &guest] {
            let jobs = client.queue("mail").length().await.unwrap();
            assert_eq!(jobs, 2);
        }
        drop(guest);
        other.put("mail", "k", "3").jid("j3").await.unwrap();
        let late = directory.connect().await;
        assert!(!late.is_own_directory(), "the last client owns the directory and serves its socket");
        assert_eq!(late.queue("mail").length().await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_parked_pop_and_a_wait_for_a_result_survive_the_end_of_the_owner() {
        let directory = Directory::new("parked");
        let owner = directory.connect().await;
        let (worker, client) = (directory.connect().await, directory.connect().await);
        let put = client.put("slow", "k", "1").jid("j1");
        let awaited = client.put_and_follow(put).await.unwrap();
        let popped = tokio::spawn(async move {
            let wait = Duration::from_secs(60);
            let first = worker.pop_wait("slow", "w1", wait).await.unwrap().unwrap();
            let second = worker.pop_wait("fast", "w1", wait).await.unwrap().unwrap();
            worker.complete_with(&first, "done").await.unwrap();
            second.jid
        });
        drop(owner);
        client.put("fast", "k", "2").jid("j2").await.unwrap();
        assert_eq!(popped.await.unwrap().to_string(), "j2");
        let ended = awaited.end(Some(Duration::from_secs(60))).await.unwrap();
        assert_eq!(ended.json::<String>().unwrap(), "done");
    }

    #[test]
    fn an_error_tells_a_silent_owner_from_a_directory_that_cannot_be_opened() {
        let directory = Directory::new("gone");
        let (options, store) = (StoreOptions::default(), OnceLock::new());
        let shared = Shared { directory: directory.0.clone(), options, store, watch: Mutex::default() };
        let text = |source: ConnectionError| {
            let broken = BackendError::Broken { backend: "redis", source: source.into() };
            let error = shared.explain(broken);
            format!("{error}: {}", std::error::Error::source(&error).unwrap())
        };
        let place = directory.0.display();
        let silent = format!(
            "the embedded backend cannot answer: the process that has {place} open does not answer: no answer within 1s"
        );
        assert_eq!(text(ConnectionError::Timeout(Duration::from_secs(1))), silent);
        shared.watch().error = Some(Arc::new(shared.open().unwrap_err()));
        assert!(!directory.0.exists(), "a directory that was removed is not created again");
        let gone =
            format!("the process that had {place} open has ended, and the directory cannot be opened: ");
        assert!(text(ConnectionError::Timeout(Duration::from_secs(1))).contains(&gone));
        // The owner has answered, and its words are passed on.
        assert_eq!(
            text(ConnectionError::InvalidReply("expected bytes")),
            "the embedded backend cannot answer: unexpected reply: expected bytes"
        );
    }
}
