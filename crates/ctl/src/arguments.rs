//! The command line itself.

use crate::problem::{Exit, Problem};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Supervise local AI agents: start, stop, restart and watch them.
#[derive(Debug, Parser)]
#[command(name = "mcp-restartctl", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Global {
    /// Print JSON on standard output
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The config file [default: the environment's, ./mcp-restart.config.json, the user's own]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The state dir of the daemon [default: the config's stateDir, else ~/.local/state/mcp-restart]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// When to colour the output [default: auto]
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub(crate) color: When,
    /// Say nothing but errors and what was asked for
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say also which daemon and which files are used
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

/// When to colour the output: auto, always or never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What is to be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write ./mcp-restart.config.json with the agents that are found on PATH
    Init {
        /// Replace the file that is there
        #[arg(long)]
        force: bool,
    },
    /// Start the daemon in the background and wait until it serves
    Up,
    /// Put the program on disk in the place of the daemon that runs; every agent runs on
    Upgrade {
        /// Return as soon as the daemon makes way, if a service manager starts the next one, else as soon as that
        /// is started
        #[arg(long)]
        no_wait: bool,
        /// Wait no longer than this and exit 7
        #[arg(long, value_name = "SECONDS", value_parser = seconds)]
        timeout: Option<Duration>,
    },
    /// Stop every agent and the daemon, and wait until they are gone
    Down,
    /// Show the daemon, its endpoint and its agents; exit 3 if no daemon runs
    Status,
    /// Show the agents
    #[command(visible_alias = "ls")]
    List {
        /// Also those that run on after they were removed from the config
        #[arg(long)]
        all: bool,
    },
    /// Start agents
    Start {
        #[command(flatten)]
        which: Which,
        /// Also with a launch that was rolled back before
        #[arg(long)]
        force: bool,
    },
    /// Stop agents: the stop signal to the whole process tree, and SIGKILL after the grace period
    Stop(Which),
    /// Restart agents with the config as it is now; inside an agent, without a name, itself
    Restart {
        #[command(flatten)]
        which: Which,
        /// A note for the new process, which gets it as part of its prompt or by asking for it
        #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
        note: Option<String>,
        /// Resume the same conversation or start a fresh one [default: what the config says]
        #[arg(long, value_enum, value_name = "same|fresh", hide_possible_values = true)]
        resume: Option<Resume>,
        /// Also with a launch that was rolled back before
        #[arg(long)]
        force: bool,
    },
    /// Show the log of an agent
    Logs {
        /// The agent
        name: String,
        /// Go on with what is written from now on, through restarts and rotation
        #[arg(short, long)]
        follow: bool,
        /// Start with so many of the newest lines [default: 100; with --since-restart all]
        #[arg(short = 'n', long, value_name = "N")]
        lines: Option<usize>,
        /// Start no earlier than with the line that tells of the agent's last start
        #[arg(long)]
        since_restart: bool,
        /// Leave escape sequences in: not safe for a terminal
        #[arg(long)]
        raw: bool,
    },
    /// Connect this terminal to the terminal of an agent
    Attach(Attach),
    /// Start the daemon and the agent if need be, and attach to it
    Run(Attach),
    /// Add an agent to the config file
    Add {
        /// Its name
        name: String,
        /// Its command and the arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Remove an agent from the config file; a running process of it goes on
    Remove {
        /// The agent
        name: String,
    },
    /// Change fields of an agent in the config file, for its next start
    Set {
        /// The agent
        name: String,
        /// A field and its value as JSON, or as plain text; env.NAME=VALUE for one variable
        #[arg(required = true, value_name = "FIELD=VALUE", value_parser = field_and_value)]
        fields: Vec<(String, String)>,
    },
    /// Check or show the config file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show what was asked for, what became of it, and what happened unasked
    Events {
        /// Go on with what happens from now on
        #[arg(short, long)]
        follow: bool,
        /// Only what is about this agent
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
        /// Start with so many of the newest [default: 100]
        #[arg(short = 'n', long, value_name = "N")]
        lines: Option<usize>,
    },
    /// Refuse a shell command that would hit the supervisor or an agent by name, pattern or number
    Guard {
        /// Judge what the hook of this agent CLI is given on standard input
        #[arg(
            long,
            value_enum,
            value_name = "claude",
            hide_possible_values = true,
            conflicts_with = "command"
        )]
        hook: Option<Hook>,
        /// The command [default: what is on standard input]
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Forget that the guard has refused a command: only outside any agent
    Clear,
    /// Show every way in which something may be started, restarted, stopped or killed, and what guards it
    Paths {
        /// As the table of docs/restart-paths.md
        #[arg(long, conflicts_with = "json")]
        markdown: bool,
    },
    /// Find what is wrong with config, programs, daemon, endpoint and agents; exit 1 if something is
    Doctor,
    /// See which stdio MCP servers run, and restart them; the config's stdioServers declares them
    #[command(subcommand)]
    Servers(ServersCommand),
    /// See an agent restart itself, in a temporary folder that is removed afterwards
    Demo,
    /// Show the note that the process before left for an agent
    Handoff {
        /// The agent [default: inside an agent, itself]
        name: Option<String>,
    },
    /// Show the MCP config that an agent's CLI is given, its token included
    McpConfig {
        /// The agent
        name: String,
    },
    /// The agent of `demo`
    #[command(hide = true)]
    DemoAgent {
        /// What it changes about itself
        #[arg(long)]
        edition: u32,
    },
    /// Becomes the leader of a session of its own and then the daemon
    #[command(hide = true)]
    DaemonSession {
        /// The daemon's program and its arguments
        #[arg(last = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
}

/// The agent CLIs whose hooks `guard` understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Hook {
    /// A `PreToolUse` hook of Claude Code.
    Claude,
}

/// Which agents a lifecycle command means, and how long it waits for them.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Which {
    /// The agents
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Every agent of the config, for `stop` also those that were removed from it; inside an agent, itself last
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,
    /// Return as soon as the daemon has accepted
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Wait no longer than this and exit 7; the daemon goes on all the same
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
}

/// Which terminal to attach to.
#[derive(Debug, Clone, Args)]
pub(crate) struct Attach {
    /// The agent
    pub(crate) name: String,
    /// The keys that end it and leave the agent running, in docker's syntax
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    pub(crate) detach_keys: crate::attach::DetachKeys,
}

/// What to do with the config file.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Report every fault of the file, exit 6 if there is one, and what is doubtful
    Check,
    /// Print the JSON Schema of the file
    Schema,
    /// Show the file, or one agent of it, with the defaults filled in and secrets left out
    Show {
        /// The agent
        name: Option<String>,
    },
}

/// What to do with stdio MCP servers.
#[derive(Debug, Subcommand)]
pub(crate) enum ServersCommand {
    /// Show those that run, and whose they are
    #[command(visible_alias = "ls")]
    List {
        /// Only those whose program or script on disk is newer than the process
        #[arg(long)]
        stale: bool,
        /// Only those whose client is gone
        #[arg(long)]
        orphaned: bool,
    },
    /// End those that run and see whether their clients start them again
    Restart(RestartServers),
}

/// Which servers to restart, and how.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RestartServers {
    /// Names of the config's stdioServers
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// All of them
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,
    /// Of these, or of all, only those whose program or script on disk is newer than the process
    #[arg(long)]
    pub(crate) stale: bool,
    /// Of these, or of all, only those whose client is gone
    #[arg(long)]
    pub(crate) orphaned: bool,
    /// Also the server below which this command runs, once it has its answer
    #[arg(long)]
    pub(crate) include_self: bool,
    /// Touch nothing and say what would be ended
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// How long to watch whether they are started again [default: 3]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) wait: Option<Duration>,
}

/// What a restart does with the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Resume {
    /// Resume the one that the agent had.
    Same,
    /// Start a new one.
    Fresh,
}

/// What is wrong with a command line, in one error and one hint like everything else.
pub(crate) fn problem(usage: &clap::Error) -> Problem {
    let text = usage.render().to_string();
    let mut paragraphs = text.trim_end().split("\n\n");
    let error = paragraphs.next().unwrap_or_default();
    let advice: Vec<_> = paragraphs
        .map(|text| text.trim_start().trim_start_matches("tip: "))
        .map(|text| text.trim_start_matches("For more information, "))
        .collect();
    Problem::new(Exit::Usage, error.strip_prefix("error: ").unwrap_or(error)).hint(advice.join("\n"))
}

fn field_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((field, value)) if !field.is_empty() => Ok((field.to_owned(), value.to_owned())),
        _ => Err("expected FIELD=VALUE".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "expected seconds".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_declarations_hold_together() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_help_says_what_there_is() {
        let mut command = Arguments::command().term_width(100);
        insta::assert_snapshot!(command.render_help());
    }

    #[test]
    fn a_usage_error_is_one_error_and_one_hint() {
        let usage = Arguments::try_parse_from(["mcp-restartctl", "restart", "--nope"]).unwrap_err();
        let Problem::Told { exit, message, hint, .. } = problem(&usage) else { panic!("told") };
        assert_eq!((exit, message.as_str()), (Exit::Usage, "unexpected argument '--nope' found"));
        let hint = hint.unwrap();
        assert!(hint.starts_with("a similar argument exists: '--note'\nUsage: "), "{hint}");
        assert!(hint.ends_with("\ntry '--help'."), "{hint}");
    }

    #[test]
    fn a_note_may_look_like_an_option() {
        for note in ["- fixed it", "--version"] {
            let arguments =
                Arguments::try_parse_from(["mcp-restartctl", "restart", "a", "--note", note]).unwrap();
            let Command::Restart { note: taken, .. } = arguments.command else { panic!("restart") };
            assert_eq!(taken.as_deref(), Some(note));
        }
    }

    #[test]
    fn seconds_may_have_a_fraction_and_are_never_negative() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for wrong in ["-1", "NaN", "1e300", "soon", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_value_may_contain_an_equals_sign() {
        assert_eq!(field_and_value("env.A=b=c"), Ok(("env.A".into(), "b=c".into())));
        assert!(field_and_value("=x").is_err());
        assert!(field_and_value("autostart").is_err());
    }
}
