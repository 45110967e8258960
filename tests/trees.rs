//! Whatever an agent starts ends with it, as often as it is restarted.

use crate::support::{
    Stack, descriptors, lives, look_until, marked, new_mark, parent_of, shell, signal, wait_until_gone,
};
use mcp_restart_protocol::agent::{AgentState, ExitReason};
use rustix::process::Signal;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;

/// Leaves a child of every sort, each of which holds the output open: in a group and in a session of its own,
/// doubly forked, deaf to SIGTERM, and one that is somebody else whenever it is looked at.
const UNRULY: &str = "set -m; sleep 1000 & set +m
    setsid sleep 1000 &
    (setsid bash -c 'trap \"\" TERM HUP; echo up > ready; while :; do sleep 1000; done' &)
    hare() { trap '' TERM; (hare) & sleep 0.01; exit; }; hare &
    trap 'exit 7' TERM; echo up > ready; while :; do sleep 1000 & wait; done";

/// How much a process holds: descriptors, and private memory in KiB.
fn holdings(pid: u32) -> (usize, u64) {
    (descriptors(pid), private_kib(pid))
}

fn private_kib(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    // Pages of a program file that was written a moment ago are dirty too, and none of the process's own.
    let field = rollup.lines().find_map(|line| line.strip_prefix("Pss_Anon:"));
    field.unwrap().trim_end_matches("kB").trim().parse().unwrap()
}

fn zombies_below(parent: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).unwrap();
    let children =
        tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default());
    let children: String = children.collect();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).filter(|pid| !lives(*pid)).collect()
}

/// The generations to which the processes with this mark belong.
fn generations(mark: &str) -> BTreeSet<String> {
    let environments = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let bytes = fs::read(entry.ok()?.path().join("environ")).ok()?;
        String::from_utf8(bytes).ok()
    });
    let own = environments.filter(|environment| environment.split('\0').any(|variable| variable == mark));
    own.filter_map(|own| {
        let mut variables = own.split('\0');
        variables.find_map(|variable| variable.strip_prefix("MCP_RESTART_GENERATION=")).map(str::to_owned)
    })
    .collect()
}

#[test]
fn however_many_restarts_leave_nothing_behind_and_nobody_grows() {
    // On the portable path every look is at all processes of the machine.
    let rounds = if cfg!(feature = "portable") { 30 } else { 100 };
    let mark = new_mark();
    let mut entry = shell("a", UNRULY);
    entry["command"] = json!("bash");
    entry["env"] = json!({ "MARK": mark });
    entry["gracefulTimeoutMs"] = json!(20);
    let stack = Stack::up(&json!([entry]));
    let ready = stack.mailbox("ready");
    let comes_up = || (0..2).for_each(|_| drop(ready.next()));
    stack.ctl(&["start", "a"]).ok();
    comes_up();
    let daemon = stack.daemon_pid();
    let mut before = None;
    for round in 1..=rounds {
        let shim = parent_of(stack.agent("a").pid.unwrap());
        let answer = stack.json(&["restart", "a"]);
        comes_up();
        let exit = &answer["previous"]["exit"];
        assert_eq!((&exit["reason"], &exit["forced"]), (&json!("restart"), &json!(true)));
        assert!(exit["leftovers"].as_u64().unwrap() >= 2, "{exit}");
        wait_until_gone(shim);
        if round % 10 > 0 {
            continue;
        }
        let generation = answer["generation"].to_string();
        assert_eq!(generations(&format!("MARK={mark}")), BTreeSet::from([generation]));
        let shim = parent_of(stack.agent("a").pid.unwrap());
        look_until(|| zombies_below(daemon), Vec::is_empty);
        let look = || (holdings(daemon), holdings(shim));
        let ((daemon_files, daemon_kib), (shim_files, shim_kib)) = *before.get_or_insert_with(look);
        look_until(look, |((daemon, _), (shim, _))| *daemon <= daemon_files + 2 && *shim <= shim_files + 2);
        let now = look();
        assert!(now.0.1 <= daemon_kib + 512 && now.1.1 <= shim_kib + 128, "{before:?} {now:?}");
        assert!(now.1.1 <= 1024, "a shim of {} KiB", now.1.1);
    }
    stack.ctl(&["stop", "a"]).ok();
    assert_eq!(marked(&format!("MARK={mark}")), [0; 0]);
}

#[test]
fn what_an_agent_may_keep_outlives_it_is_told_in_its_log_and_is_in_no_restarts_way() {
    let mark = new_mark();
    let script = "setsid sh -c 'echo up > ready; exec sleep 1000' &
        setsid ./keeper -c 'echo up > ready; read word < never' & read word < go; exit 3";
    let mut some = shell("some", script);
    some["keepChildren"] = json!(["keeper"]);
    let mut all = shell("all", script);
    all["keepChildren"] = json!(true);
    let mut agents = json!([some, all]);
    for entry in agents.as_array_mut().unwrap() {
        entry["env"] = json!({ "MARK": mark });
    }
    let stack = Stack::up(&agents);
    fs::copy("/bin/sh", stack.path().join("keeper")).unwrap();
    let (ready, mut go, _never) = (stack.mailbox("ready"), stack.pipe("go"), stack.pipe("never"));
    let come_up = || (0..2).for_each(|_| drop(ready.next()));
    let is_keeper = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() == "keeper\n";
    for (name, leftovers, kept) in [("some", 1, 1), ("all", 0, 2)] {
        stack.ctl(&["start", name]).ok();
        come_up();
        writeln!(go).unwrap();
        let view = stack.wait_for(name, |view| view.state == AgentState::Exited);
        assert_eq!(view.last_exit.unwrap().leftovers, leftovers, "{name}");
        let alive = marked(&format!("MARK={mark}"));
        assert_eq!((alive.len(), alive.iter().filter(|pid| is_keeper(pid)).count()), (kept, 1));
        let log = stack.ctl(&["logs", name]).ok().stdout;
        let told = log.lines().filter(|line| line.contains("left alone, as keepChildren says: "));
        assert!(
            told.clone().count() == 1 && alive.iter().all(|pid| log.contains(&format!("{pid} ("))),
            "{log}"
        );
        assert_eq!(log.contains("ended what it had left behind: "), leftovers > 0, "{log}");
        stack.ctl(&["restart", name]).ok();
        come_up();
        assert!(alive.iter().all(|pid| lives(*pid)), "{name}");
        stack.ctl(&["stop", name]).ok();
        assert_eq!(
            marked(&format!("MARK={mark}")),
            alive,
            "a stop ends all of its own tree and nothing else"
        );
        for pid in alive {
            signal(pid, Signal::KILL);
            wait_until_gone(pid);
        }
    }
}

#[test]
fn whoever_outside_holds_the_output_open_is_in_nobodys_way() {
    let stack = Stack::up(&json!([shell("a", "echo up > ready; exec sleep 1000")]));
    let ready = stack.mailbox("ready");
    stack.ctl(&["start", "a"]).ok();
    ready.next();
    let pid = stack.agent("a").pid.unwrap();
    let outsider = fs::File::options().write(true).open(format!("/proc/{pid}/fd/1")).unwrap();
    stack.ctl(&["stop", "a"]).ok();
    assert_eq!(stack.agent("a").last_exit.unwrap().reason, ExitReason::Stop);
    stack.ctl(&["start", "a"]).ok();
    ready.next();
    drop(outsider);
}
