//! The fields of operations: what each holds, whether it must be given, and its JSON schema.

use geartrain_core::{DELAY_MAX, DURATION_MAX, GROUP_BYTES_MAX, NAME_BYTES_MAX, UNIQUE_BYTES_MAX};
use serde_json::{Map, Value, json};

/// A field of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldInfo {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: FieldKind,
    /// Whether it must be given.
    pub need: Need,
    /// Whether it goes with one job or with a filter.
    pub reach: Reach,
    /// What it means.
    pub meaning: &'static str,
}

/// Whether a field must be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It may be left out.
    Optional,
    /// It must be given.
    Required,
    /// Exactly one of these fields must be given.
    ExactlyOne,
    /// At least one of these must be given. They count together as one where others are [`Need::ExactlyOne`].
    AtLeastOne,
    /// No two of these may be given.
    AtMostOne,
    /// It may be given beside this field.
    With(&'static str),
}

/// What an operation for one job or many goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// A field of both.
    Any,
    /// A field for one job.
    One,
    /// A field for all jobs that a filter selects.
    Many,
}

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// A text.
    Text,
    /// The name of a job, a queue, a klass, a worker or a tag.
    Name,
    /// The name of a failure group or an option.
    LongName,
    /// A list of names, of which there must be so many.
    Names(usize),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A text that matches this regular expression.
    Pattern(&'static str),
    /// A text in a form of its own, such as a filter or a cron expression.
    Format(&'static str),
    /// A number.
    Number,
    /// A whole number in this range.
    Whole(i64, u64),
    /// True or false.
    Flag,
    /// A number of seconds, or a text such as `1h30m`.
    Duration,
    /// The same, above zero.
    Span,
    /// The same, for jobs that recur.
    Interval,
    /// The same as a span, or true for a default.
    Retention,
    /// Seconds since the epoch, or a text such as `2026-04-01T12:00:00Z`.
    Time,
    /// The same, of something in the past; also a duration before now.
    Past,
    /// Any time of a day, or a date.
    Day,
    /// A position in the events: a number, or its digits as a text.
    Position,
    /// Any JSON; bytes are `{"$bytes": "<base64>"}`.
    Json,
    /// A JSON object.
    Object,
    /// A text, or `{"$bytes": "<base64>"}`.
    UniqueKey,
    /// The value of an option: a text, or a number.
    OptionValue,
    /// How many missed runs are made up: a number, or `skip`.
    Backlog,
    /// A list of limits by priority.
    Levels,
    /// A list of capabilities of a worker.
    Capabilities,
}

/// The token of a lock.
pub(crate) const TOKEN: FieldKind = FieldKind::Pattern(r"^[0-9]{1,19}\.[0-9]{1,9}$");
/// The trace context.
pub(crate) const TRACEPARENT: FieldKind =
    FieldKind::Pattern(r"^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$");
/// The last moment of which the day is shown: the year 9998 ends.
pub(crate) const DAY_MAX: f64 = 253_370_764_799.0;
/// A number of retries.
pub(crate) const RETRIES: FieldKind = FieldKind::Whole(0, 2_147_483_647);

impl FieldInfo {
    /// A field that may be left out.
    pub const fn new(name: &'static str, kind: FieldKind, meaning: &'static str) -> FieldInfo {
        FieldInfo { name, kind, need: Need::Optional, reach: Reach::Any, meaning }
    }

    pub(crate) const fn required(name: &'static str, kind: FieldKind, meaning: &'static str) -> FieldInfo {
        FieldInfo::new(name, kind, meaning).needed(Need::Required)
    }

    pub(crate) const fn needed(self, need: Need) -> FieldInfo {
        FieldInfo { need, ..self }
    }

    /// The same for one job.
    pub(crate) const fn of_one(self) -> FieldInfo {
        FieldInfo { reach: Reach::One, ..self }
    }

    /// The same for all jobs that a filter selects.
    pub(crate) const fn of_many(self) -> FieldInfo {
        FieldInfo { reach: Reach::Many, ..self }
    }

    /// Whether it must be given, whatever else is.
    pub fn is_required(&self) -> bool {
        self.need == Need::Required
    }

    /// The JSON schema of its value. A field that may be left out may also be `null`.
    pub fn schema(&self) -> Value {
        let mut schema = self.kind.schema();
        if !self.is_required() {
            add_null(&mut schema);
        } else if self.kind == FieldKind::Json {
            schema["type"] = json!(["object", "array", "string", "number", "boolean"]);
        }
        schema["description"] = self.meaning.into();
        schema
    }
}

/// The JSON schema of an object with these fields, and nothing else.
pub fn object_schema(fields: &[&FieldInfo]) -> Value {
    let properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.to_owned(), field.schema())).collect();
    let of = |need: Need| fields.iter().filter(move |field| field.need == need);
    let required: Vec<&str> = of(Need::Required).map(|field| field.name).collect();
    let mut schema = json!({ "type": "object", "properties": properties, "required": required,
        "additionalProperties": false });
    let mut alternatives: Vec<Value> = of(Need::ExactlyOne).map(|field| given(field)).collect();
    let together: Vec<Value> = of(Need::AtLeastOne).map(|field| given(field)).collect();
    match (alternatives.is_empty(), together.is_empty()) {
        (true, false) => schema["anyOf"] = together.into(),
        (false, is_alone) => {
            alternatives.extend((!is_alone).then(|| json!({ "anyOf": together })));
            schema["oneOf"] = alternatives.into();
        }
        (true, true) => {}
    }
    let excluding: Vec<&&FieldInfo> = of(Need::AtMostOne).collect();
    let pairs = excluding.iter().enumerate().flat_map(|(index, one)| {
        excluding[index + 1..].iter().map(move |other| json!({ "allOf": [given(one), given(other)] }))
    });
    let alone = fields.iter().filter_map(|field| {
        let Need::With(other) = field.need else { return None };
        let other = fields.iter().find(|found| found.name == other)?;
        Some(json!({ "allOf": [given(field), { "not": given(other) }] }))
    });
    let selecting: Vec<Value> =
        of(Need::AtLeastOne).filter(|field| field.reach == Reach::Many).map(|field| given(field)).collect();
    let of_one = of(Need::Optional).filter(|field| field.reach == Reach::One && !selecting.is_empty());
    let not_with_filter = of_one.map(|field| json!({ "allOf": [given(field), { "anyOf": selecting }] }));
    let of_many = of(Need::Optional).filter(|field| field.reach == Reach::Many);
    let not_without =
        of_many.map(|field| json!({ "allOf": [given(field), { "not": { "anyOf": selecting } }] }));
    let pairs: Vec<Value> = pairs.chain(alone).chain(not_with_filter).chain(not_without).collect();
    if !pairs.is_empty() {
        schema["not"] = json!({ "anyOf": pairs });
    }
    schema
}

/// The schema of objects in which a field is given: it is neither absent nor null, and a flag is true.
fn given(field: &FieldInfo) -> Value {
    let value = match field.kind {
        FieldKind::Flag => json!({ "const": true }),
        FieldKind::Json => json!({ "not": { "type": "null" } }),
        kind => kind.schema(),
    };
    json!({ "required": [field.name], "properties": { field.name: value } })
}

/// Allows `null` besides.
fn add_null(schema: &mut Value) {
    if let Some(branches) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        branches.push(json!({ "type": "null" }));
    }
    if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        words.push(Value::Null);
    }
    match schema.get_mut("type") {
        Some(Value::Array(several)) => several.push("null".into()),
        Some(one) => *one = json!([one, "null"]),
        None => {}
    }
}

impl FieldKind {
    /// The JSON schema of a value in a query, where it is a text.
    pub fn query_schema(self) -> Value {
        match self {
            FieldKind::UniqueKey => {
                json!({ "type": "string", "minLength": 1, "maxLength": UNIQUE_BYTES_MAX })
            }
            kind => kind.schema(),
        }
    }

    /// The JSON schema of a value.
    pub fn schema(self) -> Value {
        let name = |max: usize| {
            // The limit is one of bytes, and so the one of characters that are ASCII.
            json!({ "type": "string", "minLength": 1, "maxLength": max, "pattern": "^[^\\u0000]+$" })
        };
        match self {
            FieldKind::Text => json!({ "type": "string" }),
            FieldKind::Name => name(NAME_BYTES_MAX),
            FieldKind::LongName => name(GROUP_BYTES_MAX),
            FieldKind::Names(min) => {
                json!({ "type": "array", "minItems": min, "items": name(NAME_BYTES_MAX) })
            }
            FieldKind::Choice(words) => json!({ "type": "string", "enum": words }),
            FieldKind::Pattern(pattern) => json!({ "type": "string", "pattern": pattern }),
            FieldKind::Format(name) => json!({ "type": "string", "format": name }),
            FieldKind::Number => json!({ "type": "number" }),
            FieldKind::Whole(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
            FieldKind::Flag => json!({ "type": "boolean" }),
            FieldKind::Duration => {
                json!({ "type": ["number", "string"], "format": "duration-or-seconds", "minimum": 0,
                    "maximum": DELAY_MAX.get() })
            }
            FieldKind::Span => {
                json!({ "type": ["number", "string"], "format": "duration-or-seconds", "exclusiveMinimum": 0,
                    "maximum": DURATION_MAX.get() })
            }
            FieldKind::Interval => {
                json!({ "type": ["number", "string"], "format": "duration-or-seconds", "minimum": 0.001,
                    "maximum": DURATION_MAX.get() })
            }
            FieldKind::Retention => {
                json!({ "type": ["number", "string", "boolean"], "format": "duration-or-seconds",
                    "exclusiveMinimum": 0, "maximum": DURATION_MAX.get() })
            }
            FieldKind::Time => json!({ "type": ["number", "string"], "format": "time-or-seconds" }),
            FieldKind::Past => json!({ "type": ["number", "string"], "format": "past-time-or-seconds" }),
            FieldKind::Day => {
                json!({ "type": ["number", "string"], "format": "day-or-seconds", "minimum": 0,
                    "maximum": DAY_MAX })
            }
            FieldKind::Position => json!({ "anyOf": [
                { "type": "integer", "minimum": 0 }, { "type": "string", "pattern": "^[0-9]{1,19}$" },
            ] }),
            FieldKind::Json => json!({}),
            FieldKind::Object => json!({ "type": "object" }),
            FieldKind::UniqueKey => json!({ "anyOf": [
                { "type": "string", "minLength": 1, "maxLength": UNIQUE_BYTES_MAX },
                { "type": "object", "required": ["$bytes"], "additionalProperties": false,
                    "properties": { "$bytes": { "type": "string", "minLength": 4, "format": "byte" } } },
            ] }),
            FieldKind::OptionValue => json!({ "type": ["string", "number"] }),
            FieldKind::Backlog => json!({ "anyOf": [
                { "type": "integer", "minimum": 0, "maximum": u32::MAX }, { "const": "skip" },
            ] }),
            FieldKind::Levels => {
                let priority = json!({ "type": "number" });
                let max = json!({ "type": "integer", "minimum": 1, "maximum": u64::MAX });
                json!({ "type": "array", "maxItems": 16, "items": { "type": "object", "required": ["priority", "max"],
                    "additionalProperties": false, "properties": { "priority": priority, "max": max } } })
            }
            FieldKind::Capabilities => {
                let mut klass = name(NAME_BYTES_MAX);
                add_null(&mut klass);
                let timeout = json!({ "type": ["number", "null"], "exclusiveMinimum": 0,
                    "maximum": DURATION_MAX.get() });
                json!({ "type": "array", "items": { "type": "object", "required": ["queue"],
                    "additionalProperties": false,
                    "properties": { "queue": name(NAME_BYTES_MAX), "klass": klass, "timeout": timeout } } })
            }
        }
    }
}
