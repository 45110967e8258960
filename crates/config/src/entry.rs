//! The file as it is written: each field by its JSON name, with its type, its meaning and its default.
//!
//! Known fields, JSON Schema and decoding all derive from these types. A default that is fixed stands in
//! [`default`] and, from there, in the schema; one that depends on other fields is told in words.

use crate::config::{Control, Inject, Kind, Resume, StopSignal, Strictness};
use crate::decode::Field;
use crate::value::{Described, Host, Milliseconds, Name, NotEmpty, Number, OrBoolean, Text};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;

/// What a field means that is not given.
pub(crate) mod default {
    pub(crate) const HOST: std::net::Ipv4Addr = std::net::Ipv4Addr::LOCALHOST;
    pub(crate) const PORT: u16 = 4310;
    pub(crate) const GRACEFUL_TIMEOUT_MS: u64 = 10_000;
    pub(crate) const ROLLBACK_WITHIN_MS: u64 = 15_000;
    pub(crate) const SELF_RESTART_DELAY_MS: u64 = 500;
    pub(crate) const LOG_MAX_BYTES: u64 = 10 * 1024 * 1024;
    pub(crate) const LOG_KEEP: u32 = 3;
    pub(crate) const SELF_RESTARTS: u32 = 10;
    pub(crate) const SELF_RESTARTS_WITHIN_MS: u64 = 600_000;
    pub(crate) const STDIO_GRACE_MS: u64 = 2_000;
}

/// The configuration of mcp-restart: the agents that it keeps, and how they are reached.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "mcp-restart configuration")]
pub(crate) struct ConfigEntry {
    /// The JSON Schema of this file, for editors.
    #[serde(rename = "$schema", default)]
    #[expect(dead_code, reason = "it is for the editor, and a field that is known is no fault")]
    pub(crate) schema: Field<Text>,
    /// The address that the MCP endpoint listens on. One that is not loopback needs a token.
    #[serde(default)]
    #[schemars(extend("default" = default::HOST.to_string()))]
    pub(crate) host: Field<Host>,
    /// The port that the MCP endpoint listens on; 0 is any free one.
    #[serde(default)]
    #[schemars(extend("default" = default::PORT))]
    pub(crate) port: Field<Number<0, 65_535>>,
    /// The operator's token. `MCP_RESTART_TOKEN` overrides it.
    #[serde(default)]
    pub(crate) token: Field<Text>,
    /// A file with the operator's token, which only its owner may read. Not together with `token`.
    #[serde(default)]
    pub(crate) token_file: Field<Text<NotEmpty>>,
    /// Where sockets, logs and state are kept. Default: `mcp-restart` in `$XDG_STATE_HOME` or
    /// `~/.local/state`.
    #[serde(default)]
    pub(crate) state_dir: Field<Text<NotEmpty>>,
    /// The agents.
    #[serde(default)]
    #[schemars(extend("default" = []))]
    pub(crate) agents: Field<Vec<Field<AgentEntry>>>,
    /// The stdio MCP servers that mcp-restart may find and restart; it touches no others.
    #[serde(default)]
    #[schemars(extend("default" = []))]
    pub(crate) stdio_servers: Field<Vec<Field<StdioServerEntry>>>,
    /// What it means for start, stop and restart that a program of mcp-restart was replaced on disk.
    #[serde(default)]
    #[schemars(extend("default" = "warn"))]
    pub(crate) stale_daemon: Field<Strictness>,
    /// What it means for start, stop and restart that a broad kill was attempted.
    #[serde(default)]
    #[schemars(extend("default" = "warn"))]
    pub(crate) contamination: Field<Strictness>,
}

/// One agent.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "Agent")]
pub(crate) struct AgentEntry {
    /// The agent's name, unique also when case is ignored.
    pub(crate) name: Field<Text<Name>>,
    /// The program. A bare name is looked up on the agent's own PATH; a shell is never involved.
    pub(crate) command: Field<Text<NotEmpty>>,
    /// Its arguments.
    #[serde(default)]
    #[schemars(extend("default" = []))]
    pub(crate) args: Field<Vec<Field<Text>>>,
    /// Its working directory, which must exist. Default: the folder of this file; the home folder for the
    /// file under `~/.config`.
    #[serde(default)]
    pub(crate) cwd: Field<Text<NotEmpty>>,
    /// Variables that are added to the daemon's environment.
    #[serde(default)]
    #[schemars(extend("default" = {}))]
    pub(crate) env: Field<BTreeMap<String, Field<Text>>>,
    /// Whether it is started when the daemon starts, and only then.
    #[serde(default)]
    #[schemars(extend("default" = false))]
    pub(crate) autostart: Field<bool>,
    /// Milliseconds between the stop signal and SIGKILL.
    #[serde(default)]
    #[schemars(extend("default" = default::GRACEFUL_TIMEOUT_MS))]
    pub(crate) graceful_timeout_ms: Field<Milliseconds>,
    /// The signal that asks it to end.
    #[serde(default)]
    #[schemars(extend("default" = "SIGTERM"))]
    pub(crate) stop_signal: Field<StopSignal>,
    /// What agent CLI it is; that decides injection, resume and the terminal. Default: the kind that the
    /// basename of `command` starts with, else `generic`.
    #[serde(default)]
    pub(crate) kind: Field<Kind>,
    /// Whether it runs in a pseudo-terminal that can be attached to. Default: false for `generic`, true for
    /// the other kinds.
    #[serde(default)]
    pub(crate) tty: Field<bool>,
    /// Whether the restart server is wired into it; `project` may also write the agent CLI's settings file
    /// in its working directory, where there is no other way.
    #[serde(default)]
    #[schemars(extend("default" = true))]
    pub(crate) inject_mcp: Field<Inject>,
    /// What a restart does with the conversation: resume exactly the `same`, or start a `fresh` one.
    /// Default: `fresh` for `generic`, `same` for the other kinds.
    #[serde(default)]
    pub(crate) resume: Field<Resume>,
    /// Arguments that are added on a restart. `{sessionId}` and `{prompt}` are replaced; an argument whose
    /// placeholder has no value is left out. Default: what the kind needs to resume.
    #[serde(default)]
    pub(crate) restart_args: Field<Vec<Field<Text>>>,
    /// When a restart with a changed launch that ends at once is taken back: `false` for never.
    #[serde(default)]
    #[schemars(extend("default" = { "withinMs": default::ROLLBACK_WITHIN_MS }))]
    pub(crate) rollback: Field<OrBoolean<false, RollbackEntry>>,
    /// Milliseconds between the delivery of its answer and the stop, when it restarts itself.
    #[serde(default)]
    #[schemars(extend("default" = default::SELF_RESTART_DELAY_MS))]
    pub(crate) self_restart_delay_ms: Field<Milliseconds>,
    /// Programs that are left alone when they outlive the agent; `true` for all.
    #[serde(default)]
    #[schemars(extend("default" = []))]
    pub(crate) keep_children: Field<OrBoolean<true, Vec<Field<Text<NotEmpty>>>>>,
    /// A new process that ends within so many milliseconds makes the start an error; 0: success is reported
    /// as soon as the program has been executed. Default: 200 for `generic`, 2000 for the other kinds.
    #[serde(default)]
    pub(crate) settle_ms: Field<Milliseconds>,
    /// The file for its output. Default: `logs/<name>.log` in the state dir.
    #[serde(default)]
    pub(crate) log_file: Field<Text<NotEmpty>>,
    /// The size in bytes at which the log is rotated.
    #[serde(default)]
    #[schemars(extend("default" = default::LOG_MAX_BYTES))]
    pub(crate) log_max_bytes: Field<Number<4096, 1_099_511_627_776>>,
    /// How many rotated logs are kept.
    #[serde(default)]
    #[schemars(extend("default" = default::LOG_KEEP))]
    pub(crate) log_keep: Field<Number<0, 100>>,
    /// What it may do over MCP: to `all` agents, to its `self` only, or `none` of it (read only).
    #[serde(default)]
    #[schemars(extend("default" = "all"))]
    pub(crate) control: Field<Control>,
    /// How often it may restart itself before it is refused.
    #[serde(default)]
    #[schemars(extend("default" = { "max": default::SELF_RESTARTS, "withinMs": default::SELF_RESTARTS_WITHIN_MS }))]
    pub(crate) self_restart_limit: Field<SelfRestartLimitEntry>,
}

/// When a restart is taken back.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct RollbackEntry {
    /// The launch is taken back if its process ends within so many milliseconds.
    #[serde(default)]
    #[schemars(extend("default" = default::ROLLBACK_WITHIN_MS))]
    pub(crate) within_ms: Field<Milliseconds<1>>,
    /// Whether that holds for everybody's restarts, not only for those of the agent itself.
    #[serde(default)]
    #[schemars(extend("default" = false))]
    pub(crate) always: Field<bool>,
}

impl Described for RollbackEntry {
    const EXPECTED: &'static str = "an object";
}

/// A number of restarts in a window of time.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct SelfRestartLimitEntry {
    /// So many restarts …
    #[serde(default)]
    #[schemars(extend("default" = default::SELF_RESTARTS))]
    pub(crate) max: Field<Number<0, 1_000_000>>,
    /// … within so many milliseconds.
    #[serde(default)]
    #[schemars(extend("default" = default::SELF_RESTARTS_WITHIN_MS))]
    pub(crate) within_ms: Field<Milliseconds<1>>,
}

/// A stdio MCP server that mcp-restart may touch.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "StdioServer")]
pub(crate) struct StdioServerEntry {
    /// The server's name, unique also when case is ignored.
    pub(crate) name: Field<Text<Name>>,
    /// What the basename of its program, or of the script that an interpreter was given, equals.
    #[serde(rename = "match")]
    pub(crate) matches: Field<Text<NotEmpty>>,
    /// Milliseconds between SIGTERM and SIGKILL.
    #[serde(default)]
    #[schemars(extend("default" = default::STDIO_GRACE_MS))]
    pub(crate) grace_ms: Field<Milliseconds>,
}

/// The JSON Schema of the config file, generated from the types that it is decoded into.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(ConfigEntry).to_value()
}
