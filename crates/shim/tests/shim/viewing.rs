//! The terminal of an agent and those who are attached to it.

use crate::harness::{House, Running, Talk};
use mcp_restart_process::Signal;
use mcp_restart_protocol::shim::{FromShim, ShimLaunch, ToShim};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(1000);

fn with_terminal(mut launch: ShimLaunch) -> ShimLaunch {
    launch.terminal = Some((40, 120));
    launch
}

/// Collects what a viewer is shown until this text has come.
fn watch_for(viewer: &mut Talk, text: &str) -> String {
    let mut shown = String::new();
    while !shown.contains(text) {
        match viewer.receive() {
            Some(FromShim::Output(bytes)) => shown += &String::from_utf8_lossy(&bytes),
            other => panic!("{other:?} after {shown:?}"),
        }
    }
    shown
}

fn attach(house: &House, rows: u16, columns: u16) -> Talk {
    let mut viewer = house.connect();
    viewer.send(&ToShim::Attach { rows, columns });
    viewer
}

/// An agent that answers each line with it and with the size of its terminal.
fn parrot(house: &House) -> Running {
    let script = "stty -echo; echo ready; while read line; do echo \"got $line\"; stty size; done; exit 3";
    let mut running = house.start(with_terminal(house.script(script)));
    running.lines.expect("ready");
    running
}

#[test]
fn an_agent_has_the_terminal_as_its_own() {
    let house = House::new();
    let script =
        "tty; stty size; cut -d' ' -f5-8 /proc/$$/stat; echo through the door >/dev/tty; ls -1 /proc/$$/fd";
    let mut running = house.start(with_terminal(house.script(script)));
    let agent = running.agent;
    assert!(running.lines.next().starts_with("/dev/pts/"));
    running.lines.expect("40 120");
    let (ids, foreground) = (format!("{agent} {agent} "), format!(" {agent}"));
    let line = running.lines.next();
    assert!(line.starts_with(&ids) && line.ends_with(&foreground), "{line}");
    running.lines.expect("through the door");
    for descriptor in ["0", "1", "2"] {
        running.lines.expect(descriptor);
    }
    assert_eq!(running.daemon.expect_exited().code, Some(0));
}

#[test]
fn who_attaches_sees_the_present_screen_and_what_comes_next() {
    let house = House::new();
    let mut running = parrot(&house);
    let mut viewer = attach(&house, 40, 120);
    watch_for(&mut viewer, "ready");
    viewer.send(&ToShim::Input(b"hello\r".to_vec()));
    watch_for(&mut viewer, "got hello");
    running.lines.expect("got hello");
    running.stop(Duration::ZERO);
}

#[test]
fn the_latest_to_type_sets_the_size() {
    let house = House::new();
    let mut running = parrot(&house);
    let mut wide = attach(&house, 50, 200);
    watch_for(&mut wide, "ready");
    let mut narrow = attach(&house, 20, 70);
    watch_for(&mut narrow, "ready");
    narrow.send(&ToShim::Input(b"a\r".to_vec()));
    watch_for(&mut narrow, "20 70");
    wide.send(&ToShim::Input(b"b\r".to_vec()));
    watch_for(&mut wide, "50 200");
    // A new size of who did not type last changes nothing yet.
    narrow.send(&ToShim::Resize { rows: 21, columns: 71 });
    wide.send(&ToShim::Resize { rows: 51, columns: 201 });
    wide.send(&ToShim::Input(b"c\r".to_vec()));
    watch_for(&mut wide, "51 201");
    narrow.send(&ToShim::Input(b"d\r".to_vec()));
    watch_for(&mut narrow, "21 71");
    running.stop(Duration::ZERO);
}

#[test]
fn who_types_without_looking_is_heard() {
    let house = House::new();
    let mut running = parrot(&house);
    let mut typist = house.connect();
    typist.send(&ToShim::Input(b"blind\r".to_vec()));
    drop(typist);
    running.lines.expect("got blind");
    running.lines.expect("40 120");
    running.stop(Duration::ZERO);
}

#[test]
fn a_viewer_is_told_that_the_agent_has_ended() {
    let house = House::new();
    let mut running = parrot(&house);
    let mut viewer = attach(&house, 40, 120);
    watch_for(&mut viewer, "ready");
    // The end of its input.
    viewer.send(&ToShim::Input(vec![4]));
    assert_eq!(running.daemon.expect_exited().code, Some(3));
    assert_eq!(viewer.receive(), Some(FromShim::Detached { reason: "the agent has ended".to_owned() }));
    viewer.expect_end();
    running.acknowledge();
}

#[test]
fn who_attaches_to_an_agent_without_a_terminal_is_told_so() {
    let house = House::new();
    let mut running = house.start_ready("echo ready; exec sleep 1000");
    let mut viewer = attach(&house, 40, 120);
    assert_eq!(viewer.receive(), Some(FromShim::Detached { reason: "the agent has no terminal".to_owned() }));
    viewer.expect_end();
    running.stop(LONG);
}

#[test]
fn a_viewer_that_does_not_read_holds_nobody_up_and_sees_the_end_of_it_later() {
    let house = House::new();
    let go = house.make_pipe("go");
    let script =
        "echo ready; read line <$MARK/go; seq 1 300000; echo flooded; read line <$MARK/go; exec sleep 1000";
    let mut launch = with_terminal(house.script(script));
    launch.log_file = b"/dev/null".to_vec();
    let (_shim, mut daemon) = house.shim();
    daemon.send(&ToShim::Launch(Box::new(launch)));
    daemon.expect_started();
    let mut lazy = attach(&house, 40, 120);
    watch_for(&mut lazy, "ready");
    let mut busy = attach(&house, 40, 120);
    watch_for(&mut busy, "ready");
    std::fs::write(&go, "\n").unwrap();
    watch_for(&mut busy, "flooded");
    // Now it reads: what was left out is made good by the whole picture.
    let shown = watch_for(&mut lazy, "flooded");
    assert!(shown.len() < 1_500_000, "{}", shown.len());
    daemon.ask_to_stop(Signal::KILL, Duration::ZERO);
    daemon.expect_exited();
}

#[test]
fn a_shim_takes_no_more_memory_than_its_screen_needs() {
    let house = House::new();
    // Every character of both screens in a colour of its own.
    let script = "paint() { for row in $(seq 50); do for column in $(seq 200); do
            printf '\\033[48;5;%dm\\033[%d;%dHx' $column $row $column; done; done; }
        paint; printf '\\033[?1049h'; paint; echo; echo painted; exec sleep 1000";
    let mut launch = with_terminal(house.script(script));
    launch.terminal = Some((50, 200));
    launch.log_file = b"/dev/null".to_vec();
    let (shim, mut daemon) = house.shim();
    daemon.send(&ToShim::Launch(Box::new(launch)));
    daemon.expect_started();
    let mut viewer = attach(&house, 50, 200);
    watch_for(&mut viewer, "painted");
    // What it is still to be shown is no part of the screen.
    drop(viewer);
    daemon.describe();
    daemon.describe();
    let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", shim.child.pid())).unwrap();
    // Pages of a program file that was written a moment ago are dirty too.
    let own = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    let kib: u32 = own.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib <= 2048, "{kib} KiB");
    daemon.ask_to_stop(Signal::KILL, Duration::ZERO);
    daemon.expect_exited();
}

#[test]
fn who_types_faster_than_the_agent_reads_waits_and_loses_nothing() {
    let house = House::new();
    let go = house.make_pipe("go");
    let script = "stty raw -echo; echo ready; read line <$MARK/go; head -c 1000000 | cksum; exec sleep 1000";
    let mut running = house.start(with_terminal(house.script(script)));
    running.lines.expect("ready");
    let mut typist = house.connect();
    let writer = std::thread::spawn(move || {
        for _ in 0..100 {
            typist.send(&ToShim::Input(vec![b'x'; 10_000]));
        }
        typist
    });
    std::fs::write(&go, "\n").unwrap();
    // What `head -c 1000000 | cksum` makes of as many of these.
    running.lines.expect(&format!("{} 1000000", cksum(&vec![b'x'; 1_000_000])));
    drop(writer.join().unwrap());
    running.stop(Duration::ZERO);
}

/// The checksum of POSIX's `cksum`.
fn cksum(bytes: &[u8]) -> u32 {
    let mut length = bytes.len();
    let mut lengths = Vec::new();
    while length > 0 {
        lengths.push(u8::try_from(length & 0xff).unwrap());
        length >>= 8;
    }
    let crc = bytes.iter().chain(&lengths).fold(0_u32, |crc, &byte| {
        (0..8).fold(crc ^ (u32::from(byte) << 24), |crc, _| {
            if crc & 0x8000_0000 == 0 { crc << 1 } else { (crc << 1) ^ 0x04c1_1db7 }
        })
    });
    !crc
}
