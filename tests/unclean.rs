//! A state dir that is not as a daemon leaves it: a clear error, or a clean recovery.

use crate::support::{Daemon, NOBODY, Run, Stack, bare_command, marked, new_mark, signal, sleeper};
use mcp_restart_protocol::agent::AgentState;
use rustix::process::{Signal, geteuid};
use serde_json::json;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A stack with an empty state dir.
fn prepared() -> (Stack, PathBuf) {
    let stack = Stack::new(&json!([sleeper("a")]));
    let state_dir = stack.state_dir();
    fs::create_dir(&state_dir).unwrap();
    fs::set_permissions(&state_dir, Permissions::from_mode(0o700)).unwrap();
    (stack, state_dir)
}

/// A daemon that must not start, and has to say why in one line and what to do in another.
fn refused(mut daemon: Command, message: &str) {
    let run = Run::of(daemon.output().unwrap()).failed(1, message);
    assert_eq!(run.stderr.lines().filter(|line| line.starts_with("hint: ")).count(), 1, "{run:?}");
}

fn daemon(stack: &Stack) -> Command {
    stack.command(env!("CARGO_BIN_EXE_mcp-restartd"))
}

fn pipe(path: &Path) {
    assert!(bare_command("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn what_has_the_name_of_a_file_of_ours_is_named_and_left_alone() {
    let (stack, state_dir) = prepared();
    let elsewhere = stack.path().join("elsewhere");
    let at = |name: &str| state_dir.join(name);
    let (log, lock, socket) = (at("mcp-restart.log"), at("mcp-restartd.lock"), at("mcp-restartd.sock"));
    let refused_for = |path: &Path, why: &str| {
        refused(daemon(&stack), &path.display().to_string());
        refused(daemon(&stack), why);
        assert!(path.symlink_metadata().is_ok() && !elsewhere.exists(), "{}", path.display());
        let removed = if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
        removed.unwrap();
    };
    symlink(&elsewhere, &log).unwrap();
    refused_for(&log, "it is a symbolic link");
    pipe(&log);
    refused_for(&log, "it is not a regular file");
    fs::create_dir(&log).unwrap();
    refused_for(&log, "directory");
    fs::remove_file(&lock).unwrap();
    symlink(&elsewhere, &lock).unwrap();
    refused_for(&lock, "cannot lock");
    for make in [|path: &Path| fs::create_dir(path).unwrap(), |path: &Path| pipe(path)] {
        make(&lock);
        refused_for(&lock, "is not a regular file");
    }
    fs::write(&socket, "precious").unwrap();
    refused_for(&socket, "is not a socket");
    fs::remove_dir(at("run")).unwrap();
    fs::write(at("run"), "").unwrap();
    refused_for(&at("run"), "is not a folder");
    pipe(&at("run"));
    refused_for(&at("run"), "is not a folder");
    stack.ctl(&["up"]).ok();
}

#[test]
fn what_a_dead_daemon_or_an_accident_left_does_not_keep_the_next_one_from_serving() {
    let (stack, state_dir) = prepared();
    fs::write(state_dir.join("mcp-restartd.lock"), format!("{:<10}\n", std::process::id())).unwrap();
    drop(UnixListener::bind(state_dir.join("mcp-restartd.sock")).unwrap());
    pipe(&state_dir.join("state.json"));
    let run = state_dir.join("run");
    fs::create_dir_all(run.join("00000001.json")).unwrap();
    fs::create_dir(run.join("no-shim")).unwrap();
    fs::write(run.join("00000002.json"), "{").unwrap();
    pipe(&run.join("00000003.json"));
    pipe(&run.join("00000003.lock"));
    fs::write(run.join("00000004.lock"), [0xff; 100]).unwrap();
    stack.ctl(&["up"]).ok();
    stack.ctl(&["start", "a"]).ok();
    let names = fs::read_dir(&state_dir).unwrap().map(|entry| entry.unwrap().file_name());
    let aside = names.filter(|name| name.to_string_lossy().starts_with("state.json.corrupt-"));
    assert_eq!(aside.count(), 1);
}

#[test]
fn a_state_dir_of_another_user_is_refused() {
    let (stack, state_dir) = prepared();
    if geteuid().is_root() {
        chown(&state_dir, Some(NOBODY), None).unwrap();
        refused(daemon(&stack), &format!("belongs to another user (uid {NOBODY})"));
        chown(&state_dir, Some(0), None).unwrap();
    } else {
        let mut daemon = bare_command(env!("CARGO_BIN_EXE_mcp-restartd"));
        daemon.arg("--config").arg(stack.config()).args(["--state-dir", "/"]);
        refused(daemon, "belongs to another user (uid 0)");
    }
}

#[test]
fn a_state_dir_that_cannot_be_written_to_is_refused() {
    let (stack, state_dir) = prepared();
    let mut command = daemon(&stack);
    if geteuid().is_root() {
        // Root may write everywhere.
        let mut as_nobody = bare_command("setpriv");
        as_nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        let reaches = |program: &str| {
            let mut probe = bare_command("setpriv");
            probe.args(["--reuid=65534", "--regid=65534", "--clear-groups", program, "--version"]);
            probe.output().is_ok_and(|output| output.status.success())
        };
        if !reaches(env!("CARGO_BIN_EXE_mcp-restartd")) {
            eprintln!("skipped: nobody else can run the programs of this build");
            return;
        }
        as_nobody.arg(command.get_program()).args(command.get_args()).current_dir("/");
        fs::set_permissions(stack.path(), Permissions::from_mode(0o755)).unwrap();
        chown(&state_dir, Some(NOBODY), None).unwrap();
        command = as_nobody;
    }
    fs::set_permissions(&state_dir, Permissions::from_mode(0o500)).unwrap();
    refused(command, "Permission denied");
    fs::set_permissions(&state_dir, Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_home_folder_that_is_none_is_named() {
    let (stack, _) = prepared();
    for (program, command) in
        [(env!("CARGO_BIN_EXE_mcp-restartd"), None), (env!("CARGO_BIN_EXE_mcp-restartctl"), Some("up"))]
    {
        for (home, message) in [
            ("/dev/null", "cannot create /dev/null/.local/state/mcp-restart"),
            // It would mean another folder wherever somebody stands.
            ("relative", "there is no home folder"),
        ] {
            let mut homeless = bare_command(program);
            homeless.env("HOME", home).arg("--config").arg(stack.config()).args(command);
            refused(homeless, message);
        }
    }
}

#[test]
fn a_socket_path_that_is_too_long_is_told_with_its_length_the_limit_and_the_remedy() {
    let (stack, _) = prepared();
    let long = stack.path().join("x".repeat(120));
    let length = long.join("mcp-restartd.sock").as_os_str().len();
    for (program, command) in
        [(env!("CARGO_BIN_EXE_mcp-restartd"), None), (env!("CARGO_BIN_EXE_mcp-restartctl"), Some("up"))]
    {
        let mut lost = bare_command(program);
        lost.arg("--config").arg(stack.config()).arg("--state-dir").arg(&long).args(command);
        refused(lost, &format!("has {length} bytes, this system allows 10"));
    }
}

#[test]
fn a_config_that_is_no_file_is_refused_without_waiting_for_it() {
    let (stack, _) = prepared();
    fs::remove_file(stack.config()).unwrap();
    pipe(&stack.config());
    stack.ctl(&["up"]).failed(6, "not a regular file");
    fs::remove_file(stack.config()).unwrap();
    fs::create_dir(stack.config()).unwrap();
    stack.ctl(&["up"]).failed(6, "it is a folder");
}

#[test]
fn a_log_folder_that_is_gone_is_made_again() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    fs::remove_dir_all(stack.state_dir().join("logs")).unwrap();
    stack.ctl(&["restart", "a"]).ok();
    assert_eq!(stack.agent("a").state, AgentState::Running);
    assert!(Path::new(&stack.agent("a").log_file).exists());
}

#[test]
#[cfg_attr(feature = "portable", ignore = "only Linux tells that a name is gone")]
fn a_daemon_whose_socket_was_removed_listens_again() {
    let stack = Stack::new(&json!([sleeper("a")]));
    let daemon = Daemon::of(&stack);
    daemon.line("the endpoint is served").unwrap();
    stack.ctl(&["start", "a"]).ok();
    let socket = stack.state_dir().join("mcp-restartd.sock");
    for _ in 0..2 {
        fs::remove_file(&socket).unwrap();
        daemon.line("is put back").unwrap();
        assert_eq!(stack.daemon_pid(), daemon.pid());
    }
    stack.ctl(&["stop", "a"]).ok();
    stack.ctl(&["down"]).ok();
    assert!(!socket.exists());
}

#[test]
#[cfg_attr(feature = "portable", ignore = "only Linux tells that a name is gone")]
fn a_state_dir_that_was_removed_is_put_back_with_all_that_the_next_daemon_needs() {
    let stack = Stack::new(&json!([sleeper("a"), sleeper("b")]));
    let daemon = Daemon::of(&stack);
    daemon.line("the endpoint is served").unwrap();
    stack.ctl(&["start", "a", "b"]).ok();
    let before = stack.json(&["list"]);
    let url = stack.json(&["status"])["url"].clone();
    fs::remove_dir_all(stack.state_dir()).unwrap();
    daemon.line("is put back").unwrap();
    // An agent that answers has heard of it, and so has the shim that it is told by.
    stack.ctl(&["restart", "b"]).ok();
    stack.kill_daemon();
    drop(daemon);
    stack.ctl(&["up"]).ok();
    let after = stack.json(&["list"]);
    assert_eq!(after["agents"][0]["pid"], before["agents"][0]["pid"]);
    assert_eq!(after["agents"][1]["generation"], 2);
    assert_eq!(stack.json(&["status"])["url"], url);
    stack.ctl(&["stop", "a", "b"]).ok();
    stack.ctl(&["down"]).ok();
}

#[test]
fn a_run_folder_that_was_removed_is_in_no_restarts_way() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    fs::remove_dir_all(stack.state_dir().join("run")).unwrap();
    stack.ctl(&["restart", "a"]).ok();
    let running = stack.agent("a").pid;
    stack.kill_daemon();
    stack.ctl(&["up"]).ok();
    assert_eq!(stack.agent("a").pid, running);
}

#[test]
fn a_daemon_whose_state_dir_is_gone_still_ends_with_everything_below_it() {
    let mark = new_mark();
    let mut entry = sleeper("a");
    entry["env"] = json!({ "MARK": mark });
    let stack = Stack::new(&json!([entry]));
    let daemon = Daemon::of(&stack);
    daemon.line("the endpoint is served").unwrap();
    stack.ctl(&["start", "a"]).ok();
    fs::remove_dir_all(stack.state_dir()).unwrap();
    // One like this is put to no use: nothing is put back.
    fs::create_dir(stack.state_dir()).unwrap();
    fs::set_permissions(stack.state_dir(), Permissions::from_mode(0o770)).unwrap();
    stack.ctl(&["status"]).failed(3, "no daemon runs");
    signal(daemon.pid(), Signal::TERM);
    assert_eq!(daemon.end().code(), Some(0));
    assert_eq!(marked(&format!("MARK={mark}")), [0; 0]);
}
