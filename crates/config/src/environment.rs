//! What the environment of the process says about files and tokens.

use crate::secret::Secret;
use std::env;
use std::path::PathBuf;

/// The prefix of the tokens that the daemon gives to its agents.
pub const AGENT_TOKEN_PREFIX: &str = "mra_";

/// What lookups and loading need of the environment, so that they can be asked about any other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// The user's home folder. A relative one would mean another folder for each program.
    pub home: Option<PathBuf>,
    /// The working directory: relative paths on the command line start here.
    pub cwd: PathBuf,
    /// `MCP_RESTART_CONFIG`: the config file.
    pub config: Option<PathBuf>,
    /// `MCP_RESTART_STATE_DIR`: the state dir.
    pub state_dir: Option<PathBuf>,
    /// `MCP_RESTART_SOCKET`: the daemon's socket.
    pub socket: Option<PathBuf>,
    /// `MCP_RESTART_TOKEN`, unless it is an agent's token: the operator's token.
    pub token: Option<Secret>,
    /// `MCP_RESTART_AGENT`: the agent inside which this process runs.
    pub agent: Option<String>,
    /// `XDG_CONFIG_HOME`.
    pub xdg_config_home: Option<PathBuf>,
    /// `XDG_STATE_HOME`.
    pub xdg_state_home: Option<PathBuf>,
}

impl Environment {
    /// The environment of this process. A variable that is empty counts as unset, save the token, whose
    /// emptiness [`crate::load`] reports; an XDG folder that is not absolute is ignored, as its
    /// specification demands.
    pub fn from_process() -> Self {
        Self {
            home: directories::BaseDirs::new()
                .map(|folders| folders.home_dir().to_owned())
                .filter(|home| home.is_absolute()),
            cwd: env::current_dir().unwrap_or_default(),
            config: path("MCP_RESTART_CONFIG"),
            state_dir: path("MCP_RESTART_STATE_DIR"),
            socket: path("MCP_RESTART_SOCKET"),
            token: env::var_os("MCP_RESTART_TOKEN")
                .map(|value| value.to_string_lossy().into_owned())
                .filter(|value| !value.starts_with(AGENT_TOKEN_PREFIX))
                .map(Secret::new),
            agent: env::var("MCP_RESTART_AGENT").ok().filter(|name| !name.is_empty()),
            xdg_config_home: path("XDG_CONFIG_HOME").filter(|path| path.is_absolute()),
            xdg_state_home: path("XDG_STATE_HOME").filter(|path| path.is_absolute()),
        }
    }

    /// The same without what an agent inherits from its supervisor: a daemon, a demo or a check of a config
    /// that is run inside an agent must not mistake the supervisor's files and tokens for its own.
    #[must_use]
    pub fn outside_agent(self) -> Self {
        if self.agent.is_none() {
            return self;
        }
        Self { config: None, state_dir: None, socket: None, token: None, agent: None, ..self }
    }
}

fn path(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_an_agent_every_variable_counts() {
        let environment = Environment { config: Some("/etc/x.json".into()), ..Environment::default() };
        assert_eq!(environment.clone().outside_agent(), environment);
    }

    #[test]
    fn inside_an_agent_the_variables_of_its_supervisor_are_forgotten() {
        let home = Some(PathBuf::from("/home/ada"));
        let inside = Environment {
            home: home.clone(),
            config: Some("/etc/x.json".into()),
            state_dir: Some("/s".into()),
            socket: Some("/s/mcp-restartd.sock".into()),
            token: Some(Secret::new("operator")),
            agent: Some("claude".into()),
            ..Environment::default()
        };
        assert_eq!(inside.outside_agent(), Environment { home, ..Environment::default() });
    }
}
