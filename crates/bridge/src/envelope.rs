//! The outline of a JSON-RPC message, read before rmcp sees it: rmcp answers what is no message at all
//! with plain text and the wrong status.

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;

/// The id of a JSON-RPC request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Id {
    /// A whole number.
    Number(i64),
    /// A text.
    Text(String),
}

/// Why a body is no JSON-RPC message, or a message cannot be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// JSON-RPC's number for it.
    pub(crate) code: i32,
    /// What is wrong, for a person.
    pub(crate) message: String,
    /// The id of the message it is about, where it could be read.
    pub(crate) id: Option<Id>,
}

/// What is read of a message before rmcp sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outline {
    /// Its id; `None` for a notification or an answer.
    pub(crate) id: Option<Id>,
    /// Whether it asks for a stream of changes.
    pub(crate) listens: bool,
}

/// JSON-RPC, of our own choice: there is no room for that at present.
pub(crate) const SERVER_ERROR: i32 = -32000;
/// JSON-RPC: the body is not JSON.
pub(crate) const PARSE_ERROR: i32 = -32700;
/// JSON-RPC: the JSON is no request.
pub(crate) const INVALID_REQUEST: i32 = -32600;
/// JSON-RPC: the parameters are not those of the method.
pub(crate) const INVALID_PARAMS: i32 = -32602;
/// JSON-RPC: a fault of the server.
pub(crate) const INTERNAL_ERROR: i32 = -32603;

/// The outline of the message that the body is.
pub(crate) fn read(body: &[u8]) -> Result<Outline, Wrong> {
    let invalid = |message: &str| Wrong { code: INVALID_REQUEST, message: message.to_owned(), id: None };
    // serde takes an array for a struct, so the kind of value is looked at first.
    match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => {}
        Some(b'[') if is_json(body) => return Err(invalid("batches are not supported")),
        _ if is_json(body) => return Err(invalid("a JSON-RPC message is an object")),
        _ => return Err(Wrong { code: PARSE_ERROR, message: "the body is not JSON".to_owned(), id: None }),
    }
    let outline: Fields = serde_json::from_slice(body).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => invalid(&format!("this is no JSON-RPC message: {error}")),
        _ => Wrong { code: PARSE_ERROR, message: format!("the body is not JSON: {error}"), id: None },
    })?;
    if outline.jsonrpc != "2.0" {
        return Err(Wrong { id: outline.id, ..invalid("jsonrpc must be \"2.0\"") });
    }
    if outline.method.is_none() && outline.result.is_none() && outline.error.is_none() {
        return Err(Wrong { id: outline.id, ..invalid("this is no JSON-RPC message: it has no method") });
    }
    Ok(Outline { id: outline.id, listens: outline.method.as_deref() == Some("subscriptions/listen") })
}

impl Wrong {
    /// The JSON-RPC answer.
    pub(crate) fn to_json(&self) -> Value {
        json!({ "jsonrpc": "2.0", "id": self.id, "error": { "code": self.code, "message": self.message } })
    }
}

#[derive(Deserialize)]
struct Fields {
    jsonrpc: String,
    #[serde(default, deserialize_with = "present")]
    id: Option<Id>,
    method: Option<String>,
    result: Option<de::IgnoredAny>,
    error: Option<de::IgnoredAny>,
}

fn is_json(body: &[u8]) -> bool {
    serde_json::from_slice::<de::IgnoredAny>(body).is_ok()
}

/// An id that is there may not be null: then it would be neither a request nor a notification.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Id>, D::Error> {
    deserializer.deserialize_any(IdVisitor).map(Some)
}

struct IdVisitor;

impl de::Visitor<'_> for IdVisitor {
    type Value = Id;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an id that is a text or a whole number")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Id, E> {
        Ok(Id::Number(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Id, E> {
        i64::try_from(number).map(Id::Number).map_err(|_| E::custom("the id is too large"))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Id, E> {
        Ok(Id::Text(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(body: &str) -> i32 {
        read(body.as_bytes()).unwrap_err().code
    }

    #[test]
    fn a_request_has_its_id_and_a_notification_none() {
        let id = |body: &str| read(body.as_bytes()).unwrap().id;
        assert_eq!(id(r#" {"jsonrpc":"2.0","id":7,"method":"ping"}"#), Some(Id::Number(7)));
        assert_eq!(id(r#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#), Some(Id::Text("a".into())));
        assert_eq!(id(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#), None);
    }

    #[test]
    fn what_is_not_json_is_a_parse_error() {
        for body in ["", "{", "nope", "[1,", r#"{"jsonrpc":"2.0","id":1,"method":"ping"} x"#] {
            assert_eq!(code(body), PARSE_ERROR, "{body:?}");
        }
        assert_eq!(read(b"{\"jsonrpc\":\"\xff\"}").unwrap_err().code, PARSE_ERROR);
    }

    #[test]
    fn json_that_is_no_message_is_an_invalid_request() {
        for body in [
            "[]",
            r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
            "null",
            "7",
            "{}",
            r#"{"id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
        ] {
            assert_eq!(code(body), INVALID_REQUEST, "{body}");
        }
    }

    #[test]
    fn the_answer_repeats_the_id_where_it_was_read() {
        let wrong = read(br#"{"jsonrpc":"1.0","id":"x","method":"ping"}"#).unwrap_err();
        assert_eq!(wrong.to_json()["id"], "x");
        assert_eq!(read(b"[]").unwrap_err().to_json()["id"], Value::Null);
    }
}
