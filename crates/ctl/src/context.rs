//! Which config, which daemon, and who asks.

use crate::arguments::Global;
use crate::problem::{Exit, Problem, faults};
use crate::screen::Screen;
use crate::talk::Daemon;
use mcp_restart_config::{Config, Environment, LoadError, lookup};
use mcp_restart_protocol::request::Credential;
use std::cell::Cell;
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
    fault_told: Cell<bool>,
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
    /// Why that file cannot be used: the state dir is what could be read of it then, and perhaps the wrong one.
    pub(crate) fault: Option<LoadError>,
    /// By what it was found.
    pub(crate) found: Found,
}

/// What led to a daemon, for hints that lead there again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// The command line or a config: the program with the options that mean this daemon.
    By(String),
    /// `MCP_RESTART_SOCKET`.
    BySocket,
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
        Self { screen, environment, flags, agent_token, fault_told: Cell::new(false) }
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

    /// This program with the options that lead to the same files, for hints.
    pub(crate) fn program(&self) -> String {
        let mut program = "mcp-restartctl".to_owned();
        for (option, value) in [("--config", &self.flags.config), ("--state-dir", &self.flags.state_dir)] {
            if let Some(value) = value {
                program = format!("{program} {option} {}", quoted(&value.to_string_lossy()));
            }
        }
        program
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
        let file = self.config_file();
        if flags.config.is_some() && !file.exists() {
            return Err(no_config_file(&file));
        }
        let found = Found::By(self.program());
        if let Some(named) = &flags.state_dir {
            let config = flags.config.is_some().then_some(file);
            return Ok(Place::new(self.environment.cwd.join(named), config, found));
        }
        if flags.config.is_none()
            && let Some(socket) = &self.environment.socket
        {
            let state_dir = socket.parent().unwrap_or(Path::new(".")).to_owned();
            let place = Place::new(state_dir, None, Found::BySocket);
            return Ok(Place { socket: socket.clone(), ..place });
        }
        if !file.exists() {
            if self.environment.config.is_some() {
                return Err(no_config_file(&file));
            }
            return Ok(Place::new(lookup::state_dir(None, None, &self.environment)?, None, found));
        }
        let (state_dir, fault) = match mcp_restart_config::load_as_client(&file, &self.environment) {
            Ok(config) => (lookup::state_dir(None, Some(&config), &self.environment)?, None),
            Err(fault) => (lookup::state_dir_of_broken(None, &file, &self.environment)?, Some(fault)),
        };
        Ok(Place { fault, ..Place::new(state_dir, Some(file), found) })
    }

    /// A connection to the daemon.
    pub(crate) async fn daemon(&self) -> Result<Daemon, Problem> {
        let place = self.place()?;
        self.daemon_at(&place).await
    }

    /// A connection to the daemon that is, or would be, at this place.
    pub(crate) async fn daemon_at(&self, place: &Place) -> Result<Daemon, Problem> {
        let connected = Daemon::connect(place, self.credential(&place.socket)).await;
        if place.fault.is_none() {
            return connected;
        }
        let mut daemon = connected.inspect_err(|_| self.warn_of_fault(place))?;
        if place.is_served(&daemon.status().await?.config_file).is_err() {
            self.warn_of_fault(place);
        }
        Ok(daemon)
    }

    /// Warns, once, that the config cannot be used and the daemon's place is therefore a guess. The daemon that
    /// serves this file knows the fault and tells it itself.
    pub(crate) fn warn_of_fault(&self, place: &Place) {
        if let Some(fault) = &place.fault
            && !self.fault_told.replace(true)
        {
            self.screen.warning(format_args!(
                "the config file cannot be used, so the daemon is looked for in {}\n{}",
                place.state_dir.display(),
                faults(fault)
            ));
        }
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
    pub(crate) fn new(state_dir: PathBuf, config: Option<PathBuf>, found: Found) -> Self {
        Self { socket: lookup::socket(&state_dir), state_dir, config, fault: None, found }
    }

    /// The command line that means this daemon.
    pub(crate) fn program(&self) -> &str {
        match &self.found {
            Found::By(program) => program,
            Found::BySocket => "mcp-restartctl",
        }
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

/// A word for a shell, in quotes if it needs them.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || "/._-+=:@%,".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Whether two paths lead to one file.
pub(crate) fn same_file(one: &Path, other: &Path) -> bool {
    one == other || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Output, World};

    fn flags(state_dir: Option<&str>, config: Option<&str>) -> Global {
        Global {
            state_dir: state_dir.map(PathBuf::from),
            config: config.map(PathBuf::from),
            ..Global::default()
        }
    }

    fn place(world: &World, flags: Global) -> Result<(PathBuf, Option<PathBuf>), Problem> {
        let place = world.context(flags, &Output::default()).place()?;
        Ok((place.state_dir, place.config))
    }

    #[test]
    fn the_daemon_is_found_by_state_dir_then_config_then_socket_then_lookup() {
        let mut world = World::new();
        let project = world.write("mcp-restart.config.json", r#"{ "stateDir": "project", "agents": [] }"#);
        let named = world.write("named.json", r#"{ "stateDir": "named", "agents": [] }"#);
        let at = |path: PathBuf, config: Option<&PathBuf>| Ok((path, config.cloned()));
        assert_eq!(place(&world, flags(None, None)), at(world.path("project"), Some(&project)));
        world.environment.socket = Some("/s/mcp-restartd.sock".into());
        assert_eq!(place(&world, flags(None, None)), at("/s".into(), None));
        assert_eq!(place(&world, flags(None, Some("named.json"))), at(world.path("named"), Some(&named)));
        assert_eq!(place(&world, flags(Some("d"), Some("named.json"))), at(world.path("d"), Some(&named)));
        assert_eq!(place(&world, flags(Some("d"), None)), at(world.path("d"), None));
    }

    #[test]
    fn a_config_that_was_named_and_is_not_there_is_no_guess() {
        let mut world = World::new();
        let missing = no_config_file(&world.path("no.json"));
        assert_eq!(place(&world, flags(None, Some("no.json"))), Err(missing.clone()));
        assert_eq!(place(&world, flags(Some("d"), Some("no.json"))), Err(missing.clone()));
        world.environment.config = Some("no.json".into());
        assert_eq!(place(&world, flags(None, None)), Err(missing));
    }

    #[test]
    fn a_broken_config_leads_to_the_default_state_dir_with_one_warning() {
        let world = World::new();
        let file = world.write("mcp-restart.config.json", "{ half");
        let default = world.path(".local/state/mcp-restart");
        assert_eq!(place(&world, flags(None, None)), Ok((default, Some(file))));
        let (exit, _, errors) = world.run(&["list"]);
        assert_eq!(exit, Exit::NotRunning);
        assert!(errors.starts_with("warning: the config file cannot be used"), "{errors}");
        assert_eq!(errors.matches("cannot be used").count(), 1, "{errors}");
    }

    #[test]
    fn a_broken_config_leads_to_the_state_dir_that_it_names() {
        let world = World::new();
        let file = world.write("mcp-restart.config.json", r#"{ "stateDir": "own", "agent": [}"#);
        assert_eq!(place(&world, flags(None, None)), Ok((world.path("own"), Some(file))));
    }

    #[test]
    fn hints_repeat_the_options_that_led_here() {
        let world = World::new();
        let context = world.context(flags(Some("it's here"), Some("a.json")), &Output::default());
        assert_eq!(context.program(), r"mcp-restartctl --config a.json --state-dir 'it'\''s here'");
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
