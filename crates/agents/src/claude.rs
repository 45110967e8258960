//! Claude Code; checked against 2.1.332.
//!
//! Of several words that are no options it takes the first for the prompt and drops the others. It keeps a
//! conversation from its first message on: an id that was given and never spoken to can be given again, but not
//! be resumed.

use crate::words::{Grammar, has_option};
use crate::{Circumstances, CommandLine, Conversation, Endpoint, SERVER_NAME, from_template};
use mcp_restart_config::Agent;
use serde_json::{Value, json};

/// Options by which an entry chooses the conversation itself.
const CONVERSATION: [&str; 11] = [
    "-c",
    "--continue",
    "-r",
    "--resume",
    "--session-id",
    "--fork-session",
    "--from-pr",
    "--teleport",
    "--cloud",
    "--no-session-persistence",
    "--bg",
];

const GRAMMAR: Grammar = Grammar {
    with_value: &[
        "--agent",
        "--agents",
        "--append-system-prompt",
        "--autocompact",
        "--debug-file",
        "--effort",
        "--environment",
        "--fallback-model",
        "--input-format",
        "--json-schema",
        "--max-budget-usd",
        "--model",
        "-n",
        "--name",
        "--output-format",
        "--permission-mode",
        "--permission-prompt-tool",
        "--permission-prompts",
        "--plugin-dir",
        "--plugin-url",
        "--setting-sources",
        "--settings",
        "--system-prompt",
        "--system-prompt-snapshot",
    ],
    with_values: &[
        "--add-dir",
        "--allowedTools",
        "--allowed-tools",
        "--betas",
        "--disallowedTools",
        "--disallowed-tools",
        "--file",
        "--mcp-config",
        "--tools",
    ],
};

pub(crate) fn compose(agent: &Agent, circumstances: Circumstances<'_>) -> CommandLine {
    let mut arguments = circumstances.endpoint.map(injected_arguments).unwrap_or_default();
    if let Some(template) = from_template(agent, circumstances) {
        arguments.extend(agent.args.iter().cloned().chain(template));
        return CommandLine { arguments, ..CommandLine::default() };
    }
    let chosen = (!chooses(&agent.args)).then_some(circumstances.conversation);
    arguments.extend(chosen.map(|conversation| match conversation {
        Conversation::New(id) => format!("--session-id={id}"),
        Conversation::Resumed(id) => format!("--resume={id}"),
    }));
    let prompt = circumstances.restart.and_then(|restart| restart.prompt);
    let has_prompt = GRAMMAR.first_word(&agent.args).is_some();
    match prompt {
        Some(prompt) if !has_prompt => {
            arguments.extend(agent.args.iter().cloned());
            arguments.extend(["--".to_owned(), prompt.to_owned()]);
        }
        // A conversation that is resumed has heard the entry's own prompt; of two the first one counts.
        Some(prompt) if !matches!(chosen, Some(Conversation::New(_))) => {
            arguments.push(prompt.to_owned());
            arguments.extend(agent.args.iter().cloned());
        }
        _ => arguments.extend(agent.args.iter().cloned()),
    }
    let session_id = chosen.map(|conversation| conversation.id().to_owned());
    CommandLine { arguments, session_id, ..CommandLine::default() }
}

/// Whether these arguments choose the conversation themselves.
pub(crate) fn chooses(own: &[String]) -> bool {
    has_option(own, &CONVERSATION)
}

/// The server's entry. Without `alwaysLoad` the tools hide behind a search; the variable is expanded by
/// claude itself.
pub(crate) fn server(endpoint: Endpoint<'_>) -> Value {
    let mut entry = crate::server(endpoint.url, "Bearer ${MCP_RESTART_TOKEN}");
    if let Some(fields) = entry.as_object_mut() {
        fields.insert("alwaysLoad".to_owned(), json!(true));
    }
    entry
}

/// The flags take any number of values, so they come first and with `=`: behind them a prompt would be
/// taken for one more file.
fn injected_arguments(endpoint: Endpoint<'_>) -> Vec<String> {
    vec![
        format!("--mcp-config={}", endpoint.mcp_config_file),
        format!("--allowedTools=mcp__{SERVER_NAME}__*"),
    ]
}
