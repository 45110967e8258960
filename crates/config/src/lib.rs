//! The configuration file of mcp-restart: schema, loading, errors, editing.
//!
//! ```text
//!  file ─read─► text ─decode─► entries ─resolve─► Config
//!       owner,       syntax,          defaults, paths,
//!       mode, size   types, names     what contradicts what
//!          └────────────┴───────┬────────────┘
//!                               ▼
//!                  every fault of the file, at once
//! ```
//!
//! The entries (`entry.rs`) are the one place that names the fields: what the decoder accepts and what
//! the JSON Schema says are both derived from them.

mod config;
mod decode;
mod difference;
mod entry;
mod environment;
mod fault;
mod place;
mod read;
mod resolve;
mod salvage;
mod secret;
mod value;
mod warning;

pub mod edit;
pub mod lookup;
pub mod show;

pub use config::{
    Agent, Config, Control, Inject, KeepChildren, Kind, Resume, Rollback, SelfRestartLimit, StdioServer,
    StopSignal, Strictness,
};
pub use entry::schema;
pub use environment::{AGENT_TOKEN_PREFIX, Environment};
pub use fault::{Fault, LoadError};
pub use place::place_of;
pub use read::read;
pub use secret::Secret;
pub use warning::warnings;

use resolve::Reader;
use std::path::Path;

/// Reads, checks and resolves a config file. Every fault of it is in the error.
pub fn load(file: &Path, environment: &Environment) -> Result<Config, LoadError> {
    from_text(&read(file)?, file, environment)
}

/// The same for a program that only asks the daemon or shows the file: it needs no token. A token of the
/// environment or a token file is not looked at, and none is missed where the address is not loopback.
pub fn load_as_client(file: &Path, environment: &Environment) -> Result<Config, LoadError> {
    resolve_text(&read(file)?, file, environment, Reader::Client)
}

/// The configuration that a text says, as if it stood in `file`: relative paths start at the folder of
/// that. A daemon keeps the last text that was good, and resolves it so.
pub fn from_text(text: &str, file: &Path, environment: &Environment) -> Result<Config, LoadError> {
    resolve_text(text, file, environment, Reader::Server)
}

fn resolve_text(
    text: &str,
    file: &Path,
    environment: &Environment,
    reader: Reader,
) -> Result<Config, LoadError> {
    let faults = fault::Faults::of(text);
    let file = environment.cwd.join(file);
    let config = decode::parse(text, &faults).and_then(|root| {
        let entry = decode::decode(&root, &faults)?;
        Some(resolve::resolve(entry, &file, environment, reader, &root, &faults))
    });
    let faults = faults.into_sorted();
    match config {
        Some(config) if faults.is_empty() => Ok(config),
        _ => Err(LoadError { file, faults }),
    }
}
