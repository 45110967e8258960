//! A daemon that is killed at any moment, also between two system calls of a restart, loses nothing: the next
//! one finishes what was begun.

use crate::support::{
    Daemon, LIMIT, Stack, block_on, marked, new_mark, parent_of, patient, signal, sleeper, wait_until_gone,
};
use mcp_restart_protocol::agent::{AgentState, AgentView, ExitReason};
use mcp_restart_protocol::answer::{Answer, RestartAnswer};
use mcp_restart_protocol::client::{Client, ClientError};
use mcp_restart_protocol::request::{Credential, Request, RestartRequest};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

/// At how many of the daemon's system calls it is killed, unless `MCP_RESTART_CRASH_POINTS` says otherwise
/// (`all`, or a number).
const POINTS: usize = 12;

/// One daemon after the other, without an endpoint, so that each is up at once.
struct Walk {
    stack: Stack,
    mark: String,
    daemon: Option<Daemon>,
}

impl Walk {
    fn new() -> Self {
        let mark = new_mark();
        let mut entry = sleeper("a");
        entry["env"] = json!({ "MARK": mark });
        let stack = Stack::new(&json!([]));
        fs::write(stack.config(), json!({ "agents": [entry] }).to_string()).unwrap();
        let mut walk = Self { stack, mark, daemon: None };
        walk.next_daemon();
        walk.stack.ctl(&["start", "a"]).ok();
        walk
    }

    fn next_daemon(&mut self) {
        let mut command = self.stack.command(env!("CARGO_BIN_EXE_mcp-restartd"));
        command.arg("--no-bridge");
        let daemon = Daemon::started(command);
        daemon.line(": serving ").unwrap();
        self.daemon = Some(daemon);
    }

    /// Sends the request and kills the daemon at its system call of that number from then on; tells how many
    /// there were, and what was answered if it came to that.
    fn crash_at(&mut self, request: &Request, point: usize) -> (usize, Option<Answer>) {
        let (asked, answer) = self.ask_aside(request);
        let daemon = self.daemon.take().unwrap();
        let count = trace(daemon.pid(), &asked, point);
        daemon.end();
        (count, answer.recv_timeout(LIMIT).unwrap())
    }

    /// Connects, and lets the request go as soon as it is told to.
    fn ask_aside(&self, request: &Request) -> (Gate, Receiver<Option<Answer>>) {
        let (go, told) = channel::<()>();
        let (done, answered) = channel();
        let (answer, answers) = channel();
        let (socket, request) = (self.stack.state_dir().join("mcp-restartd.sock"), request.clone());
        std::thread::spawn(move || {
            block_on(async {
                let mut client = Client::connect(&socket, Credential::Peer).await.unwrap();
                done.send(()).unwrap();
                told.recv().unwrap();
                let answered = client.ask(request).await;
                assert!(!matches!(answered, Err(ClientError::Refused(_))), "{answered:?}");
                // The tracing thread may have seen the daemon die before.
                let _ = done.send(());
                answer.send(answered.ok()).unwrap();
            });
        });
        answered.recv().unwrap();
        (Gate { go, answered }, answers)
    }

    fn ask(&self, request: &Request) -> Answer {
        let socket = self.stack.state_dir().join("mcp-restartd.sock");
        block_on(async {
            let mut client = Client::connect(&socket, Credential::Peer).await.unwrap();
            client.ask(request.clone()).await.unwrap()
        })
    }

    fn agent(&self) -> AgentView {
        self.stack.agent("a")
    }

    /// What has to hold whatever happened: one process, known for what it is.
    fn check_alone(&self, view: &AgentView) {
        assert_eq!(view.state, AgentState::Running);
        assert_eq!(marked(&format!("MARK={}", self.mark)), [view.pid.unwrap()]);
        assert!(view.started_at.is_some());
    }
}

/// Lets a request go, and tells when it was answered.
struct Gate {
    go: Sender<()>,
    answered: Receiver<()>,
}

/// Follows a process from system call to system call, and kills it at the one with this number or when the
/// request was answered. Gives how many there were.
fn trace(pid: u32, gate: &Gate, point: usize) -> usize {
    let process = Pid::from_raw(i32::try_from(pid).unwrap());
    ptrace::seize(process, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL)
        .expect("the tests may trace a child of their own");
    ptrace::interrupt(process).unwrap();
    let mut count = 0;
    let mut entering = true;
    let mut asked = false;
    loop {
        let signal = match waitpid(process, None).unwrap() {
            WaitStatus::PtraceSyscall(_) => {
                count += usize::from(entering);
                entering = !entering;
                None
            }
            WaitStatus::Stopped(_, signal) => Some(signal),
            WaitStatus::PtraceEvent(..) => None,
            other => panic!("{other:?}"),
        };
        if !std::mem::replace(&mut asked, true) {
            // From here on every call is one of this request.
            (count, entering) = (0, true);
            gate.go.send(()).unwrap();
        }
        let is_answered = !matches!(gate.answered.try_recv(), Err(TryRecvError::Empty));
        if is_answered || count == point {
            kill(process);
            return count;
        }
        ptrace::syscall(process, signal).unwrap();
    }
}

#[expect(clippy::disallowed_methods, reason = "the tests kill what they watch")]
fn kill(process: Pid) {
    nix::sys::signal::kill(process, Signal::SIGKILL).unwrap();
}

/// Every call of a request that has `count`, or so many of them, evenly spread.
fn points(count: usize) -> Vec<usize> {
    let wanted = std::env::var("MCP_RESTART_CRASH_POINTS").unwrap_or_default();
    let wanted = if wanted == "all" { count } else { wanted.parse().unwrap_or(POINTS) };
    (1..=wanted.min(count)).map(|index| index * count / wanted.min(count)).collect()
}

fn restart(id: &str) -> Request {
    Request::Restart(RestartRequest {
        path: "ctl_restart".to_owned(),
        name: Some("a".to_owned()),
        note: Some(format!("note of {id}")),
        resume: None,
        request_id: Some(id.to_owned()),
        wait: true,
        force: false,
    })
}

fn restarted(answer: Answer) -> RestartAnswer {
    match answer {
        Answer::Restarted(answer) => *answer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_restart_that_the_daemon_dies_in_is_done_once_whenever_it_dies() {
    let mut walk = Walk::new();
    let (count, answer) = walk.crash_at(&restart("whole"), usize::MAX);
    assert!(answer.is_some() && count > 20, "{count} calls, {answer:?}");
    walk.next_daemon();
    let mut generation = walk.agent().generation;
    assert_eq!(generation, 2);
    for point in points(count) {
        let id = format!("{point} of {count}");
        walk.crash_at(&restart(&id), point);
        walk.next_daemon();
        // Whoever does not know what became of it asks again, with the same id.
        let answer = restarted(walk.ask(&restart(&id)));
        generation += 1;
        assert_eq!(answer.generation, generation, "{id}");
        let view = walk.agent();
        assert_eq!(view.generation, generation, "{id}");
        walk.check_alone(&view);
        let exit = view.last_exit.unwrap();
        assert_eq!((exit.reason, exit.signal.as_deref()), (ExitReason::Restart, Some("SIGTERM")), "{id}");
        let handoff = walk.stack.json(&["handoff", "a"]);
        assert_eq!(handoff["notes"].as_array().unwrap().last().unwrap()["text"], format!("note of {id}"));
    }
}

#[test]
fn a_stop_that_the_daemon_dies_in_is_finished_whenever_it_dies() {
    let stop = Request::Stop { path: "ctl_stop".to_owned(), name: "a".to_owned(), wait: true };
    let mut walk = Walk::new();
    let (count, _) = walk.crash_at(&stop, usize::MAX);
    walk.next_daemon();
    for point in points(count) {
        walk.stack.ctl(&["start", "a"]).ok();
        let before = walk.agent();
        walk.crash_at(&stop, point);
        walk.next_daemon();
        // Stopped by then or not: whoever does not know asks again.
        walk.stack.ctl(&["stop", "a"]).ok();
        assert_eq!(marked(&format!("MARK={}", walk.mark)), [0; 0], "{point} of {count}");
        let view = walk.agent();
        assert_eq!((view.state, view.generation), (AgentState::Stopped, before.generation));
        assert_eq!(view.last_exit.unwrap().reason, ExitReason::Stop, "{point} of {count}");
    }
}

#[test]
fn a_self_restart_that_was_accepted_is_carried_out_by_the_next_daemon_with_its_note() {
    let mut entry = sleeper("a");
    entry["selfRestartDelayMs"] = json!(60_000);
    let stack = Stack::up(&json!([entry]));
    stack.ctl(&["start", "a"]).ok();
    let (token, _) = stack.wiring("a");
    let before = stack.agent("a");
    let arguments = json!({ "note": "go on with step 2", "requestId": "one" });
    let answer = stack.call(Some(&token), "restart_agent", &arguments);
    assert_eq!(answer["structuredContent"]["accepted"], true, "{answer}");
    assert_eq!(stack.agent("a").pid, before.pid);
    stack.kill_daemon();
    stack.ctl(&["up"]).ok();
    let view = stack.wait_for("a", |view| view.generation == 2 && view.state == AgentState::Running);
    assert_ne!(view.pid, before.pid);
    let handoff = stack.call(Some(&token), "get_handoff", &json!({}));
    assert_eq!(handoff["structuredContent"]["notes"][0]["text"], "go on with step 2", "{handoff}");
    let again = stack.call(Some(&token), "restart_agent", &arguments);
    assert_eq!(again["structuredContent"]["replayed"], true, "{again}");
    assert_eq!(stack.agent("a").pid, view.pid);
}

#[test]
fn a_restart_that_cannot_be_finished_leaves_the_old_process_and_says_so() {
    let mut entry = sleeper("a");
    entry["selfRestartDelayMs"] = json!(60_000);
    let stack = Stack::up(&json!([entry]));
    stack.ctl(&["start", "a"]).ok();
    let (token, _) = stack.wiring("a");
    let before = stack.agent("a");
    stack.call(Some(&token), "restart_agent", &json!({ "note": "never read" }));
    stack.kill_daemon();
    stack.write_config(&json!([{ "name": "a", "command": "no-such-program" }]));
    stack.ctl(&["up"]).ok();
    let status = stack.json(&["status"]);
    let told = status["recovered"][0]["text"].as_str().unwrap();
    assert!(told.starts_with("the restart of a, which the daemon before had begun, failed:"), "{status}");
    assert!(told.contains("no-such-program was not found"), "{status}");
    assert!(stack.ctl(&["status"]).ok().stderr.contains("no-such-program was not found"));
    let view = stack.agent("a");
    assert_eq!((view.pid, view.generation, view.state), (before.pid, 1, AgentState::Running));
    stack.write_config(&json!([sleeper("a")]));
    stack.ctl(&["restart", "a"]).ok();
    assert_eq!(stack.json(&["handoff", "a"])["notes"].as_array().unwrap().len(), 1);
    assert_eq!(stack.json(&["status"])["recovered"], json!([]), "what was told of is over");
}

#[test]
fn a_stop_is_finished_by_the_next_daemon_and_keeps_its_reason() {
    let stack = Stack::up(&json!([patient("a")]));
    let (ready, asked) = (stack.mailbox("ready"), stack.mailbox("asked"));
    let mut go = stack.pipe("go");
    stack.ctl(&["start", "a"]).ok();
    ready.next();
    stack.ctl(&["stop", "a", "--no-wait"]).ok();
    asked.next();
    stack.kill_daemon();
    stack.ctl(&["up"]).ok();
    stack.wait_for("a", |view| view.state == AgentState::Stopping);
    writeln!(go).unwrap();
    let view = stack.wait_for("a", |view| view.state == AgentState::Stopped);
    let exit = view.last_exit.unwrap();
    assert_eq!((exit.code, exit.reason), (Some(0), ExitReason::Stop));
}

#[test]
fn a_restart_is_finished_by_the_next_daemon_keeps_its_reason_and_is_no_cause_for_alarm() {
    let stack = Stack::up(&json!([patient("a"), sleeper("b")]));
    let (ready, asked) = (stack.mailbox("ready"), stack.mailbox("asked"));
    let mut go = stack.pipe("go");
    stack.ctl(&["start", "--all"]).ok();
    ready.next();
    stack.ctl(&["restart", "a", "--no-wait"]).ok();
    asked.next();
    stack.kill_daemon();
    stack.ctl(&["up"]).ok();
    stack.wait_for("a", |view| view.state == AgentState::Stopping);
    writeln!(go).unwrap();
    ready.next();
    let view = stack.wait_for("a", |view| view.state == AgentState::Running);
    let exit = view.last_exit.unwrap();
    assert_eq!((exit.code, exit.reason), (Some(0), ExitReason::Restart));
    let status = stack.ctl(&["status"]).ok();
    assert_eq!(status.stderr, "", "nothing needs attention");
    let row = |name: &str| status.stdout.lines().find(|line| line.starts_with(name)).map(str::to_owned);
    assert!(row("adopted").unwrap().ends_with(" b"), "{status:?}");
    let told = "the restart of a, which the daemon before had begun, is done";
    assert!(row("recovered").unwrap().ends_with(told), "{status:?}");
    stack.ctl(&["restart", "b"]).ok();
    signal(view.pid.unwrap(), rustix::process::Signal::KILL);
    stack.wait_for("a", |view| view.state == AgentState::Exited);
    let status = stack.json(&["status"]);
    assert_eq!((&status["adopted"], &status["recovered"]), (&json!([]), &json!([])), "all of it is over");
}

#[test]
fn a_lost_state_costs_no_agent_its_token() {
    let mut file = sleeper("file");
    file["env"] = json!({ "HIDDEN": "1" });
    file["args"] = json!(["-c", "exec env -i PATH=/usr/bin:/bin sleep 1000"]);
    let stack = Stack::up(&json!([sleeper("environment"), file]));
    stack.ctl(&["start", "--all"]).ok();
    let tokens = ["environment", "file"].map(|name| stack.wiring(name).0);
    stack.kill_daemon();
    fs::remove_file(stack.state_dir().join("state.json")).unwrap();
    fs::create_dir(stack.state_dir().join("state.json")).unwrap();
    stack.ctl(&["up"]).ok();
    assert!(stack.ctl(&["status"]).ok().stderr.contains("could not be used"));
    for (name, token) in ["environment", "file"].into_iter().zip(&tokens) {
        let status = stack.call(Some(token), "server_status", &json!({}));
        assert_eq!(status["structuredContent"]["caller"]["name"], name, "{status}");
    }
}

#[test]
fn a_shim_that_stands_still_holds_nobody_up_and_is_heard_when_it_goes_on() {
    let mut hasty = sleeper("a");
    hasty["gracefulTimeoutMs"] = json!(1);
    let stack = Stack::up(&json!([hasty, sleeper("b")]));
    stack.ctl(&["start", "--all"]).ok();
    let (a, b) = (stack.agent("a"), stack.agent("b"));
    let shim = parent_of(a.pid.unwrap());
    signal(shim, rustix::process::Signal::STOP);
    stack.kill_daemon();
    stack.ctl(&["up"]).ok();
    let identity = |view: &AgentView| (view.state, view.pid, view.generation, view.started_at);
    assert_eq!(identity(&stack.agent("a")), identity(&a));
    assert_eq!(identity(&stack.agent("b")), identity(&b));
    let told = stack.ctl(&["status"]).ok().stderr;
    assert!(told.contains(&format!("the shim of a (process {shim}) does not answer")), "{told}");
    stack.ctl(&["stop", "b"]).ok();
    let refused = stack.ctl(&["stop", "a"]).failed(1, &format!("its shim {shim} ("));
    assert!(refused.stderr.contains(&format!("`kill -CONT {shim}` lets it go on")), "{refused:?}");
    signal(shim, rustix::process::Signal::CONT);
    stack.wait_for("a", |view| view.state == AgentState::Stopped);
    wait_until_gone(shim);
}

#[test]
fn where_the_state_cannot_be_stored_agents_go_on_and_the_old_state_stands() {
    let stack = Stack::up(&json!([sleeper("a"), sleeper("b")]));
    stack.ctl(&["start", "a"]).ok();
    let file = stack.state_dir().join("state.json");
    let before = fs::read(&file).unwrap();
    let in_the_way = stack.state_dir().join(format!(".state.json.{}.draft", stack.daemon_pid()));
    fs::create_dir(&in_the_way).unwrap();
    stack.ctl(&["start", "b"]).ok();
    stack.ctl(&["restart", "a"]).ok();
    stack.ctl(&["stop", "b"]).ok();
    assert_eq!(stack.agent("a").generation, 2);
    let status = stack.ctl(&["status"]).ok().stderr;
    assert!(status.contains("state cannot be stored") && status.contains("state.json: "), "{status}");
    assert_eq!(fs::read(&file).unwrap(), before);
    fs::remove_dir(&in_the_way).unwrap();
    stack.ctl(&["start", "b"]).ok();
    assert_eq!(stack.ctl(&["status"]).ok().stderr, "");
    stack.kill_daemon();
    stack.ctl(&["up"]).ok();
    assert_eq!((stack.agent("a").generation, stack.agent("b").generation), (2, 2));
}

#[test]
fn a_daemon_that_finds_its_config_broken_keeps_what_lives_and_starts_nothing() {
    let mut entry = sleeper("a");
    entry["command"] = json!("./agent");
    let stack = Stack::up(&json!([entry, sleeper("b")]));
    fs::write(stack.path().join("agent"), "#!/bin/sh\nexec sleep 1000\n").unwrap();
    fs::set_permissions(stack.path().join("agent"), Permissions::from_mode(0o755)).unwrap();
    stack.ctl(&["start", "a"]).ok();
    let pid = stack.agent("a").pid;
    stack.kill_daemon();
    let good = fs::read_to_string(stack.config()).unwrap();
    fs::write(stack.config(), "{ \"agents\": [").unwrap();
    stack.ctl(&["up"]).ok();
    let status: Value = stack.json(&["status"]);
    assert!(status["configError"].as_str().unwrap().contains("mcp-restart.config.json:1:"), "{status}");
    assert_eq!(status["agents"].as_array().unwrap().len(), 2);
    let view = stack.agent("a");
    assert_eq!((view.pid, view.config_changed), (pid, false), "relative paths mean what they meant");
    stack.ctl(&["start", "b"]).failed(6, "cannot be used");
    stack.ctl(&["restart", "a"]).failed(6, "cannot be used");
    assert_eq!(stack.agent("a").pid, pid);
    fs::write(stack.config(), good).unwrap();
    stack.ctl(&["restart", "a"]).ok();
    stack.ctl(&["start", "b"]).ok();
    assert_eq!(stack.json(&["status"])["configError"], Value::Null);
}
