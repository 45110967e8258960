//! Too many, too much, all at once: what a daemon bears, and who pays for it.

use crate::support::{
    Daemon, LIMIT, Stack, bare_command, block_on, descriptors, lives, look_until, marked, new_mark, patient,
    shell, skip, sleeper,
};
use mcp_restart_protocol::agent::AgentState;
use mcp_restart_protocol::answer::{ErrorCode, Failure, ServerBody, ServerFrame};
use mcp_restart_protocol::client::{Client, ClientError};
use mcp_restart_protocol::codec::{take_frame, to_frame};
use mcp_restart_protocol::hello::{HELLO_LEN, Hello, Verb};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::request::{ClientFrame, Credential, Request, RestartRequest};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use serde_json::json;
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
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
    Request::Start { path: RestartPath::CtlStart.id().to_owned(), name: name.to_owned(), force: false, wait }
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
    let mark = new_mark();
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

/// Connects, and says all that it has to say at once. None where nobody listens any more.
fn ask_in_one_breath(socket: &Path, request: Request) -> Option<io::Result<ServerBody>> {
    let mut stream = UnixStream::connect(socket).ok()?;
    let asked = || {
        let frame = ClientFrame { id: 1, credential: Credential::Peer, allows_stale: false, request };
        let hello = Hello::ours(Verb::Talk).to_bytes();
        let said = [&hello[..], &to_frame(&frame).unwrap()].concat();
        stream.write_all(&said)?;
        let mut answer = vec![0; HELLO_LEN];
        stream.read_exact(&mut answer)?;
        answer.clear();
        loop {
            if let Some(ServerFrame { body, .. }) = take_frame(&mut answer).map_err(io::Error::other)? {
                return Ok(body);
            }
            let mut piece = [0; 4096];
            match stream.read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => answer.extend_from_slice(&piece[..length]),
            }
        }
    };
    Some(asked())
}

#[test]
fn whoever_comes_before_the_end_is_told_of_it() {
    let stack = Stack::up(&json!([patient("a"), sleeper("b")]));
    let (ready, asked) = (stack.mailbox("ready"), stack.mailbox("asked"));
    let mut go = stack.pipe("go");
    stack.ctl(&["start", "a"]).ok();
    ready.next();
    let socket = stack.state_dir().join("mcp-restartd.sock");
    // All of them have had an answer before the end comes.
    let (had_one, answered) = mpsc::channel();
    std::thread::scope(|scope| {
        let down = scope.spawn(|| stack.ctl(&["down"]));
        asked.next();
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let (socket, had_one) = (&socket, had_one.clone());
                scope.spawn(move || {
                    let mut refused = 0;
                    while let Some(answer) = ask_in_one_breath(socket, start("b", true)) {
                        match answer {
                            Ok(ServerBody::Failed(Failure { code: ErrorCode::ShuttingDown, .. })) => {
                                refused += 1;
                                if refused == 1 {
                                    had_one.send(()).unwrap();
                                }
                            }
                            other => panic!("after {refused}: {other:?}"),
                        }
                    }
                    refused
                })
            })
            .collect();
        (0..4).for_each(|_| answered.recv_timeout(LIMIT).unwrap());
        writeln!(go).unwrap();
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
        down.join().unwrap().ok();
    });
}

#[test]
fn clients_that_leave_right_after_their_request_cost_nothing() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    let socket = stack.state_dir().join("mcp-restartd.sock");
    let daemon = stack.daemon_pid();
    let before = descriptors(daemon);
    for _ in 0..100 {
        block_on(async {
            let mut client = Client::connect(&socket, Credential::Peer).await.unwrap();
            client.send(restart("a", true)).await.unwrap();
        });
    }
    ask(&socket, restart("a", true)).unwrap();
    let view = stack.wait_for("a", |view| view.state == AgentState::Running);
    assert!(view.generation > 1);
    look_until(|| descriptors(daemon), |now| *now <= before + 2);
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
    let descriptors = descriptors(stack.daemon_pid());
    assert!(descriptors < 200, "{descriptors} descriptors for {} connections", silent.len());
}

/// A daemon that may have so many descriptors.
fn daemon_with_descriptors(stack: &Stack, descriptors: u32) -> Daemon {
    let plain = stack.command(env!("CARGO_BIN_EXE_mcp-restartd"));
    let mut limited = bare_command("bash");
    limited.args(["-c", &format!("ulimit -n {descriptors}; exec \"$@\""), "-"]);
    limited.arg(plain.get_program()).args(plain.get_args());
    limited.current_dir(stack.path()).env("HOME", stack.path());
    let daemon = Daemon::started(limited);
    daemon.line("the endpoint is served").unwrap();
    daemon
}

/// The processes of the agents that run.
fn running(stack: &Stack) -> Vec<u32> {
    let list = stack.json(&["list"]);
    let pids = list["agents"].as_array().unwrap().iter().filter_map(|agent| agent["pid"].as_u64());
    pids.map(|pid| u32::try_from(pid).unwrap()).collect()
}

#[test]
fn a_daemon_that_runs_out_of_descriptors_says_so_and_keeps_what_runs() {
    let names: Vec<_> = (0..40).map(|index| format!("a{index}")).collect();
    let stack = Stack::new(&json!(names.iter().map(|name| sleeper(name)).collect::<Vec<_>>()));
    let _daemon = daemon_with_descriptors(&stack, 48);
    let run = stack.ctl(&["start", "--all"]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("Too many open files"), "{run:?}");
    let before = running(&stack);
    assert!(!before.is_empty() && before.len() < names.len(), "{}", before.len());
    assert!(before.iter().all(|pid| lives(*pid)));
    stack.ctl(&["stop", "--all"]).ok();
    assert!(!before.iter().any(|pid| lives(*pid)));
    stack.ctl(&["start", "a39"]).ok();
    stack.ctl(&["restart", "a39"]).ok();
}

#[test]
fn a_daemon_with_fewer_descriptors_than_agents_can_be_asked_and_stops_them_all() {
    let names: Vec<_> = (0..60).map(|index| format!("a{index}")).collect();
    let stack = Stack::up(&json!(names.iter().map(|name| sleeper(name)).collect::<Vec<_>>()));
    stack.ctl(&["start", "--all"]).ok();
    let before = running(&stack);
    stack.kill_daemon();
    let _daemon = daemon_with_descriptors(&stack, 48);
    assert_eq!(running(&stack), before);
    assert_eq!(before.len(), names.len());
    stack.ctl(&["stop", "--all"]).ok();
    assert!(!before.iter().any(|pid| lives(*pid)));
}

/// Sets how many descriptors a process may have, from now on and for the whole of it.
fn limit_descriptors(pid: u32, descriptors: u64) -> bool {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap());
    let limit = Rlimit { current: Some(descriptors), maximum: Some(descriptors) };
    prlimit(pid, Resource::Nofile, limit).is_ok()
}

/// A connection that has been greeted and says nothing.
fn idle_connection(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(&Hello::ours(Verb::Talk).to_bytes()).unwrap();
    stream.read_exact(&mut [0; HELLO_LEN]).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

#[test]
fn without_a_descriptor_for_a_newcomer_the_oldest_idle_connection_goes() {
    let stack = Stack::up(&json!([]));
    let socket = stack.state_dir().join("mcp-restartd.sock");
    let daemon = stack.daemon_pid();
    let mut idle: Vec<_> = (0..6).map(|_| idle_connection(&socket)).collect();
    let open = fs::read_dir(format!("/proc/{daemon}/fd")).unwrap();
    let highest = open.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u64>().ok()).max();
    assert!(limit_descriptors(daemon, highest.unwrap() + 1));
    let begin = Instant::now();
    // The first may find a descriptor that was free below the limit.
    let more: Vec<_> = (0..2).map(|_| idle_connection(&socket)).collect();
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(idle[0].read(&mut [0]).unwrap(), 0, "the oldest is closed");
    let newest = idle.last_mut().unwrap();
    newest.set_nonblocking(true).unwrap();
    assert_eq!(newest.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop((idle, more));
}

#[test]
fn another_user_is_refused_at_once_and_holds_nobody_up() {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        return skip("only root can be another user");
    }
    let stack = Stack::up(&json!([]));
    let socket = stack.state_dir().join("mcp-restartd.sock");
    for (path, mode) in [(stack.path(), 0o711), (&stack.state_dir(), 0o711), (&socket, 0o777)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let script = "import socket, sys\n\
        for attempt in range(200):\n\
        \x20   s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.settimeout(10)\n\
        \x20   try: assert s.recv(1) == b''\n\
        \x20   except ConnectionResetError: pass\n";
    let mut stranger = bare_command("python3");
    stranger.uid(NOBODY).gid(NOBODY).current_dir("/").args(["-c", script]).arg(&socket);
    let begin = Instant::now();
    let mut stranger = stranger.spawn().unwrap();
    let asked = Instant::now();
    ask(&socket, Request::Status).unwrap();
    assert!(asked.elapsed() < Duration::from_millis(200), "{:?}", asked.elapsed());
    assert!(stranger.wait().unwrap().success(), "a stranger is served");
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    fs::set_permissions(stack.state_dir(), Permissions::from_mode(0o700)).unwrap();
}
