//! Payloads as they are found in a schedule: written by any implementation, in any order of members.

use std::borrow::Cow;

use geartrain_core::schedule::Schedule;
use geartrain_core::{Klass, Payload, Refusal};
use serde_json::value::RawValue;

use super::cron::CronOrder;

/// What a named function's form begins with.
const VAR: &str = "#'";

/// A job as stored. Its id is never computed again: another implementation may have written other text.
pub(super) struct StoredJob {
    /// The form that names or is the function.
    pub(super) form: String,
    /// The arguments as a JSON array.
    pub(super) args: String,
    pub(super) cron: String,
    pub(super) schedule: Schedule,
}

impl StoredJob {
    /// Parses a payload. The error says what is damaged.
    pub(super) fn parse(payload: &[u8], order: CronOrder) -> Result<StoredJob, String> {
        #[derive(serde::Deserialize)]
        struct Members<'a> {
            cron: String,
            job: String,
            #[serde(borrow, default)]
            args: Option<&'a RawValue>,
        }
        // serde reads a struct from an array too.
        if !payload.trim_ascii_start().starts_with(b"{") {
            return Err("the payload cannot be read: it is no JSON object".to_owned());
        }
        let Members { cron, job: form, args } = serde_json::from_slice(payload)
            .map_err(|error| format!("the payload cannot be read: {error}"))?;
        let args = match args.map(RawValue::get) {
            None | Some("null") => "[]",
            Some(args) if args.starts_with('[') => args,
            Some(_) => return Err("the payload cannot be read: args is not an array".to_owned()),
        };
        let schedule = order.parse(&cron).map_err(|error| format!("the cron string {cron:?}: {error}"))?;
        Ok(StoredJob { form, args: args.to_owned(), cron, schedule })
    }

    /// The klass, if the function is a named one. Function literals are not ours to run.
    pub(super) fn klass(&self) -> Option<Klass> {
        let name = self.form.strip_prefix(VAR)?;
        is_symbol(name).then(|| Klass::new(name).ok()).flatten()
    }

    /// The klass, or the beginning of a function literal, for people.
    pub(super) fn shown_klass(&self) -> Klass {
        let literal = || {
            let text: String = self.form.chars().filter(|char| *char != '\0').take(100).collect();
            Klass::new(text).or_else(|_| Klass::new("?")).expect("a question mark is a name")
        };
        self.klass().unwrap_or_else(literal)
    }

    pub(super) fn payload(&self) -> Payload {
        self.args.as_str().into()
    }

    /// What a worker gets that asked for function literals: the text, which we never evaluate, and the
    /// arguments.
    pub(super) fn literal_payload(&self) -> Payload {
        let form = serde_json::to_string(&self.form).expect("a text is JSON");
        format!(r#"{{"job":{form},"args":{}}}"#, self.args).into()
    }

    /// Whether the job has more than one run.
    pub(super) fn is_recurring(&self) -> bool {
        let first = self.schedule.first(geartrain_core::Timestamp::ZERO);
        first.is_some_and(|first| self.schedule.next(first).is_some())
    }
}

/// The form of a named function.
pub(super) fn form_of(klass: &Klass) -> Result<String, Refusal> {
    let name = klass.as_str();
    if is_symbol(name) {
        return Ok(format!("{VAR}{name}"));
    }
    let why: Cow<'_, str> = "must name a function with its namespace, as in some.ns/name".into();
    Err(Refusal::BadArgument { what: "klass".into(), why: format!("{why}, not {name:?}") })
}

/// Whether a klass names a function, and is no function literal.
pub fn is_function(klass: &Klass) -> bool {
    is_symbol(klass.as_str())
}

/// Whether a name is `namespace/name` in characters that Clojure reads as one symbol.
fn is_symbol(name: &str) -> bool {
    let is_part = |char: char| char.is_alphanumeric() || "*+!-_?<>=.%&$|:#'/".contains(char);
    let begins =
        |part: &str| part.chars().next().is_some_and(|char| !char.is_numeric() && !"#':".contains(char));
    name.chars().all(is_part)
        && name.split_once('/').is_some_and(|(namespace, name)| begins(namespace) && begins(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(payload: &str) -> Result<StoredJob, String> {
        StoredJob::parse(payload.as_bytes(), CronOrder::Document)
    }

    #[test]
    fn payloads_of_other_implementations_are_read() {
        let job = parse(
            r##"{"cron": "* * * * * * *", "job":"#'some.ns\/func-name", "later": {}, "args": [1, 2]}"##,
        )
        .expect("it is valid");
        assert_eq!(job.klass(), Some(Klass::new("some.ns/func-name").expect("a name")));
        assert_eq!(job.args, "[1, 2]");
        assert!(job.is_recurring());
        for args in ["", r#","args":null"#, r#","args":[]"#] {
            let once = parse(&format!(r##"{{"cron":"2014 3 6 * 19 0 0","job":"(fn [x] x)"{args}}}"##))
                .expect("it is valid");
            assert_eq!((once.args.as_str(), once.klass(), once.is_recurring()), ("[]", None, false));
            assert_eq!(once.shown_klass().as_str(), "(fn [x] x)");
        }
    }

    #[test]
    fn damaged_payloads_are_reported() {
        for (payload, expected) in [
            ("", "the payload cannot be read"),
            ("{", "the payload cannot be read"),
            (r#"["* * * * * * *","x"]"#, "it is no JSON object"),
            (r#"{"cron":"* * * * * * *"}"#, "missing field `job`"),
            (r#"{"cron":7,"job":"x"}"#, "the payload cannot be read"),
            (r#"{"cron":"* * * * * * *","job":"x","args":{}}"#, "args is not an array"),
            (r#"{"cron":"* 2 30 * 0 0 0","job":"x"}"#, "the cron string"),
            (r#"{"cron":"0 0 * * *","job":"x"}"#, "?cron_order=cuckoo"),
        ] {
            let error = parse(payload).err().unwrap_or_else(|| panic!("{payload} was accepted"));
            assert!(error.contains(expected), "{payload}: {error}");
        }
        assert!(StoredJob::parse(b"\xff", CronOrder::Document).is_err());
    }

    #[test]
    fn only_names_with_a_namespace_are_functions() {
        for name in ["a/b", "some.ns/func-name", "clojure.core//", "a.b/c?", "a/b'"] {
            assert_eq!(form_of(&Klass::new(name).expect("a name")).as_deref(), Ok(&*format!("#'{name}")));
        }
        for name in ["mail", "a/", "/b", "a b/c", "(a/b)", "#'a/b", "a/b;", "1/2", "a/\"b\"", "a/b\n"] {
            assert!(form_of(&Klass::new(name).expect("a name")).is_err(), "{name}");
        }
    }
}
