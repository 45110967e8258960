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
mod environment;
mod fault;
mod secret;

pub mod lookup;

pub use config::{
    Agent, Config, Control, Inject, KeepChildren, Kind, Resume, Rollback, SelfRestartLimit, StdioServer,
    StopSignal, Strictness,
};
pub use environment::{AGENT_TOKEN_PREFIX, Environment};
pub use fault::{Fault, LoadError};
pub use secret::Secret;
