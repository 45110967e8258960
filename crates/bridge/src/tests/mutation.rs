//! Requests that were damaged in every way: each is answered, in JSON, and none is a fault of the bridge.
//!
//! `PROPTEST_CASES=100000` tries more of them than the few thousand that every run does.

use super::stand_in::{self, StandIn};
use super::{call, initialize, message};
use crate::delivery::Handed;
use crate::http::{Connection, Endpoint};
use crate::link::Link;
use crate::room::Place;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const CASES: u32 = 3_000;
/// What no answer takes.
const HANG: Duration = Duration::from_secs(10);

/// Pieces that parsers trip over.
const PIECES: [&str; 20] = [
    "null",
    "[]",
    "{}",
    "\"",
    "{",
    "]",
    ",",
    ":",
    "\\u0000",
    "\\ud800",
    "1e999",
    "-0",
    "18446744073709551616",
    "\"id\":1,",
    "\"jsonrpc\":\"2.0\",",
    "\"method\":\"tools/call\",",
    "\u{feff}",
    "\r\n\r\n",
    "true",
    "\"_meta\":{\"progressToken\":0},",
];

#[derive(Debug, Clone)]
enum Damage {
    Flip { at: prop::sample::Index, bit: u8 },
    Cut { at: prop::sample::Index, length: usize },
    Truncate { at: prop::sample::Index },
    Insert { at: prop::sample::Index, piece: &'static str },
    Repeat { at: prop::sample::Index, length: usize, times: usize },
}

#[derive(Debug, Clone)]
struct Damaged {
    body: Vec<u8>,
    headers: Vec<(&'static str, String)>,
}

fn originals() -> Vec<String> {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    [
        initialize("2025-11-25"),
        message("tools/list", &json!({})),
        message("tools/list", &json!({ "_meta": meta })),
        message("server/discover", &json!({ "_meta": meta })),
        message("ping", &json!({})),
        call("list_agents", &json!({})),
        call("restart_agent", &json!({ "name": "claude", "note": "n", "resume": "fresh", "requestId": "r" })),
        call("agent_logs", &json!({ "name": "claude", "lines": 10 })),
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } }),
        json!({ "jsonrpc": "2.0", "id": 1, "result": {} }),
        json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -1, "message": "m" } }),
    ]
    .map(|message| message.to_string())
    .to_vec()
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        (at(), 0..8_u8).prop_map(|(at, bit)| Damage::Flip { at, bit }),
        (at(), 1..20_usize).prop_map(|(at, length)| Damage::Cut { at, length }),
        at().prop_map(|at| Damage::Truncate { at }),
        (at(), prop::sample::select(&PIECES[..])).prop_map(|(at, piece)| Damage::Insert { at, piece }),
        (at(), 1..40_usize, 1..200_usize).prop_map(|(at, length, times)| Damage::Repeat {
            at,
            length,
            times
        }),
    ]
}

fn apply(damage: &Damage, bytes: &mut Vec<u8>) {
    let end = bytes.len();
    let from = |at: &prop::sample::Index| at.index(end + 1);
    match damage {
        Damage::Flip { at, bit } => {
            if let Some(byte) = bytes.get_mut(from(at)) {
                *byte ^= 1 << bit;
            }
        }
        Damage::Cut { at, length } => {
            bytes.drain(from(at)..end.min(from(at) + length));
        }
        Damage::Truncate { at } => bytes.truncate(from(at)),
        Damage::Insert { at, piece } => {
            bytes.splice(from(at)..from(at), piece.bytes());
        }
        Damage::Repeat { at, length, times } => {
            let part = bytes[from(at)..end.min(from(at) + length)].repeat(*times);
            bytes.splice(from(at)..from(at), part);
        }
    }
}

fn headers() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    let values = |values: &'static [&'static str]| prop::option::weighted(0.3, prop::sample::select(values));
    let version = values(&["2026-07-28", "2025-11-25", "2024-11-05", "1999-01-01", "", "\u{e9}"]);
    let method = values(&["tools/call", "tools/list", "server/discover", "subscriptions/listen", ""]);
    let name = values(&["list_agents", "restart_agent", "nobody", "=?base64?Zm9v?=", "=?base64?!?="]);
    let accept = values(&["*/*", "application/json", "text/event-stream", "text/html", ""]);
    let session = values(&["7", ""]);
    (version, method, name, accept, session).prop_map(|(version, method, name, accept, session)| {
        [
            ("mcp-protocol-version", version),
            ("mcp-method", method),
            ("mcp-name", name),
            ("accept", accept),
            ("mcp-session-id", session),
        ]
        .into_iter()
        .filter_map(|(header, value)| Some((header, value?.to_owned())))
        .collect()
    })
}

fn damaged() -> impl Strategy<Value = Damaged> {
    let original = prop::sample::select(originals());
    (original, prop::collection::vec(damage(), 0..4), headers()).prop_map(|(original, damages, headers)| {
        let mut body = original.into_bytes();
        for damage in &damages {
            apply(damage, &mut body);
        }
        Damaged { body, headers }
    })
}

#[test]
fn no_damaged_request_is_a_fault_of_the_bridge_or_is_left_without_an_answer_in_json() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let _inside = runtime.enter();
    let daemon = StandIn::start(folder.path(), stand_in::obliging());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let local = listener.local_addr().unwrap();
    let (link, handle) = Link::new(daemon.socket.clone(), listener, String::new(), None, "up");
    runtime.spawn(link.keep());
    let endpoint = Arc::new(Endpoint::new(local, handle));
    let connection = Connection::new(endpoint, (local, local), Handed::new(), Place::new(Arc::default()));
    let host = local.to_string();
    let config = ProptestConfig::default();
    let config = ProptestConfig { cases: config.cases.max(CASES), failure_persistence: None, ..config };
    proptest!(config, |(request in damaged())| {
        runtime.block_on(timeout(HANG, is_answered(&connection, &host, request))).expect("a hang")?;
    });
}

async fn is_answered(connection: &Connection, host: &str, damaged: Damaged) -> Result<(), TestCaseError> {
    let mut request = Request::builder()
        .method("POST")
        .uri("/mcp")
        .header("host", host)
        .header("content-type", "application/json");
    for (name, value) in damaged.headers {
        request = request.header(name, value);
    }
    let answer = connection.answer(request.body(Full::new(Bytes::from(damaged.body))).unwrap()).await;
    let (head, body) = answer.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    prop_assert!(!head.status.is_server_error(), "{head:?} {body:?}");
    if head.status == StatusCode::ACCEPTED {
        prop_assert!(body.is_empty());
        return Ok(());
    }
    prop_assert_eq!(
        head.headers.get("content-type").and_then(|kind| kind.to_str().ok()),
        Some("application/json")
    );
    let answer: Value =
        serde_json::from_slice(&body).map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(&answer["jsonrpc"], "2.0");
    if head.status == StatusCode::OK {
        prop_assert!(answer["result"].is_object() || answer["error"]["code"].is_i64(), "{}", answer);
    } else {
        let code = answer["error"]["code"].as_i64().unwrap_or_default();
        let known = matches!(code, -32700 | -32600 | -32601 | -32602 | -32020 | -32022);
        prop_assert!(known, "{} {}", head.status, answer);
    }
    Ok(())
}
