//! What mcp-restart knows of each agent command line: flags, injection, conversations.
//!
//! Pure functions from an entry of the config, the endpoint and the conversation to the arguments, variables and
//! MCP config file of a launch. Each agent CLI has a file of its own, which names the version that it was
//! checked against.
//!
//! ```text
//!  entry ─┐
//!  endpoint ─┼─► kind ─► injected, conversation, the user's own arguments, prompt ─► CommandLine
//!  conversation ─┘
//! ```

mod by_option;
mod claude;
mod codex;
mod conversation;
mod copilot;
mod gemini;
mod generic;
mod opencode;
mod prompt;
mod qwen;
mod words;

#[cfg(test)]
mod tests;

use mcp_restart_config::{Agent, Kind};
use serde_json::{Value, json};
use std::path::Path;

pub use conversation::{Transcripts, is_session_id, live_session, live_session_file, transcripts};
pub use prompt::{reboot_prompt, restart_prompt, rollback_prompt};

/// The name under which the restart server is wired into an agent.
pub const SERVER_NAME: &str = "restart";

/// Variables by which an agent CLI notices that it runs inside another one, and then refuses to start or
/// behaves differently. No agent inherits them, so that the supervisor may be started from inside an agent.
pub const NESTING_MARKERS: [&str; 9] = [
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_CODE_SSE_PORT",
    "CODEX_SANDBOX",
    "CODEX_THREAD_ID",
    "GEMINI_CLI",
    "OPENCODE",
    "QWEN_CODE",
];

/// The endpoint that an agent is to be given.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint<'a> {
    /// The URL of the MCP endpoint.
    pub url: &'a str,
    /// The agent's own token.
    pub token: &'a str,
    /// Where the generated MCP config file is.
    pub mcp_config_file: &'a str,
}

/// The conversation that a process is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conversation<'a> {
    /// A new one, which gets this id where the kind lets it be given.
    New(&'a str),
    /// The one with this id.
    Resumed(&'a str),
}

impl<'a> Conversation<'a> {
    /// Its id.
    pub fn id(self) -> &'a str {
        match self {
            Self::New(id) | Self::Resumed(id) => id,
        }
    }
}

/// What a launch is composed from, besides its entry.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances<'a> {
    /// The endpoint; none if nothing is to be injected.
    pub endpoint: Option<Endpoint<'a>>,
    /// The conversation.
    pub conversation: Conversation<'a>,
    /// Of a restart, what the agent is told; none for a start.
    pub restart: Option<Restart<'a>>,
    /// What [`takes_system_settings`] says of the folder of the MCP config file.
    pub system_settings: bool,
}

/// What a restart adds to a launch.
#[derive(Debug, Clone, Copy)]
pub struct Restart<'a> {
    /// The prompt by which the agent learns that it was restarted.
    pub prompt: Option<&'a str>,
}

/// What a launch consists of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommandLine {
    /// The arguments, without the program's name.
    pub arguments: Vec<String>,
    /// Variables that are set over those of the entry.
    pub variables: Vec<(String, String)>,
    /// The content of the MCP config file, if the agent is given the endpoint.
    pub mcp_config: Option<String>,
    /// Another file that the agent's CLI is given: its path, and its content.
    pub companion: Option<(String, String)>,
    /// The settings file, below the working directory, that is to name the server; see [`settings_with_server`].
    pub settings: Option<&'static str>,
    /// The conversation that the process will have, where that is known beforehand.
    pub session_id: Option<String>,
}

/// The command line of an entry.
pub fn command_line(agent: &Agent, circumstances: Circumstances<'_>) -> CommandLine {
    let composed = match agent.kind {
        Kind::Claude => claude::compose(agent, circumstances),
        Kind::Codex => codex::compose(agent, circumstances),
        Kind::Gemini => gemini::compose(agent, circumstances),
        Kind::Opencode => opencode::compose(agent, circumstances),
        Kind::Copilot => copilot::compose(agent, circumstances),
        Kind::Qwen => qwen::compose(agent, circumstances),
        Kind::Generic => generic::compose(agent, circumstances),
    };
    let mcp_config = circumstances.endpoint.map(|endpoint| mcp_config(agent.kind, endpoint));
    CommandLine { mcp_config, ..composed }
}

/// Whether an entry's own arguments choose the conversation, so that nothing of ours may.
pub fn chooses_conversation(agent: &Agent) -> bool {
    match agent.kind {
        Kind::Claude => claude::chooses(&agent.args),
        Kind::Codex => codex::chooses(&agent.args),
        Kind::Gemini => gemini::CLI.chooses(&agent.args),
        Kind::Opencode => opencode::CLI.chooses(&agent.args),
        Kind::Copilot => copilot::CLI.chooses(&agent.args),
        Kind::Qwen => qwen::CLI.chooses(&agent.args),
        Kind::Generic => true,
    }
}

/// Whether a file in this folder may stand for the settings that an agent's CLI has for the whole system.
pub fn takes_system_settings(folder: &Path) -> bool {
    gemini::takes_system_settings(folder)
}

/// A settings file (see [`CommandLine::settings`]) with the server in it; none if there is nothing to change. A text that is no
/// JSON object is an error.
pub fn settings_with_server(settings: &str) -> Result<Option<String>, serde_json::Error> {
    gemini::with_server(settings)
}

/// The MCP config file that an agent of this kind is given, as JSON text.
pub fn mcp_config(kind: Kind, endpoint: Endpoint<'_>) -> String {
    let server = match kind {
        Kind::Claude => claude::server(endpoint),
        Kind::Qwen => qwen::server(endpoint),
        _ => server(endpoint.url, &format!("Bearer {}", endpoint.token)),
    };
    let mut text = format!("{:#}", json!({ "mcpServers": { SERVER_NAME: server } }));
    text.push('\n');
    text
}

/// A file that stands beside an agent's MCP config file.
fn beside(mcp_config_file: &str, ending: &str) -> String {
    format!("{}.{ending}", mcp_config_file.strip_suffix(".mcp.json").unwrap_or(mcp_config_file))
}

fn server(url: &str, authorization: &str) -> Value {
    json!({ "type": "http", "url": url, "headers": { "Authorization": authorization } })
}

/// What `restartArgs` says, where the entry has it: it takes the place of all that a kind would do itself.
fn from_template(agent: &Agent, circumstances: Circumstances<'_>) -> Option<Vec<String>> {
    let (template, restart) = (agent.restart_args.as_ref()?, circumstances.restart?);
    let session_id = match circumstances.conversation {
        Conversation::Resumed(id) => Some(id),
        Conversation::New(_) => None,
    };
    Some(template.iter().filter_map(|argument| fill(argument, session_id, restart.prompt)).collect())
}

/// An argument of `restartArgs` with its placeholders replaced; none if one of them has no value.
fn fill(argument: &str, session_id: Option<&str>, prompt: Option<&str>) -> Option<String> {
    let mut filled = argument.to_owned();
    for (placeholder, value) in [("{sessionId}", session_id), ("{prompt}", prompt)] {
        if argument.contains(placeholder) {
            filled = filled.replace(placeholder, value?);
        }
    }
    Some(filled)
}
