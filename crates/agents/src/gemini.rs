//! Gemini CLI; checked against 0.61.0.
//!
//! It has no option for MCP servers. Settings are read from the user's own file, from the project's, and from the system's, which
//! has to be root's: so root's gemini is wired in by a file of ours in the place of the system's, and everybody else's by the
//! project's file, but only where the entry allows it (`"injectMcp": "project"`).

use crate::by_option::Cli;
use crate::words::Grammar;
use crate::{Circumstances, CommandLine, Conversation, SERVER_NAME, beside};
use mcp_restart_config::{Agent, Inject};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The system's settings, on Linux and on macOS.
const SYSTEM_SETTINGS: [&str; 2] =
    ["/etc/gemini-cli/settings.json", "/Library/Application Support/GeminiCli/settings.json"];

/// Names another file in their place.
const SYSTEM_SETTINGS_PATH: &str = "GEMINI_CLI_SYSTEM_SETTINGS_PATH";

pub(crate) const CLI: Cli = Cli {
    grammar: Grammar {
        with_value: &[
            "--approval-mode",
            "-i",
            "-m",
            "--model",
            "-o",
            "--output-format",
            "-p",
            "--prompt",
            "--prompt-interactive",
        ],
        with_values: &[
            "--admin-policy",
            "--allowed-mcp-server-names",
            "--allowed-tools",
            "-e",
            "--extensions",
            "--include-directories",
            "--policy",
        ],
    },
    prompt_options: &["--prompt-interactive", "-i", "--prompt", "-p"],
    words_are_prompts: true,
    choosing_options: &[
        "--acp",
        "--delete-session",
        "--experimental-acp",
        "-l",
        "--list-extensions",
        "--list-sessions",
        "-r",
        "--resume",
        "--session-file",
        "--session-id",
    ],
    subcommands: &["mcp", "extensions", "extension", "skills", "skill", "hooks", "hook", "gemma"],
    conversation: |conversation| {
        Some(match conversation {
            Conversation::New(id) => format!("--session-id={id}"),
            Conversation::Resumed(id) => format!("--resume={id}"),
        })
    },
};

pub(crate) fn compose(agent: &Agent, circumstances: Circumstances<'_>) -> CommandLine {
    let line = CLI.compose(agent, Vec::new(), circumstances);
    // Its launcher starts another process of itself, and swallows SIGTERM.
    let mut variables = vec![("GEMINI_CLI_NO_RELAUNCH".to_owned(), "true".to_owned())];
    let (mut settings, mut companion) = (None, None);
    if let Some(endpoint) = circumstances.endpoint {
        if agent.inject_mcp == Inject::Project {
            settings = Some(".gemini/settings.json");
        } else if circumstances.system_settings && !agent.env.contains_key(SYSTEM_SETTINGS_PATH) {
            let file = beside(endpoint.mcp_config_file, "gemini.json");
            variables.push((SYSTEM_SETTINGS_PATH.to_owned(), file.clone()));
            companion = Some((file, format!("{:#}\n", json!({ "mcpServers": { SERVER_NAME: server() } }))));
        }
    }
    if settings.is_some() || companion.is_some() {
        // In a folder that is not trusted no server is used.
        variables.push(("GEMINI_CLI_TRUST_WORKSPACE".to_owned(), "true".to_owned()));
    }
    variables.retain(|(name, _)| !agent.env.contains_key(name));
    CommandLine { variables, companion, settings, ..line }
}

/// Whether gemini would take a file in this folder for the system's settings, and nobody else has made any: the folder
/// and all above it have to be root's, and nobody else may write to them.
pub(crate) fn takes_system_settings(folder: &Path) -> bool {
    let is_roots = |folder: &Path| {
        folder.metadata().is_ok_and(|metadata| metadata.uid() == 0 && metadata.mode() & 0o022 == 0)
    };
    let is_free = !SYSTEM_SETTINGS.iter().any(|file| Path::new(file).exists());
    is_free && std::env::var_os(SYSTEM_SETTINGS_PATH).is_none() && folder.ancestors().all(is_roots)
}

/// The server's entry in the project's settings; gemini puts the variables in, so that it says the same for every agent.
pub(crate) fn server() -> Value {
    json!({
        "httpUrl": "$MCP_RESTART_URL",
        "headers": { "Authorization": "Bearer $MCP_RESTART_TOKEN" },
        "trust": true,
    })
}

/// The settings with the server in them; none if there is nothing to change. A text that is no JSON object is an error.
pub(crate) fn with_server(settings: &str) -> Result<Option<String>, serde_json::Error> {
    let mut value: serde_json::Map<String, Value> =
        if settings.trim().is_empty() { serde_json::Map::new() } else { serde_json::from_str(settings)? };
    let servers = value.entry("mcpServers").or_insert_with(|| json!({}));
    if !servers.is_object() {
        *servers = json!({});
    }
    let wanted = server();
    if servers.get(SERVER_NAME) == Some(&wanted) {
        return Ok(None);
    }
    if let Some(servers) = servers.as_object_mut() {
        servers.insert(SERVER_NAME.to_owned(), wanted);
    }
    Ok(Some(format!("{:#}\n", Value::Object(value))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_folder_below_none_that_others_may_write_to_can_have_the_systems_settings() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("state");
        std::fs::create_dir(&below).unwrap();
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(!takes_system_settings(&below), "everybody may write to the folder above it");
        assert!(!takes_system_settings(Path::new("/no/such/folder")));
    }

    #[test]
    fn the_projects_settings_keep_all_that_they_say_and_are_left_alone_once_the_server_is_in_them() {
        let text = r#"{"theme":"dark","mcpServers":{"mine":{"command":"x"}}}"#;
        let changed = with_server(text).unwrap().unwrap();
        let value: Value = serde_json::from_str(&changed).unwrap();
        assert_eq!(value["theme"], "dark");
        assert_eq!(value["mcpServers"]["mine"]["command"], "x");
        assert_eq!(value["mcpServers"][SERVER_NAME], server());
        assert_eq!(with_server(&changed).unwrap(), None);
        assert!(with_server("").unwrap().is_some());
        assert!(with_server("// mine\n{}").is_err(), "comments would be lost");
    }
}
