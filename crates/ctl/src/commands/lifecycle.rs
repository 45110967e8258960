//! `start`, `stop` and `restart`.
//!
//! ```text
//!  names or --all ─► others: one request each, at the same time ─► own agent, last ─► worst exit code
//! ```

use crate::arguments::{Resume, Which};
use crate::context::Context;
use crate::problem::{Exit, Problem, exit_for};
use crate::render;
use crate::screen::Style;
use crate::talk::{self, Daemon};
use mcp_restart_paths::RestartPath;
use mcp_restart_protocol::agent::{self, AgentState, AgentView};
use mcp_restart_protocol::answer::{
    AgentAnswer, Answer, Caller, ErrorCode, Failure, RestartAnswer, ServerStatus,
};
use mcp_restart_protocol::request::{Request, RestartRequest};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What `restart` takes beside the names.
#[derive(Debug, Clone, Default)]
pub(crate) struct RestartOptions {
    /// For the new process.
    pub(crate) note: Option<String>,
    /// What to do with the conversation.
    pub(crate) resume: Option<Resume>,
    /// Also with a launch that is known to be bad.
    pub(crate) force: bool,
}

enum Verb {
    Start { force: bool },
    Stop,
    Restart(RestartOptions),
}

/// What became of one agent.
struct Outcome {
    name: String,
    result: Result<Answer, Failure>,
}

/// Starts agents; one that runs already is no failure.
pub(crate) async fn start(context: &Context, which: Which, force: bool) -> Result<Exit, Problem> {
    carry_out(context, &which, &Verb::Start { force }).await
}

/// Stops agents; one that does not run is no failure.
pub(crate) async fn stop(context: &Context, which: Which) -> Result<Exit, Problem> {
    carry_out(context, &which, &Verb::Stop).await
}

/// Restarts agents, or the one that asks.
pub(crate) async fn restart(
    context: &Context,
    which: Which,
    options: RestartOptions,
) -> Result<Exit, Problem> {
    carry_out(context, &which, &Verb::Restart(options)).await
}

async fn carry_out(context: &Context, which: &Which, verb: &Verb) -> Result<Exit, Problem> {
    let itself = which.names.is_empty() && !which.all;
    if itself && !matches!(verb, Verb::Restart(_)) {
        return Err(Problem::new(Exit::Usage, format!("{} whom?", verb.word())).hint(format!(
            "{} {} NAME, or --all",
            context.program(),
            verb.word()
        )));
    }
    let mut daemon = context.lifecycle_daemon().await?;
    if itself {
        let rounds = [vec![None]];
        return work(context, &mut daemon, which, verb, rounds).await;
    }
    let (names, own) = if which.all {
        let status = daemon.status().await?;
        (
            verb.all(&status),
            own_name(&status.caller).or(context.environment.agent.as_deref()).map(str::to_owned),
        )
    } else {
        (which.names.clone(), context.environment.agent.clone())
    };
    if names.is_empty() {
        context.screen.done(verb.nothing_to_do())?;
    }
    work(context, &mut daemon, which, verb, rounds(names, own.as_deref())).await
}

/// All others at the same time, then the caller's own agent: nothing may be left undone by its end.
fn rounds(names: Vec<String>, own: Option<&str>) -> [Vec<Option<String>>; 2] {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    let (last, first): (Vec<_>, Vec<_>) = seen.into_iter().partition(|name| own == Some(name));
    [first, last].map(|round| round.into_iter().map(Some).collect())
}

async fn work<const ROUNDS: usize>(
    context: &Context,
    daemon: &mut Daemon,
    which: &Which,
    verb: &Verb,
    rounds: [Vec<Option<String>>; ROUNDS],
) -> Result<Exit, Problem> {
    let alone = !which.all && rounds.iter().map(Vec::len).sum::<usize>() == 1;
    let mut report =
        Report { context, verb, waits: !which.no_wait, alone, worst: Exit::Done, results: Vec::new() };
    let deadline = which.timeout.map(|timeout| Instant::now() + timeout);
    for round in rounds {
        let mut pending = BTreeMap::new();
        for name in round {
            let id = daemon.send(verb.request(name.clone(), !which.no_wait)).await?;
            pending.insert(id, name.unwrap_or_default());
        }
        while !pending.is_empty() {
            let frame = match waiting(context, verb, &pending, deadline, daemon.next()).await {
                Ok(frame) => frame?,
                Err(given_up) => return Err(given_up.problem(context, which, &pending)),
            };
            if let Some(name) = pending.remove(&frame.id) {
                report.take(Outcome { name, result: talk::answer(frame.body)? }).await?;
            }
        }
    }
    report.end()
}

/// Why an answer is no longer waited for.
enum GivenUp {
    Late,
    Interrupted,
}

impl GivenUp {
    fn problem(&self, context: &Context, which: &Which, pending: &BTreeMap<u64, String>) -> Problem {
        let names = pending.values().map(String::as_str).collect::<Vec<_>>().join(", ");
        let seconds = which.timeout.unwrap_or_default().as_secs_f64();
        let problem = match self {
            Self::Late => Problem::new(Exit::TimedOut, format!("no answer for {names} after {seconds} s")),
            Self::Interrupted => Problem::new(Exit::Interrupted, format!("no longer waiting for {names}")),
        };
        let program = context.program();
        problem.hint(format!("the daemon goes on with it; {program} list shows how far it is"))
    }
}

/// Waits for what comes, shows that it waits, and gives up at the deadline or when the user does.
async fn waiting<T>(
    context: &Context,
    verb: &Verb,
    pending: &BTreeMap<u64, String>,
    deadline: Option<Instant>,
    comes: impl Future<Output = T>,
) -> Result<T, GivenUp> {
    let begun = Instant::now();
    let late = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => std::future::pending().await,
        }
    };
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(comes, late, interrupted);
    loop {
        tokio::select! {
            biased;
            value = &mut comes => return Ok(value),
            () = &mut late => return Err(GivenUp::Late),
            Ok(()) = &mut interrupted => return Err(GivenUp::Interrupted),
            () = tokio::time::sleep(Duration::from_millis(500)), if context.screen.shows_progress() => {
                let names: Vec<_> = pending.values().map(String::as_str).collect();
                let seconds = begun.elapsed().as_secs();
                context.screen.progress(format_args!("{} {} … {seconds} s", verb.doing(), names.join(", ")));
            }
        }
    }
}

/// Tells what became of each agent, and remembers the worst.
struct Report<'a> {
    context: &'a Context,
    verb: &'a Verb,
    waits: bool,
    alone: bool,
    worst: Exit,
    results: Vec<Shown>,
}

/// One result as JSON; the same as the result of the MCP tool where there is only one.
#[derive(Serialize)]
#[serde(untagged)]
enum Shown {
    Agent(AgentAnswer),
    Restarted(Box<RestartAnswer>),
    Named { name: String, result: Box<Shown> },
    Failed { name: String, error: Failure },
}

#[derive(Serialize)]
struct Results {
    results: Vec<Shown>,
}

impl Report<'_> {
    async fn take(&mut self, outcome: Outcome) -> Result<(), Problem> {
        let screen = &self.context.screen;
        match outcome.result {
            Ok(answer) => {
                // What an agent asks for itself happens after its answer.
                let is_own = self.context.environment.agent.as_deref() == Some(outcome.name.as_str());
                let (text, exit) = self.verb.describe(&answer, self.waits && !is_own)?;
                self.worst = self.worst.max(exit);
                let style = if exit == Exit::Done { Style::Green } else { Style::Yellow };
                screen.done(format_args!("{} {text}", screen.paint(style, agent_of(&answer)?)))?;
                let name = agent_of(&answer)?;
                let shown = match answer {
                    Answer::Agent(answer) => Shown::Agent(*answer),
                    Answer::Restarted(answer) => Shown::Restarted(answer),
                    other => return Err(talk::unexpected(&other)),
                };
                self.show(name, shown);
            }
            Err(failure) if self.verb.is_met_by(failure.code) => {
                screen.done(format_args!("{} {}", outcome.name, self.verb.already()))?;
                if screen.json {
                    let agent = self.context.daemon().await?.agent(&outcome.name).await?;
                    self.show(outcome.name, Shown::Agent(AgentAnswer { agent, delivery: None }));
                }
            }
            Err(failure) if self.alone => return Err(failure.into()),
            Err(mut failure) => {
                self.worst = self.worst.max(exit_for(failure.code));
                self.results.push(Shown::Failed { name: outcome.name.clone(), error: failure.clone() });
                if !failure.message.contains(&outcome.name) {
                    failure.message = format!("{}: {}", outcome.name, failure.message);
                }
                screen.problem(&failure.into());
            }
        }
        Ok(())
    }

    fn show(&mut self, name: String, result: Shown) {
        let result = if self.alone { result } else { Shown::Named { name, result: Box::new(result) } };
        self.results.push(result);
    }

    fn end(self) -> Result<Exit, Problem> {
        let screen = &self.context.screen;
        if screen.json {
            match self.results.as_slice() {
                [only] if self.alone => screen.value(only)?,
                _ => screen.value(&Results { results: self.results })?,
            }
        }
        Ok(self.worst)
    }
}

impl Verb {
    fn word(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Stop => "stop",
            Self::Restart(_) => "restart",
        }
    }

    fn doing(&self) -> &'static str {
        match self {
            Self::Start { .. } => "starting",
            Self::Stop => "stopping",
            Self::Restart(_) => "restarting",
        }
    }

    fn nothing_to_do(&self) -> &'static str {
        match self {
            Self::Start { .. } => "every agent runs already",
            Self::Stop => "no agent runs",
            Self::Restart(_) => "there are no agents",
        }
    }

    fn already(&self) -> &'static str {
        match self {
            Self::Start { .. } => "is already running",
            Self::Stop | Self::Restart(_) => "is not running",
        }
    }

    /// Whether this refusal says that what was asked for is so already.
    fn is_met_by(&self, code: ErrorCode) -> bool {
        match self {
            Self::Start { .. } => code == ErrorCode::AlreadyRunning,
            Self::Stop => code == ErrorCode::NotRunning,
            Self::Restart(_) => false,
        }
    }

    /// The agents that `--all` means.
    fn all(&self, status: &ServerStatus) -> Vec<String> {
        let running = |agent: &&AgentView| agent.pid.is_some();
        let names = |agents: Vec<&AgentView>| agents.into_iter().map(|agent| agent.name.clone()).collect();
        match self {
            Self::Start { .. } => names(status.agents.iter().filter(|agent| !running(agent)).collect()),
            Self::Stop => names(status.agents.iter().chain(&status.unlisted).filter(running).collect()),
            Self::Restart(_) => names(status.agents.iter().collect()),
        }
    }

    fn request(&self, name: Option<String>, wait: bool) -> Request {
        let named = name.clone().unwrap_or_default();
        match self {
            Self::Start { force } => {
                let path = RestartPath::CtlStart.id().to_owned();
                Request::Start { path, name: named, force: *force, wait }
            }
            Self::Stop => Request::Stop { path: RestartPath::CtlStop.id().to_owned(), name: named, wait },
            Self::Restart(options) => Request::Restart(RestartRequest {
                path: RestartPath::CtlRestart.id().to_owned(),
                name,
                note: options.note.clone(),
                resume: options.resume.map(|resume| match resume {
                    Resume::Same => agent::Resume::Same,
                    Resume::Fresh => agent::Resume::Fresh,
                }),
                request_id: None,
                force: options.force,
                wait,
            }),
        }
    }

    /// What an answer says, after the agent's name, and the exit code that it makes. Without `done` it says
    /// only what was accepted.
    fn describe(&self, answer: &Answer, done: bool) -> Result<(String, Exit), Problem> {
        match (self, answer) {
            (Self::Restart(_), Answer::Restarted(answer)) => Ok(describe_restart(answer, done)),
            (Self::Start { .. }, Answer::Agent(answer)) => {
                Ok((describe_start(&answer.agent, done), Exit::Done))
            }
            (Self::Stop, Answer::Agent(answer)) => Ok((describe_stop(&answer.agent, done), Exit::Done)),
            _ => Err(talk::unexpected(answer)),
        }
    }
}

fn describe_start(agent: &AgentView, done: bool) -> String {
    match (agent.state, done) {
        (AgentState::Running, _) | (_, true) => describe_state(agent),
        _ => "will be started".to_owned(),
    }
}

/// A stop that was waited for has happened, whatever the agent does since.
fn describe_stop(agent: &AgentView, done: bool) -> String {
    match (agent.state, agent.pid) {
        (AgentState::Stopped, _) => describe_state(agent),
        _ if !done => "will be stopped".to_owned(),
        (AgentState::Running, Some(pid)) => format!("was stopped, and runs again: pid {pid}"),
        _ => "was stopped".to_owned(),
    }
}

fn describe_state(agent: &AgentView) -> String {
    let generation = agent.generation;
    match (agent.state, agent.pid, &agent.last_exit) {
        (AgentState::Running, Some(pid), _) => format!("runs: pid {pid}, generation {generation}"),
        (AgentState::Stopped, _, Some(exit)) => format!("is stopped: {}", render::how_it_ended(exit)),
        (state, ..) => format!("is {}", render::state(state)),
    }
}

fn describe_restart(answer: &RestartAnswer, done: bool) -> (String, Exit) {
    let happened = match (&answer.previous, answer.agent.pid) {
        _ if answer.agent.generation < answer.generation => {
            format!("will restart: generation {} is coming", answer.generation)
        }
        (_, None) if !done => format!("will be started as generation {}", answer.generation),
        (Some(previous), Some(pid)) => {
            format!("restarted: pid {} → {pid}, generation {}", previous.pid, answer.generation)
        }
        _ => describe_state(&answer.agent),
    };
    let changed = match answer.config_diff.as_slice() {
        [] => String::new(),
        fields => format!("; changed: {}", fields.join(", ")),
    };
    let changed = answer.warnings.iter().fold(changed, |text, warning| format!("{text}; {warning}"));
    if answer.rolled_back {
        let text = format!("{happened}{changed}; the new launch did not live, so the last good one runs");
        return (text, Exit::Failed);
    }
    (format!("{happened}{changed}"), Exit::Done)
}

fn own_name(caller: &Caller) -> Option<&str> {
    match caller {
        Caller::Agent { name } => Some(name),
        _ => None,
    }
}

fn agent_of(answer: &Answer) -> Result<String, Problem> {
    match answer {
        Answer::Agent(answer) => Ok(answer.agent.name.clone()),
        Answer::Restarted(answer) => Ok(answer.agent.name.clone()),
        other => Err(talk::unexpected(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::view;

    fn names(round: &[Option<String>]) -> Vec<&str> {
        round.iter().flatten().map(String::as_str).collect()
    }

    #[test]
    fn the_callers_own_agent_comes_last_and_nobody_twice() {
        let all = ["a", "me", "b", "a"].map(String::from).to_vec();
        let [first, last] = rounds(all.clone(), Some("me"));
        assert_eq!((names(&first), names(&last)), (vec!["a", "b"], vec!["me"]));
        let [first, last] = rounds(all, None);
        assert_eq!((names(&first), names(&last)), (vec!["a", "me", "b"], vec![]));
    }

    #[test]
    fn what_was_only_accepted_is_not_told_as_done() {
        let start = |state, done| describe_start(&view("x", state, 2), done);
        assert_eq!(start(AgentState::Stopped, false), "will be started");
        assert_eq!(start(AgentState::Running, false), "runs: pid 4242, generation 2");
        let stop = |state, done| describe_stop(&view("x", state, 2), done);
        assert_eq!(stop(AgentState::Running, false), "will be stopped");
        assert_eq!(stop(AgentState::Stopping, false), "will be stopped");
        assert_eq!(stop(AgentState::Stopped, false), "is stopped");
    }

    #[test]
    fn a_stop_that_was_waited_for_has_happened() {
        let stop = |state| describe_stop(&view("x", state, 2), true);
        assert_eq!(stop(AgentState::Stopped), "is stopped");
        assert_eq!(stop(AgentState::Stopping), "was stopped");
        assert_eq!(stop(AgentState::Running), "was stopped, and runs again: pid 4242");
    }

    #[test]
    fn a_restart_says_what_was_replaced_and_what_changed() {
        let answer = RestartAnswer {
            accepted: true,
            generation: 3,
            agent: view("claude", AgentState::Running, 3),
            previous: Some(mcp_restart_protocol::answer::Previous { pid: 7, exit: None }),
            config_diff: vec!["args".into()],
            rolled_back: false,
            warnings: Vec::new(),
            replayed: false,
            replayed_at: None,
            delivery: None,
        };
        let text = "restarted: pid 7 → 4242, generation 3; changed: args";
        assert_eq!(describe_restart(&answer, true), (text.into(), Exit::Done));
        let accepted = RestartAnswer {
            agent: view("claude", AgentState::Running, 2),
            config_diff: vec![],
            ..answer.clone()
        };
        assert_eq!(describe_restart(&accepted, false).0, "will restart: generation 3 is coming");
        let of_a_stopped_one = RestartAnswer {
            agent: AgentView { pid: None, ..view("claude", AgentState::Stopped, 3) },
            previous: None,
            ..accepted
        };
        assert_eq!(describe_restart(&of_a_stopped_one, false).0, "will be started as generation 3");
        let rolled_back = RestartAnswer { rolled_back: true, ..answer };
        assert_eq!(describe_restart(&rolled_back, true).1, Exit::Failed);
    }
}
