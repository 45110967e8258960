//! What mcp-restart knows of each agent command line: flags, injection, resume.
//!
//! Pure functions from an entry of the config to the arguments, variables and MCP config file of a launch.
//! Each agent CLI that needs more than the environment has a file of its own, which names the version
//! that it was checked against.

mod claude;
mod prompt;

use mcp_restart_config::{Agent, Kind};
use serde_json::{Value, json};

pub use prompt::{restart_prompt, rollback_prompt};

/// The name under which the restart server is wired into an agent.
pub const SERVER_NAME: &str = "restart";

/// Variables by which an agent CLI notices that it runs inside another one, and then refuses to start or
/// behaves differently. No agent inherits them, so that the supervisor may be started from inside an agent.
pub const NESTING_MARKERS: [&str; 8] = [
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_CODE_SSE_PORT",
    "CODEX_SANDBOX",
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

/// What a restart adds to a launch.
#[derive(Debug, Clone, Copy)]
pub struct Restart<'a> {
    /// The prompt by which the agent learns that it was restarted.
    pub prompt: &'a str,
    /// The conversation to resume, where there is one.
    pub session_id: Option<&'a str>,
}

/// The arguments and the MCP config file of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// The arguments, without the program's name.
    pub arguments: Vec<String>,
    /// The content of the MCP config file, if the agent is given the endpoint.
    pub mcp_config: Option<String>,
}

/// The command line of an entry. Without an endpoint nothing is injected, without a restart it is a
/// first start.
pub fn command_line(
    agent: &Agent,
    endpoint: Option<Endpoint<'_>>,
    restart: Option<Restart<'_>>,
) -> CommandLine {
    let mut arguments = match (agent.kind, endpoint) {
        (Kind::Claude, Some(endpoint)) => claude::injected_arguments(endpoint),
        _ => Vec::new(),
    };
    arguments.extend(agent.args.iter().cloned());
    if let (Some(template), Some(restart)) = (&agent.restart_args, restart) {
        arguments.extend(template.iter().filter_map(|argument| fill(argument, restart)));
    }
    CommandLine { arguments, mcp_config: endpoint.map(|endpoint| mcp_config(agent.kind, endpoint)) }
}

/// The MCP config file that an agent of this kind is given, as JSON text.
pub fn mcp_config(kind: Kind, endpoint: Endpoint<'_>) -> String {
    let server = match kind {
        Kind::Claude => claude::server(endpoint),
        _ => server(endpoint.url, &format!("Bearer {}", endpoint.token)),
    };
    let mut text = format!("{:#}", json!({ "mcpServers": { SERVER_NAME: server } }));
    text.push('\n');
    text
}

fn server(url: &str, authorization: &str) -> Value {
    json!({ "type": "http", "url": url, "headers": { "Authorization": authorization } })
}

/// An argument of `restartArgs` with its placeholders replaced; none if one of them has no value.
fn fill(argument: &str, restart: Restart<'_>) -> Option<String> {
    let with_session = if argument.contains("{sessionId}") {
        argument.replace("{sessionId}", restart.session_id?)
    } else {
        argument.to_owned()
    };
    Some(with_session.replace("{prompt}", restart.prompt))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcp_restart_config::{Environment, from_text};
    use std::path::Path;

    const ENDPOINT: Endpoint<'static> = Endpoint {
        url: "http://127.0.0.1:4310/mcp",
        token: "mra_secret",
        mcp_config_file: "/state/mcp-config/a.mcp.json",
    };

    fn agent(entry: &str) -> Agent {
        let text = format!("{{\"agents\":[{entry}]}}");
        let environment = Environment { home: Some("/home/ada".into()), ..Environment::default() };
        let mut config =
            from_text(&text, Path::new("/project/mcp-restart.config.json"), &environment).unwrap();
        config.agents.remove(0)
    }

    #[test]
    fn the_users_arguments_keep_their_place_behind_the_injected_ones() {
        let claude = agent(r#"{"name":"a","command":"claude","args":["--model","opus","do it"]}"#);
        let line = command_line(&claude, Some(ENDPOINT), None);
        insta::assert_debug_snapshot!(line.arguments, @r#"
        [
            "--mcp-config=/state/mcp-config/a.mcp.json",
            "--allowedTools=mcp__restart__*",
            "--model",
            "opus",
            "do it",
        ]
        "#);
    }

    #[test]
    fn the_token_of_a_claude_stands_in_no_file_and_in_no_argument() {
        let claude = agent(r#"{"name":"a","command":"claude"}"#);
        let line = command_line(&claude, Some(ENDPOINT), None);
        assert!(!format!("{line:?}").contains("mra_secret"));
        insta::assert_snapshot!(line.mcp_config.unwrap(), @r#"
        {
          "mcpServers": {
            "restart": {
              "alwaysLoad": true,
              "headers": {
                "Authorization": "Bearer ${MCP_RESTART_TOKEN}"
              },
              "type": "http",
              "url": "http://127.0.0.1:4310/mcp"
            }
          }
        }
        "#);
    }

    #[test]
    fn a_generic_agent_gets_a_standard_file_and_its_own_arguments_alone() {
        let other = agent(r#"{"name":"a","command":"my-agent","args":["--serve"]}"#);
        let line = command_line(&other, Some(ENDPOINT), None);
        assert_eq!(line.arguments, ["--serve"]);
        let file: Value = serde_json::from_str(&line.mcp_config.unwrap()).unwrap();
        assert_eq!(file["mcpServers"]["restart"]["headers"]["Authorization"], "Bearer mra_secret");
    }

    #[test]
    fn nothing_is_injected_without_an_endpoint() {
        let claude = agent(r#"{"name":"a","command":"claude","args":["-c"]}"#);
        assert_eq!(
            command_line(&claude, None, None),
            CommandLine { arguments: vec!["-c".into()], mcp_config: None }
        );
    }

    #[test]
    fn restart_arguments_come_on_a_restart_only_and_fall_out_when_they_have_no_value() {
        let other =
            agent(r#"{"name":"a","command":"x","restartArgs":["--resume={sessionId}","--","{prompt}"]}"#);
        assert_eq!(command_line(&other, None, None).arguments, [""; 0]);
        let restart = Restart { prompt: "You were restarted.", session_id: None };
        assert_eq!(command_line(&other, None, Some(restart)).arguments, ["--", "You were restarted."]);
        let restart = Restart { session_id: Some("7"), ..restart };
        assert_eq!(
            command_line(&other, None, Some(restart)).arguments,
            ["--resume=7", "--", "You were restarted."]
        );
    }
}
