//! The output of agents: kept, rotated, shown, and in nobody's way.

use crate::support::{Daemon, LIMIT, Stack, bare_command, lines_of, shell, signal, skip, sleeper};
use mcp_restart_protocol::agent::AgentState;
use rustix::process::Signal;
use serde_json::json;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
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
fn a_log_is_shown_from_the_last_start_on() {
    let mut entry =
        shell("a", "seq 2000; echo \"I am $MCP_RESTART_GENERATION\"; echo > done; exec sleep 1000");
    entry["logMaxBytes"] = json!(4_096);
    entry["logKeep"] = json!(20);
    let stack = Stack::up(&json!([entry]));
    let done = stack.mailbox("done");
    stack.ctl(&["start", "a"]).ok();
    done.next();
    stack.ctl(&["restart", "a"]).ok();
    done.next();
    stack.ctl(&["stop", "a"]).ok();
    let shown = stack.ctl(&["logs", "a", "--since-restart"]).ok().stdout;
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("--- mcp-restart: generation 2 started "), "{}", lines[0]);
    assert_eq!((lines.len(), lines[1], lines[2001]), (2002, "1", "I am 2"));
    assert_eq!(stack.ctl(&["logs", "a", "--since-restart", "-n", "1"]).ok().stdout, "I am 2\n");
    assert_eq!(stack.json(&["logs", "a", "--since-restart"])["lines"].as_array().unwrap().len(), 2002);
    let mut command = stack.command(env!("CARGO_BIN_EXE_mcp-restartctl"));
    command.args(["--json", "logs", "a", "-f", "--since-restart"]).stdout(Stdio::piped());
    let mut following = command.spawn().unwrap();
    let lines = lines_of(following.stdout.take().unwrap());
    assert!(lines.recv_timeout(LIMIT).unwrap().contains("generation 2 started"));
    assert_eq!(lines.recv_timeout(LIMIT).unwrap(), r#"{"line":"1"}"#);
    signal(following.id(), Signal::KILL);
    following.wait().unwrap();
}

/// A daemon with a disk of its own in `disk`, which nobody sees who was not started by it, and a path by which
/// the test does; none where that cannot be.
fn with_disk(stack: &Stack) -> Option<(Daemon, PathBuf)> {
    fs::create_dir(stack.path().join("disk")).unwrap();
    fs::create_dir_all(stack.state_dir().join("run")).unwrap();
    let script = "mount -t tmpfs -o size=1m,mode=0700 none disk && mount --bind disk state/run &&
        head -c 500000 /dev/zero > disk/ballast && exec \"$@\"";
    let apart = |program: &[&OsStr]| {
        let mut command = bare_command("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script, "-"]).args(program);
        command.current_dir(stack.path()).env("HOME", stack.path());
        command
    };
    if !apart(&["true".as_ref()]).status().is_ok_and(|status| status.success()) {
        return None;
    }
    let daemon = stack.command(env!("CARGO_BIN_EXE_mcp-restartd"));
    let daemon =
        Daemon::started(apart(&[&[daemon.get_program()], &*daemon.get_args().collect::<Vec<_>>()].concat()));
    daemon.line(": serving ").unwrap();
    let disk = stack.path().join("disk");
    let inside = PathBuf::from(format!("/proc/{}/root", daemon.pid())).join(disk.strip_prefix("/").unwrap());
    Some((daemon, inside))
}

/// Writes until the disk is full.
fn fill(disk: &Path) {
    let mut ballast = fs::File::options().append(true).create(true).open(disk.join("ballast")).unwrap();
    while ballast.write_all(&[1; 4096]).is_ok() {}
}

#[test]
fn a_full_disk_stops_no_agent_and_what_was_lost_is_told_when_there_is_room_again() {
    const WRITTEN: usize = 3_000_000;
    let mut entry = shell(
        "a",
        "head -c $BYTES /dev/zero; echo > done; read word < go; echo again; echo > done; exec sleep 1000",
    );
    entry["env"] = json!({ "BYTES": WRITTEN.to_string() });
    entry["logFile"] = json!("disk/a.log");
    let stack = Stack::new(&json!([entry]));
    let Some((_daemon, disk)) = with_disk(&stack) else { return skip("no file system can be mounted") };
    let (done, mut go) = (stack.mailbox("done"), stack.pipe("go"));
    stack.ctl(&["start", "a"]).ok();
    done.next();
    assert_eq!(stack.agent("a").state, AgentState::Running);
    // Nor does it keep one from being restarted, whose shim has nowhere to write either.
    fill(&disk);
    let before = fs::read(disk.join("a.log")).unwrap().len();
    stack.ctl(&["restart", "a"]).ok();
    done.next();
    fs::remove_file(disk.join("ballast")).unwrap();
    writeln!(go).unwrap();
    done.next();
    stack.ctl(&["stop", "a"]).ok();
    let log = String::from_utf8(fs::read(disk.join("a.log")).unwrap().split_off(before)).unwrap();
    let text = log.replace('\0', "");
    let kept = log.len() - text.len();
    let lost = text.lines().find_map(|line| {
        line.strip_suffix(" bytes of output were lost: No space left on device (os error 28) ---")
    });
    let lost: usize =
        lost.unwrap_or_else(|| panic!("{kept} {text}")).rsplit_once(' ').unwrap().1.parse().unwrap();
    // The line that tells of the start may have been lost, too.
    assert!((WRITTEN..WRITTEN + 100).contains(&(kept + lost)), "{kept} {text}");
    assert!(text.ends_with("---\nagain\n"), "{text}");
    assert_eq!(stack.agent("a").generation, 2);
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
    signal(program.id(), Signal::KILL);
    program.wait().unwrap();
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let stack = Stack::up(&json!([shell("a", "echo once; exec sleep 1000")]));
    stack.ctl(&["start", "a"]).ok();
    let mut program = follow(&stack, "a");
    let shown = BufReader::new(program.stdout.take().unwrap());
    assert!(shown.lines().any(|line| line.unwrap() == "once"));
    // Nothing more is written.
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
