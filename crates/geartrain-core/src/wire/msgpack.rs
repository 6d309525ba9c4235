//! MessagePack decoder: a serde `Deserializer` over a slice.
//!
//! It accepts the shapes that `rmp_serde` accepts, as far as the wire uses them: a struct from an array or a
//! map, an enum from a name or a map of one entry, a double from any number. Extension types and variants by
//! number are refused; the wire has neither.
//!
//! `rmp_serde` compiles its decoder of any value, some 2,000 lines of LLVM IR, once per visitor, which was
//! half of this crate's code. Here one function that is not generic reads the head of a value, and each
//! request matches only the heads that it can use. Encoding stays with `rmp_serde`: its code is small.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer as _, Unexpected, Visitor};

/// The bytes are not MessagePack, or not of the expected shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(pub(super) Box<str>);

impl de::Error for DecodeError {
    #[cold]
    fn custom<T: fmt::Display>(message: T) -> DecodeError {
        DecodeError(message.to_string().into())
    }
}

type Result<T, E = DecodeError> = std::result::Result<T, E>;

/// How deep arrays and maps may be nested: decoding recurses, and the sender must not choose how much stack
/// it uses.
const DEPTH_MAX: u16 = 256;

/// The beginning of a value. Scalars, texts and byte strings are complete; the entries of arrays and maps
/// follow.
#[derive(Debug, Clone, Copy)]
enum Head<'de> {
    Nil,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Double(f64),
    Text(&'de str),
    Bytes(&'de [u8]),
    Array(usize),
    Map(usize),
}

/// Decodes consecutive values from a slice.
pub(super) struct Decoder<'de> {
    rest: &'de [u8],
    depth: u16,
}

impl<'de> Decoder<'de> {
    pub(super) fn new(bytes: &'de [u8]) -> Decoder<'de> {
        Decoder { rest: bytes, depth: DEPTH_MAX }
    }

    /// The bytes behind the last decoded value.
    pub(super) fn rest(&self) -> &'de [u8] {
        self.rest
    }

    fn take(&mut self, count: usize) -> Result<&'de [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(cut_short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn number(&mut self, bytes: usize) -> Result<u64> {
        Ok(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn length(&mut self, bytes: usize) -> Result<usize> {
        Ok(self.number(bytes)? as usize)
    }

    fn text(&mut self, length: usize) -> Result<Head<'de>> {
        let text = std::str::from_utf8(self.take(length)?);
        Ok(Head::Text(text.map_err(|error| DecodeError(format!("a string is not UTF-8: {error}").into()))?))
    }

    fn head(&mut self) -> Result<Head<'de>> {
        let [first] = *self.take(1)? else { return Err(cut_short()) };
        Ok(match first {
            0x00..=0x7f => Head::Unsigned(first.into()),
            0x80..=0x8f => Head::Map(usize::from(first & 0x0f)),
            0x90..=0x9f => Head::Array(usize::from(first & 0x0f)),
            0xa0..=0xbf => return self.text(usize::from(first & 0x1f)),
            0xc0 => Head::Nil,
            0xc2 => Head::Bool(false),
            0xc3 => Head::Bool(true),
            0xc4..=0xc6 => {
                let length = self.length(1 << (first - 0xc4))?;
                Head::Bytes(self.take(length)?)
            }
            0xca => Head::Double(f32::from_bits(self.number(4)? as u32).into()),
            0xcb => Head::Double(f64::from_bits(self.number(8)?)),
            0xcc..=0xcf => Head::Unsigned(self.number(1 << (first - 0xcc))?),
            0xd0 => Head::Signed((self.number(1)? as i8).into()),
            0xd1 => Head::Signed((self.number(2)? as i16).into()),
            0xd2 => Head::Signed((self.number(4)? as i32).into()),
            0xd3 => Head::Signed(self.number(8)? as i64),
            0xd9..=0xdb => {
                let length = self.length(1 << (first - 0xd9))?;
                return self.text(length);
            }
            0xdc | 0xdd => Head::Array(self.length(2 << (first - 0xdc))?),
            0xde | 0xdf => Head::Map(self.length(2 << (first - 0xde))?),
            0xe0..=0xff => Head::Signed((first as i8).into()),
            0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8 => {
                return Err(DecodeError(format!("the MessagePack type {first:#x} is not supported").into()));
            }
        })
    }

    fn is_nil(&self) -> bool {
        self.rest.first() == Some(&0xc0)
    }

    fn enter(&mut self) -> Result<()> {
        self.depth = self.depth.checked_sub(1).ok_or_else(|| {
            DecodeError(format!("arrays and maps are nested deeper than {DEPTH_MAX}").into())
        })?;
        Ok(())
    }

    /// Visits an array or a map. All entries must be consumed.
    fn entries<V: Visitor<'de>>(&mut self, head: Head<'de>, visitor: V) -> Result<V::Value> {
        let (left, value);
        self.enter()?;
        match head {
            Head::Array(count) => {
                let mut entries = Entries { from: self, left: count };
                value = visitor.visit_seq(&mut entries)?;
                left = entries.left;
            }
            Head::Map(count) => {
                let mut entries = Entries { from: self, left: count };
                value = visitor.visit_map(&mut entries)?;
                left = entries.left;
            }
            other => return Err(unexpected(other, &visitor)),
        }
        self.depth += 1;
        if left == 0 { Ok(value) } else { Err(too_many(left)) }
    }
}

#[cold]
fn cut_short() -> DecodeError {
    DecodeError("the input ends in the middle of a value".into())
}

#[cold]
fn too_many(left: usize) -> DecodeError {
    DecodeError(format!("an array or map has {left} entries too many").into())
}

#[cold]
fn unexpected(head: Head<'_>, expected: &dyn de::Expected) -> DecodeError {
    let found = match head {
        Head::Nil => Unexpected::Unit,
        Head::Bool(value) => Unexpected::Bool(value),
        Head::Unsigned(number) => Unexpected::Unsigned(number),
        Head::Signed(number) => Unexpected::Signed(number),
        Head::Double(number) => Unexpected::Float(number),
        Head::Text(text) => Unexpected::Str(text),
        Head::Bytes(bytes) => Unexpected::Bytes(bytes),
        Head::Array(_) => Unexpected::Seq,
        Head::Map(_) => Unexpected::Map,
    };
    de::Error::invalid_type(found, expected)
}

macro_rules! numbers {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            match self.head()? {
                Head::Unsigned(number) => visitor.visit_u64(number),
                Head::Signed(number) => visitor.visit_i64(number),
                Head::Double(number) => visitor.visit_f64(number),
                other => Err(unexpected(other, &visitor)),
            }
        })*
    };
}

macro_rules! texts {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            match self.head()? {
                Head::Text(text) => visitor.visit_borrowed_str(text),
                other => Err(unexpected(other, &visitor)),
            }
        })*
    };
}

impl<'de> de::Deserializer<'de> for &mut Decoder<'de> {
    type Error = DecodeError;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.head()? {
            Head::Nil => visitor.visit_unit(),
            Head::Bool(value) => visitor.visit_bool(value),
            Head::Unsigned(number) => visitor.visit_u64(number),
            Head::Signed(number) => visitor.visit_i64(number),
            Head::Double(number) => visitor.visit_f64(number),
            Head::Text(text) => visitor.visit_borrowed_str(text),
            Head::Bytes(bytes) => visitor.visit_borrowed_bytes(bytes),
            head => self.entries(head, visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.head()? {
            Head::Bool(value) => visitor.visit_bool(value),
            other => Err(unexpected(other, &visitor)),
        }
    }

    numbers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
        deserialize_f32 deserialize_f64
    }

    texts! { deserialize_char deserialize_str deserialize_string deserialize_identifier }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.head()? {
            Head::Bytes(bytes) => visitor.visit_borrowed_bytes(bytes),
            Head::Text(text) => visitor.visit_borrowed_bytes(text.as_bytes()),
            other => Err(unexpected(other, &visitor)),
        }
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.is_nil() {
            self.take(1)?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.head()? {
            Head::Nil => visitor.visit_unit(),
            other => Err(unexpected(other, &visitor)),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value> {
        match self.head()? {
            Head::Nil | Head::Array(0) => visitor.visit_unit(),
            other => Err(unexpected(other, &visitor)),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let head = self.head()?;
        self.entries(head, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.deserialize_seq(visitor)
    }

    /// The variant's name alone, or a map from its name to its fields.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        let (name, has_fields) = match self.head()? {
            Head::Text(name) => (name, false),
            Head::Map(1) => match self.head()? {
                Head::Text(name) => (name, true),
                other => return Err(unexpected(other, &visitor)),
            },
            other => return Err(unexpected(other, &visitor)),
        };
        self.enter()?;
        let value = visitor.visit_enum(Variant { from: self, name, has_fields })?;
        self.depth += 1;
        Ok(value)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_any(visitor)
    }
}

/// The entries of an array or a map that are still to be decoded.
struct Entries<'a, 'de> {
    from: &'a mut Decoder<'de>,
    left: usize,
}

impl<'de> de::SeqAccess<'de> for &mut Entries<'_, 'de> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.from).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> de::MapAccess<'de> for &mut Entries<'_, 'de> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.from).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value> {
        seed.deserialize(&mut *self.from)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// A variant of an enum. One type for both forms, so that each `visit_enum` is compiled once.
struct Variant<'a, 'de> {
    from: &'a mut Decoder<'de>,
    name: &'de str,
    has_fields: bool,
}

impl Variant<'_, '_> {
    fn require_fields(&self, expected: &str) -> Result<()> {
        if self.has_fields {
            return Ok(());
        }
        Err(de::Error::invalid_type(Unexpected::UnitVariant, &expected))
    }
}

impl<'de> de::EnumAccess<'de> for Variant<'_, 'de> {
    type Error = DecodeError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self)> {
        let name: StrDeserializer<'_, DecodeError> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, 'de> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<()> {
        if !self.has_fields || matches!(self.from.head()?, Head::Nil) {
            return Ok(());
        }
        Err(DecodeError("a variant without fields comes with a value".into()))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value> {
        self.require_fields("newtype variant")?;
        seed.deserialize(self.from)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value> {
        self.require_fields("tuple variant")?;
        de::Deserializer::deserialize_seq(self.from, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value> {
        self.require_fields("struct variant")?;
        de::Deserializer::deserialize_seq(self.from, visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    struct Record {
        name: String,
        number: i64,
        small: u8,
        double: f64,
        flag: bool,
        list: Vec<Option<u32>>,
        by_name: BTreeMap<String, u64>,
        pair: (u16, i32),
        unit: (),
        shape: Shape,
        #[serde(default)]
        added_later: Option<String>,
    }

    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    enum Shape {
        #[default]
        Plain,
        One(Box<Record>),
        Two(u8, String),
        Named {
            result: Result<u64, String>,
        },
    }

    fn decode<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T> {
        T::deserialize(&mut Decoder::new(bytes))
    }

    fn records() -> Vec<Record> {
        let shapes = [
            Shape::Plain,
            Shape::One(Box::default()),
            Shape::Two(255, "x".repeat(40)),
            Shape::Named { result: Ok(1 << 40) },
            Shape::Named { result: Err("x".repeat(300)) },
        ];
        let numbers =
            [0, 1, 127, 128, 255, 256, 65_535, 65_536, i64::MAX, -1, -32, -33, -128, -129, -40_000, i64::MIN];
        let record = |number: i64, shape: &Shape| Record {
            name: "n".repeat((number & 0xffff) as usize),
            number,
            small: number as u8,
            double: number as f64 / 3.0,
            flag: number % 2 == 0,
            list: [vec![None], vec![Some(number as u32); (number & 31) as usize]].concat(),
            by_name: BTreeMap::from([("a".into(), number as u64), ("é".into(), 0)]),
            pair: (number as u16, number as i32),
            shape: shape.clone(),
            ..Record::default()
        };
        numbers.iter().flat_map(|number| shapes.iter().map(|shape| record(*number, shape))).collect()
    }

    #[test]
    fn values_are_decoded_as_rmp_serde_decodes_them() {
        for record in records() {
            for bytes in [rmp_serde::to_vec(&record).unwrap(), rmp_serde::to_vec_named(&record).unwrap()] {
                assert_eq!(rmp_serde::from_slice::<Record>(&bytes).unwrap(), record);
                assert_eq!(decode::<Record>(&bytes).unwrap(), record);
            }
        }
    }

    #[test]
    fn truncated_input_is_refused_and_never_panics() {
        let bytes = rmp_serde::to_vec_named(&records()[4]).unwrap();
        for end in 0..bytes.len() {
            assert!(decode::<Record>(&bytes[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn integers_are_doubles_and_lossless_single_floats_too() {
        assert_eq!(decode::<f64>(b"\x07").unwrap(), 7.0);
        assert_eq!(decode::<f64>(b"\xd0\x80").unwrap(), -128.0);
        assert_eq!(decode::<f64>(b"\xca\x3f\x00\x00\x00").unwrap(), 0.5);
        assert!(decode::<u64>(b"\xcb\x3f\xe0\0\0\0\0\0\0").is_err());
    }

    #[test]
    fn unknown_fields_are_skipped_and_extra_entries_refused() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Short {
            a: u8,
        }
        assert_eq!(decode::<Short>(b"\x82\xa1z\x92\xc0\x81\x01\xc4\x01x\xa1a\x05").unwrap(), Short { a: 5 });
        assert!(decode::<Short>(b"\x92\x05\x06").unwrap_err().to_string().contains("1 entries too many"));
    }

    #[test]
    fn deep_nesting_and_huge_lengths_are_refused() {
        let deep = [vec![0x91; 100_000], vec![0xc0]].concat();
        assert!(decode::<de::IgnoredAny>(&deep).unwrap_err().to_string().contains("nested"));
        assert!(decode::<Vec<u64>>(b"\xdd\xff\xff\xff\xff").is_err());
        assert!(decode::<String>(b"\xdb\xff\xff\xff\xffx").is_err());
        assert!(decode::<String>(b"\xa2\xff\xfe").unwrap_err().to_string().contains("UTF-8"));
        assert!(decode::<u8>(b"\xd4\x01\x00").unwrap_err().to_string().contains("0xd4"));
    }
}
