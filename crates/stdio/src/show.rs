//! Servers as users see them.

use crate::discovery::{Client, Known, Server};
use crate::files::{self, DiskOf};
use mcp_restart_config::show::redacted_args;
use mcp_restart_protocol::plain;
use mcp_restart_protocol::stdio::{StdioClient, StdioServer};

/// The longest command line that is shown, in characters.
const COMMAND_MAX: usize = 500;

/// A server.
pub(crate) fn server(server: &Server<'_>) -> Option<StdioServer> {
    let first = server.members.first()?;
    let client = match server.client {
        Client::Is(known) => Some(client(known, server.agent)),
        Client::Gone | Client::Unseen => None,
    };
    Some(StdioServer {
        name: server.declared.name.clone(),
        pid: first.row.pid,
        ppid: first.row.parent,
        command: command(first),
        started_at: first.row.started_at.into(),
        client,
        orphaned: server.is_orphaned(),
        stale: is_stale(server),
    })
}

/// A client, and the agent that it is part of.
pub(crate) fn client(client: &Known, agent: Option<&str>) -> StdioClient {
    let program = client.reading.title().unwrap_or(&client.row.command);
    StdioClient { program: plain::text(program), pid: client.row.pid, agent: agent.map(str::to_owned) }
}

/// Whether anything that the server runs is newer on disk.
pub(crate) fn is_stale(server: &Server<'_>) -> bool {
    server.members.iter().any(|member| files::is_stale(member, &DiskOf(member.row.pid)))
}

fn command(known: &Known) -> String {
    let arguments = known.row.own.as_ref().map(|own| redacted_args(&own.arguments)).unwrap_or_default();
    plain::text(&arguments.join(" ")).replace('\n', " ").chars().take(COMMAND_MAX).collect()
}
