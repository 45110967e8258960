//! The daemon behind the bridge: away, back, replaced, and told what was delivered.

use super::stand_in::{self, Judge, StandIn};
use super::{Bridge, call, initialize, message};
use mcp_restart_protocol::answer::ServerBody;
use mcp_restart_protocol::hello::PROTOCOL;
use mcp_restart_protocol::request::{ClientFrame, Request};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Lets everybody in and answers no call.
fn admitting() -> Judge {
    Arc::new(|frame: &ClientFrame| {
        let body = ServerBody::Answer(stand_in::carried_out(&frame.request));
        (frame.request == Request::Authenticate).then_some(body)
    })
}

#[tokio::test]
async fn without_a_daemon_the_static_answers_come_and_calls_say_how_to_start_it() {
    let folder = tempfile::tempdir().unwrap();
    let bridge = Bridge::start(&folder.path().join("mcp-restartd.sock"));
    let mut http = bridge.connect().await;
    let any = [("Authorization", "Bearer whatever")];
    for message in [initialize("2025-11-25"), message("tools/list", &json!({})), message("ping", &json!({}))]
    {
        let reply = http.post(&any, &message).await;
        assert!(reply.json()["result"].is_object(), "{reply:?}");
    }
    let error = http.call(&any, "list_agents", &json!({})).await.error();
    assert_eq!(
        (&error["code"], &error["message"]),
        (&json!("daemon_unavailable"), &json!("the daemon is not running"))
    );
    assert!(error["hint"].as_str().unwrap().contains("mcp-restartctl up"), "{error}");
    assert_eq!(http.get("/healthz").await.json(), json!({ "status": "ok", "daemon": false }));
}

#[tokio::test]
async fn a_daemon_that_comes_later_is_found_and_one_that_dies_is_missed() {
    let folder = tempfile::tempdir().unwrap();
    let bridge = Bridge::start(&folder.path().join("mcp-restartd.sock"));
    let mut http = bridge.connect().await;
    assert_eq!(http.call(&[], "list_agents", &json!({})).await.error()["code"], "daemon_unavailable");
    for _ in 0..2 {
        let mut daemon = StandIn::start(folder.path(), stand_in::obliging());
        daemon.announced.recv().await.unwrap();
        while http.get("/healthz").await.json()["daemon"] == false {}
        http.call(&[], "list_agents", &json!({})).await.result();
        // Another daemon has not let this connection in yet.
        assert_eq!(daemon.so_far(), [Request::Authenticate, Request::List { all: false }]);
        drop(daemon);
        while http.get("/healthz").await.json()["daemon"] == true {}
    }
    assert_eq!(http.call(&[], "list_agents", &json!({})).await.error()["code"], "daemon_unavailable");
}

#[tokio::test]
async fn a_daemon_that_is_back_soon_is_missed_by_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StandIn::start(folder.path(), admitting());
    let bridge = Bridge::start(&daemon.socket);
    let (mut under_way, mut later) = (bridge.connect().await, bridge.connect().await);
    let list = call("list_agents", &json!({}));
    under_way.send(&under_way.request(&[], &list.to_string())).await;
    daemon.next_call().await;
    drop(daemon);
    while later.get("/healthz").await.json()["daemon"] == true {}
    later.send(&later.request(&[], &list.to_string())).await;
    let _daemon = StandIn::start(folder.path(), stand_in::obliging());
    for mut http in [under_way, later] {
        http.read().await.result();
    }
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_is_not_back_soon_is_no_longer_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    let mut http = bridge.connect().await;
    http.call(&[], "list_agents", &json!({})).await.result();
    drop(daemon);
    let asked = Instant::now();
    assert_eq!(http.call(&[], "list_agents", &json!({})).await.error()["code"], "daemon_unavailable");
    assert!(asked.elapsed() >= Duration::from_secs(5));
    let asked = Instant::now();
    assert_eq!(http.call(&[], "list_agents", &json!({})).await.error()["code"], "daemon_unavailable");
    assert_eq!(asked.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn a_call_under_way_when_the_daemon_dies_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StandIn::start(folder.path(), admitting());
    let bridge = Bridge::start(&daemon.socket);
    let mut http = bridge.connect().await;
    http.send(&http.request(&[], &call("stop_agent", &json!({ "name": "a" })).to_string())).await;
    daemon.next_call().await;
    drop(daemon);
    let error = http.read().await.error();
    assert_eq!(error["code"], "daemon_unavailable");
    assert!(error["message"].as_str().unwrap().contains("before it answered"), "{error}");
}

#[tokio::test]
async fn the_bridge_announces_itself_and_hands_its_listening_socket_over() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    let (announcement, descriptor) = daemon.announced.recv().await.unwrap();
    assert_eq!(
        announcement,
        json!({
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "url": format!("http://{}/mcp", bridge.address),
            "protocol": PROTOCOL,
        })
    );
    let name: nix::sys::socket::SockaddrIn = nix::sys::socket::getsockname(descriptor).unwrap();
    assert_eq!(name.to_string(), bridge.address.to_string());
    nix::unistd::close(descriptor).unwrap();
}

#[tokio::test]
async fn a_daemon_of_another_protocol_is_named_and_not_talked_to() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StandIn::speaking(folder.path(), PROTOCOL + 1, stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    daemon.announced.recv().await.unwrap();
    let error = bridge.connect().await.call(&[], "list_agents", &json!({})).await.error();
    assert_eq!(error["code"], "daemon_unavailable");
    assert!(error["message"].as_str().unwrap().contains("speaks protocol"), "{error}");
    assert_eq!(daemon.so_far(), []);
}

#[tokio::test(start_paused = true)]
async fn a_bridge_that_was_given_its_socket_ends_when_there_is_no_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let begun = tokio::time::Instant::now();
    let socket = folder.path().join("mcp-restartd.sock");
    Bridge::with_patience(&socket, Some(Duration::from_mins(1))).ended.await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 60);
}

#[tokio::test]
async fn the_delivery_of_an_answer_that_asks_for_it_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    let mut http = bridge.connect().await;
    http.call(&[], "restart_agent", &json!({})).await.result();
    assert!(matches!(daemon.next_call().await.request, Request::Restart(_)));
    assert_eq!(daemon.next_call().await.request, Request::Delivered { delivery: 7 });
    // Nobody waits for this one.
    http.call(&[], "restart_agent", &json!({ "name": "codex" })).await.result();
    http.call(&[], "list_agents", &json!({})).await.result();
    assert!(matches!(daemon.next_call().await.request, Request::Restart(_)));
    assert_eq!(daemon.so_far(), [Request::List { all: false }]);
}

#[tokio::test]
async fn a_caller_that_goes_away_cancels_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    for _ in 0..50 {
        let mut http = bridge.connect().await;
        http.send(&http.request(&[], &call("restart_agent", &json!({ "name": "a" })).to_string())).await;
        drop(http);
        assert!(matches!(daemon.next_call().await.request, Request::Restart(_)));
    }
}

#[tokio::test]
async fn told_to_end_the_bridge_answers_what_is_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    let mut http = bridge.connect().await;
    let whole = http.request(&[], &call("list_agents", &json!({})).to_string());
    let (first, rest) = whole.split_at(whole.len() - 10);
    http.send(first).await;
    assert_eq!(daemon.next().await.request, Request::Authenticate);
    drop(bridge.stop);
    http.send(rest).await;
    http.read().await.result();
    bridge.ended.await.unwrap();
    assert!(http.closed().await);
}
