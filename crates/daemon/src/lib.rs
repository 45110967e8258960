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
mod check;
mod children;
mod entrance;
mod fleet;
mod fork_server;
mod governance;
mod last_good;
mod logging;
mod program;
mod run;
mod server;
mod start_error;
mod state_dir;
mod stdio;
mod successor;

use arguments::Arguments;
use clap::Parser;
use mcp_restart_protocol::upgrade::LEFT_STATUS;
use mcp_restart_shim::{SHIM_SUBCOMMAND, ShimArgs};
use run::End;
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
    let ended = if arguments.check { check::check(&arguments) } else { run::run(&arguments).map(exit_code) };
    ended.unwrap_or_else(|error| {
        // Nobody is left to tell when this fails.
        let _ = io::stderr().write_all(error.report().as_bytes());
        ExitCode::from(error.exit_code())
    })
}

fn exit_code(end: End) -> ExitCode {
    match end {
        End::Stopped => ExitCode::SUCCESS,
        End::MadeWay => ExitCode::from(LEFT_STATUS),
    }
}
