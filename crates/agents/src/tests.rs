use super::*;
use mcp_restart_config::{Environment, from_text};
use std::fmt::Write as _;
use std::path::Path;

const ID: &str = "0190c0de-1234-7abc-8def-0123456789ab";
const ENDPOINT: Endpoint<'static> =
    Endpoint { url: "http://127.0.0.1:4310/mcp", token: "mra_secret", mcp_config_file: "/state/a.mcp.json" };
const PROMPT: &str = "You were restarted.";

fn agent(entry: &str) -> Agent {
    let text = format!("{{\"agents\":[{entry}]}}");
    let environment = Environment { home: Some("/home/ada".into()), ..Environment::default() };
    let mut config = from_text(&text, Path::new("/project/mcp-restart.config.json"), &environment).unwrap();
    config.agents.remove(0)
}

fn start() -> Circumstances<'static> {
    Circumstances {
        endpoint: Some(ENDPOINT),
        conversation: Conversation::New(ID),
        restart: None,
        system_settings: false,
    }
}

fn restart(conversation: Conversation<'static>) -> Circumstances<'static> {
    Circumstances { conversation, restart: Some(Restart { prompt: Some(PROMPT) }), ..start() }
}

/// The arguments of a start, of a restart that resumes and of one that does not, a line each.
fn arguments(command: &str, own: &str) -> String {
    lines(&agent(&format!(r#"{{"name":"a","command":"{command}","args":{own}}}"#)))
}

fn lines(agent: &Agent) -> String {
    let mut text = String::new();
    for (what, circumstances) in [
        ("start ", start()),
        ("same  ", restart(Conversation::Resumed(ID))),
        ("fresh ", restart(Conversation::New(ID))),
    ] {
        let line = command_line(agent, circumstances);
        assert!(!line.arguments.join(" ").contains("mra_secret"), "{line:?}");
        let known = if line.session_id.is_some() { "known" } else { "unknown" };
        let _ = writeln!(text, "{what} {:?} {known}", line.arguments);
        line.variables.iter().for_each(|(name, value)| {
            let _ = writeln!(text, "       {name}={value}");
        });
    }
    text.replace(ID, "ID").replace(PROMPT, "PROMPT")
}

/// The same for several of a user's own arguments.
fn table(command: &str, rows: &[&str]) -> String {
    rows.iter().fold(String::new(), |mut text, own| {
        let _ = write!(text, "{own}\n{}\n", arguments(command, own));
        text
    })
}

#[test]
fn the_command_lines_of_claude_are_these() {
    insta::assert_snapshot!(table(
        "claude",
        &[
            "[]",
            r#"["--model","opus"]"#,
            r#"["--model","opus","do it"]"#,
            r#"["--verbose","--","do it"]"#,
            r#"["--continue"]"#,
            r#"["--resume=7","go on"]"#,
        ]
    ));
}

#[test]
fn the_command_lines_of_codex_are_these() {
    insta::assert_snapshot!(table(
        "codex",
        &[
            "[]",
            r#"["--model","o","-i","a.png","b.png"]"#,
            r#"["--model","o","do it"]"#,
            r#"["--search","--","do it"]"#,
            r#"["exec","do it"]"#,
            r#"["-m","o","resume","--last"]"#,
        ]
    ));
}

#[test]
fn the_command_lines_of_gemini_are_these() {
    insta::assert_snapshot!(table(
        "gemini",
        &[
            "[]",
            r#"["-m","pro","do it"]"#,
            r#"["-m","pro","-i","do it"]"#,
            r#"["--prompt-interactive=do it"]"#,
            r#"["--of-tomorrow","do it"]"#,
            r#"["--resume","latest"]"#,
            r#"["mcp","list"]"#,
        ]
    ));
}

#[test]
fn the_command_lines_of_qwen_are_these() {
    insta::assert_snapshot!(table("qwen", &["[]", r#"["-m","coder","-i","do it"]"#, r#"["--continue"]"#]));
}

#[test]
fn the_command_lines_of_copilot_are_these() {
    insta::assert_snapshot!(table(
        "copilot",
        &["[]", r#"["--model","o","-i","do it"]"#, r#"["--continue"]"#, r#"["login"]"#]
    ));
}

#[test]
fn the_command_lines_of_opencode_are_these() {
    insta::assert_snapshot!(table(
        "opencode",
        &["[]", r#"["-m","a/b","--prompt","do it"]"#, r#"["--continue"]"#, r#"["run","do it"]"#]
    ));
}

#[test]
fn a_gemini_is_wired_in_by_the_projects_settings_where_the_entry_allows_it() {
    let entry =
        r#"{"name":"a","command":"gemini","injectMcp":"project","env":{"GEMINI_CLI_NO_RELAUNCH":"0"}}"#;
    let line = command_line(&agent(entry), start());
    assert_eq!(line.settings, Some(".gemini/settings.json"));
    assert_eq!(line.variables, [("GEMINI_CLI_TRUST_WORKSPACE".to_owned(), "true".to_owned())]);
    assert_eq!(command_line(&agent(r#"{"name":"a","command":"gemini"}"#), start()).settings, None);
}

#[test]
fn roots_gemini_is_wired_in_by_the_systems_settings_if_there_are_none() {
    let root = Circumstances { system_settings: true, ..start() };
    let line = command_line(&agent(r#"{"name":"a","command":"gemini"}"#), root);
    let (file, text) = line.companion.unwrap();
    assert_eq!(file, "/state/a.gemini.json");
    assert!(line.variables.contains(&("GEMINI_CLI_SYSTEM_SETTINGS_PATH".to_owned(), file)));
    assert!(line.variables.contains(&("GEMINI_CLI_TRUST_WORKSPACE".to_owned(), "true".to_owned())));
    let settings: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(settings["mcpServers"]["restart"]["httpUrl"], "$MCP_RESTART_URL");
    for entry in [
        r#"{"name":"a","command":"gemini","injectMcp":"project"}"#,
        r#"{"name":"a","command":"gemini","env":{"GEMINI_CLI_SYSTEM_SETTINGS_PATH":"/mine"}}"#,
    ] {
        assert_eq!(command_line(&agent(entry), root).companion, None, "{entry}");
    }
}

#[test]
fn an_opencode_keeps_the_configuration_of_its_entry() {
    let own = r#"{\"mcp\":{\"mine\":{}},\"plugin\":[\"p\"],\"theme\":\"x\"}"#;
    let entry = format!(r#"{{"name":"a","command":"opencode","env":{{"OPENCODE_CONFIG_CONTENT":"{own}"}}}}"#);
    let line = command_line(&agent(&entry), start());
    let (_, content) = line.variables.iter().find(|(name, _)| name == "OPENCODE_CONFIG_CONTENT").unwrap();
    let config: Value = serde_json::from_str(content).unwrap();
    assert_eq!(config["theme"], "x");
    assert!(config["mcp"]["mine"].is_object() && config["mcp"]["restart"].is_object());
    assert_eq!(config["plugin"], json!(["p", "file:///state/a.opencode.js"]));
    assert_eq!(line.companion.unwrap().0, "/state/a.opencode.js");
}

#[test]
fn the_token_of_a_claude_stands_in_no_file_and_in_no_argument() {
    let line = command_line(&agent(r#"{"name":"a","command":"claude"}"#), start());
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
    let line = command_line(&agent(r#"{"name":"a","command":"my-agent","args":["--serve"]}"#), start());
    assert_eq!(line.arguments, ["--serve"]);
    let file: Value = serde_json::from_str(&line.mcp_config.unwrap()).unwrap();
    assert_eq!(file["mcpServers"]["restart"]["headers"]["Authorization"], "Bearer mra_secret");
}

#[test]
fn nothing_is_injected_without_an_endpoint() {
    let claude = agent(r#"{"name":"a","command":"claude","args":["-c"]}"#);
    let line = command_line(&claude, Circumstances { endpoint: None, ..start() });
    assert_eq!(line, CommandLine { arguments: vec!["-c".into()], ..CommandLine::default() });
}

#[test]
fn restart_arguments_take_the_place_of_what_the_kind_would_do_and_fall_out_when_they_have_no_value() {
    for command in ["claude", "codex", "x"] {
        let entry = format!(
            r#"{{"name":"a","command":"{command}","injectMcp":false,
            "restartArgs":["--resume={{sessionId}}","--","{{prompt}}"]}}"#
        );
        let agent = agent(&entry);
        let line =
            |circumstances| command_line(&agent, Circumstances { endpoint: None, ..circumstances }).arguments;
        assert_eq!(line(restart(Conversation::New(ID))), ["--", PROMPT]);
        let resumed = line(restart(Conversation::Resumed(ID)));
        assert_eq!(resumed, [format!("--resume={ID}"), "--".into(), PROMPT.into()]);
        assert!(!line(start()).contains(&"--".to_owned()), "a start is no restart");
    }
}
