//! `mcp-restartctl demo`, as a newcomer runs it.

use crate::support::{LIMIT, Run, bare_command, lives, marked, signal};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use tempfile::TempDir;

/// The demo with a folder of its own for temporary ones, inside an agent of some other supervisor.
fn demo(folder: &Path) -> Command {
    let mut command = bare_command(env!("CARGO_BIN_EXE_mcp-restartctl"));
    command.arg("demo").env("TMPDIR", folder);
    for (variable, value) in
        [("AGENT", "x"), ("TOKEN", "mra_x"), ("SOCKET", "/nowhere"), ("CONFIG", "/nowhere")]
    {
        command.env(format!("MCP_RESTART_{variable}"), value);
    }
    command
}

fn assert_nothing_is_left(folder: &Path) {
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    let mark = format!("TMPDIR={}", folder.display());
    let deadline = Instant::now() + LIMIT;
    while let Some(pid) = marked(&mark).into_iter().find(|pid| lives(*pid)) {
        assert!(Instant::now() < deadline, "process {pid} is left");
        std::thread::yield_now();
    }
}

#[test]
fn the_demo_shows_the_whole_loop_and_leaves_nothing_behind() {
    let folder = TempDir::new().unwrap();
    let run = Run::of(demo(folder.path()).arg("--json").output().unwrap()).ok();
    let told: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&told["ok"], &told["missing"]), (&true.into(), &Value::Null));
    assert_nothing_is_left(folder.path());
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let folder = TempDir::new().unwrap();
    let mut program = demo(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("list_agents")));
    signal(program.id(), Signal::INT);
    let mut errors = String::new();
    program.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(program.wait().unwrap().code(), Some(130));
    assert!(errors.contains("error: interrupted"), "{errors}");
    assert_nothing_is_left(folder.path());
}
