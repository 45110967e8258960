//! The tools over the whole path.

use super::stand_in::{self, StandIn};
use super::{Bridge, message};
use mcp_restart_protocol::answer::{ErrorCode, ServerBody};
use mcp_restart_protocol::request::{ClientFrame, Credential, Request};
use serde_json::{Value, json};
use std::sync::Arc;

/// The arguments of a call of each tool that is carried out.
fn calls() -> [(&'static str, Value); 9] {
    [
        ("list_agents", json!({})),
        ("server_status", json!({})),
        ("start_agent", json!({ "name": "claude" })),
        ("stop_agent", json!({ "name": "claude" })),
        ("restart_agent", json!({ "name": "claude", "note": "n", "resume": "fresh", "requestId": "r" })),
        ("get_handoff", json!({})),
        ("agent_logs", json!({ "name": "claude", "lines": 10 })),
        ("list_stdio_servers", json!({})),
        ("restart_stdio_servers", json!({ "names": ["tuiml"], "staleOnly": true, "respawnWaitMs": 0 })),
    ]
}

#[tokio::test]
async fn each_tool_answers_what_its_output_schema_says() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    let mut http = bridge.connect().await;
    let listed = http.post(&[], &message("tools/list", &json!({}))).await.json()["result"]["tools"].clone();
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), calls().len());
    for (tool, arguments) in calls() {
        let definition = listed.iter().find(|definition| definition["name"] == tool).unwrap();
        let (input, output) = (&definition["inputSchema"], &definition["outputSchema"]);
        assert_eq!(breaches(&arguments, input, input), Vec::<String>::new(), "{tool}");
        let result = http.call(&[], tool, &arguments).await.result();
        assert_eq!(breaches(&result, output, output), Vec::<String>::new(), "{tool}");
    }
}

#[tokio::test]
async fn the_daemon_learns_who_asks_and_by_which_path() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    let mut http = bridge.connect().await;
    let peer = http.stream.local_addr().unwrap();
    http.call(&[("Authorization", "Bearer mra_x")], "stop_agent", &json!({ "name": "claude" }))
        .await
        .result();
    let frame = daemon.next_call().await;
    assert_eq!(
        frame.credential,
        Credential::Http { token: Some("mra_x".to_owned()), peer, local: bridge.address }
    );
    let path = "mcp_stop_agent".to_owned();
    assert_eq!(frame.request, Request::Stop { path, name: "claude".to_owned(), wait: true });
}

#[tokio::test]
async fn a_failure_is_a_tool_error_with_code_message_and_hint() {
    let folder = tempfile::tempdir().unwrap();
    let judge = |frame: &ClientFrame| match frame.request {
        Request::Authenticate => Some(ServerBody::Answer(stand_in::carried_out(&frame.request))),
        _ => Some(stand_in::failed(ErrorCode::NotRunning, "claude does not run")),
    };
    let daemon = StandIn::start(folder.path(), Arc::new(judge));
    let bridge = Bridge::start(&daemon.socket);
    let error = bridge.connect().await.call(&[], "stop_agent", &json!({ "name": "claude" })).await.error();
    assert_eq!(error, json!({ "code": "not_running", "message": "claude does not run", "hint": "a hint" }));
}

#[tokio::test]
async fn a_wrong_argument_never_reaches_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    let mut http = bridge.connect().await;
    for arguments in [json!({}), json!({ "name": "../x" }), json!({ "name": "a", "force": true })] {
        assert_eq!(http.call(&[], "start_agent", &arguments).await.error()["code"], "invalid_argument");
    }
    assert_eq!(daemon.so_far(), [Request::Authenticate]);
}

#[tokio::test]
async fn a_tool_that_is_not_there_is_a_protocol_error() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    let reply = bridge.connect().await.call(&[], "kill_all", &json!({})).await;
    assert_eq!(reply.json()["error"]["code"], -32602);
}

/// Where `value` is not what `schema` says: the parts of JSON Schema that our schemas use.
fn breaches(value: &Value, schema: &Value, root: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let keywords = schema.as_object().unwrap();
    for (keyword, operand) in keywords {
        let held = match keyword.as_str() {
            "$ref" => {
                let pointer = operand.as_str().unwrap().strip_prefix('#').unwrap();
                found.extend(breaches(value, root.pointer(pointer).unwrap(), root));
                true
            }
            "type" => match operand {
                Value::Array(kinds) => kinds.iter().any(|kind| is_of(value, kind)),
                kind => is_of(value, kind),
            },
            "enum" => operand.as_array().unwrap().contains(value),
            "const" => operand == value,
            "anyOf" => operand.as_array().unwrap().iter().any(|one| breaches(value, one, root).is_empty()),
            "oneOf" => {
                let fits =
                    operand.as_array().unwrap().iter().filter(|one| breaches(value, one, root).is_empty());
                fits.count() == 1
            }
            "required" => {
                operand.as_array().unwrap().iter().all(|key| value.get(key.as_str().unwrap()).is_some())
            }
            "properties" => {
                for (key, part) in operand.as_object().unwrap() {
                    found.extend(value.get(key).map(|value| breaches(value, part, root)).unwrap_or_default());
                }
                true
            }
            "additionalProperties" => {
                let known = keywords.get("properties").cloned().unwrap_or_default();
                *operand != json!(false)
                    || value.as_object().unwrap().keys().all(|key| known.get(key).is_some())
            }
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    found.extend(breaches(item, operand, root));
                }
                true
            }
            "minimum" => value.as_f64().is_none_or(|number| number >= operand.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|number| number <= operand.as_f64().unwrap()),
            "minLength" | "maxLength" | "pattern" | "description" | "$defs" | "default" => true,
            unknown => panic!("a keyword that this check does not know: {unknown}"),
        };
        if !held {
            found.push(format!("{value} against {keyword}: {operand}"));
        }
    }
    found
}

fn is_of(value: &Value, kind: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other}"),
    }
}
