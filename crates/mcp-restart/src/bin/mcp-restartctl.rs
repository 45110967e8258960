//! `mcp-restartctl`: see the library behind it.

use std::process::ExitCode;

fn main() -> ExitCode {
    mcp_restart_ctl::main()
}
