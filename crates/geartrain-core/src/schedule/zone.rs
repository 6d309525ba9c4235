//! Time zones by their IANA names.

use std::fmt;

use jiff::tz::TimeZone;

use crate::Timestamp;

/// A time zone: UTC, one of the IANA database, or the machine's own.
///
/// The database is the system's (`/usr/share/zoneinfo`, or the directory in `TZDIR`). UTC needs none.
///
/// ```
/// use geartrain_core::schedule::Zone;
/// assert_eq!(Zone::named("europe/berlin")?.name(), Some("Europe/Berlin"));
/// assert!(Zone::named("Mars/Olympus").is_err());
/// # Ok::<(), geartrain_core::schedule::UnknownZone>(())
/// ```
#[derive(Clone)]
pub struct Zone(TimeZone);

/// A zone that the time-zone database does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownZone {
    /// There is a database, and the name is not in it.
    #[error("there is no time zone {0:?}: write a name such as Europe/Berlin or America/New_York")]
    Name(String),
    /// There is no database.
    #[error(
        "the time zone {0:?} cannot be looked up: this machine has no time-zone database (install the package \
         tzdata, or set TZDIR to a zoneinfo directory); UTC works without it"
    )]
    NoDatabase(String),
}

/// Offsets are shorter than this, in seconds: 25:59:59 at most.
pub(super) const OFFSET_BOUND: i64 = 26 * 3_600;

/// An instant with one offset before it and one from it on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transition {
    /// Seconds since the epoch.
    pub(super) at: i64,
    pub(super) before: i64,
    pub(super) after: i64,
}

impl Zone {
    /// Coordinated universal time.
    pub const UTC: Zone = Zone(TimeZone::UTC);

    /// The zone with an IANA name, in any case; `UTC` and `Z` without the database.
    pub fn named(name: &str) -> Result<Zone, UnknownZone> {
        if ["utc", "z", "etc/utc"].iter().any(|utc| name.eq_ignore_ascii_case(utc)) {
            return Ok(Zone::UTC);
        }
        match jiff::tz::db().get(name) {
            Ok(zone) if zone.iana_name().is_some() => Ok(Zone(zone)),
            _ if jiff::tz::db().is_definitively_empty() => Err(UnknownZone::NoDatabase(name.to_owned())),
            _ => Err(UnknownZone::Name(name.to_owned())),
        }
    }

    /// The zone of this machine: `TZ`, or else the system's setting; none if neither is known. It reads the
    /// environment and belongs to the edge of a program, like the clock.
    pub fn system() -> Option<Zone> {
        let zone = TimeZone::try_system().ok()?;
        Some(match zone.iana_name() {
            Some(name) if Zone::named(name).is_ok_and(|zone| zone.is_utc()) => Zone::UTC,
            _ => Zone(zone),
        })
    }

    /// The IANA name; none for a zone of the machine that has no name.
    pub fn name(&self) -> Option<&str> {
        if self.is_utc() { Some("UTC") } else { self.0.iana_name() }
    }

    /// Whether it is UTC.
    pub fn is_utc(&self) -> bool {
        self.0 == TimeZone::UTC
    }

    /// A timestamp in this zone to the second, in RFC 3339 with the offset: `2026-03-29T03:00:00+02:00`.
    ///
    /// A timestamp outside of the years −9999 to 9999 is written in seconds since the epoch.
    pub fn format(&self, time: Timestamp) -> String {
        let seconds = time.get().floor();
        match jiff::Timestamp::from_second(seconds as i64) {
            Ok(time) if self.is_utc() => time.to_string(),
            Ok(time) => time.display_with_offset(self.0.to_offset(time)).to_string(),
            // jiff ends a day earlier than the calendar of the seven fields.
            Err(_) => super::utc_text(seconds).unwrap_or_else(|| time.to_string()),
        }
    }

    pub(super) fn inner(&self) -> &TimeZone {
        &self.0
    }

    /// The offset at an instant; none after the last instant that jiff knows.
    pub(super) fn offset(&self, at: i64) -> Option<i64> {
        let at = jiff::Timestamp::from_second(at).ok()?;
        Some(i64::from(self.0.to_offset(at).seconds()))
    }

    /// The latest transition at or before an instant.
    pub(super) fn latest_transition(&self, at: i64) -> Option<Transition> {
        let after = jiff::Timestamp::from_second(at + 1).ok()?;
        let found = self.0.preceding(after).next()?;
        let at = found.timestamp().as_second();
        Some(Transition { at, before: self.offset(at - 1)?, after: i64::from(found.offset().seconds()) })
    }

    /// The first transition after an instant. `before` is the offset at the instant.
    pub(super) fn next_transition(&self, after: i64, before: i64) -> Option<Transition> {
        let found = self.0.following(jiff::Timestamp::from_second(after).ok()?).next()?;
        let at = found.timestamp().as_second();
        Some(Transition { at, before, after: i64::from(found.offset().seconds()) })
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Zone) -> bool {
        self.0 == other.0
    }
}

impl Eq for Zone {}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.name().unwrap_or("system"))
    }
}

impl fmt::Display for Zone {
    /// Its name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().unwrap_or("the zone of this machine"))
    }
}

impl std::str::FromStr for Zone {
    type Err = UnknownZone;
    fn from_str(name: &str) -> Result<Zone, UnknownZone> {
        Zone::named(name)
    }
}
