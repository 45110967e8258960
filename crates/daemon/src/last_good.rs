//! `config.last-good.json`: the text of the config in force, for a daemon that finds the file broken while its
//! agents live.

use crate::start_error::StartError;
use mcp_restart_config::{Config, Environment, LoadError, lookup};
use mcp_restart_shim::{FoundShim, find_shims};
use std::path::{Path, PathBuf};

/// The config that a daemon starts with.
#[derive(Debug, Clone)]
pub(crate) struct FirstConfig {
    pub(crate) config: Config,
    /// The text of its file; or why that cannot be used, and then this is the last one that could.
    pub(crate) text: Result<String, LoadError>,
}

/// The copy in the state dir.
#[derive(Debug)]
pub(crate) struct LastGood {
    file: PathBuf,
    kept: Option<String>,
}

/// Finds the config to start with, and the state dir. A file that cannot be used is no obstacle while an agent
/// of that state dir lives: then the last good one is in force.
pub(crate) fn find(
    config: Option<&Path>,
    state_dir: Option<&Path>,
    environment: &Environment,
) -> Result<(FirstConfig, PathBuf), StartError> {
    let file = lookup::config_file(config, environment);
    match read(&file, environment) {
        Ok((config, text)) => {
            let state_dir = lookup::state_dir(state_dir, Some(&config), environment)?;
            Ok((FirstConfig { config, text: Ok(text) }, state_dir))
        }
        Err(fault) => {
            let state_dir = lookup::state_dir_of_broken(state_dir, &file, environment)?;
            let last_good = some_agent_lives(&state_dir)
                .then(|| LastGood::in_folder(&state_dir).load(&file, environment))
                .flatten();
            match last_good {
                Some(config) => Ok((FirstConfig { config, text: Err(fault) }, state_dir)),
                None => Err(fault.into()),
            }
        }
    }
}

/// Reads, checks and resolves a config file, and gives its text too.
fn read(file: &Path, environment: &Environment) -> Result<(Config, String), LoadError> {
    let text = mcp_restart_config::read(file)?;
    let config = mcp_restart_config::from_text(&text, file, environment)?;
    Ok((config, text))
}

impl LastGood {
    /// That of a state dir.
    pub(crate) fn in_folder(state_dir: &Path) -> Self {
        Self { file: state_dir.join("config.last-good.json"), kept: None }
    }

    /// Keeps again what was kept: the file is gone.
    pub(crate) fn keep_again(&mut self) {
        if let Some(text) = self.kept.take() {
            self.keep(&text);
        }
    }

    /// Whether this is the text that is kept.
    pub(crate) fn is(&self, text: &str) -> bool {
        self.kept.as_deref() == Some(text)
    }

    /// Keeps the text of the config that is in force from now on. A failure is reported.
    pub(crate) fn keep(&mut self, text: &str) {
        if self.is(text) {
            return;
        }
        match mcp_restart_process::write_atomically(&self.file, text.as_bytes()) {
            Ok(()) => self.kept = Some(text.to_owned()),
            Err(error) => tracing::warn!(file = %self.file.display(), %error, "the config could not be kept"),
        }
    }

    /// The config that was kept, as if it stood in `config_file`: relative paths mean what they meant.
    fn load(&self, config_file: &Path, environment: &Environment) -> Option<Config> {
        let text = String::from_utf8(mcp_restart_process::read_regular(&self.file).ok()?).ok()?;
        mcp_restart_config::from_text(&text, config_file, environment).ok()
    }
}

fn some_agent_lives(state_dir: &Path) -> bool {
    find_shims(state_dir).is_ok_and(|shims| shims.iter().any(FoundShim::may_live))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcp_restart_process::LockFile;
    use mcp_restart_shim::{RunFiles, run_dir};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_broken_file_is_no_obstacle_while_an_agent_lives_and_only_then() {
        let folder = tempfile::tempdir().unwrap();
        let (file, state_dir) = (folder.path().join("config.json"), folder.path().join("state"));
        let environment = Environment::default();
        let find = || find(Some(&file), Some(&state_dir), &environment);
        fs::create_dir_all(run_dir(&state_dir)).unwrap();
        let text = r#"{ "agents": [{ "name": "a", "command": "./a", "cwd": "work" }] }"#;
        LastGood::in_folder(&state_dir).keep(text);
        fs::write(&file, "{").unwrap();
        assert!(matches!(find(), Err(StartError::Config(_))));

        let living = LockFile::try_acquire(&RunFiles::new(&state_dir, "00000001").lock).unwrap();
        let (first, _) = find().unwrap();
        assert_eq!(first.config.agents[0].cwd, folder.path().join("work"), "relative to the broken file");
        assert_eq!(first.config.file, file);
        assert!(first.text.is_err());
        fs::write(&file, r#"{ "stateDir": "state", "agents": ["#).unwrap();
        let (_, found) = super::find(Some(&file), None, &environment).unwrap();
        assert_eq!(found, state_dir, "the broken file still says where its agents are");
        fs::write(state_dir.join("config.last-good.json"), "{").unwrap();
        assert!(matches!(find(), Err(StartError::Config(_))));
        drop(living);
    }

    #[test]
    fn what_is_kept_is_for_its_owner_alone_since_it_may_hold_a_token() {
        let folder = tempfile::tempdir().unwrap();
        LastGood::in_folder(folder.path()).keep("{}");
        let kept = fs::metadata(folder.path().join("config.last-good.json")).unwrap();
        assert_eq!(kept.permissions().mode() & 0o777, 0o600);
    }
}
