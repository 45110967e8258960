//! The small per-agent parent process that owns the agent, its output and its exit status.
//!
//! ```text
//!                 Launch: lock, log, exec, facts, socket        
//!   ┌─────────┐ ─────────────────────────────────────────────► ┌─────────┐
//!   │ waiting │                                                │ running │
//!   └────┬────┘ ── SpawnFailed ──► gone                        └────┬────┘
//!        │ the daemon is gone                 Stop, SIGTERM, or the │ leader ended
//!        ▼                                                          ▼
//!      gone  ◄── Acknowledge ── ┌───────┐ ◄── nothing is left ── ┌────────┐
//!                               │ ended │                        │ ending │ see `ending`
//!                               └───────┘                        └────────┘
//! ```
//!
//! One thread waits in `poll` for signals, the output, the daemon and whoever is attached. A shim is the
//! reaper of everything below it, so the tree is empty exactly when it has no child left; nothing is polled
//! for that. It outlives its daemon, and ends when one has taken note of the exit.

mod agent;
mod connection;
mod ending;
mod files;
mod fork_server;
mod log;
mod output;
mod shim;
mod sweep;
mod terminal;

pub use files::{Facts, FactsError, FoundShim, RecordedProcess, RunFiles, find_shims, run_dir, run_id};
pub use fork_server::{ForkAnswer, ForkRequest};

use mcp_restart_process::Spawn;
use mcp_restart_process::session::take_stdin;
use shim::{Ground, Shim};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The hidden subcommand of `mcp-restartd` that is a shim.
pub const SHIM_SUBCOMMAND: &str = "shim";

/// The arguments of a shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShimArgs {
    /// An absolute path: `run` in the state dir.
    pub run_dir: PathBuf,
    /// Which of the files there are its own: [`run_id`].
    pub id: String,
    /// How many descriptors it and its agent may have open: as many as the daemon was started with, whatever
    /// that allows itself.
    pub descriptors: u64,
}

impl ShimArgs {
    /// The arguments for the shim of this agent.
    pub fn for_agent(state_dir: &Path, name: &str, descriptors: u64) -> Self {
        Self { run_dir: run_dir(state_dir), id: run_id(name), descriptors }
    }

    /// The arguments for the process from which shims like this are forked: see [`ForkRequest`].
    #[must_use]
    pub fn fork_server(&self) -> Self {
        Self { id: fork_server::NO_ID.to_owned(), ..self.clone() }
    }

    /// Its files.
    pub fn files(&self) -> RunFiles {
        RunFiles::in_folder(&self.run_dir, &self.id)
    }

    /// Reads what follows [`SHIM_SUBCOMMAND`] on the command line; `None` if a daemon did not write that.
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let args: Vec<OsString> = args.into_iter().collect();
        let [run_dir_flag, run_dir, id_flag, id, limit_flag, limit] = args.as_slice() else { return None };
        if run_dir_flag != "--run-dir" || id_flag != "--id" || limit_flag != "--descriptors" {
            return None;
        }
        let descriptors = limit.to_str()?.parse().ok()?;
        Some(Self { run_dir: run_dir.into(), id: id.to_str()?.to_owned(), descriptors })
    }

    /// How to start this shim: `program` is an `mcp-restartd`, `control` the far end of the socket pair
    /// over which it is told what to launch; of a fork server, over which it is asked for shims.
    pub fn spawn(&self, program: PathBuf, control: OwnedFd) -> Spawn {
        let args = [
            SHIM_SUBCOMMAND.into(),
            "--run-dir".into(),
            self.run_dir.clone().into_os_string(),
            "--id".into(),
            self.id.clone().into(),
            "--descriptors".into(),
            self.descriptors.to_string().into(),
        ];
        Spawn {
            program,
            arg0: Some("mcp-restart-shim".into()),
            args: args.into(),
            // It needs none, and whoever looks for an agent by its environment must not find the shim.
            environment: Vec::new(),
            stdin: Some(control),
            output: None,
            inherited: Vec::new(),
        }
    }
}

/// Runs a shim until it has nothing left to watch over.
///
/// To be called before the program has opened a descriptor or started a thread.
pub fn main(args: &ShimArgs) -> ExitCode {
    let served = if args.id == fork_server::NO_ID {
        fork_server::serve(args)
    } else {
        Ground::prepare(args).and_then(|ground| Shim::set_up(args, ground, take_stdin()?.into())?.run())
    };
    // There is nobody to tell: 1 and 2 are /dev/null, and the daemon sees the connection end.
    served.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}
