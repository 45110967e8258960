//! The MCP endpoint under load: programs that end and are replaced behind it, clients that leave, and more of them than
//! there is room for.

use crate::mcp::{JSON, LIST, bridge, host, url};
use crate::support::{Stack, descriptors, look_until, signal, sleeper, wait_until_gone};
use mcp_restart_protocol::agent::AgentState;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many clients leave in the middle of their call, one after the other.
const LEAVING: u64 = 100;

/// A client that keeps its connection for as long as the endpoint does.
struct Kept {
    host: String,
    stream: Option<BufReader<TcpStream>>,
}

impl Kept {
    /// Calls `list_agents`; whatever goes wrong is a panic.
    fn call(&mut self) {
        let length = LIST.len();
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\n{JSON}Content-Length: {length}\r\n\r\n{LIST}",
            self.host
        );
        let stream =
            self.stream.get_or_insert_with(|| BufReader::new(TcpStream::connect(&self.host).unwrap()));
        stream.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut length, mut closes) = (0, false);
        loop {
            let mut line = String::new();
            assert_ne!(stream.read_line(&mut line).unwrap(), 0, "the connection ended before the answer");
            let line = line.trim_end().to_ascii_lowercase();
            match line.split_once(": ") {
                Some(("content-length", value)) => length = value.parse().unwrap(),
                Some(("connection", value)) => closes = value == "close",
                None if line.is_empty() => break,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        assert!(answer["result"]["structuredContent"]["agents"].is_array(), "{answer}");
        if closes {
            self.stream = None;
        }
    }
}

/// Has two clients call all the time while `happening` happens.
fn meanwhile(stack: &Stack, happening: impl FnOnce()) {
    let host = host(&url(stack)).to_owned();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                let mut client = Kept { host: host.clone(), stream: None };
                let ended = &ended;
                scope.spawn(move || {
                    while !ended.load(Ordering::Relaxed) {
                        client.call();
                    }
                })
            })
            .collect();
        happening();
        // Whoever serves now does.
        Kept { host: host.clone(), stream: None }.call();
        ended.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
    });
}

#[test]
fn no_call_fails_while_bridges_are_told_to_end_and_replaced() {
    let stack = Stack::up(&json!([]));
    meanwhile(&stack, || {
        for _ in 0..3 {
            let old = bridge(&stack);
            signal(old, Signal::TERM);
            wait_until_gone(old);
            // Answered by the next one.
            Kept { host: host(&url(&stack)).to_owned(), stream: None }.call();
        }
    });
}

#[test]
fn no_call_fails_while_the_daemon_is_upgraded_or_dies_and_is_started_again() {
    let stack = Stack::up(&json!([]));
    meanwhile(&stack, || {
        stack.ctl(&["upgrade"]).ok();
        stack.kill_daemon();
        stack.ctl(&["up"]).ok();
    });
}

#[test]
fn clients_that_leave_in_the_middle_of_their_call_get_it_carried_out_and_leave_nothing_behind() {
    let stack = Stack::up(&json!([sleeper("a"), sleeper("b")]));
    stack.ctl(&["start", "b"]).ok();
    let (servers, here) = ([stack.daemon_pid(), bridge(&stack)], host(&url(&stack)).to_owned());
    // Without it nobody could tell whose a connection was that is gone.
    let (token, _) = stack.wiring("b");
    let params = json!({ "name": "restart_agent", "arguments": { "name": "a" } });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
    let length = body.len();
    let leave = |generation| {
        let mut client = TcpStream::connect(&here).unwrap();
        write!(
            client,
            "POST /mcp HTTP/1.1\r\nHost: {here}\r\nAuthorization: Bearer {token}\r\n{JSON}Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        drop(client);
        stack.wait_for("a", |view| view.generation == generation && view.state == AgentState::Running);
    };
    leave(1);
    let before = servers.map(descriptors);
    (2..=LEAVING).for_each(leave);
    for (pid, before) in servers.into_iter().zip(before) {
        look_until(|| descriptors(pid), |after| *after <= before + 2);
    }
}

#[test]
fn a_bridge_without_descriptors_to_spare_serves_in_the_place_of_the_silent() {
    let stack = Stack::up(&json!([]));
    let (bridge, here) = (bridge(&stack), host(&url(&stack)).to_owned());
    let spare = 8;
    let limit = u64::try_from(descriptors(bridge) + spare).unwrap();
    let pid = Pid::from_raw(i32::try_from(bridge).unwrap());
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(limit), maximum: Some(limit) }).unwrap();
    let silent: Vec<TcpStream> = (0..3 * spare).map(|_| TcpStream::connect(&here).unwrap()).collect();
    for _ in 0..3 {
        Kept { host: here.clone(), stream: None }.call();
    }
    drop(silent);
}

#[test]
fn hundreds_of_clients_that_never_finish_a_request_keep_nobody_out() {
    let stack = Stack::up(&json!([]));
    let host = host(&url(&stack)).to_owned();
    let memory = || {
        let status = fs::read_to_string(format!("/proc/{}/status", bridge(&stack))).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let mut kept = Kept { host: host.clone(), stream: None };
    kept.call();
    // Some stay and some are gone at once, and all of them have promised more than they sent.
    let mut slow = VecDeque::new();
    let mut come = |count: usize| {
        for _ in 0..count {
            let mut client = TcpStream::connect(&host).unwrap();
            let _ = write!(client, "POST /mcp HTTP/1.1\r\nHost: {host}\r\nX: ");
            slow.push_back(client);
            if slow.len() > 600 {
                slow.pop_front();
            }
        }
        kept.call();
        Kept { host: host.clone(), stream: None }.call();
        memory()
    };
    // What the allocator holds varies and comes to an end; a connection that is leaked, of 16 KiB at the least, comes again
    // with every client.
    let held: Vec<u64> = (0..4).map(|_| come(1_000)).collect();
    let least = held.windows(2).map(|two| two[1].saturating_sub(two[0])).min().unwrap();
    assert!(least < 4 * 1024, "the bridge holds {held:?} KiB");
}
