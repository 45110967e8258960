//! The life of the daemon: one per state dir, what it leaves when it dies, how it ends.

use crate::support::{
    Daemon, Run, Stack, descriptors, lives, look_until, marked, new_mark, parent_of, shell, signal, sleeper,
    wait_until_gone,
};
use mcp_restart_protocol::agent::{AgentState, ExitReason};
use mcp_restart_protocol::hello::{Hello, Verb};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The entry, with an assignment by which its processes are found.
fn with_mark(mut entry: Value, mark: &str) -> Value {
    entry["env"] = json!({ "MARK": mark });
    entry
}

fn with_autostart(mut entry: Value) -> Value {
    entry["autostart"] = json!(true);
    entry
}

fn daemon(stack: &Stack) -> Run {
    Run::of(stack.command(env!("CARGO_BIN_EXE_mcp-restartd")).output().unwrap())
}

#[test]
fn a_second_daemon_names_the_first_and_ends() {
    let stack = Stack::up(&json!([]));
    let pid = stack.daemon_pid();
    daemon(&stack).failed(1, &format!("another daemon (pid {pid}) serves"));
    assert_eq!(stack.daemon_pid(), pid);
}

#[test]
fn of_twenty_daemons_at_once_one_serves_and_the_others_name_it() {
    let stack = Stack::new(&json!([]));
    let daemons: Vec<_> = (0..20).map(|_| Daemon::of(&stack)).collect();
    let told = daemons.into_iter().map(|daemon| {
        let words = daemon.line("serv").unwrap();
        (daemon, words)
    });
    let (mut serving, refused): (Vec<_>, Vec<_>) = told.partition(|(_, words)| words.contains(": serving "));
    let (first, _) = serving.pop().unwrap();
    assert_eq!((serving.len(), refused.len()), (0, 19));
    for (daemon, words) in refused {
        assert!(words.contains(&format!("(pid {})", first.pid())), "{words}");
        assert_eq!(daemon.end().code(), Some(1));
    }
    assert_eq!(stack.daemon_pid(), first.pid());
}

#[test]
fn a_daemon_that_is_killed_takes_no_agent_with_it_and_the_next_one_has_them_all() {
    let mark = new_mark();
    let names = ["a", "b", "c"];
    let stack = Stack::up(&json!(names.map(|name| with_mark(sleeper(name), &mark))));
    stack.ctl(&["start", "--all"]).ok();
    let identities = || {
        names.map(|name| {
            let view = stack.agent(name);
            (view.state, view.pid, view.generation, view.started_at)
        })
    };
    let before = identities();
    stack.kill_daemon();
    stack.ctl(&["up"]).ok();
    assert_eq!(identities(), before);
    assert_eq!(marked(&format!("MARK={mark}")).len(), names.len());
    assert_eq!(stack.json(&["restart", "a"])["previous"]["pid"], json!(before[0].1));
    stack.ctl(&["stop", "--all"]).ok();
    assert_eq!(marked(&format!("MARK={mark}")), [0; 0]);
    let exit = stack.agent("b").last_exit.unwrap();
    assert_eq!((exit.signal.as_deref(), exit.reason), (Some("SIGTERM"), ExitReason::Stop));
    stack.ctl(&["start", "b"]).ok();
    assert_eq!(stack.agent("b").generation, 2);
}

#[test]
fn an_agent_that_ends_between_two_daemons_keeps_its_exit_status() {
    let stack = Stack::up(&json!([shell("a", "echo > ready; read word < go; exit 7")]));
    let (ready, mut go) = (stack.mailbox("ready"), stack.pipe("go"));
    stack.ctl(&["start", "a"]).ok();
    ready.next();
    let pid = stack.agent("a").pid.unwrap();
    stack.kill_daemon();
    writeln!(go).unwrap();
    wait_until_gone(pid);
    stack.ctl(&["up"]).ok();
    let view = stack.wait_for("a", |view| view.state != AgentState::Running);
    let exit = view.last_exit.unwrap();
    assert_eq!(view.state, AgentState::Exited);
    assert_eq!((exit.code, exit.reason, exit.leftovers), (Some(7), ExitReason::Exited, 0));
    stack.ctl(&["start", "a", "--no-wait"]).ok();
    stack.wait_for("a", |view| view.state == AgentState::Running && view.generation == 2);
}

#[test]
fn autostart_is_for_a_clean_start_alone() {
    let agents = json!(["a", "b"].map(|name| with_autostart(sleeper(name))));
    let stack = Stack::up(&agents);
    let a = stack.wait_for("a", |view| view.state == AgentState::Running);
    stack.wait_for("b", |view| view.state == AgentState::Running);
    stack.ctl(&["stop", "b"]).ok();
    stack.kill_daemon();
    stack.ctl(&["up"]).ok();
    // A request that came after the endpoint was there is answered after what autostart does.
    assert_eq!(stack.agent("a").pid, a.pid);
    let b = stack.agent("b");
    assert_eq!((b.state, b.generation), (AgentState::Stopped, 1));
    stack.ctl(&["down"]).ok();
    assert!(!lives(a.pid.unwrap()));
    stack.ctl(&["up"]).ok();
    for name in ["a", "b"] {
        stack.wait_for(name, |view| view.state == AgentState::Running && view.generation == 2);
    }
}

#[test]
fn a_stranger_with_the_number_of_an_agent_is_never_touched() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    let pid = stack.agent("a").pid.unwrap();
    let shim = parent_of(pid);
    stack.kill_daemon();
    signal(shim, Signal::KILL);
    // On the portable path nothing ends an agent with its shim: it runs on until the next daemon ends it.
    if !cfg!(feature = "portable") {
        wait_until_gone(pid);
    }
    let mut stranger = crate::support::bare_command("sleep").arg("1000").spawn().unwrap();
    let facts = fs::read_dir(stack.state_dir().join("run")).unwrap().map(|entry| entry.unwrap().path());
    let facts = facts.into_iter().find(|path| path.extension().is_some_and(|is| is == "json")).unwrap();
    let mut told: Value = serde_json::from_str(&fs::read_to_string(&facts).unwrap()).unwrap();
    for process in ["shim", "agent"] {
        told[process]["pid"] = json!(stranger.id());
    }
    fs::write(facts, told.to_string()).unwrap();
    stack.ctl(&["up"]).ok();
    wait_until_gone(pid);
    let view = stack.agent("a");
    assert_eq!((view.state, view.last_exit.unwrap().reason), (AgentState::Exited, ExitReason::Lost));
    assert!(stack.ctl(&["stop", "a"]).ok().stdout.contains("not running"));
    stack.ctl(&["restart", "a"]).ok();
    stack.ctl(&["down"]).ok();
    assert!(lives(stranger.id()));
    signal(stranger.id(), Signal::KILL);
    stranger.wait().unwrap();
}

#[test]
fn a_state_that_cannot_be_read_is_set_aside_and_costs_no_agent() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["restart", "a"]).ok();
    stack.ctl(&["restart", "a"]).ok();
    let pid = stack.agent("a").pid;
    for (index, torn) in ["", "{\"version\":1,", "[]", "{\"version\":99}"].into_iter().enumerate() {
        stack.kill_daemon();
        fs::write(stack.state_dir().join("state.json"), torn).unwrap();
        stack.ctl(&["up"]).ok();
        let view = stack.agent("a");
        assert_eq!((view.pid, view.generation), (pid, 2), "{torn:?}");
        let names = fs::read_dir(stack.state_dir()).unwrap().map(|entry| entry.unwrap().file_name());
        let aside = names.filter(|name| name.to_string_lossy().starts_with("state.json.corrupt-"));
        assert_eq!(aside.count(), index + 1, "{torn:?}");
    }
}

#[test]
fn an_agent_does_not_notice_that_its_daemon_stands_still() {
    let mut entry =
        shell("a", "read word < go; head -c 8000000 /dev/zero | tr '\\0' x; echo > done; exec sleep 1000");
    entry["logMaxBytes"] = json!(20_000_000);
    let stack = Stack::up(&json!([entry]));
    let (done, mut go) = (stack.mailbox("done"), stack.pipe("go"));
    stack.ctl(&["start", "a"]).ok();
    let daemon = stack.daemon_pid();
    signal(daemon, Signal::STOP);
    writeln!(go).unwrap();
    done.next();
    signal(daemon, Signal::CONT);
    stack.ctl(&["stop", "a"]).ok();
    let log = fs::read_to_string(stack.agent("a").log_file).unwrap();
    assert_eq!(log.matches('x').count(), 8_000_000);
}

#[test]
fn ten_agents_that_need_a_moment_are_stopped_at_the_same_time() {
    let script = "trap 'sleep 0.3; exit 0' TERM; sleep 1000 & echo > ready; wait";
    let names: Vec<_> = (0..10).map(|index| format!("a{index}")).collect();
    let agents: Vec<_> = names.iter().map(|name| with_autostart(shell(name, script))).collect();
    let stack = Stack::new(&json!(agents));
    let ready = stack.mailbox("ready");
    let daemon = Daemon::of(&stack);
    for _ in &names {
        ready.next();
    }
    let begin = Instant::now();
    signal(daemon.pid(), Signal::TERM);
    assert_eq!(daemon.end().code(), Some(0));
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(2), "one after the other: {took:?}");
    assert!(!stack.state_dir().join("mcp-restartd.sock").exists());
    stack.write_config(&json!(names.iter().map(|name| sleeper(name)).collect::<Vec<_>>()));
    stack.ctl(&["up"]).ok();
    for name in names {
        let exit = stack.agent(&name).last_exit.unwrap();
        assert_eq!((exit.code, exit.reason, exit.forced), (Some(0), ExitReason::Shutdown, false));
    }
}

#[test]
fn a_daemon_that_is_told_to_end_in_the_middle_of_a_launch_leaves_nothing() {
    let mark = new_mark();
    for moment in [": serving ", "the endpoint is served", "state=Stopped", "state=Running"] {
        let agents = ["a", "b", "c"].map(|name| with_autostart(with_mark(sleeper(name), &mark)));
        let stack = Stack::new(&json!(agents));
        let daemon = Daemon::of(&stack);
        daemon.line(moment).unwrap();
        signal(daemon.pid(), Signal::TERM);
        assert_eq!(daemon.end().code(), Some(0), "{moment}");
        assert_eq!(marked(&format!("MARK={mark}")), [0; 0], "{moment}");
        assert!(!stack.state_dir().join("mcp-restartd.sock").exists());
    }
}

#[test]
fn a_second_signal_skips_the_grace_period() {
    let script = "trap 'echo > asked; sleep 1000' TERM; sleep 1000 & echo > ready; wait";
    let mut entry = with_autostart(shell("a", script));
    entry["gracefulTimeoutMs"] = json!(60_000);
    let stack = Stack::new(&json!([entry]));
    let (ready, asked) = (stack.mailbox("ready"), stack.mailbox("asked"));
    let daemon = Daemon::of(&stack);
    ready.next();
    signal(daemon.pid(), Signal::TERM);
    asked.next();
    signal(daemon.pid(), Signal::INT);
    assert_eq!(daemon.end().code(), Some(0));
}

#[test]
fn a_config_that_cannot_be_used_is_no_start() {
    let stack = Stack::new(&json!([]));
    for (text, place) in [
        ("{\n  \"agents\": [", "mcp-restart.config.json:2:"),
        ("{ \"prot\": 1 }", "did you mean port?"),
        ("<<<<<<< ours\n{}\n", "conflict"),
    ] {
        fs::write(stack.config(), text).unwrap();
        daemon(&stack).failed(6, place);
        stack.ctl(&["up"]).failed(6, place);
    }
    fs::remove_file(stack.config()).unwrap();
    daemon(&stack).failed(6, "mcp-restartctl init");
    stack.ctl(&["up"]).failed(6, "mcp-restartctl init");
    assert!(!stack.state_dir().join("mcp-restartd.sock").exists());
}

#[test]
fn what_others_may_write_is_refused() {
    let stack = Stack::new(&json!([]));
    let allow = |path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    allow(stack.config(), 0o666);
    daemon(&stack).failed(6, "chmod go-w");
    stack.ctl(&["config", "check"]).failed(6, "chmod go-w");
    allow(stack.config(), 0o644);
    fs::create_dir(stack.state_dir()).unwrap();
    allow(stack.state_dir(), 0o770);
    daemon(&stack).failed(1, "others can write to the folder");
    stack.ctl(&["up"]).failed(1, "others can write to the folder");
    allow(stack.state_dir(), 0o755);
    stack.ctl(&["up"]).ok();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(stack.state_dir()), 0o700);
    assert_eq!(mode(stack.state_dir().join("mcp-restartd.sock")), 0o600);
}

#[test]
fn silent_clients_and_garbage_hold_nobody_up() {
    let stack = Stack::up(&json!([]));
    let url = stack.json(&["status"])["url"].as_str().unwrap().to_owned();
    let endpoint = url.trim_start_matches("http://").trim_end_matches("/mcp");
    let connect = || UnixStream::connect(stack.state_dir().join("mcp-restartd.sock")).unwrap();
    let _silent: Vec<_> = (0..50).map(|_| (connect(), TcpStream::connect(endpoint).unwrap())).collect();
    let mut half = connect();
    half.write_all(&Hello::ours(Verb::Talk).to_bytes()[..40]).unwrap();
    let mut endless = connect();
    endless.write_all(&Hello::ours(Verb::Talk).to_bytes()).unwrap();
    endless.write_all(&u32::MAX.to_le_bytes()).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..10_u8 {
            let garbage = vec![seed.wrapping_mul(29); 1024 * 1024];
            let (mut socket, mut tcp) = (connect(), TcpStream::connect(endpoint).unwrap());
            scope.spawn(move || {
                // Both may hang up on it.
                let _ = socket.write_all(&garbage);
                let _ = tcp.write_all(&garbage);
            });
        }
        for _ in 0..10 {
            let begin = Instant::now();
            stack.ctl(&["status"]).ok();
            stack.call(None, "list_agents", &json!({}));
            assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
        }
    });
}

#[test]
fn a_port_that_is_taken_is_told_with_its_owner() {
    let stack = Stack::new(&json!([]));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    fs::write(stack.config(), json!({ "port": port }).to_string()).unwrap();
    // The portable path does not look up whose a socket is.
    let owner = if cfg!(feature = "portable") {
        "somebody listens on".to_owned()
    } else {
        format!("(pid {})", std::process::id())
    };
    let run = stack.ctl(&["up"]).failed(1, &owner);
    assert!(run.stderr.contains(&port.to_string()), "{run:?}");
}

#[test]
fn a_hang_up_does_not_end_the_daemon() {
    let stack = Stack::new(&json!([]));
    let daemon = Daemon::of(&stack);
    daemon.line(": serving ").unwrap();
    signal(daemon.pid(), Signal::HUP);
    assert_eq!(stack.daemon_pid(), daemon.pid());
}

#[test]
fn restarts_and_clients_that_come_and_go_leave_the_daemon_as_it_was() {
    let stack = Stack::up(&json!([sleeper("a")]));
    let daemon = stack.daemon_pid();
    let children = || {
        let children = fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children")).unwrap();
        children.split_whitespace().count()
    };
    stack.ctl(&["restart", "a"]).ok();
    let before = (descriptors(daemon), children());
    for _ in 0..10 {
        stack.ctl(&["restart", "a", "--no-wait"]).ok();
        stack.call(None, "restart_agent", &json!({ "name": "a" }));
    }
    // Zombies are children too.
    let look = || (descriptors(daemon), children());
    look_until(look, |now| now.0 <= before.0 + 2 && now.1 <= before.1);
}
