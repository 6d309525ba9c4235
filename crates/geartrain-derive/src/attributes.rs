//! The attribute `#[job(…)]`: its keys, and what is wrong with their values.

use std::time::Duration;

use syn::meta::ParseNestedMeta;
use syn::{Attribute, Lit, LitStr, Path};

use crate::duration::{self, BackoffParts};
use crate::limits::{DURATION_SECONDS_MAX, NAME_BYTES_MAX, RETRIES_MAX};

/// The keys, in the order in which an error lists them.
const KEYS: &str = "queue, klass, timeout, backoff, retries, priority, keep_result and crate";

/// The values of all `#[job(…)]` attributes of a type.
#[derive(Default)]
pub(crate) struct JobAttributes {
    pub(crate) queue: Option<LitStr>,
    pub(crate) klass: Option<LitStr>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) backoff: Option<BackoffParts>,
    pub(crate) retries: Option<u32>,
    pub(crate) priority: Option<f64>,
    pub(crate) keep_result: Option<Duration>,
    pub(crate) krate: Option<Path>,
}

impl JobAttributes {
    pub(crate) fn of(attributes: &[Attribute]) -> syn::Result<JobAttributes> {
        let mut read = JobAttributes::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("job")) {
            attribute.parse_nested_meta(|meta| read.add(&meta))?;
        }
        Ok(read)
    }

    fn add(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        let key = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
        match key.as_str() {
            "queue" => set(&mut self.queue, meta, name),
            "klass" => set(&mut self.klass, meta, name),
            "timeout" => set(&mut self.timeout, meta, span),
            "backoff" => set(&mut self.backoff, meta, |lit| {
                let text = text(lit)?;
                duration::parse_backoff(&text.value(), DURATION_SECONDS_MAX).map_err(|why| error(&text, why))
            }),
            "retries" => set(&mut self.retries, meta, retries),
            "priority" => set(&mut self.priority, meta, priority),
            "keep_result" => set(&mut self.keep_result, meta, span),
            "crate" => set(&mut self.krate, meta, |lit| {
                let text = text(lit)?;
                text.parse().map_err(|_| error(&text, "write the path of the crate, such as \"::geartrain\""))
            }),
            _ => Err(meta.error(format!("job has no such key; its keys are {KEYS}"))),
        }
    }
}

/// Reads the value of a key that may be given once.
fn set<T>(
    slot: &mut Option<T>,
    meta: &ParseNestedMeta<'_>,
    read: impl FnOnce(&Lit) -> syn::Result<T>,
) -> syn::Result<()> {
    if slot.is_some() {
        return Err(meta.error("this key is given twice"));
    }
    let value = meta.value().map_err(|_| meta.error("this key needs a value: write key = value"))?;
    let literal: Lit = value.parse()?;
    *slot = Some(read(&literal)?);
    Ok(())
}

fn error(at: &impl quote::ToTokens, why: impl std::fmt::Display) -> syn::Error {
    syn::Error::new_spanned(at, why)
}

fn text(literal: &Lit) -> syn::Result<LitStr> {
    match literal {
        Lit::Str(text) => Ok(text.clone()),
        other => Err(error(other, "write the value in quotes")),
    }
}

fn name(literal: &Lit) -> syn::Result<LitStr> {
    let text = text(literal)?;
    match check_name(&text.value()) {
        Some(why) => Err(error(&text, why)),
        None => Ok(text),
    }
}

/// What is wrong with the name of a queue or klass.
pub(crate) fn check_name(name: &str) -> Option<String> {
    if name.is_empty() {
        Some("a name needs at least one byte".to_owned())
    } else if name.len() > NAME_BYTES_MAX {
        Some(format!("a name has at most {NAME_BYTES_MAX} bytes, this one has {}", name.len()))
    } else if name.contains('\0') {
        Some("a name must not hold a NUL byte".to_owned())
    } else {
        None
    }
}

fn span(literal: &Lit) -> syn::Result<Duration> {
    let text = text(literal)?;
    let span = duration::parse(&text.value(), f64::MAX).map_err(|why| error(&text, why))?;
    if span.is_zero() || span.as_secs_f64() > DURATION_SECONDS_MAX {
        return Err(error(&text, "it must be more than 0 and at most ten years"));
    }
    Ok(span)
}

fn retries(literal: &Lit) -> syn::Result<u32> {
    let number = if let Lit::Int(number) = literal { number.base10_parse().ok() } else { None };
    let why = || error(literal, format!("retries is a whole number from 0 to {RETRIES_MAX}"));
    number.filter(|number| *number <= RETRIES_MAX).ok_or_else(why)
}

fn priority(literal: &Lit) -> syn::Result<f64> {
    let number: Option<f64> = match literal {
        Lit::Int(number) => number.base10_parse().ok(),
        Lit::Float(number) => number.base10_parse().ok(),
        _ => None,
    };
    let why = || error(literal, "priority is a number, such as 3 or -1.5");
    number.filter(|number| number.is_finite()).ok_or_else(why)
}
