//! Gearman servers for one slot of a worker: what they lack is done by closing the connection.

use std::sync::Arc;

use geartrain::{
    Answer, Backend, BackendError, Call, Command, Error, Pending, Pop, PopReply, Refusal, Reply,
};
use geartrain::{Seconds, Software, Subscription};
use parking_lot::RwLock;

/// A connection that is replaced when the job of its slot is retried or handed back: servers requeue the jobs
/// of a closed connection.
pub(super) struct GearmanSlot {
    url: String,
    /// None after a connection could not be replaced.
    current: RwLock<Option<Arc<dyn Backend>>>,
}

impl GearmanSlot {
    pub(super) async fn connect(url: &str) -> Result<GearmanSlot, Error> {
        let client = geartrain::connect(url).await?;
        Ok(GearmanSlot { url: url.to_owned(), current: RwLock::new(Some(client.into())) })
    }

    async fn backend(&self) -> Result<Arc<dyn Backend>, BackendError> {
        if let Some(backend) = &*self.current.read() {
            return Ok(backend.clone());
        }
        let broken = |error: Error| BackendError::Broken { backend: "gearman", source: Box::new(error) };
        let backend: Arc<dyn Backend> = geartrain::connect(&self.url).await.map_err(broken)?.into();
        *self.current.write() = Some(backend.clone());
        Ok(backend)
    }

    /// Closes the connections. The next command opens new ones.
    fn hand_back(&self) {
        *self.current.write() = None;
    }
}

impl Backend for GearmanSlot {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(batch.len());
            // One by one: a pop comes behind the report that closes the connection.
            for call in batch {
                match &call.command {
                    Command::Retry(_) => {
                        self.hand_back();
                        answers.push(Ok(Reply::Retry(0)));
                    }
                    Command::Release(_) => {
                        self.hand_back();
                        answers.push(Ok(Reply::Release(())));
                    }
                    _ => {
                        let unanswered = || {
                            let (operation, backend) = ("answer".into(), "gearman".into());
                            Err(Refusal::Unsupported { operation, backend })
                        };
                        let answer = self.backend().await?.execute(vec![call]).await?.pop();
                        answers.push(answer.unwrap_or_else(unanswered));
                    }
                }
            }
            Ok(answers)
        })
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        Box::pin(async move { self.backend().await?.pop_or_wait(pop, wait).await })
    }

    fn identify(&self) -> Pending<'_, Software> {
        Box::pin(async move { self.backend().await?.identify().await })
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        Box::pin(async move { self.backend().await?.subscribe().await })
    }
}
