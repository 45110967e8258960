//! Which config, which daemon, and who asks.

use crate::arguments::Global;
use crate::problem::{Exit, Problem, faults};
use crate::screen::Screen;
use crate::talk::Daemon;
use mcp_restart_config::{Config, Environment, lookup};
use mcp_restart_protocol::request::Credential;
use std::env;
use std::path::{Path, PathBuf};

/// What a command needs to know of the world.
pub(crate) struct Context {
    /// Where it prints.
    pub(crate) screen: Screen,
    /// What the environment says about files.
    pub(crate) environment: Environment,
    flags: Global,
    agent_token: Option<String>,
}

/// Where a daemon is, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its state dir.
    pub(crate) state_dir: PathBuf,
    /// Its socket.
    pub(crate) socket: PathBuf,
    /// The config file that it has to serve; none where no file was named or found.
    pub(crate) config: Option<PathBuf>,
}

impl Context {
    /// The context of this process.
    pub(crate) fn from_process(flags: Global, screen: Screen) -> Self {
        let agent_token = env::var("MCP_RESTART_TOKEN").ok().filter(|token| token.starts_with("mra_"));
        Self::new(flags, screen, Environment::from_process(), agent_token)
    }

    /// The context that such an environment makes.
    pub(crate) fn new(
        flags: Global,
        screen: Screen,
        environment: Environment,
        agent_token: Option<String>,
    ) -> Self {
        Self { screen, environment, flags, agent_token }
    }

    /// The agent inside which this program runs, as far as the environment tells.
    pub(crate) fn agent(&self) -> Option<&str> {
        self.environment.agent.as_deref().or(self.agent_token.as_ref().map(|_| "an agent"))
    }

    /// The config file that commands read and edit.
    pub(crate) fn config_file(&self) -> PathBuf {
        self.config_file_in(&self.environment)
    }

    /// The config file that they would read in another environment.
    pub(crate) fn config_file_in(&self, environment: &Environment) -> PathBuf {
        lookup::config_file(self.flags.config.as_deref(), environment)
    }

    /// The config file that `init` writes: a new one is no matter of the supervisor around.
    pub(crate) fn new_config_file(&self) -> PathBuf {
        let named = self.flags.config.as_deref().unwrap_or(Path::new(lookup::PROJECT_FILE));
        self.environment.cwd.join(named)
    }

    /// The config as it is now.
    pub(crate) fn config(&self) -> Result<Config, Problem> {
        let file = self.config_file();
        if !file.exists() {
            return Err(no_config_file(&file));
        }
        Ok(mcp_restart_config::load_as_client(&file, &self.environment)?)
    }

    /// Where the daemon is: by `--state-dir`, `--config`, `MCP_RESTART_SOCKET`, the lookups.
    pub(crate) fn place(&self) -> Result<Place, Problem> {
        let place = self.find()?;
        self.screen.detail(format_args!("socket {}", place.socket.display()));
        if let Some(config) = &place.config {
            self.screen.detail(format_args!("config {}", config.display()));
        }
        Ok(place)
    }

    fn find(&self) -> Result<Place, Problem> {
        let flags = &self.flags;
        if let Some(named) = &flags.state_dir {
            let config = flags.config.as_ref().map(|file| self.environment.cwd.join(file));
            return Ok(Place::in_state_dir(self.environment.cwd.join(named), config));
        }
        if flags.config.is_none()
            && let Some(socket) = &self.environment.socket
        {
            let state_dir = socket.parent().unwrap_or(Path::new(".")).to_owned();
            return Ok(Place { state_dir, socket: socket.clone(), config: None });
        }
        let file = self.config_file();
        if !file.exists() {
            let named = flags.config.is_some().then_some(file);
            return Ok(Place::in_state_dir(lookup::state_dir(None, None, &self.environment)?, named));
        }
        match mcp_restart_config::load_as_client(&file, &self.environment) {
            Ok(config) => {
                let state_dir = lookup::state_dir(None, Some(&config), &self.environment)?;
                Ok(Place::in_state_dir(state_dir, Some(file)))
            }
            Err(error) => {
                let state_dir = lookup::state_dir(None, None, &self.environment)?;
                self.screen.warning(format_args!(
                    "the config file cannot be used, so the daemon is looked for in {}\n{}",
                    state_dir.display(),
                    faults(&error)
                ));
                Ok(Place::in_state_dir(state_dir, Some(file)))
            }
        }
    }

    /// A connection to the daemon.
    pub(crate) async fn daemon(&self) -> Result<Daemon, Problem> {
        let place = self.place()?;
        self.daemon_at(&place).await
    }

    /// A connection to the daemon that is, or would be, at this place.
    pub(crate) async fn daemon_at(&self, place: &Place) -> Result<Daemon, Problem> {
        Daemon::connect(place, self.credential(&place.socket)).await
    }

    /// A connection to the daemon by which agents may be started and stopped: it has to be the daemon of
    /// the config that was found.
    pub(crate) async fn lifecycle_daemon(&self) -> Result<Daemon, Problem> {
        let place = self.place()?;
        let mut daemon = self.daemon_at(&place).await?;
        if place.config.is_some() {
            place.is_served(&daemon.status().await?.config_file)?;
        }
        Ok(daemon)
    }

    /// Refuses what an agent may not do, which is what makes or ends the daemon that it lives under.
    pub(crate) fn outside_agents_only(&self, command: &str) -> Result<(), Problem> {
        match self.agent() {
            Some(agent) => Err(Problem::new(
                Exit::NotAllowed,
                format!(
                    "`{command}` is refused inside agent {agent}: it is not for agents to start or end the daemon"
                ),
            )
            .hint("run it in a terminal of your own")),
            None => Ok(()),
        }
    }

    // The token of an agent means something to its own daemon alone.
    fn credential(&self, socket: &Path) -> Credential {
        let own = self.environment.socket.as_ref().is_none_or(|own| same_file(own, socket));
        match &self.agent_token {
            Some(token) if own => Credential::Token(token.clone()),
            _ => Credential::Peer,
        }
    }
}

impl Place {
    /// The daemon of a state dir.
    pub(crate) fn in_state_dir(state_dir: PathBuf, config: Option<PathBuf>) -> Self {
        Self { socket: lookup::socket(&state_dir), state_dir, config }
    }

    /// Refuses a daemon that serves another config than the one that was found.
    pub(crate) fn is_served(&self, served: &str) -> Result<(), Problem> {
        match &self.config {
            Some(found) if !same_file(found, Path::new(served)) => Err(Problem::new(
                Exit::ConfigInvalid,
                format!(
                    "the config that was found is {}, but the daemon in {} serves {served}",
                    found.display(),
                    self.state_dir.display(),
                ),
            )
            .hint(format!(
                "--config {served} means the daemon that runs, --state-dir DIR makes room for another"
            ))),
            _ => Ok(()),
        }
    }
}

/// That a config file is not there, and how it could be.
pub(crate) fn no_config_file(file: &Path) -> Problem {
    Problem::new(Exit::ConfigInvalid, format!("there is no config file {}", file.display()))
        .hint("mcp-restartctl init writes one, --config FILE names another")
}

fn same_file(one: &Path, other: &Path) -> bool {
    one == other || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Output, World};

    fn place(world: &World, flags: Global) -> Place {
        world.context(flags, &Output::default()).place().unwrap()
    }

    #[test]
    fn the_daemon_is_found_by_state_dir_then_config_then_socket_then_lookup() {
        let mut world = World::new();
        let project = world.write("mcp-restart.config.json", r#"{ "stateDir": "project", "agents": [] }"#);
        let named = world.write("named.json", r#"{ "stateDir": "named", "agents": [] }"#);
        let flags = |state_dir: Option<&str>, config: Option<&str>| Global {
            state_dir: state_dir.map(PathBuf::from),
            config: config.map(PathBuf::from),
            ..Global::default()
        };

        assert_eq!(
            place(&world, flags(None, None)),
            Place::in_state_dir(world.path("project"), Some(project))
        );
        world.environment.socket = Some("/s/mcp-restartd.sock".into());
        let by_socket = Place { state_dir: "/s".into(), socket: "/s/mcp-restartd.sock".into(), config: None };
        assert_eq!(place(&world, flags(None, None)), by_socket);
        let by_config = Place::in_state_dir(world.path("named"), Some(named.clone()));
        assert_eq!(place(&world, flags(None, Some("named.json"))), by_config);
        let by_state_dir = Place::in_state_dir(world.path("d"), Some(named));
        assert_eq!(place(&world, flags(Some("d"), Some("named.json"))), by_state_dir);
    }

    #[test]
    fn a_broken_config_leads_to_the_default_state_dir_with_a_warning() {
        let world = World::new();
        let file = world.write("mcp-restart.config.json", "{ half");
        let output = Output::default();
        let place = world.context(Global::default(), &output).place().unwrap();
        assert_eq!(place, Place::in_state_dir(world.path(".local/state/mcp-restart"), Some(file)));
        assert!(
            output.errors().starts_with("warning: the config file cannot be used"),
            "{}",
            output.errors()
        );
    }

    #[test]
    fn the_token_of_an_agent_goes_to_its_own_daemon_alone() {
        let mut world = World::new();
        world.environment.socket = Some(world.path("own.sock"));
        world.agent_token = Some("mra_1".into());
        let context = world.context(Global::default(), &Output::default());
        assert_eq!(context.credential(&world.path("own.sock")), Credential::Token("mra_1".into()));
        assert_eq!(context.credential(&world.path("other.sock")), Credential::Peer);
    }
}
