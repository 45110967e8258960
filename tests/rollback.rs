//! A launch that does not live is taken back.

use crate::support::{Stack, shell, sleeper, wait_until_gone};
use mcp_restart_protocol::agent::{AgentState, AgentView, ExitReason};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;

fn runs(generation: u64) -> impl Fn(&AgentView) -> bool {
    move |view| view.generation == generation && view.state == AgentState::Running
}

/// An agent that has restarted itself with a launch that ends with status 3 as soon as it reads a line from `go`.
fn on_trial() -> (Stack, fs::File, AgentView) {
    let stack = Stack::up(&json!([sleeper("a")]));
    let go = stack.pipe("go");
    stack.ctl(&["start", "a"]).ok();
    let (token, _) = stack.wiring("a");
    stack.write_config(&json!([shell("a", "read word < go; exit 3")]));
    stack.call(Some(&token), "restart_agent", &json!({ "note": "go on" }));
    let view = stack.wait_for("a", runs(2));
    (stack, go, view)
}

/// The last launch that stayed up runs again, and everybody is told.
fn check_rolled_back(stack: &Stack) {
    let view = stack.wait_for("a", runs(3));
    let exit = view.last_exit.unwrap();
    assert_eq!((exit.reason, exit.code), (ExitReason::RolledBack, Some(3)));
    assert!(view.config_changed, "the entry is still the one that failed");
    let handoff = stack.json(&["handoff", "a"]);
    assert_eq!(handoff["rolledBack"], true, "{handoff}");
    assert_eq!((&handoff["generation"], &handoff["notes"][0]["text"]), (&json!(3), &json!("go on")));
}

#[test]
fn a_changed_launch_of_a_self_restart_that_does_not_live_is_replaced_by_the_one_before_and_all_say_so() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    let (token, _) = stack.wiring("a");
    stack.write_config(&json!([shell("a", "exit 3")]));
    let arguments = json!({ "note": "go on", "requestId": "one" });
    stack.call(Some(&token), "restart_agent", &arguments);
    check_rolled_back(&stack);
    let log = fs::read_to_string(stack.agent("a").log_file).unwrap();
    let marker = log.lines().find(|line| line.contains("generation 3 started")).unwrap();
    assert!(marker.contains("rolled back"), "{marker}");
    let events = stack.json(&["events"]);
    let path = |pid: Option<u32>, field: &str| {
        let found =
            events["events"].as_array().unwrap().iter().rev().find(|event| event[field] == json!(pid));
        found.unwrap()["pathId"].clone()
    };
    assert_eq!(path(stack.agent("a").pid, "newPid"), "rollback", "{events}");

    let again: Value = stack.call(Some(&token), "restart_agent", &arguments);
    assert_eq!(again["structuredContent"]["rolledBack"], true, "who asks again is told: {again}");
    assert_eq!(stack.refusal(Some(&token), "restart_agent", &json!({})), "launch_known_bad");
    stack.ctl(&["restart", "a"]).failed(1, "rolled back before");
    assert_eq!(stack.agent("a").generation, 3);

    stack.write_config(&json!([shell("a", "exec sleep 999")]));
    stack.call(Some(&token), "restart_agent", &json!({}));
    stack.wait_for("a", runs(4));
    stack.write_config(&json!([shell("a", "exit 3")]));
    stack.ctl(&["stop", "a"]).ok();
    stack.ctl(&["start", "a"]).failed(1, "rolled back before");
    stack.ctl(&["start", "a", "--force"]).ok();
}

#[test]
fn a_trial_goes_on_under_the_next_daemon() {
    let (stack, mut go, before) = on_trial();
    stack.kill_daemon();
    stack.ctl(&["up"]).ok();
    assert_eq!(stack.agent("a").pid, before.pid);
    writeln!(go).unwrap();
    check_rolled_back(&stack);
}

#[test]
fn a_launch_that_ends_within_its_time_while_no_daemon_runs_is_rolled_back_by_the_next() {
    let (stack, mut go, before) = on_trial();
    stack.kill_daemon();
    writeln!(go).unwrap();
    wait_until_gone(before.pid.unwrap());
    stack.ctl(&["up"]).ok();
    check_rolled_back(&stack);
}

#[test]
fn who_stops_an_agent_ends_its_trial() {
    let (stack, _go, _) = on_trial();
    stack.ctl(&["stop", "a"]).ok();
    stack.kill_daemon();
    stack.ctl(&["up"]).ok();
    let view = stack.agent("a");
    assert_eq!((view.state, view.generation), (AgentState::Stopped, 2));
}

#[test]
fn with_always_whoever_waits_for_a_restart_is_told_that_it_was_rolled_back() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    let mut entry = shell("a", "exit 3");
    (entry["rollback"], entry["settleMs"]) = (json!({ "always": true }), json!(5000));
    stack.write_config(&json!([entry]));
    let run = stack.ctl(&["restart", "a"]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stdout.contains("did not live, so the last good one runs"), "{run:?}");
    assert_eq!(stack.agent("a").generation, 3);
}
