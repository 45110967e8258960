//! `attach` and `run` on a real pseudo-terminal.

use crate::support::{LIMIT, Stack, bare_command, parent_of, shell, signal, sleeper};
use mcp_restart_protocol::agent::AgentState;
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const DETACH: &[u8] = b"\x10\x11";

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
        "args": ["-c", "printf '\\033[?1049h\\033[?1003h\\033[?1006h\\033[?2004h\\033[?1h\\033=\\033[?25lfull-screen'; exec sleep 1000"],
    })
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// A user's terminal with a program on it.
struct Terminal {
    keys: File,
    shown: mpsc::Receiver<Vec<u8>>,
    /// What came and was not waited for yet.
    text: String,
    /// All of it, as a terminal emulator takes it.
    emulator: vt100::Parser,
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
        let program = stack.command(env!("CARGO_BIN_EXE_mcp-restartctl"));
        // The process becomes the program, as the leader of a session that has this terminal.
        let mut command = bare_command("setsid");
        command.arg("-c").arg(program.get_program()).args(program.get_args()).args(arguments);
        let end = || line.try_clone().unwrap();
        command.stdin(end()).stdout(end()).stderr(end());
        let program = command.spawn().unwrap();
        Self { keys, shown, text: String::new(), emulator: emulator(), line, before, program }
    }

    /// What a terminal emulator does when its window is resized.
    fn resize(&self, rows: u16, columns: u16) {
        tcsetwinsize(&self.keys, size(rows, columns)).unwrap();
    }

    /// Waits until the program has the terminal to itself. Nothing tells that but the terminal.
    fn taken(&self) {
        let deadline = Instant::now() + LIMIT;
        while format!("{:?}", tcgetattr(&self.line).unwrap()) == self.before {
            assert!(Instant::now() < deadline, "the terminal is not taken");
            std::thread::yield_now();
        }
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
            self.emulator.process(&piece);
            self.text.push_str(&String::from_utf8_lossy(&piece));
        }
    }

    /// Waits until the program has ended and the terminal is as it was, every mode of it.
    fn given_back(mut self, last: &str) -> ExitStatus {
        let status = self.program.wait().unwrap();
        assert_eq!(format!("{:?}", tcgetattr(&self.line).unwrap()), self.before);
        // Comes after everything that the program wrote.
        self.line.write_all(b"the end").unwrap();
        let text = self.shows("the end");
        assert!(text.contains(last), "{last:?} is not in {text:?}");
        let screen = self.emulator.screen();
        assert_eq!(screen.input_mode_formatted(), emulator().screen().input_mode_formatted());
        assert!(!screen.alternate_screen() && !screen.hide_cursor());
        status
    }
}

fn emulator() -> vt100::Parser {
    vt100::Parser::new(33.try_into().unwrap(), 101.try_into().unwrap(), 0)
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
    signal(stack.agent("screen").pid.unwrap(), Signal::KILL);
    assert_eq!(terminal.given_back("screen ended by SIGKILL").code(), Some(1));
}

#[test]
fn the_terminal_is_given_back_at_every_signal_that_ends_the_attachment() {
    let stack = Stack::up(&json!([screen()]));
    stack.ctl(&["start", "screen"]).ok();
    for end in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT] {
        let mut terminal = Terminal::run(&stack, &["attach", "screen"]);
        terminal.shows("full-screen");
        signal(terminal.program.id(), end);
        assert_eq!(terminal.given_back("").code(), Some(1), "{end:?}");
    }
    assert_eq!(stack.agent("screen").state, AgentState::Running);
}

#[test]
fn an_attachment_survives_the_daemon() {
    let stack = Stack::up(&json!([talker()]));
    let mut terminal = Terminal::run(&stack, &["run", "talker"]);
    terminal.shows("generation=1");
    stack.kill_daemon();
    terminal.type_keys(b"still here\r");
    terminal.shows("still here");
    stack.ctl(&["up"]).ok();
    stack.ctl(&["stop", "talker"]).ok();
    assert_eq!(terminal.given_back("talker is stopped").code(), Some(0));
}

#[test]
fn the_detach_keys_work_while_the_shim_stands_still() {
    let stack = Stack::up(&json!([talker()]));
    stack.ctl(&["start", "talker"]).ok();
    let shim = parent_of(stack.agent("talker").pid.unwrap());
    let mut attached = Terminal::run(&stack, &["attach", "talker"]);
    attached.shows("generation=1");
    signal(shim, Signal::STOP);
    // More than a socket holds.
    for _ in 0..100 {
        attached.type_keys(&[b'x'; 4000]);
    }
    attached.type_keys(DETACH);
    assert_eq!(attached.given_back("detached from talker").code(), Some(0));
    let mut attaching = Terminal::run(&stack, &["attach", "talker"]);
    attaching.taken();
    let begin = Instant::now();
    attaching.type_keys(DETACH);
    assert_eq!(attaching.given_back("detached from talker").code(), Some(0));
    assert!(begin.elapsed() < Duration::from_secs(5), "that is not at once: {:?}", begin.elapsed());
    signal(shim, Signal::CONT);
}

#[test]
fn the_detach_keys_work_while_the_daemon_stands_still() {
    let stack = Stack::up(&json!([talker()]));
    let mut terminal = Terminal::run(&stack, &["run", "talker"]);
    terminal.shows("generation=1");
    let (daemon, shim) = (stack.daemon_pid(), parent_of(stack.agent("talker").pid.unwrap()));
    signal(daemon, Signal::STOP);
    // The attachment ends, and nobody says what comes next.
    signal(shim, Signal::KILL);
    let begin = Instant::now();
    terminal.type_keys(DETACH);
    assert_eq!(terminal.given_back("detached from talker").code(), Some(0));
    assert!(begin.elapsed() < Duration::from_secs(5), "that is not at once: {:?}", begin.elapsed());
    signal(daemon, Signal::CONT);
}

#[test]
fn what_has_no_terminal_cannot_be_attached_to() {
    let stack = Stack::up(&json!([sleeper("plain"), talker()]));
    stack.ctl(&["start", "--all"]).ok();
    stack.ctl(&["attach", "plain"]).failed(1, "set plain tty=true");
    stack.ctl(&["attach", "talker"]).failed(2, "are not a terminal");
}

#[test]
fn an_agent_finds_a_terminal_of_its_own() {
    let script =
        "{ stty size; echo $TERM; tty; (: < /dev/tty) && echo controlling; } > told; exec sleep 1000";
    let mut entry = shell("a", script);
    entry["tty"] = json!(true);
    let stack = Stack::up(&json!([entry]));
    let told = stack.mailbox("told");
    stack.ctl(&["start", "a"]).ok();
    assert_eq!((told.next(), told.next()), ("40 120".to_owned(), "xterm-256color".to_owned()));
    assert!(told.next().starts_with("/dev/pts/"));
    assert_eq!(told.next(), "controlling");
}

#[test]
fn the_agents_terminal_has_the_size_of_the_users() {
    let script = "trap 'stty size > told' WINCH; echo > ready; while :; do sleep 0.01; done";
    let mut entry = shell("a", script);
    entry["tty"] = json!(true);
    let stack = Stack::up(&json!([entry]));
    let (ready, told) = (stack.mailbox("ready"), stack.mailbox("told"));
    stack.ctl(&["start", "a"]).ok();
    ready.next();
    let terminal = Terminal::run(&stack, &["attach", "a"]);
    assert_eq!(told.next(), "33 101");
    terminal.resize(50, 200);
    assert_eq!(told.next(), "50 200");
}

#[test]
fn keys_that_mean_something_to_a_terminal_mean_it_to_the_agents() {
    let mut entry = shell("a", "trap 'echo interrupted' INT; echo here; while :; do sleep 0.01; done");
    entry["tty"] = json!(true);
    let stack = Stack::up(&json!([entry]));
    let mut terminal = Terminal::run(&stack, &["run", "a"]);
    terminal.shows("here");
    terminal.type_keys(b"\x03");
    terminal.shows("interrupted");
    terminal.type_keys(DETACH);
    assert_eq!(terminal.given_back("detached from a").code(), Some(0));
}
