//! The supervisor daemon: sockets, files, signals.

use std::process::ExitCode;

/// Runs the program and gives its exit code.
pub fn main() -> ExitCode {
    ExitCode::FAILURE
}
