//! `status`, `list`, `handoff` and `mcp-config`: what the daemon knows.

use super::doctor::never_connected;
use super::troubles;
use crate::context::Context;
use crate::problem::Problem;
use crate::render::{self, Cell, table};
use crate::screen::Style;
use crate::shims::listed;
use mcp_restart_protocol::agent::AgentView;
use mcp_restart_protocol::answer::{Caller, Handoff, ServerStatus};
use mcp_restart_protocol::plain;
use mcp_restart_protocol::timestamp::Timestamp;
use serde::Serialize;
use serde_json::Value;
use std::io;
use std::path::Path;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Agents<'a> {
    agents: &'a [AgentView],
    config_error: Option<&'a str>,
}

#[derive(Serialize)]
struct ShownMcpConfig {
    file: String,
    content: Value,
}

/// The daemon, its endpoint and its agents.
pub(crate) async fn status(context: &Context) -> Result<(), Problem> {
    let status = context.daemon().await?.status().await?;
    let screen = &context.screen;
    if screen.json {
        return screen.value(&status);
    }
    let silent = silent(context, &status);
    screen.line(describe(screen.colour(), &status, &silent, Timestamp::now()))?;
    troubles::warn(screen, troubles::of(&status, &context.program()));
    Ok(())
}

/// The agents.
pub(crate) async fn list(context: &Context, all: bool) -> Result<(), Problem> {
    let mut status = context.daemon().await?.status().await?;
    if all {
        status.agents.append(&mut status.unlisted);
    }
    let screen = &context.screen;
    if screen.json {
        return screen
            .value(&Agents { agents: &status.agents, config_error: status.config_error.as_deref() });
    }
    if status.agents.is_empty() {
        screen.done(format_args!("no agents; {} add NAME -- COMMAND adds one", context.program()))?;
    } else {
        let silent = silent(context, &status);
        screen.line(render::agents(screen.colour(), &status.agents, &silent, Timestamp::now()))?;
    }
    let needs = troubles::needs(&status.need_restart, &context.program());
    troubles::warn(screen, troubles::config(&status).into_iter().chain(needs));
    Ok(())
}

/// The agents that should have reached the endpoint by now, by what the config says of them.
fn silent<'a>(context: &Context, status: &'a ServerStatus) -> Vec<&'a str> {
    let config =
        mcp_restart_config::load_as_client(Path::new(&status.config_file), &context.environment).ok();
    let agents = status.agents.iter().chain(&status.unlisted);
    agents.filter(|agent| never_connected(agent, config.as_ref())).map(|agent| &*agent.name).collect()
}

/// The note for an agent.
pub(crate) async fn handoff(context: &Context, name: Option<String>) -> Result<(), Problem> {
    let handoff = context.daemon().await?.handoff(name).await?;
    let screen = &context.screen;
    if screen.json {
        return screen.value(&handoff);
    }
    screen.line(tell(&handoff, Timestamp::now()))
}

/// The MCP config of an agent.
pub(crate) async fn mcp_config(context: &Context, name: String) -> Result<(), Problem> {
    let config = context.daemon().await?.mcp_config(name).await?;
    let screen = &context.screen;
    if screen.json {
        let parsed = serde_json::from_str(&config.content).map_err(io::Error::from)?;
        return screen.value(&ShownMcpConfig { file: config.file, content: parsed });
    }
    screen.detail(format_args!("file {}", config.file));
    screen.line(config.content.trim_end())
}

fn describe(colour: bool, status: &ServerStatus, silent: &[&str], now: Timestamp) -> String {
    let fact = |name: &str, value: String| vec![Cell::new(Style::Bold, name), Cell::new(Style::Plain, value)];
    let mut facts = vec![
        fact(
            "daemon",
            format!(
                "mcp-restartd {}, pid {}, up {}",
                status.version,
                status.pid,
                render::span(status.uptime_ms)
            ),
        ),
        fact("endpoint", status.url.clone().unwrap_or_else(|| "does not listen".to_owned())),
        fact("config", status.config_file.clone()),
        fact("state", status.state_dir.clone()),
    ];
    if let Caller::Agent { name } = &status.caller {
        facts.push(fact("caller", format!("agent {name}")));
    }
    if !status.adopted.is_empty() {
        facts.push(fact("adopted", listed(&status.adopted)));
    }
    if !status.stale_shims.is_empty() {
        let names = listed(&status.stale_shims);
        facts.push(fact("stale shims", format!("{names}: renewed with the next restart")));
    }
    let well = status.recovered.iter().filter(|recovered| !recovered.attention);
    let well: Vec<_> = well.map(|recovered| recovered.text.clone()).collect();
    if !well.is_empty() {
        facts.push(fact("recovered", listed(&well)));
    }
    let agents: Vec<_> = status.agents.iter().chain(&status.unlisted).cloned().collect();
    let mut text = table(colour, &facts);
    if agents.is_empty() {
        text.push_str("\n\nno agents");
    } else {
        text.push_str("\n\n");
        text.push_str(&render::agents(colour, &agents, silent, now));
    }
    text
}

fn tell(handoff: &Handoff, now: Timestamp) -> String {
    let ago = render::span(now.millis_since(handoff.at));
    let mut lines =
        vec![format!("agent {}, generation {}, restarted {ago} ago", handoff.agent, handoff.generation)];
    if !handoff.config_diff.is_empty() {
        lines.push(format!("changed: {}", handoff.config_diff.join(", ")));
    }
    if handoff.rolled_back {
        lines.push("the new launch did not live: this is the last good one".to_owned());
    }
    for note in &handoff.notes {
        let words = note.text.as_deref().map_or_else(|| "(no note)".to_owned(), plain::text);
        lines.push(format!("\n{}:\n{words}", render::caller(&note.from)));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::view;
    use mcp_restart_protocol::agent::AgentState;
    use mcp_restart_protocol::answer::{Note, Recovered};

    fn recovered(text: &str, attention: bool) -> Recovered {
        Recovered { agent: Some("claude".into()), text: text.into(), attention }
    }

    const NOW: Timestamp = Timestamp(1_796_040_000_000);

    #[test]
    fn a_status_shows_daemon_endpoint_and_agents() {
        let status = ServerStatus {
            version: "0.1.0".into(),
            pid: 4141,
            url: Some("http://127.0.0.1:4310/mcp".into()),
            uptime_ms: 7_500_000,
            config_file: "/home/ada/mcp-restart.config.json".into(),
            config_error: None,
            endpoint_error: None,
            state_dir: "/home/ada/.local/state/mcp-restart".into(),
            state_error: None,
            stale: None,
            contaminated: None,
            pending_config: Vec::new(),
            adopted: vec!["claude".into()],
            recovered: vec![
                recovered("the restart of claude, which the daemon before had begun, is done", false),
                recovered("the shim of claude (process 7) does not answer", true),
            ],
            need_restart: Vec::new(),
            stale_shims: vec!["claude".into()],
            agents: vec![view("claude", AgentState::Running, 3)],
            unlisted: Vec::new(),
            caller: Caller::Agent { name: "claude".into() },
        };
        insta::assert_snapshot!(describe(false, &status, &[], NOW));
    }

    #[test]
    fn a_handoff_shows_every_note_and_who_wrote_it() {
        let handoff = Handoff {
            agent: "claude".into(),
            generation: 4,
            at: Timestamp(NOW.0 - 61_000),
            notes: vec![
                Note {
                    from: Caller::Agent { name: "claude".into() },
                    text: Some("go on with step 3".into()),
                },
                Note { from: Caller::LocalUser { pid: Some(7) }, text: None },
            ],
            config_diff: vec!["args".into(), "env.MODEL".into()],
            request_id: None,
            rolled_back: true,
            read_at: None,
        };
        insta::assert_snapshot!(tell(&handoff, NOW));
    }
}
