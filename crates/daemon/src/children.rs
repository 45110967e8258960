//! The daemon's own children: shims and the bridge.
//!
//! ```text
//!  spawn ──► Child ──channel──► reaper ◄── SIGCHLD
//!    └─► exit receiver ◄──────────┘ asks each child that it knows
//! ```
//!
//! Only children that were started here are waited for, each by its number: nobody's exit status is stolen.

use mcp_restart_paths::RestartPath;
use mcp_restart_process::{Child, Exit, Signal, Spawn, spawn};
use std::io;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

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
    Signal { pid: u32, path: RestartPath, signal: Signal },
}

impl Children {
    /// Starts the task. It ends with the last handle. Shims and agents may have so many `descriptors`.
    pub(crate) fn start(descriptors: u64) -> io::Result<Self> {
        let ended = signal(SignalKind::child())?;
        let (messages, inbox) = mpsc::unbounded_channel();
        tokio::spawn(reap(inbox, ended));
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

async fn reap(mut inbox: mpsc::UnboundedReceiver<Message>, mut ended: Signals) {
    let mut living: Vec<(Child, oneshot::Sender<Exit>)> = Vec::new();
    loop {
        tokio::select! {
            message = inbox.recv() => match message {
                // It may have ended before it was known here, and its SIGCHLD with it.
                Some(Message::Started(child, exit)) => living.extend(still_living(child, exit)),
                Some(Message::Signal { pid, path, signal }) => {
                    if let Some((child, _)) = living.iter().find(|(child, _)| child.pid() == pid)
                        && let Err(error) = child.signal(path, signal)
                    {
                        tracing::warn!(pid, %path, %error, "cannot signal a child");
                    }
                }
                None => return,
            },
            _ = ended.recv() => {
                living = living.into_iter().filter_map(|(child, exit)| still_living(child, exit)).collect();
            }
        }
    }
}

fn still_living(mut child: Child, exit: oneshot::Sender<Exit>) -> Option<(Child, oneshot::Sender<Exit>)> {
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
