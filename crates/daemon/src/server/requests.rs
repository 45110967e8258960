//! What a request makes the daemon do.

use super::Context;
use super::callers::Process;
use super::talk::is_over_http;
use crate::fleet::Lifecycle;
use crate::program::Change;
use mcp_restart_protocol::answer::{Answer, Caller, ErrorCode, Failure, ServerStatus};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::request::{Credential, Request};
use std::time::Duration;

impl Context {
    /// Finds out who asks and carries the request out. `Subscribe` is answered elsewhere.
    pub(super) async fn answer(
        &self,
        process: &Process,
        credential: Credential,
        request: Request,
    ) -> Result<Answer, Failure> {
        if let Request::Delivered { delivery } = request {
            self.fleet.delivered(delivery);
            return Ok(Answer::Done);
        }
        let over_http = is_over_http(&credential);
        let caller = self.identification.caller(process, credential).await?;
        if over_http && let Caller::Agent { name } = &caller {
            self.fleet.connected(name.clone());
        }
        self.carry_out(caller, request).await
    }

    async fn carry_out(&self, caller: Caller, request: Request) -> Result<Answer, Failure> {
        match request {
            Request::List { all } => Ok(Answer::Agents(self.fleet.list(all).await)),
            Request::Status => self.status(caller).await.map(Box::new).map(Answer::Status),
            Request::Start { path, name, force, wait } => {
                let request = Lifecycle { caller, path: door(&path)?, name, force, wait };
                self.fleet.start(request).await.map(Box::new).map(Answer::Agent)
            }
            Request::Stop { path, name, wait } => {
                let request = Lifecycle { caller, path: door(&path)?, name, force: false, wait };
                self.fleet.stop(request).await.map(Box::new).map(Answer::Agent)
            }
            Request::Restart(request) => {
                let path = door(&request.path)?;
                self.fleet.restart(caller, path, request).await.map(Box::new).map(Answer::Restarted)
            }
            Request::Handoff { name } => {
                self.fleet.handoff(caller, name).await.map(Box::new).map(Answer::Handoff)
            }
            Request::Logs { name, lines } => self.fleet.logs(caller, name, lines).await.map(Answer::Logs),
            Request::Terminal { name } => self.fleet.terminal(name).await.map(Answer::Terminal),
            Request::McpConfig { name } => self.fleet.mcp_config(caller, name).await.map(Answer::McpConfig),
            Request::Authenticate => Ok(Answer::Admitted(caller)),
            Request::Delivered { .. } => Ok(Answer::Done),
            Request::Subscribe => {
                Err(Failure::new(ErrorCode::Internal, "a subscription was taken for a request"))
            }
        }
    }

    async fn status(&self, caller: Caller) -> Result<ServerStatus, Failure> {
        let agents = self.fleet.status().await?;
        Ok(ServerStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            url: self.bridge.url(),
            uptime_ms: millis(self.started.elapsed()),
            config_file: self.config_file.display().to_string(),
            config_error: agents.config_error,
            state_dir: self.state_dir.display().to_string(),
            state_error: agents.state_error,
            stale: self.stale(),
            endpoint_error: self.bridge.trouble(),
            pending_config: agents.pending_config,
            adopted: agents.adopted,
            recovered: agents.recovered,
            need_restart: agents.need_restart,
            agents: agents.agents,
            unlisted: agents.unlisted,
            caller,
        })
    }

    /// Says which program on disk is not the one that runs. Nothing is done about it.
    fn stale(&self) -> Option<String> {
        let change = self.program.change().or_else(|| self.bridge.stale())?;
        Some(match change {
            Change::Replaced(what) => {
                format!("{what}; `mcp-restartctl upgrade` starts what is on disk, and every agent runs on")
            }
            Change::Missing(what) => {
                format!(
                    "{what}; put it there again, and `mcp-restartctl upgrade` starts it, and every agent runs on"
                )
            }
        })
    }
}

/// The registered path that a request names.
pub(super) fn door(path: &str) -> Result<RestartPath, Failure> {
    RestartPath::from_door(path).map_err(|error| {
        Failure::new(ErrorCode::UnknownRestartPath, error.to_string())
            .hint("the programs of mcp-restart belong together: install them in one version")
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_nobody_registered_is_refused() {
        assert_eq!(door("pkill").unwrap_err().code, ErrorCode::UnknownRestartPath);
        assert_eq!(door(RestartPath::Autostart.id()).unwrap_err().code, ErrorCode::UnknownRestartPath);
        assert_eq!(door(RestartPath::CtlStop.id()), Ok(RestartPath::CtlStop));
    }
}
