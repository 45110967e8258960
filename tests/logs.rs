//! The output of agents: kept, rotated, shown, and in nobody's way.

use crate::support::{LIMIT, Stack, lines_of, shell, sleeper};
use mcp_restart_protocol::agent::AgentState;
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

fn follow(stack: &Stack, name: &str) -> Child {
    let mut command = stack.command(env!("CARGO_BIN_EXE_mcp-restartctl"));
    command.args(["logs", "-f", name]).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_log_is_rotated_by_size_and_shown_as_one() {
    let mut entry = shell("a", "seq 10000 19999; echo > done; exec sleep 1000");
    entry["logMaxBytes"] = json!(20_000);
    entry["logKeep"] = json!(2);
    let stack = Stack::up(&json!([entry]));
    let done = stack.mailbox("done");
    stack.ctl(&["start", "a"]).ok();
    done.next();
    stack.ctl(&["stop", "a"]).ok();
    let log = stack.agent("a").log_file;
    let size = |suffix: &str| fs::metadata(format!("{log}{suffix}")).map(|file| file.len());
    for suffix in ["", ".1", ".2"] {
        assert!(size(suffix).unwrap() <= 20_000, "{suffix:?}");
    }
    assert!(size(".1").unwrap() > 10_000);
    assert!(size(".3").is_err());
    // More than one file holds, and none of it lost or doubled.
    let wanted: Vec<String> = (14_000..20_000).map(|number| number.to_string()).collect();
    assert_eq!(stack.ctl(&["logs", "a", "-n", "6000"]).ok().stdout.lines().collect::<Vec<_>>(), wanted);
    let last = stack.call(None, "agent_logs", &json!({ "name": "a", "lines": 3 }));
    assert_eq!(last["structuredContent"]["lines"], json!(["19997", "19998", "19999"]));
}

#[test]
fn a_log_is_followed_through_restarts_and_rotation() {
    let mut entry = shell("a", "seq 1000; echo \"I am $MCP_RESTART_GENERATION\"; exec sleep 1000");
    entry["logMaxBytes"] = json!(4_096);
    let stack = Stack::up(&json!([entry]));
    stack.ctl(&["start", "a"]).ok();
    let mut program = follow(&stack, "a");
    let lines = lines_of(program.stdout.take().unwrap());
    let until = |last: &str| {
        let come = std::iter::from_fn(|| lines.recv_timeout(LIMIT).ok());
        assert!(come.into_iter().any(|line| line == last), "{last:?} never came");
    };
    until("I am 1");
    stack.ctl(&["restart", "a"]).ok();
    until("I am 2");
    stack.ctl(&["restart", "a"]).ok();
    until("I am 3");
    program.kill().unwrap();
    program.wait().unwrap();
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let stack = Stack::up(&json!([shell("a", "echo once; read word < go; echo again; exec sleep 1000")]));
    let mut go = stack.pipe("go");
    stack.ctl(&["start", "a"]).ok();
    let mut program = follow(&stack, "a");
    let shown = BufReader::new(program.stdout.take().unwrap());
    assert!(shown.lines().any(|line| line.unwrap() == "once"));
    writeln!(go).unwrap();
    assert_eq!(program.wait().unwrap().code(), Some(0));
}

#[test]
fn a_log_that_cannot_take_it_stops_no_agent() {
    let mut entry = shell("a", "head -c 1000000 /dev/zero; echo more >&2; echo > done; exec sleep 1000");
    entry["logFile"] = json!("/dev/full");
    let stack = Stack::up(&json!([entry]));
    let done = stack.mailbox("done");
    stack.ctl(&["start", "a"]).ok();
    done.next();
    assert_eq!(stack.agent("a").state, AgentState::Running);
    assert!(fs::metadata("/dev/full").unwrap().len() == 0 && !fs::exists("/dev/full.1").unwrap());
}

#[test]
fn escape_sequences_are_shown_to_nobody_who_did_not_ask_for_them() {
    let stack = Stack::up(&json!([
        shell("a", "printf '\\033[31mred\\033[0m\\033]0;title\\007\\n'; echo > done; exec sleep 1000"),
        sleeper("quiet"),
    ]));
    let done = stack.mailbox("done");
    stack.ctl(&["start", "--all"]).ok();
    done.next();
    stack.ctl(&["stop", "a"]).ok();
    assert!(stack.ctl(&["logs", "a"]).ok().stdout.ends_with("red\n"));
    assert!(stack.ctl(&["logs", "a", "--raw"]).ok().stdout.contains("\u{1b}[31mred"));
    let lines = stack.call(None, "agent_logs", &json!({ "name": "a" }));
    assert_eq!(lines["structuredContent"]["lines"].as_array().unwrap().last().unwrap(), "red");
    stack.ctl(&["logs", "nobody"]).failed(4, "nobody");
}
