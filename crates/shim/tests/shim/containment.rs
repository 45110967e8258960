//! What belongs to an agent ends with it, wherever it has gone.

use crate::harness::House;
use mcp_restart_paths::RestartPath;
use mcp_restart_process::tree::{self, Process};
use mcp_restart_process::{LockFile, Signal};
use mcp_restart_protocol::shim::KeepChildren;
use std::fs::File;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(1000);

#[test]
fn a_group_member_that_ignores_the_signal_is_killed() {
    let house = House::new();
    let script = "(trap '' TERM; echo ready; exec sleep 1000) & trap 'exit 0' TERM; wait";
    let mut running = house.start_ready(script);
    let exit = running.stop(Duration::from_millis(200));
    assert_eq!((exit.code, exit.forced, exit.leftovers), (Some(0), true, 1));
    assert!(running.lines.note("killed after the grace period: ").contains(" (sleep) ---"));
    assert_eq!(house.marked(), []);
}

#[test]
fn a_child_in_a_session_of_its_own_is_asked_too() {
    let house = House::new();
    let script = "trap 'exit 0' TERM; setsid sh -c 'echo ready; exec sleep 1000' & wait";
    let mut running = house.start_ready(script);
    let exit = running.stop(LONG);
    assert_eq!((exit.code, exit.forced, exit.leftovers), (Some(0), false, 0));
    assert_eq!(house.marked(), []);
}

#[test]
fn a_daemonised_child_is_asked_too() {
    let house = House::new();
    // The parent of the sleeper ends: the shim inherits it.
    let script = "(setsid sh $MARK/hold &) ; read line <$MARK/never";
    let mut running = house.start_ready(script);
    let exit = running.stop(LONG);
    assert!(!exit.forced);
    assert_eq!(house.marked(), []);
}

#[test]
fn who_forks_while_being_killed_does_not_escape() {
    let house = House::new();
    // Each process of these chains starts the next one and ends, in its own session or not.
    let chain = "chain() { trap '' TERM; while :; do (chain &) ; sleep 0.001; exit; done; }";
    let script = format!(
        "{chain}; chain & trap '' TERM; echo ready; while :; do setsid sleep 1000 & sleep 1000 & sleep 0.01; done"
    );
    let mut running = house.start_ready(&script);
    let exit = running.stop(Duration::from_millis(50));
    assert!(exit.forced);
    assert!(exit.leftovers > 0);
    assert_eq!(house.marked(), []);
}

#[test]
fn zombies_hold_nothing_up() {
    let house = House::new();
    let script = "sh -c 'exit 0' & sh -c 'exit 1' & sh -c 'echo ready' & exec sleep 1000";
    let mut running = house.start_ready(script);
    let exit = running.stop(LONG);
    assert_eq!((exit.forced, exit.leftovers), (false, 0));
}

#[test]
fn whoever_outside_holds_the_output_open_holds_nothing_up() {
    let house = House::new();
    let mut running = house.start_ready("echo ready; exec sleep 1000");
    let outsider = File::options().write(true).open(format!("/proc/{}/fd/1", running.agent)).unwrap();
    running.stop(LONG);
    running.acknowledge();
    drop(outsider);
}

#[test]
fn what_an_agent_leaves_behind_is_swept() {
    let house = House::new();
    // It waits until its child ignores the signal; then that one needs more than to be told.
    let script = "setsid sh -c 'trap \"\" TERM; echo ready; exec sleep 1000' & read line <$MARK/go; exit 3";
    let go = house.make_pipe("go");
    let mut running = house.start_ready(script);
    std::fs::write(&go, "\n").unwrap();
    let exit = running.daemon.expect_exited();
    assert_eq!((exit.code, exit.by_itself), (Some(3), true));
    assert_eq!((exit.forced, exit.leftovers), (true, 1));
    assert_eq!(house.marked(), []);
    let note = running.lines.note("ended what it had left behind: ");
    // It may not have come to be another program yet.
    assert!([" (sleep) ---", " (sh) ---"].iter().any(|name| note.contains(name)), "{note}");
}

#[test]
fn programs_that_may_stay_stay_with_what_is_below_them_and_the_rest_goes() {
    let house = House::new();
    std::fs::copy("/bin/sh", house.path().join("keeper")).unwrap();
    let script = "setsid $MARK/keeper -c '$MARK/keeper $MARK/hold; exit' & \
                  setsid sh -c 'echo ready; exec sleep 1000' & read line <$MARK/go; exit 0";
    let go = house.make_pipe("go");
    let mut launch = house.script(script);
    launch.keep_children = KeepChildren::Named(vec!["keeper".to_owned()]);
    let mut running = house.start(launch);
    running.lines.expect("ready");
    running.lines.expect("ready");
    std::fs::write(&go, "\n").unwrap();
    let exit = running.daemon.expect_exited();
    assert_eq!((exit.code, exit.forced, exit.leftovers), (Some(0), false, 1));
    running.lines.note("ended what it had left behind: ");
    let note = running.lines.note("left alone, as keepChildren says: ");
    running.acknowledge();
    let kept = house.marked();
    assert_eq!(kept.len(), 2);
    assert!(kept.iter().any(|process| note.contains(&format!(": {} (keeper)", process.pid))), "{note}");
    assert!(kept.iter().any(|process| process.command == "keeper"));
    end(&kept);
}

#[test]
fn everything_may_stay() {
    let house = House::new();
    let mut launch =
        house.script("setsid sh -c 'trap \"\" TERM; . $MARK/hold' & read line <$MARK/go; exit 0");
    launch.keep_children = KeepChildren::All;
    let go = house.make_pipe("go");
    let mut running = house.start(launch);
    running.lines.expect("ready");
    std::fs::write(&go, "\n").unwrap();
    let exit = running.daemon.expect_exited();
    assert_eq!((exit.forced, exit.leftovers), (false, 0));
    let kept = house.marked();
    assert_eq!(kept.len(), 1);
    end(&kept);
}

#[test]
fn a_stop_spares_nobody() {
    let house = House::new();
    let mut launch = house.script("trap 'exit 0' TERM; setsid sh -c 'echo ready; exec sleep 1000' & wait");
    launch.keep_children = KeepChildren::All;
    let mut running = house.start(launch);
    running.lines.expect("ready");
    running.stop(LONG);
    assert_eq!(house.marked(), []);
}

#[test]
fn a_daemon_that_was_started_inside_its_agent_is_never_signalled_nor_waited_for() {
    let house = House::new();
    // It holds the lock of the state dir, and has a child that is none of the agent's either.
    let daemon = "exec 9<>$MARK/mcp-restartd.lock; flock 9; echo $$ >&9; setsid sh $MARK/hold 9>&- & wait";
    let script = format!("trap 'exit 0' TERM; sh -c '{daemon}' & wait");
    let mut running = house.start_ready(&script);
    let daemon = LockFile::holder(&house.daemon_lock()).unwrap().unwrap();
    let begin = Instant::now();
    let exit = running.stop(LONG);
    assert!(begin.elapsed() < LONG);
    assert_eq!((exit.code, exit.forced, exit.leftovers), (Some(0), false, 0));
    assert_eq!(LockFile::holder(&house.daemon_lock()).unwrap(), Some(daemon));
    assert_eq!(house.marked().len(), 2);
    end(&house.marked());
}

/// Ends what a test has left alive on purpose.
fn end(processes: &[Process]) {
    for process in processes {
        tree::signal(RestartPath::ExitSweep, process, Signal::KILL);
    }
}
