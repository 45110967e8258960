//! What the fleet has to say about stdio MCP servers: which are declared, among which agents, and who may restart
//! them. Finding and ending them is done elsewhere.

use super::task::FleetTask;
use super::{Fleet, Message, rights};
use mcp_restart_protocol::answer::{Caller, Failure};
use mcp_restart_stdio::{Reach, Scope, Supervised};
use tokio::sync::{mpsc, oneshot};

/// A restart of stdio servers that may begin.
#[derive(Debug)]
pub(crate) struct StdioGrant {
    /// Among what.
    pub scope: Scope,
    /// How far.
    pub reach: Reach,
    /// To be held until it has ended.
    pub lease: Lease,
}

/// The daemon does not make way while somebody has this.
#[derive(Debug)]
pub(crate) struct Lease {
    fleet: mpsc::UnboundedSender<Message>,
}

/// An answer whose delivery somebody waits for.
#[derive(Debug)]
pub(crate) struct Awaited {
    /// By which its delivery is reported.
    pub number: u64,
    /// Told of it.
    pub delivered: oneshot::Receiver<()>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = self.fleet.send(Message::StdioRestarted);
    }
}

impl Fleet {
    /// The stdio servers that are declared, and the agents that may have them.
    pub(crate) async fn stdio_scope(&self) -> Scope {
        self.ask(|reply| Message::StdioScope { reply }).await.unwrap_or_default()
    }

    /// The same under the config read again, if the caller may restart any of them.
    pub(crate) async fn grant_stdio_restart(&self, caller: Caller) -> Result<StdioGrant, Failure> {
        let lease = Lease { fleet: self.messages.clone() };
        self.ask_fallible(|reply| Message::RestartStdio { caller, lease, reply }).await
    }

    /// A number for an answer whose delivery is waited for.
    pub(crate) async fn await_delivery(&self) -> Option<Awaited> {
        self.ask(|reply| Message::AwaitDelivery { reply }).await
    }
}

impl FleetTask {
    pub(super) fn stdio_scope(&self) -> Scope {
        Scope {
            declared: self.config.in_force().stdio_servers.clone(),
            supervised: self.members.supervised(),
        }
    }

    pub(super) fn grant_stdio_restart(
        &mut self,
        caller: &Caller,
        lease: Lease,
    ) -> Result<StdioGrant, Failure> {
        // Given back whatever comes of it.
        self.stdio_restarts += 1;
        self.check_open()?;
        self.read_config()?;
        let reach = rights::stdio_reach(caller, self.control(caller))?;
        Ok(StdioGrant { scope: self.stdio_scope(), reach, lease })
    }

    pub(super) fn await_delivery(&mut self, reply: oneshot::Sender<Awaited>) {
        // Of the numbers of tickets, so that no other answer has it.
        self.next_ticket += 1;
        let number = self.next_ticket;
        let (sender, delivered) = oneshot::channel();
        self.deliveries.retain(|_, waiting| !waiting.is_closed());
        self.deliveries.insert(number, sender);
        let _ = reply.send(Awaited { number, delivered });
    }

    pub(super) fn tell_delivered(&mut self, delivery: u64) {
        if let Some(waiting) = self.deliveries.remove(&delivery) {
            let _ = waiting.send(());
        }
    }
}

impl super::members::Members {
    /// The agents that have processes.
    fn supervised(&self) -> Vec<Supervised> {
        let leader = |name: &str| self.get(name)?.report.process.map(|(pid, ..)| pid);
        let supervised =
            |(name, shim): (&str, u32)| Supervised { agent: name.to_owned(), shim, leader: leader(name) };
        self.shims().map(supervised).collect()
    }
}
