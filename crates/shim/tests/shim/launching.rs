//! What an agent is given, and what is told when it cannot be started.

use crate::harness::{House, NAME};
use mcp_restart_process::Signal;
use mcp_restart_protocol::shim::ToShim;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{SigSet, SigmaskHow, Signal as NixSignal, pthread_sigmask};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

#[test]
fn an_agent_begins_with_a_clean_slate() {
    let house = House::new();
    // What a careless launcher leaves: an open pipe, a blocked signal. The test program itself ignores SIGPIPE.
    let (mut reader, writer) = std::io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let blocked: SigSet = [NixSignal::SIGUSR1, NixSignal::SIGTERM].into_iter().collect();
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&blocked), Some(&mut before)).unwrap();
    let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls -1 /proc/$$/fd; cat; echo end";
    let mut running = house.start(house.script(script));
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None).unwrap();
    running.lines.expect("SigBlk:\t0000000000000000");
    running.lines.expect("SigIgn:\t0000000000000000");
    for descriptor in ["0", "1", "2"] {
        running.lines.expect(descriptor);
    }
    running.lines.expect("end");
    drop(writer);
    // Other tests' children may hold a copy for the moment between their fork and exec, no longer.
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    running.daemon.expect_exited();
}

#[test]
fn an_agent_leads_a_session_of_its_own_and_has_no_terminal() {
    let house = House::new();
    let script = "cut -d' ' -f5-7 /proc/$$/stat; (: </dev/tty) 2>/dev/null || echo no terminal";
    let mut running = house.start(house.script(script));
    let agent = running.agent;
    running.lines.expect(&format!("{agent} {agent} 0"));
    running.lines.expect("no terminal");
    running.daemon.expect_exited();
}

#[test]
fn an_agent_has_exactly_the_environment_the_arguments_and_the_folder_that_were_given() {
    let house = House::new();
    let mut launch = house.program(&["/usr/bin/env", "sh", "-c", "env; echo \"$#\"; pwd", "zero", "one", ""]);
    launch.environment =
        vec![(b"PATH".to_vec(), b"/usr/bin:/bin".to_vec()), (b"ODD".to_vec(), b"a=b c".to_vec())];
    launch.cwd = b"/usr".to_vec();
    let mut running = house.start(launch);
    let mut lines: Vec<String> = (0..5).map(|_| running.lines.next()).collect();
    assert_eq!(lines.split_off(3), ["2", "/usr"]);
    lines.sort();
    // The shell adds its own PWD.
    assert_eq!(lines, ["ODD=a=b c", "PATH=/usr/bin:/bin", "PWD=/usr"]);
    running.daemon.expect_exited();
}

#[test]
fn reasons_why_an_agent_cannot_be_started_are_told_apart() {
    let house = House::new();
    let file = |name: &str, content: &str, mode: u32| {
        let path = house.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let locked = file("locked", "#!/bin/sh\n", 0o600);
    let bare = file("bare", "echo hello\n", 0o700);
    let orphan = file("orphan", "#!/no/such/interpreter -x\n", 0o700);
    let folder = house.path().to_str().unwrap().to_owned();
    let attempts = [
        ("/no/such/program", "/", "execute /no/such/program".to_owned(), Errno::ENOENT),
        (&locked, "/", format!("execute {locked}"), Errno::EACCES),
        (
            &bare,
            "/",
            format!("execute {bare}, which is neither a program nor a script that begins with #!"),
            Errno::ENOEXEC,
        ),
        (&folder, "/", format!("execute {folder}, which is a folder"), Errno::EACCES),
        (
            &orphan,
            "/",
            format!("execute {orphan}, which needs /no/such/interpreter, which does not exist"),
            Errno::ENOENT,
        ),
        ("/bin/sh", "/no/such/folder", "enter the folder /no/such/folder".to_owned(), Errno::ENOENT),
        ("/bin/sh", &bare, format!("enter the folder {bare}"), Errno::ENOTDIR),
        ("/bin/s\0h", "/", "prepare the start".to_owned(), Errno::EINVAL),
    ];
    for (program, cwd, step, errno) in attempts {
        let (_shim, mut daemon) = house.shim();
        let mut launch = house.program(&[program]);
        launch.cwd = cwd.as_bytes().to_vec();
        daemon.send(&ToShim::Launch(Box::new(launch)));
        assert_eq!(daemon.expect_spawn_failure(), (step, errno as i32));
        daemon.expect_end();
        assert!(!house.files().socket.exists());
        assert!(!house.files().facts.exists());
    }
    let log = fs::read_to_string(house.path().join("log")).unwrap();
    assert!(
        log.contains("--- mcp-restart: not started: cannot enter the folder /no/such/folder: No such file"),
        "{log}"
    );
}

#[test]
fn a_log_that_is_a_symbolic_link_is_a_failure_that_names_it() {
    let house = House::new();
    let log = house.path().join("log");
    std::os::unix::fs::symlink("/dev/null", &log).unwrap();
    let (_shim, mut daemon) = house.shim();
    daemon.send(&ToShim::Launch(Box::new(house.script("exit"))));
    let step = format!("open the log {}, which is a symbolic link", log.display());
    assert_eq!(daemon.expect_spawn_failure(), (step, Errno::ELOOP as i32));
}

#[test]
fn an_unregistered_path_starts_nothing() {
    let house = House::new();
    let (_shim, mut daemon) = house.shim();
    let mut launch = house.script("exit");
    launch.path = "pkill".to_owned();
    daemon.send(&ToShim::Launch(Box::new(launch)));
    let (step, _) = daemon.expect_spawn_failure();
    assert_eq!(step, "\"pkill\" is not a registered restart path");
    assert!(!house.path().join("log").exists());
}

#[test]
fn what_a_shim_writes_down_identifies_it_and_its_agent_and_is_for_its_user_alone() {
    let house = House::new();
    let mut running = house.start_ready("echo ready; exec sleep 1000");
    let facts = house.facts();
    assert_eq!((facts.name.as_str(), facts.generation, facts.launch_hash), (NAME, 1, 7));
    assert_eq!(facts.agent.pid, running.agent);
    assert_eq!(facts.shim.pid, running.shim.child.pid());
    assert!(facts.agent_identity().is_alive());
    assert!(facts.shim_identity().is_alive());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let files = house.files();
    assert_eq!([mode(&files.facts), mode(&files.socket), mode(&files.lock)], [0o600; 3]);
    running.stop(Duration::from_secs(10));
    assert!(!facts.agent_identity().is_alive());
}

#[test]
fn the_shim_of_the_next_incarnation_waits_for_the_one_before() {
    let house = House::new();
    let mut first = house.start_ready("echo ready; exec sleep 1000");
    let (_next_shim, mut next) = house.shim();
    let mut launch = house.script("echo next; exec sleep 1000");
    launch.generation = 2;
    next.send(&ToShim::Launch(Box::new(launch)));
    first.stop(Duration::from_secs(10));
    assert_eq!(house.marked(), [], "two at a time");
    first.acknowledge();
    next.expect_started();
    assert_eq!(next.describe().generation, 2);
    assert!(house.files().socket.exists());
    next.ask_to_stop(Signal::KILL, Duration::ZERO);
    next.expect_exited();
}

#[test]
fn a_program_that_is_open_for_writing_is_waited_for() {
    let house = House::new();
    let program = house.path().join("program");
    fs::copy("/bin/sleep", &program).unwrap();
    let writer = fs::File::options().append(true).open(&program).unwrap();
    let mut lines = house.pipe_log();
    let (_shim, mut daemon) = house.shim();
    let launch = house.program(&[program.to_str().unwrap(), "1000"]);
    daemon.send(&ToShim::Launch(Box::new(launch)));
    // It is about to be executed.
    lines.note("generation 1 started");
    drop(writer);
    daemon.expect_started();
    daemon.ask_to_stop(Signal::TERMINATE, Duration::from_secs(1000));
    daemon.expect_exited();
}

#[test]
fn a_launch_is_taken_once_and_from_nobody_else() {
    let house = House::new();
    let mut running = house.start_ready("echo ready; exec sleep 1000");
    let again = ToShim::Launch(Box::new(house.script("echo twice")));
    running.daemon.send(&again);
    running.daemon.expect_refusal();
    let mut other = house.connect();
    other.send(&again);
    other.expect_refusal();
    running.stop(Duration::from_secs(10));
}

#[test]
fn a_shim_that_gets_no_launch_ends_with_its_daemon() {
    let house = House::new();
    let (mut shim, daemon) = house.shim();
    drop(daemon);
    shim.expect_end();
    assert_eq!(fs::read_dir(house.path().join("run")).unwrap().count(), 0);
}

#[test]
#[cfg_attr(feature = "portable", ignore = "only Linux can be asked to kill a process with its parent")]
fn an_agent_dies_with_its_shim() {
    let house = House::new();
    let alive = house.make_pipe("alive");
    // Opened by both at the same time, and at its end when nobody has it for writing any more.
    let reader = std::thread::spawn(move || fs::read(alive).unwrap());
    let running = house.start_ready("exec 3>$MARK/alive; echo ready; exec sleep 1000");
    running.shim.signal(Signal::KILL);
    assert_eq!(reader.join().unwrap().len(), 0);
}
