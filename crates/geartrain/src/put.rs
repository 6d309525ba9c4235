//! A put that is being written.

use std::pin::Pin;
use std::time::Duration;

use crate::{BadInput, Client, Error, Existing, Jid, Klass, Payload, Priority, Put, QueueName, Tag};

/// A put that is being written: add what you like, then await it for the job's id.
///
/// Nothing is sent until then, and a name or number that makes no sense is an error then.
#[must_use = "nothing is put until it is awaited"]
#[derive(Debug)]
pub struct PutRequest {
    client: Client,
    put: Result<Put, BadInput>,
}

impl PutRequest {
    pub(crate) fn new(client: Client, queue: &str, klass: &str, payload: Payload) -> PutRequest {
        let put = || {
            let jid = Jid::from_uuid(uuid::Uuid::now_v7().into_bytes());
            Ok(Put::new(QueueName::new(queue)?, jid, Klass::new(klass)?, payload))
        };
        PutRequest { client, put: put() }
    }

    fn with(mut self, change: impl FnOnce(&mut Put) -> Result<(), BadInput>) -> PutRequest {
        self.put = self.put.and_then(|mut put| change(&mut put).map(|()| put));
        self
    }

    /// Names the job. If a job of that name exists, it is left alone, and that is no error: so a put may be sent again.
    pub fn jid(self, jid: &str) -> PutRequest {
        self.with(|put| {
            put.jid = Jid::new(jid)?;
            Ok(())
        })
    }

    /// Says how much the job matters: higher goes first, and 0 is usual.
    pub fn priority(self, priority: f64) -> PutRequest {
        self.with(|put| {
            put.priority = Some(Priority::new(priority)?);
            Ok(())
        })
    }

    /// Holds the job back for so long.
    pub fn delay(self, delay: Duration) -> PutRequest {
        self.with(|put| {
            put.delay = delay.into();
            Ok(())
        })
    }

    /// Says how often the job may be tried again; 5 times is usual.
    pub fn retries(self, retries: u32) -> PutRequest {
        self.with(|put| {
            put.retries = Some(retries);
            Ok(())
        })
    }

    /// Adds a word to find the job by.
    pub fn tag(self, tag: &str) -> PutRequest {
        self.with(|put| {
            put.tags.get_or_insert_default().push(Tag::new(tag)?);
            Ok(())
        })
    }

    /// Lets the job wait until another is complete.
    pub fn after(self, jid: &Jid) -> PutRequest {
        self.with(|put| {
            put.depends.push(jid.clone());
            Ok(())
        })
    }

    /// Puts the job again if it exists, wherever it stands, rather than leaving it alone.
    pub fn replace(self) -> PutRequest {
        self.with(|put| {
            put.existing = Existing::Replace;
            Ok(())
        })
    }
}

impl IntoFuture for PutRequest {
    type Output = Result<Jid, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let put = self.put?;
            let jid = put.jid.clone();
            self.client.run(put).await?;
            Ok(jid)
        })
    }
}
