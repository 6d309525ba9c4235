//! Submitting jobs, with failover to the next server, and forwarding the reports on awaited ones.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use geartrain_core::{
    Attach, AttachReply, Jid, Put, PutReply, Refusal, ResultWaiter, StreamMessage, Timestamp,
};
use tokio::sync::mpsc;

use super::connection::Connection;
use super::error::{ClientError, ServerError, unsupported};
use super::record::{RecordLine, RecordedJob};
use super::result_streams::{self, AwaitedSubmission};
use super::{Shared, job_ids, submission};
use crate::packet::{Mode, Report, Request, Response, Submission};

/// Reports buffered per awaited job.
const REPORTS_BUFFERED_MAX: usize = 16;

/// A submission that a server has accepted.
pub(super) struct Accepted {
    pub(super) handle: String,
    pub(super) jid: Jid,
    /// The connection that it was sent over.
    pub(super) connection: Arc<Connection>,
    /// Reports on the job, if a client waits for it.
    reports: Option<mpsc::Receiver<Report>>,
    /// Its id in the record.
    pub(super) record_id: Option<String>,
}

impl Shared {
    pub(super) async fn put(self: &Arc<Shared>, put: &Put, now: Timestamp) -> Result<PutReply, ClientError> {
        let submission = submission::from_put(put, now)?;
        let jid = match put.options.as_ref().and_then(|options| options.attach) {
            Some(waiter) => {
                self.submit_awaited(AwaitedSubmission { submission, record_id: None }, waiter, None).await?
            }
            None => {
                let accepted = self.submit(&submission, None, &[]).await?;
                self.watch_job(&accepted);
                accepted.jid
            }
        };
        Ok(PutReply::Named { jid })
    }

    /// Resumes the wait for a job whose connection was lost, by submitting it again: if it is unfinished on
    /// the same server, its key makes it the same job.
    pub(super) async fn attach(self: &Arc<Shared>, attach: Attach) -> Result<AttachReply, ClientError> {
        if self.result_streams.job_of(attach.waiter).as_ref() == Some(&attach.jid) {
            return Ok(AttachReply::Attached);
        }
        let Some(awaited) = self.result_streams.take_lost(&attach.jid) else {
            return Err(unsupported("wait for a job put by another client"));
        };
        self.submit_awaited(awaited, attach.waiter, Some(attach.jid)).await?;
        Ok(AttachReply::Attached)
    }

    /// Submits an awaited job. `known_as` is the jid under which its client already knows it.
    async fn submit_awaited(
        self: &Arc<Shared>,
        awaited: AwaitedSubmission,
        waiter: ResultWaiter,
        known_as: Option<Jid>,
    ) -> Result<Jid, ClientError> {
        let no_stream =
            || Refusal::BadArgument { what: "waiter".into(), why: "has no open result stream".to_owned() };
        let to = self.result_streams.sender_for(waiter).ok_or_else(no_stream)?;
        let AwaitedSubmission { submission, record_id: id } = awaited;
        let mut accepted = self.submit(&submission, id, &[]).await?;
        let awaited = AwaitedSubmission { submission, record_id: accepted.record_id.clone() };
        let jid = known_as.unwrap_or_else(|| accepted.jid.clone());
        let Some(reports) = accepted.reports.take() else { return Err(ServerError::ShutDown.into()) };
        let (shared, job) = (self.clone(), jid.clone());
        // The task must not finish before it is registered.
        let (start, started) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            if started.await.is_ok() {
                shared.forward_reports(waiter, job, accepted, reports, to).await;
            }
        });
        if self.result_streams.add(waiter, jid.clone(), awaited, task.abort_handle()) {
            let _ = start.send(());
        }
        Ok(jid)
    }

    /// Forwards reports to the client's stream until the job or the connection ends.
    async fn forward_reports(
        &self,
        waiter: ResultWaiter,
        jid: Jid,
        accepted: Accepted,
        mut reports: mpsc::Receiver<Report>,
        to: mpsc::Sender<StreamMessage>,
    ) {
        while let Some(Report { handle, body }) = reports.recv().await {
            if handle != accepted.handle {
                continue;
            }
            let ended = body.is_final();
            if ended {
                self.record_done(accepted.record_id.as_ref()).await;
                self.result_streams.ended(waiter);
            }
            let delivery =
                StreamMessage { waiter, jid: jid.clone(), item: result_streams::stream_item(&body) };
            if to.send(delivery).await.is_err() || ended {
                return;
            }
        }
        self.result_streams.lost(waiter);
    }

    /// Submits a job to the preferred server, or to the next one that answers, but not to those in
    /// `excluded`. An unanswered submission is sent again with the same key.
    ///
    /// If there is a record, the job is recorded before it is sent. `recorded_as` is its id if it is recorded
    /// already.
    pub(super) async fn submit(
        &self,
        submission: &Submission,
        recorded_as: Option<String>,
        excluded: &[usize],
    ) -> Result<Accepted, ClientError> {
        let until = Instant::now() + self.servers.timeout;
        // A job that is put again stays in the record if it is refused: another server, or the same one
        // later, may accept it.
        let keep_record = recorded_as.is_some();
        let mut id = recorded_as;
        let mut sent_to = None;
        loop {
            let mut error = ServerError::ShutDown;
            for index in self.servers.preferred_first().filter(|index| !excluded.contains(index)) {
                // A second try on the same server: the connection may only have been a stale one.
                for _ in 0..2 {
                    let (connection, reports) = match self.connection_for(index, submission).await {
                        Ok(opened) => opened,
                        Err(failed) => {
                            error = failed;
                            break;
                        }
                    };
                    if sent_to != Some(index) {
                        self.record_sent(submission, &mut id, index).await?;
                        sent_to = Some(index);
                    }
                    match send_submission(&connection, submission).await {
                        Ok(handle) => {
                            self.servers.prefer(index);
                            return self.accepted(index, &handle, connection, reports, id).await;
                        }
                        Err(failed) if failed.is_transient() => {
                            let lost = matches!(failed, ServerError::Lost { .. });
                            error = failed;
                            if Instant::now() >= until {
                                return Err(error.into());
                            }
                            if !lost {
                                break;
                            }
                        }
                        Err(failed) => {
                            self.record_done(id.as_ref().filter(|_| !keep_record)).await;
                            return Err(failed.into());
                        }
                    }
                }
            }
            self.servers.back_off(until, error).await?;
        }
    }

    /// The connection for a submission: one of its own if the client waits.
    async fn connection_for(
        &self,
        index: usize,
        submission: &Submission,
    ) -> Result<(Arc<Connection>, Option<mpsc::Receiver<Report>>), ServerError> {
        let server = self.servers.get(index);
        if submission.is_background() {
            return Ok((server.connection().await?, None));
        }
        let (to, reports) = mpsc::channel(REPORTS_BUFFERED_MAX);
        let connection = server.open(Arc::default(), Some(to)).await?;
        match connection.request(Request::SetOption { option: b"exceptions" }).await {
            // A server without this option reports failures without their reason.
            Ok(_) | Err(ServerError::Refused { .. }) => Ok((Arc::new(connection), Some(reports))),
            Err(error) => Err(error),
        }
    }

    async fn accepted(
        &self,
        index: usize,
        handle: &Bytes,
        connection: Arc<Connection>,
        reports: Option<mpsc::Receiver<Report>>,
        id: Option<String>,
    ) -> Result<Accepted, ClientError> {
        let jid = job_ids::jid_of(&self.servers, index, handle)?;
        let handle = String::from_utf8_lossy(handle).into_owned();
        if let (Some(record), Some(id)) = (&self.record, &id) {
            let accepted = RecordLine::Taken { id: id.clone(), handle: handle.clone() };
            // The server has the job. Without this line it may be put again later, with the same key.
            if let Err(error) = record.write(vec![accepted]).await {
                tracing::warn!(%error, %jid, "could not record that a job was accepted");
            }
        }
        Ok(Accepted { handle, jid, connection, reports, record_id: id })
    }

    async fn record_sent(
        &self,
        submission: &Submission,
        id: &mut Option<String>,
        index: usize,
    ) -> Result<(), ServerError> {
        let Some(record) = &self.record else { return Ok(()) };
        let server = &self.servers.get(index).name;
        let line = match id {
            Some(id) => RecordLine::Sent { id: id.clone(), server: server.clone() },
            None => {
                let recorded = RecordedJob::new(submission, server).ok_or(ServerError::ShutDown)?;
                *id = Some(recorded.id.clone());
                RecordLine::Put(Box::new(recorded))
            }
        };
        record.write(vec![line]).await
    }

    /// Records that a job is done.
    pub(super) async fn record_done(&self, id: Option<&String>) {
        if let (Some(record), Some(id)) = (&self.record, id)
            && let Err(error) = record.write(vec![RecordLine::Done { id: id.clone() }]).await
        {
            tracing::warn!(%error, id, "could not record that a job is done");
        }
    }
}

async fn send_submission(connection: &Connection, submission: &Submission) -> Result<Bytes, ServerError> {
    let borrowed = Submission {
        function: &submission.function[..],
        unique: &submission.unique[..],
        data: &submission.data[..],
        mode: match &submission.mode {
            Mode::Foreground(priority) => Mode::Foreground(*priority),
            Mode::Background(priority) => Mode::Background(*priority),
            Mode::Scheduled(calendar) => Mode::Scheduled(*calendar),
            Mode::Epoch(due) => Mode::Epoch(*due),
            Mode::Reduce { reducer, background } => {
                Mode::Reduce { reducer: &reducer[..], background: *background }
            }
        },
    };
    match connection.request(Request::Submit(borrowed)).await? {
        Response::JobCreated { handle } => Ok(handle),
        _ => Err(connection.protocol_error("a reply to SUBMIT_JOB that is not JOB_CREATED")),
    }
}
