//! A test's own small daemon.

use mcp_restart_paths::RestartPath;
use mcp_restart_process::tree::Process;
use mcp_restart_process::{Child, Signal, Spawn};
use mcp_restart_protocol::codec::{take_frame, to_frame};
use mcp_restart_protocol::shim::{
    FromShim, KeepChildren, SHIM_HELLO_LEN, ShimExit, ShimFacts, ShimHello, ShimLaunch, ToShim,
};
use mcp_restart_shim::{Facts, RunFiles, ShimArgs, find_shims};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind, PipeReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(20);

/// The agent's name in every test.
pub(crate) const NAME: &str = "Agent";

/// A state dir in which shims of one agent are started.
pub(crate) struct House {
    state_dir: TempDir,
}

/// A shim with an agent, and the daemon's connection to it.
pub(crate) struct Running {
    pub(crate) daemon: Talk,
    pub(crate) agent: u32,
    /// What the agent writes, line by line.
    pub(crate) lines: Lines,
    /// Declared last: it is ended when the connection is closed.
    pub(crate) shim: ShimChild,
}

/// A shim that is ended with its test.
pub(crate) struct ShimChild {
    pub(crate) child: Child,
    /// The shim has the other end as 1 and 2; nobody else has.
    end: PipeReader,
}

/// A connection to a shim.
pub(crate) struct Talk {
    stream: UnixStream,
    inbox: Vec<u8>,
}

/// The reading end of a log that is a named pipe.
pub(crate) struct Lines(BufReader<File>);

impl House {
    pub(crate) fn new() -> Self {
        let house = Self { state_dir: tempfile::tempdir().unwrap() };
        fs::create_dir(house.path().join("run")).unwrap();
        house.make_pipe("never");
        fs::write(house.path().join("hold"), "exec 3<>$MARK/never; echo ready; read line <&3").unwrap();
        house
    }

    pub(crate) fn path(&self) -> &Path {
        self.state_dir.path()
    }

    pub(crate) fn files(&self) -> RunFiles {
        RunFiles::new(self.path(), &mcp_restart_shim::run_id(NAME))
    }

    /// What the shim wrote down last.
    pub(crate) fn facts(&self) -> Facts {
        let found = find_shims(self.path()).unwrap();
        assert_eq!(found.len(), 1);
        found.into_iter().next().unwrap().facts.unwrap().unwrap()
    }

    pub(crate) fn daemon_lock(&self) -> PathBuf {
        self.path().join("mcp-restartd.lock")
    }

    /// A launch of a shell script. This house's folder is in `$MARK`; `sh $MARK/hold` says `ready` and
    /// stays, without another exec or fork.
    pub(crate) fn script(&self, script: &str) -> ShimLaunch {
        self.program(&["/bin/sh", "-c", script])
    }

    pub(crate) fn program(&self, argv: &[&str]) -> ShimLaunch {
        let bytes = |text: &str| text.as_bytes().to_vec();
        ShimLaunch {
            name: NAME.to_owned(),
            generation: 1,
            launch_hash: 7,
            path: RestartPath::CtlStart.id().to_owned(),
            program: bytes(argv[0]),
            argv: argv.iter().map(|arg| bytes(arg)).collect(),
            environment: vec![
                (bytes("PATH"), bytes("/usr/bin:/bin")),
                (bytes("MARK"), bytes(self.path().to_str().unwrap())),
                // As a daemon marks its agents.
                (bytes("MCP_RESTART_SOCKET"), bytes(self.path().join("socket").to_str().unwrap())),
                (bytes("MCP_RESTART_AGENT"), bytes(NAME)),
                (bytes("MCP_RESTART_GENERATION"), bytes("1")),
            ],
            cwd: bytes("/"),
            terminal: None,
            log_file: bytes(self.path().join("log").to_str().unwrap()),
            log_max_bytes: 0,
            log_keep: 3,
            keep_children: KeepChildren::Named(Vec::new()),
        }
    }

    /// A shim that waits for its launch.
    pub(crate) fn shim(&self) -> (ShimChild, Talk) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let program = PathBuf::from(env!("CARGO_BIN_EXE_mcp-restart-shim-fixture"));
        let (end, writer) = std::io::pipe().unwrap();
        let spawn = ShimArgs::for_agent(self.path(), NAME, 1024).spawn(program, OwnedFd::from(theirs));
        let spawn = Spawn { output: Some(OwnedFd::from(writer)), ..spawn };
        let child = mcp_restart_process::spawn(RestartPath::CtlStart, spawn).unwrap();
        (ShimChild { child, end }, Talk::over(ours))
    }

    /// A running agent whose log is a named pipe, so that each of its lines can be waited for.
    pub(crate) fn start(&self, launch: ShimLaunch) -> Running {
        let lines = self.pipe_log();
        let (shim, mut daemon) = self.shim();
        daemon.send(&ToShim::Launch(Box::new(launch)));
        let agent = daemon.expect_started();
        Running { daemon, agent, lines, shim }
    }

    /// Starts a script and waits for its first line, which has to be `ready`.
    pub(crate) fn start_ready(&self, script: &str) -> Running {
        let mut running = self.start(self.script(script));
        running.lines.expect("ready");
        running
    }

    /// A named pipe by which a script can be told to go on, or tell that it is gone: `$MARK/NAME`.
    pub(crate) fn make_pipe(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        make_pipe(&path);
        path
    }

    /// Another connection to the shim that runs.
    pub(crate) fn connect(&self) -> Talk {
        Talk::over(UnixStream::connect(self.files().socket).unwrap())
    }

    /// Makes the log a named pipe.
    pub(crate) fn pipe_log(&self) -> Lines {
        Lines::open(&self.make_pipe("log"))
    }

    /// The processes that carry this house's mark in their environment.
    pub(crate) fn marked(&self) -> Vec<Process> {
        let mark = format!("MARK={}", self.path().display());
        let carries = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
        };
        fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
            .filter(carries)
            .filter_map(Process::of)
            .filter(|process| !process.is_zombie())
            .collect()
    }
}

impl Running {
    pub(crate) fn stop(&mut self, grace: Duration) -> ShimExit {
        self.daemon.ask_to_stop(Signal::TERMINATE, grace);
        self.daemon.expect_exited()
    }

    /// Acknowledges the exit and waits until the shim has ended.
    pub(crate) fn acknowledge(mut self) {
        self.daemon.send(&ToShim::Acknowledge);
        self.daemon.expect_end();
    }
}

impl Talk {
    pub(crate) fn over(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut talk = Self { stream, inbox: Vec::new() };
        talk.stream.write_all(&ShimHello::OURS.to_bytes()).unwrap();
        let mut hello = [0; SHIM_HELLO_LEN];
        talk.stream.read_exact(&mut hello).unwrap();
        assert_eq!(ShimHello::from_bytes(hello), Some(ShimHello::OURS));
        talk
    }

    pub(crate) fn send(&mut self, message: &ToShim) {
        self.stream.write_all(&to_frame(message).unwrap()).unwrap();
    }

    /// The next message; `None` when the shim has closed the connection.
    pub(crate) fn receive(&mut self) -> Option<FromShim> {
        let mut buffer = [0; 16 * 1024];
        loop {
            if let Some(message) = take_frame(&mut self.inbox).unwrap() {
                return Some(message);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(read) => self.inbox.extend_from_slice(&buffer[..read]),
                // The shim closed it with something of ours unread.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                // A read with a time limit is not taken up again after the process was frozen.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    pub(crate) fn ask_to_stop(&mut self, signal: Signal, grace: Duration) {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap();
        let path = RestartPath::CtlStop.id().to_owned();
        self.send(&ToShim::Stop { path, signal: signal.number(), grace_ms });
    }

    pub(crate) fn describe(&mut self) -> ShimFacts {
        self.send(&ToShim::Describe);
        match self.receive() {
            Some(FromShim::Facts(facts)) => *facts,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn expect_started(&mut self) -> u32 {
        match self.receive() {
            Some(FromShim::Started { pid, .. }) => pid,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn expect_exited(&mut self) -> ShimExit {
        match self.receive() {
            Some(FromShim::Exited(exit)) => exit,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn expect_spawn_failure(&mut self) -> (String, i32) {
        match self.receive() {
            Some(FromShim::SpawnFailed { step, errno }) => (step, errno),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn expect_refusal(&mut self) -> String {
        match self.receive() {
            Some(FromShim::Refused { reason }) => reason,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn expect_end(&mut self) {
        assert_eq!(self.receive(), None);
    }
}

impl Lines {
    fn open(path: &Path) -> Self {
        // For writing, too, so that opening waits for nobody.
        Self(BufReader::new(File::options().read(true).write(true).open(path).unwrap()))
    }

    /// The next line of the agent; those of the shim are passed over.
    pub(crate) fn next(&mut self) -> String {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let line = line.trim_end().to_owned();
            if !line.starts_with("--- mcp-restart: ") && !line.is_empty() {
                return line;
            }
        }
    }

    /// The next line of the shim that contains this; others are passed over.
    pub(crate) fn note(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            if line.starts_with("--- mcp-restart: ") && line.contains(text) {
                return line;
            }
        }
    }

    pub(crate) fn expect(&mut self, line: &str) {
        assert_eq!(self.next(), line);
    }
}

impl ShimChild {
    pub(crate) fn signal(&self, signal: Signal) {
        self.child.signal(RestartPath::AbandonedShim, signal).unwrap();
    }

    /// Waits until it has ended.
    pub(crate) fn expect_end(&mut self) {
        assert_eq!(self.end.read(&mut [0]).unwrap(), 0);
    }
}

impl Drop for ShimChild {
    fn drop(&mut self) {
        // Its agent's leader dies with it; a test that went well has left nothing below that.
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.signal(RestartPath::AbandonedShim, Signal::KILL);
        }
    }
}

fn make_pipe(path: &Path) {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
}
