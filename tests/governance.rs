//! What is written down about every start and end, and what is refused after a command that would have hit an agent.

use crate::support::{Daemon, Run, Stack, signal, sleeper};
use mcp_restart_protocol::agent::AgentState;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::process::Stdio;

/// The events of a stack, oldest first.
fn events(stack: &Stack) -> Vec<Value> {
    stack.json(&["events", "-n", "1000"])["events"].as_array().unwrap().clone()
}

/// The words of the events, with what came of them and whom they are about.
fn told(events: &[Value]) -> Vec<String> {
    let word =
        |event: &Value, field: &str| event[field].as_str().map(|word| format!(" {word}")).unwrap_or_default();
    let line = |event: &Value| {
        format!(
            "{}{}{}{}",
            event["event"].as_str().unwrap(),
            word(event, "agent"),
            word(event, "pathId"),
            word(event, "outcome")
        )
    };
    events.iter().map(line).collect()
}

/// A stack whose config is strict about commands that kill by name.
fn strict(agents: &Value) -> Stack {
    let stack = Stack::new(agents);
    let config = json!({ "port": 0, "contamination": "refuse", "agents": agents });
    fs::write(stack.config(), config.to_string()).unwrap();
    stack.ctl(&["up"]).ok();
    stack
}

/// Runs the hook of Claude Code on a command.
fn hook(stack: &Stack, command: &str) -> Run {
    let input =
        json!({ "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": { "command": command } });
    let mut hook = stack.command(env!("CARGO_BIN_EXE_mcp-restartctl"));
    hook.args(["guard", "--hook", "claude"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut hook = hook.spawn().unwrap();
    hook.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
    Run::of(hook.wait_with_output().unwrap())
}

#[test]
fn every_start_and_end_is_an_event_with_its_path_and_who_asked() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    let first = stack.agent("a");
    stack.ctl(&["restart", "a"]).ok();
    let second = stack.agent("a");
    stack.ctl(&["stop", "nobody"]).failed(4, "nobody");
    signal(second.pid.unwrap(), Signal::KILL);
    stack.wait_for("a", |agent| agent.state == AgentState::Exited);
    stack.call(Some(&stack.wiring("a").0), "restart_agent", &json!({}));
    stack.wait_for("a", |agent| agent.generation == 3 && agent.state == AgentState::Running);
    stack.ctl(&["down"]).ok();

    let events = events(&stack);
    let expected = [
        "daemon_started",
        "bridge_started bridge_child",
        "started a ctl_start",
        "requested a ctl_start done",
        "ended a ctl_restart",
        "started a ctl_restart",
        "requested a ctl_restart done",
        "requested nobody ctl_stop unknown_agent",
        "ended a exit_sweep",
        "started a mcp_restart_agent",
        "requested a mcp_restart_agent done",
        "requested ctl_down accepted",
        "ended a ctl_down",
        "bridge_ended bridge_child",
        "daemon_stopped ctl_down",
    ];
    // A state and the answer that tells of it are two tasks' words.
    let mut told = told(&events);
    told.sort_unstable();
    let mut sorted = expected.map(str::to_owned);
    sorted.sort_unstable();
    assert_eq!(told, sorted);
    let restart = events
        .iter()
        .find(|event| event["pathId"] == "ctl_restart" && event["event"] == "requested")
        .unwrap();
    assert_eq!(restart["oldPid"], first.pid.unwrap());
    assert_eq!(restart["newPid"], second.pid.unwrap());
    assert_eq!(restart["exit"]["signal"], "SIGTERM");
    assert_eq!(restart["caller"]["type"], "localUser");
    assert_eq!(restart["peer"]["uid"], rustix::process::geteuid().as_raw());
    assert_eq!(restart["configBefore"], restart["configAfter"]);
    let by_agent =
        events.iter().find(|event| event["pathId"] == "mcp_restart_agent" && event["event"] == "requested");
    assert_eq!(by_agent.unwrap()["caller"], json!({ "type": "agent", "name": "a" }));
    let down =
        events.iter().find(|event| event["pathId"] == "ctl_down" && event["event"] == "requested").unwrap();
    assert_eq!(
        (&down["caller"]["type"], &down["peer"]["uid"]),
        (&json!("localUser"), &restart["peer"]["uid"])
    );
    let text = stack.ctl(&["events", "--agent", "nobody"]).ok().stdout;
    assert!(
        text.contains("ctl_stop asked for by a local user") && text.contains(": unknown_agent"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn a_daemon_that_was_killed_is_told_by_the_next_one_and_one_that_was_stopped_is_not() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    stack.kill_daemon();
    stack.ctl(&["up"]).ok();
    stack.ctl(&["down"]).ok();
    stack.ctl(&["up"]).ok();
    let told = told(&events(&stack));
    let unclean = told.iter().filter(|line| line.starts_with("unclean_shutdown")).count();
    assert_eq!(unclean, 1, "{told:?}");
    let at = told.iter().position(|line| line.starts_with("unclean_shutdown")).unwrap();
    assert_eq!(told[at + 1..at + 3], ["daemon_started", "adopted a"]);
}

#[test]
fn events_that_cannot_be_written_stop_nothing() {
    let stack = Stack::new(&json!([sleeper("a")]));
    fs::create_dir_all(stack.state_dir().join("events.jsonl")).unwrap();
    std::os::unix::fs::chown(stack.state_dir(), None, None).unwrap();
    fs::set_permissions(stack.state_dir(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let daemon = Daemon::of(&stack);
    assert!(daemon.line("events cannot be written").is_some());
    assert!(daemon.line(": serving ").is_some());
    stack.ctl(&["start", "a"]).ok();
    stack.ctl(&["down"]).ok();
    assert_eq!(daemon.end().code(), Some(0));
}

#[test]
fn a_command_that_would_hit_an_agent_is_refused_and_a_harmless_one_is_not() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    let pid = stack.agent("a").pid.unwrap();
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    for command in [
        format!("kill {pid}"),
        format!("pkill {}", name.trim()),
        "pkill -f mcp-restartd".to_owned(),
        format!("kill -9 {}", stack.daemon_pid()),
        "pgrep mcp-restart-htt | xargs kill".to_owned(),
    ] {
        let words: Vec<_> = ["guard"].into_iter().chain(command.split(' ')).collect();
        stack.ctl(&words).failed(5, "this would hit");
        let denied: Value = serde_json::from_str(&hook(&stack, &command).ok().stdout).unwrap();
        assert_eq!(denied["hookSpecificOutput"]["permissionDecision"], "deny", "{command}");
    }
    assert_eq!(stack.ctl(&["guard", "kill", "999999"]).ok().stdout, "");
    assert_eq!(hook(&stack, "ls && kill 999999").ok().stdout, "");
    assert_eq!(stack.agent("a").pid, Some(pid));
}

#[test]
fn a_hook_that_cannot_judge_lets_nothing_through() {
    let stack = Stack::up(&json!([sleeper("a")]));
    let config = fs::read(stack.config()).unwrap();
    fs::remove_file(stack.config()).unwrap();
    hook(&stack, "ls").failed(2, "cannot be judged");
    fs::write(stack.config(), config).unwrap();
    hook(&stack, "ls").ok();
}

#[test]
fn after_a_refused_command_a_strict_daemon_refuses_until_the_operator_has_looked() {
    let stack = strict(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    let pid = stack.agent("a").pid;
    stack.ctl(&["guard", "pkill -f mcp-restartd"]).failed(5, "the supervisor");
    for command in [["start", "a"], ["stop", "a"], ["restart", "a"]] {
        stack.ctl(&command).failed(5, "mcp-restartctl clear");
    }
    assert_eq!(stack.refusal(None, "restart_agent", &json!({ "name": "a" })), "contaminated");
    assert_eq!(stack.agent("a").pid, pid);
    assert!(stack.ctl(&["status"]).ok().stderr.contains("pkill -f mcp-restartd"));
    let doctor = stack.ctl(&["doctor"]);
    assert!(doctor.code == 1 && doctor.stdout.contains("clear, outside any agent"), "{doctor:?}");
    // It outlives the daemon.
    stack.kill_daemon();
    stack.ctl(&["up"]).ok();
    stack.ctl(&["restart", "a"]).failed(5, "clear");

    let (token, _) = stack.wiring("a");
    let mut inside = stack.command(env!("CARGO_BIN_EXE_mcp-restartctl"));
    Run::of(inside.arg("clear").env("MCP_RESTART_TOKEN", token).output().unwrap())
        .failed(5, "only the operator");
    stack.ctl(&["restart", "a"]).failed(5, "clear");

    stack.ctl(&["clear"]).ok();
    stack.ctl(&["restart", "a"]).ok();
    let told = told(&events(&stack));
    assert_eq!(told.iter().filter(|line| *line == "contaminated").count(), 1, "{told:?}");
    assert_eq!(told.iter().filter(|line| *line == "cleared").count(), 1, "{told:?}");
    assert_eq!(stack.ctl(&["clear"]).ok().stdout, "there is nothing to clear\n");
}

#[test]
fn where_the_config_only_warns_a_refused_command_stops_nothing() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["guard", "pkill -f mcp-restartd"]).failed(5, "the supervisor");
    stack.ctl(&["start", "a"]).ok();
    assert!(stack.json(&["status"])["contaminated"].as_str().unwrap().contains("pkill -f mcp-restartd"));
}
