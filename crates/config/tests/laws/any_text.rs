//! What holds for every text that is taken for a config file. The property tests and the fuzz target ask it of theirs.

use mcp_restart_config::{Agent, Config, Environment, LoadError, show};
use std::path::Path;

/// A user with a home folder, in a project.
pub(crate) fn environment() -> Environment {
    Environment { home: Some("/home/ada".into()), cwd: "/project".into(), ..Environment::default() }
}

/// The configuration that a text in `/project/c.json` says.
pub(crate) fn from_text(text: &str) -> Result<Config, LoadError> {
    mcp_restart_config::from_text(text, Path::new("/project/c.json"), &environment())
}

/// It is a configuration, which can be shown and written down, or has faults, each of which has a place in the text.
pub(crate) fn is_a_config_or_has_faults(text: &str) {
    match from_text(text) {
        Ok(config) => {
            show::config(&config);
            for agent in &config.agents {
                let again = Agent::from_fields(agent.to_fields());
                assert_eq!(again.as_ref(), Some(agent));
            }
        }
        Err(error) => {
            assert!(!error.faults.is_empty());
            let lines = text.matches('\n').count() + 1;
            for fault in &error.faults {
                assert!(fault.line.is_none_or(|line| (1..=lines).contains(&line)), "{fault:?}");
            }
        }
    }
}
