//! Making way for the next daemon: nothing new begins, and what is under way ends.
//!
//! ```text
//!            make_way                  nothing is under way
//!  Staying ───────────► Draining ────────────────────────────► Quiet
//!     ▲                    │                                     │
//!     └────────────────────┴────────────── stay ◄────────────────┘
//! ```

use super::rights;
use super::task::FleetTask;
use mcp_restart_protocol::answer::{Caller, ErrorCode, Failure};
use tokio::sync::oneshot;

/// Whether this daemon makes way.
#[derive(Debug, Default)]
pub(super) enum Leave {
    /// It does not.
    #[default]
    Staying,
    /// It refuses what is new, and says here when nothing is under way any more.
    Draining(oneshot::Sender<()>),
    /// Nothing is under way.
    Quiet,
}

/// That this daemon makes way for somebody else already.
pub(crate) fn another_upgrade() -> Failure {
    Failure::new(ErrorCode::ShuttingDown, "another upgrade is under way")
        .hint("it ends in a moment; mcp-restartctl status tells which daemon serves then")
}

impl FleetTask {
    pub(super) fn may_upgrade(&self, caller: &Caller, managed: bool) -> Result<(), Failure> {
        if !self.is_closing && !matches!(self.leave, Leave::Staying) {
            return Err(another_upgrade());
        }
        self.check_open()?;
        rights::may_upgrade(caller, self.control(caller), managed)
    }

    /// Refuses what would begin now, if this daemon is about to end.
    pub(super) fn check_open(&self) -> Result<(), Failure> {
        if self.is_closing {
            return Err(super::answers::shutting_down());
        }
        match self.leave {
            Leave::Staying => Ok(()),
            Leave::Draining(_) | Leave::Quiet => {
                Err(Failure::new(ErrorCode::ShuttingDown, "the daemon makes way for its successor")
                    .hint("ask again in a moment"))
            }
        }
    }

    pub(super) fn make_way(&mut self, reply: oneshot::Sender<()>) {
        self.leave = Leave::Draining(reply);
    }

    pub(super) fn stay(&mut self) {
        self.leave = Leave::Staying;
        if self.url.is_some() {
            self.launch_waiting();
        }
    }

    /// To be called when everything that is known is stored.
    pub(super) fn leave_if_quiet(&mut self) {
        if matches!(self.leave, Leave::Draining(_))
            && self.is_quiet()
            && let Leave::Draining(reply) = std::mem::replace(&mut self.leave, Leave::Quiet)
        {
            let _ = reply.send(());
        }
    }

    fn is_quiet(&self) -> bool {
        self.pending.is_empty()
            && self.stdio_restarts == 0
            && self.members.iter().all(|(_, member)| member.report.steady)
    }
}
