//! Requests that come again: the same request id, or one more restart of itself.

use super::store::{Replay, Store};
use mcp_restart_config::Agent;
use mcp_restart_protocol::answer::{Caller, ErrorCode, Failure, RestartAnswer};
use mcp_restart_protocol::request::RestartRequest;
use mcp_restart_protocol::timestamp::Timestamp;
use serde::{Deserialize, Serialize};

/// The longest request id, in bytes.
const REQUEST_ID_MAX: usize = 128;

/// By what a repeated request is recognised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReplayKey {
    caller: String,
    request_id: String,
    launch_hash: u64,
}

impl ReplayKey {
    /// The key of a request that has an id.
    pub(super) fn of(
        caller: &Caller,
        request: &RestartRequest,
        launch_hash: u64,
    ) -> Result<Option<Self>, Failure> {
        let Some(request_id) = &request.request_id else { return Ok(None) };
        if request_id.is_empty() || request_id.len() > REQUEST_ID_MAX {
            let message = format!("requestId must have 1 to {REQUEST_ID_MAX} bytes");
            return Err(Failure::new(ErrorCode::InvalidArgument, message));
        }
        let caller = match caller {
            Caller::Agent { name } => format!("agent {name}"),
            Caller::Operator => "operator".to_owned(),
            Caller::LocalUser { .. } => "local user".to_owned(),
            Caller::Supervisor => "supervisor".to_owned(),
            Caller::Unknown => "unknown".to_owned(),
        };
        Ok(Some(Self { caller, request_id: request_id.clone(), launch_hash }))
    }

    #[cfg(test)]
    pub(super) fn for_tests(request_id: &str) -> Self {
        Self { caller: "operator".to_owned(), request_id: request_id.to_owned(), launch_hash: 1 }
    }

    /// What the first such request was answered.
    pub(super) fn answer(&self, store: &Store, now: Timestamp) -> Option<RestartAnswer> {
        let found = store.replay(&self.caller, &self.request_id, self.launch_hash, now)?;
        Some(replayed(found.answer.clone(), found.at))
    }

    /// Keeps the answer for the next such request.
    pub(super) fn remember(self, store: &mut Store, answer: &RestartAnswer, at: Timestamp) {
        let Self { caller, request_id, launch_hash } = self;
        store.remember(Replay { caller, request_id, launch_hash, at, answer: answer.clone() });
    }
}

/// An answer as whoever asks again gets it.
pub(super) fn replayed(answer: RestartAnswer, at: Timestamp) -> RestartAnswer {
    RestartAnswer { replayed: true, replayed_at: Some(at), delivery: None, ..answer }
}

/// Whether an agent may restart itself once more; forgets the times that count no longer.
pub(super) fn check_self_restarts(store: &mut Store, agent: &Agent, now: Timestamp) -> Result<(), Failure> {
    let limit = agent.self_restart_limit;
    let within = u64::try_from(limit.within.as_millis()).unwrap_or(u64::MAX);
    let times = &mut store.agent_mut(&agent.name).self_restarts;
    times.retain(|time| now.millis_since(*time) < within);
    if times.len() < usize::try_from(limit.max).unwrap_or(usize::MAX) {
        return Ok(());
    }
    let (name, count, seconds) = (&agent.name, times.len(), limit.within.as_secs());
    let message = format!("{name} has restarted itself {count} times within {seconds} seconds");
    Err(Failure::new(ErrorCode::TooManyRestarts, message)
        .hint("go on without a restart, or let a person restart it"))
}
