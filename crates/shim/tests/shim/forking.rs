//! Shims that are forked from another process.

use crate::harness::{House, Talk};
use mcp_restart_paths::RestartPath;
use mcp_restart_process::{Child, Signal, send_with_descriptor, spawn};
use mcp_restart_protocol::shim::ToShim;
use mcp_restart_shim::{ForkAnswer, ForkRequest, ShimArgs};
use std::fs;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

const NAME: &str = crate::harness::NAME;

/// A fork server, and the socket over which it is asked.
fn fork_server(house: &House) -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_mcp-restart-shim-fixture"));
    let args = ShimArgs::for_agent(house.path(), NAME, 1024).fork_server();
    let child = spawn(RestartPath::CtlStart, args.spawn(program, theirs.into())).unwrap();
    (child, ours)
}

fn fork(server: &mut UnixStream) -> (Child, Talk) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let request = ForkRequest { id: mcp_restart_shim::run_id(NAME), path: RestartPath::CtlStart };
    send_with_descriptor(server, &request.to_bytes(), theirs.as_fd()).unwrap();
    let mut answer = [0; ForkAnswer::LENGTH];
    server.read_exact(&mut answer).unwrap();
    let ForkAnswer::Forked(pid) = ForkAnswer::from_bytes(answer) else { panic!("{answer:?}") };
    drop(theirs);
    (Child::forked(pid), Talk::over(ours))
}

#[test]
#[cfg_attr(feature = "portable", ignore = "only Linux forks siblings")]
fn a_forked_shim_is_like_one_that_was_started_and_outlives_the_process_that_it_was_forked_from() {
    let house = House::new();
    let mut lines = house.pipe_log();
    let (server_child, mut server) = fork_server(&house);
    let (shim, mut daemon) = fork(&mut server);
    let status = fs::read_to_string(format!("/proc/{}/status", shim.pid())).unwrap();
    for line in [format!("PPid:\t{}\n", std::process::id()), format!("NSsid:\t{}\n", shim.pid())] {
        assert!(status.contains(&line), "{status}");
    }
    let arguments = fs::read_to_string(format!("/proc/{}/cmdline", shim.pid())).unwrap();
    assert!(arguments.contains(&format!("\0--id\0{}\0", mcp_restart_shim::run_id(NAME))), "{arguments}");
    // It has nothing of the fork server's: not the socket over which that is asked either.
    drop(server);
    server_child.signal(RestartPath::AbandonedShim, Signal::KILL).unwrap();
    daemon.send(&ToShim::Launch(Box::new(
        house.script("grep ^Sig[BI] /proc/self/status; ls /proc/$$/fd; sh $MARK/hold"),
    )));
    daemon.expect_started();
    for line in ["SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000", "0", "1", "2", "ready"] {
        lines.expect(line);
    }
    daemon.ask_to_stop(Signal::TERMINATE, Duration::from_secs(10));
    daemon.expect_exited();
    daemon.send(&ToShim::Acknowledge);
    daemon.expect_end();
}

#[test]
#[cfg_attr(feature = "portable", ignore = "only Linux forks siblings")]
fn a_fork_server_ends_with_its_daemon() {
    let house = House::new();
    let (_server_child, mut server) = fork_server(&house);
    // It holds nothing of the fork server's that would keep this from ending.
    let _waiting = fork(&mut server);
    server.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
}
