//! The task that keeps the endpoint served. Its states are drawn in the module above.

use super::backoff::Backoff;
use super::listen::{EndpointError, listen};
use super::record::Record;
use super::{Announcement, Bridge, Message, Published};
use crate::children::Children;
use crate::fleet::Fleet;
use crate::governance::Journal;
use crate::logging;
use crate::program::Program;
use mcp_restart_paths::RestartPath;
use mcp_restart_process::{Exit, Signal, Spawn, tree};
use mcp_restart_protocol::hello::PROTOCOL;
use mcp_restart_protocol::journal::{Happening, Line};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How often, and how many times, a bridge that lost its daemon is looked at until it announces itself.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
const LOOKS: u32 = 8;
/// How long a bridge may take to end before it is killed.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// What the endpoint begins with.
#[derive(Debug)]
pub(crate) enum Beginning {
    /// A bridge that runs on its own will announce itself.
    Elsewhere,
    /// The bridge of a previous daemon lives where the endpoint shall be.
    Previous(Record),
    /// The bridge of a previous daemon lives where the endpoint shall no longer be.
    Replace(Record, TcpListener),
    /// Nobody serves yet.
    Listener(TcpListener),
}

/// What the keeper works with.
#[derive(Debug)]
pub(crate) struct Setup {
    /// Is told where the endpoint is.
    pub(crate) fleet: Fleet,
    /// Starts the bridge.
    pub(crate) children: Children,
    /// Is told of its starts and ends.
    pub(crate) journal: Journal,
    /// Where `bridge.json` and the log are.
    pub(crate) state_dir: PathBuf,
    /// The endpoint's address in the config.
    pub(crate) address: SocketAddr,
    /// The bridge's program.
    pub(crate) program: PathBuf,
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
    /// Its environment.
    pub(crate) environment: Vec<(OsString, OsString)>,
}

/// Starts the task and gives the handle on it.
pub(crate) fn keep(beginning: Beginning, setup: Setup) -> Bridge {
    let (messages, inbox) = mpsc::channel(16);
    let (published, watching) = watch::channel(Published::default());
    let mut keeper = Keeper {
        address: setup.address,
        setup,
        listener: None,
        state: State::Waiting { until: Instant::now() },
        backoff: Backoff::default(),
        connections: 0,
        published,
    };
    tokio::spawn(async move {
        keeper.begin(beginning);
        keeper.run(inbox).await;
    });
    Bridge { messages, published: watching }
}

struct Keeper {
    setup: Setup,
    /// Where the endpoint is: port 0 of the config has become a number once somebody listens.
    address: SocketAddr,
    listener: Option<TcpListener>,
    state: State,
    backoff: Backoff,
    connections: u64,
    published: watch::Sender<Published>,
}

enum State {
    /// The bridge runs on its own, and has this connection while it is there.
    Elsewhere { connection: Option<u64> },
    /// A bridge that this daemon did not start should announce itself.
    Awaiting { record: Record, looks: u32, next: Instant },
    /// It has.
    Adopted { record: Record, connection: u64 },
    /// Our own runs.
    Child { pid: u32, record: Option<Record>, exit: oneshot::Receiver<Exit>, since: Instant },
    /// Our own ended, or could not be started, and is started again then.
    Waiting { until: Instant },
}

/// What happened to the state by itself.
enum Wake {
    Ended(Option<Exit>),
    Due,
}

impl State {
    async fn wake(&mut self) -> Wake {
        match self {
            Self::Child { exit, .. } => return Wake::Ended(exit.await.ok()),
            Self::Waiting { until } | Self::Awaiting { next: until, .. } => sleep_until(*until).await,
            Self::Adopted { .. } | Self::Elsewhere { .. } => std::future::pending().await,
        }
        Wake::Due
    }

    fn awaiting(record: Record) -> Self {
        Self::Awaiting { record, looks: LOOKS, next: Instant::now() + LOOK_INTERVAL }
    }
}

impl Keeper {
    async fn run(mut self, mut inbox: mpsc::Receiver<Message>) {
        loop {
            tokio::select! {
                message = inbox.recv() => match message {
                    Some(Message::Announced(announcement, reply)) => {
                        self.connections += 1;
                        self.announced(announcement);
                        let _ = reply.send(self.connections);
                    }
                    Some(Message::Gone(connection)) => self.gone(connection),
                    Some(Message::WriteAgain) => self.write_record(),
                    Some(Message::End(done)) => {
                        self.end(inbox).await;
                        let _ = done.send(());
                        return;
                    }
                    None => return,
                },
                wake = self.state.wake() => match wake {
                    Wake::Ended(exit) => self.child_ended(exit),
                    Wake::Due => self.due(),
                },
            }
        }
    }

    fn begin(&mut self, beginning: Beginning) {
        match beginning {
            Beginning::Elsewhere => self.state = State::Elsewhere { connection: None },
            Beginning::Previous(record) => {
                tracing::info!(pid = record.pid(), "waiting for the bridge of the previous daemon");
                self.address = record.address;
                self.state = State::awaiting(record);
            }
            Beginning::Replace(record, listener) => {
                tracing::info!(pid = record.pid(), address = %record.address, "ending a bridge on another address");
                end_previous(&self.setup.journal, &record, Signal::TERMINATE);
                self.listener = Some(listener);
                self.start_child();
            }
            Beginning::Listener(listener) => {
                self.listener = Some(listener);
                self.start_child();
            }
        }
    }

    fn announced(&mut self, announcement: Announcement) {
        let Announcement { pid, version, protocol, url, listener } = announcement;
        let ours = protocol == PROTOCOL && version == env!("CARGO_PKG_VERSION");
        match &mut self.state {
            State::Child { pid: child, .. } if *child == pid => {
                if !ours {
                    tracing::warn!(%version, protocol, "the bridge on disk is of another version than this daemon");
                }
            }
            State::Adopted { record, connection } if record.pid() == pid => {
                *connection = self.connections;
                return;
            }
            State::Awaiting { record, .. } if record.pid() == pid => {
                self.listener = Some(listener);
                if !ours || !record.runs(&self.setup.program) {
                    tracing::info!(pid, %version, "replacing the previous daemon's bridge by the one on disk");
                    end_previous(&self.setup.journal, record, Signal::TERMINATE);
                    return self.start_child();
                }
                tracing::info!(pid, "adopted the bridge of the previous daemon");
                self.published.send_modify(|published| published.program.clone_from(&record.program));
                self.state = State::Adopted { record: record.clone(), connection: self.connections };
            }
            State::Elsewhere { connection } => *connection = Some(self.connections),
            _ => {
                tracing::info!(pid, %url, "a bridge that this daemon did not start is connected");
                return;
            }
        }
        tracing::info!(pid, %url, "the endpoint is served");
        self.publish(url);
    }

    fn gone(&mut self, gone: u64) {
        match &mut self.state {
            State::Adopted { record, connection } if *connection == gone => {
                if record.is_alive() {
                    self.state = State::awaiting(record.clone());
                } else {
                    let pid = record.pid();
                    tracing::warn!(pid, "the bridge ended");
                    self.write_end(pid, None);
                    self.start_child();
                }
            }
            State::Elsewhere { connection } if *connection == Some(gone) => {
                *connection = None;
                tracing::warn!("the bridge left; the endpoint is not served");
                self.published.send_modify(|published| published.url = None);
            }
            _ => {}
        }
    }

    fn due(&mut self) {
        match &mut self.state {
            State::Waiting { .. } => self.start_child(),
            State::Awaiting { record, looks, next } => {
                if !record.is_alive() {
                    tracing::info!(pid = record.pid(), "the bridge of the previous daemon ended");
                    self.start_child();
                } else if *looks > 0 {
                    *looks -= 1;
                    *next += LOOK_INTERVAL;
                } else {
                    tracing::warn!(pid = record.pid(), "killing a bridge that does not announce itself");
                    end_previous(&self.setup.journal, record, Signal::KILL);
                    self.start_child();
                }
            }
            State::Adopted { .. } | State::Child { .. } | State::Elsewhere { .. } => {}
        }
    }

    fn child_ended(&mut self, exit: Option<Exit>) {
        let State::Child { pid, since, .. } = &self.state else { return };
        let wait = self.backoff.ended(since.elapsed());
        let how = exit.map_or_else(|| "in an unknown way".to_owned(), describe);
        tracing::warn!(pid, how, wait_ms = wait.as_millis(), "the bridge ended; it is started again");
        self.write_end(*pid, Some(how.clone()));
        if let Some(times) = self.backoff.crash_loop() {
            self.give_up_for_now(&format!("the bridge ended {times} times in a row, the last time {how}"));
        }
        self.state = State::Waiting { until: Instant::now() + wait };
    }

    fn start_child(&mut self) {
        match self.try_start_child() {
            Ok(state) => {
                self.state = state;
                self.write_record();
            }
            Err(error) => {
                let wait = self.backoff.ended(Duration::ZERO);
                let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                tracing::error!(%error, why, wait_ms = wait.as_millis(), "the bridge could not be started");
                self.give_up_for_now(&format!("{error}: {why}"));
                self.state = State::Waiting { until: Instant::now() + wait };
            }
        }
    }

    /// Says that the endpoint is not served, and has callers refused rather than wait for something that may not
    /// come.
    fn give_up_for_now(&mut self, trouble: &str) {
        tracing::error!(trouble, "agents cannot reach the endpoint");
        self.listener = None;
        self.published.send_modify(|published| {
            published.url = None;
            published.trouble = Some(trouble.to_owned());
        });
    }

    fn try_start_child(&mut self) -> Result<State, StartError> {
        let listener = match self.listener.take() {
            Some(listener) => listener,
            None => listen(self.address).map_err(StartError::Endpoint)?,
        };
        let listener = self.listener.insert(listener);
        self.address = listener.local_addr().map_err(StartError::System)?;
        let program = Program::at(self.setup.program.clone())
            .map_err(|error| StartError::Program(self.setup.program.clone(), error))?;
        let output = logging::open(&logging::log_file(&self.setup.state_dir)).map_err(StartError::System)?;
        let spawn = Spawn {
            program: self.setup.program.clone(),
            arg0: None,
            args: self.setup.args.clone(),
            environment: self.setup.environment.clone(),
            stdin: None,
            output: Some(output.into()),
            inherited: vec![listener.try_clone().map_err(StartError::System)?.into()],
        };
        let (pid, exit) = self
            .setup
            .children
            .spawn(RestartPath::BridgeChild, spawn)
            .map_err(|error| StartError::Program(self.setup.program.clone(), error))?;
        self.setup.journal.line(Line { new_pid: Some(pid), ..by_us(Happening::BridgeStarted) });
        self.published.send_modify(|published| published.program = Some(program.clone()));
        let record = Record::of(pid, self.address, program);
        Ok(State::Child { pid, record, exit, since: Instant::now() })
    }

    /// Without it the next daemon would find the port taken by a bridge that it does not know.
    fn write_record(&self) {
        let record = match &self.state {
            State::Child { record, .. } => record.as_ref(),
            State::Awaiting { record, .. } | State::Adopted { record, .. } => Some(record),
            State::Elsewhere { .. } | State::Waiting { .. } => None,
        };
        if let Some(Err(error)) = record.map(|record| record.write(&self.setup.state_dir)) {
            tracing::error!(%error, "cannot write bridge.json");
        }
    }

    /// Writes down that the bridge ended by itself.
    fn write_end(&self, pid: u32, how: Option<String>) {
        let line = Line { old_pid: Some(pid), message: how, ..Line::now(Happening::BridgeEnded) };
        self.setup.journal.line(line);
    }

    fn publish(&mut self, url: String) {
        self.published.send_modify(|published| {
            published.url = Some(url.clone());
            published.trouble = None;
        });
        self.setup.fleet.endpoint(url);
    }

    async fn end(self, inbox: mpsc::Receiver<Message>) {
        // From here on nobody new waits in the backlog of an endpoint that is going away.
        drop(self.listener);
        let ended = match self.state {
            State::Child { pid, mut exit, .. } => {
                // Not SIGTERM: nobody goes on with the socket.
                self.setup.children.signal(RestartPath::BridgeChild, pid, Signal::INTERRUPT);
                if timeout(END_PATIENCE, &mut exit).await.is_err() {
                    tracing::warn!(pid, "the bridge does not end; killing it");
                    self.setup.children.signal(RestartPath::BridgeChild, pid, Signal::KILL);
                    let _ = exit.await;
                }
                Some(pid)
            }
            State::Adopted { record, .. } | State::Awaiting { record, .. } => {
                signal(&record, Signal::INTERRUPT);
                if timeout(END_PATIENCE, until_gone(inbox)).await.is_err() {
                    signal(&record, Signal::KILL);
                }
                let _ = timeout(END_PATIENCE, until_dead(&record)).await;
                Some(record.pid())
            }
            State::Waiting { .. } | State::Elsewhere { .. } => None,
        };
        if let Some(pid) = ended {
            self.setup.journal.line(Line { old_pid: Some(pid), ..by_us(Happening::BridgeEnded) });
        }
        Record::remove(&self.setup.state_dir);
    }
}

/// A line about what this daemon does with the bridge.
fn by_us(event: Happening) -> Line {
    Line { path_id: Some(RestartPath::BridgeChild.id().to_owned()), ..Line::now(event) }
}

async fn until_gone(mut inbox: mpsc::Receiver<Message>) {
    while let Some(message) = inbox.recv().await {
        if matches!(message, Message::Gone(_)) {
            return;
        }
    }
}

/// Ends the bridge of the daemon before, which makes room for our own.
fn end_previous(journal: &Journal, record: &Record, kind: Signal) {
    signal(record, kind);
    journal.line(Line { old_pid: Some(record.pid()), ..by_us(Happening::BridgeEnded) });
}

fn signal(record: &Record, signal: Signal) {
    if let Some(process) = record.process() {
        tree::signal(RestartPath::BridgeChild, &process, signal);
    }
}

/// It is no child of ours, so nobody tells when it has left its last line behind it.
async fn until_dead(record: &Record) {
    const PAUSE: Duration = Duration::from_millis(2);
    while record.is_alive() {
        sleep(PAUSE).await;
    }
}

pub(super) fn describe(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("with exit code {code}"),
        Exit::Signal(signal) => format!("by {signal}"),
    }
}

/// Why a bridge was not started.
#[derive(Debug)]
enum StartError {
    Endpoint(EndpointError),
    Program(PathBuf, io::Error),
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint(error) => error.fmt(f),
            Self::Program(program, _) => write!(f, "cannot execute {}", program.display()),
            Self::System(_) => f.write_str("the system refused what a bridge needs"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Endpoint(error) => std::error::Error::source(error),
            Self::Program(_, error) | Self::System(error) => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{self, FleetSetup};
    use crate::last_good::FirstConfig;
    use mcp_restart_config::{Environment, lookup};

    #[tokio::test(start_paused = true)]
    async fn a_bridge_that_keeps_ending_shows_and_its_callers_are_refused_rather_than_left_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let config_file = folder.path().join("config.json");
        std::fs::write(&config_file, "{}").unwrap();
        let environment = Environment { cwd: folder.path().to_owned(), ..Environment::default() };
        let config = mcp_restart_config::load(&config_file, &environment).unwrap();
        let children = Children::start(1024).unwrap();
        let setup = FleetSetup {
            first: FirstConfig { config, text: Ok("{}".to_owned()) },
            environment,
            state_dir: folder.path().to_owned(),
            socket: lookup::socket(folder.path()),
            children: children.clone(),
        };
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let fleet = fleet::start(setup).await;
        let mut bridge = keep(
            Beginning::Listener(listener),
            Setup {
                journal: Journal::start(folder.path(), fleet.clone()),
                fleet,
                children,
                state_dir: folder.path().to_owned(),
                address,
                program: PathBuf::from("/bin/false"),
                args: Vec::new(),
                environment: Vec::new(),
            },
        );
        let shown = bridge.published.wait_for(|published| published.trouble.is_some()).await.unwrap();
        let trouble = shown.trouble.clone().unwrap();
        assert!(trouble.starts_with("the bridge ended 5 times in a row, the last time with exit code 1"));
        drop(shown);
        // A process that another test starts just now has the listening socket, too, until it executes its program.
        let mut connected = std::iter::repeat_with(|| std::net::TcpStream::connect(address)).take(100_000);
        let refused = connected.find_map(Result::err).unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        bridge.end().await;
    }
}
