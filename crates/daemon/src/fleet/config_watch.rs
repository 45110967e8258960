//! The config in force, and the file that it is read from again.

use crate::last_good::{FirstConfig, LastGood};
use mcp_restart_config::{Agent, Config, Environment, LoadError};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// The last good config, and whether the file is still it.
#[derive(Debug)]
pub(super) struct ConfigWatch {
    environment: Environment,
    at_start: Config,
    in_force: Config,
    entries: Vec<Entry>,
    seen: Option<Stamp>,
    error: Option<LoadError>,
    last_good: LastGood,
}

/// An agent of the config.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub agent: Arc<Agent>,
    /// By which a process is compared with the entry it was launched from.
    pub hash: u64,
}

/// By what a file is taken to be unchanged when agents are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl ConfigWatch {
    pub(super) fn new(first: FirstConfig, environment: Environment, mut last_good: LastGood) -> Self {
        let FirstConfig { config, text } = first;
        let entries = entries(&config);
        let error = text.map(|text| last_good.keep(&text)).err();
        Self {
            environment,
            at_start: config.clone(),
            in_force: config,
            entries,
            seen: None,
            error,
            last_good,
        }
    }

    /// Reads the file again, whatever it looks like: before a start or a restart.
    pub(super) fn read(&mut self) -> Result<(), &LoadError> {
        self.seen = self.stamp();
        let file = &self.in_force.file;
        let read = match mcp_restart_config::read(file) {
            // The same text says the same; a restart of all agents reads it once for each.
            Ok(text) if self.error.is_none() && self.last_good.is(&text) => return Ok(()),
            Ok(text) => {
                mcp_restart_config::from_text(&text, file, &self.environment).map(|config| (config, text))
            }
            Err(error) => Err(error),
        };
        match read {
            Ok((config, text)) => {
                self.last_good.keep(&text);
                if self.error.take().is_some() || config != self.in_force {
                    self.entries = entries(&config);
                    self.in_force = config;
                }
                Ok(())
            }
            Err(error) => Err(&*self.error.insert(error)),
        }
    }

    /// Reads the file again if it looks changed: before a list.
    pub(super) fn refresh(&mut self) {
        if self.seen.is_none() || self.seen != self.stamp() {
            let _ = self.read();
        }
    }

    /// What was kept of it is gone.
    pub(super) fn write_again(&mut self) {
        self.last_good.keep_again();
    }

    /// Why the file cannot be used at present.
    pub(super) fn error(&self) -> Option<&LoadError> {
        self.error.as_ref()
    }

    /// The last good config.
    pub(super) fn in_force(&self) -> &Config {
        &self.in_force
    }

    /// Its agents, in their order.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entry of an agent.
    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.agent.name == name)
    }

    /// Fields outside `agents` and `stdioServers` that changed since the daemon started.
    pub(super) fn pending(&self) -> Vec<String> {
        self.at_start.settings_diff(&self.in_force)
    }

    fn stamp(&self) -> Option<Stamp> {
        let metadata = std::fs::metadata(&self.in_force.file).ok()?;
        Some(Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

fn entries(config: &Config) -> Vec<Entry> {
    let agents = config.agents.iter();
    agents.map(|agent| Entry { agent: Arc::new(agent.clone()), hash: agent.fingerprint() }).collect()
}
