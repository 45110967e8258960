//! What holds for every config file.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "these are tests, helpers included: what they panic over is what they found"
)]

mod any_text;
mod editing;
mod faults;
mod reference;
mod resolution;

use mcp_restart_config::{Config, Environment, LoadError};
use std::path::Path;

/// A user with a home folder, in a project.
fn environment() -> Environment {
    Environment { home: Some("/home/ada".into()), cwd: "/project".into(), ..Environment::default() }
}

/// The configuration that a text in `/project/c.json` says.
fn from_text(text: &str) -> Result<Config, LoadError> {
    mcp_restart_config::from_text(text, Path::new("/project/c.json"), &environment())
}
