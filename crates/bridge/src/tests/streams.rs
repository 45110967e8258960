//! What comes before the answer, or without one: changes, and progress.

use super::stand_in::{self, Judge, StandIn};
use super::{Bridge, Http, call, initialize, message, modern, modern_message};
use mcp_restart_protocol::answer::{Event, ServerBody};
use mcp_restart_protocol::request::{ClientFrame, Request};
use serde_json::{Value, json};
use std::sync::Arc;

const STREAMS: usize = 64;

/// Tells of a change of `claude` to whoever subscribes, and carries out all but stops.
fn never_stopping() -> Judge {
    Arc::new(|frame: &ClientFrame| match frame.request {
        Request::Stop { .. } => None,
        Request::Subscribe => {
            Some(ServerBody::Event(Event { revision: 1, agent: stand_in::agent("claude") }))
        }
        _ => Some(ServerBody::Answer(stand_in::carried_out(&frame.request))),
    })
}

/// A stream that listens for the changes of these resources, acknowledged.
async fn listen(bridge: &Bridge, uris: &[&str]) -> (Http, String) {
    let mut http = bridge.connect().await;
    let (headers, message) =
        modern_message("subscriptions/listen", json!({ "notifications": { "resourceSubscriptions": uris } }));
    http.send(&http.request(&headers, &message.to_string())).await;
    let acknowledged = http.until("notifications/subscriptions/acknowledged").await;
    assert!(acknowledged.contains("text/event-stream"), "{acknowledged}");
    (http, acknowledged)
}

#[tokio::test]
async fn a_change_of_an_agent_reaches_whoever_listens_for_it_and_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let bridge = Bridge::start(&folder.path().join("mcp-restartd.sock"));
    let (mut everybody, _) = listen(&bridge, &["mcp-restart://agents", "file:///etc/passwd"]).await;
    let (mut one, acknowledged) = listen(&bridge, &["mcp-restart://agents/claude"]).await;
    let (mut other, _) = listen(&bridge, &["mcp-restart://agents/codex"]).await;
    assert!(!acknowledged.contains("file:///etc/passwd"), "{acknowledged}");
    // What has changed while the daemon was away is told when it comes back.
    let _daemon = StandIn::start(folder.path(), never_stopping());
    let updated = everybody.until(r#""uri":"mcp-restart://agents""#).await;
    assert!(updated.contains("notifications/resources/updated"), "{updated}");
    let updated = one.until(r#""uri":"mcp-restart://agents/claude""#).await;
    assert!(updated.contains("notifications/resources/updated"), "{updated}");
    // The end is a result, and nothing came before it.
    drop(bridge.stop);
    let end = other.until(r#""result""#).await;
    assert!(!end.contains("resources/updated"), "{end}");
    bridge.ended.await.unwrap();
}

#[tokio::test]
async fn a_stream_too_many_is_refused_and_a_place_is_free_again_when_one_ends() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        streams.push(listen(&bridge, &["mcp-restart://agents"]).await);
    }
    let (headers, message) = modern_message("subscriptions/listen", json!({ "notifications": {} }));
    let refused = bridge.connect().await.post(&headers, &message).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!(-32000)));
    bridge.connect().await.call(&[], "list_agents", &json!({})).await.result();
}

#[tokio::test]
async fn a_resource_is_what_list_agents_says() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    let mut http = bridge.connect().await;
    let listed = http.call(&[], "list_agents", &json!({})).await.result();
    let read = async |http: &mut Http, uri: &str| {
        http.post(&[], &message("resources/read", &json!({ "uri": uri }))).await.json()
    };
    let text = |answer: &Value| -> Value {
        serde_json::from_str(answer["result"]["contents"][0]["text"].as_str().unwrap()).unwrap()
    };
    let resources = http.post(&[], &message("resources/list", &json!({}))).await.json();
    assert_eq!(resources["result"]["resources"][0]["uri"], "mcp-restart://agents");
    assert_eq!(text(&read(&mut http, "mcp-restart://agents").await), listed);
    assert_eq!(text(&read(&mut http, "mcp-restart://agents/codex").await), listed["agents"][1]);
    for unknown in ["mcp-restart://agents/nobody", "file:///etc/passwd"] {
        assert!(read(&mut http, unknown).await["error"]["code"].is_i64(), "{unknown}");
    }
}

#[tokio::test]
async fn subscriptions_are_offered_to_those_versions_alone_in_which_something_arrives() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    let mut http = bridge.connect().await;
    let resources = |answer: &Value| answer["result"]["capabilities"]["resources"].clone();
    let old = http.post(&[], &initialize("2025-11-25")).await.json();
    assert_eq!(resources(&old), json!({}));
    let new = modern(&mut http, "server/discover", None, json!({})).await;
    assert_eq!(resources(&new), json!({ "subscribe": true }));
}

#[tokio::test]
async fn a_caller_that_asked_for_it_is_told_that_its_stop_goes_on_in_every_version() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StandIn::start(folder.path(), never_stopping());
    let bridge = Bridge::start(&daemon.socket);
    let params =
        json!({ "name": "stop_agent", "arguments": { "name": "a" }, "_meta": { "progressToken": "mine" } });
    let mut waiting = Vec::new();
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"] {
        let mut http = bridge.connect().await;
        let (headers, body) = modern_message("tools/call", params.clone());
        let request = if version == headers[0].1 {
            http.request(&[&headers[..], &[("Mcp-Name", "stop_agent")]].concat(), &body.to_string())
        } else {
            let body = message("tools/call", &params).to_string();
            http.request(&[("MCP-Protocol-Version", version)], &body)
        };
        http.send(&request).await;
        daemon.next_call().await;
        waiting.push(http);
    }
    tokio::time::pause();
    for http in &mut waiting {
        let told = http.until("waiting for 2 s").await;
        assert!(told.contains("text/event-stream") && told.contains("waiting for 1 s"), "{told}");
        assert!(told.contains(r#""progressToken":"mine""#), "{told}");
    }
}

#[tokio::test]
async fn a_cancellation_undoes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StandIn::start(folder.path(), never_stopping());
    let bridge = Bridge::start(&daemon.socket);
    let mut http = bridge.connect().await;
    http.send(&http.request(&[], &call("stop_agent", &json!({ "name": "a" })).to_string())).await;
    daemon.next_call().await;
    let cancelled =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
    assert_eq!(bridge.post(&cancelled).await.status, 202);
    assert_eq!(daemon.so_far(), [Request::Authenticate]);
    // The caller still has its answer, whatever that is.
    drop(daemon);
    assert_eq!(http.read().await.error()["code"], "daemon_unavailable");
}
