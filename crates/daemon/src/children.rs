//! The daemon's own children: shims and the bridge.
//!
//! ```text
//!  spawn ──► Child ──channel──► reaper ◄── SIGCHLD
//!    └─► exit receiver ◄──────────┘ │ asks each child that it knows
//!  shim ────────────────channel──►  └──► fork server ──► Child
//! ```
//!
//! Shims are forked from a process that is started for that when the first one is needed, and again after its end. Where
//! that does not work, they are started as programs.
//!
//! Only children that were started here are waited for, each by its number: nobody's exit status is stolen.

use crate::fork_server::{ForkServer, Reply};
use mcp_restart_config::lookup;
use mcp_restart_paths::RestartPath;
use mcp_restart_process::sibling::CAN_FORK_SIBLINGS;
use mcp_restart_process::{Child, Exit, Lost, Signal, Spawn, end_lost, own_executable, spawn};
use mcp_restart_shim::{ForkAnswer, ForkRequest, ShimArgs};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;

/// A handle on the task that owns the children.
#[derive(Debug, Clone)]
pub(crate) struct Children {
    system: System,
    descriptors: u64,
}

/// Who starts and signals them.
#[derive(Debug, Clone)]
enum System {
    /// The kernel, by way of the task that reaps them.
    // Unbounded, since starting a process must not wait: one message per process and per signal to one.
    Real(mpsc::UnboundedSender<Message>),
    /// A test's world.
    #[cfg(test)]
    StandIn(std::sync::Arc<dyn StandIn>),
}

/// Takes the place of the kernel in tests.
#[cfg(test)]
pub(crate) trait StandIn: std::fmt::Debug + Send + Sync {
    /// Starts a program and gives its process id.
    fn spawn(&self, program: Spawn) -> io::Result<u32>;
    /// Signals one that was started here.
    fn signal(&self, pid: u32, signal: Signal);
}

#[derive(Debug)]
enum Message {
    Started(Child, oneshot::Sender<Exit>),
    Fork { path: RestartPath, shim: ShimArgs, control: OwnedFd, reply: Reply },
    Signal { pid: u32, path: RestartPath, signal: Signal },
}

impl Children {
    /// Starts the task. It ends with the last handle. Shims and agents may have so many `descriptors`.
    pub(crate) fn start(descriptors: u64) -> io::Result<Self> {
        let ended = signal(SignalKind::child())?;
        let (messages, inbox) = mpsc::unbounded_channel();
        tokio::spawn(Reaper::default().run(inbox, ended));
        Ok(Self { system: System::Real(messages), descriptors })
    }

    /// Children of a test's world.
    #[cfg(test)]
    pub(crate) fn of(stand_in: std::sync::Arc<dyn StandIn>) -> Self {
        Self { system: System::StandIn(stand_in), descriptors: 1024 }
    }

    /// Starts a program and gives its process id and, once it has ended, how. The receiver fails only when
    /// the runtime ends first.
    pub(crate) fn spawn(
        &self,
        path: RestartPath,
        program: Spawn,
    ) -> io::Result<(u32, oneshot::Receiver<Exit>)> {
        let (ended, exit) = oneshot::channel();
        match &self.system {
            System::Real(messages) => {
                let child = spawn(path, program)?;
                let pid = child.pid();
                let _ = messages.send(Message::Started(child, ended));
                Ok((pid, exit))
            }
            #[cfg(test)]
            System::StandIn(stand_in) => Ok((stand_in.spawn(program)?, exit)),
        }
    }

    /// Starts a shim that is told over `control` what to launch, and gives its process id. Its end is seen by the
    /// end of that connection.
    pub(crate) async fn shim(&self, path: RestartPath, shim: &ShimArgs, control: OwnedFd) -> io::Result<u32> {
        let forks = match &self.system {
            System::Real(messages) => CAN_FORK_SIBLINGS.then_some(messages),
            #[cfg(test)]
            System::StandIn(_) => None,
        };
        if let Some(messages) = forks {
            let (reply, forked) = oneshot::channel();
            let (shim, control) = (shim.clone(), control.try_clone()?);
            let _ = messages.send(Message::Fork { path, shim, control, reply });
            match forked.await {
                Ok(Ok(pid)) => return Ok(pid),
                Ok(Err(error)) => tracing::warn!(%error, "a shim is not forked, but started as a program"),
                Err(_) => {}
            }
        }
        Ok(self.spawn(path, shim.spawn(own_executable()?, control))?.0)
    }

    /// Ends what the killed shim of an agent has left of it, and gives how many processes that were. It is waited for
    /// in another thread: everybody else is served meanwhile.
    pub(crate) async fn end_lost(&self, state_dir: &Path, agent: &str, generation: u64) -> u32 {
        match &self.system {
            System::Real(_) => {
                let (state_dir, agent) = (state_dir.to_owned(), agent.to_owned());
                let ended = spawn_blocking(move || {
                    let socket = lookup::socket(&state_dir);
                    let lost = Lost { socket: &socket.to_string_lossy(), agent: &agent, generation };
                    end_lost(RestartPath::LostSweep, lost)
                });
                u32::try_from(ended.await.unwrap_or_default()).unwrap_or(u32::MAX)
            }
            #[cfg(test)]
            System::StandIn(_) => 0,
        }
    }

    /// How many descriptors shims and agents may have.
    pub(crate) fn descriptors(&self) -> u64 {
        self.descriptors
    }

    /// Signals a child, unless it has ended.
    pub(crate) fn signal(&self, path: RestartPath, pid: u32, signal: Signal) {
        match &self.system {
            System::Real(messages) => drop(messages.send(Message::Signal { pid, path, signal })),
            #[cfg(test)]
            System::StandIn(stand_in) => stand_in.signal(pid, signal),
        }
    }
}

type Living = (Child, oneshot::Sender<Exit>);

#[derive(Default)]
struct Reaper {
    living: Vec<Living>,
    fork_server: Option<ForkServer>,
}

impl Reaper {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Message>, mut ended: Signals) {
        loop {
            tokio::select! {
                message = inbox.recv() => match message {
                    Some(message) => self.handle(message),
                    None => return,
                },
                _ = ended.recv() => {
                    self.living = self.living.drain(..).filter_map(|(child, exit)| still_living(child, exit)).collect();
                }
                answer = answer(&mut self.fork_server) => self.forked(answer),
            }
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            // It may have ended before it was known here, and its SIGCHLD with it.
            Message::Started(child, exit) => self.living.extend(still_living(child, exit)),
            Message::Fork { path, shim, control, reply } => {
                if let Err(error) = self.fork(path, shim, &control, reply) {
                    tracing::warn!(%error, "no fork server can be started");
                }
            }
            Message::Signal { pid, path, signal } => self.signal(path, pid, signal),
        }
    }

    fn fork(&mut self, path: RestartPath, shim: ShimArgs, control: &OwnedFd, reply: Reply) -> io::Result<()> {
        if self.fork_server.is_none() {
            let (fork_server, child) = ForkServer::start(path, &shim)?;
            self.adopt(child);
            self.fork_server = Some(fork_server);
        }
        if let Some(fork_server) = &mut self.fork_server {
            fork_server.ask(&ForkRequest { id: shim.id, path }, control, reply);
        }
        Ok(())
    }

    fn forked(&mut self, answer: io::Result<(Reply, ForkAnswer)>) {
        match answer {
            Ok((reply, ForkAnswer::Forked(pid))) => {
                self.adopt(Child::forked(pid));
                // Nobody may wait any more; then the shim sees the end of its connection.
                let _ = reply.send(Ok(pid));
            }
            Ok((reply, ForkAnswer::Refused(errno))) => {
                let _ = reply.send(Err(io::Error::from_raw_os_error(errno)));
            }
            Err(error) => self.give_up(&error),
        }
    }

    /// Somebody has killed or stopped it. Those who wait for it start their shims without it.
    fn give_up(&mut self, why: &io::Error) {
        if let Some(fork_server) = self.fork_server.take() {
            tracing::warn!(pid = fork_server.pid(), error = %why, "the fork server is given up");
            self.signal(RestartPath::AbandonedShim, fork_server.pid(), Signal::KILL);
        }
    }

    /// A child in whose end nobody here is interested; it is only waited for.
    fn adopt(&mut self, child: Child) {
        let (exit, _) = oneshot::channel();
        self.living.extend(still_living(child, exit));
    }

    fn signal(&self, path: RestartPath, pid: u32, signal: Signal) {
        if let Some((child, _)) = self.living.iter().find(|(child, _)| child.pid() == pid)
            && let Err(error) = child.signal(path, signal)
        {
            tracing::warn!(pid, %path, %error, "cannot signal a child");
        }
    }
}

async fn answer(fork_server: &mut Option<ForkServer>) -> io::Result<(Reply, ForkAnswer)> {
    match fork_server {
        Some(fork_server) => fork_server.answer().await,
        None => std::future::pending().await,
    }
}

fn still_living(mut child: Child, exit: oneshot::Sender<Exit>) -> Option<Living> {
    match child.try_wait() {
        Ok(None) => Some((child, exit)),
        Ok(Some(how)) => {
            // Nobody may want to know.
            let _ = exit.send(how);
            None
        }
        Err(error) => {
            tracing::error!(pid = child.pid(), %error, "a child cannot be waited for");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Spawn {
        Spawn {
            program: "/bin/sh".into(),
            arg0: None,
            args: vec!["-c".into(), script.into()],
            environment: Vec::new(),
            stdin: None,
            output: None,
            inherited: Vec::new(),
        }
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    #[test]
    fn each_child_gets_its_own_exit_status() {
        run(async {
            let children = Children::start(1024).unwrap();
            let exits: Vec<_> = (0..20)
                .map(|code| {
                    children.spawn(RestartPath::BridgeChild, shell(&format!("exit {code}"))).unwrap().1
                })
                .collect();
            for (code, exit) in (0..).zip(exits) {
                assert_eq!(exit.await, Ok(Exit::Code(code)));
            }
        });
    }

    #[test]
    fn a_child_that_is_signalled_says_so() {
        run(async {
            let children = Children::start(1024).unwrap();
            let (pid, exit) = children.spawn(RestartPath::BridgeChild, shell("exec sleep 60")).unwrap();
            children.signal(RestartPath::BridgeChild, pid, Signal::TERMINATE);
            assert_eq!(exit.await, Ok(Exit::Signal(Signal::TERMINATE)));
            // Too late: it must hit nobody.
            children.signal(RestartPath::BridgeChild, pid, Signal::KILL);
        });
    }
}
