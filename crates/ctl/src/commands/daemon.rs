//! `up` and `down`: the daemon in the background.

use crate::context::{Context, Place, no_config_file};
use crate::daemon_process::{self, Outcome, Owner};
use crate::problem::{Exit, Problem};
use crate::render::{how_it_ended, span};
use crate::shims;
use crate::talk::{self, Summary};
use mcp_restart_paths::RestartPath;
use mcp_restart_protocol::agent::{AgentState, AgentView};
use mcp_restart_protocol::client::ClientError;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

/// Starts the daemon and waits until it serves.
pub(crate) async fn up(context: &Context) -> Result<(), Problem> {
    context.outside_agents_only("mcp-restartctl up")?;
    let place = context.place()?;
    let (started, summary) = match serving(context, &place, "mcp-restartctl up").await? {
        Some(summary) => (false, summary),
        None => bring_up(context, &place).await?,
    };
    let screen = &context.screen;
    if started {
        warn_of_failures(context, &place).await?;
    }
    if screen.json {
        return screen.value(&json!({ "started": started, "pid": summary.pid, "url": summary.url }));
    }
    let what = if started { "the daemon serves" } else { "the daemon is already running" };
    let url = summary.url.as_deref().unwrap_or("an endpoint that does not listen yet");
    screen.done(format_args!("{what}: pid {}, {url}", summary.pid))?;
    if summary.url.is_none() {
        let program = context.program();
        screen.warning(format_args!(
            "the MCP endpoint does not listen yet; {program} status shows when it does"
        ));
    }
    Ok(())
}

/// Agents that should have been started with the daemon and could not be.
async fn warn_of_failures(context: &Context, place: &Place) -> Result<(), Problem> {
    let status = context.daemon_at(place).await?.status().await?;
    let failed = |agent: &&AgentView| agent.autostart && agent.state == AgentState::Failed;
    for agent in status.agents.iter().filter(failed) {
        let how = agent.last_exit.as_ref().map_or_else(|| "failed".to_owned(), how_it_ended);
        context.screen.warning(format_args!("{} {how}", agent.name));
    }
    Ok(())
}

/// The daemon that serves there, if one does; refuses whatever may neither use nor start it.
pub(crate) async fn serving(
    context: &Context,
    place: &Place,
    command: &str,
) -> Result<Option<Summary>, Problem> {
    match talk::summary(&place.socket).await {
        Ok(summary) => {
            check_served(context, place, &summary)?;
            return Ok(Some(summary));
        }
        Err(ClientError::Unreachable(_) | ClientError::Closed) => {}
        Err(error) => return Err(talk::problem(&error, place)),
    }
    context.outside_agents_only(command)?;
    // With a config that cannot be used, it is for the daemon to know whether it may serve all the same.
    Ok(None)
}

/// Starts the daemon; tells whether it was this one that serves then.
pub(crate) async fn bring_up(context: &Context, place: &Place) -> Result<(bool, Summary), Problem> {
    let config = place.config.clone().unwrap_or_else(|| context.config_file());
    if !config.exists() {
        return Err(no_config_file(&config));
    }
    let mut starting = daemon_process::start(RestartPath::CtlUp, place, &config, Owner::User)?;
    context.screen.detail(format_args!("started mcp-restartd, pid {}", starting.pid()));
    match starting.outcome().await? {
        Outcome::Serves(summary) => Ok((true, summary)),
        // Of two that were started at once one finds the other serving.
        Outcome::Ended(status) => match talk::summary(&place.socket).await {
            Ok(summary) => Ok((false, summary)),
            Err(_) => Err(starting.failure(status)),
        },
    }
}

/// Stops everything and waits until the daemon is gone.
pub(crate) async fn down(context: &Context) -> Result<(), Problem> {
    context.outside_agents_only("mcp-restartctl down")?;
    let place = context.place()?;
    let begun = Instant::now();
    let ended = end_daemon(context, &place).await?;
    let left = shims::living(&place.state_dir);
    let Some(pid) = ended else {
        if !left.is_empty() {
            let (folder, program) = (place.state_dir.display(), place.program());
            let message = format!("no daemon runs in {folder}, but agents do: {}", shims::listed(&left));
            return Err(Problem::new(Exit::Failed, message)
                .hint(format!("only a daemon can stop them: {program} up && {program} down")));
        }
        if context.screen.json {
            return context.screen.value(&json!({ "stopped": false }));
        }
        return context.screen.done(format_args!("no daemon runs in {}", place.state_dir.display()));
    };
    if !left.is_empty() {
        let message =
            format!("the daemon (pid {pid}) is gone, but not all of {} could be ended", shims::listed(&left));
        return Err(Problem::new(Exit::Failed, message)
            .hint("what is left stays with its shim, which the next daemon takes on; its log says why"));
    }
    if context.screen.json {
        return context.screen.value(&json!({ "stopped": true, "pid": pid }));
    }
    let took = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    context.screen.done(format_args!("the daemon (pid {pid}) and its agents are gone, after {}", span(took)))
}

async fn end_daemon(context: &Context, place: &Place) -> Result<Option<u32>, Problem> {
    let summary = match talk::summary(&place.socket).await {
        Ok(summary) => summary,
        Err(error) if is_gone(&error) => {
            context.warn_of_fault(place);
            return Ok(None);
        }
        Err(error) => return Err(talk::problem(&error, place)),
    };
    check_served(context, place, &summary)?;
    let request = json!({ "path": RestartPath::CtlDown.id() });
    let (connection, answer) = match talk::shut_down(&place.socket, &request).await {
        Ok(stopping) => stopping,
        // Somebody else has ended it meanwhile.
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(talk::problem(&error, place)),
    };
    if answer.get("accepted") != Some(&Value::Bool(true)) {
        let why = answer.pointer("/error/message").or(answer.get("error")).and_then(Value::as_str);
        let why = why.unwrap_or("the daemon does not want to end");
        return Err(Problem::new(Exit::NotAllowed, why));
    }
    gone(context, connection).await?;
    Ok(Some(summary.pid))
}

/// Nobody listens, or whoever listened has gone without an answer.
fn is_gone(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable(cause) => cause.kind() != std::io::ErrorKind::PermissionDenied,
        error => matches!(error, ClientError::Closed),
    }
}

fn check_served(context: &Context, place: &Place, summary: &Summary) -> Result<(), Problem> {
    place.is_served(&summary.config_file).inspect_err(|_| context.warn_of_fault(place))
}

/// The end of the connection is the end of the daemon.
async fn gone(context: &Context, mut connection: UnixStream) -> Result<(), Problem> {
    let begun = Instant::now();
    let mut rest = [0; 64];
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.tick().await;
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        tokio::select! {
            read = connection.read(&mut rest) => if matches!(read, Ok(0) | Err(_)) { return Ok(()) },
            Ok(()) = &mut interrupted => {
                let problem = Problem::new(Exit::Interrupted, "no longer waiting for the end of the daemon");
                return Err(problem.hint("it goes on with stopping every agent and itself"));
            }
            _ = ticks.tick(), if context.screen.shows_progress() => {
                context.screen.progress(format_args!("stopping every agent … {} s", begun.elapsed().as_secs()));
            }
        }
    }
}
