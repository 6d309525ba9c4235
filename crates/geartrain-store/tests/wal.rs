//! The log on a failing disk: what each kind of failure leaves, one by one. Random histories are in
//! `wal_simulation.rs`.

use std::sync::Arc;

use geartrain_store::wal::{Disk, Position, RealDisk, TornTail, Wal, WalError, WalOptions, survey};
use geartrain_testkit::disk::SimDisk;

use crate::scratch::Scratch;

const BLOCK: u64 = 4096;
const OPTIONS: WalOptions = WalOptions { segment_bytes: 8 * BLOCK, spare_segments: 1 };
const START: Position = Position { segment: 0, offset: 0 };

type Batches = Vec<(Position, Vec<u8>)>;

fn open_from(disk: &SimDisk, from: Position) -> Result<(Wal, Batches), WalError> {
    let mut batches = Vec::new();
    let log = Wal::open(Arc::new(disk.clone()), OPTIONS, from, &mut |position, body| {
        batches.push((position, body.to_vec()));
        Ok(())
    })?;
    Ok((log, batches))
}

fn open(disk: &SimDisk) -> (Wal, Vec<Vec<u8>>) {
    let (log, batches) = open_from(disk, START).expect("the log is whole");
    (log, batches.into_iter().map(|(_, body)| body).collect())
}

/// Where opening reports damage.
fn damage(disk: &SimDisk) -> (u64, u64, String) {
    match open_from(disk, START) {
        Err(WalError::Damaged { segment, offset, why }) => (segment, offset, why),
        other => panic!("not damaged: {other:?}"),
    }
}

fn commit(log: &mut Wal, body: &[u8]) -> Position {
    let position = log.append(body).expect("the disk works");
    log.sync().expect("the disk works");
    position
}

fn segment(number: u64) -> String {
    format!("log-{number:020}")
}

/// A body that fills this many blocks.
fn blocks(count: u64, byte: u8) -> Vec<u8> {
    vec![byte; (count * BLOCK) as usize - 64]
}

#[test]
fn committed_batches_are_replayed() {
    let disk = SimDisk::new(0);
    let (mut log, none) = open(&disk);
    assert!(none.is_empty());
    assert_eq!(log.end(), Position { segment: 1, offset: BLOCK });
    let bodies =
        [vec![], b"one".to_vec(), blocks(1, 1), blocks(3, 2), blocks(4, 3), blocks(20, 4), b"end".to_vec()];
    let positions: Vec<Position> = bodies.iter().map(|body| commit(&mut log, body)).collect();
    assert!(positions.is_sorted());
    let end = log.end();
    drop(log);
    let (log, batches) = open_from(&disk, START).unwrap();
    assert_eq!(batches, positions.iter().copied().zip(bodies.clone()).collect::<Vec<_>>());
    assert_eq!(log.end(), end);
    drop(log);
    let (_, later) = open_from(&disk, positions[4]).unwrap();
    assert_eq!(later, batches[4..]);
    let (_, none) = open_from(&disk, end).unwrap();
    assert_eq!(none, []);
}

#[test]
fn a_flipped_bit_in_a_synced_batch_is_damage_reported_with_its_position() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    commit(&mut log, b"one");
    let two = commit(&mut log, b"two");
    commit(&mut log, b"three");
    drop(log);
    // The checksum, the magic, every number, the length, the body.
    for byte in [0, 4, 8, 16, 24, 32, 40, 48, 56, 63, 64, 66] {
        disk.flip(&segment(1), two.offset + byte);
        let (number, offset, why) = damage(&disk);
        assert_eq!((number, offset), (1, two.offset), "byte {byte}: {why}");
        disk.flip(&segment(1), two.offset + byte);
    }
    assert_eq!(open(&disk).1.len(), 3);
    disk.flip(&segment(1), two.offset + 64);
    let text = open_from(&disk, START).unwrap_err().to_string();
    let place = "segment 1 (file log-00000000000000000001) is damaged at byte 8192: ";
    assert_eq!(text, format!("{place}the checksum of the batch is wrong"));
}

#[test]
fn a_flipped_bit_in_the_last_batch_cuts_it_off() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    commit(&mut log, b"one");
    let two = commit(&mut log, b"two");
    drop(log);
    disk.flip(&segment(1), two.offset + 64);
    let (mut log, batches) = open(&disk);
    assert_eq!(batches, [b"one"]);
    assert_eq!(log.end(), two);
    commit(&mut log, b"zwei");
    drop(log);
    assert_eq!(open(&disk).1, [b"one".to_vec(), b"zwei".to_vec()]);
}

#[test]
fn a_flipped_bit_in_the_last_batch_of_a_segment_that_has_a_successor_is_damage() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    let one = commit(&mut log, &blocks(7, 1));
    // No batch of the next segment is durable. That the segment exists is enough.
    let two = log.append(&blocks(2, 2)).unwrap();
    assert_eq!(two, Position { segment: 2, offset: BLOCK });
    let disk = disk.crash_and_lose_all();
    assert_eq!(open(&disk).1, [blocks(7, 1)]);
    disk.flip(&segment(1), one.offset + 6 * BLOCK);
    assert_eq!(damage(&disk).0, 1);
}

#[test]
fn a_flipped_bit_in_a_segments_header_is_damage() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    for byte in 0..5 {
        commit(&mut log, &blocks(4, byte));
    }
    drop(log);
    for number in [1, 3, 5] {
        for byte in [0, 4, 8, 16, 24, 32, 40, 48, 56] {
            disk.flip(&segment(number), byte);
            assert_eq!(damage(&disk).0, number, "byte {byte}");
            disk.flip(&segment(number), byte);
        }
    }
}

#[test]
fn a_missing_segment_is_damage_if_it_is_needed() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    let positions: Vec<Position> = (0..5).map(|byte| commit(&mut log, &blocks(4, byte))).collect();
    let end = log.end();
    drop(log);
    disk.remove(&segment(3)).unwrap();
    assert_eq!(damage(&disk), (3, 0, "the segment is missing".into()));
    assert!(open_from(&disk, positions[1]).is_err());
    assert!(open_from(&disk, positions[2]).is_err());
    assert_eq!(open_from(&disk, positions[3]).unwrap().1.len(), 2);
    disk.remove(&segment(5)).unwrap();
    assert!(matches!(open_from(&disk, end), Err(WalError::Damaged { segment: 5, .. })));
}

#[test]
fn a_newest_segment_that_is_missing_or_cut_short_is_damage() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    for byte in 0..4 {
        commit(&mut log, &blocks(5, byte));
    }
    drop(log);
    let file = disk.open(&segment(4)).unwrap();
    let mut whole = vec![0; OPTIONS.segment_bytes as usize];
    file.read_at(&mut whole, 0).unwrap();
    let put_back = |bytes: u64| {
        disk.remove(&segment(4)).unwrap();
        disk.create(&segment(4)).unwrap().write_at(&whole[..bytes as usize], 0).unwrap();
    };
    // In the middle of its batch, just behind that, and one byte too short.
    for bytes in [BLOCK, 3 * BLOCK + 1, 6 * BLOCK, OPTIONS.segment_bytes - 1] {
        put_back(bytes);
        let (number, offset, why) = damage(&disk);
        assert_eq!((number, offset), (4, bytes), "{why}");
        assert!(why.contains("its header says that it has 32768 bytes"), "{why}");
    }
    put_back(BLOCK - 1);
    assert_eq!(damage(&disk), (4, 0, "it is too short for a segment's header".into()));
    put_back(OPTIONS.segment_bytes);
    assert_eq!(open(&disk).1.len(), 4);
    disk.remove(&segment(4)).unwrap();
    assert_eq!(damage(&disk), (4, 0, "the segment is missing".into()));
    (1..4).for_each(|number| disk.remove(&segment(number)).unwrap());
    assert_eq!(damage(&disk), (4, 0, "the segment is missing".into()));
}

#[test]
fn after_a_clean_close_a_bad_last_batch_is_damage_and_before_that_it_is_a_torn_tail() {
    for is_closed in [false, true] {
        for byte in [0, 4, 8, 16, 24, 32, 40, 48, 56, 63, 64, 66] {
            let disk = SimDisk::new(0);
            let (mut log, _) = open(&disk);
            commit(&mut log, b"one");
            let two = commit(&mut log, &blocks(2, 2));
            if is_closed {
                log.close().unwrap();
            }
            drop(log);
            disk.flip(&segment(1), two.offset + byte);
            if is_closed {
                assert_eq!(damage(&disk).1, two.offset, "byte {byte}");
                continue;
            }
            let extent = survey(&disk, START, &mut |_, _| Ok(())).unwrap();
            // If the damage is in the length, how much was lost is unknown.
            let bytes = if (56..64).contains(&byte) { extent.torn_tail.unwrap().bytes } else { 2 * BLOCK };
            assert_eq!(extent.torn_tail, Some(TornTail { segment: 1, offset: two.offset, bytes }));
            let (mut log, batches) = open(&disk);
            assert_eq!(batches, [b"one"], "byte {byte}");
            // The remains of the torn batch behind the next one are not reported again.
            commit(&mut log, b"two");
            assert_eq!(survey(&disk, START, &mut |_, _| Ok(())).unwrap().torn_tail, None, "byte {byte}");
        }
    }
}

#[test]
fn a_segment_of_version_2_without_a_manifest_is_damage() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    commit(&mut log, b"one");
    drop(log);
    let file = disk.open("manifest").unwrap();
    let mut whole = [0; 2 * BLOCK as usize];
    file.read_at(&mut whole, 0).unwrap();
    // One of the two entries is enough.
    for entry in [0, BLOCK] {
        disk.flip("manifest", entry + 40);
        assert_eq!(open(&disk).1, [b"one"]);
        disk.open("manifest").unwrap().write_at(&whole, 0).unwrap();
    }
    for entry in [0, BLOCK] {
        disk.flip("manifest", entry + 17);
    }
    let text = open_from(&disk, START).unwrap_err().to_string();
    let place = "the manifest of the log (file manifest) is damaged at byte 0: ";
    assert_eq!(text, format!("{place}neither of its two entries has a correct checksum"));
    disk.remove("manifest").unwrap();
    assert_eq!(open_from(&disk, START).unwrap_err().to_string(), format!("{place}it is missing"));
}

#[test]
fn a_log_that_ends_before_the_requested_position_is_damaged() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    let one = commit(&mut log, b"one");
    let end = log.end();
    drop(log);
    disk.flip(&segment(1), one.offset);
    assert!(matches!(open_from(&disk, end), Err(WalError::Damaged { segment: 1, offset: BLOCK, .. })));
    let empty = SimDisk::new(0);
    assert!(matches!(open_from(&empty, end), Err(WalError::Damaged { segment: 1, .. })));
}

#[test]
fn a_segment_of_another_log_is_damage() {
    let (disk, other) = (SimDisk::new(0), SimDisk::new(0));
    for disk in [&disk, &other] {
        let (mut log, _) = open(disk);
        commit(&mut log, &blocks(7, 1));
        commit(&mut log, &blocks(7, 2));
    }
    let mut bytes = vec![0; OPTIONS.segment_bytes as usize];
    other.open(&segment(2)).unwrap().read_at(&mut bytes, 0).unwrap();
    disk.open(&segment(2)).unwrap().write_at(&bytes, 0).unwrap();
    assert_eq!(damage(&disk), (2, 0, "it is of another log".into()));
}

/// Batch 2 is torn and batch 3, behind it, is complete. Once another batch 2 has been written, the old 3 fits
/// by its number and its position.
#[test]
fn batches_behind_a_torn_one_never_come_back() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    commit(&mut log, b"one");
    let two = log.append(b"torn").unwrap();
    let three = log.append(b"stale three").unwrap();
    log.append(b"stale four").unwrap();
    // As a crash might leave it: everything but batch 2.
    log.sync().unwrap();
    drop(log);
    disk.flip(&segment(1), two.offset + 64);

    let (mut log, batches) = open(&disk);
    assert_eq!(batches, [b"one"]);
    assert_eq!(log.append(b"new two").unwrap(), two);
    assert_eq!(log.end(), three);
    log.sync().unwrap();
    let disk = disk.crash_and_lose_all();
    let (mut log, batches) = open(&disk);
    assert_eq!(batches, [b"one".to_vec(), b"new two".to_vec()]);

    // The same for an opening that wrote nothing durable: its batches are as stale.
    log.append(b"lost three").unwrap();
    let four = log.append(b"stale four again").unwrap();
    log.sync().unwrap();
    drop(log);
    disk.flip(&segment(1), three.offset + 64);
    let (mut log, _) = open(&disk);
    commit(&mut log, b"new three");
    assert_eq!(log.end(), four);
    drop(log);
    assert_eq!(open(&disk).1, [b"one".to_vec(), b"new two".to_vec(), b"new three".to_vec()]);
}

#[test]
fn old_batches_of_a_recycled_segment_never_come_back() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    let mut last = START;
    for byte in 0..40 {
        last = commit(&mut log, &blocks(1, byte));
        log.release(last).unwrap();
    }
    drop(log);
    let (_, batches) = open_from(&disk, last).unwrap();
    assert_eq!(batches, [(last, blocks(1, 39))]);
}

/// Segment 1 is released and becomes segment 3; the power goes after its header is written and before it is
/// renamed.
#[test]
fn a_released_segment_does_not_come_back_under_its_old_name() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    commit(&mut log, &blocks(7, 1));
    log.reserve(blocks(7, 2).len()).unwrap();
    let two = commit(&mut log, &blocks(7, 2));
    log.release(two).unwrap();
    let mut operations = 0;
    disk.cut_power_after(operations);
    while log.append(b"three").is_err() {
        let disk = disk.crash_and_lose_all();
        assert_eq!(open_from(&disk, START).unwrap().1, [(two, blocks(7, 2))], "{operations}");
        operations += 1;
        (log, _) = open(&disk);
        disk.cut_power_after(operations);
    }
    assert!(operations >= 4);
}

/// A payload can be anything, and may lie at the beginning of a block. Only the random id of the log is
/// secret.
#[test]
fn a_body_that_looks_like_batches_is_a_body() {
    let other = SimDisk::new(0);
    let (mut log, _) = open(&other);
    for byte in 0..6 {
        commit(&mut log, &blocks(1, byte));
    }
    let mut forged = vec![0; 7 * BLOCK as usize];
    other.open(&segment(1)).unwrap().read_at(&mut forged, 0).unwrap();

    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    let mut body = vec![0; BLOCK as usize - 64];
    body.extend(&forged[2 * BLOCK as usize..]);
    let one = commit(&mut log, &body);
    drop(log);
    disk.flip(&segment(1), one.offset + 64);
    assert_eq!(open(&disk).1, Vec::<Vec<u8>>::new());
    disk.flip(&segment(1), one.offset + 64);
    assert_eq!(open(&disk).1, [body]);
}

#[test]
fn a_full_disk_refuses_batches_until_there_is_space() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    disk.set_bytes_max(disk.bytes());
    commit(&mut log, &blocks(7, 1));
    let (end, bytes) = (log.end(), disk.bytes());
    for _ in 0..3 {
        assert!(matches!(log.reserve(1), Err(WalError::Full)));
        assert!(matches!(log.append(b"two"), Err(WalError::Full)));
        assert!(matches!(log.append(&blocks(20, 2)), Err(WalError::Full)));
    }
    assert_eq!((log.end(), disk.bytes()), (end, bytes), "what was begun is taken away again");
    assert!(!log.is_broken());
    disk.set_bytes_max(u64::MAX);
    commit(&mut log, b"two");
    drop(log);
    assert_eq!(open(&disk).1, [blocks(7, 1), b"two".to_vec()]);
}

#[test]
fn a_disk_full_for_an_overwrite_leaves_no_partial_batch() {
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        let (mut log, _) = open(&disk);
        commit(&mut log, b"one");
        disk.set_full(true);
        // The disk cannot even zero the partial batch, so its state is unknown.
        assert!(matches!(log.append(b"two"), Err(WalError::Io(_))));
        assert!(matches!(log.append(b"two"), Err(WalError::Broken)));
        disk.set_full(false);
        drop(log);
        let (_, batches) = open(&disk);
        assert!(batches == [b"one"] || batches == [b"one", b"two"]);
    }
}

#[test]
fn a_reserved_batch_needs_no_more_space() {
    for bytes in [0, 5000, 7 * BLOCK as usize - 64, 100_000] {
        let disk = SimDisk::new(0);
        let (mut log, _) = open(&disk);
        commit(&mut log, &blocks(6, 1));
        let end = log.end();
        log.reserve(bytes).unwrap();
        assert_eq!(log.end(), end);
        disk.set_bytes_max(0);
        commit(&mut log, &vec![2; bytes]);
        drop(log);
        assert_eq!(open(&disk).1, [blocks(6, 1), vec![2; bytes]]);
    }
}

#[test]
fn after_a_failed_sync_the_log_is_broken_until_reopened() {
    for seed in 0..200 {
        let disk = SimDisk::new(seed);
        // Without spares the next operation is the log's own.
        let options = WalOptions { spare_segments: 0, ..OPTIONS };
        let mut log = Wal::open(Arc::new(disk.clone()), options, START, &mut |_, _| Ok(())).unwrap();
        let one = commit(&mut log, b"one");
        log.append(&blocks(2, 2)).unwrap();
        disk.fail_after(0);
        assert!(matches!(log.sync(), Err(WalError::Io(_))));
        assert!(log.is_broken());
        assert!(matches!(log.sync(), Err(WalError::Broken)));
        assert!(matches!(log.append(b"three"), Err(WalError::Broken)));
        assert!(matches!(log.reserve(1), Err(WalError::Broken)));
        assert!(matches!(log.release(one), Err(WalError::Broken)));
        drop(log);
        // The page cache still shows the batch that failed to sync. What is replayed now must survive a power
        // cut.
        let (log, batches) = open(&disk);
        drop(log);
        assert_eq!(open(&disk.crash_and_lose_all()).1, batches, "seed {seed}");
        assert_eq!(batches[0], b"one");
    }
}

#[test]
fn a_killed_process_leaves_its_batches_and_they_are_durable_once_opened() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    for byte in 0..5 {
        log.append(&blocks(3, byte)).unwrap();
    }
    let disk = disk.kill();
    drop(log);
    let (log, batches) = open(&disk);
    assert_eq!(batches.len(), 5);
    drop(log);
    assert_eq!(open(&disk.crash_and_lose_all()).1.len(), 5);
}

#[test]
fn segments_are_recycled_and_the_disk_does_not_fill() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    for round in 0..1000 {
        let position = commit(&mut log, &blocks(1 + round % 5, 1));
        log.release(position).unwrap();
        // The one in use, the one before it, the spare, and one being made.
        assert!(log.disk_bytes() <= 4 * OPTIONS.segment_bytes);
        assert!(disk.bytes() <= log.disk_bytes());
        assert!(log.used_bytes() <= 2 * OPTIONS.segment_bytes);
    }
    let end = log.end();
    assert!(end.segment > 200);
    drop(log);
    // Without spares every operation is the commit's own.
    let options = WalOptions { spare_segments: 0, ..OPTIONS };
    let mut log = Wal::open(Arc::new(disk.clone()), options, end, &mut |_, _| Ok(())).unwrap();
    log.append(&blocks(7, 1)).unwrap();
    let end = commit(&mut log, b"in the next segment");
    let before = disk.operations();
    commit(&mut log, b"a commit");
    assert_eq!(disk.operations() - before, 2, "is one write and one sync");
    assert_eq!(log.end().segment, end.segment);
}

#[test]
fn released_segments_are_kept_up_to_a_limit_and_removed_for_a_long_batch() {
    let disk = SimDisk::new(0);
    let options = WalOptions { spare_segments: 5, ..OPTIONS };
    let spares = || disk.names().iter().filter(|name| name.starts_with("spare-")).count();
    let mut log = Wal::open(Arc::new(disk.clone()), options, START, &mut |_, _| Ok(())).unwrap();
    let last = (0..9).map(|byte| commit(&mut log, &blocks(7, byte))).last().unwrap();
    log.release(last).unwrap();
    assert_eq!(spares(), 5);
    // They are used before any is made. Two are held back, and one more is made ahead.
    let before = disk.bytes();
    for byte in 0..2 {
        commit(&mut log, &blocks(7, byte));
    }
    assert_eq!((spares(), disk.bytes()), (3, before));
    let last = commit(&mut log, b"one more");
    log.release(last).unwrap();
    assert_eq!(spares(), 5);
    drop(log);
    let mut log = Wal::open(Arc::new(disk.clone()), options, last, &mut |_, _| Ok(())).unwrap();
    assert_eq!(spares(), 5);

    // A long one has space only where the others are. One stays, because a reservation may depend on it.
    disk.set_bytes_max(disk.bytes());
    assert!(matches!(log.reserve(40 * BLOCK as usize), Err(WalError::Full)));
    assert_eq!(spares(), 1);
    log.reserve(14 * BLOCK as usize).unwrap();
    log.reserve(blocks(7, 0).len()).unwrap();
    disk.set_bytes_max(0);
    commit(&mut log, &blocks(7, 0));
}

#[test]
fn a_segment_of_its_own_size_does_not_stay_as_a_spare() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    commit(&mut log, &blocks(100, 1));
    assert!(log.disk_bytes() > 100 * BLOCK);
    let last = commit(&mut log, b"small");
    log.release(last).unwrap();
    assert!(log.disk_bytes() <= 3 * OPTIONS.segment_bytes);
    log.reserve(100 * BLOCK as usize).unwrap();
    drop(log);
    let (log, _) = open_from(&disk, last).unwrap();
    assert!(log.disk_bytes() <= 3 * OPTIONS.segment_bytes);
    assert!(disk.bytes() <= log.disk_bytes());
}

#[test]
fn a_log_can_be_reopened_with_other_options() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    for byte in 0..10 {
        commit(&mut log, &blocks(3, byte));
    }
    drop(log);
    let larger = WalOptions { segment_bytes: 20 * BLOCK + 1, spare_segments: 3 };
    let mut log = Wal::open(Arc::new(disk.clone()), larger, START, &mut |_, _| Ok(())).unwrap();
    for byte in 10..30 {
        commit(&mut log, &blocks(3, byte));
    }
    drop(log);
    assert_eq!(open(&disk).1, (0..30).map(|byte| blocks(3, byte)).collect::<Vec<_>>());
}

#[test]
fn replay_can_refuse_a_batch() {
    let disk = SimDisk::new(0);
    let (mut log, _) = open(&disk);
    let one = commit(&mut log, b"one");
    drop(log);
    let refused = Wal::open(Arc::new(disk.clone()), OPTIONS, START, &mut |position, _| {
        Err(WalError::damaged(position.segment, position.offset, "no job is called that"))
    });
    assert!(matches!(refused, Err(WalError::Damaged { offset, .. }) if offset == one.offset));
}

#[test]
fn the_real_disk_behaves_the_same() {
    let scratch = Scratch::new("wal");
    std::fs::write(scratch.join("LOCK"), "not ours").unwrap();
    let options = WalOptions { segment_bytes: 1 << 18, spare_segments: 2 };
    let mut written = Vec::new();
    let mut kept = START;
    for round in 0..20_usize {
        let mut found = Vec::new();
        let disk = Arc::new(RealDisk::new(scratch.path()).unwrap());
        let replay = &mut |position: Position, body: &[u8]| {
            found.push((position, body.to_vec()));
            Ok(())
        };
        let mut log = Wal::open(disk, options, kept, replay).unwrap();
        assert_eq!(found, written);
        for number in 0..10 {
            let body = vec![number as u8; number * round * 1000];
            written.push((commit(&mut log, &body), body));
        }
        kept = written[written.len() / 2].0;
        log.release(kept).unwrap();
        written.retain(|(position, _)| *position >= kept);
    }
}
