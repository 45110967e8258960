//! The tools: what they are called, what they take, what they ask of the daemon and what they answer.
//! Decisions only; [`crate::server`] does the asking.

use crate::schema;
use mcp_restart_paths::RestartPath;
use mcp_restart_protocol::agent::{AgentView, Resume};
use mcp_restart_protocol::answer::{
    AgentAnswer, Answer, ErrorCode, Failure, Handoff, LogLines, RestartAnswer, ServerStatus,
};
use mcp_restart_protocol::request::{LOG_LINES_MAX, NOTE_MAX, Request, RestartRequest};
use mcp_restart_protocol::stdio::{
    RESPAWN_WAIT_MS, RESPAWN_WAIT_MS_MAX, SELF_DELAY_MS, SELF_DELAY_MS_MAX, StdioRestartRequest,
    StdioRestarted, StdioServer,
};
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool as Definition, ToolAnnotations};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// One of the tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    ListAgents,
    ServerStatus,
    StartAgent,
    StopAgent,
    RestartAgent,
    GetHandoff,
    AgentLogs,
    ListStdioServers,
    RestartStdioServers,
}

const LINES_DEFAULT: u32 = 100;
const SESSION_ID_MAX: usize = 128;
const REQUEST_ID_MAX: usize = 128;
/// The longest name of an agent, in bytes.
pub(crate) const NAME_MAX: usize = 64;

impl Tool {
    /// Every tool, in the order in which they are listed.
    pub(crate) const ALL: [Self; 9] = [
        Self::ListAgents,
        Self::ServerStatus,
        Self::StartAgent,
        Self::StopAgent,
        Self::RestartAgent,
        Self::GetHandoff,
        Self::AgentLogs,
        Self::ListStdioServers,
        Self::RestartStdioServers,
    ];

    /// The tool of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    /// The name by which it is called.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ListAgents => "list_agents",
            Self::ServerStatus => "server_status",
            Self::StartAgent => "start_agent",
            Self::StopAgent => "stop_agent",
            Self::RestartAgent => "restart_agent",
            Self::GetHandoff => "get_handoff",
            Self::AgentLogs => "agent_logs",
            Self::ListStdioServers => "list_stdio_servers",
            Self::RestartStdioServers => "restart_stdio_servers",
        }
    }

    /// What a client is told about it.
    pub(crate) fn definition(self) -> Definition {
        let (title, description) = self.words();
        let (arguments, result) = match self {
            Self::ListAgents => (schema::input::<Nothing>(), schema::output::<Agents>()),
            Self::ServerStatus => (schema::input::<Nothing>(), schema::output::<ServerStatus>()),
            Self::StartAgent | Self::StopAgent => {
                (schema::input::<OneAgent>(), schema::output::<AgentAnswer>())
            }
            Self::RestartAgent => (schema::input::<Restart>(), schema::output::<RestartAnswer>()),
            Self::GetHandoff => (schema::input::<Nothing>(), schema::output::<Handoff>()),
            Self::AgentLogs => (schema::input::<Logs>(), schema::output::<LogLines>()),
            Self::ListStdioServers => (schema::input::<Nothing>(), schema::output::<StdioServers>()),
            Self::RestartStdioServers => {
                (schema::input::<RestartStdio>(), schema::output::<StdioRestarted>())
            }
        };
        Definition::new(self.name(), description, arguments)
            .with_title(title)
            .with_raw_output_schema(result)
            .with_annotations(self.annotations())
    }

    /// What the daemon is to be asked for a call with these arguments, on a connection with these ends: the
    /// caller's and ours.
    pub(crate) fn request(
        self,
        arguments: JsonObject,
        ends: (SocketAddr, SocketAddr),
    ) -> Result<Request, Failure> {
        match self {
            Self::ListAgents => self.read(arguments).map(|Nothing {}| Request::List { all: false }),
            Self::ServerStatus => self.read(arguments).map(|Nothing {}| Request::Status),
            Self::StartAgent => self.read(arguments).map(|OneAgent { name }| Request::Start {
                path: RestartPath::McpStart.id().to_owned(),
                name: name.0,
                force: false,
                wait: true,
            }),
            Self::StopAgent => self.read(arguments).map(|OneAgent { name }| Request::Stop {
                path: RestartPath::McpStop.id().to_owned(),
                name: name.0,
                wait: true,
            }),
            Self::RestartAgent => self.read(arguments).map(|asked: Restart| {
                Request::Restart(RestartRequest {
                    path: RestartPath::McpRestart.id().to_owned(),
                    name: asked.name.map(|name| name.0),
                    note: asked.note.map(|note| note.0),
                    resume: asked.resume,
                    request_id: asked.request_id.map(|id| id.0),
                    force: false,
                    wait: true,
                })
            }),
            Self::GetHandoff => self.read(arguments).map(|Nothing {}| Request::Handoff { name: None }),
            Self::AgentLogs => self
                .read(arguments)
                .map(|Logs { name, lines }| Request::Logs { name: name.0, lines: lines.0 }),
            Self::ListStdioServers => self.read(arguments).map(|Nothing {}| Request::StdioServers),
            Self::RestartStdioServers => self.read(arguments).map(|asked: RestartStdio| {
                Request::RestartStdioServers(StdioRestartRequest {
                    path: RestartPath::McpRestartServers.id().to_owned(),
                    names: asked.names.unwrap_or_default().into_iter().map(|name| name.0).collect(),
                    stale_only: asked.stale_only.unwrap_or(false),
                    orphaned_only: asked.orphaned_only.unwrap_or(false),
                    include_self: asked.include_self.unwrap_or(false),
                    dry_run: asked.dry_run.unwrap_or(false),
                    respawn_wait_ms: asked.respawn_wait_ms.map_or(RESPAWN_WAIT_MS, |wait| wait.0),
                    self_delay_ms: asked.self_delay_ms.map_or(SELF_DELAY_MS, |delay| delay.0),
                    connection: Some(ends),
                })
            }),
        }
    }

    fn read<Arguments: DeserializeOwned>(self, arguments: JsonObject) -> Result<Arguments, Failure> {
        serde_json::from_value(Value::Object(arguments)).map_err(|error| {
            Failure::new(ErrorCode::InvalidArgument, error.to_string()).hint(self.usage().to_owned())
        })
    }

    const fn usage(self) -> &'static str {
        match self {
            Self::ListAgents | Self::ServerStatus | Self::GetHandoff | Self::ListStdioServers => {
                "this tool takes no arguments"
            }
            Self::StartAgent | Self::StopAgent => {
                "this tool takes the argument name; list_agents has the names"
            }
            Self::RestartAgent => {
                "this tool takes the optional arguments name, note, resume and requestId; \
                 without name it restarts the caller"
            }
            Self::AgentLogs => "this tool takes the arguments name and, optionally, lines (1 to 1000)",
            Self::RestartStdioServers => {
                "this tool takes the optional arguments names, staleOnly, orphanedOnly, includeSelf, dryRun, \
                 respawnWaitMs and selfDelayMs; list_stdio_servers has the names"
            }
        }
    }

    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::ListAgents => (
                "List agents",
                "Lists every supervised agent with its state (stopped, running, stopping, exited, failed), process id, \
                 generation, uptime and last exit. configChanged is true when the agent's entry in the config file \
                 is no longer the one that it runs with: a restart applies it.",
            ),
            Self::ServerStatus => (
                "Supervisor status",
                "Tells about the supervisor itself: version, config file (configFile: edit it, then restart an agent \
                 to apply its entry), errors in that file (configError), agents that run on after their entry was \
                 removed (unlisted), and whom it takes you for (caller).",
            ),
            Self::StartAgent => (
                "Start an agent",
                "Starts a stopped, exited or failed agent with its present entry in the config file, and answers when \
                 the process has come up. Fails with already_running if it runs: use restart_agent to replace it.",
            ),
            Self::StopAgent => (
                "Stop an agent",
                "Stops an agent and every process below it: the graceful signal first, SIGKILL after the agent's \
                 gracefulTimeoutMs. Answers when all of them are gone. It stays stopped until somebody starts it. \
                 Fails with not_running if it does not run.",
            ),
            Self::RestartAgent => (
                "Restart an agent",
                "Replaces an agent's process by a new one with its present entry in the config file (command, \
                 arguments, environment): the way to apply a changed entry. Without name it restarts you, the \
                 calling agent: you get the answer (accepted: true) first, your process is ended shortly after, and \
                 your next incarnation reads note with get_handoff, so write into note what you were doing and what to \
                 do next. Call it once and then end your turn; do not repeat it. The new entry is checked \
                 first: if anything about it is wrong, this fails and the running process is left as it is.",
            ),
            Self::GetHandoff => (
                "Read the note of your last restart",
                "For an agent that finds itself restarted: the notes that were left for this process, who asked for the \
                 restart, when, which config fields changed (configDiff), and whether the new launch failed and the \
                 last good one runs instead (rolledBack).",
            ),
            Self::AgentLogs => (
                "Read an agent's log",
                "Gives the newest lines of an agent's output, oldest first, without escape sequences: at most 1000 lines \
                 and 64 KiB.",
            ),
            Self::ListStdioServers => (
                "List stdio MCP servers",
                "Lists the running stdio MCP servers that the config file declares (stdioServers), each with its client: the \
                 program that started it and talks to it. stale: its program or script on disk is newer than the process, \
                 so that it runs old code. orphaned: its client is gone.",
            ),
            Self::RestartStdioServers => (
                "Restart stdio MCP servers",
                "Ends running stdio MCP servers, so that their clients start them again with the code that is on disk now, \
                 and tells whether they did: respawned, notRespawned. Only servers that the config file declares are ever \
                 touched; without names all of them, with staleOnly or orphanedOnly only such. Some clients start a server \
                 again at its next call, some only when they are restarted themselves: note says what to do. The server \
                 through which you call this, if any, is left out unless includeSelf is true; then it ends after the answer.",
            ),
        }
    }

    fn annotations(self) -> ToolAnnotations {
        let closed = ToolAnnotations::new().open_world(false);
        match self {
            Self::ListAgents
            | Self::ServerStatus
            | Self::GetHandoff
            | Self::AgentLogs
            | Self::ListStdioServers => closed.read_only(true).destructive(false).idempotent(true),
            Self::StartAgent => closed.read_only(false).destructive(false).idempotent(true),
            Self::StopAgent => closed.read_only(false).destructive(true).idempotent(true),
            // Some clients repeat a lost call of an idempotent tool: an agent would be restarted twice.
            Self::RestartAgent | Self::RestartStdioServers => {
                closed.read_only(false).destructive(true).idempotent(false)
            }
        }
    }
}

/// The result of a call that was carried out.
pub(crate) fn answered(answer: Answer) -> CallToolResult {
    let value = match answer {
        Answer::Agents(agents) => serde_json::to_value(Agents { agents }),
        Answer::Status(status) => serde_json::to_value(status),
        Answer::Agent(agent) => serde_json::to_value(agent),
        Answer::Restarted(restarted) => serde_json::to_value(restarted),
        Answer::Handoff(handoff) => serde_json::to_value(handoff),
        Answer::Logs(lines) => serde_json::to_value(lines),
        Answer::StdioServers(servers) => serde_json::to_value(StdioServers { servers }),
        Answer::StdioRestarted(restarted) => serde_json::to_value(restarted),
        Answer::Terminal(_)
        | Answer::McpConfig(_)
        | Answer::Protected { .. }
        | Answer::Done
        | Answer::Admitted(_) => {
            return refused(&Failure::new(
                ErrorCode::Internal,
                "the daemon answered something else than was asked",
            ));
        }
    };
    match value.and_then(|value| Ok((serde_json::to_string(&value)?, value))) {
        Ok((text, value)) => {
            let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
            result.structured_content = Some(value);
            result
        }
        Err(error) => refused(&Failure::new(ErrorCode::Internal, error.to_string())),
    }
}

/// The result of a call that was refused or failed: its text alone, since clients check structured
/// content against the output schema even then.
pub(crate) fn refused(failure: &Failure) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(json!({ "error": failure }).to_string())])
}

/// The number by which the delivery of an answer is to be reported, if the daemon waits for it.
pub(crate) fn delivery(answer: &Answer) -> Option<u64> {
    match answer {
        Answer::Agent(agent) => agent.delivery,
        Answer::Restarted(restarted) => restarted.delivery,
        Answer::StdioRestarted(restarted) => restarted.delivery,
        _ => None,
    }
}

/// The conversation that a client is in, if it tells: Codex does with each call.
pub(crate) fn session(meta: &JsonObject) -> Option<String> {
    let id = meta.get("threadId")?.as_str()?;
    (1..=SESSION_ID_MAX).contains(&id.len()).then(|| id.to_owned())
}

/// What `list_agents` answers.
#[derive(Serialize, JsonSchema)]
struct Agents {
    /// The agents of the config file.
    agents: Vec<AgentView>,
}

/// What `list_stdio_servers` answers.
#[derive(Serialize, JsonSchema)]
struct StdioServers {
    /// The declared servers that run.
    servers: Vec<StdioServer>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OneAgent {
    /// The agent's name, as in `list_agents`.
    #[schemars(schema_with = "schema::name")]
    name: Name,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Restart {
    /// The agent's name, as in `list_agents`. Left out: the calling agent itself.
    #[schemars(schema_with = "schema::name")]
    #[serde(default)]
    name: Option<Name>,
    /// A note for the next incarnation, which it reads with `get_handoff`: what was being done, what is next.
    #[schemars(with = "String", length(max = NOTE_MAX))]
    #[serde(default)]
    note: Option<Note>,
    /// `same`: resume the conversation. `fresh`: begin a new one. Left out: as the config says.
    #[schemars(schema_with = "schema::resume")]
    #[serde(default)]
    resume: Option<Resume>,
    /// An id of your choice: the same id again within an hour gets the first answer and restarts nothing.
    #[schemars(with = "String", length(min = 1, max = REQUEST_ID_MAX))]
    #[serde(default)]
    request_id: Option<RequestId>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Logs {
    /// The agent's name, as in `list_agents`.
    #[schemars(schema_with = "schema::name")]
    name: Name,
    /// How many lines, 100 if left out.
    #[schemars(with = "u32", range(min = 1, max = LOG_LINES_MAX))]
    #[serde(default)]
    lines: Lines,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RestartStdio {
    /// Names of servers, as in `list_stdio_servers`. Left out: all that the config declares.
    #[schemars(schema_with = "schema::names")]
    #[serde(default)]
    names: Option<Vec<Name>>,
    /// Only those whose program or script on disk is newer.
    #[schemars(with = "bool")]
    #[serde(default)]
    stale_only: Option<bool>,
    /// Only those whose client is gone.
    #[schemars(with = "bool")]
    #[serde(default)]
    orphaned_only: Option<bool>,
    /// Also the server through which this call comes, after its answer.
    #[schemars(with = "bool")]
    #[serde(default)]
    include_self: Option<bool>,
    /// Touches nothing and tells in note what would be ended.
    #[schemars(with = "bool")]
    #[serde(default)]
    dry_run: Option<bool>,
    /// How long to watch whether the clients start them again, in milliseconds; 3000 if left out.
    #[schemars(with = "u64", range(max = RESPAWN_WAIT_MS_MAX))]
    #[serde(default)]
    respawn_wait_ms: Option<Milliseconds<RESPAWN_WAIT_MS_MAX>>,
    /// How long after the delivery of the answer the calling server ends, in milliseconds; 500 if left out.
    #[schemars(with = "u64", range(max = SELF_DELAY_MS_MAX))]
    #[serde(default)]
    self_delay_ms: Option<Milliseconds<SELF_DELAY_MS_MAX>>,
}

#[derive(Deserialize)]
#[serde(try_from = "u64")]
struct Milliseconds<const MAX: u64>(u64);

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Name(String);

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Note(String);

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct RequestId(String);

#[derive(Deserialize)]
#[serde(try_from = "u32")]
struct Lines(u32);

impl Default for Lines {
    fn default() -> Self {
        Self(LINES_DEFAULT)
    }
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let fits = (1..=NAME_MAX).contains(&name.len());
        let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if fits && letters && !name.starts_with(['.', '-']) {
            Ok(Self(name))
        } else {
            Err("name: 1 to 64 letters, digits, \".\", \"_\" or \"-\", and not \".\" or \"-\" at the front"
                .to_owned())
        }
    }
}

impl TryFrom<String> for Note {
    type Error = String;

    fn try_from(note: String) -> Result<Self, String> {
        let control = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
        if note.len() > NOTE_MAX {
            Err(format!("note: {} bytes are more than the {NOTE_MAX} that it may have", note.len()))
        } else if note.contains(control) {
            Err("note: control characters other than line breaks and tabs".to_owned())
        } else {
            Ok(Self(note))
        }
    }
}

impl TryFrom<String> for RequestId {
    type Error = String;

    fn try_from(id: String) -> Result<Self, String> {
        if (1..=REQUEST_ID_MAX).contains(&id.len()) && !id.contains(char::is_control) {
            Ok(Self(id))
        } else {
            Err(format!("requestId: 1 to {REQUEST_ID_MAX} bytes without control characters"))
        }
    }
}

impl<const MAX: u64> TryFrom<u64> for Milliseconds<MAX> {
    type Error = String;

    fn try_from(milliseconds: u64) -> Result<Self, String> {
        if milliseconds <= MAX { Ok(Self(milliseconds)) } else { Err(format!("milliseconds: at most {MAX}")) }
    }
}

impl TryFrom<u32> for Lines {
    type Error = String;

    fn try_from(lines: u32) -> Result<Self, String> {
        if (1..=LOG_LINES_MAX).contains(&lines) {
            Ok(Self(lines))
        } else {
            Err(format!("lines: 1 to {LOG_LINES_MAX}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tool: &str, arguments: Value) -> Result<Request, Failure> {
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        let ends = (SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([127, 0, 0, 1], 2)));
        Tool::named(tool).unwrap().request(arguments, ends)
    }

    fn refusal(tool: &str, arguments: Value) -> String {
        let failure = request(tool, arguments).unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidArgument);
        assert!(failure.hint.is_some());
        failure.message
    }

    #[test]
    fn what_clients_are_told_about_the_tools_is_this() {
        let definitions = Tool::ALL.map(Tool::definition);
        insta::assert_snapshot!(serde_json::to_string_pretty(&definitions).unwrap());
    }

    #[test]
    fn an_argument_that_nobody_knows_is_refused_by_every_tool() {
        for tool in Tool::ALL {
            let message = refusal(tool.name(), json!({ "name": "claude", "nmae": "x" }));
            assert!(message.contains("unknown field"), "{}: {message}", tool.name());
        }
    }

    #[test]
    fn a_name_is_what_the_config_allows() {
        for name in ["a", "claude-2", "A.b_c", &"n".repeat(64)] {
            assert!(request("start_agent", json!({ "name": name })).is_ok(), "{name}");
        }
        for name in ["", ".a", "-a", "a b", "ä", "a/b", "a\n", &"n".repeat(65)] {
            assert!(refusal("stop_agent", json!({ "name": name })).starts_with("name: "), "{name:?}");
        }
        assert_eq!(refusal("start_agent", json!({})), "missing field `name`");
    }

    #[test]
    fn limits_are_kept() {
        for (tool, arguments, field) in [
            ("agent_logs", json!({ "name": "a", "lines": 0 }), "lines: "),
            ("agent_logs", json!({ "name": "a", "lines": 1001 }), "lines: "),
            ("restart_agent", json!({ "note": "n".repeat(NOTE_MAX + 1) }), "note: "),
            ("restart_agent", json!({ "note": "\u{1b}[2J" }), "note: "),
            ("restart_agent", json!({ "requestId": "" }), "requestId: "),
            ("restart_agent", json!({ "requestId": "r".repeat(129) }), "requestId: "),
            ("restart_stdio_servers", json!({ "respawnWaitMs": 60_001 }), "milliseconds: "),
            ("restart_stdio_servers", json!({ "selfDelayMs": 60_001 }), "milliseconds: "),
            ("restart_stdio_servers", json!({ "names": ["../x"] }), "name: "),
        ] {
            let message = refusal(tool, arguments);
            assert!(message.starts_with(field), "{message}");
        }
        refusal("agent_logs", json!({ "name": "a", "lines": -1 }));
        refusal("agent_logs", json!({ "name": "a", "lines": "ten" }));
        refusal("restart_agent", json!({ "resume": "maybe" }));
        refusal("restart_agent", json!({ "name": 7 }));
    }

    #[test]
    fn each_lifecycle_request_names_its_restart_path() {
        let path = |tool, arguments| match request(tool, arguments).unwrap() {
            Request::Start { path, .. } | Request::Stop { path, .. } => path,
            Request::Restart(restart) => restart.path,
            Request::RestartStdioServers(restart) => restart.path,
            other => panic!("{other:?}"),
        };
        for (tool, path) in [
            ("start_agent", path("start_agent", json!({ "name": "a" }))),
            ("stop_agent", path("stop_agent", json!({ "name": "a" }))),
            ("restart_agent", path("restart_agent", json!({}))),
            ("restart_stdio_servers", path("restart_stdio_servers", json!({}))),
        ] {
            assert!(RestartPath::from_door(&path).is_ok(), "{tool}");
        }
    }

    #[test]
    fn null_stands_for_an_argument_that_was_left_out() {
        let all_null = json!({ "name": null, "note": null, "resume": null, "requestId": null });
        assert_eq!(request("restart_agent", all_null), request("restart_agent", json!({})));
        let all_null = json!({ "names": null, "staleOnly": null, "dryRun": null, "respawnWaitMs": null });
        assert_eq!(request("restart_stdio_servers", all_null), request("restart_stdio_servers", json!({})));
    }

    #[test]
    fn a_restart_is_never_said_to_be_repeatable() {
        for tool in [Tool::RestartAgent, Tool::RestartStdioServers] {
            let annotations = tool.annotations();
            assert_eq!((annotations.idempotent_hint, annotations.read_only_hint), (Some(false), Some(false)));
        }
    }
}
