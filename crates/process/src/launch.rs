//! Starting a program in steps that can be told apart when one fails.
//!
//! ```text
//!  parent                                     child
//!  block signals, fork ──────────────────────► own session, dies with the parent
//!    (waits until exec)                        descriptors 0, 1, 2 …; the rest closes on exec
//!                                             terminal, folder
//!                                             dispositions, then mask, to their defaults
//!  restore signals ◄── exec, or _exit after the failed step and its errno are noted
//! ```
//!
//! Until exec the child calls nothing that is not async-signal-safe: whatever it needs was allocated before.

use crate::child;
use crate::descriptor::duplicate_beyond;
use crate::facts;
use crate::preflight::{self, Unusable};
use crate::system;
use mcp_restart_paths::RestartPath;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

/// So long a program that is open for writing is waited for.
const BUSY: Duration = Duration::from_secs(1);
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// A program to start.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// An absolute path.
    pub program: &'a Path,
    /// The arguments, the program's name included.
    pub argv: &'a [OsString],
    /// The whole environment.
    pub environment: &'a [(OsString, OsString)],
    /// Where it runs; where this process does if `None`.
    pub cwd: Option<&'a Path>,
    /// Become 0, 1, 2 and so on. The program gets no other.
    pub descriptors: &'a [BorrowedFd<'a>],
    /// What else it gets.
    pub role: Role,
}

/// What a program is started as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The leader of a session of its own, which dies with this process.
    Agent {
        /// Descriptor 0 becomes the session's controlling terminal.
        terminal: bool,
    },
    /// A server that finds its listening sockets, the descriptors from 3 on, by `LISTEN_FDS` and
    /// `LISTEN_PID`; in a session of its own, so that a terminal's interrupt is not meant for it.
    Listener,
}

/// Why a program could not be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchError {
    step: String,
    errno: i32,
}

/// Starts a program and returns its process id. If that fails, nothing of it is left.
///
/// An agent's program that somebody has open for writing is waited for, a second at most: whoever has just installed it may
/// be about to close it, or have forked while it was open.
pub fn launch(_path: RestartPath, launch: &Launch<'_>) -> Result<u32, LaunchError> {
    let is_agent = matches!(launch.role, Role::Agent { .. });
    let deadline = Instant::now() + BUSY;
    loop {
        match attempt(launch) {
            Err(error) if is_agent && error.errno == libc::ETXTBSY && Instant::now() < deadline => {
                thread::sleep(BUSY_PAUSE);
            }
            started => return started,
        }
    }
}

fn attempt(launch: &Launch<'_>) -> Result<u32, LaunchError> {
    let prepare = |error: io::Error| LaunchError::new("prepare the start".to_owned(), &error);
    let mut plan = Plan::new(launch).map_err(prepare)?;
    // A handler of ours must not run in the child.
    let mut before = SigSet::empty();
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))
        .map_err(|errno| prepare(errno.into()))?;
    let started = system::start(&mut plan);
    // The mask is one that this process had: it is valid.
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    let pid = started.map_err(|error| LaunchError::new("fork".to_owned(), &error))?;
    match plan.failure {
        None => Ok(pid),
        Some((step, errno)) => {
            child::wait(pid);
            Err(step.explain(launch, errno))
        }
    }
}

impl Step {
    fn explain(self, launch: &Launch<'_>, errno: i32) -> LaunchError {
        let cwd = launch.cwd.unwrap_or(Path::new(""));
        let step = match self {
            Self::Session => "start a session".to_owned(),
            Self::Descriptors => "set up the descriptors".to_owned(),
            Self::Terminal => "take the terminal".to_owned(),
            Self::Folder => format!("enter the folder {}", cwd.display()),
            Self::Execute => format!("execute {}{}", launch.program.display(), exec_detail(launch)),
        };
        LaunchError { step, errno }
    }
}

impl LaunchError {
    fn new(step: String, error: &io::Error) -> Self {
        Self { step, errno: error.raw_os_error().unwrap_or(libc::EINVAL) }
    }

    /// What was tried, for a person: `execute /usr/bin/x`.
    pub fn step(&self) -> &str {
        &self.step
    }

    /// The system's error number.
    pub fn errno(&self) -> i32 {
        self.errno
    }
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.step, io::Error::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for LaunchError {}

impl From<LaunchError> for io::Error {
    fn from(error: LaunchError) -> Self {
        Self::new(Self::from_raw_os_error(error.errno).kind(), error)
    }
}

/// What the child does, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Session,
    Descriptors,
    Terminal,
    Folder,
    Execute,
}

const LISTEN_PID: &[u8] = b"LISTEN_PID=";

/// Everything that the child needs, allocated.
pub(crate) struct Plan {
    program: CString,
    /// Owns what `argv_pointers` points to.
    _argv: Vec<CString>,
    argv_pointers: Vec<*const libc::c_char>,
    /// Owns what `environment_pointers` points to.
    _environment: Vec<CString>,
    environment_pointers: Vec<*const libc::c_char>,
    /// `LISTEN_PID=` and room for a number and a zero; empty unless wanted.
    listen_pid: Vec<u8>,
    cwd: Option<CString>,
    /// All beyond the numbers that they are to become, so that none is overwritten before its turn.
    descriptors: Vec<OwnedFd>,
    role: Role,
    parent: libc::pid_t,
    /// What the child could not do, and the error number.
    pub(crate) failure: Option<(Step, i32)>,
}

impl Plan {
    fn new(launch: &Launch<'_>) -> io::Result<Self> {
        let taken = i32::try_from(launch.descriptors.len()).map_err(io::Error::other)?.max(3);
        let descriptors = launch.descriptors.iter().map(|descriptor| duplicate_beyond(*descriptor, taken));
        let descriptors = descriptors.collect::<io::Result<Vec<_>>>()?;

        let argv = launch.argv.iter().map(|arg| c_string(arg)).collect::<io::Result<Vec<_>>>()?;
        let mut environment = launch.environment.iter().map(variable).collect::<io::Result<Vec<_>>>()?;
        let mut listen_pid = Vec::new();
        if launch.role == Role::Listener {
            let count = launch.descriptors.len().saturating_sub(3);
            environment.push(c_string(OsStr::new(&format!("LISTEN_FDS={count}")))?);
            listen_pid = [LISTEN_PID, &[0; 11]].concat();
        }
        let mut environment_pointers: Vec<_> = environment.iter().map(|text| text.as_ptr()).collect();
        if !listen_pid.is_empty() {
            environment_pointers.push(listen_pid.as_ptr().cast());
        }
        environment_pointers.push(ptr::null());
        Ok(Self {
            program: c_string(launch.program.as_os_str())?,
            argv_pointers: argv.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect(),
            _argv: argv,
            environment_pointers,
            _environment: environment,
            listen_pid,
            cwd: launch.cwd.map(|cwd| c_string(cwd.as_os_str())).transpose()?,
            descriptors,
            role: launch.role,
            parent: nix::unistd::getpid().as_raw(),
            failure: None,
        })
    }

    /// The first number that the program does not get.
    pub(crate) fn beyond(&self) -> RawFd {
        RawFd::try_from(self.descriptors.len()).unwrap_or(3)
    }

    /// Returns the step that failed; `errno` tells why.
    pub(crate) fn steps(&mut self) -> Step {
        // SAFETY: no arguments.
        if unsafe { libc::setsid() } < 0 {
            return Step::Session;
        }
        if matches!(self.role, Role::Agent { .. }) && !system::die_with(self.parent) {
            return Step::Session;
        }
        for (number, descriptor) in (0..).zip(&self.descriptors) {
            // SAFETY: both are numbers; the copy does not close itself on exec.
            if unsafe { libc::dup2(descriptor.as_raw_fd(), number) } < 0 {
                return Step::Descriptors;
            }
        }
        system::close_on_exec_from(self.beyond());
        if self.role == (Role::Agent { terminal: true }) {
            // SAFETY: the request takes a number; 0: not from another session that has it.
            if unsafe { libc::ioctl(0, facts::TAKE_TERMINAL, 0) } < 0 {
                return Step::Terminal;
            }
        }
        if let Some(cwd) = &self.cwd {
            // SAFETY: the text ends with a zero.
            if unsafe { libc::chdir(cwd.as_ptr()) } < 0 {
                return Step::Folder;
            }
        }
        self.fill_in_listen_pid();
        facts::default_dispositions();
        unblock_signals();
        // SAFETY: the text and both lists end with a zero, and what they point to is alive.
        unsafe {
            libc::execve(
                self.program.as_ptr(),
                self.argv_pointers.as_ptr(),
                self.environment_pointers.as_ptr(),
            )
        };
        Step::Execute
    }

    /// The child's own number, which nobody knows before the fork.
    fn fill_in_listen_pid(&mut self) {
        let room = self.listen_pid.get_mut(LISTEN_PID.len()..).unwrap_or_default();
        // SAFETY: no arguments.
        let mut rest = unsafe { libc::getpid() };
        let mut digits = [0_u8; 10];
        let mut count = 0;
        for digit in &mut digits {
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            count += 1;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let digits = digits.iter().take(count).rev();
        room.iter_mut().zip(digits).for_each(|(to, from)| *to = *from);
    }
}

fn unblock_signals() {
    // SAFETY: a zeroed set is one that sigemptyset may fill.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set outlives the call.
    unsafe { libc::sigemptyset(&raw mut none) };
    // SAFETY: the set outlives the call; the old one is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut()) };
}

/// What `execve` leaves unsaid: that it is the interpreter that is missing, or that it is a folder.
fn exec_detail(launch: &Launch<'_>) -> String {
    let search =
        launch.environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    match preflight::check_program(launch.program, search.unwrap_or_default()) {
        Ok(()) | Err(Unusable::Missing | Unusable::NotExecutable | Unusable::Unreadable(_)) => String::new(),
        Err(why) => format!(", which {why}"),
    }
}

fn variable((name, value): &(OsString, OsString)) -> io::Result<CString> {
    c_string(OsStr::from_bytes(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| Errno::EINVAL.into())
}
