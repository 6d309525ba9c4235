//! What can be changed about a job where it stands (section 5.3).

use geartrain_core::{
    AddTags, AllocateIds, Depend, DependChange, Event, HistoryEvent, Jid, Listed, Log, Refusal, RemoveTags,
    SetPriority, Tag, Tagged, Timestamp, TopTags, Track, TrackedReply,
};

use super::read::page;
use super::{Entry, Model, Position, jids};

impl Model {
    pub(super) fn set_priority(&mut self, set: &SetPriority) -> Result<(), Refusal> {
        let waits = matches!(self.job(&set.jid)?.place, Position::Work { .. });
        self.job_mut(&set.jid).priority = set.priority;
        if waits {
            self.job_mut(&set.jid).place = self.enter_work(Timestamp::ZERO);
        }
        Ok(())
    }

    pub(super) fn depend(&mut self, now: Timestamp, depend: &Depend) -> Result<(), Refusal> {
        let jid = &depend.jid;
        let job = self.job(jid)?;
        if !matches!(job.place, Position::Depends(_)) {
            let (state, qless) = (job.place.state(), job.word);
            return Err(Refusal::NotInDepends { jid: jid.clone(), state, qless });
        }
        match &depend.change {
            DependChange::On(on) => {
                self.refuse_cycle(jid, on, depend.cycles)?;
                for dependency in
                    on.iter().filter(|dependency| self.is_open(dependency)).cloned().collect::<Vec<_>>()
                {
                    self.job_mut(jid).dependencies.insert(dependency);
                }
            }
            DependChange::Off(off) => {
                self.job_mut(jid).dependencies.retain(|dependency| !off.contains(dependency))
            }
            DependChange::OffAll => self.job_mut(jid).dependencies.clear(),
        }
        if self.jobs[jid].dependencies.is_empty() {
            let place = self.enter_work(now);
            let job = self.job_mut(jid);
            (job.place, job.word) = (place, "waiting");
        }
        Ok(())
    }

    pub(super) fn log(&mut self, now: Timestamp, log: &Log) -> Result<(), Refusal> {
        self.job(&log.jid)?;
        self.remember(
            &log.jid,
            now,
            HistoryEvent::Log { message: log.message.clone(), data: log.data.clone() },
        );
        Ok(())
    }

    pub(super) fn track(&mut self, now: Timestamp, track: &Track) -> Result<bool, Refusal> {
        let jid = &track.jid;
        self.job(jid)?;
        if track.on {
            self.events.push(Event::Track { jid: jid.clone() });
            let entry = self.enter(now);
            Ok(self.tracked.insert(jid.clone(), entry).is_none())
        } else {
            self.events.push(Event::Untrack { jid: jid.clone() });
            Ok(self.tracked.remove(jid).is_some())
        }
    }

    pub(super) fn tracked_jobs(&self) -> TrackedReply {
        let mut tracked: Vec<(Entry, Jid)> =
            self.tracked.iter().map(|(jid, entry)| (*entry, jid.clone())).collect();
        tracked.sort();
        let mut reply = TrackedReply::default();
        for jid in jids(tracked) {
            match self.view(&jid) {
                Some(job) => reply.jobs.push(job),
                None => reply.expired.push(jid),
            }
        }
        reply
    }

    // Tags: a job's list, the index of each tag, and the counters of uses, which count operations (trap 32).

    /// Puts each of a job's tags into its index.
    pub(super) fn index_tags(&mut self, now: Timestamp, jid: &Jid) {
        for tag in self.jobs[jid].tags.clone() {
            self.use_tag(now, jid, &tag);
        }
    }

    fn use_tag(&mut self, now: Timestamp, jid: &Jid, tag: &Tag) {
        *self.tag_uses.entry(tag.clone()).or_default() += 1;
        self.job_mut(jid).tagged.insert(tag.clone(), now);
    }

    /// Takes each of a job's tags out of its index.
    pub(super) fn unindex_tags(&mut self, jid: &Jid) {
        for tag in self.jobs[jid].tags.clone() {
            self.disuse_tag(jid, &tag);
        }
    }

    fn disuse_tag(&mut self, jid: &Jid, tag: &Tag) {
        *self.tag_uses.entry(tag.clone()).or_default() -= 1;
        self.job_mut(jid).tagged.remove(tag);
    }

    pub(super) fn add_tags(&mut self, now: Timestamp, add: &AddTags) -> Result<Vec<Tag>, Refusal> {
        self.job(&add.jid)?;
        for tag in &add.tags {
            self.use_tag(now, &add.jid, tag);
            let tags = &mut self.job_mut(&add.jid).tags;
            if !tags.contains(tag) {
                tags.push(tag.clone());
            }
        }
        Ok(self.jobs[&add.jid].tags.clone())
    }

    pub(super) fn remove_tags(&mut self, remove: &RemoveTags) -> Result<Vec<Tag>, Refusal> {
        self.job(&remove.jid)?;
        for tag in &remove.tags {
            self.disuse_tag(&remove.jid, tag);
            self.job_mut(&remove.jid).tags.retain(|other| other != tag);
        }
        Ok(self.jobs[&remove.jid].tags.clone())
    }

    pub(super) fn tagged(&self, tagged: &Tagged) -> Listed {
        let found = jids(self.container(|job| job.tagged.get(&tagged.tag).copied()));
        Listed { total: found.len() as u64, jids: page(found, tagged.page) }
    }

    pub(super) fn top_tags(&self, top: &TopTags) -> Vec<Tag> {
        let mut used: Vec<(i64, Tag)> = self
            .tag_uses
            .iter()
            .filter(|(_, uses)| **uses >= 2)
            .map(|(tag, uses)| (*uses, tag.clone()))
            .collect();
        used.sort();
        used.reverse();
        page(used.into_iter().map(|(_, tag)| tag).collect(), top.page)
    }

    pub(super) fn allot(&mut self, allot: &AllocateIds) -> u64 {
        let last = self.counters.entry(allot.counter.clone()).or_default();
        let first = *last + 1;
        *last += allot.count.get() as u64;
        first
    }
}
