//! Which conversation an agent has, with a stand-in for claude that keeps its transcripts as claude does.

use crate::support::{Run, Stack};
use mcp_restart_protocol::agent::AgentState;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Writes down how it was called, and what was said if the entry has it speak.
const CLAUDE: &str = r#"#!/bin/sh
printf '%s\n' "$@" > said.$MCP_RESTART_AGENT.$MCP_RESTART_GENERATION
for argument; do
    case $argument in
    --session-id=*) mkdir -p "$HOME/.claude/projects/here"
        if [ -n "$SPEAKS" ]; then
            echo '{"type":"user"}' > "$HOME/.claude/projects/here/${argument#*=}.jsonl"
        fi ;;
    esac
done
exec sleep 1000
"#;

/// Agents of these names, with the stand-in as their program, whose users have spoken to them.
fn stack(names: &[&str]) -> Stack {
    let agents: Vec<Value> = names.iter().map(|name| entry(name)).collect();
    let stack = Stack::new(&json!(agents));
    let program = stack.path().join("claude");
    fs::write(&program, CLAUDE).unwrap();
    fs::set_permissions(program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    stack.ctl(&["up"]).ok();
    stack
}

fn entry(name: &str) -> Value {
    json!({ "name": name, "command": "./claude", "tty": false, "settleMs": 100, "env": { "SPEAKS": "1" } })
}

/// The argument of this name that a process of the agent was called with.
fn told(stack: &Stack, name: &str, generation: u64, option: &str) -> Option<String> {
    let file = stack.path().join(format!("said.{name}.{generation}"));
    let words = fs::read_to_string(file).unwrap();
    words.lines().find_map(|word| word.strip_prefix(option)?.strip_prefix('=')).map(str::to_owned)
}

/// Whether the last word that it was called with contains this.
fn was_prompted(stack: &Stack, name: &str, generation: u64, words: &str) -> bool {
    fs::read_to_string(stack.path().join(format!("said.{name}.{generation}"))).unwrap().contains(words)
}

/// Ends everything as the end of the machine does, and has the next daemon find another one.
fn reboot(stack: &Stack) {
    let shims: Vec<u32> = stack.shims();
    stack.kill_daemon();
    for shim in shims {
        crate::support::signal(shim, Signal::KILL);
        crate::support::wait_until_gone(shim);
    }
    for file in facts(stack).into_iter().chain([stack.state_dir().join("state.json")]) {
        set_boot(&file);
    }
}

/// What the shims have written down.
fn facts(stack: &Stack) -> Vec<PathBuf> {
    let files = fs::read_dir(stack.state_dir().join("run")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|is| is == "json")).collect()
}

fn set_boot(file: &Path) {
    change(file, "bootId", json!("another"));
}

fn change(file: &Path, field: &str, value: Value) {
    let mut text: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert!(text[field].is_string(), "{text}");
    text[field] = value;
    fs::write(file, text.to_string()).unwrap();
}

/// Writes down what claude does when its user takes up another conversation.
fn take_up(stack: &Stack, pid: u32, session: &str) {
    let file = session_file(stack, pid);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, json!({ "pid": pid, "sessionId": session }).to_string()).unwrap();
    fs::write(stack.path().join(format!(".claude/projects/here/{session}.jsonl")), "{}").unwrap();
}

/// Where claude keeps which conversation it is in.
fn session_file(stack: &Stack, pid: u32) -> PathBuf {
    stack.path().join(format!(".claude/sessions/{pid}.json"))
}

#[test]
fn after_a_new_boot_an_agent_goes_on_in_its_conversation_with_the_note_that_it_had_not_read() {
    let stack = stack(&["a", "b"]);
    let mut listed = [entry("a"), entry("b")];
    listed[0]["autostart"] = json!(true);
    stack.write_config(&json!(listed));
    stack.ctl(&["start", "a", "b"]).ok();
    let id = told(&stack, "a", 1, "--session-id").unwrap();
    stack.ctl(&["restart", "a", "--note", "mind the gap"]).ok();
    reboot(&stack);
    stack.ctl(&["up"]).ok();
    stack.wait_for("a", |view| view.state == AgentState::Running);
    assert_eq!(told(&stack, "a", 3, "--resume"), Some(id));
    assert!(was_prompted(&stack, "a", 3, "started again by mcp-restart"));
    assert!(was_prompted(&stack, "a", 3, "Note: mind the gap"));
    let handoff = stack.json(&["handoff", "a"]);
    assert_eq!((&handoff["generation"], &handoff["notes"][0]["text"]), (&json!(3), &json!("mind the gap")));

    // By hand it goes on as well, but for one that is to begin anew.
    assert_eq!(stack.agent("b").state, AgentState::Exited);
    listed[1]["resume"] = json!("fresh");
    stack.write_config(&json!(listed));
    stack.ctl(&["start", "b"]).ok();
    assert_eq!(told(&stack, "b", 2, "--resume"), None);

    // A stop and a start are no boot.
    stack.ctl(&["stop", "a"]).ok();
    stack.ctl(&["start", "a"]).ok();
    assert_eq!(told(&stack, "a", 4, "--resume"), None);
}

#[test]
fn what_ended_with_the_daemon_goes_on_after_a_new_boot_and_not_without_one() {
    let stack = stack(&["a"]);
    stack.ctl(&["start", "a"]).ok();
    let id = told(&stack, "a", 1, "--session-id").unwrap();
    stack.ctl(&["down"]).ok();
    stack.ctl(&["up"]).ok();
    stack.ctl(&["start", "a"]).ok();
    let other = told(&stack, "a", 2, "--session-id").unwrap();
    assert_ne!(other, id);
    stack.ctl(&["down"]).ok();
    set_boot(&stack.state_dir().join("state.json"));
    stack.ctl(&["up"]).ok();
    // The daemon that found the boot need not be the one that starts the agent.
    stack.ctl(&["down"]).ok();
    stack.ctl(&["up"]).ok();
    stack.ctl(&["start", "a"]).ok();
    assert_eq!(told(&stack, "a", 3, "--resume"), Some(other));
}

#[test]
fn who_was_never_spoken_to_keeps_the_id_of_its_conversation() {
    let stack = stack(&["a"]);
    let mut silent = entry("a");
    silent["env"] = json!({});
    stack.write_config(&json!([silent]));
    stack.ctl(&["start", "a"]).ok();
    let id = told(&stack, "a", 1, "--session-id").unwrap();
    stack.ctl(&["restart", "a"]).ok();
    stack.write_config(&json!([entry("a")]));
    stack.ctl(&["restart", "a"]).ok();
    for generation in [2, 3] {
        assert_eq!(told(&stack, "a", generation, "--session-id").as_deref(), Some(&*id));
        assert_eq!(told(&stack, "a", generation, "--resume"), None);
    }
    stack.ctl(&["restart", "a"]).ok();
    assert_eq!(told(&stack, "a", 4, "--resume").as_deref(), Some(&*id));
    assert_eq!(stack.agent("a").session_id.as_deref(), Some(&*id));
    let fresh: Run = stack.ctl(&["restart", "a", "--resume", "fresh"]);
    fresh.ok();
    assert_ne!(told(&stack, "a", 5, "--session-id").unwrap(), id);
}

#[test]
fn a_conversation_goes_on_where_it_was_begun_and_the_answer_says_so() {
    let stack = stack(&["a"]);
    stack.ctl(&["start", "a"]).ok();
    fs::create_dir(stack.path().join("elsewhere")).unwrap();
    let mut moved = entry("a");
    moved["cwd"] = json!("elsewhere");
    stack.write_config(&json!([moved]));
    let answer = stack.json(&["restart", "a"]);
    let warnings = answer["warnings"].to_string();
    assert!(warnings.contains("goes on in") && warnings.contains("elsewhere"), "{answer}");
    assert!(told(&stack, "a", 2, "--resume").is_some(), "it runs where it was begun");
    stack.ctl(&["restart", "a", "--resume", "fresh"]).ok();
    assert!(stack.path().join("elsewhere/said.a.3").exists());
}

#[test]
fn a_conversation_that_was_changed_from_inside_is_known_after_an_accident() {
    let other = "0190c0de-1234-7abc-8def-0123456789ab";
    let stack = stack(&["a"]);
    stack.ctl(&["start", "a"]).ok();
    let pid = stack.agent("a").pid.unwrap();
    take_up(&stack, pid, other);
    crate::support::signal(pid, Signal::KILL);
    stack.wait_for("a", |view| view.state == AgentState::Exited);
    stack.ctl(&["restart", "a"]).ok();
    assert_eq!(told(&stack, "a", 2, "--resume").as_deref(), Some(other));
}

#[test]
fn the_next_daemon_knows_as_well_which_conversation_was_taken_up_inside() {
    let other = "0190c0de-1234-7abc-8def-0123456789ab";
    let stack = stack(&["a"]);
    stack.ctl(&["start", "a"]).ok();
    take_up(&stack, stack.agent("a").pid.unwrap(), other);
    stack.kill_daemon();
    stack.ctl(&["up"]).ok();
    stack.ctl(&["restart", "a"]).ok();
    assert_eq!(told(&stack, "a", 2, "--resume").as_deref(), Some(other));
}

#[test]
fn a_conversation_that_was_taken_up_inside_outlives_the_machine_and_is_not_mixed_up_with_that_of_a_stranger()
{
    let others = ["0190c0de-1234-7abc-8def-0123456789ab", "0190c0de-1234-7abc-8def-0123456789ac"];
    let stack = stack(&["a"]);
    stack.ctl(&["start", "a"]).ok();
    let id = told(&stack, "a", 1, "--session-id").unwrap();
    let pid = stack.agent("a").pid.unwrap();
    reboot(&stack);
    // What was written since this machine began is by another process that has the same number.
    take_up(&stack, pid, others[0]);
    stack.ctl(&["up"]).ok();
    stack.ctl(&["start", "a"]).ok();
    assert_eq!(told(&stack, "a", 2, "--resume"), Some(id));

    let pid = stack.agent("a").pid.unwrap();
    reboot(&stack);
    take_up(&stack, pid, others[1]);
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    fs::File::open(session_file(&stack, pid)).unwrap().set_modified(long_ago).unwrap();
    for facts in facts(&stack) {
        change(&facts, "startedAt", json!("1970-01-01T00:00:01.000Z"));
    }
    stack.ctl(&["up"]).ok();
    stack.ctl(&["start", "a"]).ok();
    assert_eq!(told(&stack, "a", 3, "--resume").as_deref(), Some(others[1]));
}

#[test]
fn a_conversation_that_was_taken_up_inside_is_known_at_once_and_after_a_stop() {
    let other = "0190c0de-1234-7abc-8def-0123456789ab";
    let stack = stack(&["a"]);
    stack.ctl(&["start", "a"]).ok();
    let pid = stack.agent("a").pid.unwrap();
    // One that was killed had the same number.
    take_up(&stack, pid, other);
    let before = SystemTime::now() - Duration::from_secs(60);
    fs::File::open(session_file(&stack, pid)).unwrap().set_modified(before).unwrap();
    let shown = || stack.json(&["list"])["agents"][0]["sessionId"].clone();
    assert_ne!(shown(), other);
    take_up(&stack, pid, other);
    assert_eq!(shown(), other);
    stack.ctl(&["stop", "a"]).ok();
    stack.ctl(&["restart", "a"]).ok();
    assert_eq!(told(&stack, "a", 2, "--resume").as_deref(), Some(other));
}

#[test]
fn a_conversation_that_another_agent_has_taken_up_is_not_resumed_beside_it() {
    let stack = stack(&["a", "b"]);
    stack.ctl(&["start", "a", "b"]).ok();
    let id = told(&stack, "a", 1, "--session-id").unwrap();
    take_up(&stack, stack.agent("b").pid.unwrap(), &id);
    let answer = stack.json(&["restart", "a"]);
    assert!(answer["warnings"].to_string().contains("the agent b is in the conversation of a"), "{answer}");
    assert_eq!(told(&stack, "a", 2, "--resume"), None);
    assert_ne!(told(&stack, "a", 2, "--session-id").unwrap(), id);
}
