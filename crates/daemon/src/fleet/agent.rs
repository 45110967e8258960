//! The task of one agent: feeds its machine with what happens and carries out what it decides.
//!
//! ```text
//!          a restart comes          Launch             Exited             Saved
//!  (none) ─────────────────► prepared ─────────► link ───────────► retiring ─────────► acknowledged, gone
//! ```
//!
//! The next shim is started before the present process is touched: if the system refuses it, so is the restart.
//!
//! Up to three shims are known at a time: the one that waits for its launch, the one that holds the
//! process, and the one whose process ended but whose exit is not stored yet.

use super::Message;
use super::handoff;
use super::launch::Launch;
use super::link::{Link, RESERVE};
use super::sessions::Session;
use crate::children::Children;
use mcp_restart_config::Agent;
use mcp_restart_process::leave_descriptors;
use mcp_restart_process::tree::Process;
use mcp_restart_protocol::agent::{AgentState, LastExit};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::shim::{FromShim, Leftover, ToShim};
use mcp_restart_protocol::timestamp::Timestamp;
use mcp_restart_shim::{Facts, FoundShim, ShimArgs, run_id};
use mcp_restart_supervisor::{Effect, Event, Machine, Outcome, Ticket, UnderWay};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How long after a shim could not be reached for the first time it is tried again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Each pause is twice as long as the one before, up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What the fleet task tells an agent task.
#[derive(Debug)]
pub(super) enum Order {
    /// Something for the machine. Boxed, since every agent's channel keeps room for 32 orders.
    Event(Box<Event<Launch>>),
    /// The exit that was reported is stored: its shim may end.
    Saved,
    /// The files of its shim are gone: it is to write them again.
    WriteAgain,
}

impl Order {
    /// Something for the machine.
    pub(super) fn event(event: Event<Launch>) -> Self {
        Self::Event(Box::new(event))
    }
}

/// What an agent task tells the fleet task after each step.
#[derive(Debug, Clone)]
pub(super) struct Report {
    pub name: String,
    pub state: AgentState,
    /// The process, its generation and its start.
    pub process: Option<(u32, u64, Timestamp)>,
    /// The number of the last launch.
    pub generation: u64,
    pub last_exit: Option<LastExit>,
    /// How the present or last process was launched.
    pub launched: Option<Launched>,
    /// Neither a process nor a shim nor the intent to start one is left.
    pub idle: bool,
    /// It knows of the shutdown: what is idle now stays so.
    pub closing: bool,
    /// Some of the tree cannot be ended, and nobody waits for it any more.
    pub stuck: bool,
    /// Nothing is under way that would be cut short if its daemon made way now.
    pub steady: bool,
    /// A process has ended and its shim waits until that is stored.
    pub to_save: bool,
    /// See [`Machine::under_way`].
    pub under_way: Option<UnderWay>,
    /// See [`Machine::stays_up`].
    pub stays_up: bool,
    /// How many orders it had carried out by then.
    pub seen: u64,
    /// Requests that are done.
    pub answers: Vec<(Ticket, Outcome)>,
}

/// How a process was launched.
#[derive(Debug, Clone)]
pub(super) struct Launched {
    /// Hash of the entry.
    pub hash: u64,
    /// The number of the launch.
    pub generation: u64,
    /// The conversation that it was launched with, where that was known.
    pub session: Option<Box<Session>>,
    /// The entry; none for a process that an earlier daemon launched.
    pub entry: Option<Arc<Agent>>,
    pub tty: bool,
    pub log_file: String,
    /// Whether the shim has said all this itself; else it is only what it has written down.
    pub is_described: bool,
    /// The number of the shim's words, if this daemon does not know them.
    pub foreign: Option<u32>,
    /// The process id of the shim, below which everything is this agent.
    pub shim_pid: Option<u32>,
}

/// What an agent task begins with.
#[derive(Debug)]
pub(super) struct AgentTask {
    pub name: String,
    pub shim: ShimArgs,
    pub state_dir: PathBuf,
    pub children: Children,
    pub machine: Machine<Launch>,
    /// The shim that holds the process.
    pub link: Option<Link>,
    pub launched: Option<Launched>,
    pub fleet: mpsc::UnboundedSender<Message>,
}

impl AgentTask {
    /// Starts the task; the sender takes its orders.
    pub(super) fn start(self) -> mpsc::UnboundedSender<Order> {
        let (orders, inbox) = mpsc::unbounded_channel();
        let running = Running { task: self, prepared: None, retiring: None, unreached: None, seen: 0 };
        tokio::spawn(running.run(inbox));
        orders
    }

    /// How things are, without answers.
    pub(super) fn report(&self) -> Report {
        Report {
            name: self.name.clone(),
            state: self.machine.state(),
            process: self.machine.process(),
            generation: self.machine.generation(),
            last_exit: self.machine.last_exit().cloned(),
            launched: self.launched.clone(),
            idle: self.machine.is_idle() && self.link.is_none(),
            closing: self.machine.is_closing(),
            stuck: self.machine.is_stuck(),
            steady: self.machine.is_steady(),
            to_save: false,
            under_way: self.machine.under_way(),
            stays_up: self.machine.stays_up(),
            seen: 0,
            answers: Vec::new(),
        }
    }
}

struct Running {
    task: AgentTask,
    prepared: Option<Link>,
    retiring: Option<Link>,
    /// While the shim of the process cannot be reached.
    unreached: Option<Unreached>,
    /// Orders carried out so far.
    seen: u64,
}

/// A shim that is tried to be reached again.
struct Unreached {
    at: Instant,
    pause: Duration,
    /// The order that it is to be given then.
    stop: Option<ToShim>,
}

impl Unreached {
    fn after(pause: Duration, stop: Option<ToShim>) -> Self {
        Self { at: Instant::now() + pause, pause, stop }
    }
}

impl Running {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        loop {
            let deadline = self.task.machine.deadline().map(Instant::from_std);
            if self.task.link.is_some() || self.task.machine.process().is_none() {
                self.unreached = None;
            } else {
                self.unreached.get_or_insert_with(|| Unreached::after(FIRST_PAUSE, None));
            }
            let next_try = self.unreached.as_ref().map(|unreached| unreached.at);
            let event = tokio::select! {
                // What an earlier daemon had begun is ordered at adoption, and tells why a process ended.
                biased;
                order = orders.recv() => match order {
                    Some(Order::Event(event)) => {
                        self.seen += 1;
                        *event
                    }
                    Some(Order::Saved) => {
                        self.acknowledge().await;
                        continue;
                    }
                    Some(Order::WriteAgain) => {
                        // Whoever describes itself does so.
                        if let Some(link) = &mut self.task.link {
                            let _ = link.send(ToShim::Describe).await;
                        }
                        continue;
                    }
                    None => return,
                },
                said = heard(&mut self.prepared) => {
                    // It has nothing to say before its launch: if it is gone, the launch takes another one. Looked
                    // at before the end of the process that it is to follow.
                    if said.is_none() {
                        self.prepared = None;
                    }
                    continue;
                }
                said = heard(&mut self.task.link) => match self.understand(said).await {
                    Some(event) => event,
                    None => continue,
                },
                said = heard(&mut self.retiring) => {
                    // It may repeat the exit; it is gone when it says nothing more.
                    if said.is_none() {
                        self.retiring = None;
                        self.tell(false, Vec::new());
                    }
                    continue;
                }
                () = until(deadline) => Event::Tick,
                () = until(next_try) => match self.reach_again().await {
                    Some(event) => event,
                    None => continue,
                },
            };
            self.step(event).await;
        }
    }

    async fn step(&mut self, event: Event<Launch>) {
        if let Err(refused) = self.prepare(&event).await {
            return self.tell(false, vec![refused]);
        }
        let ended = matches!(event, Event::Exited { .. });
        if ended {
            self.retiring = self.task.link.take();
        }
        if matches!(event, Event::SpawnFailed { .. } | Event::Lost { .. }) {
            self.task.link = None;
        }
        let mut answers = Vec::new();
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for effect in self.task.machine.handle(event, Instant::now().into_std()) {
                match effect {
                    Effect::Answer(ticket, Outcome::StopUnreported) => {
                        answers.push((ticket, Outcome::StopIncomplete(self.silent_shim())));
                    }
                    Effect::Answer(ticket, outcome) => answers.push((ticket, outcome)),
                    other => events.extend(self.carry_out(other).await),
                }
            }
        }
        if !self.task.machine.will_launch() {
            // A shim that sees the end of its connection before a launch ends by itself.
            self.prepared = None;
        }
        self.tell(ended, answers);
    }

    /// Starts the shim for the launch that is to take the place of a process.
    async fn prepare(&mut self, event: &Event<Launch>) -> Result<(), (Ticket, Outcome)> {
        let machine = &self.task.machine;
        let (Event::Restart(ask) | Event::Start(ask)) = event else { return Ok(()) };
        let replaces = matches!(event, Event::Restart(_)) || machine.state() == AgentState::Stopping;
        if !replaces || machine.process().is_none() || machine.is_closing() || self.prepared.is_some() {
            return Ok(());
        }
        match self.spawn_shim(ask.plan.launch.path).await {
            Ok(link) => self.prepared = Some(link),
            Err(error) => return Err((ask.ticket, Outcome::SpawnFailed(cannot_start_shim(&error)))),
        }
        Ok(())
    }

    /// Carries out what the machine wants done; what went wrong with it is an event of its own.
    async fn carry_out(&mut self, effect: Effect<Launch>) -> Option<Event<Launch>> {
        match effect {
            Effect::Launch { generation, launch } => {
                let started = self.launch(generation, launch).await;
                started.err().map(|error| Event::SpawnFailed {
                    generation,
                    at: Timestamp::now(),
                    why: cannot_start_shim(&error),
                })
            }
            Effect::StopTree { path, signal, grace, .. } => {
                let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
                let stop = ToShim::Stop { path: path.id().to_owned(), signal, grace_ms };
                self.reconnect(FIRST_PAUSE, Some(stop)).await;
                None
            }
            Effect::Abandon { .. } => {
                if let Some(link) = self.task.link.take() {
                    link.end(&self.task.children);
                }
                None
            }
            Effect::Answer(..) => None,
        }
    }

    async fn launch(&mut self, generation: u64, launch: Launch) -> io::Result<()> {
        handoff::promote(&self.task.state_dir, &self.task.name, generation, launch.handoff.as_deref());
        if launch.path == RestartPath::Rollback {
            // The launch that failed had it written last, maybe for another kind of agent.
            launch.write_mcp_config(&self.task.state_dir);
        }
        let mut link = match self.prepared.take() {
            Some(link) => link,
            None => self.spawn_shim(launch.path).await?,
        };
        self.task.launched = Some(Launched {
            hash: launch.hash,
            generation,
            session: launch.session.clone(),
            entry: Some(Arc::clone(&launch.agent)),
            tty: launch.agent.tty,
            log_file: launch.agent.log_file_in(&self.task.state_dir).to_string_lossy().into_owned(),
            is_described: true,
            foreign: None,
            shim_pid: link.shim_pid(),
        });
        launch.log(generation);
        link.send(ToShim::Launch(launch.numbered(generation))).await?;
        self.task.link = Some(link);
        Ok(())
    }

    /// A shim that could not be reached when it was adopted may be reached by now, and is given an order then; else both are
    /// tried again after the pause. Only a stop may take one of the last descriptors.
    async fn reconnect(&mut self, pause: Duration, stop: Option<ToShim>) {
        let reserve = if stop.is_some() { 0 } else { RESERVE };
        if let Err(error) = self.connect(reserve).await {
            if pause == FIRST_PAUSE {
                tracing::warn!(agent = self.task.name, %error, "its shim cannot be reached and is tried again");
            }
            self.unreached = Some(Unreached::after(pause, stop));
        } else if let (Some(link), Some(stop)) = (&mut self.task.link, stop)
            && let Err(error) = link.send(stop).await
        {
            tracing::error!(agent = self.task.name, %error, "the shim cannot be told to stop");
        }
    }

    async fn connect(&mut self, reserve: u64) -> io::Result<()> {
        if self.task.link.is_some() {
            return Ok(());
        }
        leave_descriptors(reserve)?;
        let facts = self.found_shim().facts.and_then(Result::ok);
        let mut link = Link::reach(self.task.shim.files(), facts.as_ref()).await?;
        if let Some(launched) = &mut self.task.launched {
            launched.foreign = link.foreign_protocol();
        }
        // If that fails, so does what follows, and that is told.
        let _ = link.send(ToShim::Describe).await;
        self.task.link = Some(link);
        self.tell(false, Vec::new());
        Ok(())
    }

    /// The same while nothing else happens. Without the connection nobody would notice the end of the process.
    async fn reach_again(&mut self) -> Option<Event<Launch>> {
        let generation = self.task.machine.generation();
        let FoundShim { lock, facts, .. } = self.found_shim();
        if !matches!(lock, Ok(None)) {
            if let Some(Unreached { pause, stop, .. }) = self.unreached.take() {
                self.reconnect((pause * 2).min(LONGEST_PAUSE), stop).await;
            }
            return None;
        }
        match facts {
            Some(Ok(Facts { generation: ended, exit: Some(exit), .. })) if ended == generation => {
                Some(Event::Exited { generation, exit })
            }
            _ => self.understand(None).await,
        }
    }

    fn found_shim(&self) -> FoundShim {
        FoundShim::look(&self.task.state_dir, run_id(&self.task.name))
    }

    /// What is known of a shim that does not report how a stop went.
    fn silent_shim(&self) -> String {
        let shim = self.task.launched.as_ref().and_then(|launched| Process::of(launched.shim_pid?));
        match shim {
            Some(shim) => format!(
                "its shim {} ({}) does not report what is left: it is {}",
                shim.pid,
                shim.command,
                shim.obstacle()
            ),
            None => "its shim does not report what is left".to_owned(),
        }
    }

    async fn spawn_shim(&self, path: RestartPath) -> io::Result<Link> {
        // What runs already may be restarted for longer than others are started beside it.
        leave_descriptors(if self.task.link.is_some() { RESERVE / 2 } else { RESERVE })?;
        Link::spawn(&self.task.children, path, &self.task.shim).await
    }

    async fn understand(&mut self, said: Option<FromShim>) -> Option<Event<Launch>> {
        let generation = self.task.machine.generation();
        let at = Timestamp::now();
        match said {
            Some(FromShim::Started { pid, at }) => Some(Event::Started { generation, pid, at }),
            Some(FromShim::SpawnFailed { step, errno }) => {
                let why = format!("{step}: {}", reason(errno));
                Some(Event::SpawnFailed { generation, at, why })
            }
            Some(FromShim::Exited(exit)) => Some(Event::Exited { generation, exit }),
            Some(FromShim::StopIncomplete { left }) => {
                Some(Event::StopIncomplete { generation, left: describe(&left) })
            }
            Some(FromShim::Refused { reason }) => {
                tracing::error!(agent = self.task.name, reason, "the shim refuses what it is told");
                None
            }
            Some(FromShim::Facts(facts)) => {
                // An adopted shim that was stopped has come to answer.
                if let Some(launched) = &mut self.task.launched {
                    launched.tty = facts.tty;
                    launched.log_file = String::from_utf8_lossy(&facts.log_file).into_owned();
                    launched.is_described = true;
                }
                self.tell(false, Vec::new());
                None
            }
            Some(FromShim::Output(_) | FromShim::Detached { .. }) => None,
            None => {
                let leftovers =
                    self.task.children.end_lost(&self.task.state_dir, &self.task.name, generation).await;
                tracing::error!(agent = self.task.name, generation, leftovers, "its shim is gone");
                Some(Event::Lost { generation, at, leftovers })
            }
        }
    }

    async fn acknowledge(&mut self) {
        if let Some(link) = &mut self.retiring
            && let Err(error) = link.send(ToShim::Acknowledge).await
        {
            tracing::warn!(agent = self.task.name, %error, "the shim had ended before its exit was stored");
        }
    }

    fn tell(&self, to_save: bool, answers: Vec<(Ticket, Outcome)>) {
        let report = self.task.report();
        let idle = report.idle && self.retiring.is_none();
        // The fleet task ends last.
        let steady = report.steady && self.retiring.is_none();
        let report = Report { idle, steady, to_save, answers, seen: self.seen, ..report };
        let _ = self.task.fleet.send(Message::Report(report));
    }
}

async fn heard(link: &mut Option<Link>) -> Option<FromShim> {
    match link {
        Some(link) => link.next().await,
        None => std::future::pending().await,
    }
}

/// Waits for a moment that may never come.
pub(super) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn cannot_start_shim(error: &io::Error) -> String {
    format!("its shim cannot be started: {}", error.raw_os_error().map_or_else(|| error.to_string(), reason))
}

/// The system's words for an error number, without the number.
fn reason(errno: i32) -> String {
    let error = io::Error::from_raw_os_error(errno).to_string();
    error.split(" (os error").next().unwrap_or_default().to_owned()
}

fn describe(left: &[Leftover]) -> String {
    let left = left.iter().map(|left| format!("{} ({}) is {}", left.pid, left.command, left.reason));
    left.collect::<Vec<_>>().join(", ")
}
