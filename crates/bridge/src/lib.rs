//! The bridge from MCP over HTTP to the control socket of mcp-restart.

use std::process::ExitCode;

/// Runs the program and gives its exit code.
pub fn main() -> ExitCode {
    ExitCode::FAILURE
}
