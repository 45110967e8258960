//! The loop of a shim: signals, output, the daemon, and whoever is attached.

use crate::ShimArgs;
use crate::agent::{Agent, OwnIdentity, SpawnFailure};
use crate::connection::Connection;
use crate::files::RunFiles;
use crate::terminal::Terminal;
use mcp_restart_paths::RestartPath;
use mcp_restart_process::poll::{Ready, Watch, wait};
use mcp_restart_process::session::{self, Signals};
use mcp_restart_process::terminal::Size;
use mcp_restart_process::{
    EAGAIN, EPIPE, LockError, LockFile, Signal, boot_id, effective_uid, has_hung_up, limit_descriptors,
    peer_of_socket,
};
use mcp_restart_protocol::shim::{FromShim, SIGNAL_GRACE, ShimLaunch, ToShim};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a shim listens to.
const SIGNALS: [Signal; 4] = [Signal::CHILD, Signal::TERMINATE, Signal::INTERRUPT, Signal::QUIT];
/// How long the shim before this one may take to end, in seconds.
const PREDECESSOR: u32 = 10;
/// More connections than that are not served.
const CONNECTIONS_MAX: usize = 64;
/// After the system could give no connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// So long a daemon has to take note of an exit before it is written down.
const NOTICE: Duration = Duration::from_millis(10);
/// Read at a time.
const BUFFER: usize = 32 * 1024;

const NO_AGENT: &str = "no agent was launched yet";

pub(crate) struct Shim {
    own: OwnIdentity,
    files: RunFiles,
    daemon_lock: PathBuf,
    signals: Signals,
    connections: Vec<Connection>,
    next_number: u64,
    /// The number of the daemon's connection.
    daemon: u64,
    /// Those that were the daemon before; one of them is again when the newest leaves first.
    earlier_daemons: Vec<u64>,
    /// The number of the viewer who typed last.
    latest: Option<u64>,
    stage: Stage,
    /// A signal has asked this shim to end when its agent has.
    asked_to_end: bool,
    deaf_until: Option<Instant>,
    /// When the exit is written down, if no daemon has taken note of it before.
    write_exit_at: Option<Instant>,
    buffer: Vec<u8>,
}

enum Stage {
    Waiting,
    Serving(Box<Served>),
    Gone,
}

struct Served {
    /// Held until this shim ends, and given up first then: the next one waits for it.
    lock: LockFile,
    agent: Agent,
    listener: UnixListener,
}

/// What woke the loop up.
struct Wakeup {
    signals: bool,
    listener: bool,
    output: Ready,
    /// One for each connection, in their order.
    connections: Vec<Ready>,
}

/// What a process has done to become a shim, or to fork shims, and what these inherit of it.
#[derive(Debug, Clone)]
pub(crate) struct Ground {
    boot_id: String,
}

impl Ground {
    /// For the first moment of a program.
    pub(crate) fn prepare(args: &ShimArgs) -> io::Result<Self> {
        session::forget_inherited()?;
        limit_descriptors(args.descriptors)?;
        session::start_session()?;
        session::return_freed_memory();
        session::ignore_signals_except(&SIGNALS);
        std::env::set_current_dir("/")?;
        Ok(Self { boot_id: boot_id() })
    }
}

impl Shim {
    /// Makes this process a shim, which is told what to do over `control`.
    pub(crate) fn set_up(args: &ShimArgs, ground: Ground, control: UnixStream) -> io::Result<Self> {
        // Again, in one that was forked.
        session::start_session()?;
        session::become_subreaper()?;
        session::set_name(c"mcp-shim")?;
        let signals = Signals::take(&SIGNALS)?;
        // Somebody who tries this by hand has no socket there.
        peer_of_socket(&control)?;
        let daemon = 0;
        Ok(Self {
            own: OwnIdentity::new(ground.boot_id),
            files: RunFiles::in_folder(&args.run_dir, &args.id),
            daemon_lock: args.run_dir.parent().unwrap_or(Path::new("/")).join("mcp-restartd.lock"),
            signals,
            connections: vec![Connection::control(daemon, control)?],
            next_number: daemon + 1,
            daemon,
            earlier_daemons: Vec::new(),
            latest: None,
            stage: Stage::Waiting,
            asked_to_end: false,
            deaf_until: None,
            write_exit_at: None,
            buffer: vec![0; BUFFER],
        })
    }

    /// Serves until nothing is left to watch over.
    pub(crate) fn run(mut self) -> io::Result<()> {
        while !self.is_over() {
            let wakeup = self.wait()?;
            self.deaf_until = self.deaf_until.filter(|&until| until > Instant::now());
            // First of all: what a stop finds to do depends on who has ended by itself before.
            if wakeup.signals {
                self.take_signals();
            }
            self.serve_output(wakeup.output);
            self.serve_connections(&wakeup.connections);
            if wakeup.listener {
                self.accept();
            }
            if let Stage::Serving(served) = &mut self.stage {
                let reports = served.agent.due(Instant::now());
                self.report(reports);
            }
            self.connections.retain(|connection| !connection.is_over());
            self.fall_back();
            self.write_exit();
        }
        self.leave();
        Ok(())
    }

    fn is_over(&self) -> bool {
        match &self.stage {
            Stage::Waiting => self.asked_to_end || self.connections.is_empty(),
            Stage::Serving(served) => {
                self.asked_to_end && served.agent.has_ended() && !self.daemon_is_there()
            }
            Stage::Gone => true,
        }
    }

    /// Somebody who only asked how things are has left: the daemon before it is told what it missed.
    fn fall_back(&mut self) {
        while !self.daemon_is_there()
            && let Some(earlier) = self.earlier_daemons.pop()
        {
            if self.connection(earlier).is_some() {
                self.daemon = earlier;
                self.describe_to(earlier, |message| matches!(message, FromShim::Exited(_)));
            }
        }
    }

    fn describe_to(&mut self, number: u64, wanted: impl Fn(&FromShim) -> bool) {
        let Stage::Serving(served) = &self.stage else { return };
        for message in served.agent.describe().iter().filter(|message| wanted(message)) {
            self.send(number, message);
        }
    }

    fn daemon_is_there(&self) -> bool {
        self.connections.iter().any(|connection| connection.number() == self.daemon)
    }

    /// Writes the exit down once it is due, or nobody is there who could take note of it.
    fn write_exit(&mut self) {
        let due = self.write_exit_at.is_some_and(|at| at <= Instant::now() || !self.daemon_is_there());
        if !due || !matches!(self.stage, Stage::Serving(_)) {
            return;
        }
        self.write_exit_at = None;
        // Where it cannot be written, as on a full disk, it is told over the socket all the same; but with its daemon and
        // the state dir gone nobody will ever ask.
        let written = self.put_files_back().and_then(|()| self.write_facts());
        if written.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) && !self.daemon_is_there() {
            self.asked_to_end = true;
        }
        self.connections.retain(|connection| !connection.only_waits());
    }

    /// Nobody took note of the exit, so it stays written down; the lock goes with the process.
    fn leave(&self) {
        if let Some(files) = self.own_files() {
            let _ = fs::remove_file(&files.socket);
        }
    }

    fn wait(&self) -> io::Result<Wakeup> {
        let mut watches = vec![Watch { descriptor: self.signals.as_fd(), read: true, write: false }];
        let mut until = [self.deaf_until, self.write_exit_at].into_iter().flatten().min();
        let (mut listens, mut has_output, mut full) = (false, false, false);
        if let Stage::Serving(served) = &self.stage {
            until = [until, served.agent.wake_at()].into_iter().flatten().min();
            listens = self.deaf_until.is_none();
            if listens {
                watches.push(Watch { descriptor: served.listener.as_fd(), read: true, write: false });
            }
            let output = &served.agent.output;
            let typed = output.terminal().is_some_and(Terminal::has_input);
            full = output.terminal().is_some_and(Terminal::is_full);
            if let Some(descriptor) = output.descriptor() {
                has_output = true;
                watches.push(Watch { descriptor, read: true, write: typed });
            }
        }
        watches.extend(self.connections.iter().map(|connection| Watch {
            descriptor: connection.stream().as_fd(),
            // Who types faster than the agent reads has to wait; the daemon types nothing.
            read: !full || connection.number() == self.daemon,
            write: connection.has_output(),
        }));
        let mut ready = wait(&watches, until)?.into_iter();
        let mut next = |watched: bool| watched.then(|| ready.next()).flatten().unwrap_or_default();
        Ok(Wakeup {
            signals: next(true).read,
            listener: next(listens).read,
            output: next(has_output),
            connections: ready.collect(),
        })
    }

    fn take_signals(&mut self) {
        let mut children_ended = false;
        let mut asked_to_end = false;
        while let Some(signal) = self.signals.next() {
            match signal {
                Signal::CHILD => children_ended = true,
                _ => asked_to_end = true,
            }
        }
        self.asked_to_end |= asked_to_end;
        let Stage::Serving(served) = &mut self.stage else { return };
        let mut reports = Vec::new();
        if children_ended {
            reports.extend(served.agent.children_ended());
        }
        if asked_to_end && !served.agent.has_ended() {
            reports.extend(served.agent.stop_for_signal(SIGNAL_GRACE));
        }
        self.report(reports);
    }

    fn serve_output(&mut self, ready: Ready) {
        let Stage::Serving(served) = &mut self.stage else { return };
        let output = &mut served.agent.output;
        if ready.write
            && let Some(terminal) = output.terminal_mut()
        {
            terminal.flush();
        }
        if ready.read {
            let bytes = output.read(&mut self.buffer);
            if !bytes.is_empty() {
                for connection in &mut self.connections {
                    connection.show(bytes);
                }
            }
        }
    }

    fn serve_connections(&mut self, ready: &[Ready]) {
        let mut messages = Vec::new();
        for (connection, ready) in self.connections.iter_mut().zip(ready) {
            if ready.write {
                connection.flush();
            }
            if ready.read {
                let received = connection.receive(&mut self.buffer);
                messages.extend(received.into_iter().map(|message| (connection.number(), message)));
            }
        }
        for (sender, message) in messages {
            self.handle(sender, message);
        }
        let Stage::Serving(served) = &self.stage else { return };
        let Some(terminal) = served.agent.output.terminal() else { return };
        for connection in self.connections.iter_mut().filter(|connection| connection.wants_picture()) {
            connection.show_picture(&terminal.picture());
        }
    }

    fn accept(&mut self) {
        loop {
            let Stage::Serving(served) = &self.stage else { return };
            let stream = match served.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    self.deaf_until = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            };
            if may_connect(&stream) {
                self.make_room();
                self.take_in(stream);
            }
        }
    }

    /// Somebody who has never said a word goes first.
    fn make_room(&mut self) {
        if self.connections.len() >= CONNECTIONS_MAX
            && let Some(silent) = self.connections.iter().position(|connection| !connection.is_greeted())
        {
            self.connections.remove(silent);
        }
    }

    fn take_in(&mut self, stream: UnixStream) {
        if self.connections.len() < CONNECTIONS_MAX
            && let Ok(connection) = Connection::accepted(self.next_number, stream)
        {
            self.next_number += 1;
            self.connections.push(connection);
        }
    }

    fn handle(&mut self, sender: u64, message: ToShim) {
        match message {
            ToShim::Launch(launch) => self.launch(sender, *launch),
            ToShim::Describe => self.describe(sender),
            ToShim::Stop { path, signal, grace_ms } => self.stop(sender, &path, signal, grace_ms),
            ToShim::Acknowledge => self.acknowledge(sender),
            ToShim::Attach { rows, columns } => self.attach(sender, Size { rows, columns }),
            ToShim::Input(bytes) => self.input(sender, &bytes),
            ToShim::Resize { rows, columns } => self.resize(sender, Size { rows, columns }),
        }
    }

    fn launch(&mut self, sender: u64, launch: ShimLaunch) {
        let is_control = self.connection(sender).is_some_and(|connection| connection.is_control());
        if !is_control {
            return self.refuse(sender, "only who started this shim may launch its agent");
        }
        if !matches!(self.stage, Stage::Waiting) {
            return self.refuse(sender, "this shim has launched its agent already");
        }
        match self.start(sender, launch) {
            Ok(served) => {
                self.send(sender, &served.agent.started());
                self.stage = Stage::Serving(Box::new(served));
            }
            Err(SpawnFailure { step, errno }) => {
                self.send(sender, &FromShim::SpawnFailed { step, errno });
                self.stage = Stage::Gone;
            }
        }
    }

    fn start(&mut self, sender: u64, launch: ShimLaunch) -> Result<Served, SpawnFailure> {
        let acquire = || LockFile::acquire(&self.files.lock, PREDECESSOR);
        let lock = match acquire() {
            // Somebody has removed its folder.
            Err(LockError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                self.files.create_folder().map_err(LockError::Io).and_then(|()| acquire())
            }
            taken => taken,
        };
        let lock = lock.map_err(|error| self.lock_failure(&error))?;
        // Its daemon may have died while this shim waited, and the next one does not know of it.
        if self.connection(sender).is_none_or(|connection| has_hung_up(connection.stream())) {
            return Err(SpawnFailure { step: "hear from the daemon".to_owned(), errno: EPIPE });
        }
        let started = Agent::launch(launch, &self.own, self.daemon_lock.clone(), |facts| {
            match facts.write(&self.files.facts) {
                // On a full disk it is known by its lock and its socket alone.
                Err(error) if is_full(&error) => {}
                written => written.map_err(|error| failure("write", &self.files.facts, &error))?,
            }
            listen(&self.files.socket).map_err(|error| failure("listen on", &self.files.socket, &error))
        });
        match started {
            Ok((agent, listener)) => Ok(Served { lock, agent, listener }),
            Err(failure) => {
                self.files.remove();
                Err(failure)
            }
        }
    }

    fn lock_failure(&self, error: &LockError) -> SpawnFailure {
        let step = format!("take the lock {}", self.files.lock.display());
        match error {
            LockError::Io(error) => SpawnFailure::new(step, error),
            LockError::Held { holder } => {
                let holder =
                    holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
                let step = format!("{step}, which {holder} holds");
                SpawnFailure { step, errno: EAGAIN }
            }
        }
    }

    fn describe(&mut self, sender: u64) {
        if !matches!(self.stage, Stage::Serving(_)) {
            return self.refuse(sender, NO_AGENT);
        }
        let earlier = self.daemon;
        self.earlier_daemons.retain(|&number| number != sender && number != earlier);
        if earlier != sender {
            self.earlier_daemons.push(earlier);
        }
        self.daemon = sender;
        // Without its files it is still known to whoever asks.
        let _ = self.put_files_back();
        self.describe_to(sender, |_| true);
    }

    fn stop(&mut self, sender: u64, path: &str, signal: i32, grace_ms: u64) {
        if sender != self.daemon {
            return self.refuse(sender, "only the daemon may stop the agent");
        }
        let path = match RestartPath::from_id(path) {
            Ok(path) => path,
            Err(unknown) => return self.refuse(sender, &unknown.to_string()),
        };
        let Some(signal) = Signal::from_number(signal) else {
            return self.refuse(sender, &format!("there is no signal {signal}"));
        };
        let Stage::Serving(served) = &mut self.stage else { return self.refuse(sender, NO_AGENT) };
        let reports = served.agent.stop(path, signal, Duration::from_millis(grace_ms));
        self.report(reports);
    }

    fn acknowledge(&mut self, sender: u64) {
        let ended = matches!(&self.stage, Stage::Serving(served) if served.agent.has_ended());
        if sender != self.daemon || !ended {
            return self.refuse(sender, "there is no exit that you could acknowledge");
        }
        // While the lock is held: after that the next shim has files of these names.
        if let Some(files) = self.own_files() {
            files.remove();
        }
        self.stage = Stage::Gone;
    }

    fn attach(&mut self, sender: u64, size: Size) {
        let Stage::Serving(served) = &mut self.stage else { return self.refuse(sender, NO_AGENT) };
        let ended = served.agent.has_ended();
        let terminal = served.agent.output.terminal_mut().filter(|_| !ended);
        let connection = self.connections.iter_mut().find(|connection| connection.number() == sender);
        match (terminal, connection) {
            (Some(terminal), Some(connection)) => {
                terminal.resize(size);
                connection.attach(size, &terminal.picture());
                self.latest = Some(sender);
            }
            (None, Some(connection)) if ended => connection.detach("the agent has ended"),
            (None, Some(connection)) => connection.detach("the agent has no terminal"),
            (_, None) => {}
        }
    }

    fn input(&mut self, sender: u64, bytes: &[u8]) {
        let size = self.connection(sender).and_then(|connection| connection.viewed_size());
        let Stage::Serving(served) = &mut self.stage else { return self.refuse(sender, NO_AGENT) };
        let ended = served.agent.has_ended();
        let Some(terminal) = served.agent.output.terminal_mut().filter(|_| !ended) else {
            return self.refuse(sender, "the agent has no terminal to type into");
        };
        if let Some(size) = size {
            terminal.resize(size);
            self.latest = Some(sender);
        }
        terminal.type_in(bytes);
    }

    fn resize(&mut self, sender: u64, size: Size) {
        if let Some(connection) = self.connection(sender) {
            connection.set_viewed_size(size);
        }
        if self.latest != Some(sender) {
            return;
        }
        if let Stage::Serving(served) = &mut self.stage
            && let Some(terminal) = served.agent.output.terminal_mut()
        {
            terminal.resize(size);
        }
    }

    fn report(&mut self, reports: Vec<FromShim>) {
        for report in reports {
            let exited = matches!(report, FromShim::Exited(_));
            if exited {
                // Whoever hears of the exit finds the last words in the log.
                self.finish_output();
            }
            self.send(self.daemon, &report);
            if exited {
                // The daemon takes note in less time than a file takes to be written.
                self.write_exit_at = Some(Instant::now() + NOTICE);
            }
        }
    }

    fn finish_output(&mut self) {
        let Stage::Serving(served) = &mut self.stage else { return };
        let connections = &mut self.connections;
        served.agent.output.finish(&mut self.buffer, |bytes| {
            for connection in connections.iter_mut() {
                connection.show(bytes);
            }
        });
        served.agent.note_sweep();
        for viewer in connections.iter_mut().filter(|connection| connection.viewed_size().is_some()) {
            viewer.detach("the agent has ended");
        }
    }

    fn connection(&mut self, number: u64) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.number() == number)
    }

    fn send(&mut self, number: u64, message: &FromShim) {
        if let Some(connection) = self.connection(number) {
            connection.send(message);
        }
    }

    fn refuse(&mut self, number: u64, reason: &str) {
        self.send(number, &FromShim::Refused { reason: reason.to_owned() });
    }

    /// What it has written down, unless the files of these names are those of another shim by now.
    fn own_files(&self) -> Option<&RunFiles> {
        let Stage::Serving(served) = &self.stage else { return None };
        served.lock.has_name(&self.files.lock).then_some(&self.files)
    }

    fn write_facts(&self) -> io::Result<()> {
        let Stage::Serving(served) = &self.stage else { return Ok(()) };
        served.agent.write_facts(&self.files)
    }

    /// Puts back what somebody has removed, so that the next daemon finds this shim: the lock first, which says whose
    /// the files of these names are. Fails if they are those of another shim, or cannot be written.
    fn put_files_back(&mut self) -> io::Result<()> {
        let Stage::Serving(served) = &mut self.stage else { return Ok(()) };
        let files = &self.files;
        if !served.lock.has_name(&files.lock) {
            files.create_folder()?;
            served.lock = LockFile::try_acquire(&files.lock).map_err(io::Error::other)?;
        }
        if !files.facts.exists() {
            served.agent.write_facts(files)?;
        }
        if !files.socket.exists() {
            served.listener = listen(&files.socket)?;
        }
        Ok(())
    }
}

fn failure(what: &str, file: &Path, error: &io::Error) -> SpawnFailure {
    SpawnFailure::new(format!("{what} {}", file.display()), error)
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The lock is held, so a socket that is there is one that a dead shim left.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let _ = fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn may_connect(stream: &UnixStream) -> bool {
    peer_of_socket(stream).is_ok_and(|peer| peer.uid == effective_uid() || peer.uid == 0)
}
