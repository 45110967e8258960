//! HTTP and JSON-RPC: what comes in a wrong form, and every form that is right.

use super::stand_in::{self, StandIn};
use super::{Bridge, Reply, initialize, message, modern};
use serde_json::json;
use tempfile::TempDir;

fn bridge() -> (TempDir, StandIn, Bridge) {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    (folder, daemon, bridge)
}

async fn exchange(bridge: &Bridge, text: &str) -> Reply {
    let mut http = bridge.connect().await;
    http.send(&text.replace("HOST", &http.host)).await;
    http.read().await
}

#[tokio::test]
async fn requests_that_a_browser_would_send_for_a_foreign_page_are_refused() {
    let (_folder, mut daemon, bridge) = bridge();
    for (request, status) in [
        // DNS rebinding: the page's own name resolves to this machine.
        ("POST /mcp HTTP/1.1\r\nHost: evil.example:4310\r\nContent-Length: 0\r\n\r\n", 403),
        ("GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        ("POST /mcp HTTP/1.1\r\nHost: HOST\r\nOrigin: http://evil.example\r\nContent-Length: 0\r\n\r\n", 403),
        ("POST /mcp HTTP/1.1\r\nHost: HOST\r\nOrigin: null\r\nContent-Length: 0\r\n\r\n", 403),
        ("GET http://HOST/healthz HTTP/1.1\r\nHost: HOST\r\n\r\n", 403),
        // A form may send these content types without a preflight.
        ("POST /mcp HTTP/1.1\r\nHost: HOST\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415),
        ("POST /mcp HTTP/1.1\r\nHost: HOST\r\nContent-Length: 2\r\n\r\n{}", 415),
        // A preflight gets no permission.
        ("OPTIONS /mcp HTTP/1.1\r\nHost: HOST\r\nAccess-Control-Request-Method: POST\r\n\r\n", 405),
    ] {
        let reply = exchange(&bridge, request).await;
        assert_eq!(reply.status, status, "{request}");
        assert!(reply.json()["error"]["message"].is_string());
        assert_eq!(reply.header("access-control-allow-origin"), None);
    }
    assert_eq!(daemon.so_far(), []);
}

#[tokio::test]
async fn what_two_readers_could_read_differently_is_refused() {
    let (_folder, mut daemon, bridge) = bridge();
    for (headers, status) in [
        ("Transfer-Encoding: gzip, chunked\r\n", 415),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 415),
        ("Content-Encoding: gzip\r\nContent-Length: 5\r\n", 415),
        (
            "MCP-Protocol-Version: 2025-06-18\r\nMCP-Protocol-Version: 2026-07-28\r\nContent-Length: 5\r\n",
            400,
        ),
        ("Mcp-Name: list_agents\r\nMcp-Name: stop_agent\r\nContent-Length: 5\r\n", 400),
    ] {
        let head = "POST /mcp HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\n";
        let reply = exchange(&bridge, &format!("{head}{headers}\r\n0\r\n\r\n")).await;
        assert_eq!(reply.status, status, "{headers}");
        assert!(reply.json()["error"]["message"].is_string());
    }
    assert_eq!(daemon.so_far(), []);
}

#[tokio::test]
async fn everything_but_the_endpoint_and_its_health_is_not_found() {
    let (_folder, _daemon, bridge) = bridge();
    let mut http = bridge.connect().await;
    assert_eq!(http.get("/healthz").await.status, 200);
    for path in
        ["/", "/.well-known/oauth-protected-resource", "/.well-known/oauth-authorization-server/mcp", "/mcp/"]
    {
        let reply = http.get(path).await;
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.json()["error"].is_object());
    }
    let reply = http.get("/mcp").await;
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
}

#[tokio::test]
async fn wrong_json_is_answered_in_json() {
    let (_folder, _daemon, bridge) = bridge();
    let mut http = bridge.connect().await;
    let single = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    for (body, code) in [
        ("{", -32700),
        ("", -32700),
        (&*format!("[{single}]"), -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}"#, -32602),
    ] {
        http.send(&http.request(&[], body)).await;
        let reply = http.read().await;
        assert_eq!(reply.status, 400, "{body} {reply:?}");
        assert_eq!(reply.json()["error"]["code"], code, "{body}");
    }
    for (method, params) in [("initialize", json!({})), ("tools/call", json!({ "name": 7 }))] {
        assert_eq!(http.post(&[], &message(method, &params)).await.json()["error"]["code"], -32602);
    }
    let unknown = http.post(&[], &message("no/such/method", &json!({}))).await;
    assert_eq!(unknown.json()["error"]["code"], -32601);
    let version = [("MCP-Protocol-Version", "1999-01-01")];
    let reply = http.post(&version, &message("ping", &json!({}))).await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!(-32600)));
}

#[tokio::test]
async fn a_body_over_one_mebibyte_is_refused_however_it_comes() {
    let (_folder, _daemon, bridge) = bridge();
    let head = "POST /mcp HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\n";
    let reply = exchange(&bridge, &format!("{head}Content-Length: 1048577\r\n\r\n")).await;
    assert_eq!(reply.status, 413);
    let chunk = format!("100001\r\n{}\r\n0\r\n\r\n", "x".repeat(0x0010_0001));
    let reply = exchange(&bridge, &format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}")).await;
    assert_eq!((reply.status, reply.header("connection")), (413, Some("close")));
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for_long() {
    let (_folder, mut daemon, bridge) = bridge();
    let mut http = bridge.connect().await;
    let whole = http.request(&[], "{}");
    http.send(&whole[..whole.len() - 1]).await;
    daemon.next().await;
    tokio::time::pause();
    let reply = http.read().await;
    assert_eq!((reply.status, reply.header("connection")), (408, Some("close")));
    assert!(http.closed().await);
}

#[tokio::test]
async fn a_head_that_does_not_come_is_not_waited_for_long() {
    let (_folder, _daemon, bridge) = bridge();
    let mut http = bridge.connect().await;
    assert_eq!(http.get("/healthz").await.status, 200);
    http.send("POST /mcp HTTP/1.1\r\n").await;
    tokio::time::pause();
    assert!(http.closed().await);
}

#[tokio::test]
async fn a_client_that_accepts_anything_is_served() {
    let (_folder, _daemon, bridge) = bridge();
    let mut http = bridge.connect().await;
    for headers in [&[][..], &[("Accept", "*/*")], &[("Accept", "application/json, text/event-stream")]] {
        http.call(headers, "list_agents", &json!({})).await.result();
    }
}

#[tokio::test]
async fn every_version_with_a_handshake_is_spoken() {
    let (_folder, _daemon, bridge) = bridge();
    let mut http = bridge.connect().await;
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let answered = http.post(&[], &initialize(version)).await.json();
        assert_eq!(answered["result"]["protocolVersion"], version);
        assert_eq!(answered["result"]["serverInfo"]["name"], "mcp-restart");
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        let headers = [("MCP-Protocol-Version", version)];
        assert_eq!(http.post(&headers, &initialized).await.status, 202);
        http.call(&headers, "list_agents", &json!({})).await.result();
    }
}

#[tokio::test]
async fn the_version_without_a_handshake_is_spoken() {
    let (_folder, _daemon, bridge) = bridge();
    let mut http = bridge.connect().await;
    let discovered = modern(&mut http, "server/discover", None, json!({})).await;
    assert!(discovered["result"]["capabilities"]["tools"].is_object(), "{discovered}");
    let handshake = modern(&mut http, "initialize", None, json!({})).await;
    assert_eq!(handshake["error"]["code"], -32601, "{handshake}");
    let listed = modern(&mut http, "tools/list", None, json!({})).await;
    assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), crate::tools::Tool::ALL.len());
    let called = modern(&mut http, "tools/call", Some("list_agents"), json!({ "name": "list_agents" })).await;
    assert_eq!(called["result"]["structuredContent"]["agents"][0]["name"], "claude", "{called}");
}
