//! What the daemon has of the system: processes that it asks for and signals.

use crate::children::StandIn;
use mcp_restart_process::{Signal, Spawn};
use std::io;
use std::sync::Mutex;

/// Above every number that a real process can have.
const FIRST_SHIM: u32 = 1 << 29;
const EAGAIN: i32 = 11;

#[derive(Debug, Default)]
pub(super) struct Kernel {
    state: Mutex<State>,
}

/// What the daemon did since it was looked at last.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// The processes that it started, with their numbers.
    pub(super) spawned: Vec<(u32, Spawn)>,
    /// Those that it killed.
    pub(super) killed: Vec<u32>,
    /// How often it got none.
    pub(super) refused: u32,
}

#[derive(Debug, Default)]
struct State {
    done: Done,
    is_full: bool,
    count: u32,
}

impl Kernel {
    /// Whether there is no process for whoever wants one.
    pub(super) fn set_full(&self, is_full: bool) {
        self.state.lock().unwrap().is_full = is_full;
    }

    pub(super) fn take(&self) -> Done {
        std::mem::take(&mut self.state.lock().unwrap().done)
    }
}

impl StandIn for Kernel {
    fn spawn(&self, program: Spawn) -> io::Result<u32> {
        let mut state = self.state.lock().unwrap();
        if state.is_full {
            state.done.refused += 1;
            return Err(io::Error::from_raw_os_error(EAGAIN));
        }
        state.count += 1;
        let pid = FIRST_SHIM + state.count;
        state.done.spawned.push((pid, program));
        Ok(pid)
    }

    fn signal(&self, pid: u32, _signal: Signal) {
        self.state.lock().unwrap().done.killed.push(pid);
    }
}
