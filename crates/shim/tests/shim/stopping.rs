//! How an agent is brought to its end.

use crate::harness::House;
use mcp_restart_paths::RestartPath;
use mcp_restart_process::Signal;
use mcp_restart_protocol::shim::ToShim;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(1000);

#[test]
fn an_agent_that_obeys_keeps_its_exit_code() {
    let house = House::new();
    let mut running =
        house.start_ready("trap 'exit 7' TERM; echo ready; while :; do sleep 1000 & wait; done");
    let exit = running.stop(LONG);
    assert_eq!((exit.code, exit.signal), (Some(7), None));
    assert_eq!((exit.by_itself, exit.forced, exit.leftovers), (false, false, 0));
}

#[test]
fn a_stop_takes_as_long_as_the_agent_takes_and_keeps_its_code() {
    let stop = || {
        let house = House::new();
        let script = "trap 'sleep 0.3; exit 7' TERM; echo ready; while :; do sleep 1000 & wait; done";
        let mut running = house.start_ready(script);
        let begin = Instant::now();
        let exit = running.stop(LONG);
        assert_eq!((exit.code, exit.forced), (Some(7), false));
        begin.elapsed()
    };
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let stops: Vec<_> = (0..20).map(|_| scope.spawn(stop)).collect();
        stops.into_iter().map(|stop| stop.join().unwrap()).collect()
    });
    times.sort();
    // Whoever looks at intervals sees some of them late; a busy machine does not see the quickest late.
    assert!(times[0] >= Duration::from_millis(300) && times[5] < Duration::from_millis(600), "{times:?}");
}

#[test]
fn an_agent_that_a_signal_ends_tells_which() {
    let house = House::new();
    let mut running = house.start_ready("echo ready; exec sleep 1000");
    running.daemon.ask_to_stop(Signal::HANG_UP, LONG);
    let exit = running.daemon.expect_exited();
    assert_eq!((exit.code, exit.signal), (None, Some(Signal::HANG_UP.number())));
}

#[test]
fn an_agent_gets_the_graceful_signal_once() {
    let house = House::new();
    let script =
        "n=0; trap 'n=$((n+1))' TERM; exec 3<>$MARK/go; echo ready; until read line <&3; do :; done; exit $n";
    let go = house.make_pipe("go");
    let mut running = house.start_ready(script);
    running.daemon.ask_to_stop(Signal::TERMINATE, LONG);
    running.daemon.ask_to_stop(Signal::TERMINATE, LONG);
    // Both have been dealt with once this is answered.
    running.daemon.describe();
    std::fs::write(&go, "\n").unwrap();
    assert_eq!(running.daemon.expect_exited().code, Some(1));
}

#[test]
fn an_agent_that_does_not_obey_is_killed_after_its_grace_period_and_not_before() {
    let house = House::new();
    let mut running = house.start_ready("trap '' TERM; echo ready; while :; do sleep 1000; done");
    let begin = Instant::now();
    let exit = running.stop(Duration::from_millis(300));
    let took = begin.elapsed();
    assert!((300..1300).contains(&took.as_millis()), "{took:?}");
    assert_eq!(exit.signal, Some(Signal::KILL.number()));
    assert!(exit.forced);
    assert_eq!(house.marked(), []);
}

#[test]
fn without_a_grace_period_nobody_is_asked() {
    let house = House::new();
    let mut running = house.start_ready("trap 'exit 7' TERM; sleep 1000 & echo ready; wait");
    let exit = running.stop(Duration::ZERO);
    assert_eq!((exit.code, exit.signal), (None, Some(Signal::KILL.number())));
    assert_eq!((exit.forced, exit.leftovers), (true, 1));
}

#[test]
fn a_second_stop_can_shorten_the_first() {
    let house = House::new();
    let mut running = house.start_ready("trap '' TERM; echo ready; while :; do sleep 1000; done");
    running.daemon.ask_to_stop(Signal::TERMINATE, LONG);
    running.daemon.ask_to_stop(Signal::TERMINATE, Duration::ZERO);
    assert!(running.daemon.expect_exited().forced);
}

#[test]
fn a_stopped_agent_is_woken_up_to_obey() {
    let house = House::new();
    let mut running = house.start_ready("trap 'exit 7' TERM; echo ready; kill -STOP $$; sleep 1000 & wait");
    assert_eq!(running.stop(LONG).code, Some(7));
}

#[test]
fn an_agent_that_ends_by_itself_is_reported_with_its_code() {
    let house = House::new();
    let mut running = house.start(house.script("exit 3"));
    let exit = running.daemon.expect_exited();
    assert_eq!((exit.code, exit.by_itself, exit.forced, exit.leftovers), (Some(3), true, false, 0));
    // A stop of what has ended is told so again.
    assert_eq!(running.stop(LONG), exit);
    running.acknowledge();
    assert!(!house.files().socket.exists());
    assert!(!house.files().facts.exists());
    assert!(house.files().lock.exists());
}

#[test]
fn a_stop_that_names_no_registered_path_or_signal_does_nothing() {
    let house = House::new();
    let mut running = house.start_ready("echo ready; exec sleep 1000");
    for (path, signal) in [("pkill", 15), (RestartPath::CtlStop.id(), 0), (RestartPath::CtlStop.id(), 4242)] {
        running.daemon.send(&ToShim::Stop { path: path.to_owned(), signal, grace_ms: 0 });
        running.daemon.expect_refusal();
    }
    running.daemon.send(&ToShim::Acknowledge);
    running.daemon.expect_refusal();
    let facts = running.daemon.describe();
    assert!(!facts.stopping);
    assert_eq!(facts.exit, None);
    running.stop(LONG);
}

#[test]
fn a_shim_that_is_told_to_end_ends_its_agent_first_and_leaves_the_exit_in_writing() {
    let house = House::new();
    let script = "trap 'sleep 1000 & exit 7' TERM; echo ready; while :; do sleep 1000 & wait; done";
    let running = house.start_ready(script);
    running.shim.signal(Signal::TERMINATE);
    let mut shim = running.shim;
    // There is no daemon that could be told.
    let _lines = running.lines;
    drop(running.daemon);
    shim.expect_end();
    assert_eq!(house.marked(), []);
    assert!(!house.files().socket.exists());
    let exit = house.facts().exit.unwrap();
    assert_eq!((exit.code, exit.by_itself), (Some(7), true));
}
