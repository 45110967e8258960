//! What the fleet task reads for its callers: notes, logs, MCP configs.

use super::task::FleetTask;
use super::{handoff, launch, logs, rights};
use mcp_restart_agents::Endpoint;
use mcp_restart_protocol::answer::{Caller, ErrorCode, Failure, Handoff, LogLines, McpConfig};
use mcp_restart_protocol::request::LOG_LINES_MAX;
use std::path::Path;

impl FleetTask {
    pub(super) fn handoff(&self, caller: &Caller, name: Option<String>) -> Result<Handoff, Failure> {
        let (name, own) = match (name, caller) {
            (None, Caller::Agent { name }) => (name.clone(), true),
            (None, _) => {
                return Err(Failure::new(
                    ErrorCode::InvalidArgument,
                    "the caller is no agent, so there is no note for it",
                )
                .hint("`mcp-restartctl handoff NAME` shows the note of any agent"));
            }
            (Some(name), Caller::Agent { name: own }) => (name.clone(), name == *own),
            (Some(name), _) => (name, false),
        };
        self.check_reader(caller, &name)?;
        let mut found = handoff::read_present(&self.state_dir, &name).ok_or_else(|| {
            Failure::new(
                ErrorCode::InvalidArgument,
                format!("no restart made the present process of {name}: there is no note"),
            )
        })?;
        if own {
            handoff::mark_read(&self.state_dir, &mut found);
        }
        Ok(found)
    }

    pub(super) fn logs(&self, caller: &Caller, name: &str, lines: u32) -> Result<LogLines, Failure> {
        self.check_reader(caller, name)?;
        if lines == 0 || lines > LOG_LINES_MAX {
            let message = format!("lines must be between 1 and {LOG_LINES_MAX}");
            return Err(Failure::new(ErrorCode::InvalidArgument, message));
        }
        let view = self.members.view(name, self.config.entry(name)).ok_or_else(|| self.unknown(name))?;
        let lines = usize::try_from(lines).unwrap_or(usize::MAX);
        logs::newest(Path::new(&view.log_file), lines).map_err(|error| {
            Failure::new(ErrorCode::Internal, format!("the log {} cannot be read: {error}", view.log_file))
        })
    }

    pub(super) fn mcp_config(&mut self, caller: &Caller, name: &str) -> Result<McpConfig, Failure> {
        self.check_reader(caller, name)?;
        rights::may_have_token(caller, self.control(caller), name)?;
        let kind = self.config.entry(name).map(|entry| entry.agent.kind).ok_or_else(|| self.unknown(name))?;
        let (token, url) = self
            .endpoint_of(name)
            .map_err(|error| Failure::new(ErrorCode::Internal, format!("no token could be made: {error}")))?;
        let url = url.ok_or_else(|| {
            Failure::new(ErrorCode::DaemonUnavailable, "the MCP endpoint does not listen yet")
                .hint("see `mcp-restartctl status`")
        })?;
        let file = launch::mcp_config_file(&self.state_dir, name).to_string_lossy().into_owned();
        let content = mcp_restart_agents::mcp_config(
            kind,
            Endpoint { url: &url, token: &token, mcp_config_file: &file },
        );
        Ok(McpConfig { file, content })
    }
}
