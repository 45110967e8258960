//! From text to entries, with every fault on the way.
//!
//! serde stops at the first error. This deserializer does not: it records the fault with its place, and a
//! [`Field`] takes the place of the value, so that its siblings are still looked at. The fields that are
//! known come from the entry types themselves, which serde hands over.

use crate::fault::{Faults, Path, nearest};
use jsonc_parser::ast::{Array, Object, ObjectProp, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::value::StrDeserializer;
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, Expected, IntoDeserializer, Unexpected, Visitor,
};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

/// JSON, with the comments and trailing commas that editors write, and nothing further.
pub(crate) const SYNTAX: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// What is said of a field that no entry has.
pub(crate) const UNKNOWN_FIELD: &str = "unknown field";

/// Parses a text; a syntax error is recorded.
pub(crate) fn parse<'t>(text: &'t str, faults: &Faults<'_>) -> Option<Value<'t>> {
    match jsonc_parser::parse_to_ast(text, &CollectOptions::default(), &SYNTAX) {
        Ok(parsed) => {
            if parsed.value.is_none() {
                faults.at(0, Path::Root, "the file is empty; expected an object".to_owned(), None);
            }
            parsed.value
        }
        Err(error) => {
            let message = format!("syntax error: {}", lowercase_first(&error.kind().to_string()));
            faults.at(error.range().start, Path::Root, message, None);
            None
        }
    }
}

/// Decodes a value; each fault is recorded. None if the value as a whole is of another type.
pub(crate) fn decode<T: for<'de> Deserialize<'de>>(value: &Value<'_>, faults: &Faults<'_>) -> Option<T> {
    T::deserialize(Node { value, path: Path::Root, faults }).ok()
}

/// A field of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Field<T> {
    /// The entry does not have it.
    #[default]
    Absent,
    /// It has one that cannot be used; the fault is recorded.
    Faulty,
    /// It has one.
    Given(T),
}

impl<T> Field<T> {
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Field<U> {
        match self {
            Self::Absent => Field::Absent,
            Self::Faulty => Field::Faulty,
            Self::Given(value) => Field::Given(change(value)),
        }
    }

    pub(crate) fn given(self) -> Option<T> {
        match self {
            Self::Given(value) => Some(value),
            Self::Absent | Self::Faulty => None,
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for FieldVisitor<T> {
            type Value = Field<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_none<E>(self) -> Result<Self::Value, E> {
                Ok(Field::Absent)
            }

            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
                Ok(T::deserialize(deserializer).map_or(Field::Faulty, Field::Given))
            }
        }

        // An option, because that is what serde takes for absent when a field is missing.
        deserializer.deserialize_option(FieldVisitor(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for Field<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// Why a value was refused.
#[derive(Debug)]
enum Refusal {
    /// The fault is recorded already.
    Recorded,
    /// Something else was expected.
    Expected(String),
    /// None of the words that are known here.
    UnknownWord(String, &'static [&'static str]),
    /// Said in full.
    Message(String),
}

impl de::Error for Refusal {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Message(message.to_string())
    }

    fn invalid_type(_found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::Expected(expected.to_string())
    }

    fn invalid_value(_found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::Expected(expected.to_string())
    }

    fn unknown_variant(word: &str, known: &'static [&'static str]) -> Self {
        Self::UnknownWord(word.to_owned(), known)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recorded => f.write_str("the fault is recorded"),
            Self::Expected(expected) => write!(f, "expected {expected}"),
            Self::UnknownWord(word, _) => write!(f, "unknown word {word:?}"),
            Self::Message(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Refusal {}

/// A value with its place.
#[derive(Clone, Copy)]
struct Node<'a, 't> {
    value: &'a Value<'t>,
    path: Path<'a>,
    faults: &'a Faults<'a>,
}

impl<'a, 't> Node<'a, 't> {
    /// Passes a result on; a refusal that has no place yet gets this one.
    fn record<V>(self, result: Result<V, Refusal>) -> Result<V, Refusal> {
        let (message, suggestion) = match result {
            Ok(value) => return Ok(value),
            Err(Refusal::Recorded) => return Err(Refusal::Recorded),
            Err(Refusal::Expected(expected)) => {
                (format!("expected {expected}, found {}", describe(self.value)), None)
            }
            Err(Refusal::UnknownWord(word, known)) => {
                let message = format!("expected one of {}, found {word:?}", known.join(", "));
                (message, nearest(&word, known.iter().copied()))
            }
            Err(Refusal::Message(message)) => (message, None),
        };
        self.faults.at(self.value.start(), self.path, message, suggestion);
        Err(Refusal::Recorded)
    }

    fn expected<V>(self, what: &str) -> Result<V, Refusal> {
        self.record(Err(Refusal::Expected(what.to_owned())))
    }

    /// The properties of an object without those whose name was there before, which are recorded.
    fn unique_properties(self, object: &'a Object<'t>) -> Vec<&'a ObjectProp<'t>> {
        let mut names = HashSet::new();
        let is_new = |property: &&'a ObjectProp<'t>| {
            let is_new = names.insert(property.name.as_str());
            if !is_new {
                let field = self.path.field(property.name.as_str());
                self.faults.at(property.start(), field, "given twice".to_owned(), None);
            }
            is_new
        };
        object.properties.iter().filter(is_new).collect()
    }

    /// The properties that an entry knows; the others are recorded.
    fn known_properties(self, object: &'a Object<'t>, known: &[&'static str]) -> Vec<&'a ObjectProp<'t>> {
        let mut properties = self.unique_properties(object);
        properties.retain(|property| {
            let name = property.name.as_str();
            let is_known = known.contains(&name);
            if !is_known {
                let suggestion = nearest(name, known.iter().copied());
                let field = self.path.field(name);
                self.faults.at(property.start(), field, UNKNOWN_FIELD.to_owned(), suggestion);
            }
            is_known
        });
        properties
    }

    fn visit_properties<'de, V: Visitor<'de>>(
        self,
        properties: Vec<&'a ObjectProp<'t>>,
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        self.record(visitor.visit_map(Properties { node: self, rest: properties.into_iter(), current: None }))
    }

    fn visit_elements<'de, V: Visitor<'de>>(
        self,
        array: &'a Array<'t>,
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        self.record(visitor.visit_seq(Elements { node: self, rest: array.elements.iter().enumerate() }))
    }
}

impl<'de> Deserializer<'de> for Node<'_, '_> {
    type Error = Refusal;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.value {
            Value::StringLit(literal) => self.record(visitor.visit_str(&literal.value)),
            Value::BooleanLit(literal) => self.record(visitor.visit_bool(literal.value)),
            Value::NullKeyword(_) => self.record(visitor.visit_unit()),
            Value::NumberLit(literal) => {
                if let Ok(number) = literal.value.parse() {
                    self.record(visitor.visit_u64(number))
                } else {
                    self.record(visitor.visit_f64(literal.value.parse().unwrap_or(f64::NAN)))
                }
            }
            Value::Array(array) => self.visit_elements(array, visitor),
            Value::Object(object) => self.visit_properties(self.unique_properties(object), visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.value {
            Value::Array(array) => self.visit_elements(array, visitor),
            _ => self.expected("an array"),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.value {
            Value::Object(object) => self.visit_properties(self.unique_properties(object), visitor),
            _ => self.expected("an object"),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        match self.value {
            Value::Object(object) => self.visit_properties(self.known_properties(object, fields), visitor),
            _ => self.expected("an object"),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        match self.value {
            Value::StringLit(literal) => {
                let word: StrDeserializer<'_, Refusal> = literal.value.as_ref().into_deserializer();
                self.record(visitor.visit_enum(word))
            }
            _ => self.expected(&format!("one of {}", variants.join(", "))),
        }
    }

    /// What is either a plain word or an object or array: the visitor sees which.
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        match self.value {
            Value::Object(_) | Value::Array(_) => self.record(visitor.visit_newtype_struct(self)),
            _ => self.deserialize_any(visitor),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct tuple tuple_struct identifier ignored_any
    }
}

struct Properties<'a, 't> {
    node: Node<'a, 't>,
    rest: std::vec::IntoIter<&'a ObjectProp<'t>>,
    current: Option<&'a ObjectProp<'t>>,
}

impl<'de> de::MapAccess<'de> for Properties<'_, '_> {
    type Error = Refusal;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Refusal> {
        self.current = self.rest.next();
        let Some(property) = self.current else { return Ok(None) };
        let name: StrDeserializer<'_, Refusal> = property.name.as_str().into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refusal> {
        let Some(property) = self.current.take() else {
            return Err(Refusal::Message("a value was asked for before its name".to_owned()));
        };
        let path = self.node.path.field(property.name.as_str());
        seed.deserialize(Node { value: &property.value, path, faults: self.node.faults })
    }
}

struct Elements<'a, 't> {
    node: Node<'a, 't>,
    rest: std::iter::Enumerate<std::slice::Iter<'a, Value<'t>>>,
}

impl<'de> de::SeqAccess<'de> for Elements<'_, '_> {
    type Error = Refusal;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Refusal> {
        let Some((index, value)) = self.rest.next() else { return Ok(None) };
        let path = self.node.path.element(index);
        seed.deserialize(Node { value, path, faults: self.node.faults }).map(Some)
    }
}

/// What was found. A string is never shown: it may be a secret in the wrong place.
fn describe(value: &Value<'_>) -> String {
    match value {
        Value::StringLit(literal) if literal.value.is_empty() => "an empty string".to_owned(),
        Value::StringLit(_) => "a string".to_owned(),
        Value::NumberLit(literal) => literal.value.to_owned(),
        Value::BooleanLit(literal) => literal.value.to_string(),
        Value::NullKeyword(_) => "null".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn lowercase_first(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_lowercase().chain(characters).collect())
}
