//! Too many clients, slow ones, and a bridge that leaves while it is used.

use super::stand_in::{self, StandIn};
use super::{Bridge, Http, call};
use crate::serve::Ending;
use mcp_restart_protocol::answer::ServerBody;
use mcp_restart_protocol::request::{ClientFrame, Request};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const ROOM: usize = 8;

/// A client that never sends the end of its request's head.
async fn unfinished(bridge: &Bridge) -> Http {
    let mut http = bridge.connect().await;
    http.send("POST /mcp HTTP/1.1\r\nHost: ").await;
    http
}

#[tokio::test]
async fn clients_that_never_finish_a_request_take_the_places_of_each_other_alone() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::with_room(&daemon.socket, ROOM);
    let mut kept = bridge.connect().await;
    kept.call(&[], "list_agents", &json!({})).await.result();
    let mut slow = Vec::new();
    for _ in 0..10 * ROOM {
        slow.push(unfinished(&bridge).await);
    }
    kept.call(&[], "list_agents", &json!({})).await.result();
    bridge.connect().await.call(&[], "list_agents", &json!({})).await.result();
    assert!(slow.swap_remove(0).closed().await);
}

#[tokio::test]
async fn the_client_that_was_idle_for_longest_goes_first() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::with_room(&daemon.socket, 2);
    let (mut first, mut second) = (bridge.connect().await, bridge.connect().await);
    first.call(&[], "list_agents", &json!({})).await.result();
    second.call(&[], "list_agents", &json!({})).await.result();
    first.call(&[], "list_agents", &json!({})).await.result();
    bridge.connect().await.call(&[], "list_agents", &json!({})).await.result();
    assert!(second.closed().await);
    first.call(&[], "list_agents", &json!({})).await.result();
}

#[tokio::test]
async fn whoever_is_being_answered_is_never_closed_for_another() {
    let folder = tempfile::tempdir().unwrap();
    let lets_in = |frame: &ClientFrame| {
        let body = ServerBody::Answer(stand_in::carried_out(&frame.request));
        (!matches!(frame.request, Request::Stop { .. })).then_some(body)
    };
    let mut daemon = StandIn::start(folder.path(), Arc::new(lets_in));
    let bridge = Bridge::with_room(&daemon.socket, 2);
    for _ in 0..2 {
        let mut http = bridge.connect().await;
        http.send(&http.request(&[], &call("stop_agent", &json!({ "name": "a" })).to_string())).await;
        assert!(matches!(daemon.next_call().await.request, Request::Stop { .. }));
        // A client that has gone is still being answered.
    }
    assert!(bridge.connect().await.closed().await);
}

#[tokio::test]
async fn a_bridge_that_leaves_answers_once_more_on_each_open_connection_and_closes_it() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    let mut kept = bridge.connect().await;
    kept.call(&[], "list_agents", &json!({})).await.result();
    drop(bridge.stop);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let reply = kept.call(&[], "list_agents", &json!({})).await;
    assert_eq!(reply.header("connection"), Some("close"));
    reply.result();
    assert!(kept.closed().await);
    bridge.ended.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_bridge_that_leaves_for_good_waits_for_no_client_that_is_idle() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    let mut kept = bridge.connect().await;
    kept.call(&[], "list_agents", &json!({})).await.result();
    let told = Instant::now();
    bridge.stop.send(Ending::ForGood).unwrap();
    assert!(kept.closed().await);
    bridge.ended.await.unwrap();
    assert_eq!(told.elapsed(), Duration::ZERO);
}
