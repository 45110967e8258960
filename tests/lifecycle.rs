//! Start, stop and restart, from the command line and over MCP.

use crate::support::{
    Stack, lives, marked, new_mark, parent_of, patient, shell, signal, sleeper, wait_until_gone,
};
use mcp_restart_protocol::agent::{AgentState, ExitReason};
use rustix::process::Signal;
use serde_json::json;
use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

/// An agent whose tree has a member that ignores SIGTERM, one in a session of its own and one that was
/// orphaned by a double fork.
fn unruly(name: &str, mark: &str) -> serde_json::Value {
    let script = "sh -c 'trap \"\" TERM; echo > ready; while :; do sleep 1; done' &
        setsid sh -c 'echo > ready; sleep 1000; :' &
        (setsid sh -c 'trap \"\" TERM HUP; echo > ready; while :; do sleep 1; done' &)
        exec sleep 1000";
    let mut entry = shell(name, script);
    entry["env"] = json!({ "MARK": mark });
    entry["gracefulTimeoutMs"] = json!(300);
    entry
}

/// A stack in which the unruly agent `a` runs with all its descendants.
fn start_unruly(mark: &str) -> Stack {
    let stack = Stack::up(&json!([unruly("a", mark)]));
    let ready = stack.mailbox("ready");
    stack.ctl(&["start", "a"]).ok();
    (0..3).for_each(|_| drop(ready.next()));
    stack
}

#[test]
fn a_stop_ends_the_whole_tree_and_says_what_it_took() {
    let mark = new_mark();
    let stack = start_unruly(&mark);
    let begin = Instant::now();
    stack.ctl(&["stop", "a"]).ok();
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(300), "the grace period was cut short");
    assert!(took <= Duration::from_secs(1), "the grace period was passed by: {took:?}");
    assert_eq!(marked(&format!("MARK={mark}")), [0; 0]);
    let exit = stack.agent("a").last_exit.unwrap();
    assert_eq!((exit.reason, exit.forced), (ExitReason::Stop, true));
    assert!(exit.leftovers >= 2, "{exit:?}");
}

#[test]
fn a_restart_leaves_nothing_of_the_old_tree() {
    let mark = new_mark();
    let stack = start_unruly(&mark);
    let old = marked(&format!("MARK={mark}"));
    let answer = stack.json(&["restart", "a"]);
    assert_eq!(answer["generation"], 2);
    assert_eq!(answer["previous"]["exit"]["reason"], "restart");
    assert!(old.iter().all(|pid| !lives(*pid)), "{old:?}");
}

#[test]
fn what_an_agent_leaves_behind_when_it_ends_by_itself_is_ended_too() {
    let mark = new_mark();
    let mut entry = shell("a", "setsid sleep 1000 & exit 3");
    entry["env"] = json!({ "MARK": mark });
    let stack = Stack::up(&json!([entry]));
    stack.ctl(&["start", "a"]).ok();
    let view = stack.wait_for("a", |view| view.state == AgentState::Exited);
    let exit = view.last_exit.unwrap();
    assert_eq!((exit.code, exit.reason, exit.leftovers), (Some(3), ExitReason::Exited, 1));
    assert_eq!(marked(&format!("MARK={mark}")), [0; 0]);
    stack.ctl(&["restart", "a"]).ok();
    stack.wait_for("a", |view| view.generation == 2 && view.state == AgentState::Exited);
    assert_eq!(marked(&format!("MARK={mark}")), [0; 0]);
}

#[test]
fn a_stop_takes_what_the_agent_needs_and_keeps_its_exit_status() {
    // Each end of a sleep lets the shell see its signal.
    let stack =
        Stack::up(&json!([shell("a", "trap 'sleep 0.3; exit 7' TERM; while :; do sleep 0.01; done")]));
    let mut took: Vec<_> = (0..5)
        .map(|_| {
            stack.ctl(&["start", "a"]).ok();
            let begin = Instant::now();
            stack.ctl(&["stop", "a"]).ok();
            let took = begin.elapsed().as_millis();
            let exit = stack.agent("a").last_exit.unwrap();
            assert_eq!((exit.code, exit.forced, exit.reason), (Some(7), false, ExitReason::Stop));
            took
        })
        .collect();
    // Whoever looks only now and then would be late every time.
    took.sort_unstable();
    assert!((300..600).contains(&took[0]), "{took:?} ms");
}

#[test]
fn a_refused_restart_leaves_the_running_process_untouched() {
    let stack = Stack::up(&json!([sleeper("a"), sleeper("b")]));
    stack.ctl(&["start", "--all"]).ok();
    let (a, b) = (stack.agent("a").pid.unwrap(), stack.agent("b").pid.unwrap());
    let half = r#"{ "agents": [ { "name": "a", "#;
    let broken = [
        (half.to_owned(), 6, "mcp-restart.config.json:1:"),
        (r#"{ "agents": [ { "name": "a", "command": 5 } ] }"#.to_owned(), 6, "agents[0].command"),
        (r#"{ "agents": [ { "name": "b", "command": "sleep" } ] }"#.to_owned(), 4, "no longer in the config"),
        (
            json!({ "agents": [{ "name": "a", "command": "no-such-program" }] }).to_string(),
            1,
            "was not found",
        ),
        (
            json!({ "agents": [{ "name": "a", "command": "sh", "cwd": "gone" }] }).to_string(),
            1,
            "does not exist",
        ),
    ];
    for (text, code, message) in broken {
        fs::write(stack.config(), text).unwrap();
        stack.ctl(&["restart", "a"]).failed(code, message);
        assert!(lives(a) && lives(b), "{message}");
    }
    stack.write_config(&json!([sleeper("a"), sleeper("b")]));
    assert_eq!(stack.agent("a").generation, 1);
}

#[test]
fn a_restart_uses_the_config_as_it_is_on_disk() {
    let mut entry = shell("a", "echo \"new: $NEW\" > told; exec sleep 1000");
    let stack = Stack::up(&json!([entry]));
    let told = stack.mailbox("told");
    stack.ctl(&["start", "a"]).ok();
    assert_eq!(told.next(), "new: ");
    entry["env"] = json!({ "NEW": "yes" });
    stack.write_config(&json!([entry]));
    assert_eq!(stack.json(&["list"])["agents"][0]["configChanged"], true);
    let answer = stack.json(&["restart", "a"]);
    assert_eq!(answer["configDiff"], json!(["env.NEW"]));
    assert_eq!(told.next(), "new: yes");
    assert_eq!(stack.json(&["list"])["agents"][0]["configChanged"], false);
}

#[test]
fn a_process_that_ends_while_it_settles_makes_the_start_an_error_with_its_last_words() {
    let mut entry = shell("a", "echo the reason; exit 9");
    entry["settleMs"] = json!(5_000);
    let stack = Stack::up(&json!([entry]));
    let run = stack.ctl(&["start", "a"]).failed(1, "exited with status 9");
    assert!(run.stderr.contains("the reason"), "{run:?}");
    assert_eq!(stack.agent("a").state, AgentState::Exited);
}

#[test]
fn start_of_what_runs_and_stop_of_what_does_not_say_so_and_succeed() {
    let stack = Stack::up(&json!([sleeper("a")]));
    assert!(stack.ctl(&["stop", "a"]).ok().stdout.contains("not running"));
    stack.ctl(&["start", "a"]).ok();
    assert!(stack.ctl(&["start", "a"]).ok().stdout.contains("already running"));
    stack.ctl(&["restart", "a"]).ok();
    assert_eq!(stack.agent("a").generation, 2);
}

#[test]
fn twenty_restarts_at_once_end_in_one_process() {
    let mark = new_mark();
    // The folder can be made by one process at a time.
    let script = "trap 'rmdir alone; exit 0' TERM
        mkdir alone || { echo two at once > two; exit 1; }
        while :; do sleep 0.01; done";
    let mut entry = shell("a", script);
    entry["env"] = json!({ "MARK": mark });
    let stack = Stack::up(&json!([entry]));
    stack.ctl(&["start", "a"]).ok();
    std::thread::scope(|scope| {
        for index in 0..20 {
            let stack = &stack;
            scope.spawn(move || {
                if index % 2 == 0 {
                    let run = stack.ctl(&["restart", "a"]);
                    assert!(run.code == 0 || run.stderr.contains("precedence"), "{run:?}");
                } else {
                    stack.call(None, "restart_agent", &json!({ "name": "a" }));
                }
            });
        }
    });
    let view = stack.wait_for("a", |view| view.state == AgentState::Running);
    assert!(!stack.path().join("two").exists(), "two processes at once");
    assert!(lives(view.pid.unwrap()));
    stack.ctl(&["stop", "a"]).ok();
    assert_eq!(marked(&format!("MARK={mark}")), [0; 0]);
}

#[test]
fn a_slow_stop_blocks_nobody_else() {
    let stack = Stack::up(&json!([patient("slow"), sleeper("quick")]));
    let (ready, asked, mut go) = (stack.mailbox("ready"), stack.mailbox("asked"), stack.pipe("go"));
    stack.ctl(&["start", "--all"]).ok();
    ready.next();
    std::thread::scope(|scope| {
        scope.spawn(|| stack.ctl(&["stop", "slow"]).ok());
        asked.next();
        for _ in 0..10 {
            stack.ctl(&["restart", "quick"]).ok();
            stack.ctl(&["status"]).ok();
        }
        assert_eq!(stack.agent("slow").state, AgentState::Stopping);
        writeln!(go).unwrap();
    });
    assert_eq!(stack.agent("quick").generation, 11);
}

#[test]
fn an_agent_whose_entry_is_gone_runs_on_and_can_be_stopped() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    stack.write_config(&json!([]));
    assert_eq!(stack.json(&["list"])["agents"], json!([]));
    assert_eq!(stack.json(&["list", "--all"])["agents"][0]["listed"], false);
    assert_eq!(stack.json(&["status"])["unlisted"][0]["name"], "a");
    stack.ctl(&["stop", "a"]).ok();
    stack.ctl(&["start", "a"]).failed(4, "no agent");
}

#[test]
fn a_stop_during_a_restart_wins() {
    let stack = Stack::up(&json!([patient("a")]));
    let (ready, asked, mut go) = (stack.mailbox("ready"), stack.mailbox("asked"), stack.pipe("go"));
    stack.ctl(&["start", "a"]).ok();
    ready.next();
    std::thread::scope(|scope| {
        let restart = scope.spawn(|| stack.ctl(&["restart", "a"]));
        asked.next();
        stack.ctl(&["stop", "a", "--no-wait"]).ok();
        writeln!(go).unwrap();
        restart.join().unwrap().failed(1, "precedence");
    });
    let view = stack.wait_for("a", |view| view.state == AgentState::Stopped);
    assert_eq!((view.generation, view.last_exit.unwrap().reason), (1, ExitReason::Stop));
}

#[test]
fn a_start_during_a_stop_comes_after_it() {
    let stack = Stack::up(&json!([patient("a")]));
    let (ready, asked, mut go) = (stack.mailbox("ready"), stack.mailbox("asked"), stack.pipe("go"));
    stack.ctl(&["start", "a"]).ok();
    ready.next();
    let old = stack.agent("a").pid.unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| stack.ctl(&["stop", "a"]).ok());
        asked.next();
        stack.ctl(&["start", "a", "--no-wait"]).ok();
        assert!(lives(old));
        writeln!(go).unwrap();
    });
    ready.next();
    let view = stack.wait_for("a", |view| view.state == AgentState::Running);
    assert_eq!(view.generation, 2);
    assert!(!lives(old));
    writeln!(go).unwrap();
    stack.ctl(&["stop", "a"]).ok();
}

#[test]
fn an_agent_whose_shim_is_killed_is_lost_and_can_be_started_again() {
    let mark = new_mark();
    let stack = start_unruly(&mark);
    let pid = stack.agent("a").pid.unwrap();
    signal(parent_of(pid), Signal::KILL);
    let view = stack.wait_for("a", |view| view.state == AgentState::Exited);
    assert_eq!(view.last_exit.unwrap().reason, ExitReason::Lost);
    assert!(!lives(pid));
    stack.ctl(&["start", "a"]).ok();
    assert_eq!(stack.agent("a").generation, 2);
}

#[test]
fn a_restart_takes_another_shim_for_one_that_was_killed_while_it_waited() {
    let stack = Stack::up(&json!([patient("a")]));
    let (ready, asked, mut go) = (stack.mailbox("ready"), stack.mailbox("asked"), stack.pipe("go"));
    stack.ctl(&["start", "a"]).ok();
    ready.next();
    let present = parent_of(stack.agent("a").pid.unwrap());
    std::thread::scope(|scope| {
        let restart = scope.spawn(|| stack.ctl(&["restart", "a"]));
        asked.next();
        let [waiting] = stack.shims().into_iter().filter(|shim| *shim != present).collect::<Vec<_>>()[..]
        else {
            panic!("{:?}", stack.shims())
        };
        signal(waiting, Signal::KILL);
        wait_until_gone(waiting);
        writeln!(go).unwrap();
        ready.next();
        restart.join().unwrap().ok();
    });
    assert_eq!(stack.agent("a").generation, 2);
    writeln!(go).unwrap();
    stack.ctl(&["stop", "a"]).ok();
}

#[test]
fn what_a_killed_shim_leaves_is_ended_and_the_next_start_is_alone() {
    let mark = new_mark();
    let stack = start_unruly(&mark);
    signal(parent_of(stack.agent("a").pid.unwrap()), Signal::KILL);
    let view = stack.wait_for("a", |view| view.state == AgentState::Exited);
    let exit = view.last_exit.unwrap();
    assert_eq!(exit.reason, ExitReason::Lost);
    assert!(exit.leftovers >= 3, "{exit:?}");
    assert_eq!(marked(&format!("MARK={mark}")), [0; 0]);
    stack.ctl(&["start", "a"]).ok();
    assert_eq!(stack.agent("a").generation, 2);
}

#[test]
fn stops_that_come_at_once_are_all_answered_and_the_agent_starts_again() {
    let stack = Stack::up(&json!([sleeper("a")]));
    for _ in 0..10 {
        stack.ctl(&["start", "a"]).ok();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| stack.ctl(&["stop", "a"]).ok());
            }
        });
    }
}

#[test]
fn a_start_that_is_refused_shows_as_failed_with_its_reason() {
    let stack = Stack::up(&json!([{ "name": "a", "command": "no-such-program" }]));
    stack.ctl(&["start", "a"]).failed(1, "was not found");
    let view = stack.agent("a");
    assert_eq!(view.state, AgentState::Failed);
    let exit = view.last_exit.unwrap();
    assert_eq!(exit.reason, ExitReason::SpawnFailed);
    assert_eq!(exit.message.as_deref(), Some("no-such-program was not found"));
}

#[test]
#[cfg_attr(feature = "portable", ignore = "only Linux forks shims")]
fn a_start_does_not_need_the_process_that_shims_are_forked_from() {
    let stack = Stack::up(&json!([sleeper("a"), sleeper("b"), sleeper("c")]));
    stack.ctl(&["start", "a"]).ok();
    let [first] = stack.fork_servers()[..] else { panic!("{:?}", stack.fork_servers()) };
    // The daemon may or may not have noticed when it needs the next shim.
    signal(first, Signal::KILL);
    stack.ctl(&["start", "b"]).ok();
    stack.ctl(&["start", "c"]).ok();
    let [second] = stack.fork_servers()[..] else { panic!("{:?}", stack.fork_servers()) };
    assert_ne!(first, second);
    for name in ["a", "b", "c"] {
        assert_eq!(stack.agent(name).state, AgentState::Running);
    }
}
