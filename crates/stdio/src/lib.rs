//! Finds and restarts the stdio MCP servers of this machine.
//!
//! ```text
//!  table of processes ─► command lines ─► discovery ─► show ──► list
//!                        what each is     servers,     │
//!                                         clients      └─────► restart ─► ending, and a look who is back
//! ```
//!
//! MCP clients start these servers as children and talk to them by pipes. A server goes on with its old code when
//! that was upgraded on disk, and may outlive its client. Only what the config declares is touched, it is known by
//! what it runs and by nothing that its command line mentions, and every signal is for exactly the process that was
//! found. What blocks says so: it is for a thread of its own.

mod command_line;
mod discovery;
mod ending;
mod files;
mod grammar;
mod note;
mod orphans;
mod restart;
mod show;

pub use discovery::Supervised;
pub use restart::{OwnEnd, Restarted, UnknownServer, restart};

use discovery::World;
use mcp_restart_config::StdioServer as Declared;
use mcp_restart_process::table;
use mcp_restart_protocol::stdio::StdioServer;

/// What there is to find, and among whom.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// The servers that the config declares.
    pub declared: Vec<Declared>,
    /// The agents that run: they are never servers, and may be clients.
    pub supervised: Vec<Supervised>,
}

/// Who asks for a restart.
#[derive(Debug, Clone)]
pub struct Asker {
    /// The process at the other end of the request, where it is known.
    pub pid: Option<u32>,
    /// What it may touch.
    pub reach: Reach,
}

/// Which servers somebody may touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// All that are declared.
    Everything,
    /// Those below the agent of this name.
    Below(String),
}

/// The declared servers that run. Blocks for some milliseconds.
pub fn list(scope: &Scope) -> Vec<StdioServer> {
    let world = World::of(table::read(), &scope.supervised);
    world.servers(&scope.declared).iter().filter_map(show::server).collect()
}
