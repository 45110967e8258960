//! What is allowed and probably not meant.

use crate::config::{Config, Control};
use std::fs;

/// What `config check` should tell about a configuration that is valid. Looks at the file system, because
/// what is inside what is decided there.
pub fn warnings(config: &Config) -> Vec<String> {
    let file = fs::canonicalize(&config.file).unwrap_or_else(|_| config.file.clone());
    let mut warnings = Vec::new();
    for (index, agent) in config.agents.iter().enumerate() {
        match fs::canonicalize(&agent.cwd) {
            Ok(cwd) if !cwd.is_dir() => {
                warnings.push(format!("agents[{index}].cwd: {} is not a folder", agent.cwd.display()));
            }
            Ok(cwd) if agent.control != Control::All && file.starts_with(&cwd) => {
                warnings.push(format!(
                    "agents[{index}].cwd: this file lies inside it, so {:?} can give itself any control by \
                     editing it",
                    agent.name
                ));
            }
            Ok(_) => {}
            Err(error) => {
                warnings.push(format!("agents[{index}].cwd: {}: {error}", agent.cwd.display()));
            }
        }
    }
    warnings
}
