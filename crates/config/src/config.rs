//! The configuration as the programs use it: complete, checked, every path absolute.

use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::secret::Secret;

/// A configuration file, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The file it came from, absolute, as it was named (a symlink is not followed).
    pub file: PathBuf,
    /// The address that the MCP endpoint listens on.
    pub host: IpAddr,
    /// The port that the MCP endpoint listens on; 0 is any free one.
    pub port: u16,
    /// The operator's token, from the environment, the file or the token file.
    pub token: Option<Secret>,
    /// The state dir that the file names.
    pub state_dir: Option<PathBuf>,
    /// The agents, in the order of the file.
    pub agents: Vec<Agent>,
    /// The stdio MCP servers that mcp-restart may touch.
    pub stdio_servers: Vec<StdioServer>,
    /// What a program that was replaced on disk means for lifecycle requests.
    pub stale_daemon: Strictness,
    /// What a refused broad kill means for lifecycle requests.
    pub contamination: Strictness,
}

/// One agent, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// Unique, also when case is ignored.
    pub name: String,
    /// The program: a bare name that is looked up on the agent's own PATH, or an absolute path.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its working directory.
    pub cwd: PathBuf,
    /// What is added to the daemon's environment.
    pub env: BTreeMap<String, String>,
    /// Whether it is started with the daemon.
    pub autostart: bool,
    /// The time between the stop signal and SIGKILL.
    pub graceful_timeout: Duration,
    /// The signal that asks it to end.
    pub stop_signal: StopSignal,
    /// What agent CLI it is.
    pub kind: Kind,
    /// Whether it runs in a pseudo-terminal.
    pub tty: bool,
    /// Whether the restart server is wired into it.
    pub inject_mcp: Inject,
    /// What a restart does with its conversation.
    pub resume: Resume,
    /// What is added to the arguments on a restart; none leaves that to the kind.
    pub restart_args: Option<Vec<String>>,
    /// When a restart with a bad launch is taken back.
    pub rollback: Rollback,
    /// The time between the delivery of its answer and the stop, when it restarts itself.
    pub self_restart_delay: Duration,
    /// Which of its children may outlive it.
    pub keep_children: KeepChildren,
    /// A process that ends within this time after its start makes the start an error; zero: none does.
    pub settle: Duration,
    /// Its log, if the file names one; see [`Agent::log_file_in`].
    pub log_file: Option<PathBuf>,
    /// The size in bytes at which its log is rotated.
    pub log_max_bytes: u64,
    /// How many rotated logs are kept.
    pub log_keep: u32,
    /// What it may do over MCP.
    pub control: Control,
    /// How often it may restart itself.
    pub self_restart_limit: SelfRestartLimit,
}

impl Agent {
    /// Where its output goes when the daemon keeps its state in `state_dir`.
    pub fn log_file_in(&self, state_dir: &Path) -> PathBuf {
        self.log_file.clone().unwrap_or_else(|| crate::lookup::log_file(state_dir, &self.name))
    }
}

/// A stdio MCP server that mcp-restart may touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StdioServer {
    /// The name that requests know it by.
    pub name: String,
    /// What the basename of its program or script equals.
    pub matches: String,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// An agent CLI that mcp-restart knows how to wire in and to resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Kind {
    /// Claude Code.
    Claude,
    /// Codex CLI.
    Codex,
    /// Gemini CLI.
    Gemini,
    /// The opencode CLI.
    Opencode,
    /// GitHub Copilot CLI.
    Copilot,
    /// Qwen Code.
    Qwen,
    /// Any other program.
    Generic,
}

impl Kind {
    /// Every kind, the known agent CLIs first.
    pub const ALL: [Self; 7] =
        [Self::Claude, Self::Codex, Self::Gemini, Self::Opencode, Self::Copilot, Self::Qwen, Self::Generic];

    /// Its name in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Opencode => "opencode",
            Self::Copilot => "copilot",
            Self::Qwen => "qwen",
            Self::Generic => "generic",
        }
    }

    /// The kind whose name the basename of a command starts with.
    pub fn from_command(command: &str) -> Self {
        let basename = command.rsplit('/').next().unwrap_or(command);
        Self::ALL.into_iter().find(|kind| basename.starts_with(kind.as_str())).unwrap_or(Self::Generic)
    }

    /// Whether an agent of this kind needs a terminal, if its entry does not say.
    pub const fn default_tty(self) -> bool {
        !matches!(self, Self::Generic)
    }

    /// What a restart of this kind does with the conversation, if its entry does not say.
    pub const fn default_resume(self) -> Resume {
        match self {
            Self::Generic => Resume::Fresh,
            _ => Resume::Same,
        }
    }

    /// How long a process of this kind can take to end over a bad launch, if its entry does not say.
    pub const fn default_settle(self) -> Duration {
        match self {
            Self::Generic => Duration::from_millis(200),
            _ => Duration::from_secs(2),
        }
    }
}

/// A signal that asks an agent to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopSignal(pub(crate) Signal);

impl StopSignal {
    /// Its number on this system.
    pub fn number(self) -> i32 {
        self.0 as i32
    }

    /// Its name, `SIGTERM`.
    pub fn name(self) -> &'static str {
        self.0.as_str()
    }
}

impl Default for StopSignal {
    fn default() -> Self {
        Self(Signal::SIGTERM)
    }
}

/// Whether the restart server is wired into an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inject {
    /// Not at all.
    No,
    /// By flags and variables, touching no file of the user.
    Yes,
    /// Also by the agent CLI's settings file in its working directory, where there is no other way.
    Project,
}

/// What a restart does with the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Resume {
    /// Resume exactly the session that the agent had.
    Same,
    /// Start a new one.
    Fresh,
}

/// When a restart with a changed launch that ends at once is taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rollback {
    /// Never.
    Never,
    /// When the agent restarted itself and the new process ends within this time.
    SelfRestarts(Duration),
    /// Whoever restarted it, when the new process ends within this time.
    EveryRestart(Duration),
}

/// Which children of an agent may outlive it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeepChildren {
    /// The programs with these names; none, if empty.
    Named(Vec<String>),
    /// All of them.
    All,
}

/// What an agent may do over MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Control {
    /// Start, stop and restart every agent.
    All,
    /// Restart and stop itself.
    #[serde(rename = "self")]
    SelfOnly,
    /// Read only.
    None,
}

/// How often an agent may restart itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelfRestartLimit {
    /// So many times …
    pub max: u32,
    /// … within this time.
    pub within: Duration,
}

/// How seriously a doubtful state is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Strictness {
    /// It is reported.
    Warn,
    /// Lifecycle requests are refused until the operator acts.
    Refuse,
}
