//! Too many, too much, all at once: what a daemon bears, and who pays for it.

use crate::support::{Daemon, Stack, bare_command, block_on, lives, marked, shell, sleeper};
use mcp_restart_protocol::agent::AgentState;
use mcp_restart_protocol::answer::ErrorCode;
use mcp_restart_protocol::client::{Client, ClientError};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::request::{Credential, Request, RestartRequest};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn restart(name: &str, wait: bool) -> Request {
    Request::Restart(RestartRequest {
        path: RestartPath::CtlRestart.id().to_owned(),
        name: Some(name.to_owned()),
        note: None,
        resume: None,
        request_id: None,
        force: false,
        wait,
    })
}

fn start(name: &str, wait: bool) -> Request {
    Request::Start { path: RestartPath::CtlStart.id().to_owned(), name: name.to_owned(), wait }
}

fn stop(name: &str, wait: bool) -> Request {
    Request::Stop { path: RestartPath::CtlStop.id().to_owned(), name: name.to_owned(), wait }
}

/// What became of one request on a connection of its own: done, refused, or nobody there.
fn ask(socket: &Path, request: Request) -> Result<(), Option<ErrorCode>> {
    block_on(async {
        let mut client = Client::connect(socket, Credential::Peer).await.map_err(|_| None)?;
        match client.ask(request).await {
            Ok(_) => Ok(()),
            Err(ClientError::Refused(failure)) => Err(Some(failure.code)),
            Err(_) => Err(None),
        }
    })
}

#[test]
fn a_storm_of_requests_edits_and_an_end_in_the_middle_never_make_two_processes() {
    let mark = format!("storm-{}", std::process::id());
    let entry = |name: &str, round: usize| {
        let script = format!("exec 9>{name}.alone; flock -n 9 || echo > two; exec sleep 1000");
        let mut entry = shell(name, &script);
        entry["env"] = json!({ "MARK": mark, "ROUND": round.to_string() });
        entry
    };
    let config = |round| json!([entry("a", round), entry("b", round)]);
    let stack = Stack::up(&config(0));
    let socket = stack.state_dir().join("mcp-restartd.sock");
    let ending = AtomicBool::new(false);
    let storm = |seed: usize| {
        for round in 0..40 {
            let name = if (seed + round).is_multiple_of(3) { "b" } else { "a" };
            let wait = !(seed * 7 + round).is_multiple_of(4);
            let request = match (seed * 5 + round * 3) % 7 {
                0 | 1 => start(name, wait),
                2 | 3 => stop(name, wait),
                _ => restart(name, wait),
            };
            match ask(&socket, request) {
                Ok(())
                | Err(Some(ErrorCode::AlreadyRunning | ErrorCode::NotRunning | ErrorCode::Superseded)) => {}
                Err(None | Some(ErrorCode::ShuttingDown)) if ending.load(Ordering::SeqCst) => {}
                Err(code) => panic!("round {round} of {seed}: {code:?}"),
            }
        }
    };
    std::thread::scope(|scope| {
        let storms: Vec<_> = (0..6).map(|seed| scope.spawn(move || storm(seed))).collect();
        for round in 1..20 {
            let next = stack.path().join("next.json");
            fs::write(&next, json!({ "port": 0, "agents": config(round) }).to_string()).unwrap();
            fs::rename(next, stack.config()).unwrap();
            stack.wait_for("a", |_| true);
        }
        ending.store(true, Ordering::SeqCst);
        stack.ctl(&["down"]).ok();
        assert_eq!(marked(&format!("MARK={mark}")), [0; 0]);
        for storm in storms {
            storm.join().unwrap();
        }
    });
    assert!(!stack.path().join("two").exists(), "two processes at once");
}

#[test]
fn clients_that_leave_right_after_their_request_cost_nothing() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    let socket = stack.state_dir().join("mcp-restartd.sock");
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", stack.daemon_pid())).unwrap().count();
    let before = descriptors();
    for _ in 0..100 {
        block_on(async {
            let mut client = Client::connect(&socket, Credential::Peer).await.unwrap();
            client.send(restart("a", true)).await.unwrap();
        });
    }
    ask(&socket, restart("a", true)).unwrap();
    let view = stack.wait_for("a", |view| view.state == AgentState::Running);
    assert!(view.generation > 1);
    // The shim before the last may be about to end.
    assert!(descriptors() <= before + 3, "{} after {before}", descriptors());
}

#[test]
fn a_thousand_connections_of_one_program_keep_nobody_out() {
    let stack = Stack::up(&json!([]));
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let socket = stack.state_dir().join("mcp-restartd.sock");
    let silent: Vec<_> = (0..1000).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    for _ in 0..5 {
        let begin = Instant::now();
        stack.ctl(&["status"]).ok();
        assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    }
    let descriptors = fs::read_dir(format!("/proc/{}/fd", stack.daemon_pid())).unwrap().count();
    assert!(descriptors < 200, "{descriptors} descriptors for {} connections", silent.len());
}

#[test]
fn a_daemon_that_runs_out_of_descriptors_says_so_and_keeps_what_runs() {
    let names: Vec<_> = (0..40).map(|index| format!("a{index}")).collect();
    let stack = Stack::new(&json!(names.iter().map(|name| sleeper(name)).collect::<Vec<_>>()));
    let plain = stack.command(env!("CARGO_BIN_EXE_mcp-restartd"));
    let mut limited = bare_command("bash");
    limited.args(["-c", "ulimit -n 48; exec \"$@\"", "-"]).arg(plain.get_program()).args(plain.get_args());
    limited.current_dir(stack.path()).env("HOME", stack.path());
    let daemon = Daemon::started(limited);
    daemon.line("the endpoint is served").unwrap();
    let run = stack.ctl(&["start", "--all"]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("Too many open files"), "{run:?}");
    let running = || {
        let list = stack.json(&["list"]);
        let pids = list["agents"].as_array().unwrap().iter().filter_map(|agent| agent["pid"].as_u64());
        pids.map(|pid| u32::try_from(pid).unwrap()).collect::<Vec<_>>()
    };
    let before = running();
    assert!(!before.is_empty() && before.len() < names.len(), "{}", before.len());
    assert!(before.iter().all(|pid| lives(*pid)));
    stack.ctl(&["stop", "--all"]).ok();
    assert!(!before.iter().any(|pid| lives(*pid)));
    stack.ctl(&["start", "a39"]).ok();
    stack.ctl(&["restart", "a39"]).ok();
}
