//! Whether what this daemon decides about is its own: the state dir, and every process of its agents.
//!
//! Somebody may have removed the state dir, or files in it, under a running daemon. Its lock keeps nobody out then: the
//! next daemon finds neither it nor the shims. So the old one starts nothing any more and leaves the files to
//! the next, and that one starts no agent of which a process still lives.

use super::task::FleetTask;
use mcp_restart_process::find_strays;
use mcp_restart_protocol::answer::{ErrorCode, Failure, Recovered};

impl FleetTask {
    /// Refuses to start anything beside what may be somebody else's.
    pub(super) fn check_possession(&mut self, agent: &str) -> Result<(), Failure> {
        if self.hold.is_lost() {
            let pid = std::process::id();
            let message = format!(
                "{agent} cannot be started: {} was removed or replaced under this daemon (pid {pid}), which starts nothing any more",
                self.state_dir.display()
            );
            return Err(Failure::new(ErrorCode::SpawnFailed, message).hint(format!(
                "`kill -TERM {pid}` ends it with its agents; mcp-restartctl up starts the next one"
            )));
        }
        if self.strays.iter().any(|stray| stray.agent == agent) {
            self.look_for_strays();
        }
        match self.strays.iter().find(|stray| stray.agent == agent) {
            Some(stray) => Err(Failure::new(
                ErrorCode::SpawnFailed,
                format!("{agent} cannot be started: it still runs below the process {}, whose files in the state dir were removed", stray.shim),
            )
            .hint(format!("`kill -TERM {}` ends it, with all that it has started", stray.shim))),
            None => Ok(()),
        }
    }

    /// Looks who lives that no file leads to.
    pub(super) fn look_for_strays(&mut self) {
        let known: Vec<u32> = self.members.shims().map(|(_, pid)| pid).collect();
        self.strays = find_strays(&self.socket.to_string_lossy(), &known);
    }

    /// What there is to tell about it.
    pub(super) fn dispossessed(&self) -> Vec<Recovered> {
        let told = |agent: Option<&str>, text: String| Recovered {
            agent: agent.map(str::to_owned),
            text,
            attention: true,
        };
        let lost = self.hold.is_lost().then(|| {
            let (folder, pid) = (self.state_dir.display(), std::process::id());
            told(None, format!("{folder} was removed or replaced under this daemon, which starts nothing any more; `kill -TERM {pid}` ends it with its agents"))
        });
        let strays = self.strays.iter().map(|stray| {
            let (agent, shim) = (&stray.agent, stray.shim);
            told(Some(agent), format!("{agent} runs below the process {shim}, whose files in the state dir were removed, and cannot be started beside that; `kill -TERM {shim}` ends it"))
        });
        lost.into_iter().chain(strays).collect()
    }
}
