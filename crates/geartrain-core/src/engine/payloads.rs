//! Spill, the engine's interface to its store: which payloads to move to files, and where they are.
//!
//! The engine never reads spilled bytes back. Replies carry a [`SpillLocation`] instead of such a payload,
//! and the store fills the bytes in.

use super::{Effects, Engine, SpillDone, SpillTask};
use crate::engine::Delta;
use crate::{Jid, SpillLocation, Timestamp};

impl Engine {
    /// Bytes of payloads in memory, except those of recurring jobs.
    pub fn payload_bytes(&self) -> u64 {
        self.state.blobs().memory_bytes()
    }

    /// Picks payloads to spill until at most `memory` bytes would stay; about `bytes_max` bytes per call.
    /// They stay in memory until [`Engine::finish_spill`].
    pub fn pick_spill_victims(&mut self, memory: u64, bytes_max: u64) -> Vec<SpillTask> {
        self.state.pick_spill_victims(memory, bytes_max)
    }

    /// Picks payloads in sparse files (less than half of it needed) to be copied to new files. All tasks of
    /// the last call must be finished. None if there is nothing to do; an empty list if nothing was found so
    /// far.
    pub fn pick_payloads_of_sparse_files(&mut self, bytes_max: u64) -> Option<Vec<SpillTask>> {
        self.state.pick_from_sparse_files(bytes_max)
    }

    /// Stops emptying sparse files, to start over another time.
    pub fn stop_emptying_files(&mut self) {
        self.state.stop_emptying();
    }

    /// Completes a spill task. Ignored if the payload has changed meanwhile.
    pub fn finish_spill(&mut self, done: SpillDone) {
        self.state.finish_spill(done);
    }

    /// Registers an existing payload file and the bytes of its records.
    pub fn found_payload_file(&mut self, file: u64, bytes: u64) {
        self.state.blobs_mut().spill_map_mut().found_file(file, bytes);
    }

    /// The files with payloads that are needed.
    pub fn payload_files(&self) -> impl Iterator<Item = u64> {
        self.state.blobs().spill_map().files()
    }

    /// All spilled payloads.
    pub fn spilled_payloads(&self) -> impl Iterator<Item = (Jid, SpillLocation)> {
        let spill_map = self.state.blobs().spill_map();
        spill_map.rows().filter_map(|row| Some((self.state.jid(row), self.state.spill_location(row)?)))
    }

    /// Bytes in files without needed payloads.
    pub fn empty_payload_file_bytes(&self) -> u64 {
        self.state.blobs().spill_map().empty_bytes()
    }

    /// Takes the files without needed payloads. Snapshots begun from now on do not refer to them; earlier
    /// ones may.
    pub fn take_empty_payload_files(&mut self) -> Vec<u64> {
        self.state.blobs_mut().spill_map_mut().take_empty()
    }

    /// Registers a file of [one payload](SpillLocation::is_own_file). It is
    /// [released](Engine::take_released_payload_files) if no job refers to it.
    pub fn release_payload_file_unless_needed(&mut self, file: u64) {
        self.state.blobs_mut().spill_map_mut().release_unless_needed(file);
    }

    /// Takes the files of [one payload](SpillLocation::is_own_file) that no job refers to any more. They may
    /// be removed as soon as all deltas so far are durable, without a checkpoint.
    pub fn take_released_payload_files(&mut self) -> Vec<u64> {
        self.state.blobs_mut().spill_map_mut().take_released()
    }

    /// Estimated size of a snapshot.
    pub fn snapshot_bytes_estimate(&self) -> u64 {
        self.state.snapshot_bytes_estimate()
    }

    /// The current epoch: see [`Engine::begin_epoch`].
    pub fn epoch(&self) -> u32 {
        self.state.epoch()
    }

    /// Removes a job in any state, because its payload is lost, and releases its dependents.
    pub fn abandon(&mut self, now: Timestamp, jid: &Jid, effects: &mut Effects) {
        let Some(row) = self.state.find(jid) else { return };
        let dependents: Vec<_> = self.state.dependents(row).collect();
        for of in dependents {
            self.commit(Delta::Undepend(of, [row].into(), now), effects);
        }
        self.commit(Delta::Remove(row), effects);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::engine::Limits;
    use crate::*;

    /// An engine, and a store with imaginary payload files of `file_bytes`.
    struct Fixture {
        engine: Engine,
        effects: Effects,
        written: BTreeMap<SpillLocation, Vec<u8>>,
        file: u64,
        file_bytes: u64,
        offset: u64,
    }

    impl Fixture {
        fn new(file_bytes: u64) -> Fixture {
            let limits = Limits { spill_bytes_min: 4, ..Limits::default() };
            let (engine, effects) = (Engine::new(limits), Effects::default());
            Fixture { engine, effects, written: BTreeMap::new(), file: 1, file_bytes, offset: 0 }
        }

        fn run(&mut self, command: impl Into<Command>) -> Reply {
            self.engine.execute(Timestamp::from(1), command.into(), &mut self.effects).unwrap()
        }

        fn put(&mut self, jid: &str, payload: &str) {
            let put = Put::new(queue(), Jid::new(jid).unwrap(), Klass::new("k").unwrap(), payload);
            self.run(Put { existing: Existing::Replace, ..put });
        }

        fn pop(&mut self) -> Popped {
            let Reply::Pop(mut popped) = self.run(Pop::new(queue(), WorkerName::new("w").unwrap())) else {
                panic!("a pop is answered as a pop")
            };
            popped.jobs.remove(0)
        }

        fn cancel(&mut self, jid: &str) {
            self.run(Cancel::new(vec![Jid::new(jid).unwrap()]));
        }

        /// Executes a spill task as a store does.
        fn write(&mut self, of: &SpillTask) -> SpillDone {
            let bytes = match of.payload.spill_location() {
                Some(location) => self.written[&location].clone(),
                None => of.payload.bytes().to_vec(),
            };
            let location =
                SpillLocation { file: self.file, offset: self.offset as u32, bytes: bytes.len() as u32 };
            self.offset += location.record_bytes();
            if self.offset >= self.file_bytes {
                (self.file, self.offset) = (self.file + 1, 0);
            }
            self.written.insert(location, bytes);
            of.ended(Some(location))
        }

        fn pick(&mut self) -> Vec<SpillTask> {
            self.engine.pick_spill_victims(0, u64::MAX)
        }

        /// Picks, writes and completes spill tasks.
        fn spill(&mut self) {
            for of in self.pick() {
                let done = self.write(&of);
                self.engine.finish_spill(done);
            }
        }

        fn empty_sparse_files(&mut self) {
            while let Some(moves) = self.engine.pick_payloads_of_sparse_files(8) {
                for of in moves {
                    let done = self.write(&of);
                    self.engine.finish_spill(done);
                }
            }
        }

        fn payload_of(&mut self, jid: &str) -> Payload {
            match self.run(Get { jid: Jid::new(jid).unwrap() }) {
                Reply::Get(Some(job)) => job.payload,
                other => panic!("{other:?}"),
            }
        }

        fn text(&mut self, jid: &str) -> String {
            let payload = self.payload_of(jid);
            let bytes = payload
                .spill_location()
                .map_or_else(|| payload.to_shared().to_vec(), |location| self.written[&location].clone());
            String::from_utf8(bytes).unwrap()
        }

        fn check(&self) {
            self.engine.check().unwrap();
        }
    }

    fn queue() -> QueueName {
        QueueName::new("q").unwrap()
    }

    #[test]
    fn a_spilled_payload_is_returned_as_its_location() {
        let mut fixture = Fixture::new(1_000);
        fixture.put("a", "hello");
        fixture.put("tiny", "abc");
        assert!(!fixture.effects.any_spilled);
        assert_eq!(fixture.engine.payload_bytes(), 8);
        let moves = fixture.pick();
        assert_eq!((moves.len(), moves[0].payload.bytes()), (1, &b"hello"[..]));
        // Until the task is finished, the payload stays in memory; and it is not picked twice.
        assert_eq!(fixture.payload_of("a").bytes(), b"hello");
        assert!(fixture.pick().is_empty());
        let done = fixture.write(&moves[0]);
        fixture.engine.finish_spill(done);
        assert_eq!(
            fixture.payload_of("a").spill_location(),
            Some(SpillLocation { file: 1, offset: 0, bytes: 5 })
        );
        assert_eq!(fixture.payload_of("tiny").bytes(), b"abc");
        assert!(fixture.effects.any_spilled);
        assert_eq!(fixture.engine.payload_bytes(), 3);
        assert_eq!(
            fixture.pop().payload.spill_location(),
            Some(SpillLocation { file: 1, offset: 0, bytes: 5 })
        );
        fixture.check();
    }

    #[test]
    fn only_as_much_as_needed_is_picked_and_no_running_job() {
        let mut fixture = Fixture::new(1_000);
        (0..10).for_each(|n| fixture.put(&n.to_string(), "12345678"));
        fixture.pop();
        assert_eq!(fixture.engine.pick_spill_victims(80, 1_000).len(), 0);
        assert_eq!(fixture.engine.pick_spill_victims(70, 1_000).len(), 2);
        assert_eq!(fixture.engine.pick_spill_victims(0, 17).len(), 3);
        assert_eq!(fixture.pick().len(), 4);
        assert_eq!(fixture.pick().len(), 0);
        fixture.check();
    }

    #[test]
    fn a_payload_that_could_not_be_written_stays_and_is_picked_again() {
        let mut fixture = Fixture::new(1_000);
        fixture.put("a", "hello");
        let failed = fixture.pick().remove(0).ended(None);
        fixture.engine.finish_spill(failed);
        fixture.check();
        assert_eq!(fixture.text("a"), "hello");
        assert_eq!(fixture.pick().len(), 1);
    }

    #[test]
    fn a_payload_that_changed_after_it_was_picked_is_not_overwritten() {
        let replaced: fn(&mut Fixture) = |fixture| fixture.put("a", "newer");
        let reported: fn(&mut Fixture) = |fixture| {
            let job = fixture.pop();
            let holder = Holder::Token(job.lock.token);
            fixture.run(Heartbeat { jid: job.jid, holder, payload: Some("newer".into()) });
        };
        let made_anew: fn(&mut Fixture) = |fixture| {
            fixture.cancel("a");
            fixture.put("a", "newer");
        };
        // The first task finishes last.
        let picked_again: fn(&mut Fixture) = |fixture| {
            fixture.put("a", "newer");
            assert_eq!(fixture.pick().len(), 1);
        };
        for change in [replaced, reported, made_anew, picked_again] {
            let mut fixture = Fixture::new(1_000);
            fixture.put("a", "older");
            let first = fixture.pick().remove(0);
            change(&mut fixture);
            let done = fixture.write(&first);
            fixture.engine.finish_spill(done);
            fixture.check();
            assert_eq!(fixture.text("a"), "newer");
            assert!(fixture.payload_of("a").spill_location().is_none());
        }
    }

    #[test]
    fn a_job_removed_after_it_was_picked_does_not_come_back() {
        let mut fixture = Fixture::new(1_000);
        fixture.put("a", "older");
        let of = fixture.pick().remove(0);
        fixture.cancel("a");
        let done = fixture.write(&of);
        fixture.engine.finish_spill(done);
        fixture.check();
        // A new job in the same row is not mistaken for it.
        fixture.put("b", "other");
        let done = fixture.write(&of);
        fixture.engine.finish_spill(done);
        fixture.check();
        assert_eq!(fixture.text("b"), "other");
    }

    #[test]
    fn a_payload_that_changed_while_it_was_copied_forward_is_not_overwritten() {
        for change in [
            |fixture: &mut Fixture| fixture.put("a", "newer"),
            |fixture: &mut Fixture| {
                fixture.put("a", "newer");
                fixture.spill();
            },
        ] {
            let mut fixture = Fixture::new(16);
            fixture.put("a", "older");
            fixture.put("b", "x".repeat(40).as_str());
            fixture.spill();
            fixture.engine.found_payload_file(1, 1_000);
            fixture.engine.found_payload_file(2, 1_000);
            fixture.file = 9;
            let moves = fixture.engine.pick_payloads_of_sparse_files(1).unwrap();
            assert_eq!(moves.len(), 1);
            change(&mut fixture);
            let done = fixture.write(&moves[0]);
            fixture.engine.finish_spill(done);
            fixture.check();
            assert_eq!(fixture.text("a"), "newer");
        }
    }

    #[test]
    fn sparse_files_are_emptied_and_then_reported_once() {
        let mut fixture = Fixture::new(200);
        for n in 0..100 {
            fixture.put(&n.to_string(), &format!("payload {n:04}"));
        }
        fixture.spill();
        assert_eq!((fixture.engine.payload_files().count(), fixture.file), (10, 11));
        fixture.empty_sparse_files();
        assert_eq!(fixture.written.len(), 100, "files that are needed are left alone");
        (0..100).filter(|n| n % 10 > 3).for_each(|n| fixture.cancel(&n.to_string()));
        assert_eq!(fixture.engine.empty_payload_file_bytes(), 0);
        fixture.empty_sparse_files();
        fixture.check();
        (0..100)
            .filter(|n| n % 10 <= 3)
            .for_each(|n| assert_eq!(fixture.text(&n.to_string()), format!("payload {n:04}")));
        // The newest of the old files may still have been growing.
        assert_eq!(fixture.engine.take_empty_payload_files(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10][..]);
        assert_eq!(
            (fixture.engine.take_empty_payload_files().len(), fixture.engine.empty_payload_file_bytes()),
            (0, 0)
        );
        assert!(fixture.engine.payload_files().all(|file| file > 10));
    }

    #[test]
    fn a_file_that_may_still_grow_is_never_reported_as_empty() {
        let mut fixture = Fixture::new(1_000);
        fixture.put("a", "hello");
        fixture.put("b", "world");
        let moves = fixture.pick();
        let first = fixture.write(&moves[0]);
        fixture.engine.finish_spill(first);
        fixture.cancel("a");
        // The next payload may go into the same file.
        assert_eq!(fixture.engine.take_empty_payload_files(), []);
        let second = fixture.write(&moves[1]);
        fixture.engine.finish_spill(second);
        assert_eq!(fixture.text("b"), "world");
        fixture.check();
    }

    #[test]
    fn a_file_that_cannot_be_emptied_is_given_up() {
        let mut fixture = Fixture::new(16);
        fixture.put("a", "hello");
        fixture.put("b", "x".repeat(40).as_str());
        fixture.spill();
        fixture.engine.found_payload_file(1, 1_000);
        fixture.file = 9;
        let mut tries = 0;
        while let Some(moves) = fixture.engine.pick_payloads_of_sparse_files(100) {
            moves.iter().for_each(|of| fixture.engine.finish_spill(of.ended(None)));
            tries += moves.len();
            assert!(tries < 10);
        }
        assert_eq!(tries, 2);
        fixture.check();
    }

    /// The location of a payload in a file of its own.
    fn own(number: u64) -> SpillLocation {
        SpillLocation { file: 3 << 32 | SpillLocation::OWN_FILE | number, offset: 16, bytes: 1 << 20 }
    }

    #[test]
    fn a_file_of_one_payload_is_released_with_the_last_job_that_refers_to_it() {
        let mut fixture = Fixture::new(1_000);
        let put = |jid: &str, number: u64| {
            let put = Put::new(queue(), Jid::new(jid).unwrap(), Klass::new("k").unwrap(), "");
            Put { payload: own(number).into(), existing: Existing::Replace, ..put }
        };
        fixture.run(put("a", 1));
        fixture.run(put("b", 2));
        fixture.engine.release_payload_file_unless_needed(own(1).file);
        assert_eq!(fixture.engine.take_released_payload_files(), []);
        assert_eq!(fixture.payload_of("a").spill_location(), Some(own(1)));
        assert_eq!((fixture.engine.payload_bytes(), fixture.pick().len()), (0, 0));
        // Another payload, no job, and a put that was never executed.
        fixture.run(put("a", 3));
        fixture.cancel("b");
        fixture.engine.release_payload_file_unless_needed(own(4).file);
        assert_eq!(fixture.engine.take_released_payload_files(), [own(1).file, own(2).file, own(4).file]);
        assert_eq!(fixture.engine.take_released_payload_files(), []);
        assert_eq!(fixture.engine.take_empty_payload_files(), []);
        fixture.check();
        // Replaying the encoded deltas leads to the same state.
        let mut bytes = Vec::new();
        fixture.effects.deltas.iter().for_each(|delta| delta.encode(&mut bytes));
        let (mut copy, mut left) = (Engine::new(Limits::default()), &bytes[..]);
        while !left.is_empty() {
            copy.apply(&Delta::decode(&mut left).unwrap());
        }
        assert_eq!(copy.payload_files().collect::<Vec<_>>(), [own(3).file]);
        copy.check().unwrap();
    }

    #[test]
    fn a_snapshot_records_where_payloads_are() {
        let mut fixture = Fixture::new(1_000);
        fixture.put("a", "hello");
        fixture.put("b", "world");
        fixture.spill();
        fixture.put("c", "memory");
        let (mut head, mut jobs) = (Vec::new(), Vec::new());
        fixture.engine.begin_snapshot(&mut head);
        fixture.engine.continue_snapshot(100, &mut jobs);
        let limits = Limits { spill_bytes_min: 4, ..Limits::default() };
        let restore = |jobs: &[u8]| {
            let mut restoring = Engine::restore(limits.clone(), &head)?;
            restoring.add(jobs)?;
            Ok::<Engine, crate::engine::CodecError>(restoring.finish())
        };
        fixture.engine = restore(&jobs).unwrap();
        fixture.check();
        assert_eq!(["a", "b", "c"].map(|jid| fixture.text(jid)), ["hello", "world", "memory"]);
        assert_eq!(fixture.engine.spilled_payloads().count(), 2);
        assert_eq!(fixture.pick().len(), 1);
        // Row, jid, state; then flags, some of which are unknown.
        assert_eq!(jobs[..7], [0, 1, b'a', 3, 0x80, 0x80, 0x04]);
        for flags in [[0x80, 0x80, 0x08], [0x80, 0x82, 0x04], [0x81, 0x80, 0x04]] {
            jobs[4..7].copy_from_slice(&flags);
            assert!(restore(&jobs).is_err(), "{flags:x?}");
        }
    }

    #[test]
    fn an_abandoned_job_leaves_nothing_behind() {
        let mut fixture = Fixture::new(1_000);
        fixture.put("a", "hello");
        let depends = [Jid::new("a").unwrap()].into();
        let put = Put::new(queue(), Jid::new("b").unwrap(), Klass::new("k").unwrap(), "world");
        fixture.run(Put { depends, ..put });
        fixture.engine.abandon(Timestamp::from(2), &Jid::new("a").unwrap(), &mut fixture.effects);
        fixture.check();
        assert_eq!(fixture.pop().jid.to_string(), "b");
    }

    /// In any order of puts, cancels and spills, each job has the payload that it was given last.
    #[test]
    fn payloads_are_never_mixed_up() {
        for seed in 0..200_u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut random = |below: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % below
            };
            let mut fixture = Fixture::new(300);
            let mut expected: BTreeMap<String, String> = BTreeMap::new();
            let mut in_flight: Vec<SpillDone> = Vec::new();
            for step in 0..300 {
                let jid = random(20).to_string();
                match random(10) {
                    0..4 => {
                        let payload = format!("{step} {}", "x".repeat(random(60) as usize));
                        fixture.put(&jid, &payload);
                        expected.insert(jid, payload);
                    }
                    4 => {
                        fixture.cancel(&jid);
                        expected.remove(&jid);
                    }
                    5 => {
                        for of in fixture.engine.pick_spill_victims(random(300), random(200)) {
                            let done = if random(9) == 0 { of.ended(None) } else { fixture.write(&of) };
                            in_flight.push(done);
                        }
                    }
                    6 if in_flight.is_empty() => {
                        for of in fixture.engine.pick_payloads_of_sparse_files(100).unwrap_or_default() {
                            in_flight.push(fixture.write(&of));
                        }
                    }
                    7 if in_flight.is_empty() => drop(fixture.engine.take_empty_payload_files()),
                    _ => in_flight.drain(..).for_each(|done| fixture.engine.finish_spill(done)),
                }
                fixture.check();
            }
            for (jid, payload) in &expected {
                assert_eq!(fixture.text(jid), *payload, "seed {seed}");
            }
        }
    }
}
