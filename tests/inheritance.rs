//! What an agent is started with: nothing of whatever the daemon was started with.

use crate::support::{Daemon, LIMIT, Stack, bare_command, lines_of, shell, signal};
use mcp_restart_protocol::agent::AgentState;
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::pipe;
use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;

/// A daemon of the stack that begins in this script, which ends with what it makes of `"$@"`.
fn daemon_from(stack: &Stack, script: &str) -> Command {
    let daemon = stack.command(env!("CARGO_BIN_EXE_mcp-restartd"));
    let mut command = bare_command("bash");
    command.args(["-c", script, "-"]).arg(daemon.get_program()).args(daemon.get_args());
    command.current_dir(stack.path()).env("HOME", stack.path());
    command
}

/// An agent that writes down what it was started with, and says so.
fn witness(name: &str) -> Value {
    shell(
        name,
        "me=$MCP_RESTART_AGENT.$MCP_RESTART_GENERATION
         env > $me.environment; cat /proc/self/status > $me.status; cat /proc/self/limits > $me.limits
         cat /proc/self/oom_score_adj > $me.oom; (ls /proc/$$/fd > $me.descriptors)
         echo $me > witnesses; exec sleep 1000",
    )
}

/// Starts an agent that is a witness, and gives its environment.
fn environment_of(stack: &Stack, name: &str) -> Vec<String> {
    let witnesses = stack.mailbox("witnesses");
    stack.ctl(&["start", name]).ok();
    let testimony = format!("{}.environment", witnesses.next());
    fs::read_to_string(stack.path().join(testimony)).unwrap().lines().map(str::to_owned).collect()
}

/// What a witness wrote down of `/proc/self`: the name that each line begins with, and the rest.
fn table(stack: &Stack, testimony: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(stack.path().join(testimony)).unwrap();
    let pairs = text.lines().filter_map(|line| line.split_once(':').or_else(|| line.split_once("  ")));
    pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

#[test]
fn signals_and_descriptors_of_whoever_started_the_daemon_reach_no_agent() {
    let names: Vec<_> = (0..4).map(|index| format!("a{index}")).collect();
    let mut agents: Vec<_> = names.iter().map(|name| witness(name)).collect();
    agents.push(shell("seven", "exit 7"));
    let stack = Stack::new(&json!(agents));
    let witnesses = stack.mailbox("witnesses");
    let script = "exec 5>&0 9>&0 77>&0 </dev/null
        exec env --ignore-signal=PIPE,CHLD,HUP --block-signal=USR1,TERM \"$@\"";
    let (reader, writer) = pipe().unwrap();
    let mut command = daemon_from(&stack, script);
    command.stdin(writer);
    let daemon = Daemon::started(command);
    daemon.line(": serving ").unwrap();
    let all = |command: &str| {
        let names = names.iter().map(String::as_str);
        stack.ctl(&[command].into_iter().chain(names).collect::<Vec<_>>()).ok();
        (0..4).map(|_| witnesses.next()).collect::<Vec<_>>()
    };
    let heard = [all("start"), all("restart")].concat();
    stack.ctl(&["start", "seven"]).ok();
    // Nobody has the pipe any more: its end comes while the daemon and all of its children live.
    assert_eq!(lines_of(reader).recv_timeout(LIMIT), Err(RecvTimeoutError::Disconnected));
    for witness in heard {
        let status = table(&stack, &format!("{witness}.status"));
        for set in ["SigBlk", "SigIgn", "SigPnd"] {
            assert_eq!(status[set], "0000000000000000", "{set} of {witness}");
        }
        let descriptors = fs::read_to_string(stack.path().join(format!("{witness}.descriptors"))).unwrap();
        assert_eq!(descriptors.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2"], "{witness}");
    }
    let seven = stack.wait_for("seven", |view| view.state == AgentState::Exited);
    assert_eq!(seven.last_exit.unwrap().code, Some(7));
    // Blocked when it was started, and all the same the way to end it.
    signal(daemon.pid(), Signal::TERM);
    assert_eq!(daemon.end().code(), Some(0));
}

#[test]
fn an_agents_umask_and_limits_are_those_of_whoever_started_the_daemon() {
    let stack = Stack::new(&json!([witness("a")]));
    let script =
        "umask 027; echo 300 > /proc/self/oom_score_adj; ulimit -Sn 512; ulimit -Hn 600; exec \"$@\"";
    let daemon = Daemon::started(daemon_from(&stack, script));
    daemon.line(": serving ").unwrap();
    environment_of(&stack, "a");
    assert_eq!(table(&stack, "a.1.status")["Umask"], "0027");
    assert_eq!(fs::read_to_string(stack.path().join("a.1.oom")).unwrap(), "300\n");
    let files = |limits: &str| limits.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(files(&table(&stack, "a.1.limits")["Max open files"]), ["512", "600"]);
    // It allows itself as much as it may.
    let own = fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    assert_eq!(files(own), ["600", "600"]);
}

#[test]
fn what_the_environment_says_to_the_daemon_alone_is_not_said_to_agents() {
    let stack = Stack::new(&json!([witness("a")]));
    let mut command = stack.command(env!("CARGO_BIN_EXE_mcp-restartd"));
    let private = [
        ("NOTIFY_SOCKET", "/nowhere"),
        ("LISTEN_FDS", "0"),
        ("LISTEN_PID", "1"),
        ("LISTEN_FDNAMES", "x"),
        ("WATCHDOG_USEC", "1000000"),
        ("WATCHDOG_PID", "1"),
        ("CLAUDECODE", "1"),
        ("MCP_RESTART_LOG", "debug"),
        ("MCP_RESTART_TOKEN", "the-operators-own"),
    ];
    command.envs(private).env("EDITOR", "ed");
    let daemon = Daemon::started(command);
    daemon.line("the endpoint is served").unwrap();
    let environment = environment_of(&stack, "a");
    assert!(environment.contains(&"EDITOR=ed".to_owned()));
    assert!(environment.contains(&format!("MCP_RESTART_TOKEN={}", stack.wiring("a").0)));
    for (name, value) in private {
        assert!(!environment.contains(&format!("{name}={value}")), "{name}");
    }
}

#[test]
fn a_daemon_started_inside_an_agent_of_another_is_nobodys_agent() {
    let stack = Stack::new(&json!([witness("a")]));
    let mut command = stack.command(env!("CARGO_BIN_EXE_mcp-restartd"));
    command.envs([
        ("MCP_RESTART_AGENT", "elsewhere"),
        ("MCP_RESTART_TOKEN", "mra_elsewhere"),
        ("MCP_RESTART_URL", "http://elsewhere/mcp"),
        ("MCP_RESTART_GENERATION", "elsewhere"),
        ("MCP_RESTART_SOCKET", "/elsewhere/mcp-restartd.sock"),
        ("MCP_RESTART_CONFIG", "/elsewhere/config.json"),
    ]);
    let daemon = Daemon::started(command);
    daemon.line("the endpoint is served").unwrap();
    // Its token is no operator's: nobody needs one.
    stack.call(None, "list_agents", &json!({}));
    let environment = environment_of(&stack, "a");
    assert!(environment.contains(&"MCP_RESTART_AGENT=a".to_owned()), "{environment:?}");
    assert!(!environment.iter().any(|variable| variable.contains("elsewhere")), "{environment:?}");
}

#[test]
fn a_daemon_and_its_agents_outlive_the_terminal_that_it_was_started_from_and_have_none() {
    let script = "cat; (: < /dev/tty) 2> /dev/null || echo $MCP_RESTART_GENERATION > alone; exec sleep 1000";
    let stack = Stack::new(&json!([shell("a", script)]));
    let alone = stack.mailbox("alone");
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = fs::File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut command = daemon_from(&stack, "exec setsid --ctty \"$@\"");
    command.stdin(terminal);
    let daemon = Daemon::started(command);
    daemon.line(": serving ").unwrap();
    stack.ctl(&["start", "a"]).ok();
    assert_eq!(alone.next(), "1");
    let pid = stack.agent("a").pid;
    drop(master);
    assert_eq!(stack.agent("a").pid, pid);
    stack.ctl(&["restart", "a"]).ok();
    assert_eq!(alone.next(), "2");
    assert_eq!(stack.daemon_pid(), daemon.pid());
}
