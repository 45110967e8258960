//! The supervisor daemon: sockets, files, signals.
//!
//! ```text
//!  run ──► state_dir (lock, socket) ──► server ──► fleet ──► children ──► shims
//!   │                                     │                    ▲
//!   └──► bridge (endpoint, its process) ◄─┘ announcements      │
//!          └───────────────────────────────────────────────────┘
//! ```
//!
//! One thread, no locks: each part is a task that is talked to by channel.

mod arguments;
mod bridge;
mod children;
mod fleet;
mod last_good;
mod logging;
mod program;
mod run;
mod server;
mod start_error;
mod state_dir;

use arguments::Arguments;
use clap::Parser;
use mcp_restart_shim::{SHIM_SUBCOMMAND, ShimArgs};
use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

/// Runs the program and gives its exit code.
pub fn main() -> ExitCode {
    // A shim is on the way of every restart: it must not wait for a command line parser.
    let mut words = env::args_os().skip(1);
    if words.next().is_some_and(|word| word == SHIM_SUBCOMMAND)
        && let Some(shim) = ShimArgs::parse(words)
    {
        return mcp_restart_shim::main(&shim);
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
    };
    match run::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell when this fails.
            let _ = io::stderr().write_all(error.report().as_bytes());
            ExitCode::from(error.exit_code())
        }
    }
}
