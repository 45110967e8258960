//! One function per command.

mod config;
mod daemon;
mod doctor;
mod edit;
mod events;
mod follow;
mod guard;
mod lifecycle;
mod logs;
mod paths;
mod servers;
mod show;
#[cfg(test)]
mod tests;
mod troubles;
mod upgrade;

pub(crate) use daemon::{bring_up, serving};
pub(crate) use follow::{Following, Piece};

use crate::arguments::{Command, Hook, ServersCommand};
use crate::context::Context;
use crate::problem::{Exit, Problem};
use crate::{attach, daemon_process, demo};

/// Carries a command out.
pub(crate) async fn run(context: &Context, command: Command) -> Result<Exit, Problem> {
    match command {
        Command::Init { force } => edit::init(context, force)?,
        Command::Up => daemon::up(context).await?,
        Command::Upgrade { no_wait, timeout } => {
            upgrade::upgrade(context, upgrade::Options { no_wait, timeout }).await?;
        }
        Command::Down => daemon::down(context).await?,
        Command::Status => show::status(context).await?,
        Command::List { all } => show::list(context, all).await?,
        Command::Start { which, force } => return lifecycle::start(context, which, force).await,
        Command::Stop(which) => return lifecycle::stop(context, which).await,
        Command::Restart { which, note, resume, force } => {
            return lifecycle::restart(context, which, lifecycle::RestartOptions { note, resume, force })
                .await;
        }
        Command::Logs { name, follow, lines, since_restart, raw } => {
            let options = logs::Options { follow, lines, since_restart, raw };
            logs::logs(context, &name, options).await?;
        }
        Command::Attach(arguments) => return attach::attach(context, arguments).await,
        Command::Run(arguments) => return attach::run(context, arguments).await,
        Command::Add { name, command } => edit::add(context, &name, &command)?,
        Command::Remove { name } => edit::remove(context, &name).await?,
        Command::Set { name, fields } => edit::set(context, &name, &fields)?,
        Command::Config(command) => config::run(context, command)?,
        Command::Doctor => return doctor::doctor(context).await,
        Command::Events { follow, agent, lines } => {
            events::events(context, events::Options { follow, agent, lines }).await?;
        }
        Command::Guard { hook: Some(Hook::Claude), .. } => {
            return guard::guard(context, guard::Source::ClaudeHook).await;
        }
        Command::Guard { hook: None, command } => {
            return guard::guard(context, guard::Source::Words(command)).await;
        }
        Command::Clear => guard::clear(context).await?,
        Command::Paths { markdown } => paths::paths(context, markdown)?,
        Command::Servers(ServersCommand::List { stale, orphaned }) => {
            servers::list(context, servers::Filter { stale, orphaned }).await?;
        }
        Command::Servers(ServersCommand::Restart(which)) => return servers::restart(context, which).await,
        Command::Demo => return demo::demo(context).await,
        Command::Handoff { name } => show::handoff(context, name).await?,
        Command::McpConfig { name } => show::mcp_config(context, name).await?,
        Command::DemoAgent { edition } => return demo::agent(edition).await,
        Command::DaemonSession { command } => {
            return Err(daemon_process::become_daemon(&command));
        }
    }
    Ok(Exit::Done)
}
