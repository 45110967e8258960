//! `attach` and `run` on a real pseudo-terminal.

use crate::support::{LIMIT, Stack};
use mcp_restart_protocol::agent::AgentState;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::mpsc;
use std::time::Instant;

const DETACH: &[u8] = b"\x10\x11";
/// What gives a terminal back that was left in an alternate screen, with a mouse and no cursor.
const RESETS: [&str; 4] = ["\x1b[?1049l", "\x1b[?1003l", "\x1b[?2004l", "\x1b[?25h"];

/// An agent with a terminal that says what generation it is and then answers with the terminal's size.
fn talker() -> Value {
    json!({
        "name": "talker", "command": "sh", "tty": true, "settleMs": 0,
        "args": ["-c", "echo generation=$MCP_RESTART_GENERATION; while read line; do echo \"$line: $(stty size)\"; done"],
    })
}

/// An agent that takes the whole terminal and never gives it back.
fn screen() -> Value {
    json!({
        "name": "screen", "command": "sh", "tty": true, "settleMs": 0,
        "args": ["-c", "printf '\\033[?1049h\\033[?1003h\\033[?2004h\\033[?25lfull-screen'; exec sleep 1000"],
    })
}

/// A user's terminal with a program on it.
struct Terminal {
    keys: File,
    shown: mpsc::Receiver<Vec<u8>>,
    text: String,
    line: File,
    before: String,
    program: Child,
}

impl Terminal {
    /// Runs a command on a terminal of 33 rows and 101 columns.
    fn run(stack: &Stack, arguments: &[&str]) -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let name = ptsname(&keys, Vec::new()).unwrap();
        let line = File::options().read(true).write(true).open(Path::new(name.to_str().unwrap())).unwrap();
        tcsetwinsize(&keys, size(33, 101)).unwrap();
        let before = format!("{:?}", tcgetattr(&line).unwrap());
        let keys = File::from(keys);
        let mut output = keys.try_clone().unwrap();
        let (sender, shown) = mpsc::channel();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut piece) {
                if sender.send(piece[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        let mut command = stack.command(env!("CARGO_BIN_EXE_mcp-restartctl"));
        let end = || line.try_clone().unwrap();
        command.args(arguments).stdin(end()).stdout(end()).stderr(end());
        let program = command.spawn().unwrap();
        Self { keys, shown, text: String::new(), line, before, program }
    }

    /// What a terminal emulator does when its window is resized.
    fn resize(&self, rows: u16, columns: u16) {
        tcsetwinsize(&self.keys, size(rows, columns)).unwrap();
        self.signal(Signal::WINCH);
    }

    fn type_keys(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
    }

    /// Waits until this text comes, and takes everything up to its end.
    fn shows(&mut self, text: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(start) = self.text.find(text) {
                let rest = self.text.split_off(start + text.len());
                return std::mem::replace(&mut self.text, rest);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let piece = self.shown.recv_timeout(left);
            let piece = piece.unwrap_or_else(|_| panic!("{text:?} is not in {:?}", self.text));
            self.text.push_str(&String::from_utf8_lossy(&piece));
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.program.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits until the program has ended and the terminal is as it was, every mode of it.
    fn given_back(mut self, last: &str) -> ExitStatus {
        let text = self.shows(last);
        for reset in RESETS {
            assert!(text.contains(reset), "{reset:?} is not in {text:?}");
        }
        let status = self.program.wait().unwrap();
        assert_eq!(format!("{:?}", tcgetattr(&self.line).unwrap()), self.before);
        status
    }
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

#[test]
fn run_brings_everything_up_and_the_keys_of_docker_detach() {
    let stack = Stack::new(&json!([talker()]));
    let mut terminal = Terminal::run(&stack, &["run", "talker"]);
    terminal.shows("generation=1");
    terminal.type_keys(b"hello\r");
    terminal.shows("hello: 33 101");
    terminal.resize(20, 70);
    // The keys may overtake the new size; each question gets its answer.
    let mut answer = String::new();
    while !answer.contains("20 70") {
        terminal.type_keys(b"size\r");
        answer = terminal.shows("size: ") + &terminal.shows("\r\n");
    }
    terminal.type_keys(DETACH);
    assert_eq!(terminal.given_back("detached from talker").code(), Some(0));
    assert_eq!(stack.agent("talker").state, AgentState::Running);
}

#[test]
fn an_attachment_stays_across_a_restart_and_ends_with_a_stop() {
    let stack = Stack::up(&json!([talker()]));
    stack.ctl(&["start", "talker"]).ok();
    let mut terminal = Terminal::run(&stack, &["attach", "talker"]);
    terminal.shows("generation=1");
    stack.ctl(&["restart", "talker"]).ok();
    terminal.shows("generation=2");
    stack.ctl(&["stop", "talker"]).ok();
    assert_eq!(terminal.given_back("talker is stopped").code(), Some(0));
}

#[test]
fn the_terminal_is_given_back_when_the_agent_dies_in_mid_screen() {
    let stack = Stack::up(&json!([screen()]));
    let mut terminal = Terminal::run(&stack, &["run", "screen"]);
    terminal.shows("full-screen");
    let pid = i32::try_from(stack.agent("screen").pid.unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    assert_eq!(terminal.given_back("screen ended by SIGKILL").code(), Some(1));
}

#[test]
fn the_terminal_is_given_back_at_every_signal_that_ends_the_attachment() {
    let stack = Stack::up(&json!([screen()]));
    stack.ctl(&["start", "screen"]).ok();
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT] {
        let mut terminal = Terminal::run(&stack, &["attach", "screen"]);
        terminal.shows("full-screen");
        terminal.signal(signal);
        assert_eq!(terminal.given_back(RESETS[3]).code(), Some(1), "{signal:?}");
    }
    assert_eq!(stack.agent("screen").state, AgentState::Running);
}

#[test]
fn an_attachment_survives_the_daemon() {
    let stack = Stack::up(&json!([talker()]));
    let mut terminal = Terminal::run(&stack, &["run", "talker"]);
    terminal.shows("generation=1");
    let daemon = i32::try_from(stack.daemon_pid()).unwrap();
    kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
    terminal.type_keys(b"still here\r");
    terminal.shows("still here");
    stack.ctl(&["up"]).ok();
    stack.ctl(&["stop", "talker"]).ok();
    assert_eq!(terminal.given_back("talker is stopped").code(), Some(0));
}

#[test]
fn what_has_no_terminal_cannot_be_attached_to() {
    let stack = Stack::up(&json!([crate::support::sleeper("plain"), talker()]));
    stack.ctl(&["start", "--all"]).ok();
    stack.ctl(&["attach", "plain"]).failed(1, "hint: mcp-restartctl set plain tty=true");
    stack.ctl(&["attach", "talker"]).failed(2, "are not a terminal");
}
