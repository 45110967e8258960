//! Qwen Code; checked against 0.24.4.
//!
//! It expands no variable in the file that it is given, and takes the standard `url` for another transport.

use crate::by_option::Cli;
use crate::words::Grammar;
use crate::{Circumstances, CommandLine, Conversation, Endpoint};
use mcp_restart_config::Agent;
use serde_json::{Value, json};

pub(crate) const CLI: Cli = Cli {
    grammar: Grammar {
        with_value: &[
            "--append-system-prompt",
            "--approval-mode",
            "--auth-type",
            "--channel",
            "-i",
            "--input-file",
            "--input-format",
            "--json-fd",
            "--json-file",
            "--json-schema",
            "-m",
            "--max-session-turns",
            "--max-subagent-depth",
            "--max-tool-calls",
            "--max-wall-time",
            "--mcp-config",
            "--model",
            "-o",
            "--openai-api-key",
            "--openai-base-url",
            "--openai-logging-dir",
            "--output-format",
            "--output-style",
            "-p",
            "--prompt",
            "--prompt-interactive",
            "--proxy",
            "--sandbox-image",
            "--system-prompt",
        ],
        with_values: &[
            "--add-dir",
            "--allowed-mcp-server-names",
            "--allowed-tools",
            "--core-tools",
            "--disabled-slash-commands",
            "-e",
            "--exclude-tools",
            "--extensions",
            "--fallback-model",
            "--include-directories",
        ],
    },
    prompt_options: &["--prompt-interactive", "-i", "--prompt", "-p"],
    words_are_prompts: true,
    choosing_options: &[
        "--acp",
        "-c",
        "--continue",
        "--fork-session",
        "-l",
        "--list-extensions",
        "-r",
        "--resume",
        "--session-id",
    ],
    subcommands: &[
        "auth",
        "board",
        "channel",
        "extensions",
        "hooks",
        "mcp",
        "review",
        "sandbox",
        "serve",
        "sessions",
        "update",
    ],
    conversation: |conversation| {
        Some(match conversation {
            Conversation::New(id) => format!("--session-id={id}"),
            Conversation::Resumed(id) => format!("--resume={id}"),
        })
    },
};

pub(crate) fn compose(agent: &Agent, circumstances: Circumstances<'_>) -> CommandLine {
    let injected =
        circumstances.endpoint.map(|endpoint| format!("--mcp-config={}", endpoint.mcp_config_file));
    CLI.compose(agent, injected.into_iter().collect(), circumstances)
}

pub(crate) fn server(endpoint: Endpoint<'_>) -> Value {
    json!({
        "httpUrl": endpoint.url,
        "headers": { "Authorization": format!("Bearer {}", endpoint.token) },
        "trust": true,
    })
}
