//! The life of the daemon, from its arguments to its last signal.
//!
//! ```text
//!  config ─► state dir, lock ─► log ─► listening socket of the endpoint ─► socket ─► fleet ─► bridge ─► serve
//!                                                                                                  │
//!  exit 0 ◄─ lock ◄─ last answers written, bridge ended ◄─ socket removed ◄─ agents stopped ◄─ signal, or down
//!                                                                                                  │
//!  exit 75 ◄─ lock ◄─ last answers written ◄─ socket removed ◄─ nothing under way ◄─ upgrade
//! ```

use crate::arguments::Arguments;
use crate::bridge::{self, Beginning};
use crate::children::Children;
use crate::entrance::Entrance;
use crate::fleet::{self, Fleet, FleetSetup, another_upgrade};
use crate::governance::{Gate, Journal, Note};
use crate::last_good::{self, FirstConfig};
use crate::logging;
use crate::program::Program;
use crate::server::{self, Asker, Context, Identification, Room, Wish, Word, ended_meanwhile};
use crate::start_error::StartError;
use crate::state_dir::StateDir;
use crate::successor::Manager;
use mcp_restart_config::{Environment, lookup};
use mcp_restart_paths::RestartPath;
use mcp_restart_process::session::forget_inherited;
use mcp_restart_process::{DescriptorLimit, raise_descriptor_limit};
use mcp_restart_protocol::answer::Failure;
use mcp_restart_protocol::journal::Happening;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// For so long those who came before the end are still told of it, although nobody new finds the socket.
const LAST_REFUSALS: Duration = Duration::from_millis(100);
/// How long clients may take to read their last answers when the daemon ends.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// How long what is under way may take to end when the daemon makes way. What still is then goes on all the
/// same: the shims do it, and the next daemon takes it up.
const DRAIN_LIMIT: Duration = Duration::from_secs(20);

/// How the daemon ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// With every agent stopped.
    Stopped,
    /// With every agent running on, for the next daemon.
    MadeWay,
}

/// Runs the daemon until a signal or a client ends it.
pub(crate) fn run(arguments: &Arguments) -> Result<End, StartError> {
    forget_inherited()?;
    let descriptors = raise_descriptor_limit()?;
    let started = Instant::now();
    let environment = Environment::from_process().outside_agent();
    let (first, path) =
        last_good::find(arguments.config.as_deref(), arguments.state_dir.as_deref(), &environment)?;
    let address = SocketAddr::new(first.config.host, first.config.port);
    let state_dir = StateDir::open(&path)?;
    let log_file = logging::log_file(&path);
    logging::start(&log_file, arguments.log_format).map_err(|error| StartError::Log(log_file, error))?;
    let daemon = Daemon { arguments, environment, first, address, state_dir: path, descriptors, started };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(daemon.live(state_dir));
    // The connections end with the process and after its lock: whoever waits for their end finds the daemon
    // gone, and may start the next.
    std::mem::forget(runtime);
    ended
}

struct Daemon<'a> {
    arguments: &'a Arguments,
    environment: Environment,
    first: FirstConfig,
    /// Of the endpoint.
    address: SocketAddr,
    state_dir: PathBuf,
    descriptors: DescriptorLimit,
    started: Instant,
}

impl Daemon<'_> {
    async fn live(self, state_dir: StateDir) -> Result<End, StartError> {
        let mut signals = Signals::new(self.arguments.ends_with_stdin)?;
        let own = Program::own()?;
        let (beginning, bridge_program) = self.endpoint(&own)?;
        let (mut entrance, listeners) = Entrance::open(state_dir)?;
        let children = Children::start(self.descriptors.inherited)?;
        for warning in mcp_restart_config::warnings(&self.first.config) {
            tracing::warn!("{warning}");
        }
        let fleet = fleet::start(FleetSetup {
            first: self.first.clone(),
            environment: self.environment.clone(),
            state_dir: self.state_dir.clone(),
            socket: lookup::socket(&self.state_dir),
            children: children.clone(),
        })
        .await;
        let journal = Journal::start(&self.state_dir, fleet.clone());
        let bridge = bridge::keep(
            beginning,
            self.bridge_setup(fleet.clone(), children, journal.clone(), bridge_program),
        );
        let (wishes, mut inbox) = mpsc::channel(1);
        let context = Arc::new(Context {
            identification: Identification::new(fleet.clone(), self.first.config.token.clone()),
            gate: Gate {
                stale: self.first.config.stale_daemon,
                contamination: self.first.config.contamination,
            },
            journal: journal.clone(),
            fleet: fleet.clone(),
            bridge: bridge.clone(),
            program: own,
            config_file: self.first.config.file.clone(),
            state_dir: self.state_dir.clone(),
            started: self.started,
            manager: Manager::of_own_process(),
            wishes,
            under_way: TaskTracker::new(),
        });
        let room = Room::within(self.descriptors.own);
        tokio::spawn(server::serve(listeners, room, Arc::clone(&context)));
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            pid = std::process::id(),
            config = %self.first.config.file.display(),
            state_dir = %self.state_dir.display(),
            "serving"
        );
        let managed = context.manager.is_some();
        let path = tokio::select! {
            path = until_ended(&fleet, &mut inbox, &mut signals, managed) => path,
            never = entrance.keep(&fleet, &bridge) => match never {},
        };
        let end = if let Some(path) = path {
            tracing::info!(%path, "ending: every agent is stopped");
            // Whoever else wishes the end waits for it too.
            tokio::spawn(async move {
                while let Some(wish) = inbox.recv().await {
                    refuse(wish, ended_meanwhile());
                }
            });
            journal.note(Note::Ending(path));
            stop_all(&fleet, path, &mut signals).await;
            End::Stopped
        } else {
            tracing::info!(path = %RestartPath::CtlUpgrade, "making way: every agent runs on");
            // From now on whoever wishes something is told that the daemon is leaving.
            inbox.close();
            while let Ok(wish) = inbox.try_recv() {
                refuse(wish, another_upgrade());
            }
            End::MadeWay
        };
        let _locked = entrance.close();
        context.under_way.close();
        // Before the bridge ends, which has to pass on what it is answered.
        let _ = timeout(LAST_ANSWERS, context.under_way.wait()).await;
        let last_refusals = async {
            tokio::time::sleep(LAST_REFUSALS).await;
            let _ = timeout(LAST_ANSWERS, context.under_way.wait()).await;
        };
        let bridge_ended = async {
            if end == End::Stopped {
                bridge.end().await;
            }
        };
        tokio::join!(last_refusals, bridge_ended);
        match end {
            End::Stopped => journal.end(Happening::DaemonStopped).await,
            End::MadeWay => journal.end(Happening::DaemonMadeWay).await,
        }
        tracing::info!("ended");
        Ok(end)
    }

    fn endpoint(&self, own: &Program) -> Result<(Beginning, PathBuf), StartError> {
        if self.arguments.no_bridge {
            return Ok((Beginning::Elsewhere, PathBuf::new()));
        }
        let program = bridge::program::find(own).ok_or(StartError::NoBridge)?;
        Ok((bridge::begin(&self.state_dir, self.address)?, program))
    }

    fn bridge_setup(
        &self,
        fleet: Fleet,
        children: Children,
        journal: Journal,
        program: PathBuf,
    ) -> bridge::Setup {
        let args = [
            "--config".into(),
            self.first.config.file.clone().into_os_string(),
            "--state-dir".into(),
            self.state_dir.clone().into_os_string(),
            "--log-format".into(),
            self.arguments.log_format.as_str().into(),
        ];
        bridge::Setup {
            fleet,
            children,
            journal,
            state_dir: self.state_dir.clone(),
            address: self.address,
            program,
            args: args.into(),
            environment: bridge::program::environment(std::env::vars_os()),
        }
    }
}

/// Waits until the daemon has to stop everything and gives the path of that, or until it has made way.
async fn until_ended(
    fleet: &Fleet,
    inbox: &mut mpsc::Receiver<Wish>,
    signals: &mut Signals,
    managed: bool,
) -> Option<RestartPath> {
    loop {
        let asker = match next_wish(inbox, signals).await {
            Wish::End(path) => return Some(path),
            Wish::MakeWay(asker) => asker,
        };
        tracing::info!("an upgrade is asked for: nothing new is begun");
        tell(&asker, Word::Leaving);
        let drained = timeout(DRAIN_LIMIT, fleet.make_way());
        tokio::pin!(drained);
        tokio::select! {
            // Of an end and an upgrade at the same moment it is the end that wins.
            biased;
            path = next_end(inbox, signals) => {
                tell(&asker, Word::Refused(ended_meanwhile()));
                return Some(path);
            }
            drained = &mut drained => {
                if drained.is_err() {
                    tracing::warn!("something is still under way; the next daemon takes it up");
                }
                return None;
            }
            () = asker.closed(), if !managed => {
                tracing::warn!("whoever asked for the upgrade is gone, and would have started the next daemon: this one stays");
                fleet.stay();
            }
        }
    }
}

async fn next_wish(inbox: &mut mpsc::Receiver<Wish>, signals: &mut Signals) -> Wish {
    tokio::select! {
        () = signals.next() => Wish::End(RestartPath::DaemonShutdown),
        Some(wish) = inbox.recv() => wish,
    }
}

async fn next_end(inbox: &mut mpsc::Receiver<Wish>, signals: &mut Signals) -> RestartPath {
    loop {
        match next_wish(inbox, signals).await {
            Wish::End(path) => return path,
            wish @ Wish::MakeWay(_) => refuse(wish, another_upgrade()),
        }
    }
}

fn refuse(wish: Wish, why: Failure) {
    if let Wish::MakeWay(asker) = wish {
        tell(&asker, Word::Refused(why));
    }
}

fn tell(asker: &Asker, word: Word) {
    // Whoever is gone needs to know nothing; the others have room for all that they are told.
    let _ = asker.try_send(word);
}

/// Stops the agents. A signal that comes meanwhile skips the grace periods.
async fn stop_all(fleet: &Fleet, path: RestartPath, signals: &mut Signals) {
    let stopped = fleet.shut_down(path);
    tokio::pin!(stopped);
    loop {
        tokio::select! {
            () = &mut stopped => break,
            () = signals.next() => {
                tracing::warn!("a second signal: agents are killed");
                fleet.hurry();
            }
        }
    }
}

/// What ends the daemon: signals, or the end of whoever has started it for themselves.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    starter: Option<pipe::Receiver>,
}

impl Signals {
    fn new(ends_with_stdin: bool) -> io::Result<Self> {
        // Taken and dropped: the daemon survives the terminal that it was started from, and its children
        // do not inherit that, as they would if the signal were ignored.
        let _ = signal(SignalKind::hangup())?;
        let stdin = || pipe::Receiver::from_owned_fd(io::stdin().as_fd().try_clone_to_owned()?);
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            starter: ends_with_stdin.then(stdin).transpose()?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = end_of(&mut self.starter) => {}
        }
    }
}

/// Waits until the other end of the pipe is closed, and forgets the pipe then.
async fn end_of(starter: &mut Option<pipe::Receiver>) {
    let Some(pipe) = starter else { return std::future::pending().await };
    while matches!(pipe.read(&mut [0; 64]).await, Ok(1..)) {}
    *starter = None;
}
