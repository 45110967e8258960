//! A shim outlives its daemon, and serves the next one.

use crate::harness::{House, NAME, Talk};
use mcp_restart_process::{LockError, LockFile, Signal};
use mcp_restart_protocol::codec::FRAME_MAX;
use mcp_restart_protocol::shim::{FromShim, ShimHello, ToShim};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(1000);

#[test]
fn an_agent_does_not_notice_that_its_daemon_is_gone_and_obeys_the_next_one() {
    let house = House::new();
    let running = house.start_ready("trap 'exit 7' TERM; echo ready; while :; do sleep 1000 & wait; done");
    drop(running.daemon);
    let mut shim = running.shim;
    let mut next = house.connect();
    let facts = next.describe();
    assert_eq!((facts.name.as_str(), facts.generation, facts.pid), (NAME, 1, running.agent));
    assert_eq!(facts.shim_pid, shim.child.pid());
    assert_eq!((facts.stopping, facts.exit), (false, None));
    next.ask_to_stop(Signal::TERMINATE, LONG);
    assert_eq!(next.expect_exited().code, Some(7));
    assert_matches_lock_held(&house);
    next.send(&ToShim::Acknowledge);
    next.expect_end();
    shim.expect_end();
    LockFile::try_acquire(&house.files().lock).unwrap();
}

#[test]
fn an_exit_that_no_daemon_saw_is_kept_and_told_to_each_until_one_takes_note() {
    let house = House::new();
    let go = house.make_pipe("go");
    let mut launch = house.script("echo ready; read line <$MARK/go; exit 3");
    launch.terminal = Some((24, 80));
    let mut running = house.start(launch);
    running.lines.expect("ready");
    drop(running.daemon);
    // Somebody who watches is no daemon, but sees when it is over.
    let mut viewer = house.connect();
    viewer.send(&ToShim::Attach { rows: 24, columns: 80 });
    std::fs::write(&go, "\n").unwrap();
    while !matches!(viewer.receive(), Some(FromShim::Detached { .. })) {}
    let mut daemon = house.connect();
    let first = daemon.describe().exit.unwrap();
    assert_eq!(daemon.expect_exited(), first);
    assert_eq!((first.code, first.by_itself), (Some(3), true));
    let mut second = house.connect();
    assert_eq!(second.describe().exit.as_ref(), Some(&first));
    assert_eq!(second.expect_exited(), first);
    second.send(&ToShim::Acknowledge);
    second.expect_end();
}

#[test]
fn who_knows_nothing_but_the_hello_is_told_of_the_end_and_finds_the_exit_written_down() {
    let house = House::new();
    let go = house.make_pipe("go");
    let running = house.start_ready("echo ready; read line < $MARK/go; exit 3");
    drop(running.daemon);
    let mut stranger = house.connect();
    std::fs::write(&go, "\n").unwrap();
    stranger.expect_end();
    assert_eq!(house.facts().exit.unwrap().code, Some(3));
    let mut shim = running.shim;
    shim.signal(Signal::TERMINATE);
    shim.expect_end();
}

#[test]
fn a_shim_that_is_asked_puts_back_what_somebody_has_removed_of_its_files() {
    let house = House::new();
    let mut running = house.start_ready("echo ready; exec sleep 1000");
    let run_dir = house.files().lock.parent().unwrap().to_owned();
    for removed in [run_dir, house.files().lock, house.files().socket, house.files().facts] {
        let gone = if removed.is_dir() { fs::remove_dir_all(&removed) } else { fs::remove_file(&removed) };
        gone.unwrap();
        running.daemon.describe();
        assert_matches_lock_held(&house);
        assert_eq!(house.facts().agent.pid, running.agent);
        assert_eq!(house.connect().describe().pid, running.agent);
        running.daemon.describe();
    }
    running.stop(LONG);
    running.acknowledge();
    assert!(!house.files().socket.exists() && !house.files().facts.exists());
}

#[test]
fn a_shim_whose_files_are_anothers_by_now_leaves_them_alone() {
    let house = House::new();
    let mut running = house.start_ready("echo ready; exec sleep 1000");
    fs::remove_file(house.files().lock).unwrap();
    let other = LockFile::try_acquire(&house.files().lock).unwrap();
    fs::write(house.files().facts, "those of another").unwrap();
    running.daemon.describe();
    running.stop(LONG);
    running.acknowledge();
    assert_eq!(fs::read(house.files().facts).unwrap(), b"those of another");
    assert!(house.files().socket.exists());
    drop(other);
}

#[test]
fn a_shim_whose_daemon_and_state_dir_are_gone_ends_with_its_agent() {
    let house = House::new();
    let go = house.make_pipe("go");
    let running = house.start_ready("exec 3<>$MARK/go; echo ready; read line <&3; exit 3");
    let mut go = fs::File::options().read(true).write(true).open(go).unwrap();
    drop(running.daemon);
    fs::remove_dir_all(house.path()).unwrap();
    go.write_all(b"\n").unwrap();
    let mut shim = running.shim;
    shim.expect_end();
}

#[test]
fn only_the_newest_daemon_is_obeyed() {
    let house = House::new();
    let mut running = house.start_ready("echo ready; exec sleep 1000");
    let mut stranger = house.connect();
    stranger.ask_to_stop(Signal::KILL, Duration::ZERO);
    stranger.expect_refusal();
    stranger.send(&ToShim::Acknowledge);
    stranger.expect_refusal();
    let mut next = house.connect();
    next.describe();
    running.daemon.ask_to_stop(Signal::KILL, Duration::ZERO);
    running.daemon.expect_refusal();
    next.ask_to_stop(Signal::KILL, Duration::ZERO);
    next.expect_exited();
}

#[test]
fn garbage_costs_only_the_connection_that_sent_it() {
    let house = House::new();
    let mut running = house.start_ready("echo ready; exec sleep 1000");
    let garbage: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        &[ShimHello { protocol: 0 }.to_bytes().as_slice(), b"old"].concat(),
        &[ShimHello::OURS.to_bytes().as_slice(), &[0xff; 64]].concat(),
        // A frame that begins as long as only a launch may be.
        &[ShimHello::OURS.to_bytes().as_slice(), &u32::try_from(FRAME_MAX).unwrap().to_le_bytes()].concat(),
    ];
    for bytes in garbage {
        let mut stream = UnixStream::connect(house.files().socket).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // Its hello, then the end; a reset if it left something unread.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() <= 16);
    }
    // Who is silent is put out when there are too many.
    let silent: Vec<UnixStream> =
        (0..100).map(|_| UnixStream::connect(house.files().socket).unwrap()).collect();
    assert_eq!(house.connect().describe().pid, running.agent);
    drop(silent);
    let mut next: Talk = house.connect();
    next.describe();
    running.daemon.send(&ToShim::Describe);
    assert!(matches!(running.daemon.receive(), Some(FromShim::Facts(_))));
    running.stop(LONG);
}

#[test]
fn a_newer_daemon_is_understood() {
    let house = House::new();
    let mut running = house.start_ready("echo ready; exec sleep 1000");
    let mut stream = UnixStream::connect(house.files().socket).unwrap();
    stream.write_all(&ShimHello { protocol: ShimHello::OURS.protocol + 1 }.to_bytes()).unwrap();
    let mut hello = [0; 16];
    stream.read_exact(&mut hello).unwrap();
    // From this it knows which words to use.
    assert_eq!(ShimHello::from_bytes(hello), Some(ShimHello::OURS));
    stream.write_all(&mcp_restart_protocol::codec::to_frame(&ToShim::Describe).unwrap()).unwrap();
    assert!(stream.read(&mut hello).unwrap() > 0);
    running.daemon.describe();
    running.stop(LONG);
}

#[test]
fn a_second_shim_cannot_have_the_agent_while_the_first_lives() {
    let house = House::new();
    let mut running = house.start_ready(". $MARK/hold");
    assert_matches_lock_held(&house);
    let (mut second, daemon) = house.shim();
    // It is put off by its daemon, not by a time that has passed.
    let mut daemon = daemon;
    daemon.send(&ToShim::Launch(Box::new(house.script("echo twice"))));
    second.signal(Signal::KILL);
    second.expect_end();
    assert_eq!(house.marked().len(), 1);
    running.stop(LONG);
}

fn assert_matches_lock_held(house: &House) {
    assert!(matches!(LockFile::try_acquire(&house.files().lock), Err(LockError::Held { holder: Some(_) })));
}
