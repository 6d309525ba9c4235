//! URLs of WorkKit schedules on a Redis.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use geartrain_core::QueueName;

use super::cron::CronOrder;
use crate::layout::{UrlTexts, flag, lease, parse_url};
use crate::url::{BadUrl, RedisUrl};

/// How long a job may run without a heartbeat if the URL does not say.
const LEASE: Duration = Duration::from_secs(60);

const FLAGS: &str = "all, literals, nonce, catch_up, repeat, no_overlap and keep_failed are true or false";
const TEXTS: UrlTexts = UrlTexts {
    name: "workkit",
    form: "write it as workkit+redis://HOST:PORT",
    no_prefix: "WorkKit's keys have no prefix, and its writes wait for no replicas",
    no_cluster: "the keys of a WorkKit schedule cannot share a slot of a Cluster",
    options: "the only options are schedule, all, literals, nonce, retries, lease, catch_up, repeat, \
              no_overlap, keep_failed, cron_order, patience, ca, cert and key",
};

/// The URL of a Redis with WorkKit schedules: `workkit+` and a [`RedisUrl`] other than of a Cluster, as in
/// `workkit+redis://HOST[:PORT][/DB]`. A queue is a schedule.
///
/// Options, beside those of the Redis's URL except `prefix=` and `replicas=`:
///
/// | option | meaning |
/// |---|---|
/// | `schedule=S` | only this schedule is used, also to look for a job by its id |
/// | `all=true` | a pop without klasses takes all named functions |
/// | `literals=true` | a pop takes function literals too, as jobs of the klass `literal`; the payload is then an object with `job` (the text) and `args` |
/// | `nonce=true` | each job is put with a random member, so that equal jobs are different jobs |
/// | `retries=N` | how often a job is retried that was put without a number of its own; 0 by default |
/// | `lease=SECONDS` | how long a job may run without a heartbeat; 60 by default |
/// | `catch_up=true` | runs of a recurring job that were missed are made up |
/// | `repeat=true` | a run of a recurring job is repeated if its worker is lost |
/// | `no_overlap=true` | a run of a recurring job is skipped while an earlier one goes on |
/// | `keep_failed=true` | what failed for good is listed as failed, with the reason |
/// | `cron_order=cuckoo` | cron strings have their fields in the order of Cuckoo's code |
///
/// ```
/// use geartrain_redis::workkit::WorkKitUrl;
/// let url: WorkKitUrl = "workkit+redis://127.0.0.1:6379/2?retries=3&patience=5".parse()?;
/// assert_eq!(url.to_string(), "workkit+redis://127.0.0.1:6379");
/// assert!("workkit+redis+cluster://a:7000".parse::<WorkKitUrl>().is_err());
/// # Ok::<(), geartrain_redis::BadUrl>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkKitUrl {
    pub(super) redis: RedisUrl,
    pub(super) options: Options,
}

/// The options of a listener and of puts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) schedule: Option<QueueName>,
    pub(super) all: bool,
    pub(super) literals: bool,
    pub(super) nonce: bool,
    pub(super) retries: u32,
    pub(super) lease: Duration,
    pub(super) catch_up: bool,
    pub(super) repeat: bool,
    pub(super) no_overlap: bool,
    pub(super) keep_failed: bool,
    pub(super) order: CronOrder,
}

impl WorkKitUrl {
    /// The same URL for pops that take all named functions.
    pub fn with_all(mut self) -> WorkKitUrl {
        self.options.all = true;
        self
    }

    /// The same URL for pops that take function literals too.
    pub fn with_literals(mut self) -> WorkKitUrl {
        self.options.literals = true;
        self
    }

    /// The same URL for puts that are different jobs each.
    pub fn with_nonce(mut self) -> WorkKitUrl {
        self.options.nonce = true;
        self
    }

    /// Whether pops without klasses take something: all named functions, or function literals.
    pub fn takes_without_klass(&self) -> bool {
        self.options.all || self.options.literals
    }
}

/// Without the password.
impl fmt::Display for WorkKitUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "workkit+{}", self.redis)
    }
}

impl FromStr for WorkKitUrl {
    type Err = BadUrl;

    fn from_str(url: &str) -> Result<WorkKitUrl, BadUrl> {
        let mut options = Options {
            schedule: None,
            all: false,
            literals: false,
            nonce: false,
            retries: 0,
            lease: LEASE,
            catch_up: false,
            repeat: false,
            no_overlap: false,
            keep_failed: false,
            order: CronOrder::Document,
        };
        let redis = parse_url(url, &TEXTS, |name, value| {
            match name {
                "all" => options.all = flag(value, FLAGS)?,
                "literals" => options.literals = flag(value, FLAGS)?,
                "nonce" => options.nonce = flag(value, FLAGS)?,
                "catch_up" => options.catch_up = flag(value, FLAGS)?,
                "repeat" => options.repeat = flag(value, FLAGS)?,
                "no_overlap" => options.no_overlap = flag(value, FLAGS)?,
                "keep_failed" => options.keep_failed = flag(value, FLAGS)?,
                "schedule" => {
                    let name = crate::url::decoded(value)?;
                    let name = QueueName::new(name).map_err(|_| BadUrl("schedule has 1 to 512 bytes"))?;
                    options.schedule = Some(name);
                }
                "retries" => options.retries = value.parse().map_err(|_| BadUrl("retries is a number"))?,
                "lease" => options.lease = lease(value)?,
                "cron_order" => {
                    options.order = match value {
                        "document" => CronOrder::Document,
                        "cuckoo" => CronOrder::Cuckoo,
                        _ => return Err(BadUrl("cron_order is document or cuckoo")),
                    }
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(WorkKitUrl { redis, options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_redis_and_options() {
        let url: WorkKitUrl =
            "workkit+rediss://u:p@h:7/3?retries=2&ca=/x.pem&lease=5&catch_up=true&schedule=a%20b&cron_order=cuckoo"
                .parse()
                .expect("it is valid");
        let redis: RedisUrl = "rediss://u:p@h:7/3?ca=/x.pem".parse().expect("it is valid");
        assert_eq!(url.redis, redis);
        let Options { schedule, retries, lease, catch_up, order, all, nonce, .. } = url.options;
        assert_eq!(schedule.as_ref().map(QueueName::as_str), Some("a b"));
        assert_eq!((retries, lease, catch_up), (2, Duration::from_secs(5), true));
        assert_eq!((order, all, nonce), (CronOrder::Cuckoo, false, false));
        assert!("workkit+valkey+sentinel://a,b/main".parse::<WorkKitUrl>().is_ok());
        assert!("workkit+redis+unix:///run/r.sock".parse::<WorkKitUrl>().is_ok());
    }

    #[test]
    fn bad_urls_are_refused_with_the_reason() {
        for (url, why) in [
            ("redis://h", "write it as workkit+redis://HOST:PORT"),
            ("workkit+redis://", "name a host, as in redis://127.0.0.1:7411"),
            ("workkit+redis://h/jobs", "a database is a number"),
            ("workkit+redis+cluster://h", "the keys of a WorkKit schedule cannot share a slot of a Cluster"),
            (
                "workkit+redis://h?prefix=a",
                "WorkKit's keys have no prefix, and its writes wait for no replicas",
            ),
            ("workkit+redis://h?lease=0", "lease is a number of seconds, from 1 to 86400"),
            ("workkit+redis://h?cron_order=x", "cron_order is document or cuckoo"),
            (
                "workkit+redis://h?all",
                "all, literals, nonce, catch_up, repeat, no_overlap and keep_failed are true or false",
            ),
            ("workkit+redis://h?retries=many", "retries is a number"),
        ] {
            assert_eq!(url.parse::<WorkKitUrl>(), Err(BadUrl(why)), "{url}");
        }
        assert!("workkit+redis://h?colour=red".parse::<WorkKitUrl>().is_err());
    }
}
