//! A strict reader of JSON objects: unknown and repeated fields are refused by name, wrong types with what is
//! expected.

use std::borrow::Cow;
use std::str::FromStr;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::OperationError;

/// How many characters of the input an error quotes.
const EXCERPT_CHARS: usize = 40;
/// More fields than any object has. They are compared in pairs.
const FIELDS_MAX: usize = 100;

/// The fields of a JSON object, in order. A field that is `null` counts as absent.
#[derive(Debug, Clone, Default)]
pub struct Object<'a> {
    fields: Vec<(Cow<'a, str>, Cow<'a, RawValue>)>,
}

impl<'a> Object<'a> {
    /// Parses an object that looks like `example`.
    pub fn parse(text: &'a str, example: &str) -> Result<Object<'a>, OperationError> {
        // Otherwise an array of pairs would do, too.
        if !text.trim_ascii_start().starts_with('{') {
            return Err(OperationError::new("bad-json", format!("it is not a JSON object like {example}")));
        }
        let object: Object<'a> = serde_json::from_str(text)
            .map_err(|error| OperationError::new("bad-json", syntax_error(&error, text)))?;
        if object.fields.len() > FIELDS_MAX {
            return Err(OperationError::new("bad-json", format!("it has more than {FIELDS_MAX} keys")));
        }
        for (index, (key, _)) in object.fields.iter().enumerate() {
            if object.fields[..index].iter().any(|(earlier, _)| earlier == key) {
                return Err(repeated(key));
            }
        }
        Ok(object)
    }

    /// The same from bytes, which must be UTF-8.
    pub fn parse_bytes(bytes: &'a [u8], example: &str) -> Result<Object<'a>, OperationError> {
        Object::parse(utf8(bytes)?, example)
    }

    /// Adds a field that comes from elsewhere, such as the path of a URL.
    pub fn insert(&mut self, key: &'a str, value: Box<RawValue>) -> Result<(), OperationError> {
        if self.fields.iter().any(|(earlier, _)| earlier == key) {
            return Err(repeated(key));
        }
        self.fields.push((Cow::Borrowed(key), Cow::Owned(value)));
        Ok(())
    }

    /// Refuses fields that are not among these.
    pub fn allow(&self, keys: impl Iterator<Item = &'static str> + Clone) -> Result<(), OperationError> {
        let unknown = self.fields.iter().find(|(key, _)| !keys.clone().any(|known| known == key));
        let Some((unknown, _)) = unknown else { return Ok(()) };
        let unknown = excerpt(unknown);
        let known = keys.collect::<Vec<_>>().join(", ");
        Err(OperationError::new(
            "unknown-field",
            match known.as_str() {
                "" => format!("there is no key `{unknown}`; there are none here"),
                known => format!("there is no key `{unknown}`; the keys are {known}"),
            },
        ))
    }

    /// The only field, of an object that has one.
    pub fn only(&self) -> Option<(&str, &RawValue)> {
        match self.fields.as_slice() {
            [(key, value)] => Some((key, value)),
            _ => None,
        }
    }

    /// The JSON of a field.
    pub fn raw(&self, key: &str) -> Option<&RawValue> {
        let (_, value) = self.fields.iter().find(|(found, _)| found == key)?;
        (value.get() != "null").then_some(&**value)
    }

    /// A field of a certain type. The error says what it must be.
    pub fn read<T: DeserializeOwned>(&self, key: &str, must_be: &str) -> Result<Option<T>, OperationError> {
        let Some(value) = self.raw(key) else { return Ok(None) };
        serde_json::from_str(value.get()).map(Some).map_err(|_| {
            OperationError::bad_argument(format!("`{key}` must be {must_be}, not {}", excerpt(value.get())))
        })
    }

    /// A text.
    pub fn text(&self, key: &str) -> Result<Option<String>, OperationError> {
        self.read(key, "a text in quotes")
    }

    /// True or false; false if absent.
    pub fn flag(&self, key: &str) -> Result<bool, OperationError> {
        Ok(self.read(key, "true or false")?.unwrap_or_default())
    }

    /// A whole number of 0 or more.
    pub fn whole<T: FromStr>(&self, key: &str) -> Result<Option<T>, OperationError> {
        self.integer(key, "a whole number of 0 or more")
    }

    /// A whole number, which JSON may write as `2.0` or `2e3`. The error says what it must be.
    pub fn integer<T: FromStr>(&self, key: &str, must_be: &str) -> Result<Option<T>, OperationError> {
        let Some(value) = self.raw(key) else { return Ok(None) };
        let text = value.get();
        let written = || {
            let number: f64 = serde_json::from_str(text).ok()?;
            (number.fract() == 0.0).then(|| format!("{number:.0}"))?.parse().ok()
        };
        text.parse().ok().or_else(written).map(Some).ok_or_else(|| {
            OperationError::bad_argument(format!("`{key}` must be {must_be}, not {}", excerpt(text)))
        })
    }

    /// A text that a type accepts. Its error names the field.
    pub fn parsed<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, OperationError> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        parse(&text).map(Some).map_err(of_key(key))
    }

    /// A name.
    pub fn name<T>(&self, key: &str) -> Result<Option<T>, OperationError>
    where
        T: std::str::FromStr<Err = geartrain_core::BadName>,
    {
        Ok(self.text(key)?.map(|text| text.parse()).transpose()?)
    }

    /// A name that must be given.
    pub fn required_name<T>(&self, key: &str) -> Result<T, OperationError>
    where
        T: std::str::FromStr<Err = geartrain_core::BadName>,
    {
        self.name(key)?.ok_or_else(|| missing(key))
    }

    /// A list of names.
    pub fn names<T>(&self, key: &str) -> Result<Option<Vec<T>>, OperationError>
    where
        T: std::str::FromStr<Err = geartrain_core::BadName>,
    {
        let Some(texts) = self.read::<Vec<String>>(key, "a list of texts like [\"a\", \"b\"]")? else {
            return Ok(None);
        };
        Ok(Some(texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?))
    }
}

/// The text of bytes that must be UTF-8.
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str, OperationError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let why = format!("it is not UTF-8 text from byte {} on", error.valid_up_to() + 1);
        OperationError::new("bad-json", why)
    })
}

fn repeated(key: &str) -> OperationError {
    OperationError::new("repeated-field", format!("`{}` is there twice", excerpt(key)))
}

/// A field that must be given.
pub(crate) fn missing(key: &str) -> OperationError {
    OperationError::new("missing-field", format!("`{key}` is missing"))
}

/// Names the field in an error about its value.
pub(crate) fn of_key(key: &str) -> impl Fn(String) -> OperationError {
    move |why| OperationError::bad_argument(format!("`{key}`: {why}"))
}

/// The beginning of a text, for errors.
pub fn excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Object<'a>, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                    fields.push((Cow::Owned(key), Cow::Borrowed(value)));
                }
                Ok(Object { fields })
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// Where a text stops being JSON.
pub fn syntax_error(error: &serde_json::Error, line: &str) -> String {
    if error.is_eof() {
        return "its JSON is cut off: a quote, a bracket or a brace is missing at the end".to_owned();
    }
    // The column counts bytes from 1; the parser may stop behind the character that it does not like.
    let line = line.lines().nth(error.line().saturating_sub(1)).unwrap_or(line);
    let mut start = error.column().saturating_sub(1).min(line.len());
    while !line.is_char_boundary(start) {
        start -= 1;
    }
    let column = line[..start].chars().count() + 1;
    format!("it is not JSON from column {column} on: {}", excerpt(line[start..].trim_end()))
}
