//! Codex CLI; checked against 0.171.0.
//!
//! It makes the id of a conversation itself and tells it with every tool call. Options may stand before `resume`,
//! and the prompt of `resume` takes the place of one that stands there too.

use crate::words::{Grammar, end_of_options};
use crate::{Circumstances, CommandLine, Conversation, Endpoint, from_template};
use mcp_restart_config::Agent;
use serde_json::Value;

/// Not the usual name: it refuses to start when the user has a stdio server of the same one.
const SERVER: &str = "mcp-restart";

/// An entry that uses one of these says itself what is to be done.
const SUBCOMMANDS: [&str; 31] = [
    "a",
    "agents",
    "app-server",
    "apply",
    "archive",
    "cloud",
    "completion",
    "debug",
    "delete",
    "doctor",
    "e",
    "exec",
    "exec-server",
    "features",
    "fork",
    "help",
    "login",
    "logout",
    "mcp",
    "mcp-server",
    "migrate-nfs-db",
    "migrate-rollouts",
    "plugin",
    "queue",
    "remote-control",
    "resume",
    "review",
    "sandbox",
    "unarchive",
    "update",
    "cloud-tasks",
];

const GRAMMAR: Grammar = Grammar {
    with_value: &[
        "-a",
        "--add-dir",
        "--ask-for-approval",
        "-c",
        "-C",
        "--cd",
        "--config",
        "--disable",
        "--enable",
        "--local-provider",
        "-m",
        "--model",
        "-p",
        "--profile",
        "--remote",
        "--remote-auth-token-env",
        "-s",
        "--sandbox",
    ],
    with_values: &["-i", "--image"],
};

pub(crate) fn compose(agent: &Agent, circumstances: Circumstances<'_>) -> CommandLine {
    let mut arguments = circumstances.endpoint.map(injected_arguments).unwrap_or_default();
    let own = &agent.args;
    if let Some(template) = from_template(agent, circumstances) {
        arguments.extend(own.iter().cloned().chain(template));
        return CommandLine { arguments, ..CommandLine::default() };
    }
    let prompt = circumstances.restart.and_then(|restart| restart.prompt);
    let word = GRAMMAR.first_word(own);
    let session_id = match circumstances.conversation {
        Conversation::Resumed(id) if !chooses(own) => {
            let resume = ["resume".to_owned(), id.to_owned()];
            let ended = end_of_options(own).is_some();
            // Behind `--` it would be a word, and behind `--image` one more file; its own prompt has to be behind it.
            if word.is_none() || ended {
                arguments.extend(resume.into_iter().chain(own.iter().cloned()));
            } else {
                arguments.extend(own.iter().cloned().chain(resume));
            }
            arguments.extend(prompt.filter(|_| !ended).into_iter().flat_map(last));
            Some(id.to_owned())
        }
        _ => {
            arguments.extend(own.iter().cloned());
            arguments.extend(prompt.filter(|_| word.is_none()).into_iter().flat_map(last));
            None
        }
    };
    CommandLine { arguments, session_id, ..CommandLine::default() }
}

/// Whether these arguments choose the conversation themselves.
pub(crate) fn chooses(own: &[String]) -> bool {
    let word = GRAMMAR.first_word(own).and_then(|at| own.get(at));
    word.is_some_and(|word| SUBCOMMANDS.contains(&word.as_str()))
}

fn last(prompt: &str) -> [String; 2] {
    ["--".to_owned(), prompt.to_owned()]
}

/// One value in TOML, whose basic strings are written as JSON's are.
fn injected_arguments(endpoint: Endpoint<'_>) -> Vec<String> {
    let url = Value::from(endpoint.url);
    vec![
        "-c".to_owned(),
        format!(
            "mcp_servers.{SERVER}={{url={url},bearer_token_env_var=\"MCP_RESTART_TOKEN\",\
             default_tools_approval_mode=\"approve\"}}"
        ),
    ]
}
