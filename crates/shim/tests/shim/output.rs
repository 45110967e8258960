//! What an agent writes arrives in its log, all of it and once.

use crate::harness::House;
use mcp_restart_protocol::shim::{START_MARKER, ToShim};
use std::fs;
use std::process::Command;
use std::time::Duration;

#[test]
fn nothing_is_lost_or_doubled_while_the_log_is_rotated_as_fast_as_an_agent_can_write() {
    const LINES: &str = "4000000";
    let house = House::new();
    // Thirty megabytes, in files of which every one ends within a line of what was written at once.
    let mut launch = house.program(&["/usr/bin/env", "seq", LINES]);
    launch.log_max_bytes = 100_000;
    launch.log_keep = 1000;
    let (_shim, mut daemon) = house.shim();
    daemon.send(&ToShim::Launch(Box::new(launch)));
    daemon.expect_started();
    daemon.expect_exited();
    let file = |number: &usize| house.path().join(format!("log.{number}"));
    let rotated = (1..=1000).take_while(|number| file(number).exists()).count();
    assert!(rotated > 200);
    let files = (1..=rotated).rev().map(|number| file(&number)).chain([house.path().join("log")]);
    let mut all = files.map(|file| fs::read(file).unwrap()).collect::<Vec<_>>().concat();
    let marker = all.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    let output = all.split_off(marker);
    assert!(all.starts_with(format!("{START_MARKER}1 started 20").as_bytes()));
    #[expect(clippy::disallowed_methods, reason = "the same program says what there has to be")]
    let expected = Command::new("seq").arg(LINES).output().unwrap().stdout;
    assert!(output == expected);
}

#[test]
fn both_streams_come_in_the_order_in_which_they_were_written() {
    let house = House::new();
    let mut running = house.start(house.script("echo 1; echo 2 >&2; echo 3; echo 4 >&2"));
    for line in ["1", "2", "3", "4"] {
        running.lines.expect(line);
    }
    running.daemon.expect_exited();
}

#[test]
fn the_last_words_are_in_the_log_when_the_exit_is_told() {
    let house = House::new();
    for generation in 1..=10 {
        let (_shim, mut daemon) = house.shim();
        let mut launch = house.script("printf 'last words'; exit 1");
        launch.generation = generation;
        daemon.send(&ToShim::Launch(Box::new(launch)));
        daemon.expect_started();
        daemon.expect_exited();
        let log = fs::read_to_string(house.path().join("log")).unwrap();
        assert!(log.ends_with("last words"), "{log}");
        daemon.send(&ToShim::Acknowledge);
        daemon.expect_end();
    }
}

#[test]
fn an_agent_that_closes_its_output_goes_on() {
    let house = House::new();
    let script = "trap 'exit 7' TERM; echo ready; exec >/dev/null 2>&1; sleep 1000 & wait";
    let mut running = house.start_ready(script);
    assert_eq!(running.stop(Duration::from_secs(1000)).code, Some(7));
}

#[test]
fn a_log_that_nobody_reads_stops_no_agent() {
    let house = House::new();
    // A named pipe whose reader does not read: it holds 64 KiB.
    let mut running = house.start(house.script("exec seq 1 1000000"));
    let exit = running.daemon.expect_exited();
    assert_eq!((exit.code, exit.signal), (Some(0), None));
}
