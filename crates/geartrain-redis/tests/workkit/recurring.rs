//! Recurring jobs on a WorkKit schedule.

use geartrain_core::{Count, Period, PeriodicTemplate, Periodics, PutPeriodic, Release, RemovePeriodic};
use geartrain_testkit::peers::RedisServer;

use super::peer::Peer;
use super::{NOW_MS, ask, at, complete, connect, jid, pop, put, run_at, take};

/// A recurring job of the function a/b.
pub(super) fn periodic(cron: &str, args: &str) -> PutPeriodic {
    PutPeriodic::new(PeriodicTemplate::new(put(args), Period::Cron(cron.to_owned())), at(0.0))
}

fn score(redis: &RedisServer) -> i64 {
    let entries = Peer::of(redis, "s").entries();
    assert_eq!(entries.len(), 1);
    entries[0].1 as i64 - NOW_MS
}

#[test]
fn a_recurring_job_moves_to_its_next_run_when_it_is_claimed() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    assert_eq!(run_at(&*backend, 0.5, periodic("* * * * * * *", "[]")), Ok(true));
    assert_eq!(run_at(&*backend, 9.0, periodic("* * * * * * *", "[]")), Ok(false));
    assert_eq!(score(&redis), 0, "the current second counts");
    let job = take(&*backend, 4.3).unwrap();
    assert_eq!(score(&redis), 5_000, "runs that were missed are skipped");
    run_at(&*backend, 4.4, complete(&job)).unwrap();
    assert_eq!(score(&redis), 5_000);
    assert!(take(&*backend, 4.9).is_none());
    assert!(take(&*backend, 5.0).is_some());

    let patient = connect(&redis, "?catch_up=true");
    for second in 6..9 {
        let job = take(&*patient, 8.0).unwrap();
        run_at(&*patient, 8.0, complete(&job)).unwrap();
        assert_eq!(score(&redis), i64::from(second) * 1_000 + 1_000);
    }
    assert!(take(&*patient, 8.0).is_none());
}

#[test]
fn a_released_run_does_not_repeat_later_ones() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "?catch_up=true");
    run_at(&*backend, 0.0, periodic("* * * * * * *", "[]")).unwrap();
    // No later run was claimed: it goes back to its own time, and those after it follow.
    let job = take(&*backend, 1.5).unwrap();
    run_at(&*backend, 1.5, Release::of(&job)).unwrap();
    assert_eq!(score(&redis), 0);
    let first = take(&*backend, 1.5).unwrap();
    let second = take(&*backend, 1.5).unwrap();
    assert_eq!(score(&redis), 2_000);
    // The second was claimed since: it must not run again with the first.
    run_at(&*backend, 1.7, Release::of(&first)).unwrap();
    assert_eq!(score(&redis), 1_700);
    let again = take(&*backend, 1.7).unwrap();
    assert_eq!(score(&redis), 2_000);
    for job in [second, again] {
        run_at(&*backend, 1.8, complete(&job)).unwrap();
    }
}

#[test]
fn the_last_run_of_a_cron_string_removes_the_job() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    assert_eq!(run_at(&*backend, 0.0, periodic("2014 3 5 * 9 34 17,18", "[]")), Ok(true));
    for second in [1.0, 2.0] {
        let job = take(&*backend, second).unwrap();
        run_at(&*backend, second, complete(&job)).unwrap();
    }
    assert_eq!(super::keys(&redis), ["geartrain:wk:schedules"]);
}

#[test]
fn overlapping_runs_have_leases_of_their_own() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    run_at(&*backend, 0.0, periodic("* * * * * * *", "[]")).unwrap();
    let (first, second) = (take(&*backend, 0.0).unwrap(), take(&*backend, 1.0).unwrap());
    assert_eq!(first.jid, second.jid);
    assert!(run_at(&*backend, 1.0, complete(&first)).is_ok());
    assert!(run_at(&*backend, 1.0, complete(&second)).is_ok());

    let alone = connect(&redis, "?no_overlap=true&lease=10");
    let running = take(&*alone, 2.0).unwrap();
    assert!(take(&*alone, 3.0).is_none());
    assert_eq!(score(&redis), 4_000, "the run is skipped");
    run_at(&*alone, 3.5, complete(&running)).unwrap();
    assert!(take(&*alone, 4.0).is_some());
    assert!(take(&*alone, 13.9).is_none());
    assert!(take(&*alone, 14.0).is_some(), "the lease of the run before it has expired");
}

#[test]
fn a_lost_run_is_repeated_if_the_listener_says_so() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "?lease=5");
    run_at(&*backend, 0.0, periodic("* * * * * 0 0", "[]")).unwrap();
    let due = 25.0 * 60.0 + 44.0; // 10:00:00
    assert!(take(&*backend, due).is_some());
    assert!(take(&*backend, due + 60.0).is_none(), "the next run is queued already");
    assert_eq!(
        ask::<u64>(redis.port(), &["EXISTS", "geartrain:wk:s:inflight", "geartrain:wk:s:owner"]).unwrap(),
        0
    );

    let repeats = connect(&redis, "?lease=5&repeat=true");
    assert!(take(&*repeats, due + 3_600.0).is_some());
    let again = take(&*repeats, due + 3_605.0).unwrap();
    run_at(&*repeats, due + 3_606.0, complete(&again)).unwrap();
    assert_eq!(score(&redis), (due as i64 + 7_200) * 1_000);
}

#[test]
fn a_recurring_job_of_a_dead_foreign_listener_is_queued_again() {
    let redis = RedisServer::start(&[]);
    let (backend, peer) = (connect(&redis, ""), Peer::of(&redis, "s"));
    let payload = r##"{"args":[],"cron":"* * * * * * 0","job":"#'a\/b"}"##;
    let once = r##"{"args":[],"cron":"2014 3 5 * 9 34 16","job":"#'a\/b"}"##;
    for (id, payload) in [("every-minute", payload), ("once", once)] {
        ask::<i64>(redis.port(), &["HSET", "s:jobs", id, payload]).unwrap();
    }
    // The first pop begins to watch, and two looks a minute apart find them.
    for seconds in [0.0, 30.0, 61.0] {
        assert!(take(&*backend, seconds).is_none());
        assert_eq!(peer.entries(), []);
    }
    assert!(take(&*backend, 122.0).is_none());
    // A job that runs once may be running elsewhere.
    assert_eq!(peer.entries(), [(r#"{"id":"every-minute"}"#.to_owned(), NOW_MS as f64 + 164_000.0)]);
    assert_eq!(take(&*backend, 164.0).unwrap().jid, jid("every-minute"));
}

#[test]
fn recurring_jobs_are_listed_and_removed() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    run_at(&*backend, 0.0, put("[]")).unwrap();
    run_at(&*backend, 0.0, periodic("* * * * 9-17 */20 0", "[1]")).unwrap();
    // Cron of five fields is stored as seven.
    run_at(&*backend, 0.0, periodic("0 12 * * mon-fri", "[2]")).unwrap();
    let all = Periodics { only: None, after: None, count: Count::MAX };
    let listed = run_at(&*backend, 0.0, all).unwrap().periodics;
    let mut crons: Vec<Period> = listed.iter().map(|periodic| periodic.template.every.clone()).collect();
    crons.sort_by_key(|period| format!("{period:?}"));
    let cron = |text: &str| Period::Cron(text.to_owned());
    assert_eq!(crons, [cron("* * * * 9-17 */20 0"), cron("* * * 1-5 12 0 0")]);
    let first = listed.iter().find(|periodic| periodic.template.put.payload.text() == Some("[1]")).unwrap();
    assert_eq!(first.next, Some(at(344.0)));
    let id = first.template.put.jid.clone();
    assert_eq!(backend.periodic_jid(&periodic("* * * * 9-17 */20 0", "[1]").template), Some(id.clone()));
    assert_eq!(backend.periodic_jid(&periodic("never", "[1]").template), None);
    assert_eq!(run_at(&*backend, 0.0, Periodics::one(id.clone())).unwrap().periodics.len(), 1);
    assert_eq!(run_at(&*backend, 0.0, RemovePeriodic { jid: id.clone() }), Ok(true));
    assert_eq!(run_at(&*backend, 0.0, RemovePeriodic { jid: id }), Ok(false));
    assert_eq!(run_at(&*backend, 0.0, pop(9)).unwrap().jobs.len(), 1);
}

#[test]
fn a_run_that_is_long_overdue_shows_that_no_listener_is_there() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "?catch_up=true");
    let watched = |seconds| {
        let all = Periodics { only: None, after: None, count: Count::MAX };
        run_at(&*backend, seconds, all).unwrap().watched
    };
    run_at(&*backend, 0.0, periodic("* * * * * * *", "[]")).unwrap();
    assert_eq!(watched(0.0), Some(at(0.0)));
    assert_eq!(watched(60.0), Some(at(0.0)));
    // A listener that makes up missed runs is behind, but it is there.
    let job = take(&*backend, 60.0).unwrap();
    assert_eq!((score(&redis), watched(60.0)), (1_000, Some(at(60.0))));
    run_at(&*backend, 60.0, complete(&job)).unwrap();
    assert_eq!(watched(60.0), Some(at(1.0)));
}

/// A string may be valid in both orders: `* * * 1 5 3 *` is Mondays from 05:03:00 to 05:03:59, and in the order of
/// Cuckoo all of the 5th of January if that is a Wednesday.
#[test]
fn a_recurring_job_means_the_same_in_the_order_of_cuckoo() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "?cron_order=cuckoo");
    let made = periodic("* * * 1 5 3 *", "[]");
    run_at(&*backend, 0.0, made.clone()).unwrap();
    let id = backend.periodic_jid(&made.template).unwrap();
    let text: String = ask(redis.port(), &["HGET", "s:jobs", &id.to_string()]).unwrap();
    assert_eq!(text, r##"{"args":[],"cron":"* 3 5 * * 1 *","job":"#'a\/b"}"##);
    let listed = run_at(&*backend, 0.0, Periodics::one(id)).unwrap().periodics.remove(0);
    assert_eq!(listed.template.every, made.template.every);
    assert_eq!(listed.next, made.template.first_run(at(0.0)));
}

#[test]
fn cron_strings_in_the_order_of_cuckoo_are_read_and_written() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "?cron_order=cuckoo");
    let id = super::named(run_at(&*backend, 0.0, put("[]")).unwrap()).to_string();
    let text: String = ask(redis.port(), &["HGET", "s:jobs", &id]).unwrap();
    assert_eq!(text, r##"{"args":[],"cron":"16 34 9 3 5 * 2014","job":"#'a\/b"}"##);
    assert!(take(&*backend, 0.0).is_some());
    Peer::of(&redis, "s").enqueue("x", r##"{"cron":"*/20 * * * * *","job":"#'a\/b"}"##, NOW_MS);
    assert!(take(&*backend, 1.0).is_some());
    assert_eq!(score(&redis), 4_000);
}
