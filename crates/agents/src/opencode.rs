//! The command line of opencode; checked against 1.18.33.
//!
//! It makes the id of a conversation itself, and tells it to plugins alone; a conversation that is resumed takes no prompt
//! by option. So it is given a small plugin, which tells the one and gives the other.

use crate::by_option::Cli;
use crate::words::{Grammar, option_value};
use crate::{Circumstances, CommandLine, Conversation, Endpoint, SERVER_NAME, beside};
use mcp_restart_config::Agent;
use serde_json::{Map, Value, json};

/// The variable that has JSON in it that is merged into its config.
const CONFIG: &str = "OPENCODE_CONFIG_CONTENT";

/// Where the plugin writes the conversation down, the prompt that it gives, the conversation that is given it, and the model,
/// which else would be that of the prompt before.
const SESSION_FILE: &str = "MCP_RESTART_SESSION_FILE";
const PROMPT: &str = "MCP_RESTART_PROMPT";
const PROMPTED: &str = "MCP_RESTART_PROMPTED_SESSION";
const MODEL: &str = "MCP_RESTART_PROMPTED_MODEL";

/// Conversations of subagents have a parent.
const PLUGIN: &str = r#"// Written by mcp-restart: by it a restart resumes this agent's conversation, and says in it that it was restarted.
import { renameSync, writeFileSync } from "node:fs"

export const McpRestart = async ({ client }) => {
  const { MCP_RESTART_SESSION_FILE: file, MCP_RESTART_PROMPT: text, MCP_RESTART_PROMPTED_SESSION: id } = process.env
  const [providerID, ...rest] = (process.env.MCP_RESTART_PROMPTED_MODEL ?? "").split("/")
  const generation = Number(process.env.MCP_RESTART_GENERATION)
  const children = new Set()
  let known
  if (text && id) {
    const model = rest.length ? { model: { providerID, modelID: rest.join("/") } } : {}
    const body = { ...model, parts: [{ type: "text", text }] }
    // Nothing here may wait for it: it is answered when all plugins are there.
    client.session.promptAsync({ path: { id }, body }).catch(() => {})
  }
  return {
    event: async ({ event }) => {
      const info = event.properties?.info
      if (event.type === "session.created" && info?.parentID) children.add(info.id)
    },
    "chat.message": async ({ sessionID }) => {
      if (!file || sessionID === known || children.has(sessionID)) return
      known = sessionID
      writeFileSync(file + ".new", JSON.stringify({ sessionId: sessionID, generation }), { mode: 0o600 })
      renameSync(file + ".new", file)
    },
  }
}
"#;

pub(crate) const CLI: Cli = Cli {
    grammar: Grammar {
        with_value: &[
            "--agent",
            "--cors",
            "--hostname",
            "--log-level",
            "-m",
            "--mdns-domain",
            "--model",
            "--port",
            "--prompt",
            "--replay-limit",
        ],
        with_values: &[],
    },
    prompt_options: &["--prompt"],
    words_are_prompts: false,
    choosing_options: &["-c", "--continue", "--fork", "-s", "--session"],
    subcommands: &[
        "acp",
        "agent",
        "attach",
        "auth",
        "completion",
        "db",
        "debug",
        "export",
        "github",
        "import",
        "mcp",
        "models",
        "plug",
        "plugin",
        "pr",
        "providers",
        "run",
        "serve",
        "session",
        "stats",
        "uninstall",
        "upgrade",
        "web",
    ],
    conversation: |conversation| match conversation {
        Conversation::New(_) => None,
        Conversation::Resumed(id) => Some(format!("--session={id}")),
    },
};

pub(crate) fn compose(agent: &Agent, circumstances: Circumstances<'_>) -> CommandLine {
    let resumed = match circumstances.conversation {
        Conversation::Resumed(id) if agent.restart_args.is_none() && !CLI.chooses(&agent.args) => Some(id),
        Conversation::Resumed(_) | Conversation::New(_) => None,
    };
    let by_option =
        Circumstances { restart: circumstances.restart.filter(|_| resumed.is_none()), ..circumstances };
    let line = CLI.compose(agent, Vec::new(), by_option);
    let Some(endpoint) = circumstances.endpoint else { return line };
    let plugin = beside(endpoint.mcp_config_file, "opencode.js");
    let own = agent.env.get(CONFIG).map_or("{}", String::as_str);
    // What is no JSON object opencode refuses itself, in its own words.
    let Some(config) = with_server(own, endpoint, &plugin) else { return line };
    let mut variables =
        vec![(CONFIG.to_owned(), config), (SESSION_FILE.to_owned(), session_file(endpoint.mcp_config_file))];
    let prompt = circumstances.restart.and_then(|restart| restart.prompt);
    if let (Some(id), Some(prompt)) = (resumed, prompt) {
        variables.extend([(PROMPT.to_owned(), prompt.to_owned()), (PROMPTED.to_owned(), id.to_owned())]);
        let model = option_value(&agent.args, &["--model", "-m"]);
        variables.extend(model.map(|model| (MODEL.to_owned(), model.to_owned())));
    }
    CommandLine { variables, companion: Some((plugin, PLUGIN.to_owned())), ..line }
}

/// Where the plugin writes down in which conversation its process is.
pub(crate) fn session_file(mcp_config_file: &str) -> String {
    beside(mcp_config_file, "session.json")
}

/// The entry's own configuration with the server and the plugin in it.
fn with_server(own: &str, endpoint: Endpoint<'_>, plugin: &str) -> Option<String> {
    let mut config: Map<String, Value> = serde_json::from_str(own).ok()?;
    let server = json!({
        "type": "remote",
        "url": endpoint.url,
        "oauth": false,
        "headers": { "Authorization": "Bearer {env:MCP_RESTART_TOKEN}" },
    });
    config.entry("mcp").or_insert_with(|| json!({})).as_object_mut()?.insert(SERVER_NAME.to_owned(), server);
    let plugins = config.entry("plugin").or_insert_with(|| json!([])).as_array_mut()?;
    plugins.push(Value::from(format!("file://{plugin}")));
    Some(Value::Object(config).to_string())
}
