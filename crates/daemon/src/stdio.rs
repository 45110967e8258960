//! Requests about stdio MCP servers. They read the whole table of processes, and wait for servers to end and for
//! clients to start them again: each on a thread of its own, so that nobody else waits for that.

use crate::fleet::{Awaited, Fleet, Lease, StdioGrant};
use crate::governance::Journal;
use mcp_restart_protocol::answer::{Caller, ErrorCode, Failure};
use mcp_restart_protocol::journal::{Happening, Line};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::stdio::{
    RESPAWN_WAIT_MS_MAX, SELF_DELAY_MS_MAX, StdioRestartRequest, StdioRestarted, StdioServer,
};
use mcp_restart_stdio::{Asker, OwnEnd, Restarted, UnknownServer};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// An answer whose delivery was not reported by then counts as delivered.
const DELIVERY_LIMIT: Duration = Duration::from_secs(1);

/// The declared servers that run.
pub(crate) async fn list(fleet: &Fleet) -> Result<Vec<StdioServer>, Failure> {
    let scope = fleet.stdio_scope().await;
    on_a_thread(move || mcp_restart_stdio::list(&scope)).await
}

/// Ends servers and tells who came back; `pid` is the process that asks, where it is known.
pub(crate) async fn restart(
    fleet: &Fleet,
    journal: &Journal,
    caller: Caller,
    pid: Option<u32>,
    path: RestartPath,
    request: StdioRestartRequest,
) -> Result<StdioRestarted, Failure> {
    check_limits(&request)?;
    let StdioGrant { scope, reach, lease } = fleet.grant_stdio_restart(caller.clone()).await?;
    let asker = Asker { pid, reach };
    let restarted = on_a_thread(move || mcp_restart_stdio::restart(path, &scope, &asker, &request)).await?;
    let Restarted { mut report, own } = restarted.map_err(|error| unknown(&error))?;
    tracing::info!(
        ?caller,
        %path,
        status = ?report.status,
        killed = ?report.killed,
        failed = ?report.failed,
        respawned = report.respawned.len(),
        not_respawned = report.not_respawned.len(),
        self_exit = report.self_exit_scheduled,
        "stdio servers restarted"
    );
    for pid in &report.killed {
        journal.line(ended(path, *pid));
    }
    if let Some(own) = own
        && let Some(awaited) = fleet.await_delivery().await
    {
        report.delivery = Some(awaited.number);
        tokio::spawn(end_after_answer(own, awaited, lease, journal.clone(), path));
    }
    Ok(report)
}

/// Ends the server through which a request came, once that has its answer.
async fn end_after_answer(own: OwnEnd, awaited: Awaited, lease: Lease, journal: Journal, path: RestartPath) {
    let _ = timeout(DELIVERY_LIMIT, awaited.delivered).await;
    sleep(own.delay).await;
    let pids = own.pids();
    match on_a_thread(move || own.end()).await {
        Ok(failed) if failed.is_empty() => pids.into_iter().for_each(|pid| journal.line(ended(path, pid))),
        Ok(failed) => tracing::warn!(?failed, "the server that asked for its own restart could not be ended"),
        Err(error) => tracing::error!(%error, "the server that asked for its own restart was not ended"),
    }
    drop(lease);
}

fn ended(path: RestartPath, pid: u32) -> Line {
    Line { path_id: Some(path.id().to_owned()), old_pid: Some(pid), ..Line::now(Happening::ServerEnded) }
}

/// Does what takes long for a thread that others wait for.
pub(crate) async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let done = spawn_blocking(work).await;
    done.map_err(|error| Failure::new(ErrorCode::Internal, format!("the work was not finished: {error}")))
}

fn check_limits(request: &StdioRestartRequest) -> Result<(), Failure> {
    for (field, given, most) in [
        ("respawnWaitMs", request.respawn_wait_ms, RESPAWN_WAIT_MS_MAX),
        ("selfDelayMs", request.self_delay_ms, SELF_DELAY_MS_MAX),
    ] {
        if given > most {
            return Err(Failure::new(ErrorCode::InvalidArgument, format!("{field}: at most {most}")));
        }
    }
    Ok(())
}

fn unknown(error: &UnknownServer) -> Failure {
    let hint = if error.declared.is_empty() {
        "it declares none: only what stands there is ever touched".to_owned()
    } else {
        format!("the names there are: {}", error.declared.join(", "))
    };
    Failure::new(ErrorCode::InvalidArgument, error.to_string()).hint(hint)
}
