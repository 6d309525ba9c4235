//! Plain-English times: what they mean, and what is refused.

use geartrain_core::schedule::{BadSchedule, Schedule, When, Zone, Zones, parse_past, parse_span};
use geartrain_core::{Seconds, Timestamp};

use super::{NOW, time, utc};

/// Phrases for moments: the instant, the same in milliseconds, and the seven fields that select it alone.
const MOMENTS: &[(&str, &str, u64, &str)] = &[
    ("now", "2014-03-05T09:34:16Z", 1_394_012_056_000, "2014 3 5 * 9 34 16"),
    ("5 minutes", "2014-03-05T09:39:16Z", 1_394_012_356_000, "2014 3 5 * 9 39 16"),
    ("in 5 minutes", "2014-03-05T09:39:16Z", 1_394_012_356_000, "2014 3 5 * 9 39 16"),
    ("90s", "2014-03-05T09:35:46Z", 1_394_012_146_000, "2014 3 5 * 9 35 46"),
    ("1h30m", "2014-03-05T11:04:16Z", 1_394_017_456_000, "2014 3 5 * 11 4 16"),
    ("an hour", "2014-03-05T10:34:16Z", 1_394_015_656_000, "2014 3 5 * 10 34 16"),
    ("half an hour", "2014-03-05T10:04:16Z", 1_394_013_856_000, "2014 3 5 * 10 4 16"),
    ("2 hours and 15 minutes", "2014-03-05T11:49:16Z", 1_394_020_156_000, "2014 3 5 * 11 49 16"),
    ("one day", "2014-03-06T09:34:16Z", 1_394_098_456_000, "2014 3 6 * 9 34 16"),
    ("3 days from now", "2014-03-08T09:34:16Z", 1_394_271_256_000, "2014 3 8 * 9 34 16"),
    ("2 weeks", "2014-03-19T09:34:16Z", 1_395_221_656_000, "2014 3 19 * 9 34 16"),
    ("in 1 month", "2014-04-05T09:34:16Z", 1_396_690_456_000, "2014 4 5 * 9 34 16"),
    ("1 year", "2015-03-05T09:34:16Z", 1_425_548_056_000, "2015 3 5 * 9 34 16"),
    ("7pm tomorrow", "2014-03-06T19:00:00Z", 1_394_132_400_000, "2014 3 6 * 19 0 0"),
    ("tomorrow at 7pm", "2014-03-06T19:00:00Z", 1_394_132_400_000, "2014 3 6 * 19 0 0"),
    ("tomorrow", "2014-03-06T00:00:00Z", 1_394_064_000_000, "2014 3 6 * 0 0 0"),
    ("12am tomorrow", "2014-03-06T00:00:00Z", 1_394_064_000_000, "2014 3 6 * 0 0 0"),
    ("12pm tomorrow", "2014-03-06T12:00:00Z", 1_394_107_200_000, "2014 3 6 * 12 0 0"),
    ("7pm", "2014-03-05T19:00:00Z", 1_394_046_000_000, "2014 3 5 * 19 0 0"),
    ("9am", "2014-03-06T09:00:00Z", 1_394_096_400_000, "2014 3 6 * 9 0 0"),
    ("9:34:16", "2014-03-06T09:34:16Z", 1_394_098_456_000, "2014 3 6 * 9 34 16"),
    ("19:30", "2014-03-05T19:30:00Z", 1_394_047_800_000, "2014 3 5 * 19 30 0"),
    ("7.30pm", "2014-03-05T19:30:00Z", 1_394_047_800_000, "2014 3 5 * 19 30 0"),
    ("noon", "2014-03-05T12:00:00Z", 1_394_020_800_000, "2014 3 5 * 12 0 0"),
    ("midnight", "2014-03-06T00:00:00Z", 1_394_064_000_000, "2014 3 6 * 0 0 0"),
    ("tonight", "2014-03-05T20:00:00Z", 1_394_049_600_000, "2014 3 5 * 20 0 0"),
    ("9pm tonight", "2014-03-05T21:00:00Z", 1_394_053_200_000, "2014 3 5 * 21 0 0"),
    ("today at 5pm", "2014-03-05T17:00:00Z", 1_394_038_800_000, "2014 3 5 * 17 0 0"),
    ("friday", "2014-03-07T00:00:00Z", 1_394_150_400_000, "2014 3 7 * 0 0 0"),
    ("friday at 5pm", "2014-03-07T17:00:00Z", 1_394_211_600_000, "2014 3 7 * 17 0 0"),
    ("wednesday", "2014-03-12T00:00:00Z", 1_394_582_400_000, "2014 3 12 * 0 0 0"),
    ("wednesday 5pm", "2014-03-05T17:00:00Z", 1_394_038_800_000, "2014 3 5 * 17 0 0"),
    ("wednesday 9am", "2014-03-12T09:00:00Z", 1_394_614_800_000, "2014 3 12 * 9 0 0"),
    ("this friday at 18:00", "2014-03-07T18:00:00Z", 1_394_215_200_000, "2014 3 7 * 18 0 0"),
    ("next friday at 18:00", "2014-03-14T18:00:00Z", 1_394_820_000_000, "2014 3 14 * 18 0 0"),
    ("next monday", "2014-03-10T00:00:00Z", 1_394_409_600_000, "2014 3 10 * 0 0 0"),
    ("next week", "2014-03-10T00:00:00Z", 1_394_409_600_000, "2014 3 10 * 0 0 0"),
    ("next month", "2014-04-01T00:00:00Z", 1_396_310_400_000, "2014 4 1 * 0 0 0"),
    ("day after tomorrow at 8am", "2014-03-07T08:00:00Z", 1_394_179_200_000, "2014 3 7 * 8 0 0"),
    ("2014-03-06", "2014-03-06T00:00:00Z", 1_394_064_000_000, "2014 3 6 * 0 0 0"),
    ("2014-03-06 19:00", "2014-03-06T19:00:00Z", 1_394_132_400_000, "2014 3 6 * 19 0 0"),
    ("2014-03-06T19:00:00Z", "2014-03-06T19:00:00Z", 1_394_132_400_000, "2014 3 6 * 19 0 0"),
    ("2014-03-07T06:00:00+11:00", "2014-03-06T19:00:00Z", 1_394_132_400_000, "2014 3 6 * 19 0 0"),
    ("25 december", "2014-12-25T00:00:00Z", 1_419_465_600_000, "2014 12 25 * 0 0 0"),
    ("december 25th at noon", "2014-12-25T12:00:00Z", 1_419_508_800_000, "2014 12 25 * 12 0 0"),
    ("1 march", "2015-03-01T00:00:00Z", 1_425_168_000_000, "2015 3 1 * 0 0 0"),
    ("29 february at 6am", "2016-02-29T06:00:00Z", 1_456_725_600_000, "2016 2 29 * 6 0 0"),
    ("monday 10 march 2014 at 9am", "2014-03-10T09:00:00Z", 1_394_442_000_000, "2014 3 10 * 9 0 0"),
    ("@1394132400", "2014-03-06T19:00:00Z", 1_394_132_400_000, "2014 3 6 * 19 0 0"),
];

/// Phrases for recurrences: the seven fields, and the first run.
const RECURRENCES: &[(&str, &str, &str)] = &[
    ("every second", "* * * * * * *", "2014-03-05T09:34:16Z"),
    ("every 5 seconds", "* * * * * * */5", "2014-03-05T09:34:20Z"),
    ("every 15 minutes", "* * * * * */15 0", "2014-03-05T09:45:00Z"),
    ("every hour", "* * * * * 0 0", "2014-03-05T10:00:00Z"),
    ("hourly", "* * * * * 0 0", "2014-03-05T10:00:00Z"),
    ("every 6 hours", "* * * * */6 0 0", "2014-03-05T12:00:00Z"),
    ("every 20 minutes from 9am to 5pm", "* * * * 9-17 */20 0", "2014-03-05T09:40:00Z"),
    ("every day at 7pm", "* * * * 19 0 0", "2014-03-05T19:00:00Z"),
    ("daily at 9am and 5pm", "* * * * 9,17 0 0", "2014-03-05T17:00:00Z"),
    ("every weekday at 9am", "* * * 1-5 9 0 0", "2014-03-06T09:00:00Z"),
    ("every weekend at noon", "* * * 0,6 12 0 0", "2014-03-08T12:00:00Z"),
    ("every monday", "* * * 1 0 0 0", "2014-03-10T00:00:00Z"),
    ("every monday and thursday at 8:30", "* * * 1,4 8 30 0", "2014-03-06T08:30:00Z"),
    ("every 2nd wednesday at 9am", "* * * 3/2 9 0 0", "2014-03-12T09:00:00Z"),
    ("every month on the 1st at 6am", "* * 1 * 6 0 0", "2014-04-01T06:00:00Z"),
    ("every year on 25 december at noon", "* 12 25 * 12 0 0", "2014-12-25T12:00:00Z"),
    ("weekly", "* * * 1 0 0 0", "2014-03-10T00:00:00Z"),
    ("monthly", "* * 1 * 0 0 0", "2014-04-01T00:00:00Z"),
    ("yearly", "* 1 1 * 0 0 0", "2015-01-01T00:00:00Z"),
];

fn parse(text: &str) -> Result<When, BadSchedule> {
    When::parse_phrase(text, time(NOW), &Zones::default())
}

#[test]
fn phrases_for_moments_mean_what_is_specified() {
    for (text, instant, milliseconds, cron) in MOMENTS {
        let found = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let When::Once(at) = found else { panic!("{text}: {found:?}") };
        assert_eq!(utc(at), *instant, "{text}");
        assert_eq!((at.get() * 1_000.0) as u64, *milliseconds, "{text}");
        let once = Schedule::once(at).unwrap();
        assert_eq!(once.canonical().as_deref(), Some(*cron), "{text}");
        assert_eq!((once.first(time(NOW)), once.next(at)), (Some(at), None), "{text}");
    }
}

#[test]
fn phrases_for_recurrences_mean_what_is_specified() {
    for (text, cron, first) in RECURRENCES {
        let found = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let When::Recurring(schedule) = found else { panic!("{text}: {found:?}") };
        assert_eq!(schedule.to_string(), *cron, "{text}");
        assert_eq!(schedule.first(time(NOW)).map(utc).as_deref(), Some(*first), "{text}");
    }
}

/// Beyond the specification's examples: the same now, and the meaning in UTC.
const MORE: &[(&str, &str)] = &[
    ("right now", "2014-03-05T09:34:16Z"),
    ("Immediately.", "2014-03-05T09:34:16Z"),
    ("5 minutes later", "2014-03-05T09:39:16Z"),
    ("In  5\tMINUTES", "2014-03-05T09:39:16Z"),
    ("1 hour, 30 minutes", "2014-03-05T11:04:16Z"),
    ("a minute and 30s", "2014-03-05T09:35:46Z"),
    ("twelve hours", "2014-03-05T21:34:16Z"),
    ("1mo", "2014-04-05T09:34:16Z"),
    ("1y2mo", "2015-05-05T09:34:16Z"),
    ("at 7pm", "2014-03-05T19:00:00Z"),
    ("7 pm", "2014-03-05T19:00:00Z"),
    ("7:30:15 pm tomorrow", "2014-03-06T19:30:15Z"),
    ("at noon tomorrow", "2014-03-06T12:00:00Z"),
    ("midday on friday", "2014-03-07T12:00:00Z"),
    ("on friday at 5pm", "2014-03-07T17:00:00Z"),
    ("5pm on the 25th of december", "2014-12-25T17:00:00Z"),
    ("the day after tomorrow", "2014-03-07T00:00:00Z"),
    ("midnight tomorrow", "2014-03-06T00:00:00Z"),
    ("this sunday", "2014-03-09T00:00:00Z"),
    ("next wednesday", "2014-03-12T00:00:00Z"),
    ("next sunday", "2014-03-16T00:00:00Z"),
    ("next week at 9am", "2014-03-10T09:00:00Z"),
    ("next year", "2015-01-01T00:00:00Z"),
    ("tues", "2014-03-11T00:00:00Z"),
    ("thurs 8am", "2014-03-06T08:00:00Z"),
    ("wednesday 10 am", "2014-03-05T10:00:00Z"),
    ("1 sept 2015", "2015-09-01T00:00:00Z"),
    ("march 10, 2014 at 9:00", "2014-03-10T09:00:00Z"),
    ("Monday, 10 March 2014, 9:00", "2014-03-10T09:00:00Z"),
    ("2014-03-06 at 7pm", "2014-03-06T19:00:00Z"),
    ("7pm on 2014-03-06", "2014-03-06T19:00:00Z"),
    ("2014-03-06t19:00", "2014-03-06T19:00:00Z"),
    ("2014-03-07 06:00+11:00", "2014-03-06T19:00:00Z"),
    ("2014-03-07 06:00:00 +11:00", "2014-03-06T19:00:00Z"),
    ("2014-03-06 13:30:00-05:30", "2014-03-06T19:00:00Z"),
    ("19:30z", "2014-03-05T19:30:00Z"),
    ("19:30 utc tomorrow", "2014-03-06T19:30:00Z"),
    ("2026-12-24 18:00 Europe/Berlin", "2026-12-24T17:00:00Z"),
    ("2026-12-24T18:00 europe/berlin", "2026-12-24T17:00:00Z"),
    ("24 december 2026 at 6pm Europe/Berlin", "2026-12-24T17:00:00Z"),
    ("6pm Europe/Berlin on 24 december 2026", "2026-12-24T17:00:00Z"),
    ("7pm tomorrow America/New_York", "2014-03-07T00:00:00Z"),
    // It is still 4 March in Honolulu's evening before 10:00 UTC.
    ("today at 11:45pm Pacific/Honolulu", "2014-03-05T09:45:00Z"),
    ("tomorrow Pacific/Honolulu", "2014-03-05T10:00:00Z"),
];

#[test]
fn phrases_beyond_the_specification_are_understood() {
    for (text, instant) in MORE {
        let found = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(found, When::Once(time(instant)), "{text}");
    }
}

/// Recurrences beyond the specification's examples.
const MORE_RECURRENCES: &[(&str, &str)] = &[
    ("weekdays at 9:00", "* * * 1-5 9 0 0"),
    ("on weekends at 10am", "* * * 0,6 10 0 0"),
    ("mondays and thursdays at 8:30", "* * * 1,4 8 30 0"),
    ("every 5 seconds from 9am to 5pm on wednesdays", "* * * 3 9-17 * */5"),
    ("every 5 seconds on wednesdays and sundays from 9am to 5pm", "* * * 0,3 9-17 * */5"),
    ("every 20 minutes on weekdays", "* * * 1-5 * */20 0"),
    ("every hour from 9:00 to 17:00", "* * * * 9-17 0 0"),
    ("every 2 hours from 9am to 5pm", "* * * * 9-17/2 0 0"),
    ("every minute", "* * * * * * 0"),
    ("each 30s", "* * * * * * */30"),
    ("every five minutes", "* * * * * */5 0"),
    ("every 60 minutes", "* * * * * 0 0"),
    ("every 24 hours", "* * * * 0 0 0"),
    ("every 1 day", "* * * * 0 0 0"),
    ("every day at 9am, 1pm and 5pm", "* * * * 9-17/4 0 0"),
    ("every weekend", "* * * 0,6 0 0 0"),
    ("every week at 8:15", "* * * 1 8 15 0"),
    ("every month", "* * 1 * 0 0 0"),
    ("every month on the 31st at noon", "* * 31 * 12 0 0"),
    ("every year on december 25th", "* 12 25 * 0 0 0"),
    ("every year on 29 february", "* 2 29 * 0 0 0"),
    ("every mon, wed and fri at 7am", "* * * 1-5/2 7 0 0"),
    ("every second wednesday at 9am", "* * * 3/2 9 0 0"),
    ("every fifth friday", "* * * 5/5 0 0 0"),
    ("every 2nd sunday at 7pm", "* * * 0/2 19 0 0"),
    ("annually at 6am", "* 1 1 * 6 0 0"),
    ("daily at 9:00z", "* * * * 9 0 0"),
    ("every day at 7pm Europe/Berlin", "CRON_TZ=Europe/Berlin * * * * 19 0 0"),
    ("weekdays at 9:00 america/new_york", "CRON_TZ=America/New_York * * * 1-5 9 0 0"),
    ("every day UTC at 7pm", "* * * * 19 0 0"),
];

#[test]
fn recurrences_beyond_the_specification_are_understood() {
    for (text, cron) in MORE_RECURRENCES {
        let found = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(found, When::Recurring(Schedule::parse(cron).unwrap()), "{text}");
        let When::Recurring(schedule) = found else { unreachable!() };
        assert_eq!(schedule.to_string(), *cron, "{text}");
    }
}

/// Refused phrases: the byte and the words that are wrong, and a part of the reason.
const REFUSED: &[(&str, usize, &str, &str)] = &[
    ("every 7 minutes", 6, "7 minutes", "7 does not divide 60"),
    ("every 2 days", 6, "2 days", "not expressible exactly"),
    ("every 2 weeks", 6, "2 weeks", "not expressible exactly"),
    (
        "every other sunday",
        6,
        "other",
        "every 2nd sunday is the 2nd and the 4th sunday of each month; every 14 days",
    ),
    ("every other friday", 6, "other", "ambiguous"),
    ("every day at 9am and 5:30pm", 21, "5:30pm", "share minute and second"),
    ("yesterday", 0, "yesterday", "past"),
    ("5 march 2013", 0, "5 march 2013", "past"),
    ("today", 0, "today", "past"),
    ("midnight today", 0, "midnight today", "past"),
    ("0 minutes", 0, "0 minutes", "positive"),
    ("25:00", 0, "25:00", "no such time"),
    ("13pm", 0, "13pm", "no such time"),
    ("tuesday 10 march 2014", 0, "tuesday 10 march 2014", "is a monday"),
    ("30 february", 0, "30 february", "no such date"),
    ("soon", 0, "soon", "not understood"),
    ("", 0, "", "expected a time"),
    ("  , ", 4, "", "expected a time"),
    (".", 1, "", "expected a time"),
    ("7pm tomorow", 4, "tomorow", "not understood"),
    ("7pm tomorrow please", 13, "please", "not understood"),
    ("tomorrow at", 11, "", "time of day"),
    ("tomorrow at seven", 12, "seven", "time of day"),
    ("at 7", 3, "7", "write 7am, 7pm or 19:00"),
    ("7", 0, "7", "write 7am, 7pm or 19:00"),
    ("tomorrow 7", 9, "7", "not understood"),
    ("tomorrow at 7pm at 8pm", 16, "at", "not understood"),
    ("7pm 8pm", 4, "8pm", "not understood"),
    ("tomorrow friday", 9, "friday", "not understood"),
    ("7.30", 0, "7.30", "am or pm"),
    ("9:60", 0, "9:60", "no such time"),
    ("24:00", 0, "24:00", "no such time"),
    ("0am", 0, "0am", "no such time"),
    ("7:5pm", 0, "7:5pm", "no such time"),
    ("7:30:60 pm", 0, "7:30:60 pm", "no such time"),
    ("friday at 19:00pm", 10, "19:00pm", "no such time"),
    ("in", 2, "", "duration"),
    ("in tomorrow", 3, "tomorrow", "duration"),
    ("in 5", 3, "5", "duration"),
    ("in 5 minutes tomorrow", 13, "tomorrow", "not understood"),
    ("in 5 minutes from now", 13, "from", "not understood"),
    ("5 minutes and", 13, "", "after `and`"),
    ("5 minutes ago", 0, "5 minutes ago", "past"),
    ("1.5 hours", 0, "1.5", "am or pm"),
    ("9999999999 hours", 0, "9999999999", "too large"),
    ("999999999 weeks", 0, "999999999 weeks", "calendar"),
    ("99999 years", 0, "99999 years", "calendar"),
    ("9000 years", 0, "9000 years", "calendar"),
    ("this monday", 0, "this monday", "past"),
    ("this", 4, "", "weekday"),
    ("next", 4, "", "weekday, week, month or year"),
    ("next time", 5, "time", "weekday, week, month or year"),
    ("last friday", 0, "last", "not understood"),
    ("friday 25 december", 18, "", "year"),
    ("friday 25 december at noon", 19, "at", "year"),
    ("32 march", 0, "32", "no such day"),
    ("0 march", 0, "0", "no such day"),
    ("march", 5, "", "day of the month"),
    ("31 april", 0, "31 april", "no such date"),
    ("29 february 2015", 0, "29 february 2015", "no such date"),
    ("2014-02-30", 0, "2014-02-30", "no such date"),
    ("2014-13-01 12:00", 0, "2014-13-01", "no such date"),
    ("2014-03-06T25:00", 0, "2014-03-06T25:00", "no such time"),
    ("2014-03-06T19:00+26:00", 0, "2014-03-06T19:00+26:00", "offset"),
    ("2014-03-06T19:00+2", 0, "2014-03-06T19:00+2", "offset"),
    ("2014-03-06T19:00Z Europe/Berlin", 18, "Europe/Berlin", "not understood"),
    ("2014-03-06T19:00:00.5Z", 0, "2014-03-06T19:00:00.5Z", "no such time"),
    ("2014-03-05T09:34:16Z", 0, "2014-03-05T09:34:16Z", "past"),
    ("25/12/2014", 0, "25/12/2014", "not understood"),
    ("@", 0, "@", "seconds since the epoch"),
    ("@12x", 0, "@12x", "seconds since the epoch"),
    ("@99999999999999", 0, "@99999999999999", "seconds since the epoch"),
    ("@1000", 0, "@1000", "past"),
    ("@1394132400 utc", 12, "utc", "not understood"),
    ("7pm est", 4, "est", "ambiguous"),
    ("7pm Mars/Olympus", 4, "Mars/Olympus", "no time zone"),
    ("7pm utc Europe/Berlin", 8, "Europe/Berlin", "second time zone"),
    ("now please", 4, "please", "not understood"),
    ("every", 5, "", "expected second, minute"),
    ("every tomorrow", 6, "tomorrow", "expected second, minute"),
    ("every 5", 7, "", "seconds, minutes or hours"),
    ("every 5 apples", 8, "apples", "seconds, minutes or hours"),
    ("every 0 minutes", 6, "0 minutes", "at least 1"),
    ("every 5 hours", 6, "5 hours", "5 does not divide 24"),
    ("every 90 minutes", 6, "90 minutes", "90 does not divide 60"),
    ("every 3 months", 6, "3 months", "not expressible"),
    ("every 1st monday", 6, "1st", "first one of each month"),
    ("every first monday", 6, "first", "first one of each month"),
    ("every 2nd day", 10, "day", "weekday"),
    ("every 6th monday", 6, "6th", "seconds, minutes or hours"),
    ("every monday and", 16, "", "weekday"),
    ("every monday at", 15, "", "time of day"),
    ("every monday at 9", 16, "9", "time of day"),
    ("every monday at 9am and", 23, "", "time of day"),
    ("every monday at 9am until june", 20, "until", "not understood"),
    ("every weekday except friday", 14, "except", "not understood"),
    ("every monday 9am", 13, "9am", "not understood"),
    ("every hour at 9am", 11, "at", "goes with days"),
    ("every day from 9am to 5pm", 10, "from", "every so many"),
    ("every day on mondays", 10, "on", "given already"),
    ("every 5 minutes from 9am", 24, "", "`to`"),
    ("every 5 minutes from 9:30 to 17:00", 21, "9:30", "whole hour"),
    ("every 5 minutes from 10pm to 2am", 21, "10pm to 2am", "backwards"),
    ("every 5 minutes on monday", 19, "monday", "weekdays such as mondays"),
    ("every 5 minutes tomorrow", 16, "tomorrow", "not understood"),
    ("every month on 5", 15, "5", "`the`"),
    ("every month on the 32nd", 19, "32nd", "no such day"),
    ("every month on the last", 19, "last", "day of the month"),
    ("every year on 30 february", 14, "30 february", "no such date"),
    ("every year on friday", 14, "friday", "day and a month"),
    ("mondays and friday", 12, "friday", "weekdays such as mondays"),
    ("weekly on friday", 7, "on", "given already"),
    ("daily at noon est", 14, "est", "ambiguous"),
    ("hourly at 9am", 7, "at", "goes with days"),
    ("morgen um 7 Uhr", 0, "morgen", "not understood"),
    ("7pm tömorrow", 4, "tömorrow", "not understood"),
];

#[test]
fn phrases_that_are_not_understood_are_refused_at_the_right_word() {
    for (text, position, word, reason) in REFUSED {
        let error = parse(text).expect_err(text);
        assert_eq!((error.position, error.word.as_str()), (*position, *word), "{text}: {error}");
        assert!(error.reason.contains(reason), "{text}: {error}");
    }
}

#[test]
fn a_fraction_of_a_second_is_rounded_away_from_the_past() {
    let parse = |text: &str, now: &str| When::parse(text, time(now), &Zones::default()).unwrap();
    assert_eq!(parse("5 minutes", "2014-03-05T09:34:16.500Z"), When::Once(time("2014-03-05T09:39:17Z")));
    assert_eq!(parse("now", "2014-03-05T09:34:16.500Z"), When::Once(time(NOW)));
    assert_eq!(parse("1 month", "2014-01-31T10:00:00Z"), When::Once(time("2014-02-28T10:00:00Z")));
    assert_eq!(parse("1 month", "2014-01-30T23:59:59.5Z"), When::Once(time("2014-03-01T00:00:00Z")));
}

#[test]
fn a_text_is_cron_or_a_phrase_without_guessing() {
    let parse = |text: &str| When::parse(text, time(NOW), &Zones::default());
    for (text, cron) in [
        ("* * * 0/2 19 0 0", "* * * 0/2 19 0 0"),
        ("0 9 * * 1-5", "* * * 1-5 9 0 0"),
        ("0 9 1 1 mon", "* 1 1 1 9 0 0"),
        ("@daily", "* * * * 0 0 0"),
        ("CRON_TZ=Europe/Berlin 0 9 1 1 1", "CRON_TZ=Europe/Berlin * 1 1 1 9 0 0"),
        ("every day at 9am", "* * * * 9 0 0"),
    ] {
        assert_eq!(parse(text), Ok(When::Recurring(Schedule::parse(cron).unwrap())), "{text}");
    }
    assert_eq!(parse("@1394132400"), Ok(When::Once(time("2014-03-06T19:00:00Z"))));
    assert_eq!(parse("2014-03-06 7 pm Europe/Berlin"), Ok(When::Once(time("2014-03-06T18:00:00Z"))));
    assert_eq!(parse("0 9 * * 8").unwrap_err().position, 8);
}

#[test]
fn zones_of_the_caller_differ_for_moments_and_recurrences() {
    let berlin = Zone::named("Europe/Berlin").unwrap();
    let zones = Zones { once: berlin.clone(), recurring: Zone::UTC };
    let parse = |text: &str, zones: &Zones| When::parse(text, time(NOW), zones).unwrap();
    assert_eq!(parse("7pm", &zones), When::Once(time("2014-03-05T18:00:00Z")));
    assert_eq!(parse("7pm utc", &zones), When::Once(time("2014-03-05T19:00:00Z")));
    assert_eq!(parse("19:00z", &zones), When::Once(time("2014-03-05T19:00:00Z")));
    for text in ["daily at 7pm", "0 19 * * *"] {
        let When::Recurring(utc) = parse(text, &zones) else { panic!() };
        assert_eq!(*utc.zone(), Zone::UTC);
        let When::Recurring(local) = parse(text, &Zones::both(berlin.clone())) else { panic!() };
        assert_eq!(*local.zone(), berlin);
    }
    // In local time the month has one hour less, and the job still runs at the same time of day.
    assert_eq!(parse("1 month", &zones), When::Once(time("2014-04-05T08:34:16Z")));
}

#[test]
fn moments_in_a_clock_change_are_refused_and_dates_begin_with_their_first_instant() {
    let zones = |name: &str| Zones::both(Zone::named(name).unwrap());
    let parse = |text: &str, zone: &str, now: &str| When::parse(text, time(now), &zones(zone));
    let skipped = parse("2026-03-29 02:30", "Europe/Berlin", "2026-03-01T00:00:00Z").unwrap_err();
    assert!(skipped.reason.contains("does not exist in Europe/Berlin"), "{skipped}");
    let doubled = parse("2026-10-25 at 2:30am", "Europe/Berlin", "2026-03-01T00:00:00Z").unwrap_err();
    assert!(
        doubled.reason.contains("write 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00"),
        "{doubled}"
    );
    assert_eq!(doubled.position, 0);
    // Between the passes only the second is left.
    let found = parse("2:30", "Europe/Berlin", "2026-10-25T00:45:00Z");
    assert_eq!(found, Ok(When::Once(time("2026-10-25T01:30:00Z"))));
    let found = parse("2:30", "Europe/Berlin", "2026-10-25T01:45:00Z");
    assert_eq!(found, Ok(When::Once(time("2026-10-26T01:30:00Z"))));
    // Midnight is skipped in Santiago on 6 September 2026.
    let found = parse("2026-09-06", "America/Santiago", "2026-09-01T00:00:00Z");
    assert_eq!(found, Ok(When::Once(time("2026-09-06T04:00:00Z"))));
    assert!(parse("midnight 2026-09-06", "America/Santiago", "2026-09-01T00:00:00Z").is_err());
}

#[test]
fn moments_in_the_past_are_understood_where_they_are_asked_for() {
    for (text, instant) in [
        ("now", NOW),
        ("yesterday", "2014-03-04T00:00:00Z"),
        ("today", "2014-03-05T00:00:00Z"),
        ("2 hours ago", "2014-03-05T07:34:16Z"),
        ("2h", "2014-03-05T07:34:16Z"),
        ("half an hour ago", "2014-03-05T09:04:16Z"),
        ("1 month ago", "2014-02-05T09:34:16Z"),
        ("2014-03-01", "2014-03-01T00:00:00Z"),
        ("2014-03-01 12:00", "2014-03-01T12:00:00Z"),
        ("2014-03-01T12:00+01:00", "2014-03-01T11:00:00Z"),
        ("yesterday at 5pm", "2014-03-04T17:00:00Z"),
        ("9am", "2014-03-05T09:00:00Z"),
        ("10am", "2014-03-04T10:00:00Z"),
        ("wednesday", "2014-03-05T00:00:00Z"),
        ("wednesday 10am", "2014-02-26T10:00:00Z"),
        ("monday", "2014-03-03T00:00:00Z"),
        ("this monday", "2014-03-03T00:00:00Z"),
        ("1 march", "2014-03-01T00:00:00Z"),
        ("25 december", "2013-12-25T00:00:00Z"),
        ("29 february", "2012-02-29T00:00:00Z"),
        ("@1000", "1970-01-01T00:16:40Z"),
        ("2014-03-05T09:34:16Z", NOW),
    ] {
        let found = parse_past(text, time(NOW), &Zone::UTC);
        assert_eq!(found, Ok(time(instant)), "{text}");
    }
    for text in ["tomorrow", "in 2 hours", "2 hours from now", "next week", "2014-03-06", "tonight"] {
        let error = parse_past(text, time(NOW), &Zone::UTC).expect_err(text);
        assert!(error.reason.contains("future"), "{text}: {error}");
    }
    for text in ["", "soon", "every day", "yesterday 25:00", "2 hours ago please"] {
        assert!(parse_past(text, time(NOW), &Zone::UTC).is_err(), "{text}");
    }
}

#[test]
fn spans_are_durations_of_a_fixed_length() {
    for (text, seconds) in [
        ("5 minutes", 300),
        ("in 5 minutes", 300),
        ("1h30m", 5_400),
        ("1h 30m", 5_400),
        ("2 hours and 15 minutes", 8_100),
        ("half an hour", 1_800),
        ("an hour and a half an hour", 0),
        ("2 weeks", 1_209_600),
        ("1 month", 0),
        ("1y", 0),
        ("5", 0),
        ("5 minutes ago", 0),
        ("0s", 0),
        ("", 0),
        ("tomorrow", 0),
    ] {
        // Zero stands for an error.
        assert_eq!(parse_span(text).ok(), (seconds != 0).then_some(Seconds::from(seconds)), "{text}");
    }
    assert!(parse_span("in 1 month").unwrap_err().reason.contains("no fixed length"));
}

#[test]
fn a_time_out_of_the_calendar_is_refused() {
    for now in [f64::MAX, f64::MIN, 2.6e11, -4e11] {
        assert!(When::parse("tomorrow", Timestamp::new(now).unwrap(), &Zones::default()).is_err());
    }
    assert!(When::parse("tomorrow", time("9999-12-30T12:00:00Z"), &Zones::default()).is_err());
}

/// All phrases of this module, as samples for random texts.
pub(super) fn texts() -> impl Iterator<Item = &'static str> {
    let recurring = RECURRENCES.iter().map(|row| row.0).chain(MORE_RECURRENCES.iter().map(|row| row.0));
    let once = MOMENTS.iter().map(|row| row.0).chain(MORE.iter().map(|row| row.0));
    once.chain(recurring).chain(REFUSED.iter().map(|row| row.0))
}
