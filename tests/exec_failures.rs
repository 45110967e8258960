//! What cannot be started is told apart and told well, and costs no process that runs.

use crate::support::{Stack, lives, shell, skip, sleeper};
use mcp_restart_protocol::agent::AgentState;
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

fn file(stack: &Stack, name: &str, content: &str, mode: u32) {
    let path = stack.path().join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Makes this the launch of an agent that runs and of one that does not: both are refused, for this reason.
fn refused(stack: &Stack, running: u32, launch: &Value, reason: &str) {
    let entry = |name: &str| {
        let mut entry: Value = serde_json::from_str(&launch.to_string().replace("{name}", name)).unwrap();
        entry["name"] = json!(name);
        entry
    };
    stack.write_config(&json!([entry("old"), entry("new")]));
    for attempt in [["start", "new"], ["restart", "old"]] {
        stack.ctl(&attempt).failed(1, reason);
    }
    assert_eq!(stack.agent("new").state, AgentState::Failed, "{reason}");
    let old = stack.agent("old");
    assert_eq!((old.pid, old.generation), (Some(running), 1), "{reason}");
    assert!(lives(running), "{reason}");
}

/// A stack in which the agent `old` runs, and its process.
fn with_old(stack: Option<Stack>) -> Option<(Stack, u32)> {
    let stack = stack?;
    stack.ctl(&["start", "old"]).ok();
    let pid = stack.agent("old").pid?;
    Some((stack, pid))
}

/// Limits the daemon, and what it starts from now on, to so much of something.
fn limit(stack: &Stack, what: &str, most: u64) {
    for pid in [vec![stack.daemon_pid()], stack.fork_servers()].concat() {
        let mut command = stack.as_user("prlimit");
        command.arg(format!("--pid={pid}")).arg(format!("--{what}={most}:"));
        assert!(command.status().unwrap().success());
    }
}

#[test]
fn what_cannot_be_executed_is_told_apart_and_refused_before_anything_is_stopped() {
    let (stack, running) = with_old(Some(Stack::up(&json!([sleeper("old")])))).unwrap();
    file(&stack, "plain", "x", 0o644);
    file(&stack, "format", "\u{1}\u{2}\u{3}", 0o755);
    file(&stack, "interpreter", "#!/no/such/interpreter\n", 0o755);
    file(&stack, "carriage", "#!/bin/sh\r\n", 0o755);
    file(&stack, "runner", "#!/usr/bin/env no-such-runner\n", 0o755);
    let long = "x".repeat(200_000);
    let many = vec!["x".repeat(70_000); 2];
    limit(&stack, "stack", 512 * 1024);
    let table = [
        (json!({ "command": "no-such-program", "env": { "PATH": "/here:/there" } }), "was not found"),
        (json!({ "command": "no-such-program", "env": { "PATH": "/here:/there" } }), "/here:/there"),
        (json!({ "command": "./missing" }), "missing does not exist"),
        (json!({ "command": "./plain" }), "plain is not executable"),
        (json!({ "command": "/usr" }), "/usr is a folder"),
        (json!({ "command": "./format" }), "format is neither a program nor a script"),
        (json!({ "command": "./interpreter" }), "needs /no/such/interpreter, which does not exist"),
        (json!({ "command": "./carriage" }), "needs /bin/sh\\r, which does not exist"),
        (json!({ "command": "./runner" }), "needs no-such-runner, which does not exist"),
        (json!({ "command": "sh", "cwd": "nowhere" }), "nowhere does not exist"),
        (json!({ "command": "sh", "cwd": "plain" }), "plain is not a folder"),
        (json!({ "command": "sh", "args": [long] }), "200000 bytes, at most"),
        (json!({ "command": "sh", "args": many }), "its arguments and variables have"),
        (json!({ "command": "sh", "logFile": "gone/{name}.log" }), "gone/"),
        (json!({ "command": "sh", "logFile": "plain/{name}.log" }), "cannot be written: Not a directory"),
    ];
    for (launch, reason) in table {
        refused(&stack, running, &launch, reason);
    }
}

#[test]
fn what_a_user_may_not_do_is_refused_before_anything_is_stopped() {
    let Some((stack, running)) = with_old(Stack::up_unprivileged(&json!([sleeper("old")]))) else {
        return skip("a user who is not root cannot be had");
    };
    fs::create_dir(stack.path().join("closed")).unwrap();
    fs::set_permissions(stack.path().join("closed"), Permissions::from_mode(0o600)).unwrap();
    fs::write(stack.path().join("other"), "").unwrap();
    refused(
        &stack,
        running,
        &json!({ "command": "sh", "cwd": "closed" }),
        "closed cannot be entered: Permission",
    );
    refused(
        &stack,
        running,
        &json!({ "command": "sh", "logFile": "/dev/mem" }),
        "/dev/mem cannot be written",
    );
}

#[test]
fn a_fork_that_is_refused_leaves_what_runs_untouched_and_works_again_afterwards() {
    let agents = json!([sleeper("old"), shell("new", "exec sleep 1000")]);
    let Some((stack, running)) = with_old(Stack::up_unprivileged(&agents)) else {
        return skip("root may always fork, and a user who is not root cannot be had");
    };
    let before = getrlimit(Resource::Nproc).current.unwrap_or(u64::MAX);
    limit(&stack, "nproc", 1);
    for attempt in [["start", "new"], ["restart", "old"]] {
        stack.ctl(&attempt).failed(1, "its shim cannot be started: Resource temporarily unavailable");
    }
    let old = stack.agent("old");
    assert_eq!((old.pid, old.generation, old.state), (Some(running), 1, AgentState::Running));
    assert!(lives(running));
    limit(&stack, "nproc", before);
    for (attempt, name) in [(["start", "new"], "new"), (["restart", "old"], "old")] {
        stack.ctl(&attempt).ok();
        assert_eq!(stack.agent(name).generation, 2);
    }
}
