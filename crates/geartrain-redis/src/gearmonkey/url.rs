//! URLs of GearMonkey functions on a Redis.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::layout::{UrlTexts, lease, parse_url};
use crate::url::{BadUrl, RedisUrl};

const TEXTS: UrlTexts = UrlTexts {
    name: "gearmonkey",
    form: "write it as gearmonkey+redis://HOST:PORT",
    no_prefix: "GearMonkey's keys have no prefix, and its writes wait for no replicas: choose a database number",
    no_cluster: "the keys of a GearMonkey function cannot share a slot of a Cluster",
    options: "the only options are lease, retries, lost, patience, ca, cert and key",
};

/// How long a job may run without a heartbeat if the URL does not say.
const LEASE: Duration = Duration::from_secs(60);
/// How many lost workers end a job if the URL does not say.
const LOST_MAX: u32 = 5;

/// The URL of a Redis with GearMonkey functions: `gearmonkey+` and a [`RedisUrl`] other than of a Cluster, as
/// in `gearmonkey+redis://HOST[:PORT][/DB]`. A queue is a function.
///
/// Options, beside those of the Redis's URL except `prefix=` and `replicas=`:
///
/// | option | meaning |
/// |---|---|
/// | `lease=SECONDS` | how long a job may run without a heartbeat; 60 by default |
/// | `retries=N` | how often a job is retried that was put without a number of its own; 0 by default |
/// | `lost=N` | a job ends in error when this many of its workers were lost; 5 by default |
///
/// ```
/// use geartrain_redis::gearmonkey::GearMonkeyUrl;
/// let url: GearMonkeyUrl = "gearmonkey+redis://127.0.0.1:6379/2?lease=10".parse()?;
/// assert_eq!(url.to_string(), "gearmonkey+redis://127.0.0.1:6379");
/// assert!("gearmonkey+redis+cluster://a:7000".parse::<GearMonkeyUrl>().is_err());
/// # Ok::<(), geartrain_redis::BadUrl>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GearMonkeyUrl {
    pub(super) redis: RedisUrl,
    pub(super) options: Options,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) lease: Duration,
    pub(super) retries: u32,
    pub(super) lost_max: u32,
}

/// Without the password.
impl fmt::Display for GearMonkeyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gearmonkey+{}", self.redis)
    }
}

impl FromStr for GearMonkeyUrl {
    type Err = BadUrl;

    fn from_str(url: &str) -> Result<GearMonkeyUrl, BadUrl> {
        let mut options = Options { lease: LEASE, retries: 0, lost_max: LOST_MAX };
        let redis = parse_url(url, &TEXTS, |name, value| {
            match name {
                "lease" => options.lease = lease(value)?,
                "retries" => options.retries = value.parse().map_err(|_| BadUrl("retries is a number"))?,
                "lost" => {
                    let lost = value.parse().ok().filter(|lost| *lost > 0);
                    options.lost_max = lost.ok_or(BadUrl("lost is a number above 0"))?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(GearMonkeyUrl { redis, options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_redis_and_options() {
        let url: GearMonkeyUrl =
            "gearmonkey+rediss://u:p@h:7/3?retries=2&ca=/x.pem&lost=1&lease=5".parse().expect("it is valid");
        assert_eq!(url.redis, "rediss://u:p@h:7/3?ca=/x.pem".parse().expect("it is valid"));
        assert_eq!(url.options, Options { lease: Duration::from_secs(5), retries: 2, lost_max: 1 });
        assert!("gearmonkey+valkey+sentinel://a,b/main".parse::<GearMonkeyUrl>().is_ok());
        assert!("gearmonkey+redis+unix:///run/r.sock".parse::<GearMonkeyUrl>().is_ok());
    }

    #[test]
    fn bad_urls_are_refused_with_the_reason() {
        for (url, why) in [
            ("redis://h", TEXTS.form),
            ("gearmonkey+redis+cluster://h", TEXTS.no_cluster),
            ("gearmonkey+redis://h?prefix=a", TEXTS.no_prefix),
            ("gearmonkey+redis://h?colour=red", TEXTS.options),
            ("gearmonkey+redis://h?lease=0", "lease is a number of seconds, from 1 to 86400"),
            ("gearmonkey+redis://h?lost=0", "lost is a number above 0"),
        ] {
            assert_eq!(url.parse::<GearMonkeyUrl>(), Err(BadUrl(why)), "{url}");
        }
    }
}
