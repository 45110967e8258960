//! `attach` and `run`: this terminal connected to the terminal of an agent.
//!
//! ```text
//!              ┌──────── a new generation runs ◄────────┐
//!              ▼                                        │
//!  ask the daemon where ─► session with the shim ─► the agent is gone: what now?
//!                              │                        │
//!                     detach keys, a signal,       stopped, exited, failed,
//!                     the terminal is gone         or the daemon is gone too
//!                              └────────► give the terminal back ◄────────┘
//! ```

mod keys;
mod modes;
mod session;
mod terminal;

pub(crate) use keys::DetachKeys;

use crate::arguments::Attach;
use crate::commands::{bring_up, serving};
use crate::context::{Context, Place};
use crate::problem::{Exit, Problem};
use crate::render;
use crate::talk::{self, Daemon};
use mcp_restart_paths::RestartPath;
use mcp_restart_protocol::agent::{AgentState, AgentView};
use mcp_restart_protocol::answer::{ErrorCode, ServerBody, Terminal};
use mcp_restart_protocol::request::Request;
use session::{Ended, User};
use std::path::Path;
use std::time::Duration;

/// How long the failure of a start may take after its process is gone.
const SOON: Duration = Duration::from_secs(1);

/// Connects this terminal to the terminal of an agent.
pub(crate) async fn attach(context: &Context, arguments: Attach) -> Result<Exit, Problem> {
    let place = context.place()?;
    let parting = attach_now(context, &place, &arguments).await?;
    part(context, parting)
}

/// Starts the daemon and the agent if need be, and attaches.
pub(crate) async fn run(context: &Context, arguments: Attach) -> Result<Exit, Problem> {
    let name = &arguments.name;
    let place = context.place()?;
    let serving = serving(context, &place, "mcp-restartctl run").await?;
    terminal::require(name)?;
    if serving.is_none() {
        bring_up(context, &place).await?;
    }
    let mut daemon = context.daemon_at(&place).await?;
    require_terminal(context, &daemon.agent(name).await?)?;
    let mut starting = context.daemon_at(&place).await?;
    let path = RestartPath::CtlStart.id().to_owned();
    starting.send(Request::Start { path, name: name.clone(), force: false, wait: true }).await?;
    let answered = tokio::select! {
        answer = start_answer(&mut starting) => { answer?; true }
        running = until_running(&mut daemon, name) => { running?; false }
    };
    let parting = attach_now(context, &place, &arguments).await;
    if !answered && !matches!(parting, Ok(Parting::User(_) | Parting::Signal)) {
        // A start that failed says more than the end of the process that it led to.
        if let Ok(answer) = tokio::time::timeout(SOON, start_answer(&mut starting)).await {
            answer?;
        }
    }
    match parting {
        Ok(parting) => part(context, parting),
        Err(problem) => Err(ended_at_once(context, &place, name).await?.unwrap_or(problem)),
    }
}

/// Where there was nothing to attach to: what became of the process that was started.
async fn ended_at_once(context: &Context, place: &Place, name: &str) -> Result<Option<Problem>, Problem> {
    let agent = context.daemon_at(place).await?.agent(name).await?;
    Ok(match what_next(&agent, agent.generation) {
        Next::End { text, .. } => Some(
            Problem::new(Exit::Failed, text)
                .hint(format!("{} logs {name} shows what it said", context.program())),
        ),
        Next::Wait | Next::Attach => None,
    })
}

/// Why the terminal was given back.
enum Parting {
    /// The user left, the agent runs on.
    User(String),
    /// This program was told to end. It says nothing: nobody may be reading the terminal.
    Signal,
    /// The agent, or the way to it, is gone.
    Agent { text: String, exit: Exit },
}

/// What is to be done after the agent's process was gone.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Wait,
    Attach,
    End { text: String, exit: Exit },
}

fn part(context: &Context, parting: Parting) -> Result<Exit, Problem> {
    match parting {
        Parting::User(text) => context.screen.done(text).map(|()| Exit::Done),
        Parting::Signal => Ok(Exit::Failed),
        Parting::Agent { text, exit } => context.screen.done(text).map(|()| exit),
    }
}

async fn attach_now(context: &Context, place: &Place, arguments: &Attach) -> Result<Parting, Problem> {
    let mut daemon = context.daemon_at(place).await?;
    let terminal = terminal_of(context, &mut daemon, &arguments.name).await?;
    drop(daemon);
    stay(context, place, arguments, terminal).await
}

async fn stay(
    context: &Context,
    place: &Place,
    arguments: &Attach,
    mut place_of: Terminal,
) -> Result<Parting, Problem> {
    let name = &arguments.name;
    let mut user = User::enter(name, arguments.detach_keys.clone())?;
    loop {
        match user.session(Path::new(&place_of.socket)).await? {
            Ended::ByUser => {
                return Ok(Parting::User(format!("detached from {name}, which runs on")));
            }
            Ended::BySignal => return Ok(Parting::Signal),
            Ended::AgentGone => {}
        }
        place_of = match user.meanwhile(next_terminal(context, place, name, place_of.generation)).await? {
            Ok(Ok(terminal)) => terminal,
            Ok(Err(parting)) => return Ok(parting),
            Err(Ended::BySignal) => return Ok(Parting::Signal),
            Err(Ended::ByUser | Ended::AgentGone) => {
                return Ok(Parting::User(format!("detached from {name}")));
            }
        };
    }
}

/// Waits for the terminal of the next process, or for word that there will be none.
async fn next_terminal(
    context: &Context,
    place: &Place,
    name: &str,
    attached: u64,
) -> Result<Result<Terminal, Parting>, Problem> {
    let mut daemon = context.daemon_at(place).await?;
    daemon.send(Request::Subscribe).await?;
    loop {
        let agent = daemon.event().await?.agent;
        if agent.name != name {
            continue;
        }
        match what_next(&agent, attached) {
            Next::Wait => {}
            Next::Attach => break,
            Next::End { text, exit } => return Ok(Err(Parting::Agent { text, exit })),
        }
    }
    let mut daemon = context.daemon_at(place).await?;
    daemon.terminal(name.to_owned()).await.map(Ok)
}

fn what_next(agent: &AgentView, attached: u64) -> Next {
    let name = &agent.name;
    match agent.state {
        AgentState::Running if agent.generation > attached => Next::Attach,
        AgentState::Running | AgentState::Stopping => Next::Wait,
        AgentState::Stopped => Next::End { text: format!("{name} is stopped"), exit: Exit::Done },
        AgentState::Exited | AgentState::Failed => {
            let how = agent.last_exit.as_ref().map(render::how_it_ended);
            Next::End {
                text: format!("{name} {}", how.unwrap_or_else(|| render::state(agent.state).to_owned())),
                exit: if render::exited_well(agent) { Exit::Done } else { Exit::Failed },
            }
        }
    }
}

async fn terminal_of(context: &Context, daemon: &mut Daemon, name: &str) -> Result<Terminal, Problem> {
    require_terminal(context, &daemon.agent(name).await?)?;
    let terminal = daemon.terminal(name.to_owned()).await;
    let program = context.program();
    terminal.map_err(|problem| problem.hint(format!("{program} run {name} starts it and attaches")))
}

fn require_terminal(context: &Context, agent: &AgentView) -> Result<(), Problem> {
    if agent.tty {
        return Ok(());
    }
    let (name, program) = (&agent.name, context.program());
    Err(Problem::new(Exit::Failed, format!("{name} has no terminal to attach to"))
        .hint(format!("{program} set {name} tty=true gives it one at its next start")))
}

async fn start_answer(daemon: &mut Daemon) -> Result<(), Problem> {
    match daemon.next().await?.body {
        ServerBody::Failed(failure) if failure.code == ErrorCode::AlreadyRunning => Ok(()),
        body => talk::answer(body)?.map(drop).map_err(Into::into),
    }
}

async fn until_running(daemon: &mut Daemon, name: &str) -> Result<(), Problem> {
    daemon.send(Request::Subscribe).await?;
    loop {
        let agent = daemon.event().await?.agent;
        if agent.name == name && agent.state == AgentState::Running {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::view;

    #[test]
    fn an_attachment_stays_across_a_restart_and_ends_with_a_stop() {
        let next = |state, generation| what_next(&view("x", state, generation), 7);
        assert_eq!(next(AgentState::Running, 7), Next::Wait);
        assert_eq!(next(AgentState::Stopping, 7), Next::Wait);
        assert_eq!(next(AgentState::Running, 8), Next::Attach);
        assert_eq!(next(AgentState::Stopped, 7), Next::End { text: "x is stopped".into(), exit: Exit::Done });
        assert_eq!(next(AgentState::Failed, 8), Next::End { text: "x failed".into(), exit: Exit::Failed });
    }
}
