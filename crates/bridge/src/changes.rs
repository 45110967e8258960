//! The agents as MCP resources, and who listens for their changes.
//!
//! ```text
//!  daemon ── events ──► link ── Change ──► each stream ── resources/updated, of what it asked for ──► client
//! ```

use crate::link::Daemon;
use crate::tools::NAME_MAX;
use mcp_restart_protocol::agent::AgentView;
use rmcp::ErrorData;
use rmcp::model::{Resource, ResourceTemplate, SubscriptionFilter};
use rmcp::service::{SubscriptionContext, SubscriptionSendError};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

/// The name of an agent whose state has changed.
pub(crate) type Change = Arc<str>;

/// All agents; each has its own resource below it.
const AGENTS: &str = "mcp-restart://agents";
/// The most resources that one stream may ask for.
const URIS_MAX: usize = 256;
const MIME_TYPE: &str = "application/json";

/// Which agents a resource is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About<'a> {
    Everybody,
    One(&'a str),
}

impl<'a> About<'a> {
    /// What this URI is about, if it is one of ours.
    pub(crate) fn of(uri: &'a str) -> Option<Self> {
        match uri.strip_prefix(AGENTS)? {
            "" => Some(Self::Everybody),
            rest => rest
                .strip_prefix('/')
                .filter(|name| (1..=NAME_MAX).contains(&name.len()) && !name.contains('/'))
                .map(Self::One),
        }
    }

    /// The text of the resource; none if there is no such agent.
    pub(crate) fn text(self, agents: &[AgentView]) -> Option<Value> {
        match self {
            Self::Everybody => Some(json!({ "agents": agents })),
            Self::One(name) => agents.iter().find(|agent| agent.name == name).map(|agent| json!(agent)),
        }
    }

    fn concerns(self, change: &str) -> bool {
        match self {
            Self::Everybody => true,
            Self::One(name) => name == change,
        }
    }
}

/// The resource that is always there.
pub(crate) fn agents() -> Resource {
    Resource::new(AGENTS, "agents")
        .with_title("Agents")
        .with_description("Every supervised agent with its state, as list_agents gives it.")
        .with_mime_type(MIME_TYPE)
}

/// What the resource of one agent is called.
pub(crate) fn one_agent() -> ResourceTemplate {
    ResourceTemplate::new(format!("{AGENTS}/{{name}}"), "agent")
        .with_title("One agent")
        .with_description("One supervised agent with its state.")
        .with_mime_type(MIME_TYPE)
}

/// The part of what a stream asks for that it gets.
pub(crate) fn accepted(requested: &SubscriptionFilter) -> SubscriptionFilter {
    let uris = requested.resource_subscriptions.iter().flatten();
    let ours = uris.filter(|uri| About::of(uri).is_some()).take(URIS_MAX).cloned();
    SubscriptionFilter::builder().resource_subscriptions(ours).build()
}

/// Tells a stream of every change that it asked for until its client goes, or the bridge does.
pub(crate) async fn tell(
    daemon: &Daemon,
    leaving: &CancellationToken,
    stream: &SubscriptionContext,
) -> Result<(), ErrorData> {
    let mut changes = daemon.changes();
    loop {
        let change = tokio::select! {
            change = changes.recv() => change,
            () = stream.cancelled() => return Ok(()),
            () = leaving.cancelled() => return Ok(()),
        };
        let told = match change {
            Ok(change) => update(stream, |about| about.concerns(&change)).await,
            // Whatever was missed, everything may have changed.
            Err(RecvError::Lagged(_)) => update(stream, |_| true).await,
            Err(RecvError::Closed) => return Ok(()),
        };
        if told.is_err() {
            return Ok(());
        }
    }
}

async fn update(
    stream: &SubscriptionContext,
    concerned: impl Fn(About<'_>) -> bool,
) -> Result<(), SubscriptionSendError> {
    for uri in stream.accepted().resource_subscriptions.iter().flatten() {
        if About::of(uri).is_some_and(&concerned) {
            stream.sink().notify_resource_updated(uri).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_everybody_or_one_agent() {
        assert_eq!(About::of("mcp-restart://agents"), Some(About::Everybody));
        assert_eq!(About::of("mcp-restart://agents/claude"), Some(About::One("claude")));
        for foreign in
            ["", "mcp-restart://agents/", "mcp-restart://agents/a/b", "mcp-restart://agent", "file:///x"]
        {
            assert_eq!(About::of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_stream_gets_of_what_it_asks_for_what_is_ours() {
        let uris = ["mcp-restart://agents/a", "file:///x"];
        let requested =
            SubscriptionFilter::builder().tools_list_changed().resource_subscriptions(uris).build();
        let ours = SubscriptionFilter::builder().resource_subscription(uris[0]).build();
        assert_eq!(accepted(&requested), ours);
    }
}
