//! Starting a program in steps that can be told apart when one fails.
//!
//! ```text
//!  parent                                     child (shares the parent's memory until exec)
//!  block signals, clone ─────────────────────► own session, dies with the parent
//!    (suspended, as by vfork)                 descriptors 0, 1, 2 …; the rest closes on exec
//!                                             terminal, folder
//!                                             dispositions, then mask, to their defaults
//!  restore signals ◄── exec, or _exit after the failed step and its errno are noted
//! ```
//!
//! Nothing is copied for the child, and it runs at once: that is what makes a restart fast. Until exec the
//! child calls nothing that is not async-signal-safe: whatever it needs was allocated before.

use crate::child;
use mcp_restart_paths::RestartPath;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;

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
pub fn launch(_path: RestartPath, launch: &Launch<'_>) -> Result<u32, LaunchError> {
    let prepare = |error: io::Error| LaunchError::new("prepare the start".to_owned(), &error);
    let mut plan = Plan::new(launch).map_err(prepare)?;
    let mut stack = vec![0_u8; CHILD_STACK];
    let stack_top = stack.as_mut_ptr_range().end;
    // A handler of ours must not run in the child.
    let mut before = SigSet::empty();
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))
        .map_err(|errno| prepare(errno.into()))?;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: this thread sleeps until the child has its own memory or none, so what the child reads and
    // writes (the plan, its stack) is alive and used by nobody else. The child runs `carry_out` alone, which
    // allocates nothing, takes no lock, and ends in exec or _exit.
    let pid = unsafe { libc::clone(carry_out, stack_top.cast(), flags, (&raw mut plan).cast()) };
    let cloned = Errno::result(pid).map_err(|errno| LaunchError::new("fork".to_owned(), &errno.into()));
    // The mask is one that this process had: it is valid.
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    let pid = cloned?.cast_unsigned();
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
        let (program, cwd) = (launch.program, launch.cwd.unwrap_or(Path::new("")));
        let step = match self {
            Self::Session => "start a session".to_owned(),
            Self::Descriptors => "set up the descriptors".to_owned(),
            Self::Terminal => "take the terminal".to_owned(),
            Self::Folder => format!("enter the folder {}", cwd.display()),
            Self::Execute => format!("execute {}{}", program.display(), exec_detail(program, errno)),
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

/// Makes every descriptor from `first` on close itself on exec.
fn close_on_exec_from(first: RawFd) {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: close_range takes three numbers; with this flag it closes nothing.
    let done = unsafe {
        libc::syscall(libc::SYS_close_range, first.cast_unsigned(), libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC)
    };
    if done != 0 {
        // A kernel before 5.11. Whatever is open is far below this number.
        for descriptor in first..65_536 {
            // SAFETY: it sets a flag of a descriptor, or fails for one that is not open.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

/// More than enough for a few system calls, in a debug build too.
const CHILD_STACK: usize = 32 * 1024;

/// What the child does, in this order.
#[derive(Clone, Copy)]
enum Step {
    Session,
    Descriptors,
    Terminal,
    Folder,
    Execute,
}

const LISTEN_PID: &[u8] = b"LISTEN_PID=";

/// Everything that the child needs, allocated.
struct Plan {
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
    failure: Option<(Step, i32)>,
}

/// What the child does. Only system calls from here on, and no allocation.
extern "C" fn carry_out(plan: *mut libc::c_void) -> libc::c_int {
    // SAFETY: it is the plan that `launch` passed, which waits and does not touch it.
    let plan = unsafe { &mut *plan.cast::<Plan>() };
    let step = plan.steps();
    plan.failure = Some((step, Errno::last_raw()));
    // SAFETY: _exit runs nothing of this process's.
    unsafe { libc::_exit(127) }
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

    /// Returns the step that failed; `errno` tells why.
    fn steps(&mut self) -> Step {
        // SAFETY: no arguments.
        if unsafe { libc::setsid() } < 0 {
            return Step::Session;
        }
        if let Role::Agent { .. } = self.role {
            // SAFETY: the request takes one number.
            if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } < 0 {
                return Step::Session;
            }
            // SAFETY: no arguments.
            if unsafe { libc::getppid() } != self.parent {
                // The parent died before it could be said that this is to die with it.
                // SAFETY: _exit runs nothing of this process's.
                unsafe { libc::_exit(127) }
            }
        }
        for (number, descriptor) in (0..).zip(&self.descriptors) {
            // SAFETY: both are numbers; the copy does not close itself on exec.
            if unsafe { libc::dup2(descriptor.as_raw_fd(), number) } < 0 {
                return Step::Descriptors;
            }
        }
        close_on_exec_from(i32::try_from(self.descriptors.len()).unwrap_or(3));
        if self.role == (Role::Agent { terminal: true }) {
            // SAFETY: the request takes a number; 0: not from another session that has it.
            if unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } < 0 {
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
        default_signals();
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

fn default_signals() {
    // The C library keeps two signals for itself and refuses to touch them; but they, too, may have been
    // inherited as ignored. All zeros are the default disposition, whatever the fields' order.
    const SET_SIZE: usize = 8;
    let default = [0_u64; 8];
    for number in 1..=libc::SIGRTMAX() {
        // SAFETY: the kernel reads no more than the buffer has; the old disposition is not asked for. The
        // default disposition runs no code of ours.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                number,
                default.as_ptr(),
                ptr::null_mut::<libc::c_void>(),
                SET_SIZE,
            )
        };
    }
    // SAFETY: a zeroed set is one that sigemptyset may fill.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set outlives the call.
    unsafe { libc::sigemptyset(&raw mut none) };
    // SAFETY: the set outlives the call; the old one is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut()) };
}

/// What `execve` leaves unsaid: that it is the interpreter that is missing, or that it is a folder.
fn exec_detail(program: &Path, errno: i32) -> String {
    if errno == libc::EACCES && program.is_dir() {
        return ", which is a folder".to_owned();
    }
    if errno == libc::ENOENT && program.exists() {
        return match interpreter(program) {
            Some(interpreter) => format!(", whose interpreter {interpreter} does not exist"),
            None => ", whose loader does not exist".to_owned(),
        };
    }
    String::new()
}

fn interpreter(program: &Path) -> Option<String> {
    // The kernel reads no more of a first line.
    let mut head = Vec::new();
    File::open(program).ok()?.take(256).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    Some(String::from_utf8_lossy(line).split_whitespace().next()?.to_owned())
}

fn duplicate_beyond(descriptor: BorrowedFd<'_>, beyond: RawFd) -> io::Result<OwnedFd> {
    let duplicate = fcntl(descriptor, FcntlArg::F_DUPFD_CLOEXEC(beyond))?;
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(duplicate) })
}

fn variable((name, value): &(OsString, OsString)) -> io::Result<CString> {
    c_string(OsStr::from_bytes(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| Errno::EINVAL.into())
}
