//! A queue in memory, and short ways to use it.

use std::sync::Arc;

use geartrain_core::{
    Answer, Backend, Call, Get, Jid, Job, Klass, Operation, Put, PutOptions, QueueName, Seconds, StateName,
    SystemClock,
};
use geartrain_store::StoreBackend;

/// A queue in memory.
pub(crate) fn memory() -> Arc<dyn Backend> {
    Arc::new(StoreBackend::in_memory(Arc::new(SystemClock)).expect("a thread can be started"))
}

pub(crate) async fn run<O: Operation>(backend: &Arc<dyn Backend>, operation: O) -> O::Reply {
    let mut answers: Vec<Answer> = backend.execute(vec![Call::from(operation)]).await.expect("it answers");
    let reply = answers.pop().expect("one answer").expect("it is not refused");
    O::answer(reply).expect("the reply to this operation")
}

pub(crate) fn put(queue: &str, jid: &str, klass: &str, payload: &str) -> Put {
    let names = (QueueName::new(queue), Jid::new(jid), Klass::new(klass));
    let (Ok(queue), Ok(jid), Ok(klass)) = names else { panic!("good names") };
    let options = PutOptions { result_ttl: Some(Seconds::from(60)), ..PutOptions::default() };
    Put { options: Some(Box::new(options)), ..Put::new(queue, jid, klass, payload) }
}

pub(crate) async fn job(backend: &Arc<dyn Backend>, jid: &str) -> Job {
    *run(backend, Get { jid: Jid::new(jid).expect("a good name") }).await.expect("the job exists")
}

pub(crate) async fn state(backend: &Arc<dyn Backend>, jid: &str) -> StateName {
    job(backend, jid).await.state.name()
}

/// The stored result of a job.
pub(crate) async fn result(backend: &Arc<dyn Backend>, jid: &str) -> Option<String> {
    let jid = Jid::new(jid).expect("a good name");
    let stored = run(backend, geartrain_core::GetResult { jid }).await?;
    stored.result.bytes.text().map(str::to_owned)
}
