//! The agent of the demo: what a real agent would do, without a model.

use super::mcp::Mcp;
use super::story::{NOTE, Topic};
use crate::problem::{Exit, Problem};
use mcp_restart_config::{Environment, edit};
use serde_json::{Value, json};
use std::env;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// An agent that nobody stops does not outlive the demo by much.
const LIFE: Duration = Duration::from_secs(30);

/// Does what its generation has to do, and then waits to be stopped.
pub(crate) async fn agent(edition: u32) -> Result<Exit, Problem> {
    let generation = variable("MCP_RESTART_GENERATION")?;
    let own = variable("MCP_RESTART_AGENT")?;
    let url = variable("MCP_RESTART_URL")?;
    let say = |topic: Topic, text: &str| {
        let mut output = io::stdout().lock();
        writeln!(output, "generation {generation} {}{text}", topic.word()).and_then(|()| output.flush())
    };
    say(Topic::Born, &format!(" with --edition {edition}"))?;
    let mut mcp = Mcp::connect(&url, variable("MCP_RESTART_TOKEN")?).await?;
    if generation == "1" {
        let listed = mcp.call("list_agents", json!({})).await?;
        let me = find(&listed, &own)?;
        say(Topic::Listed, &format!(": I am “{own}”, {}, pid {}", text(me, "state"), text(me, "pid")))?;
        let next = edition + 1;
        let config = variable("MCP_RESTART_CONFIG")?;
        let args = json!(["demo-agent", "--edition", next.to_string()]).to_string();
        edit::set(Path::new(&config), &Environment::from_process(), &own, &[("args".to_owned(), args)])
            .map_err(|error| Problem::caused(Exit::Failed, "cannot edit the config", &error))?;
        say(Topic::Edited, &format!(" its own entry in the config: --edition {edition} → {next}"))?;
        let accepted = mcp.call("restart_agent", json!({ "note": NOTE })).await?;
        say(
            Topic::Restarted,
            &format!(": generation {} is coming, and finds the note “{NOTE}”", text(&accepted, "generation")),
        )?;
    } else {
        let handoff = mcp.call("get_handoff", json!({})).await?;
        let note = handoff.pointer("/notes/0/text").and_then(Value::as_str).unwrap_or("no note");
        say(Topic::Handoff, &format!(": my predecessor says “{note}”"))?;
    }
    tokio::time::sleep(LIFE).await;
    Err(Problem::new(Exit::TimedOut, "nobody stopped the agent of the demo"))
}

fn find<'a>(listed: &'a Value, own: &str) -> Result<&'a Value, Problem> {
    let agents = listed.get("agents").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let me = agents.iter().find(|agent| agent.get("name").and_then(Value::as_str) == Some(own));
    me.ok_or_else(|| Problem::new(Exit::Failed, format!("list_agents does not show {own}: {listed}")))
}

fn text(value: &Value, field: &str) -> String {
    match value.get(field) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => "unknown".to_owned(),
    }
}

fn variable(name: &str) -> Result<String, Problem> {
    env::var(name).map_err(|_| {
        Problem::new(Exit::Failed, format!("{name} is not set")).hint("mcp-restartctl demo starts this agent")
    })
}
