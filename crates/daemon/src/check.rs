//! `--check`: whether a daemon of this version would take on config and state as they are.
//!
//! A daemon may serve them meanwhile; nothing is changed.

use crate::arguments::Arguments;
use crate::bridge;
use crate::children::Children;
use crate::fleet;
use crate::program::Program;
use crate::start_error::StartError;
use crate::state_dir::StateDir;
use mcp_restart_config::{Environment, lookup};
use mcp_restart_process::raise_descriptor_limit;
use mcp_restart_protocol::shim::ShimHello;
use mcp_restart_protocol::upgrade::acceptance;
use mcp_restart_shim::{FoundShim, find_shims};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

/// Says what would be taken on, or gives the reason why nothing would.
pub(crate) fn check(arguments: &Arguments) -> Result<ExitCode, StartError> {
    let environment = Environment::from_process().outside_agent();
    let config_file = lookup::config_file(arguments.config.as_deref(), &environment);
    let config = mcp_restart_config::load(&config_file, &environment)?;
    let state_dir = lookup::state_dir(arguments.state_dir.as_deref(), Some(&config), &environment)?;
    StateDir::check(&state_dir)?;
    fleet::check_stored(&state_dir).map_err(|(file, why)| StartError::State(file, why))?;
    if !arguments.no_bridge {
        check_bridge(&bridge::program::find(&Program::own()?).ok_or(StartError::NoBridge)?)?;
    }
    let mut text = acceptance(env!("CARGO_PKG_VERSION"), &config_file, &state_dir);
    text.push('\n');
    for (agent, protocol) in not_understood(&state_dir)? {
        let _ = writeln!(
            text,
            "warning: agent {agent} runs under shim protocol {protocol}, which this version does not know: it runs on, \
             and needs a restart"
        );
    }
    // The exit code says it all to whoever does not read.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

/// A daemon without its bridge would serve, and its agents would have no tools.
fn check_bridge(program: &Path) -> Result<(), StartError> {
    let descriptors = raise_descriptor_limit()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let children = Children::start(descriptors.inherited)?;
        bridge::probe::check(&children, program).await.map_err(StartError::UnfitBridge)
    })
}

/// The agents whose shims live and speak a protocol that this version does not know, with its number.
fn not_understood(state_dir: &Path) -> io::Result<Vec<(String, u32)>> {
    let living = find_shims(state_dir)?.into_iter().filter(FoundShim::may_live);
    let facts = living.filter_map(|shim| shim.facts?.ok());
    Ok(facts
        .filter(|facts| !ShimHello { protocol: facts.protocol }.is_understood())
        .map(|facts| (facts.name, facts.protocol))
        .collect())
}
