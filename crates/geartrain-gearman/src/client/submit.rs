//! Handing jobs in, to a server that answers, and hearing what becomes of those that somebody waits for.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use geartrain_core::{Attach, AttachReply, Delivery, Jid, Put, PutReply, Refusal, ResultWaiter, Timestamp};
use tokio::sync::mpsc;

use super::connection::Connection;
use super::error::{ClientError, ServerError, unsupported};
use super::record::{RecordLine, RecordedJob};
use super::result_streams::{self, AwaitedSubmission};
use super::{Shared, job_ids, submission};
use crate::packet::{Report, Request, Response, Submission};

/// How much news of a job is read ahead.
const REPORTS_BUFFERED_MAX: usize = 16;

/// A submission that a server took.
pub(super) struct Accepted {
    pub(super) handle: String,
    pub(super) jid: Jid,
    /// The connection that it went over.
    pub(super) connection: Arc<Connection>,
    /// What comes back, if somebody waits.
    reports: Option<mpsc::Receiver<Report>>,
    /// What it is called in the record.
    pub(super) record_id: Option<String>,
}

impl Shared {
    pub(super) async fn put(self: &Arc<Shared>, put: &Put, now: Timestamp) -> Result<PutReply, ClientError> {
        let submission = submission::from_put(put, now)?;
        let jid = match put.options.as_ref().and_then(|terms| terms.attach) {
            Some(waiter) => {
                self.submit_awaited(AwaitedSubmission { submission, record_id: None }, waiter, None).await?
            }
            None => {
                let taken = self.submit(&submission, None, &[]).await?;
                self.watch_job(&taken);
                taken.jid
            }
        };
        Ok(PutReply::Named { jid })
    }

    /// Waits on for a job whose connection was lost, by submitting it again: if it is unfinished on the same server, its key makes it the same job.
    pub(super) async fn attach(self: &Arc<Shared>, attach: Attach) -> Result<AttachReply, ClientError> {
        if self.result_streams.job_of(attach.waiter).as_ref() == Some(&attach.jid) {
            return Ok(AttachReply::Attached);
        }
        let Some(awaited) = self.result_streams.take_lost(&attach.jid) else {
            return Err(unsupported("wait for a job that somebody else has put"));
        };
        self.submit_awaited(awaited, attach.waiter, Some(attach.jid)).await?;
        Ok(AttachReply::Attached)
    }

    /// Submits a job that somebody waits for. They may know it by the name that it had before.
    async fn submit_awaited(
        self: &Arc<Shared>,
        awaited: AwaitedSubmission,
        waiter: ResultWaiter,
        known_as: Option<Jid>,
    ) -> Result<Jid, ClientError> {
        let no_stream = || Refusal::BadArgument {
            what: "waiter".into(),
            why: "has no stream to be told through".to_owned(),
        };
        let to = self.result_streams.sender_for(waiter).ok_or_else(no_stream)?;
        let AwaitedSubmission { submission, record_id: id } = awaited;
        let mut taken = self.submit(&submission, id, &[]).await?;
        let awaited = AwaitedSubmission { submission, record_id: taken.record_id.clone() };
        let jid = known_as.unwrap_or_else(|| taken.jid.clone());
        let Some(news) = taken.reports.take() else { return Err(ServerError::ShutDown.into()) };
        let (shared, job) = (self.clone(), jid.clone());
        // It must not end before it is known to be there.
        let (go, begin) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            if begin.await.is_ok() {
                shared.forward_reports(waiter, job, taken, news, to).await;
            }
        });
        if self.result_streams.add(waiter, jid.clone(), awaited, task.abort_handle()) {
            let _ = go.send(());
        }
        Ok(jid)
    }

    /// Passes on what comes, until the job has ended or the connection has.
    async fn forward_reports(
        &self,
        waiter: ResultWaiter,
        jid: Jid,
        taken: Accepted,
        mut news: mpsc::Receiver<Report>,
        to: mpsc::Sender<Delivery>,
    ) {
        while let Some(Report { handle, body: news }) = news.recv().await {
            if handle != taken.handle {
                continue;
            }
            let ended = news.is_final();
            if ended {
                self.record_done(taken.record_id.as_ref()).await;
                self.result_streams.ended(waiter);
            }
            let delivery = Delivery { waiter, jid: jid.clone(), item: result_streams::stream_item(&news) };
            if to.send(delivery).await.is_err() || ended {
                return;
            }
        }
        self.result_streams.lost(waiter);
    }

    /// Hands a job in: to the server that was picked, or to the next that answers. What was not answered is sent again, with the same key. Servers that are to be left out are.
    ///
    /// If there is a record, it says where the job goes before the job goes there. `noted` is what it is called there already.
    pub(super) async fn submit(
        &self,
        submission: &Submission,
        noted: Option<String>,
        without: &[usize],
    ) -> Result<Accepted, ClientError> {
        let until = Instant::now() + self.servers.timeout;
        // One that is put again stays in the record if it is refused: perhaps there is room for it later, or elsewhere.
        let stays = noted.is_some();
        let mut id = noted;
        let mut sent_to = None;
        loop {
            let mut trouble = ServerError::ShutDown;
            for place in self.servers.preferred_first().filter(|place| !without.contains(place)) {
                // Once more to the same one if the connection was lost: it may only have been an old one.
                for _ in 0..2 {
                    let (link, news) = match self.connection_for(place, submission).await {
                        Ok(opened) => opened,
                        Err(failed) => {
                            trouble = failed;
                            break;
                        }
                    };
                    if sent_to != Some(place) {
                        self.record_sent(submission, &mut id, place).await?;
                        sent_to = Some(place);
                    }
                    match send_submission(&link, submission).await {
                        Ok(handle) => {
                            self.servers.prefer(place);
                            return self.accepted(place, &handle, link, news, id).await;
                        }
                        Err(failed) if failed.is_transient() => {
                            let lost = matches!(failed, ServerError::Lost { .. });
                            trouble = failed;
                            if Instant::now() >= until {
                                return Err(trouble.into());
                            }
                            if !lost {
                                break;
                            }
                        }
                        Err(failed) => {
                            self.record_done(id.as_ref().filter(|_| !stays)).await;
                            return Err(failed.into());
                        }
                    }
                }
            }
            self.servers.back_off(until, trouble).await?;
        }
    }

    /// The connection for a submission: one of its own, if somebody waits for what comes.
    async fn connection_for(
        &self,
        place: usize,
        submission: &Submission,
    ) -> Result<(Arc<Connection>, Option<mpsc::Receiver<Report>>), ServerError> {
        let server = self.servers.get(place);
        if submission.is_background() {
            return Ok((server.connection().await?, None));
        }
        let (to, news) = mpsc::channel(REPORTS_BUFFERED_MAX);
        let link = server.open(Arc::default(), Some(to)).await?;
        match link.request(Request::SetOption { option: b"exceptions" }).await {
            // A server that knows no such option says of a failure only that it is one.
            Ok(_) | Err(ServerError::Refused { .. }) => Ok((Arc::new(link), Some(news))),
            Err(trouble) => Err(trouble),
        }
    }

    async fn accepted(
        &self,
        place: usize,
        handle: &Bytes,
        link: Arc<Connection>,
        news: Option<mpsc::Receiver<Report>>,
        id: Option<String>,
    ) -> Result<Accepted, ClientError> {
        let jid = job_ids::jid_of(&self.servers, place, handle)?;
        let handle = String::from_utf8_lossy(handle).into_owned();
        if let (Some(record), Some(id)) = (&self.record, &id) {
            let taken = RecordLine::Taken { id: id.clone(), handle: handle.clone() };
            // The server has it. Without this line it may be put again later, with the same key.
            if let Err(trouble) = record.write(vec![taken]).await {
                tracing::warn!(%trouble, %jid, "the record does not say that a job was taken");
            }
        }
        Ok(Accepted { handle, jid, connection: link, reports: news, record_id: id })
    }

    async fn record_sent(
        &self,
        submission: &Submission,
        id: &mut Option<String>,
        place: usize,
    ) -> Result<(), ServerError> {
        let Some(record) = &self.record else { return Ok(()) };
        let server = &self.servers.get(place).name;
        let line = match id {
            Some(id) => RecordLine::Sent { id: id.clone(), server: server.clone() },
            None => {
                let noted = RecordedJob::new(submission, server).ok_or(ServerError::ShutDown)?;
                *id = Some(noted.id.clone());
                RecordLine::Put(Box::new(noted))
            }
        };
        record.write(vec![line]).await
    }

    /// Says in the record that a job is done.
    pub(super) async fn record_done(&self, id: Option<&String>) {
        if let (Some(record), Some(id)) = (&self.record, id)
            && let Err(trouble) = record.write(vec![RecordLine::Done { id: id.clone() }]).await
        {
            tracing::warn!(%trouble, id, "the record does not say that a job is done");
        }
    }
}

async fn send_submission(link: &Connection, submission: &Submission) -> Result<Bytes, ServerError> {
    let borrowed = Submission {
        function: &submission.function[..],
        unique: &submission.unique[..],
        data: &submission.data[..],
        mode: match &submission.mode {
            crate::packet::Mode::Foreground(priority) => crate::packet::Mode::Foreground(*priority),
            crate::packet::Mode::Background(priority) => crate::packet::Mode::Background(*priority),
            crate::packet::Mode::Scheduled(calendar) => crate::packet::Mode::Scheduled(*calendar),
            crate::packet::Mode::Epoch(due) => crate::packet::Mode::Epoch(*due),
            crate::packet::Mode::Reduce { reducer, background } => {
                crate::packet::Mode::Reduce { reducer: &reducer[..], background: *background }
            }
        },
    };
    match link.request(Request::Submit(borrowed)).await? {
        Response::JobCreated { handle } => Ok(handle),
        _ => Err(link.protocol_error("no handle of the job that was put")),
    }
}
