//! GitHub Copilot CLI; checked against 1.0.102.
//!
//! One option begins a conversation with an id and resumes it. Without a value after `=`, `--allow-tool` would take words
//! that follow.

use crate::by_option::Cli;
use crate::words::Grammar;
use crate::{Circumstances, CommandLine, SERVER_NAME};
use mcp_restart_config::Agent;

pub(crate) const CLI: Cli = Cli {
    grammar: Grammar {
        with_value: &[
            "--add-dir",
            "--add-github-mcp-tool",
            "--add-github-mcp-toolset",
            "--additional-mcp-config",
            "--agent",
            "--attachment",
            "--auto-tier",
            "-C",
            "--context",
            "--disable-mcp-server",
            "--extension-sdk-path",
            "-i",
            "--interactive",
            "--log-dir",
            "--log-level",
            "--max-autopilot-continues",
            "--mcp-github-auth",
            "--mode",
            "--model",
            "-n",
            "--name",
            "--output-format",
            "-p",
            "--plugin-dir",
            "--prompt",
            "--reasoning-effort",
            "--stream",
        ],
        with_values: &[
            "--allow-tool",
            "--allow-url",
            "--available-tools",
            "--deny-tool",
            "--deny-url",
            "--excluded-tools",
            "--secret-env-vars",
            "--share",
        ],
    },
    prompt_options: &["--interactive", "-i", "--prompt", "-p"],
    words_are_prompts: false,
    choosing_options: &["--acp", "--connect", "--continue", "-r", "--resume", "--session-id"],
    subcommands: &[
        "app",
        "login",
        "help",
        "init",
        "config",
        "update",
        "version",
        "workflow",
        "sessions",
        "memories",
        "plugin",
        "mcp",
        "skill",
        "instruction",
        "lsp",
        "sandbox",
        "completion",
    ],
    conversation: |conversation| Some(format!("--session-id={}", conversation.id())),
};

pub(crate) fn compose(agent: &Agent, circumstances: Circumstances<'_>) -> CommandLine {
    let injected = circumstances.endpoint.map(|endpoint| {
        [
            format!("--additional-mcp-config=@{}", endpoint.mcp_config_file),
            format!("--allow-tool={SERVER_NAME}"),
        ]
    });
    CLI.compose(agent, injected.into_iter().flatten().collect(), circumstances)
}
