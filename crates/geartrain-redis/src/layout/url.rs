//! The common part of a layout's URL: a name, `+`, a Redis other than a Cluster, and options.

use std::time::Duration;

use geartrain_core::split_query;

use crate::url::{BadUrl, Kind, RedisUrl};

/// What the refusals of a layout's URL say.
pub(crate) struct UrlTexts {
    /// What the URL begins with, before the `+`.
    pub(crate) name: &'static str,
    pub(crate) form: &'static str,
    pub(crate) no_prefix: &'static str,
    pub(crate) no_cluster: &'static str,
    /// All options.
    pub(crate) options: &'static str,
}

/// Parses a URL. `own` takes the options of the layout, and answers false to those that it does not know.
pub(crate) fn parse_url(
    url: &str,
    texts: &UrlTexts,
    mut own: impl FnMut(&str, &str) -> Result<bool, BadUrl>,
) -> Result<RedisUrl, BadUrl> {
    let redis = url.strip_prefix(texts.name).and_then(|rest| rest.strip_prefix('+'));
    let (place, given) = split_query(redis.ok_or(BadUrl(texts.form))?);
    let mut rest = Vec::new();
    for (name, value) in given {
        if own(name, value)? {
            continue;
        }
        match name {
            "prefix" | "replicas" => return Err(BadUrl(texts.no_prefix)),
            "patience" | "ca" | "cert" | "key" => rest.push(format!("{name}={value}")),
            _ => return Err(BadUrl(texts.options)),
        }
    }
    let redis: RedisUrl = format!("{place}?{}", rest.join("&")).parse()?;
    if matches!(redis.kind, Kind::Cluster(_)) {
        return Err(BadUrl(texts.no_cluster));
    }
    Ok(redis)
}

/// An option that is on or off; `why` names all such options.
pub(crate) fn flag(value: &str, why: &'static str) -> Result<bool, BadUrl> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(BadUrl(why)),
    }
}

/// How long a job may run without a heartbeat.
pub(crate) fn lease(seconds: &str) -> Result<Duration, BadUrl> {
    let seconds = seconds.parse().ok().filter(|seconds| (1..=86_400).contains(seconds));
    let seconds = seconds.ok_or(BadUrl("lease is a number of seconds, from 1 to 86400"))?;
    Ok(Duration::from_secs(seconds))
}
