//! The values that fields can have, where the type alone does not say it.
//!
//! Each says once what it accepts: to the decoder by its visitor, to the reader of the JSON Schema by its
//! schema, out of the same constants. A refusal has to come out of the visitor, because only there it gets
//! its place in the file.

use crate::config::{Inject, StopSignal};
use crate::decode::Field;
use nix::sys::signal::Signal;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

/// A schema that stands where it is used, without a name of its own.
macro_rules! inline_schema {
    ($schema:expr) => {
        fn inline_schema() -> bool {
            true
        }

        fn schema_name() -> Cow<'static, str> {
            std::any::type_name::<Self>().into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            $schema
        }
    };
}

/// What a string has to be.
pub(crate) trait Rule {
    /// The rule as a regular expression, for the schema.
    const PATTERN: &'static str;

    /// What is wrong with a text that breaks the rule.
    fn check(text: &str) -> Result<(), &'static str>;
}

/// A string that keeps a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text<R = NoNul>(pub(crate) String, PhantomData<R>);

/// What the system can pass to a program: anything but NUL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoNul;

/// The same, and not empty: a program, a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotEmpty;

/// The name of an agent or a server. It becomes part of file names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name;

impl Rule for NoNul {
    const PATTERN: &'static str = r"^[^\u0000]*$";

    fn check(text: &str) -> Result<(), &'static str> {
        if text.contains('\0') {
            Err("it has a NUL character, which no program can be given")
        } else {
            Ok(())
        }
    }
}

impl Rule for NotEmpty {
    const PATTERN: &'static str = r"^[^\u0000]+$";

    fn check(text: &str) -> Result<(), &'static str> {
        if text.is_empty() { Err("it is empty") } else { NoNul::check(text) }
    }
}

impl Rule for Name {
    const PATTERN: &'static str = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$";

    fn check(text: &str) -> Result<(), &'static str> {
        let is_name = (1..=64).contains(&text.len())
            && !text.starts_with(['.', '-'])
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if is_name {
            Ok(())
        } else {
            Err("a name has 1 to 64 letters, digits, '.', '_' or '-', and starts with neither '.' nor '-'")
        }
    }
}

impl<'de, R: Rule> Deserialize<'de> for Text<R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor<R>(PhantomData<R>);

        impl<R: Rule> Visitor<'_> for TextVisitor<R> {
            type Value = Text<R>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                R::check(text).map_err(E::custom)?;
                Ok(Text(text.to_owned(), PhantomData))
            }
        }

        deserializer.deserialize_str(TextVisitor(PhantomData))
    }
}

impl<R: Rule> JsonSchema for Text<R> {
    inline_schema!(json_schema!({ "type": "string", "pattern": R::PATTERN }));
}

/// A whole number with bounds, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number<const MIN: u64, const MAX: u64>(pub(crate) u64);

/// Milliseconds, up to a day.
pub(crate) type Milliseconds<const MIN: u64 = 0> = Number<MIN, 86_400_000>;

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Number<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberVisitor<const MIN: u64, const MAX: u64>;

        impl<const MIN: u64, const MAX: u64> Visitor<'_> for NumberVisitor<MIN, MAX> {
            type Value = Number<MIN, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from {MIN} to {MAX}")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                if (MIN..=MAX).contains(&number) {
                    Ok(Number(number))
                } else {
                    Err(E::invalid_value(Unexpected::Unsigned(number), &self))
                }
            }
        }

        deserializer.deserialize_u64(NumberVisitor::<MIN, MAX>)
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Number<MIN, MAX> {
    inline_schema!(json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX }));
}

/// The address to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Host(pub(crate) IpAddr);

impl<'de> Deserialize<'de> for Host {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HostVisitor;

        impl Visitor<'_> for HostVisitor {
            type Value = Host;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an IP address or \"localhost\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                if text == "localhost" {
                    return Ok(Host(Ipv4Addr::LOCALHOST.into()));
                }
                let address = IpAddr::from_str(text);
                address.map(Host).map_err(|_| {
                    E::custom(format_args!("expected an IP address or \"localhost\", found {text:?}"))
                })
            }
        }

        deserializer.deserialize_str(HostVisitor)
    }
}

impl JsonSchema for Host {
    inline_schema!(
        json_schema!({ "type": "string", "pattern": "^(localhost|[0-9.]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)$" })
    );
}

/// The signals that can ask a program to end. Those that would suspend it are not among them.
const STOP_SIGNALS: &[&str] = &[
    "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGABRT", "SIGALRM",
    "SIGWINCH",
];

impl<'de> Deserialize<'de> for StopSignal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SignalVisitor;

        impl Visitor<'_> for SignalVisitor {
            type Value = StopSignal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a signal")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let short = text.strip_prefix("SIG").unwrap_or(text);
                let known = STOP_SIGNALS.iter().find(|name| name.strip_prefix("SIG") == Some(short));
                let signal = known.and_then(|name| Signal::from_str(name).ok());
                signal.map(StopSignal).ok_or_else(|| E::unknown_variant(text, STOP_SIGNALS))
            }
        }

        deserializer.deserialize_str(SignalVisitor)
    }
}

impl JsonSchema for StopSignal {
    inline_schema!({
        let short = STOP_SIGNALS.iter().filter_map(|name| name.strip_prefix("SIG"));
        let names: Vec<_> = STOP_SIGNALS.iter().copied().chain(short).collect();
        json_schema!({ "enum": names })
    });
}

impl<'de> Deserialize<'de> for Inject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InjectVisitor;

        impl Visitor<'_> for InjectVisitor {
            type Value = Inject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or \"project\"")
            }

            fn visit_bool<E>(self, inject: bool) -> Result<Self::Value, E> {
                Ok(if inject { Inject::Yes } else { Inject::No })
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                match text {
                    "project" => Ok(Inject::Project),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(InjectVisitor)
    }
}

impl JsonSchema for Inject {
    inline_schema!(json_schema!({ "enum": [true, false, "project"] }));
}

/// Either one boolean with a meaning of its own, or a `T`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OrBoolean<const WORD: bool, T> {
    Boolean,
    Other(T),
}

/// What an [`OrBoolean`] holds, in words.
pub(crate) trait Described {
    const EXPECTED: &'static str;
}

impl<'de, const WORD: bool, T: Deserialize<'de> + Described> Deserialize<'de> for OrBoolean<WORD, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OrVisitor<const WORD: bool, T>(PhantomData<T>);

        impl<'de, const WORD: bool, T: Deserialize<'de> + Described> Visitor<'de> for OrVisitor<WORD, T> {
            type Value = OrBoolean<WORD, T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{WORD} or {}", T::EXPECTED)
            }

            fn visit_bool<E: de::Error>(self, word: bool) -> Result<Self::Value, E> {
                if word == WORD {
                    Ok(OrBoolean::Boolean)
                } else {
                    Err(E::invalid_value(Unexpected::Bool(word), &self))
                }
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<Self::Value, D::Error> {
                T::deserialize(deserializer).map(OrBoolean::Other)
            }
        }

        deserializer.deserialize_newtype_struct("OrBoolean", OrVisitor(PhantomData))
    }
}

impl<const WORD: bool, T: JsonSchema> JsonSchema for OrBoolean<WORD, T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("{WORD} or {}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "const": WORD }, generator.subschema_for::<T>()] })
    }
}

impl Described for Vec<Field<Text<NotEmpty>>> {
    const EXPECTED: &'static str = "an array of program names";
}
