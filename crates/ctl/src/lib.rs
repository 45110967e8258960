//! The command line of mcp-restart.
//!
//! ```text
//!  arguments ─► Context (which config, which daemon, who asks) ─► one command ─► Screen
//!                                                                     │
//!                                               Problem ─► error, hint, exit code
//! ```
//!
//! Each command is a function that takes the [`context::Context`] and prints to its [`screen::Screen`]. What goes
//! wrong is a [`problem::Problem`], which is printed here, once.

mod arguments;
mod attach;
mod candidate;
mod commands;
mod context;
mod daemon_process;
mod demo;
mod guard;
mod problem;
mod programs;
mod render;
mod said;
mod screen;
mod shims;
mod talk;
#[cfg(test)]
mod testing;

use crate::arguments::{Arguments, Global};
use crate::context::Context;
use crate::problem::{Exit, Problem};
use crate::screen::Screen;
use clap::Parser;
use clap::error::ErrorKind;
use std::process::ExitCode;

/// A command line without a command is answered with the help.
const NO_COMMAND: ErrorKind = ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;

/// Runs the program and gives its exit code.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(usage) if usage.use_stderr() && usage.kind() != NO_COMMAND => {
            let screen = Screen::of_process(&Global { json: asks_for_json(), ..Global::default() });
            return screen.end(&arguments::problem(&usage)).into();
        }
        Err(help) => {
            // Help and version are errors to clap as well; when nobody reads them there is nobody to tell.
            let _ = help.print();
            return if help.use_stderr() { Exit::Usage.into() } else { Exit::Done.into() };
        }
    };
    let screen = Screen::of_process(&arguments.global);
    let context = Context::from_process(arguments.global, screen);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return context.screen.end(&Problem::from(error)).into(),
    };
    let result = runtime.block_on(commands::run(&context, arguments.command));
    // A write to a terminal that nobody reads may still be under way; it must not hold the exit up.
    runtime.shutdown_background();
    match result {
        Ok(exit) => exit.into(),
        Err(problem) => context.screen.end(&problem).into(),
    }
}

/// Whether a command line that could not be understood asks for JSON.
fn asks_for_json() -> bool {
    std::env::args_os().any(|argument| argument == "--json")
}
