//! Payloads that do not stay in memory: what the engine tells its store, and is told by it.
//!
//! The engine never asks for the bytes back. A payload that is elsewhere goes out as its [`Place`], and the store puts the bytes in before anybody sees it.

use super::{Effects, Engine, SpillDone, SpillTask};
use crate::engine::Delta;
use crate::{Jid, SpillLocation, Timestamp};

impl Engine {
    /// How many bytes of payloads are in memory, those of recurring jobs apart.
    pub fn payload_bytes(&self) -> u64 {
        self.state.blobs().memory_bytes()
    }

    /// Picks payloads to be written elsewhere, until no more than so many bytes would stay in memory; at most so many bytes at a time, and a
    /// little more. They stay in memory until [`Engine::moved`] says that they were written.
    pub fn pick_spill_victims(&mut self, memory: u64, bytes_max: u64) -> Vec<SpillTask> {
        self.state.pick_spill_victims(memory, bytes_max)
    }

    /// Picks payloads that lie in files of which less than half is needed, to be written again elsewhere. The answers to those of the last time must
    /// have come. None if there is nothing to do; a list that is empty says that there is, and that nothing was found yet.
    pub fn pick_payloads_of_sparse_files(&mut self, bytes_max: u64) -> Option<Vec<SpillTask>> {
        self.state.pick_from_sparse_files(bytes_max)
    }

    /// Leaves sparse files as they are, to begin again another time.
    pub fn stop_emptying_files(&mut self) {
        self.state.stop_emptying();
    }

    /// What has become of a move. If the payload has changed meanwhile, nothing.
    pub fn finish_spill(&mut self, done: SpillDone) {
        self.state.finish_spill(done);
    }

    /// There is a file from earlier, whose records take so many bytes together.
    pub fn found_payload_file(&mut self, file: u64, bytes: u64) {
        self.state.blobs_mut().spill_map_mut().found_file(file, bytes);
    }

    /// The files that hold payloads which are needed.
    pub fn payload_files(&self) -> impl Iterator<Item = u64> {
        self.state.blobs().spill_map().files()
    }

    /// All payloads that are not in memory.
    pub fn spilled_payloads(&self) -> impl Iterator<Item = (Jid, SpillLocation)> {
        let spill_map = self.state.blobs().spill_map();
        spill_map.rows().filter_map(|row| Some((self.state.jid(row), self.state.spill_location(row)?)))
    }

    /// How many bytes lie in files of which nothing is needed.
    pub fn empty_payload_file_bytes(&self) -> u64 {
        self.state.blobs().spill_map().empty_bytes()
    }

    /// The files of which nothing is needed, each told once. Snapshots that are begun from now on do not speak of them; earlier ones may.
    pub fn take_empty_payload_files(&mut self) -> Vec<u64> {
        self.state.blobs_mut().spill_map_mut().take_empty()
    }

    /// There is a file of [one payload](Place::is_own_file). It is
    /// [released](Engine::take_released_payload_files) if no job refers to it.
    pub fn release_payload_file_unless_needed(&mut self, file: u64) {
        self.state.blobs_mut().spill_map_mut().release_unless_needed(file);
    }

    /// The files of [one payload](Place::is_own_file) that no job refers to any more, each told once. They
    /// may go as soon as all deltas so far are durable, without a checkpoint.
    pub fn take_released_payload_files(&mut self) -> Vec<u64> {
        self.state.blobs_mut().spill_map_mut().take_released()
    }

    /// About how large a snapshot would be.
    pub fn snapshot_bytes_estimate(&self) -> u64 {
        self.state.snapshot_bytes_estimate()
    }

    /// In which epoch it is: see [`Engine::begin_epoch`].
    pub fn epoch(&self) -> u32 {
        self.state.epoch()
    }

    /// Lets go of a job, whatever it is doing, because its payload is lost. Those that wait for it wait for it no longer.
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

    /// An engine, and a store that keeps payloads in imaginary files of so many bytes.
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
            self.run(Cancel { jids: vec![Jid::new(jid).unwrap()] });
        }

        /// What a store does with a move.
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

        /// Picks, writes and tells.
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
    fn a_payload_that_was_written_elsewhere_goes_out_as_its_place() {
        let mut fixture = Fixture::new(1_000);
        fixture.put("a", "hello");
        fixture.put("tiny", "abc");
        assert!(!fixture.effects.any_spilled);
        assert_eq!(fixture.engine.payload_bytes(), 8);
        let moves = fixture.pick();
        assert_eq!((moves.len(), moves[0].payload.bytes()), (1, &b"hello"[..]));
        // Until it is told that it is written, it is here; and it is not picked twice.
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
    fn no_more_is_picked_than_has_to_go_and_no_job_that_runs() {
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
    fn what_could_not_be_written_stays_and_is_picked_again() {
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
        // The one that was picked first is told of last.
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
    fn a_job_that_went_after_it_was_picked_stays_away() {
        let mut fixture = Fixture::new(1_000);
        fixture.put("a", "older");
        let of = fixture.pick().remove(0);
        fixture.cancel("a");
        let done = fixture.write(&of);
        fixture.engine.finish_spill(done);
        fixture.check();
        // Neither is another job taken for it that has its row.
        fixture.put("b", "other");
        let done = fixture.write(&of);
        fixture.engine.finish_spill(done);
        fixture.check();
        assert_eq!(fixture.text("b"), "other");
    }

    #[test]
    fn a_payload_that_was_copied_forward_too_late_is_not_overwritten() {
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
    fn files_of_which_little_is_needed_are_emptied_and_then_told_once() {
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
        // The last of the old ones was still growing, as far as anybody knew.
        assert_eq!(fixture.engine.take_empty_payload_files(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10][..]);
        assert_eq!(
            (fixture.engine.take_empty_payload_files().len(), fixture.engine.empty_payload_file_bytes()),
            (0, 0)
        );
        assert!(fixture.engine.payload_files().all(|file| file > 10));
    }

    #[test]
    fn a_file_that_still_grows_is_never_called_empty() {
        let mut fixture = Fixture::new(1_000);
        fixture.put("a", "hello");
        fixture.put("b", "world");
        let moves = fixture.pick();
        let first = fixture.write(&moves[0]);
        fixture.engine.finish_spill(first);
        fixture.cancel("a");
        // What comes next may lie in the same file.
        assert_eq!(fixture.engine.take_empty_payload_files(), []);
        let second = fixture.write(&moves[1]);
        fixture.engine.finish_spill(second);
        assert_eq!(fixture.text("b"), "world");
        fixture.check();
    }

    #[test]
    fn what_cannot_be_moved_out_of_a_file_is_not_tried_for_ever() {
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

    /// The payload of a file of its own.
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
        // Replayed from their bytes, the deltas lead to the same.
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
    fn a_snapshot_says_where_payloads_are() {
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
        // Row, jid, state; then the flags, of which nobody knows these.
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

    /// Whatever happens in whatever order, every job has the payload that it was given last.
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
            let mut under_way: Vec<SpillDone> = Vec::new();
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
                            under_way.push(done);
                        }
                    }
                    6 if under_way.is_empty() => {
                        for of in fixture.engine.pick_payloads_of_sparse_files(100).unwrap_or_default() {
                            under_way.push(fixture.write(&of));
                        }
                    }
                    7 if under_way.is_empty() => drop(fixture.engine.take_empty_payload_files()),
                    _ => under_way.drain(..).for_each(|done| fixture.engine.finish_spill(done)),
                }
                fixture.check();
            }
            for (jid, payload) in &expected {
                assert_eq!(fixture.text(jid), *payload, "seed {seed}");
            }
        }
    }
}
