//! An agent restarts itself.

use crate::support::{Stack, shell, sleeper};
use mcp_restart_protocol::agent::AgentState;
use serde_json::json;
use std::fs;

#[test]
fn an_agent_that_restarts_itself_over_mcp_gets_its_answer_first_and_its_note_later() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    let (token, _) = stack.wiring("a");
    let old = stack.agent("a").pid;
    let result = stack.call(Some(&token), "restart_agent", &json!({ "note": "go on with step 2" }));
    let answer = &result["structuredContent"];
    assert_eq!(answer["accepted"], true, "{result}");
    assert_eq!(answer["generation"], 2);
    let view = stack.wait_for("a", |view| view.generation == 2 && view.state == AgentState::Running);
    assert_ne!(view.pid, old);
    let handoff = stack.call(Some(&token), "get_handoff", &json!({}));
    let handoff = &handoff["structuredContent"];
    assert_eq!(handoff["generation"], 2);
    assert_eq!(handoff["notes"][0]["text"], "go on with step 2");
    assert_eq!(handoff["notes"][0]["from"]["name"], "a");
    assert_eq!(stack.json(&["handoff", "a"])["readAt"], handoff["readAt"]);
}

#[test]
fn a_command_that_the_agent_spawned_restarts_it_once() {
    let ctl = env!("CARGO_BIN_EXE_mcp-restartctl");
    let script = format!(
        "if [ \"$MCP_RESTART_GENERATION\" = 1 ]; then '{ctl}' restart --note again > answer 2>&1; echo $? > code; fi
         exec sleep 1000"
    );
    let stack = Stack::up(&json!([shell("a", &script)]));
    stack.ctl(&["start", "a"]).ok();
    stack.wait_for("a", |view| view.generation == 2 && view.state == AgentState::Running);
    let answer = fs::read_to_string(stack.path().join("answer")).unwrap();
    assert_eq!(fs::read_to_string(stack.path().join("code")).unwrap().trim(), "0", "{answer}");
    assert_eq!(stack.json(&["handoff", "a"])["notes"][0]["text"], "again");
    assert_eq!(stack.agent("a").generation, 2);
}

#[test]
fn without_its_token_a_process_below_the_shim_is_still_that_agent() {
    let ctl = env!("CARGO_BIN_EXE_mcp-restartctl");
    let script = format!(
        "env -u MCP_RESTART_TOKEN -u MCP_RESTART_AGENT setsid '{ctl}' --json status > status; echo > ready; exec sleep 1000"
    );
    let stack = Stack::up(&json!([shell("a", &script)]));
    let ready = stack.mailbox("ready");
    stack.ctl(&["start", "a"]).ok();
    ready.next();
    let status = stack.path().join("status");
    let status: serde_json::Value = serde_json::from_str(&fs::read_to_string(status).unwrap()).unwrap();
    assert_eq!(status["caller"], json!({ "type": "agent", "name": "a" }));
}

#[test]
fn a_refused_self_restart_leaves_the_agent_as_it_is() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    let (token, _) = stack.wiring("a");
    let old = stack.agent("a").pid;
    fs::write(stack.config(), "<<<<<<< ours\n{}\n=======\n").unwrap();
    assert_eq!(stack.refusal(Some(&token), "restart_agent", &json!({})), "config_invalid");
    stack.write_config(&json!([{ "name": "a", "command": "no-such-program" }]));
    assert_eq!(stack.refusal(Some(&token), "restart_agent", &json!({})), "spawn_failed");
    assert_eq!(stack.agent("a").pid, old);
}

#[test]
fn the_same_request_id_restarts_once() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    let (token, _) = stack.wiring("a");
    let arguments = json!({ "requestId": "one" });
    let first = stack.call(Some(&token), "restart_agent", &arguments);
    stack.wait_for("a", |view| view.generation == 2 && view.state == AgentState::Running);
    let second = stack.call(Some(&token), "restart_agent", &arguments);
    assert_eq!(second["structuredContent"]["replayed"], true);
    assert_eq!(second["structuredContent"]["generation"], first["structuredContent"]["generation"]);
    assert_eq!(stack.agent("a").generation, 2);
}

#[test]
fn control_binds_an_agent_to_what_it_may() {
    let mut own = sleeper("own");
    own["control"] = json!("self");
    let mut none = sleeper("none");
    none["control"] = json!("none");
    let stack = Stack::up(&json!([own, none, sleeper("other")]));
    stack.ctl(&["start", "--all"]).ok();
    let (own, none) = (stack.wiring("own").0, stack.wiring("none").0);
    let other = json!({ "name": "other" });
    assert_eq!(stack.refusal(Some(&own), "restart_agent", &other), "not_allowed");
    assert_eq!(stack.refusal(Some(&none), "restart_agent", &json!({})), "not_allowed");
    let logs = json!({ "name": "other", "lines": 5 });
    assert_eq!(stack.refusal(Some(&none), "agent_logs", &logs), "not_allowed");
    stack.call(Some(&none), "list_agents", &json!({}));
    assert_eq!(stack.call(Some(&own), "restart_agent", &json!({}))["structuredContent"]["accepted"], true);
    stack.wait_for("own", |view| view.generation == 2);
    assert_eq!(stack.agent("other").generation, 1);
}

#[test]
fn an_agent_is_given_its_endpoint_and_nothing_of_the_operators() {
    let mut entry =
        shell("a", "env > environment; (ls /proc/$$/fd > descriptors); echo > ready; exec sleep 1000");
    entry["env"] = json!({ "MARK": "of-its-entry" });
    let stack = Stack::up(&json!([entry]));
    let ready = stack.mailbox("ready");
    stack.ctl(&["start", "a"]).ok();
    ready.next();
    let environment = fs::read_to_string(stack.path().join("environment")).unwrap();
    let (token, url) = stack.wiring("a");
    let value = |name: &str| {
        let line = environment.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("{name} is not in {environment}")).to_owned()
    };
    assert_eq!(value("MCP_RESTART_URL"), url);
    assert_eq!(value("MCP_RESTART_TOKEN"), token);
    assert_eq!(value("MCP_RESTART_AGENT"), "a");
    assert_eq!(value("MCP_RESTART_GENERATION"), "1");
    assert_eq!(value("MCP_RESTART_CONFIG"), stack.config().to_string_lossy());
    let file: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(value("MCP_RESTART_CONFIG_FILE")).unwrap()).unwrap();
    assert_eq!(file["mcpServers"]["restart"]["url"], url);
    assert_eq!(value("MARK"), "of-its-entry");
    let descriptors = fs::read_to_string(stack.path().join("descriptors")).unwrap();
    assert_eq!(descriptors.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2"]);
}

#[test]
fn a_request_that_comes_again_while_it_is_carried_out_restarts_nothing() {
    let mut entry = sleeper("a");
    entry["settleMs"] = json!(300);
    let stack = Stack::up(&json!([entry]));
    stack.ctl(&["start", "a"]).ok();
    let arguments = json!({ "name": "a", "requestId": "one" });
    let generations = std::thread::scope(|scope| {
        let calls = [(); 3].map(|()| scope.spawn(|| stack.call(None, "restart_agent", &arguments)));
        calls.map(|call| call.join().unwrap()["structuredContent"]["generation"].clone())
    });
    assert_eq!(generations, [2, 2, 2].map(|generation| json!(generation)));
    assert_eq!(stack.agent("a").generation, 2);
}
