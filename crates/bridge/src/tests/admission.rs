//! Who is let in.

use super::stand_in::{self, StandIn};
use super::{Bridge, call, initialize, message};
use mcp_restart_protocol::answer::{Caller, ErrorCode, ServerBody};
use mcp_restart_protocol::request::{ClientFrame, Credential, Request};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const RIGHT: (&str, &str) = ("Authorization", "Bearer right");
const WRONG: (&str, &str) = ("Authorization", "Bearer wrong");

#[tokio::test]
async fn a_wrong_token_is_401_for_every_method_and_nothing_else_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StandIn::start(folder.path(), stand_in::behind("right"));
    let bridge = Bridge::start(&daemon.socket);
    for message in
        [initialize("2025-06-18"), message("tools/list", &json!({})), call("list_agents", &json!({}))]
    {
        let reply = bridge.connect().await.post(&[WRONG], &message).await;
        assert_eq!(reply.status, 401);
        let challenge = reply.header("www-authenticate").unwrap();
        assert_eq!(challenge, r#"Bearer realm="mcp-restart", error="invalid_token""#);
        assert_eq!(reply.json()["error"]["code"], "not_allowed");
    }
    assert!(daemon.so_far().iter().all(|request| *request == Request::Authenticate));
}

#[tokio::test]
async fn no_token_where_one_is_needed_is_401() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StandIn::start(folder.path(), stand_in::behind("right"));
    let bridge = Bridge::start(&daemon.socket);
    let reply = bridge.post(&initialize("2025-06-18")).await;
    assert_eq!(
        (reply.status, reply.header("www-authenticate")),
        (401, Some(r#"Bearer realm="mcp-restart""#))
    );
}

#[tokio::test]
async fn what_is_no_bearer_token_is_401_without_asking() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    for headers in [&[("Authorization", "Basic right")][..], &[RIGHT, RIGHT]] {
        assert_eq!(bridge.connect().await.post(headers, &initialize("2025-06-18")).await.status, 401);
    }
    assert_eq!(daemon.so_far(), []);
}

#[tokio::test]
async fn an_unwelcome_body_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StandIn::start(folder.path(), stand_in::behind("right"));
    let bridge = Bridge::start(&daemon.socket);
    let mut http = bridge.connect().await;
    let whole = http.request(&[WRONG], &"x".repeat(1000));
    http.send(&whole[..whole.len() - 1]).await;
    assert_eq!(http.read().await.status, 401);
}

#[tokio::test]
async fn a_connection_that_was_let_in_costs_one_question_for_each_call() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StandIn::start(folder.path(), stand_in::behind("right"));
    let bridge = Bridge::start(&daemon.socket);
    let mut http = bridge.connect().await;
    for _ in 0..3 {
        http.call(&[RIGHT], "list_agents", &json!({})).await.result();
    }
    let list = || Request::List { all: false };
    assert_eq!(daemon.so_far(), [Request::Authenticate, list(), list(), list()]);
}

#[tokio::test]
async fn who_shows_no_token_is_looked_for_once_for_each_connection() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = StandIn::start(folder.path(), stand_in::obliging());
    let bridge = Bridge::start(&daemon.socket);
    for _ in 0..2 {
        let mut http = bridge.connect().await;
        let (peer, local) = (http.stream.local_addr().unwrap(), bridge.address);
        for _ in 0..2 {
            http.call(&[], "list_agents", &json!({})).await.result();
        }
        let frame = daemon.next().await;
        assert_eq!(frame.credential, Credential::Http { token: None, peer, local });
        assert_eq!(frame.request, Request::Authenticate);
        for _ in 0..2 {
            let frame = daemon.next().await;
            assert_eq!(frame.credential, Credential::Admitted(Caller::LocalUser { pid: Some(4711) }));
            assert_eq!(frame.request, Request::List { all: false });
        }
    }
}

#[tokio::test]
async fn another_token_on_the_same_connection_is_judged_anew() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = StandIn::start(folder.path(), stand_in::behind("right"));
    let bridge = Bridge::start(&daemon.socket);
    let mut http = bridge.connect().await;
    http.call(&[RIGHT], "list_agents", &json!({})).await.result();
    assert_eq!(http.call(&[WRONG], "list_agents", &json!({})).await.status, 401);
    assert_eq!(http.call(&[], "list_agents", &json!({})).await.status, 401);
    http.call(&[RIGHT], "list_agents", &json!({})).await.result();
}

#[tokio::test]
async fn what_a_caller_may_not_do_is_a_tool_error_and_not_401() {
    let folder = tempfile::tempdir().unwrap();
    let judge = |frame: &ClientFrame| {
        Some(match frame.request {
            Request::Authenticate => ServerBody::Answer(stand_in::carried_out(&frame.request)),
            _ => stand_in::failed(ErrorCode::NotAllowed, "this agent may only read"),
        })
    };
    let daemon = StandIn::start(folder.path(), Arc::new(judge));
    let bridge = Bridge::start(&daemon.socket);
    let error = bridge.connect().await.call(&[], "stop_agent", &json!({ "name": "a" })).await.error();
    assert_eq!(error["code"], "not_allowed");
}

#[tokio::test]
async fn a_token_that_is_withdrawn_on_an_open_connection_is_401_with_the_next_call() {
    let folder = tempfile::tempdir().unwrap();
    let welcomes = AtomicUsize::new(1);
    let judge = move |frame: &ClientFrame| {
        let welcome = frame.request == Request::Authenticate
            && welcomes
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok();
        Some(if welcome {
            ServerBody::Answer(stand_in::carried_out(&frame.request))
        } else {
            stand_in::failed(ErrorCode::NotAllowed, "no such token")
        })
    };
    let daemon = StandIn::start(folder.path(), Arc::new(judge));
    let bridge = Bridge::start(&daemon.socket);
    let mut http = bridge.connect().await;
    assert_eq!(http.post(&[RIGHT], &message("tools/list", &json!({}))).await.status, 200);
    assert_eq!(http.call(&[RIGHT], "list_agents", &json!({})).await.status, 401);
}
