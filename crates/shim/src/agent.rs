//! The agent, from its launch until nothing of its tree is left.

use crate::ending::{Ending, Order};
use crate::files::{Facts, RecordedProcess, RunFiles};
use crate::log::Log;
use crate::output::Output;
use crate::sweep::Sweep;
use crate::terminal::Terminal;
use mcp_restart_paths::RestartPath;
use mcp_restart_process::launch::{self, Launch, LaunchError, Role};
use mcp_restart_process::session::{Reaped, reap};
use mcp_restart_process::terminal::Size;
use mcp_restart_process::tree::{ORPHANS_COME_BACK, Process};
use mcp_restart_process::{EINVAL, Exit, Signal};
use mcp_restart_protocol::shim::{
    FromShim, KeepChildren, Leftover, SHIM_PROTOCOL, ShimExit, ShimFacts, ShimLaunch,
};
use mcp_restart_protocol::timestamp::Timestamp;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What an agent that ended by itself left behind gets this long after SIGTERM.
const SWEEP_GRACE: Duration = Duration::from_millis(500);

/// Who forks and ends during a look shows neither itself nor its child, where orphans come back to nobody: so often
/// nobody has to be found again.
const MORE_LOOKS: u32 = 2;

/// An agent that was started.
pub(crate) struct Agent {
    facts: Facts,
    log_file: PathBuf,
    keep_children: KeepChildren,
    pub(crate) output: Output,
    phase: Phase,
    sweep: Sweep,
    /// How the leader ended, and when.
    leader_exit: Option<(Exit, Timestamp)>,
    /// Under which path, and with which signal, its tree is brought to its end.
    path: RestartPath,
    graceful: Signal,
    by_itself: bool,
    /// What a daemon was told to be left, and still holds.
    incomplete: Option<Vec<Leftover>>,
}

/// Where the agent is in its life.
enum Phase {
    Running,
    Ending(Ending),
    Ended,
}

/// The shim itself, as it is written down.
#[derive(Debug)]
pub(crate) struct OwnIdentity {
    boot_id: String,
    process: RecordedProcess,
}

/// Why an agent could not be started.
#[derive(Debug)]
pub(crate) struct SpawnFailure {
    /// What was tried, for a person.
    pub(crate) step: String,
    /// The system's error number.
    pub(crate) errno: i32,
}

impl Agent {
    /// Starts the agent, then makes it known by `publish`; if that fails it is ended at once.
    pub(crate) fn launch<T>(
        order: ShimLaunch,
        own: &OwnIdentity,
        daemon_lock: PathBuf,
        publish: impl FnOnce(&Facts) -> Result<T, SpawnFailure>,
    ) -> Result<(Self, T), SpawnFailure> {
        let path = RestartPath::from_id(&order.path)
            .map_err(|unknown| SpawnFailure { step: unknown.to_string(), errno: EINVAL })?;
        let log_file = PathBuf::from(text(order.log_file));
        let started_at = Timestamp::now();
        let mut log = open_log(&log_file, order.log_max_bytes, order.log_keep)?;
        let instead = if path == RestartPath::Rollback { ": the launch before was rolled back" } else { "" };
        log.note(&format!("generation {} started {started_at}{instead}", order.generation));
        let (mut output, stdio) = open_output(order.terminal, log)?;

        let (program, cwd) = (text(order.program), text(order.cwd));
        let argv: Vec<OsString> = order.argv.into_iter().map(text).collect();
        let environment: Vec<(OsString, OsString)> =
            order.environment.into_iter().map(|(name, value)| (text(name), text(value))).collect();
        let pid = launch::launch(
            path,
            &Launch {
                program: Path::new(&program),
                argv: &argv,
                environment: &environment,
                cwd: Some(Path::new(&cwd)),
                descriptors: &[stdio.input.as_fd(), stdio.output.as_fd(), stdio.output.as_fd()],
                role: Role::Agent { terminal: order.terminal.is_some() },
            },
        )
        .map_err(|error| fail(&mut output, error.into()))?;
        drop(stdio);
        let mut agent = Self {
            facts: Facts {
                protocol: SHIM_PROTOCOL,
                name: order.name,
                generation: order.generation,
                launch_hash: order.launch_hash,
                boot_id: own.boot_id.clone(),
                shim: own.process,
                agent: recorded(pid),
                started_at,
                exit: None,
            },
            log_file,
            keep_children: order.keep_children,
            output,
            phase: Phase::Running,
            sweep: Sweep::new(pid, &environment, daemon_lock),
            leader_exit: None,
            path,
            graceful: Signal::TERMINATE,
            by_itself: false,
            incomplete: None,
        };
        match publish(&agent.facts) {
            Ok(published) => Ok((agent, published)),
            Err(failure) => {
                agent.sweep.kill(RestartPath::AbandonedShim);
                Err(fail(&mut agent.output, failure))
            }
        }
    }

    /// The answer to the launch.
    pub(crate) fn started(&self) -> FromShim {
        FromShim::Started { pid: self.facts.agent.pid, at: self.facts.started_at }
    }

    /// What a daemon that comes later has to know, all of it.
    pub(crate) fn describe(&self) -> Vec<FromShim> {
        let facts = ShimFacts {
            name: self.facts.name.clone(),
            generation: self.facts.generation,
            launch_hash: self.facts.launch_hash,
            shim_pid: self.facts.shim.pid,
            pid: self.facts.agent.pid,
            started_at: self.facts.started_at,
            tty: self.output.terminal().is_some(),
            log_file: self.log_file.clone().into_os_string().into_vec(),
            stopping: matches!(self.phase, Phase::Ending(_)),
            exit: self.facts.exit.clone(),
        };
        let incomplete = self.incomplete.clone().map(|left| FromShim::StopIncomplete { left });
        let exited = self.facts.exit.clone().map(FromShim::Exited);
        [FromShim::Facts(Box::new(facts))].into_iter().chain(incomplete).chain(exited).collect()
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// What the log is told when nothing of the tree is left: who of it had to be ended, and who was not.
    pub(crate) fn note_sweep(&mut self) {
        for line in self.sweep.tell(self.by_itself) {
            self.output.note(&line);
        }
    }

    /// Writes the exit down, for a daemon that comes when this shim is gone.
    pub(crate) fn write_facts(&self, files: &RunFiles) -> io::Result<()> {
        self.facts.write(&files.facts)
    }

    /// When something becomes due.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let ending = match &self.phase {
            Phase::Ending(ending) => ending.wake_at(),
            Phase::Running | Phase::Ended => None,
        };
        ending.into_iter().chain(self.output.wake_at()).min()
    }

    /// Ends the tree. Returns what the daemon is to be told now.
    pub(crate) fn stop(&mut self, path: RestartPath, graceful: Signal, grace: Duration) -> Vec<FromShim> {
        self.path = path;
        match &mut self.phase {
            Phase::Running => {
                self.graceful = graceful;
                self.begin(grace)
            }
            Phase::Ending(ending) => {
                let order = ending.stop(Instant::now(), grace);
                self.sweep.keep_nobody();
                self.obey(order)
            }
            Phase::Ended => self.facts.exit.clone().map(FromShim::Exited).into_iter().collect(),
        }
    }

    /// The system was asked to end this shim, and it ends the tree first.
    pub(crate) fn stop_for_signal(&mut self, grace: Duration) -> Vec<FromShim> {
        // Nobody asked for this through a door: to the daemon the agent ended by itself.
        self.by_itself |= matches!(self.phase, Phase::Running);
        self.stop(RestartPath::ShimSignalled, Signal::TERMINATE, grace)
    }

    /// Some children have ended. Returns what the daemon is to be told now.
    pub(crate) fn children_ended(&mut self) -> Vec<FromShim> {
        let mut reports = self.settle();
        match &mut self.phase {
            Phase::Running if self.leader_exit.is_some() => {
                self.by_itself = true;
                self.path = RestartPath::ExitSweep;
                self.sweep.keep(self.keep_children.clone());
                reports.extend(self.begin(SWEEP_GRACE));
            }
            Phase::Ending(ending) => {
                let order = ending.child_ended(Instant::now(), self.leader_exit.is_none());
                reports.extend(self.obey(order));
            }
            Phase::Running | Phase::Ended => {}
        }
        reports
    }

    /// The time has come for something. Returns what the daemon is to be told now.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<FromShim> {
        self.output.due(now);
        let Phase::Ending(ending) = &mut self.phase else { return Vec::new() };
        let order = ending.due(now);
        self.obey(order)
    }

    fn begin(&mut self, grace: Duration) -> Vec<FromShim> {
        let (ending, order) = Ending::begin(Instant::now(), grace);
        self.phase = Phase::Ending(ending);
        self.obey(Some(order))
    }

    fn obey(&mut self, order: Option<Order>) -> Vec<FromShim> {
        match order {
            None => return Vec::new(),
            Some(Order::Ask) => self.sweep.ask(self.path, self.graceful),
            Some(Order::AskNewcomers) => self.sweep.ask_newcomers(self.path, self.graceful),
            Some(Order::Kill) => self.sweep.kill(self.path),
            Some(Order::GiveUp) => {
                let (waited_for, foreign) = self.sweep.remaining();
                return vec![self.leave_unfinished(&[waited_for, foreign].concat())];
            }
        }
        // Whoever was signalled tells by ending. But it may have turned out that nobody is waited for.
        if self.sweep.has_to_look() { self.settle() } else { Vec::new() }
    }

    fn leave_unfinished(&mut self, left: &[Process]) -> FromShim {
        let left = self.sweep.describe(left);
        self.incomplete = Some(left.clone());
        FromShim::StopIncomplete { left }
    }

    /// Takes the exits that have come, and ends this life if nobody is left who is waited for.
    fn settle(&mut self) -> Vec<FromShim> {
        loop {
            let reaped = self.reap_all();
            if self.has_ended() || self.leader_exit.is_none() {
                return Vec::new();
            }
            if reaped.none_left && ORPHANS_COME_BACK {
                return vec![self.end()];
            }
            if !matches!(self.phase, Phase::Ending(_)) || !self.sweep.has_to_look() {
                return Vec::new();
            }
            let (waited_for, foreign) = self.sweep.remaining();
            if !waited_for.is_empty() {
                return Vec::new();
            }
            // Who ended during the look may have handed a child to us that it did not show.
            if self.reap_all().any {
                continue;
            }
            if !ORPHANS_COME_BACK && (0..MORE_LOOKS).any(|_| !self.sweep.remaining().0.is_empty()) {
                return Vec::new();
            }
            let unfinished = (!foreign.is_empty()).then(|| self.leave_unfinished(&foreign));
            return unfinished.into_iter().chain([self.end()]).collect();
        }
    }

    fn reap_all(&mut self) -> ReapedAll {
        let mut any = false;
        loop {
            match reap() {
                Reaped::Ended { pid, exit } => {
                    any = true;
                    // The number may be somebody else's after the leader's end; then it is not ours to see.
                    if pid == self.facts.agent.pid && self.leader_exit.is_none() {
                        self.leader_exit = Some((exit, Timestamp::now()));
                    }
                }
                Reaped::OthersLive => return ReapedAll { any, none_left: false },
                Reaped::NoChild => return ReapedAll { any, none_left: true },
            }
        }
    }

    fn end(&mut self) -> FromShim {
        if matches!(self.phase, Phase::Running) {
            self.by_itself = true;
        }
        self.phase = Phase::Ended;
        let (exit, at) = self.leader_exit.map_or((None, Timestamp::now()), |(exit, at)| (Some(exit), at));
        let exit = ShimExit {
            code: match exit {
                Some(Exit::Code(code)) => Some(code),
                Some(Exit::Signal(_)) | None => None,
            },
            signal: match exit {
                Some(Exit::Signal(signal)) => Some(signal.number()),
                Some(Exit::Code(_)) | None => None,
            },
            at,
            by_itself: self.by_itself,
            forced: self.sweep.was_forced(),
            leftovers: self.sweep.leftovers(self.by_itself),
        };
        self.facts.exit = Some(exit.clone());
        FromShim::Exited(exit)
    }
}

struct ReapedAll {
    any: bool,
    none_left: bool,
}

/// What the agent gets as 0, and as 1 and 2.
struct Stdio {
    input: File,
    output: File,
}

fn open_log(file: &Path, max_bytes: u64, keep: u32) -> Result<Log, SpawnFailure> {
    Log::open(file, max_bytes, keep).map_err(|error| {
        let link = if file.is_symlink() { ", which is a symbolic link" } else { "" };
        SpawnFailure::new(format!("open the log {}{link}", file.display()), &error)
    })
}

fn open_output(terminal: Option<(u16, u16)>, log: Log) -> Result<(Output, Stdio), SpawnFailure> {
    let open = || -> io::Result<(Output, Stdio)> {
        let Some((rows, columns)) = terminal else {
            let (output, writer) = Output::pipe(log)?;
            return Ok((output, Stdio { input: File::open("/dev/null")?, output: writer }));
        };
        let terminal = Terminal::open(Size { rows, columns })?;
        let slave = || terminal.slave().try_clone_to_owned().map(File::from);
        let stdio = Stdio { input: slave()?, output: slave()? };
        Ok((Output::terminal_and(log, terminal), stdio))
    };
    let what = if terminal.is_some() { "open a pseudo-terminal" } else { "open a pipe for the output" };
    open().map_err(|error| SpawnFailure::new(what.to_owned(), &error))
}

/// Says in the log, too, that nothing follows the line that tells of the start.
fn fail(output: &mut Output, failure: SpawnFailure) -> SpawnFailure {
    let reason = io::Error::from_raw_os_error(failure.errno);
    output.note(&format!("not started: cannot {}: {reason}", failure.step));
    failure
}

fn recorded(pid: u32) -> RecordedProcess {
    // A child that was not waited for cannot be missing; a zero would match no process.
    RecordedProcess { pid, start_time: Process::of(pid).map_or(0, |process| process.start_time) }
}

fn text(bytes: Vec<u8>) -> OsString {
    OsString::from_vec(bytes)
}

impl OwnIdentity {
    /// Found out before there is a launch to wait for it.
    pub(crate) fn new(boot_id: String) -> Self {
        Self { boot_id, process: recorded(std::process::id()) }
    }
}

impl SpawnFailure {
    pub(crate) fn new(step: String, error: &io::Error) -> Self {
        Self { step, errno: error.raw_os_error().unwrap_or(EINVAL) }
    }
}

impl From<LaunchError> for SpawnFailure {
    fn from(error: LaunchError) -> Self {
        Self { step: error.step().to_owned(), errno: error.errno() }
    }
}
