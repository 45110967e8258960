//! `doctor`: what is wrong here, each finding with its remedy.

use super::troubles::{self, Trouble};
use crate::context::{Context, Place};
use crate::problem::{Exit, Problem, faults};
use crate::programs::{is_program, on_path};
use crate::render;
use crate::screen::Style;
use mcp_restart_config::{Agent, Config, Inject, Kind, warnings};
use mcp_restart_protocol::agent::AgentView;
use mcp_restart_protocol::answer::ServerStatus;
use serde::Serialize;
use std::env;
use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// An agent that has lived so long and not reached the MCP endpoint never will by itself, in milliseconds.
const CONNECT_LIMIT_MS: u64 = 30_000;
/// How long the endpoint may take to say how it is.
const ENDPOINT_LIMIT: Duration = Duration::from_secs(5);

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    /// What was looked at: `config`, `program`, `daemon`, `endpoint`, `state`, `agent`.
    about: &'static str,
    ok: bool,
    message: String,
    remedy: Option<String>,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    ok: bool,
    findings: &'a [Finding],
}

/// Looks at config, programs, state dir, daemon, endpoint and agents; fails if something is wrong.
pub(crate) async fn doctor(context: &Context) -> Result<Exit, Problem> {
    let mut findings = Vec::new();
    let config = examine_config(context, &mut findings);
    if let Some(config) = &config {
        let path = env::var_os("PATH");
        findings.extend(config.agents.iter().map(|agent| program(agent, path.as_deref())));
    }
    match context.place() {
        Ok(place) => examine_daemon(context, &place, config.as_ref(), &mut findings).await,
        Err(problem) => findings.extend(wrong_by(&problem, "daemon")),
    }
    let ok = findings.iter().all(|finding| finding.ok);
    let screen = &context.screen;
    if screen.json {
        screen.value(&Report { ok, findings: &findings })?;
    } else {
        for finding in &findings {
            screen.line(tell(finding, |style, text| screen.paint(style, text)))?;
        }
    }
    Ok(if ok { Exit::Done } else { Exit::Failed })
}

/// Whether a running agent should have reached the MCP endpoint by now and has not. A program of no known kind may
/// be no MCP client at all.
pub(super) fn never_connected(agent: &AgentView, config: Option<&Config>) -> bool {
    let entry = config.and_then(|config| config.agents.iter().find(|entry| entry.name == agent.name));
    agent.kind != Kind::Generic.as_str()
        && agent.connected_at.is_none()
        && agent.uptime_ms.is_some_and(|uptime| uptime >= CONNECT_LIMIT_MS)
        && entry.is_none_or(|entry| entry.inject_mcp != Inject::No)
}

fn examine_config(context: &Context, findings: &mut Vec<Finding>) -> Option<Config> {
    let file = context.config_file();
    if !file.exists() {
        let message = format!("there is no config file {}", file.display());
        findings.push(wrong("config", message, format!("{} init", context.program())));
        return None;
    }
    match mcp_restart_config::load_as_client(&file, &context.environment) {
        Ok(config) => {
            let agents = match config.agents.len() {
                1 => "1 agent".to_owned(),
                count => format!("{count} agents"),
            };
            findings.push(right("config", format!("{}: {agents}", file.display())));
            let remedy = format!("mend it in {}", file.display());
            findings.extend(warnings(&config).into_iter().map(|text| wrong("config", text, remedy.clone())));
            Some(config)
        }
        Err(error) => {
            findings.push(wrong("config", faults(&error), "mend these lines"));
            None
        }
    }
}

/// Whether the program of an agent is there. A bare name is looked for on the agent's own PATH, else on that of
/// this command: the daemon's may be another.
fn program(agent: &Agent, path: Option<&OsStr>) -> Finding {
    let own = agent.env.get("PATH").map(OsStr::new);
    let found = if agent.command.contains('/') {
        is_program(Path::new(&agent.command)).then(|| agent.command.clone())
    } else {
        on_path(&agent.command, own.or(path)).map(|file| file.display().to_string())
    };
    let Agent { name, command, .. } = agent;
    match found {
        Some(file) => right("program", format!("{name}: {file}")),
        None => wrong(
            "program",
            format!("{name}: {command} is no program that can be found"),
            format!("install it, or `mcp-restartctl set {name} command=/path/to/{command}`, or env.PATH=…"),
        ),
    }
}

async fn examine_daemon(
    context: &Context,
    place: &Place,
    config: Option<&Config>,
    findings: &mut Vec<Finding>,
) {
    findings.extend(state_dir(&place.state_dir));
    let status = match context.daemon_at(place).await {
        Ok(mut daemon) => daemon.status().await,
        Err(problem) => Err(problem),
    };
    let status = match status {
        Ok(status) => status,
        Err(problem) => return findings.extend(wrong_by(&problem, "daemon")),
    };
    if let Err(problem) = place.is_served(&status.config_file) {
        findings.extend(wrong_by(&problem, "daemon"));
    }
    findings.push(right("daemon", format!("mcp-restartd {}, pid {}", status.version, status.pid)));
    // An endpoint that the daemon knows not to be served is among its troubles.
    if status.endpoint_error.is_none() {
        let reached = match &status.url {
            Some(url) => health(url).await,
            None => Err("it does not listen".to_owned()),
        };
        findings.push(endpoint(&status, reached));
    }
    findings.extend(troubles::of(&status, place.program()).into_iter().map(Finding::from));
    let silent = status.agents.iter().filter(|agent| never_connected(agent, config));
    findings.extend(silent.map(|agent| silent_agent(agent, place.program())));
}

/// The state dir, if it is there: a daemon makes it, and refuses one that others could change.
fn state_dir(folder: &Path) -> Option<Finding> {
    let metadata = folder.metadata().ok()?;
    let shown = folder.display();
    let own = rustix::process::geteuid().as_raw();
    Some(if metadata.uid() != own {
        wrong("state", format!("{shown} belongs to another user"), "name another with --state-dir")
    } else if metadata.permissions().mode() & 0o022 != 0 {
        wrong("state", format!("others can write to {shown}"), format!("chmod 700 {shown}"))
    } else {
        right("state", shown.to_string())
    })
}

fn endpoint(status: &ServerStatus, reached: Result<(), String>) -> Finding {
    let url = status.url.as_deref().unwrap_or("the MCP endpoint");
    match reached {
        Ok(()) => right("endpoint", url),
        Err(why) => wrong(
            "endpoint",
            format!("{url}: {why}"),
            format!("see mcp-restart.log in {}; the daemon starts it again by itself", status.state_dir),
        ),
    }
}

fn silent_agent(agent: &AgentView, program: &str) -> Finding {
    let lived = render::span(agent.uptime_ms.unwrap_or_default());
    let name = &agent.name;
    let message = format!("{name} runs for {lived} and never reached the MCP endpoint: it has no tools");
    let look = if agent.tty { "attach" } else { "logs" };
    wrong("agent", message, format!("{program} {look} {name} shows what it waits for"))
}

/// Asks the endpoint how it is.
async fn health(url: &str) -> Result<(), String> {
    let address = url.trim_start_matches("http://").split('/').next().unwrap_or_default().to_owned();
    let ask = async {
        let mut stream = TcpStream::connect(&address).await?;
        let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.take(4096).read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    match timeout(ENDPOINT_LIMIT, ask).await {
        Ok(Ok(answer)) if answer.starts_with("HTTP/1.1 200") && answer.contains("\"daemon\":true") => Ok(()),
        Ok(Ok(_)) => Err("it does not reach the daemon".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} seconds", ENDPOINT_LIMIT.as_secs())),
    }
}

impl From<Trouble> for Finding {
    fn from(Trouble { about, message, remedy }: Trouble) -> Self {
        wrong(about, message, remedy)
    }
}

fn right(about: &'static str, message: impl Into<String>) -> Finding {
    Finding { about, ok: true, message: message.into(), remedy: None }
}

fn wrong(about: &'static str, message: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { about, ok: false, message: message.into(), remedy: Some(remedy.into()) }
}

fn wrong_by(problem: &Problem, about: &'static str) -> Option<Finding> {
    let Problem::Told { message, hint, .. } = problem else { return None };
    Some(Finding { about, ok: false, message: message.clone(), remedy: hint.clone() })
}

fn tell(finding: &Finding, paint: impl Fn(Style, &str) -> String) -> String {
    let Finding { about, ok, message, remedy } = finding;
    let (style, word) = if *ok { (Style::Green, "ok   ") } else { (Style::Red, "wrong") };
    let mut text = format!("{} {about}: {message}", paint(style, word));
    if let Some(remedy) = remedy {
        text = format!("{text}\n      remedy: {remedy}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, view};
    use mcp_restart_protocol::agent::AgentState;

    #[test]
    fn without_a_config_and_a_daemon_each_has_its_remedy() {
        let world = World::new();
        let (exit, output, errors) = world.run(&["doctor"]);
        assert_eq!((exit, errors.as_str()), (Exit::Failed, ""));
        assert!(output.contains("wrong config: there is no config file"), "{output}");
        assert!(output.contains("remedy: mcp-restartctl init"), "{output}");
        assert!(output.contains("wrong daemon: no daemon runs"), "{output}");
        assert!(output.contains("remedy: start it: mcp-restartctl up"), "{output}");
    }

    #[test]
    fn a_program_is_looked_for_where_the_agent_would_find_it() {
        let world = World::new();
        let text = r#"{ "agents": [
            { "name": "a", "command": "sh" },
            { "name": "b", "command": "sh", "env": { "PATH": "/nowhere" } },
            { "name": "c", "command": "/bin/sh" },
            { "name": "d", "command": "/etc/passwd" }
        ] }"#;
        let file = world.write("c.json", text);
        let config = mcp_restart_config::load_as_client(&file, &world.environment).unwrap();
        let found = |agent| program(agent, Some(OsStr::new("/nowhere:/bin"))).ok;
        assert_eq!(config.agents.iter().map(found).collect::<Vec<_>>(), [true, false, true, false]);
    }

    #[test]
    fn an_agent_that_should_have_connected_is_one_of_a_known_kind_that_was_given_the_endpoint_a_while_ago() {
        let world = World::new();
        let text = r#"{ "agents": [{ "name": "off", "command": "claude", "injectMcp": false }] }"#;
        let file = world.write("c.json", text);
        let config = mcp_restart_config::load_as_client(&file, &world.environment).unwrap();
        let claude = |name| AgentView { kind: "claude".into(), ..view(name, AgentState::Running, 1) };
        let silent = |agent: AgentView| never_connected(&agent, Some(&config));
        assert!(silent(claude("a")));
        assert!(!silent(AgentView { uptime_ms: Some(CONNECT_LIMIT_MS - 1), ..claude("a") }));
        assert!(!silent(AgentView {
            connected_at: Some(mcp_restart_protocol::timestamp::Timestamp(1)),
            ..claude("a")
        }));
        assert!(!silent(claude("off")));
        assert!(!silent(view("generic", AgentState::Running, 1)));
    }

    #[test]
    fn an_agent_without_tools_is_told_with_the_way_to_see_why() {
        let claude = AgentView { tty: true, ..view("claude", AgentState::Running, 1) };
        insta::assert_snapshot!(tell(&silent_agent(&claude, "mcp-restartctl"), |_, text| text.to_owned()), @r"
        wrong agent: claude runs for 1m 1s and never reached the MCP endpoint: it has no tools
              remedy: mcp-restartctl attach claude shows what it waits for
        ");
    }
}
