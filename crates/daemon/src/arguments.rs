//! The command line of `mcp-restartd`.

use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// Supervises local AI agents: starts, stops and restarts them, over MCP and a local socket.
///
/// Runs in the foreground until SIGTERM or SIGINT; `mcp-restartctl up` starts it in the background.
#[derive(Debug, Parser)]
#[command(name = "mcp-restartd", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[arg(
        long,
        value_name = "FILE",
        help = "The config file [default: $MCP_RESTART_CONFIG, ./mcp-restart.config.json, or the user's own]"
    )]
    pub(crate) config: Option<PathBuf>,

    #[arg(
        long,
        value_name = "DIR",
        help = "Where socket, logs and state are [default: $MCP_RESTART_STATE_DIR, the config's stateDir]"
    )]
    pub(crate) state_dir: Option<PathBuf>,

    /// Start no bridge: one that runs on its own announces itself
    #[arg(long)]
    pub(crate) no_bridge: bool,

    /// Say whether this version accepts config and state, and change nothing
    #[arg(long)]
    pub(crate) check: bool,

    /// End as by SIGTERM when standard input, a pipe, ends
    #[arg(long, hide = true)]
    pub(crate) ends_with_stdin: bool,

    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value_t = LogFormat::Text,
        help = "How log lines are written; MCP_RESTART_LOG filters them"
    )]
    pub(crate) log_format: LogFormat,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One line of text each.
    Text,
    /// One JSON object each.
    Json,
}

impl LogFormat {
    /// The word on the command line.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }
}
