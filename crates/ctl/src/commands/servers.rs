//! `servers list` and `servers restart`.

use crate::arguments::RestartServers;
use crate::context::Context;
use crate::problem::{Exit, Problem};
use crate::render::{self, Cell, table};
use crate::screen::Style;
use mcp_restart_paths::RestartPath;
use mcp_restart_protocol::stdio::{
    RESPAWN_WAIT_MS, SELF_DELAY_MS, StdioClient, StdioRestartRequest, StdioRestarted, StdioServer,
    StdioStatus,
};
use mcp_restart_protocol::timestamp::Timestamp;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Which servers to show: with both, those that are both.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Filter {
    /// Only those that run old code.
    pub(crate) stale: bool,
    /// Only those whose client is gone.
    pub(crate) orphaned: bool,
}

#[derive(Serialize)]
struct Servers<'a> {
    servers: &'a [StdioServer],
}

/// The servers that run.
pub(crate) async fn list(context: &Context, filter: Filter) -> Result<(), Problem> {
    let mut servers = context.daemon().await?.stdio_servers().await?;
    servers.retain(|server| (!filter.stale || server.stale) && (!filter.orphaned || server.orphaned));
    let screen = &context.screen;
    if screen.json {
        return screen.value(&Servers { servers: &servers });
    }
    if servers.is_empty() {
        let what = match (filter.stale, filter.orphaned) {
            (false, false) => "runs",
            (true, false) => "is stale",
            (false, true) => "is an orphan",
            (true, true) => "is stale and an orphan",
        };
        return screen.done(format_args!("none of the servers in the config's stdioServers {what}"));
    }
    screen.line(describe(screen.colour(), &servers, Timestamp::now()))
}

/// Ends servers, and tells who came back.
pub(crate) async fn restart(context: &Context, which: RestartServers) -> Result<Exit, Problem> {
    if which.names.is_empty() && !which.all && !which.stale && !which.orphaned {
        return Err(Problem::new(Exit::Usage, "restart which servers?")
            .hint(format!("{} servers restart NAME, or --all, --stale or --orphaned", context.program())));
    }
    let dry_run = which.dry_run;
    let mut daemon = context.lifecycle_daemon().await?;
    let servers = daemon.stdio_servers().await?;
    let restarted = waiting(context, daemon.restart_stdio_servers(request(which))).await?;
    let screen = &context.screen;
    if screen.json {
        screen.value(&restarted)?;
    } else {
        if !restarted.killed.is_empty() || !restarted.failed.is_empty() {
            screen.line(tell(screen.colour(), &restarted, &servers))?;
        }
        if dry_run { screen.line(&restarted.note)? } else { screen.done(&restarted.note)? }
    }
    Ok(match restarted.status {
        StdioStatus::Success | StdioStatus::DryRun => Exit::Done,
        StdioStatus::Partial | StdioStatus::Failed => Exit::Failed,
    })
}

fn request(which: RestartServers) -> StdioRestartRequest {
    let millis = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    StdioRestartRequest {
        path: RestartPath::CtlRestartServers.id().to_owned(),
        names: which.names,
        stale_only: which.stale,
        orphaned_only: which.orphaned,
        include_self: which.include_self,
        dry_run: which.dry_run,
        respawn_wait_ms: which.wait.map_or(RESPAWN_WAIT_MS, millis),
        self_delay_ms: SELF_DELAY_MS,
        connection: None,
    }
}

/// Waits for what comes, and shows that it waits.
async fn waiting<T>(
    context: &Context,
    comes: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    let begun = Instant::now();
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(comes, interrupted);
    loop {
        tokio::select! {
            biased;
            value = &mut comes => return value,
            Ok(()) = &mut interrupted => {
                return Err(Problem::new(Exit::Interrupted, "no longer waiting")
                    .hint(format!("the daemon goes on with it; {} servers list shows what runs", context.program())));
            }
            () = tokio::time::sleep(Duration::from_millis(500)), if context.screen.shows_progress() => {
                context.screen.progress(format_args!("restarting servers … {} s", begun.elapsed().as_secs()));
            }
        }
    }
}

fn describe(colour: bool, servers: &[StdioServer], now: Timestamp) -> String {
    let heading = ["NAME", "PID", "CLIENT", "UPTIME", "NOTE", "COMMAND"];
    let mut rows = vec![heading.map(|text| Cell::new(Style::Bold, text)).to_vec()];
    rows.extend(servers.iter().map(|server| {
        let StdioServer { name, pid, command, started_at, client, orphaned, stale, .. } = server;
        let remarks = [(*stale, "stale"), (*orphaned, "orphaned")];
        let remarks: Vec<_> = remarks.into_iter().filter_map(|(is, word)| is.then_some(word)).collect();
        vec![
            Cell::new(Style::Plain, name),
            Cell::new(Style::Plain, pid.to_string()),
            Cell::new(Style::Plain, client.as_ref().map_or_else(|| "-".to_owned(), whose)),
            Cell::new(Style::Plain, render::span(now.millis_since(*started_at))),
            if remarks.is_empty() {
                Cell::new(Style::Dim, "-")
            } else {
                Cell::new(Style::Yellow, remarks.join(", "))
            },
            Cell::new(Style::Dim, command),
        ]
    }));
    table(colour, &rows)
}

/// What became of each, by its name among the servers that ran before.
fn tell(colour: bool, restarted: &StdioRestarted, before: &[StdioServer]) -> String {
    let name = |pid| {
        let server = before.iter().find(|server| server.pid == pid);
        Cell::new(Style::Plain, server.map_or("-", |server| &server.name))
    };
    let heading = ["NAME", "ENDED", "NEW PID", "CLIENT"];
    let mut rows = vec![heading.map(|text| Cell::new(Style::Bold, text)).to_vec()];
    let dash = || Cell::new(Style::Dim, "-");
    for pid in &restarted.killed {
        let back = restarted.respawned.iter().find(|back| back.old_pid == *pid);
        let missing = restarted.not_respawned.iter().find(|missing| missing.pid == *pid);
        let client = back.map(|back| &back.client).or(missing.map(|missing| &missing.client));
        rows.push(vec![
            name(*pid),
            Cell::new(Style::Plain, pid.to_string()),
            match (back, missing) {
                (Some(back), _) => Cell::new(Style::Green, back.new_pid.to_string()),
                (None, Some(_)) => Cell::new(Style::Yellow, "not yet"),
                (None, None) => dash(),
            },
            client.map_or_else(dash, |client| Cell::new(Style::Plain, whose(client))),
        ]);
    }
    for failure in &restarted.failed {
        rows.push(vec![
            name(failure.pid),
            Cell::new(Style::Red, format!("not {}", failure.pid)),
            dash(),
            Cell::new(Style::Plain, &failure.error),
        ]);
    }
    table(colour, &rows)
}

fn whose(client: &StdioClient) -> String {
    let StdioClient { program, pid, agent } = client;
    match agent {
        Some(agent) => format!("{program} (pid {pid}, agent {agent})"),
        None => format!("{program} (pid {pid})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcp_restart_protocol::stdio::{NotRespawned, Respawned, StdioFailure};

    const NOW: Timestamp = Timestamp(1_796_040_000_000);

    fn client(agent: Option<&str>) -> StdioClient {
        StdioClient { program: "claude".into(), pid: 77, agent: agent.map(str::to_owned) }
    }

    fn server(pid: u32, client: Option<StdioClient>, stale: bool) -> StdioServer {
        StdioServer {
            name: "tuiml".into(),
            pid,
            ppid: 1,
            command: "python /v/bin/tuiml-mcp".into(),
            started_at: Timestamp(NOW.0 - 61_000),
            orphaned: client.is_none(),
            client,
            stale,
        }
    }

    #[test]
    fn the_table_of_servers_says_whose_they_are_and_what_is_wrong_with_them() {
        let servers = [
            server(5, Some(client(Some("reviewer"))), false),
            server(60, Some(client(None)), true),
            server(700, None, true),
        ];
        insta::assert_snapshot!(describe(false, &servers, NOW), @r"
        NAME   PID  CLIENT                           UPTIME  NOTE             COMMAND
        tuiml  5    claude (pid 77, agent reviewer)  1m 1s   -                python /v/bin/tuiml-mcp
        tuiml  60   claude (pid 77)                  1m 1s   stale            python /v/bin/tuiml-mcp
        tuiml  700  -                                1m 1s   stale, orphaned  python /v/bin/tuiml-mcp
        ");
    }

    #[test]
    fn the_table_of_a_restart_says_who_came_back() {
        let restarted = StdioRestarted {
            status: StdioStatus::Partial,
            killed_other: 3,
            killed: vec![5, 60, 700],
            failed: vec![StdioFailure { pid: 8, error: "traced by process 9".into() }],
            respawned: vec![Respawned { old_pid: 5, new_pid: 4242, client: client(Some("reviewer")) }],
            not_respawned: vec![NotRespawned { pid: 60, client: client(None) }],
            self_exit_scheduled: false,
            note: String::new(),
            delivery: None,
        };
        let before = [server(5, None, true), server(60, None, true), server(8, None, true)];
        insta::assert_snapshot!(tell(false, &restarted, &before), @r"
        NAME   ENDED  NEW PID  CLIENT
        tuiml  5      4242     claude (pid 77, agent reviewer)
        tuiml  60     not yet  claude (pid 77)
        -      700    -        -
        tuiml  not 8  -        traced by process 9
        ");
    }
}
