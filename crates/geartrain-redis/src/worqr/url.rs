//! URLs of Worqr installations on a Redis.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::names::{Names, is_prefix};
use crate::layout::{UrlTexts, flag, parse_url};
use crate::url::{BadUrl, RedisUrl};

/// The URL of a Redis with Worqr queues: `worqr+` and a [`RedisUrl`] other than of a Cluster, as in
/// `worqr+redis://HOST[:PORT][/DB]`.
///
/// Options, beside those of the Redis's URL except `replicas=`:
///
/// | option | meaning |
/// |---|---|
/// | `prefix=P` | what the names of all keys and channels begin with; `worqr` by default |
/// | `retries=N` | how often a task is retried whose handler failed; 5 by default |
/// | `backoff=SECONDS` | how long a worker takes nothing more from a queue after it returned a task for a retry; doubled for each further attempt; 1 by default |
/// | `timer=SECONDS` | how long a worker counts as alive after a sign of life; 3 by default |
/// | `heartbeat=SECONDS` | how often it gives one; 1 by default, at most a third of the timer |
/// | `reap=SECONDS` | how often it looks for dead workers; 1 by default |
/// | `native_sets=true` | one process set for all workers of a queue, as the TypeScript release has it |
///
/// Seconds may have a fraction.
///
/// ```
/// use geartrain_redis::worqr::WorqrUrl;
/// let url: WorqrUrl = "worqr+redis://127.0.0.1:6379/2?prefix=shop&retries=3".parse()?;
/// assert_eq!(url.to_string(), "worqr+redis://127.0.0.1:6379");
/// assert!("worqr+redis://127.0.0.1?prefix=my_shop".parse::<WorqrUrl>().is_err());
/// # Ok::<(), geartrain_redis::BadUrl>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorqrUrl {
    pub(super) redis: RedisUrl,
    pub(super) options: Options,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    prefix: String,
    pub(super) retries: u32,
    pub(super) backoff: Duration,
    pub(super) timer: Duration,
    pub(super) heartbeat: Duration,
    pub(super) reap: Duration,
    pub(super) native_sets: bool,
}

impl Options {
    pub(super) fn names(&self) -> Names {
        Names::new(self.prefix.clone())
    }
}

/// Without the password.
impl fmt::Display for WorqrUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worqr+{}", self.redis)
    }
}

const BAD_PREFIX: &str =
    "prefix has no _ and no :, at which other workers cut names, none of *?[]\\, and is not empty";

const TEXTS: UrlTexts = UrlTexts {
    name: "worqr",
    form: "write it as worqr+redis://HOST:PORT",
    no_prefix: "Worqr's writes wait for no replicas",
    no_cluster: "the keys of Worqr cannot share a slot of a Cluster",
    options: "the only options are prefix, retries, backoff, timer, heartbeat, reap, native_sets, patience, ca, cert and key",
};

impl FromStr for WorqrUrl {
    type Err = BadUrl;

    fn from_str(url: &str) -> Result<WorqrUrl, BadUrl> {
        let mut options = Options {
            prefix: "worqr".to_owned(),
            retries: 5,
            backoff: Duration::from_secs(1),
            timer: Duration::from_secs(3),
            heartbeat: Duration::from_secs(1),
            reap: Duration::from_secs(1),
            native_sets: false,
        };
        let mut heartbeat = None;
        let redis = parse_url(url, &TEXTS, |name, value| {
            match name {
                "prefix" => {
                    options.prefix = crate::url::decoded(value)?;
                    if !is_prefix(&options.prefix) {
                        return Err(BadUrl(BAD_PREFIX));
                    }
                }
                "retries" => options.retries = value.parse().map_err(|_| BadUrl("retries is a number"))?,
                "backoff" => options.backoff = seconds(value, 0.0)?,
                "timer" => options.timer = seconds(value, 0.01)?,
                "heartbeat" => heartbeat = Some(seconds(value, 0.01)?),
                "reap" => options.reap = seconds(value, 0.01)?,
                "native_sets" => {
                    options.native_sets = flag(value, "native_sets is true or false")?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let third = options.timer / 3;
        options.heartbeat = heartbeat.unwrap_or_else(|| options.heartbeat.min(third));
        if options.heartbeat > third {
            return Err(BadUrl("heartbeat is at most a third of timer"));
        }
        Ok(WorqrUrl { redis, options })
    }
}

fn seconds(value: &str, min: f64) -> Result<Duration, BadUrl> {
    let seconds = value.parse().ok().filter(|seconds: &f64| (min..=86_400.0).contains(seconds));
    let why = BadUrl("backoff, timer, heartbeat and reap are numbers of seconds, at most 86400");
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_redis_and_options() {
        let url: WorqrUrl =
            "worqr+rediss://u:p@h:7/3?prefix=a%2eb&retries=0&timer=0.6&reap=0.1&ca=/x.pem&native_sets=true"
                .parse()
                .expect("it is valid");
        let redis: RedisUrl = "rediss://u:p@h:7/3?ca=/x.pem".parse().expect("it is valid");
        assert_eq!(url.redis, redis);
        let options = url.options;
        assert_eq!((options.names().prefix(), options.retries, options.native_sets), ("a.b", 0, true));
        assert_eq!(
            (options.heartbeat, options.reap),
            (Duration::from_millis(200), Duration::from_millis(100))
        );
        let plain: WorqrUrl = "worqr+valkey+sentinel://a,b/main".parse().expect("it is valid");
        assert_eq!(plain.options.names().prefix(), "worqr");
        assert_eq!(plain.options.timer, Duration::from_secs(3));
        assert_eq!(plain.options.heartbeat, Duration::from_secs(1));
    }

    #[test]
    fn bad_urls_are_refused_with_the_reason() {
        for (url, why) in [
            ("redis://h", "write it as worqr+redis://HOST:PORT"),
            ("worqr+redis+cluster://h", "the keys of Worqr cannot share a slot of a Cluster"),
            ("worqr+redis://h?replicas=1", "Worqr's writes wait for no replicas"),
            ("worqr+redis://h?prefix=my_app", BAD_PREFIX),
            ("worqr+redis://h?prefix=", BAD_PREFIX),
            ("worqr+redis://h?retries=-1", "retries is a number"),
            ("worqr+redis://h?timer=2&heartbeat=1", "heartbeat is at most a third of timer"),
            (
                "worqr+redis://h?reap=0",
                "backoff, timer, heartbeat and reap are numbers of seconds, at most 86400",
            ),
            ("worqr+redis://h?native_sets", "native_sets is true or false"),
        ] {
            assert_eq!(url.parse::<WorqrUrl>(), Err(BadUrl(why)), "{url}");
        }
        assert!("worqr+redis://h?colour=red".parse::<WorqrUrl>().is_err());
    }
}
