//! Any other program: it finds the endpoint in its environment, and its conversation is its own affair.

use crate::{Circumstances, CommandLine, from_template};
use mcp_restart_config::Agent;

pub(crate) fn compose(agent: &Agent, circumstances: Circumstances<'_>) -> CommandLine {
    let mut arguments = agent.args.clone();
    arguments.extend(from_template(agent, circumstances).unwrap_or_default());
    CommandLine { arguments, ..CommandLine::default() }
}
