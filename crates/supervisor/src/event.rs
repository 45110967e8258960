//! What the machine is told and what it wants done.

use mcp_restart_protocol::agent::LastExit;
use mcp_restart_protocol::answer::Previous;
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::shim::ShimExit;
use mcp_restart_protocol::timestamp::Timestamp;
use std::time::Duration;

/// Names a request until it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A launch that was checked completely, and how long it has to settle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan<L> {
    /// What the shim needs; the machine does not look inside.
    pub launch: L,
    /// A process that ends within this time makes the start an error. Zero: executed is started.
    pub settle: Duration,
    /// What happens if it does not live long enough; none, if it simply has ended then.
    pub trial: Option<Box<Trial<L>>>,
}

/// What takes the place, once, of a launch whose process ends by itself too soon. It is itself on no trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial<L> {
    /// From the start of the process on trial.
    pub within: Duration,
    /// The last launch that stayed up, checked completely.
    pub fallback: L,
    /// See [`Plan::settle`].
    pub settle: Duration,
}

/// How a process is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopPlan {
    /// The way by which this came about.
    pub path: RestartPath,
    /// Number of the graceful signal.
    pub signal: i32,
    /// From that signal to SIGKILL.
    pub grace: Duration,
    /// From the delivery of its answer to the stop, for a process that stops or restarts itself.
    pub own_delay: Duration,
}

/// When a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// When it was carried out or has failed.
    Wait,
    /// As soon as it is accepted.
    NoWait,
    /// As soon as it is accepted, since the caller is the process that will be stopped; the stop waits
    /// until the answer was delivered.
    Own,
}

/// A request to start or restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask<L> {
    /// The request.
    pub ticket: Ticket,
    /// The new launch.
    pub plan: Plan<L>,
    /// How the old process is stopped, if there is one.
    pub stop: StopPlan,
    /// When it is answered.
    pub mode: Mode,
}

/// A request to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopAsk {
    /// The request.
    pub ticket: Ticket,
    /// How.
    pub stop: StopPlan,
    /// When it is answered.
    pub mode: Mode,
}

/// What an agent is on its way to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnderWay {
    /// No process of this number, or of an earlier one.
    Stop {
        /// The number of the last launch that is to be gone.
        generation: u64,
    },
    /// A process of this number, which lives long enough to be taken for started.
    Launch {
        /// Its number.
        generation: u64,
    },
}

/// What happens to an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<L> {
    /// Start it, if it does not run.
    Start(Ask<L>),
    /// Stop it, if it runs, and start it.
    Restart(Ask<L>),
    /// Stop it.
    Stop(StopAsk),
    /// Stop it, if it runs, as the first half of a restart whose launch comes later.
    StopFirst(StopPlan),
    /// Stop it and refuse everything from now on.
    Shutdown(StopPlan),
    /// Skip the grace period of a stop under way.
    Hurry,
    /// The caller has the last byte of the answer to its request.
    Delivered(Ticket),
    /// The shim executed the program.
    Started {
        /// Of which launch.
        generation: u64,
        /// The process.
        pid: u32,
        /// When.
        at: Timestamp,
    },
    /// The shim could not execute the program.
    SpawnFailed {
        /// Of which launch.
        generation: u64,
        /// When.
        at: Timestamp,
        /// The system's reason, for a person.
        why: String,
    },
    /// The process ended and nothing of its tree is left.
    Exited {
        /// Of which launch.
        generation: u64,
        /// How.
        exit: ShimExit,
    },
    /// Some of the tree cannot be ended.
    StopIncomplete {
        /// Of which launch.
        generation: u64,
        /// What is left and why, for a person.
        left: String,
    },
    /// The shim is gone and did not say how its agent ended.
    Lost {
        /// Of which launch.
        generation: u64,
        /// When that was noticed.
        at: Timestamp,
        /// How many processes it had left behind, all of them ended by now.
        leftovers: u32,
    },
    /// The process that an earlier daemon launched was on trial, whether it lives or has ended since.
    OnTrial {
        /// Of which launch.
        generation: u64,
        /// When that process was started.
        started_at: Timestamp,
        /// How much of its time is left, for one that lives.
        left: Duration,
        /// The trial.
        trial: Box<Trial<L>>,
    },
    /// A start was refused before anything was tried.
    Refused {
        /// When.
        at: Timestamp,
        /// Why, for a person.
        why: String,
    },
    /// The time of [`crate::Machine::deadline`] has come.
    Tick,
}

/// What the machine wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<L> {
    /// Start a process.
    Launch {
        /// Its number.
        generation: u64,
        /// Its launch.
        launch: L,
    },
    /// End the tree of the running process.
    StopTree {
        /// Of which launch.
        generation: u64,
        /// The way by which this came about.
        path: RestartPath,
        /// Number of the graceful signal.
        signal: i32,
        /// From that to SIGKILL.
        grace: Duration,
    },
    /// The shim of this launch did not answer: end it.
    Abandon {
        /// Of which launch.
        generation: u64,
    },
    /// Answer a request.
    Answer(Ticket, Outcome),
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The process lives.
    Started,
    /// The tree is gone.
    Stopped,
    /// The new process lives.
    Restarted {
        /// The one before, if there was one.
        previous: Option<Previous>,
        /// Whether it runs the last launch that stayed up, since the one that was asked for did not live.
        rolled_back: bool,
    },
    /// It will happen.
    Accepted {
        /// The number of the new launch, or of the stopped one.
        generation: u64,
        /// The process that will be stopped, if there is one.
        previous_pid: Option<u32>,
        /// Whether the stop waits until this answer was delivered.
        awaits_delivery: bool,
    },
    /// Nothing to start.
    AlreadyRunning,
    /// Nothing to stop.
    NotRunning,
    /// The program could not be executed; the system's reason.
    SpawnFailed(String),
    /// The new process ended within its settle time.
    ExitedEarly(LastExit),
    /// Part of the tree could not be ended; what and why.
    StopIncomplete(String),
    /// The shim does not say whether the tree is gone.
    StopUnreported,
    /// A later request took precedence.
    Superseded,
    /// Nothing is begun any more.
    ShuttingDown,
}
