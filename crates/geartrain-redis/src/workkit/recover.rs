//! Recovery: runs of workers that were lost, and jobs that a dead listener had taken out of the schedule.

use std::collections::BTreeSet;

use geartrain_core::{QueueName, Seconds, Timestamp};
use redis::cmd;

use super::attempt::{AttemptRecord, parts_of};
use super::keys::{Keys, entry_of, id_in};
use super::payload::StoredJob;
use super::session::Session;
use super::{cron, script};
use crate::layout::CallError;

/// Expired leases that one pop handles.
const EXPIRED_MAX: usize = 16;
/// A job without an entry is adopted if it is found twice, this far apart: listeners that take an entry out
/// put it back in an instant. In seconds.
const ORPHAN_AGE: i32 = 60;
/// Jobs that one step of a search looks at.
const SCAN_COUNT: usize = 500;

/// A field of a hash, and its value.
type Field = (Vec<u8>, Vec<u8>);

impl Session {
    /// Handles expired leases and, once a minute, what other listeners have left.
    pub(super) async fn recover(&self, schedule: &QueueName, now: Timestamp) -> Result<(), CallError> {
        self.expire_leases(schedule, now).await?;
        let is_time = {
            let mut orphans = self.orphans.lock();
            let (looked, _) = orphans.entry(schedule.clone()).or_insert_with(|| (now, BTreeSet::new()));
            let is_time = now - *looked >= Seconds::from(ORPHAN_AGE) || *looked > now;
            if is_time {
                *looked = now;
            }
            is_time
        };
        if !is_time {
            return Ok(());
        }
        self.forget_retries(schedule).await?;
        self.adopt_orphans(schedule, now).await
    }

    /// Forgets the retries of jobs that another listener has finished: it does not know of them.
    async fn forget_retries(&self, schedule: &QueueName) -> Result<(), CallError> {
        let keys = Keys::of(schedule.as_str());
        let ids: Vec<String> = self.ask(cmd("HKEYS").arg(&keys.retry)).await?;
        for ids in ids.chunks(SCAN_COUNT) {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            self.run(&script::SWEEP, &[&keys.jobs, &keys.retry], &ids).await?;
        }
        Ok(())
    }

    async fn expire_leases(&self, schedule: &QueueName, now: Timestamp) -> Result<(), CallError> {
        let (keys, now) = (Keys::of(schedule.as_str()), cron::milliseconds(now).to_string());
        let mut range = cmd("ZRANGEBYSCORE");
        range.arg(&keys.inflight).arg("-inf").arg(&now).arg("LIMIT").arg(0).arg(EXPIRED_MAX);
        let expired: Vec<String> = self.ask(&range).await?;
        if expired.is_empty() {
            return Ok(());
        }
        let records: Vec<Option<String>> = self.ask(cmd("HMGET").arg(&keys.owner).arg(&expired)).await?;
        for (name, record) in expired.into_iter().zip(records) {
            let id = parts_of(&name).map_or("", |(id, _)| id);
            let record = record.and_then(|record| serde_json::from_str::<AttemptRecord>(&record).ok());
            // Without a readable record the run is repeated, which an entry that is there already prevents.
            let repeats = record.as_ref().is_none_or(|record| record.is_last() || self.options.repeat);
            let entry = record.map_or_else(|| entry_of(id), |record| record.entry);
            let all = [keys.jobs.as_str(), &keys.next, &keys.inflight, &keys.owner];
            let arguments = [id, &entry, &name, &now, if repeats { "1" } else { "" }];
            if self.run(&script::EXPIRE, &all, &arguments).await? == 1 {
                tracing::warn!(%schedule, id, repeats, "the lease of a job expired: its worker is lost");
            }
        }
        Ok(())
    }

    /// Queues recurring jobs again that have had no entry and no lease for two looks. A job that runs once
    /// may be running elsewhere: it is only reported.
    async fn adopt_orphans(&self, schedule: &QueueName, now: Timestamp) -> Result<(), CallError> {
        let keys = Keys::of(schedule.as_str());
        let found = self.orphans_of(&keys).await?;
        let before = match self.orphans.lock().get_mut(schedule) {
            Some((_, seen)) => std::mem::replace(seen, found.clone()),
            None => BTreeSet::new(),
        };
        for id in found.intersection(&before) {
            let payload: Option<Vec<u8>> = self.ask(cmd("HGET").arg(&keys.jobs).arg(id)).await?;
            let job = payload.and_then(|payload| StoredJob::parse(&payload, self.options.order).ok());
            let Some(next) = job.and_then(|job| job.schedule.first(now)) else {
                tracing::debug!(%schedule, id, "a job has no entry: it runs elsewhere, or its listener died");
                continue;
            };
            let score = cron::milliseconds(next).to_string();
            let all = [keys.jobs.as_str(), &keys.next];
            if self.run(&script::ADOPT, &all, &[id, &entry_of(id), &score]).await? == 1 {
                tracing::warn!(%schedule, id, "queued a recurring job again that a dead listener had taken");
            }
        }
        Ok(())
    }

    /// Jobs that have neither an entry nor a lease.
    pub(super) async fn orphans_of(&self, keys: &Keys) -> Result<BTreeSet<String>, CallError> {
        let jobs: usize = self.ask(cmd("HLEN").arg(&keys.jobs)).await?;
        let entries: usize = self.ask(cmd("ZCARD").arg(&keys.next)).await?;
        if jobs <= entries {
            return Ok(BTreeSet::new());
        }
        // The jobs are read first: one that is inserted or claimed meanwhile has an entry or a lease.
        let (mut ids, mut cursor) = (BTreeSet::new(), "0".to_owned());
        loop {
            let mut scan = cmd("HSCAN");
            scan.arg(&keys.jobs).arg(&cursor).arg("COUNT").arg(SCAN_COUNT);
            let (next, pairs): (String, Vec<Field>) = self.ask(&scan).await?;
            ids.extend(pairs.into_iter().filter_map(|(id, _)| String::from_utf8(id).ok()));
            cursor = next;
            if cursor == "0" {
                break;
            }
        }
        let entries: Vec<String> = self.ask(cmd("ZRANGE").arg(&keys.next).arg(0).arg(-1)).await?;
        for id in entries.iter().filter_map(|entry| id_in(entry)) {
            ids.remove(&id);
        }
        let attempts: Vec<String> = self.ask(cmd("ZRANGE").arg(&keys.inflight).arg(0).arg(-1)).await?;
        for (id, _) in attempts.iter().filter_map(|name| parts_of(name)) {
            ids.remove(id);
        }
        Ok(ids)
    }
}
