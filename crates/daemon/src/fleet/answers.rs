//! From the outcome of a request to its answer.

use super::logs;
use mcp_restart_config::Agent;
use mcp_restart_protocol::agent::{AgentView, LastExit};
use mcp_restart_protocol::answer::{AgentAnswer, ErrorCode, Failure, Previous, RestartAnswer};
use mcp_restart_protocol::shim::START_MARKER;
use mcp_restart_supervisor::{Outcome, Ticket};
use std::path::Path;

/// How many lines of the log an early exit is told with.
const TAIL_LINES: usize = 10;

/// The answer to a start or stop.
pub(super) fn agent_answer(
    ticket: Ticket,
    outcome: Outcome,
    agent: AgentView,
    entry: Option<&Agent>,
) -> Result<AgentAnswer, Failure> {
    match outcome {
        Outcome::Started | Outcome::Stopped | Outcome::Restarted { .. } => {
            Ok(AgentAnswer { agent, delivery: None })
        }
        Outcome::Accepted { awaits_delivery, .. } => {
            Ok(AgentAnswer { agent, delivery: awaits_delivery.then_some(ticket.0) })
        }
        other => Err(failure(other, &agent, entry)),
    }
}

/// The answer to a restart.
pub(super) fn restart_answer(
    ticket: Ticket,
    outcome: Outcome,
    agent: AgentView,
    entry: &Agent,
    config_diff: Vec<String>,
) -> Result<RestartAnswer, Failure> {
    let rolled_back = matches!(outcome, Outcome::Restarted { rolled_back: true, .. });
    let (generation, previous, delivery) = match outcome {
        Outcome::Restarted { previous, .. } => (agent.generation, previous, None),
        Outcome::Started | Outcome::Stopped => (agent.generation, None, None),
        Outcome::Accepted { generation, previous_pid, awaits_delivery } => {
            let previous = previous_pid.map(|pid| Previous { pid, exit: None });
            (generation, previous, awaits_delivery.then_some(ticket.0))
        }
        other => return Err(failure(other, &agent, Some(entry))),
    };
    Ok(RestartAnswer {
        accepted: true,
        generation,
        agent,
        previous,
        config_diff,
        rolled_back,
        warnings: Vec::new(),
        replayed: false,
        replayed_at: None,
        delivery,
    })
}

fn failure(outcome: Outcome, agent: &AgentView, entry: Option<&Agent>) -> Failure {
    let name = &agent.name;
    match outcome {
        Outcome::AlreadyRunning => {
            Failure::new(ErrorCode::AlreadyRunning, format!("{name} is already running"))
                .hint("restart it to have it started anew")
        }
        Outcome::NotRunning => Failure::new(ErrorCode::NotRunning, format!("{name} is not running")),
        Outcome::SpawnFailed(why) => {
            let failure = Failure::new(ErrorCode::SpawnFailed, format!("{name} cannot be started: {why}"));
            match agent.pid {
                Some(pid) => failure.hint(format!("its process {pid} was not touched")),
                None => failure,
            }
        }
        Outcome::ExitedEarly(exit) => exited_early(&exit, agent, entry),
        Outcome::StopIncomplete(left) => {
            Failure::new(ErrorCode::StopIncomplete, format!("{name} could not be stopped completely: {left}"))
                .hint("nothing is started beside it; stop it again when that process has gone, or goes on")
        }
        Outcome::StopUnreported => {
            Failure::new(ErrorCode::StopIncomplete, format!("nobody says whether {name} has been stopped"))
        }
        Outcome::Superseded => {
            Failure::new(ErrorCode::Superseded, format!("a later request for {name} took precedence"))
        }
        Outcome::ShuttingDown => shutting_down(),
        Outcome::Started | Outcome::Stopped | Outcome::Restarted { .. } | Outcome::Accepted { .. } => {
            Failure::new(ErrorCode::Internal, format!("{name}: a success was taken for a failure"))
        }
    }
}

/// The refusal of everything that would begin after shutdown did.
pub(super) fn shutting_down() -> Failure {
    Failure::new(ErrorCode::ShuttingDown, "the daemon is shutting down")
}

fn exited_early(exit: &LastExit, agent: &AgentView, entry: Option<&Agent>) -> Failure {
    let how = match (exit.code, &exit.signal) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => format!("was killed by {signal}"),
        (None, None) => "vanished".to_owned(),
    };
    let within = entry.map_or(0, |entry| entry.settle.as_millis());
    let mut message = format!("{} {how} within {within} ms of its start", agent.name);
    let tail =
        logs::newest(Path::new(&agent.log_file), TAIL_LINES).map(|tail| tail.lines).unwrap_or_default();
    // What an earlier process wrote would be read as this one's.
    let own = tail.iter().rposition(|line| line.starts_with(START_MARKER)).map_or(0, |marker| marker + 1);
    let tail = tail.get(own..).unwrap_or_default();
    if !tail.is_empty() {
        message.push_str("; the last lines of its log:\n");
        message.push_str(&tail.join("\n"));
    }
    Failure::new(ErrorCode::ExitedEarly, message).hint(format!("its log is {}", agent.log_file))
}
