//! The daemon's own children: shims and the bridge.

use crate::facts;
use crate::launch::{self, Launch, Role};
use crate::signal::Signal;
use crate::system;
use mcp_restart_paths::RestartPath;
use nix::errno::Errno;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::ptr;

/// A program to start. It gets no descriptor but those named here.
#[derive(Debug)]
pub struct Spawn {
    /// An absolute path.
    pub program: PathBuf,
    /// What the program is told that it is called; the path if `None`.
    pub arg0: Option<OsString>,
    /// The arguments after that.
    pub args: Vec<OsString>,
    /// The whole environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Descriptor 0; `/dev/null` if `None`.
    pub stdin: Option<OwnedFd>,
    /// Descriptors 1 and 2; `/dev/null` if `None`.
    pub output: Option<OwnedFd>,
    /// Become 3, 4, … and are announced by `LISTEN_FDS` and `LISTEN_PID`. Without any, the start takes
    /// the fast way that copies no page table.
    pub inherited: Vec<OwnedFd>,
}

/// A child of this process.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    exit: Option<Exit>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By a signal.
    Signal(Signal),
}

/// Starts a program, which is a child of this process until [`Child::try_wait`] tells its end.
pub fn spawn(path: RestartPath, spawn: Spawn) -> io::Result<Child> {
    let pid =
        if spawn.inherited.is_empty() { spawn_fast(spawn)? } else { spawn_with_listeners(path, &spawn)? };
    Ok(Child { pid, exit: None })
}

/// The program that this process runs. Where the system can, it is started also after it was replaced on disk.
pub fn own_executable() -> io::Result<PathBuf> {
    system::own_executable()
}

impl Child {
    /// A child that [`sibling::fork`](crate::sibling::fork) has made in another child of this process.
    pub fn forked(pid: u32) -> Self {
        Self { pid, exit: None }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, if it has ended; never waits. The answer stays.
    pub fn try_wait(&mut self) -> io::Result<Option<Exit>> {
        if self.exit.is_none() {
            self.exit = wait_without_blocking(self.pid.cast_signed())?.map(|(_, exit)| exit);
        }
        Ok(self.exit)
    }

    /// Sends a signal. To a child that has ended it is an error (`ESRCH`) once [`Child::try_wait`] told
    /// so, and does nothing before.
    pub fn signal(&self, _path: RestartPath, signal: Signal) -> io::Result<()> {
        if self.exit.is_some() {
            return Err(Errno::ESRCH.into());
        }
        // SAFETY: kill takes two numbers and touches no memory. The number is this child's until it is
        // waited for, which nobody else does.
        Errno::result(unsafe { libc::kill(self.pid.cast_signed(), signal.number()) })?;
        Ok(())
    }
}

/// The exit of the child with this number, or of any (-1), if one has ended.
pub(crate) fn wait_without_blocking(pid: i32) -> io::Result<Option<(u32, Exit)>> {
    let mut status = 0;
    // SAFETY: the call writes one int, which outlives it.
    let pid =
        Errno::result(unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG | facts::WAIT_FOR_ANY) })?;
    // nix's WaitStatus knows no realtime signals: it loses the child that one of them killed.
    let exit = if libc::WIFSIGNALED(status) {
        Signal::from_number(libc::WTERMSIG(status)).map(Exit::Signal)
    } else {
        Some(Exit::Code(libc::WEXITSTATUS(status)))
    };
    Ok(exit.filter(|_| pid > 0).map(|exit| (pid.cast_unsigned(), exit)))
}

/// Waits for a child that is ending.
pub(crate) fn wait(pid: u32) {
    // SAFETY: the call is not asked for the status, so it writes nothing.
    let waited =
        || Errno::result(unsafe { libc::waitpid(pid.cast_signed(), ptr::null_mut(), facts::WAIT_FOR_ANY) });
    while waited() == Err(Errno::EINTR) {}
}

#[expect(clippy::disallowed_methods, reason = "the place to which the ban sends everybody else")]
fn spawn_fast(spawn: Spawn) -> io::Result<u32> {
    let mut command = Command::new(&spawn.program);
    if let Some(arg0) = &spawn.arg0 {
        command.arg0(arg0);
    }
    let errors = spawn.output.as_ref().map(OwnedFd::try_clone).transpose()?;
    let stdio = |descriptor: Option<OwnedFd>| descriptor.map_or_else(Stdio::null, Stdio::from);
    command.args(&spawn.args).env_clear().envs(spawn.environment);
    command.stdin(stdio(spawn.stdin)).stdout(stdio(spawn.output)).stderr(stdio(errors));
    Ok(command.spawn()?.id())
}

fn spawn_with_listeners(path: RestartPath, spawn: &Spawn) -> io::Result<u32> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    let or_null = |descriptor: &'_ Option<OwnedFd>| -> io::Result<OwnedFd> {
        descriptor.as_ref().map_or_else(|| null.as_fd(), OwnedFd::as_fd).try_clone_to_owned()
    };
    let (stdin, output) = (or_null(&spawn.stdin)?, or_null(&spawn.output)?);
    let mut descriptors = vec![stdin.as_fd(), output.as_fd(), output.as_fd()];
    descriptors.extend(spawn.inherited.iter().map(OwnedFd::as_fd));
    let called = spawn.arg0.clone().unwrap_or_else(|| spawn.program.clone().into_os_string());
    let argv: Vec<OsString> = std::iter::once(called).chain(spawn.args.iter().cloned()).collect();
    let launch = Launch {
        program: &spawn.program,
        argv: &argv,
        environment: &spawn.environment,
        cwd: None,
        descriptors: &descriptors as &[BorrowedFd<'_>],
        role: Role::Listener,
    };
    Ok(launch::launch(path, &launch)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read as _};

    fn shell(script: &str) -> (Spawn, PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        let spawn = Spawn {
            program: "/bin/sh".into(),
            arg0: Some("renamed".into()),
            args: vec!["-c".into(), script.into()],
            environment: vec![("PATH".into(), "/usr/bin:/bin".into()), ("ONLY".into(), "this".into())],
            stdin: None,
            output: Some(writer.into()),
            inherited: Vec::new(),
        };
        (spawn, reader)
    }

    fn output(mut reader: PipeReader) -> String {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_child_gets_what_is_named_and_its_exit_is_told_for_good() {
        let (spec, reader) = shell("cat; echo \"$0 $ONLY $HOME\"; exit 3");
        let mut child = spawn(RestartPath::BridgeChild, spec).unwrap();
        assert_eq!(output(reader), "renamed this \n");
        // The output is closed a moment before the end.
        let exit = loop {
            if let Some(exit) = child.try_wait().unwrap() {
                break exit;
            }
            std::thread::yield_now();
        };
        assert_eq!(exit, Exit::Code(3));
        assert_eq!(child.try_wait().unwrap(), Some(exit));
        assert!(child.signal(RestartPath::BridgeChild, Signal::TERMINATE).is_err());
    }

    #[test]
    fn a_server_finds_its_sockets_by_number() {
        let (reader, first) = io::pipe().unwrap();
        let (other_reader, second) = io::pipe().unwrap();
        let (mut spec, errors) =
            shell("echo \"$LISTEN_FDS $LISTEN_PID $$\" >&3; exec >&4; echo second; ls /proc/$$/fd");
        spec.inherited = vec![first.into(), second.into()];
        let child = spawn(RestartPath::BridgeChild, spec).unwrap();
        let pid = child.pid();
        assert_eq!(output(reader), format!("2 {pid} {pid}\n"));
        assert_eq!(output(other_reader), "second\n0\n1\n2\n3\n4\n");
        assert_eq!(output(errors), "");
        wait(pid);
    }

    #[test]
    fn a_server_that_cannot_be_executed_leaves_no_child() {
        let (mut spec, reader) = shell("");
        spec.program = "/no/such/program".into();
        spec.inherited = vec![reader.into()];
        let error = spawn(RestartPath::BridgeChild, spec).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(
            error.to_string(),
            "cannot execute /no/such/program: No such file or directory (os error 2)"
        );
    }
}
