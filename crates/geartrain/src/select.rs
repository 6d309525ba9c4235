//! Jobs by filter, page by page.

use std::collections::VecDeque;

use crate::{Act, ActReply, BulkAct, Client, Error, Filter, Select, Selected};

/// The jobs that a filter selects, from [`Client::select`]. Pages are read as they are needed.
#[derive(Debug)]
pub struct Selection {
    client: Client,
    /// The next page; none after the last.
    ask: Option<Select>,
    read: VecDeque<Selected>,
    not_json: u64,
}

impl Selection {
    /// The next job; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Selected>, Error> {
        while self.read.is_empty() {
            match self.next_page().await? {
                Some(page) => self.read.extend(page),
                None => return Ok(None),
            }
        }
        Ok(self.read.pop_front())
    }

    /// The rest of the current page, or the next one; `None` after the last. A page may be empty.
    pub async fn next_page(&mut self) -> Result<Option<Vec<Selected>>, Error> {
        if !self.read.is_empty() {
            return Ok(Some(self.read.drain(..).collect()));
        }
        let Some(ask) = &mut self.ask else { return Ok(None) };
        let page = self.client.run(ask.clone()).await?;
        match page.next {
            Some(next) => ask.after = Some(next),
            None => self.ask = None,
        }
        self.not_json += page.not_json;
        Ok(Some(page.jobs))
    }

    /// Jobs so far of which the filter's other terms are true, but whose payload is not JSON, so that a term such
    /// as `args.user.id=42` cannot be decided.
    pub fn not_json(&self) -> u64 {
        self.not_json
    }
}

/// A change of the jobs that a filter selects, from [`Client::act`]. It is done in steps, each of which the
/// caller asks for.
#[derive(Debug)]
pub struct BulkRun {
    client: Client,
    /// The next step; none after the last.
    ask: Option<Act>,
}

impl BulkRun {
    /// How many jobs the next steps may change at most: 1 to [`SELECT_MAX`](crate::SELECT_MAX).
    pub fn set_step(&mut self, jobs: crate::Count) {
        if let Some(ask) = &mut self.ask {
            ask.count = jobs;
        }
    }

    /// Does the next step; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<ActReply>, Error> {
        let Some(ask) = &mut self.ask else { return Ok(None) };
        let mut reply = *self.client.run(ask.clone()).await?;
        let mut again = std::mem::take(&mut reply.again);
        while !again.is_empty() {
            let only = Act { after: None, only: again, ..ask.clone() };
            let mut more = *self.client.run(only).await?;
            reply.acted += more.acted;
            reply.unchanged += more.unchanged;
            reply.refused += more.refused;
            reply.refusals.append(&mut more.refusals);
            reply.refusals.truncate(crate::REFUSALS_MAX);
            again = more.again;
        }
        match reply.next.clone() {
            Some(next) => ask.after = Some(next),
            None => self.ask = None,
        }
        Ok(Some(reply))
    }
}

impl Client {
    /// Lists the jobs that a filter selects.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// let client = geartrain::connect("memory:").await?;
    /// client.put("mail", "welcome", r#"{"user": {"id": 42}}"#).jid("a").await?;
    /// client.put("mail", "welcome", r#"{"user": {"id": 43}}"#).jid("b").await?;
    ///
    /// let mut jobs = client.select("queue=mail state=waiting args.user.id=42".parse()?);
    /// while let Some(job) = jobs.next().await? {
    ///     assert_eq!(job.jid.to_string(), "a");
    /// }
    /// # Ok(()) }) }
    /// ```
    pub fn select(&self, filter: Filter) -> Selection {
        Selection { client: self.clone(), ask: Some(Select::new(filter)), read: VecDeque::new(), not_json: 0 }
    }

    /// Changes the jobs that a filter selects, all of them if it has no term. Nothing is done before the
    /// first step.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// use geartrain::BulkAct;
    /// let client = geartrain::connect("memory:").await?;
    /// client.put("mail", "welcome", "{}").jid("a").await?;
    ///
    /// let mut run = client.act("queue=mail state=waiting".parse()?, BulkAct::Cancel { because: None });
    /// while let Some(step) = run.next().await? {
    ///     assert_eq!((step.acted, step.refused), (1, 0));
    /// }
    /// # Ok(()) }) }
    /// ```
    pub fn act(&self, filter: Filter, act: BulkAct) -> BulkRun {
        BulkRun { client: self.clone(), ask: Some(Act::new(filter, act)) }
    }
}
