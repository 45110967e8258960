//! The MCP endpoint: every tool, who gets in, and what its clients notice of deaths behind it.

use crate::support::{
    LIMIT, NOBODY, Stack, bare_command, lives, post, request, shell, signal, skip, sleeper, wait_until_gone,
};
use mcp_restart_protocol::agent::{AgentState, ExitReason};
use rustix::process::{Signal, geteuid};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;

pub(crate) const LIST: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_agents","arguments":{}}}"#;
pub(crate) const JSON: &str =
    "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";

pub(crate) fn url(stack: &Stack) -> String {
    stack.json(&["status"])["url"].as_str().unwrap().to_owned()
}

/// The `host:port` of a URL.
pub(crate) fn host(url: &str) -> &str {
    url.trim_start_matches("http://").split('/').next().unwrap()
}

/// One HTTP request with these headers and no other `Host`; the status and the whole answer.
fn exchange(url: &str, line: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(host(url)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let length = body.len();
    write!(stream, "{line} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap_or_else(|| panic!("{answer:?}")).parse().unwrap(), answer)
}

/// The process id of the bridge.
pub(crate) fn bridge(stack: &Stack) -> u32 {
    let record: Value =
        serde_json::from_slice(&fs::read(stack.state_dir().join("bridge.json")).unwrap()).unwrap();
    u32::try_from(record["pid"].as_u64().unwrap()).unwrap()
}

fn text_of(result: &Value) -> Value {
    serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap()
}

#[test]
fn every_tool_answers_the_same_in_both_forms() {
    let stack = Stack::up(&json!([shell("a", "echo hello; exec sleep 1000"), sleeper("b")]));
    let call = |token: Option<&str>, tool: &str, arguments: Value| {
        let result = stack.call(token, tool, &arguments);
        assert!(result.get("isError").is_none_or(|is| is == false), "{tool}: {result}");
        assert_eq!(text_of(&result), result["structuredContent"], "{tool}");
        result["structuredContent"].clone()
    };
    assert_eq!(call(None, "list_agents", json!({}))["agents"][0]["state"], "stopped");
    let started = call(None, "start_agent", json!({ "name": "a" }));
    assert_eq!(started["agent"]["state"], "running");
    let status = call(None, "server_status", json!({}));
    assert_eq!(status["caller"]["type"], "localUser");
    assert_eq!(status["configFile"], json!(stack.config()));
    let restarted = call(None, "restart_agent", json!({ "name": "a", "note": "again" }));
    assert_eq!(restarted["accepted"], true);
    assert_eq!(restarted["previous"]["pid"], started["agent"]["pid"]);
    assert_eq!(restarted["agent"]["generation"], 2);
    let (token, _) = stack.wiring("a");
    let handoff = call(Some(&token), "get_handoff", json!({}));
    assert_eq!(handoff["notes"][0]["text"], "again");
    assert_eq!(handoff["notes"][0]["from"]["type"], "localUser");
    let logs = call(None, "agent_logs", json!({ "name": "a", "lines": 1 }));
    assert_eq!(logs, json!({ "lines": ["hello"], "truncated": false }));
    let stopped = call(None, "stop_agent", json!({ "name": "a" }));
    assert_eq!(stopped["agent"]["lastExit"]["reason"], "stop");
}

#[test]
fn every_refusal_has_its_code_and_leaves_everything_as_it_is() {
    let mut hasty = shell("hasty", "exit 3");
    hasty["settleMs"] = json!(5_000);
    let missing = json!({ "name": "missing", "command": "no-such-program" });
    let stack = Stack::up(&json!([sleeper("a"), sleeper("idle"), hasty, missing]));
    stack.ctl(&["start", "a"]).ok();
    let pid = stack.agent("a").pid;
    let long = "x".repeat(8 * 1024 + 1);
    for (tool, arguments, code) in [
        ("start_agent", json!({ "name": "nobody" }), "unknown_agent"),
        ("stop_agent", json!({ "name": "nobody" }), "unknown_agent"),
        ("restart_agent", json!({ "name": "nobody" }), "unknown_agent"),
        ("agent_logs", json!({ "name": "nobody" }), "unknown_agent"),
        ("start_agent", json!({ "name": "a" }), "already_running"),
        ("stop_agent", json!({ "name": "idle" }), "not_running"),
        ("start_agent", json!({ "name": "missing" }), "spawn_failed"),
        ("start_agent", json!({ "name": "hasty" }), "exited_early"),
        ("start_agent", json!({}), "invalid_argument"),
        ("start_agent", json!({ "name": 5 }), "invalid_argument"),
        ("start_agent", json!({ "name": "../a" }), "invalid_argument"),
        ("list_agents", json!({ "all": true }), "invalid_argument"),
        ("agent_logs", json!({ "name": "a", "lines": 0 }), "invalid_argument"),
        ("agent_logs", json!({ "name": "a", "lines": 1001 }), "invalid_argument"),
        ("restart_agent", json!({ "name": "a", "note": long }), "invalid_argument"),
        ("restart_agent", json!({ "name": "a", "note": "\u{1b}[2J" }), "invalid_argument"),
        ("restart_agent", json!({ "name": "a", "resume": "maybe" }), "invalid_argument"),
        // Not an agent: there is nobody whom it could mean.
        ("restart_agent", json!({}), "invalid_argument"),
        ("get_handoff", json!({}), "invalid_argument"),
    ] {
        assert_eq!(stack.refusal(None, tool, &arguments), code, "{tool} {arguments}");
    }
    fs::write(stack.config(), "{").unwrap();
    for tool in ["start_agent", "restart_agent"] {
        assert_eq!(stack.refusal(None, tool, &json!({ "name": "a" })), "config_invalid");
    }
    let status = stack.call(None, "server_status", &json!({}));
    assert!(status["structuredContent"]["configError"].as_str().unwrap().contains("config.json:1:"));
    let view = stack.agent("a");
    assert_eq!((view.pid, view.generation, view.state), (pid, 1, AgentState::Running));
}

#[test]
fn with_an_operators_token_nobody_is_let_in_without_one() {
    let stack = Stack::new(&json!([]));
    let config = json!({ "port": 0, "token": "the-operators-own", "agents": [sleeper("a")] });
    fs::write(stack.config(), config.to_string()).unwrap();
    stack.ctl(&["up"]).ok();
    stack.ctl(&["start", "a"]).ok();
    let url = url(&stack);
    let (agents, _) = stack.wiring("a");
    let status = |token: Option<&str>| post(&url, token, LIST).0;
    assert_eq!(status(None), 401);
    for wrong in ["wrong", "the-operators-ow", "the-operators-own2", "mra_0"] {
        assert_eq!(status(Some(wrong)), 401, "{wrong}");
    }
    assert_eq!(status(Some("the-operators-own")), 200);
    assert_eq!(status(Some(&agents)), 200);
    let (_, refused) = exchange(&url, "POST /mcp", &format!("Host: {}\r\n{JSON}", host(&url)), LIST);
    assert!(refused.to_ascii_lowercase().contains("\r\nwww-authenticate: bearer"), "{refused}");
    assert!(!refused.contains("the-operators-own"));
    let caller = |token: &str| {
        stack.call(Some(token), "server_status", &json!({}))["structuredContent"]["caller"].clone()
    };
    assert_eq!(caller("the-operators-own"), json!({ "type": "operator" }));
    assert_eq!(caller(&agents), json!({ "type": "agent", "name": "a" }));
    // Tokens are nowhere that others look.
    let log = fs::read_to_string(stack.state_dir().join("mcp-restart.log")).unwrap();
    assert!(!log.contains("the-operators-own") && !log.contains(&agents));
    assert!(!stack.ctl(&["config", "show"]).ok().stdout.contains("the-operators-own"));
}

#[test]
fn a_wrong_token_is_refused_where_none_is_needed() {
    let stack = Stack::up(&json!([]));
    let url = url(&stack);
    assert_eq!(post(&url, None, LIST).0, 200);
    assert_eq!(post(&url, Some("wrong"), LIST).0, 401);
    assert_eq!(post(&url, Some("mra_0123456789"), LIST).0, 401);
}

#[test]
fn only_what_a_local_client_would_send_comes_through() {
    let stack = Stack::up(&json!([]));
    let url = url(&stack);
    let here = host(&url);
    let port = here.rsplit(':').next().unwrap();
    let to = |host: &str| format!("Host: {host}\r\n{JSON}");
    let ours = to(here);
    let plain = format!("Host: {here}\r\nContent-Type: text/plain\r\n");
    for (line, headers, body, wanted) in [
        ("POST /mcp", ours.clone(), LIST, 200),
        ("POST /mcp", to(&format!("localhost:{port}")), LIST, 200),
        ("POST /mcp", to(&format!("[::1]:{port}")), LIST, 200),
        ("POST /mcp", format!("{ours}Origin: http://localhost:{port}\r\n"), LIST, 200),
        // A name that was rebound, and pages of elsewhere.
        ("POST /mcp", to("rebound.example"), LIST, 403),
        ("POST /mcp", to(&format!("rebound.example:{port}")), LIST, 403),
        ("POST /mcp", to("127.0.0.1"), LIST, 403),
        ("POST /mcp", to("127.0.0.1:1"), LIST, 403),
        ("POST /mcp", JSON.to_owned(), LIST, 403),
        ("POST /mcp", format!("Host: {here}\r\n{ours}"), LIST, 403),
        ("POST http://127.0.0.1/mcp", ours.clone(), LIST, 403),
        ("POST /mcp", format!("{ours}Origin: http://page.example\r\n"), LIST, 403),
        ("POST /mcp", format!("{ours}Origin: http://localhost\r\n"), LIST, 403),
        ("POST /mcp", format!("{ours}Origin: null\r\n"), LIST, 403),
        ("OPTIONS /mcp", format!("{ours}Origin: http://page.example\r\n"), "", 403),
        // What a form can send without being asked.
        ("POST /mcp", plain.clone(), LIST, 415),
        ("POST /mcp", format!("Host: {here}\r\n"), LIST, 415),
        ("GET /mcp", ours.clone(), "", 405),
        ("DELETE /mcp", ours.clone(), "", 405),
        ("POST /healthz", ours.clone(), "", 405),
        ("GET /", ours.clone(), "", 404),
        ("POST /mcp/", ours.clone(), LIST, 404),
        ("GET /.well-known/oauth-protected-resource", ours.clone(), "", 404),
        ("GET /.well-known/oauth-authorization-server/mcp", ours.clone(), "", 404),
        ("POST /mcp", ours.clone(), "{", 400),
        ("POST /mcp", ours.clone(), "", 400),
        ("POST /mcp", ours.clone(), "[]", 400),
        ("POST /mcp", ours.clone(), r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, 400),
    ] {
        let (status, answer) = exchange(&url, line, &headers, body);
        assert_eq!(status, wanted, "{line} {headers:?} {body:?}: {answer}");
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        assert!(serde_json::from_str::<Value>(body).is_ok(), "{line}: no JSON: {answer}");
        assert!(!answer.to_ascii_lowercase().contains("access-control-allow"), "{answer}");
    }
}

#[test]
fn a_body_may_have_one_mebibyte() {
    let stack = Stack::up(&json!([]));
    let url = url(&stack);
    let padded = format!("{LIST}{}", " ".repeat(1024 * 1024 - LIST.len()));
    assert_eq!(post(&url, None, &padded).0, 200);
    let headers = format!("{JSON}Content-Length: {}\r\n", 1024 * 1024 + 1);
    assert_eq!(request(&url, "POST", &headers, "").0, 413);
}

#[test]
fn a_client_that_never_initialises_and_one_that_does_are_both_served() {
    let stack = Stack::up(&json!([]));
    let url = url(&stack);
    let ask = |body: Value| {
        let headers = format!("Host: {}\r\n{JSON}", host(&url));
        let (status, answer) = exchange(&url, "POST /mcp", &headers, &body.to_string());
        assert_eq!(status, 200, "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str::<Value>(body).unwrap()["result"].clone()
    };
    let tools = ask(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }));
    let names: Vec<_> = tools["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(
        json!(names),
        json!([
            "list_agents",
            "server_status",
            "start_agent",
            "stop_agent",
            "restart_agent",
            "get_handoff",
            "agent_logs",
            "list_stdio_servers",
            "restart_stdio_servers"
        ])
    );
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let client = json!({ "name": "test", "version": "1" });
        let params = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": client });
        let hello = ask(json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params }));
        assert_eq!(hello["protocolVersion"], version);
    }
}

#[test]
fn a_bridge_that_is_killed_is_replaced_on_its_port_and_no_agent_notices() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    let (url, old, before) = (url(&stack), bridge(&stack), stack.agent("a"));
    signal(old, Signal::KILL);
    wait_until_gone(old);
    // Nobody is refused meanwhile: whoever comes waits for the next bridge.
    assert_eq!(post(&url, None, LIST).0, 200);
    assert_ne!(bridge(&stack), old);
    assert_eq!(self::url(&stack), url);
    let after = stack.agent("a");
    assert_eq!((after.pid, after.generation), (before.pid, 1));
}

#[test]
fn without_a_daemon_the_bridge_says_so_and_the_next_daemon_takes_it_over() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    let (token, _) = stack.wiring("a");
    let (url, bridge_before, pid) = (url(&stack), bridge(&stack), stack.agent("a").pid);
    let health = || request(&url.replace("/mcp", "/healthz"), "GET", "", "");
    assert_eq!(health(), (200, r#"{"daemon":true,"status":"ok"}"#.to_owned()));
    stack.kill_daemon();
    let (status, text) = post(&url, Some(&token), LIST);
    let result = &serde_json::from_str::<Value>(&text).unwrap()["result"];
    assert_eq!((status, &result["isError"]), (200, &json!(true)), "{text}");
    let error = text_of(result);
    assert_eq!(error["error"]["code"], "daemon_unavailable");
    assert!(error["error"]["hint"].as_str().unwrap().contains("mcp-restartctl"), "{error}");
    assert_eq!(health(), (200, r#"{"daemon":false,"status":"ok"}"#.to_owned()));
    assert_eq!(post(&url, None, r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#).0, 200);
    stack.ctl(&["up"]).ok();
    assert_eq!((self::url(&stack), bridge(&stack)), (url.clone(), bridge_before));
    let agents = stack.call(Some(&token), "list_agents", &json!({}));
    assert_eq!(agents["structuredContent"]["agents"][0]["pid"], json!(pid));
    assert_eq!(health(), (200, r#"{"daemon":true,"status":"ok"}"#.to_owned()));
    stack.ctl(&["down"]).ok();
    assert!(!lives(bridge_before), "the adopted bridge outlives its daemon");
}

#[test]
fn a_client_that_leaves_gets_its_restart_all_the_same() {
    let stack = Stack::up(&json!([sleeper("a"), sleeper("b")]));
    stack.ctl(&["start", "--all"]).ok();
    let (url, (token, _)) = (url(&stack), stack.wiring("a"));
    let body = |arguments: Value| {
        let params = json!({ "name": "restart_agent", "arguments": arguments });
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string()
    };
    for (agent, generation, body) in [
        ("a", 2, body(json!({}))),
        ("b", 2, body(json!({ "name": "b" }))),
        ("a", 3, body(json!({ "name": "a" }))),
        ("b", 3, body(json!({ "name": "b" }))),
    ] {
        let here = host(&url);
        let mut stream = TcpStream::connect(here).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST /mcp HTTP/1.1\r\nHost: {here}\r\nAuthorization: Bearer {token}\r\n{JSON}Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        drop(stream);
        stack.wait_for(agent, |view| view.generation == generation && view.state == AgentState::Running);
    }
}

#[test]
fn an_agent_that_stops_itself_gets_its_answer_first() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    let (token, _) = stack.wiring("a");
    let answer = stack.call(Some(&token), "stop_agent", &json!({ "name": "a" }));
    assert_eq!(answer["structuredContent"]["agent"]["name"], "a");
    let view = stack.wait_for("a", |view| view.state == AgentState::Stopped);
    assert_eq!(view.last_exit.unwrap().reason, ExitReason::Stop);
}

#[test]
fn an_agent_is_connected_once_its_process_has_come() {
    // Over the shell's own TCP, without a token: the process at the other end of the connection counts.
    let script = format!(
        r#"read word < go
        host=${{MCP_RESTART_URL#http://}}; host=${{host%/mcp}}
        exec 3<> "/dev/tcp/${{host%:*}}/${{host#*:}}"
        printf 'POST /mcp HTTP/1.1\r\nHost: %s\r\n' "$host" >&3
        printf 'Content-Type: application/json\r\nConnection: close\r\n' >&3
        printf 'Content-Length: {}\r\n\r\n%s' '{LIST}' >&3
        cat <&3 > answer; echo > done; exec sleep 1000"#,
        LIST.len(),
    );
    let mut entry = shell("a", &script);
    entry["command"] = json!("bash");
    let stack = Stack::up(&json!([entry, sleeper("b")]));
    let (done, mut go) = (stack.mailbox("done"), stack.pipe("go"));
    stack.ctl(&["start", "--all"]).ok();
    assert!(stack.agent("a").connected_at.is_none() && stack.agent("b").connected_at.is_none());
    writeln!(go).unwrap();
    done.next();
    let answer = fs::read_to_string(stack.path().join("answer")).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    stack.wait_for("a", |view| view.connected_at.is_some());
    stack.call(Some(&stack.wiring("b").0), "list_agents", &json!({}));
    stack.wait_for("b", |view| view.connected_at.is_some());
    // The next daemon does not say of a process that it never came.
    stack.kill_daemon();
    stack.ctl(&["up"]).ok();
    assert!(stack.agent("b").connected_at.is_some());
    // The next process has not come yet.
    stack.ctl(&["restart", "b"]).ok();
    assert!(stack.agent("b").connected_at.is_none());
}

/// A script that sends the calls in `calls`, a body a line, over the shell's own TCP and without a token; each
/// answer is a line in `answers`.
const WITHOUT_A_TOKEN: &str = r#"
    host=${MCP_RESTART_URL#http://}; host=${host%/mcp}
    exec 3<> "/dev/tcp/${host%:*}/${host#*:}"
    while read -r body; do
        printf 'POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n' "$host" >&3
        printf 'Content-Length: %s\r\n\r\n%s' "${#body}" "$body" >&3
        length=0
        while read -r line <&3 && [[ $line != $'\r' ]]; do
            line=${line,,}
            [[ $line == content-length:* ]] && length=${line//[^0-9]/}
        done
        IFS= read -r -N "$length" answer <&3
        echo "$answer" > answers
    done < calls"#;

#[test]
fn an_agent_that_leaves_its_token_out_is_still_that_agent() {
    let mut entry = shell("a", WITHOUT_A_TOKEN);
    entry["command"] = json!("bash");
    entry["control"] = json!("self");
    let stack = Stack::up(&json!([entry, sleeper("b")]));
    let (answers, mut calls) = (stack.mailbox("answers"), stack.pipe("calls"));
    stack.ctl(&["start", "--all"]).ok();
    let mut call = |tool: &str, arguments: Value| {
        let params = json!({ "name": tool, "arguments": arguments });
        writeln!(calls, "{}", json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }))
            .unwrap();
        let answer: Value = serde_json::from_str(&answers.next()).unwrap();
        answer["result"].clone()
    };
    let status = call("server_status", json!({}));
    assert_eq!(status["structuredContent"]["caller"], json!({ "type": "agent", "name": "a" }));
    assert_eq!(text_of(&call("stop_agent", json!({ "name": "b" })))["error"]["code"], "not_allowed");
    assert_eq!(text_of(&call("agent_logs", json!({ "name": "b" })))["error"]["code"], "not_allowed");
    // Itself it may restart, and has its answer before it ends.
    let restarted = call("restart_agent", json!({}));
    assert_eq!(restarted["structuredContent"]["generation"], 2);
    stack.wait_for("a", |view| view.generation == 2 && view.state == AgentState::Running);
    assert_eq!(stack.agent("b").generation, 1);
}

#[test]
fn a_process_of_another_user_is_refused_without_a_token_and_served_with_one() {
    if !geteuid().is_root() {
        return skip("only root can be another user");
    }
    let stack = Stack::up(&json!([sleeper("a")]));
    let (url, (token, _)) = (url(&stack), stack.wiring("a"));
    let (host, length) = (host(&url), LIST.len());
    let ask = |authorization: &str| {
        let (address, port) = host.rsplit_once(':').unwrap();
        let script = format!(
            "exec 3<> /dev/tcp/{address}/{port}
            printf 'POST /mcp HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{authorization}' >&3
            printf 'Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n%s' '{LIST}' >&3
            cat <&3"
        );
        let mut stranger = bare_command("bash");
        let run = crate::support::Run::of(stranger.uid(NOBODY).args(["-c", &script]).output().unwrap()).ok();
        run.stdout.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(ask(""), "401");
    assert_eq!(ask(&format!("Authorization: Bearer {token}\\r\\n")), "200");
}

#[test]
fn an_endpoint_for_other_machines_needs_a_token() {
    let stack = Stack::new(&json!([]));
    let write = |extra: Value| {
        let mut config = json!({ "host": "0.0.0.0", "port": 0, "agents": [] });
        config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        fs::write(stack.config(), config.to_string()).unwrap();
    };
    write(json!({}));
    stack.ctl(&["config", "check"]).failed(6, "token");
    stack.ctl(&["up"]).failed(6, "token");
    for program in [env!("CARGO_BIN_EXE_mcp-restartd"), env!("CARGO_BIN_EXE_mcp-restart-http")] {
        let run = crate::support::Run::of(stack.command(program).output().unwrap());
        run.failed(6, "token");
    }
    write(json!({ "token": "the-operators-own" }));
    stack.ctl(&["config", "check"]).ok();
    stack.ctl(&["up"]).ok();
    let url = url(&stack).replace("0.0.0.0", "127.0.0.1");
    assert_eq!(post(&url, None, LIST).0, 401);
    assert_eq!(post(&url, Some("the-operators-own"), LIST).0, 200);
}

#[test]
fn a_bridge_whose_log_cannot_be_written_serves_all_the_same() {
    let stack = Stack::new(&json!([]));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/healthz", listener.local_addr().unwrap());
    let script = r#"exec 3<&0 < /dev/null 2> /dev/full; LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@""#;
    let mut bridge = stack
        .as_user("/bin/sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_mcp-restart-http"), "--state-dir"])
        .arg(stack.state_dir())
        .stdin(OwnedFd::from(listener))
        .spawn()
        .unwrap();
    assert_eq!(request(&url, "GET", "", "").0, 200);
    signal(bridge.id(), Signal::TERM);
    assert!(bridge.wait().unwrap().success());
}
