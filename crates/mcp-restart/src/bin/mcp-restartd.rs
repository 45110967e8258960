//! `mcp-restartd`: see the library behind it.

use std::process::ExitCode;

fn main() -> ExitCode {
    mcp_restart_daemon::main()
}
