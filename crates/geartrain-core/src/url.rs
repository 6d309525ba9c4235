//! The query part of a backend's URL.

/// Splits a URL at its `?` into the part before it and the options behind it, `name=value` each.
/// An option without a `=` has an empty value.
///
/// ```
/// use geartrain_core::split_query;
/// let (rest, options) = split_query("embedded:data?sync=50ms&memory=1gb");
/// assert_eq!(rest, "embedded:data");
/// assert_eq!(options.collect::<Vec<_>>(), [("sync", "50ms"), ("memory", "1gb")]);
/// ```
pub fn split_query(url: &str) -> (&str, impl Iterator<Item = (&str, &str)>) {
    let (rest, query) = url.split_once('?').unwrap_or((url, ""));
    let options = query.split('&').filter(|option| !option.is_empty());
    (rest, options.map(|option| option.split_once('=').unwrap_or((option, ""))))
}
