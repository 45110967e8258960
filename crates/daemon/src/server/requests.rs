//! What a request makes the daemon do.

use super::Context;
use super::callers::{Facts, Process, decide};
use super::talk::is_over_http;
use crate::fleet::{Glance, Lifecycle};
use crate::governance::{Note, gate, protected};
use crate::program::Change;
use crate::stdio::{self, on_a_thread};
use mcp_restart_process::peer::SocketPeer;
use mcp_restart_process::table;
use mcp_restart_protocol::agent::AgentView;
use mcp_restart_protocol::answer::{Answer, Caller, ErrorCode, Failure, ServerStatus};
use mcp_restart_protocol::contamination::Contamination;
use mcp_restart_protocol::journal::{Happening, Line, Outcome, Peer, Well};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::request::{Credential, Request};
use mcp_restart_protocol::stdio::StdioRestarted;
use std::time::{Duration, Instant};

/// Where requests come from.
#[derive(Debug)]
pub(super) struct From {
    /// The process at the other end, as it was followed.
    pub(super) process: Process,
    /// What the system says of it.
    pub(super) peer: SocketPeer,
}

/// A request that starts or ends a process.
struct Asked<'a> {
    caller: Caller,
    peer: Peer,
    allows_stale: bool,
    path: &'a str,
    /// The agent; none if it is about none, or about the caller's own and the caller has none.
    agent: Option<String>,
}

/// What is written down of an answer.
struct Told {
    outcome: Outcome,
    message: Option<String>,
    generation: Option<u64>,
}

impl Told {
    fn agent(agent: &AgentView, delivery: Option<u64>) -> Self {
        Self { outcome: well(delivery), message: None, generation: Some(agent.generation) }
    }

    fn servers(restarted: &StdioRestarted) -> Self {
        let message = Some(restarted.note.clone());
        Self { outcome: well(restarted.delivery), message, generation: None }
    }

    fn failure(failure: &Failure) -> Self {
        let message = Some(failure.message.clone());
        Self { outcome: Outcome::Failed(failure.code), message, generation: None }
    }
}

/// Whoever has to report the delivery of an answer before anything happens was only accepted.
const fn well(delivery: Option<u64>) -> Outcome {
    Outcome::Well(if delivery.is_some() { Well::Accepted } else { Well::Done })
}

impl Context {
    /// Finds out who asks and carries the request out. `Subscribe` is answered elsewhere.
    pub(super) async fn answer(
        &self,
        from: &From,
        credential: Credential,
        allows_stale: bool,
        request: Request,
    ) -> Result<Answer, Failure> {
        if let Request::Delivered { delivery } = request {
            self.fleet.delivered(delivery);
            return Ok(Answer::Done);
        }
        let over_http = is_over_http(&credential);
        let caller = self.identification.caller(&from.process, credential).await?;
        if over_http && let Caller::Agent { name } = &caller {
            self.fleet.connected(name.clone());
        }
        let peer = Peer { uid: from.peer.uid, pid: from.peer.pid };
        self.carry_out(caller, peer, over_http, allows_stale, request).await
    }

    async fn carry_out(
        &self,
        caller: Caller,
        peer: Peer,
        over_http: bool,
        allows_stale: bool,
        request: Request,
    ) -> Result<Answer, Failure> {
        let asked = |path, agent| Asked { caller: caller.clone(), peer, allows_stale, path, agent };
        match request {
            Request::List { all } => Ok(Answer::Agents(self.fleet.list(all).await)),
            Request::Status => self.status(caller).await.map(Box::new).map(Answer::Status),
            Request::Start { path, name, force, wait } => {
                let asked = asked(&path, Some(name.clone()));
                let start =
                    |path| self.fleet.start(Lifecycle { caller: caller.clone(), path, name, force, wait });
                let answer =
                    self.govern(asked, start, |answer| Told::agent(&answer.agent, answer.delivery)).await;
                answer.map(Box::new).map(Answer::Agent)
            }
            Request::Stop { path, name, wait } => {
                let asked = asked(&path, Some(name.clone()));
                let stop = |path| {
                    self.fleet.stop(Lifecycle { caller: caller.clone(), path, name, force: false, wait })
                };
                let answer =
                    self.govern(asked, stop, |answer| Told::agent(&answer.agent, answer.delivery)).await;
                answer.map(Box::new).map(Answer::Agent)
            }
            Request::Restart(request) => {
                let own = if let Caller::Agent { name } = &caller { Some(name.clone()) } else { None };
                let path = request.path.clone();
                let asked = asked(&path, request.name.clone().or(own));
                let restart = |path| self.fleet.restart(caller.clone(), path, request);
                let answer =
                    self.govern(asked, restart, |answer| Told::agent(&answer.agent, answer.delivery)).await;
                answer.map(Box::new).map(Answer::Restarted)
            }
            Request::RestartStdioServers(request) => {
                let path = request.path.clone();
                let ends = request.connection;
                let pid = if over_http { self.identification.process_at(ends).await } else { Some(peer.pid) };
                let restart =
                    |path| stdio::restart(&self.fleet, &self.journal, caller.clone(), pid, path, request);
                let answer = self.govern(asked(&path, None), restart, Told::servers).await;
                answer.map(Box::new).map(Answer::StdioRestarted)
            }
            Request::StdioServers => stdio::list(&self.fleet).await.map(Answer::StdioServers),
            Request::Handoff { name } => {
                self.fleet.handoff(caller, name).await.map(Box::new).map(Answer::Handoff)
            }
            Request::Logs { name, lines } => self.fleet.logs(caller, name, lines).await.map(Answer::Logs),
            Request::Terminal { name } => self.fleet.terminal(name).await.map(Answer::Terminal),
            Request::McpConfig { name } => self.fleet.mcp_config(caller, name).await.map(Answer::McpConfig),
            Request::Session { id } => {
                self.fleet.session(caller, id);
                Ok(Answer::Done)
            }
            Request::Authenticate => Ok(Answer::Admitted(caller)),
            Request::Delivered { .. } => Ok(Answer::Done),
            Request::Protected => {
                let supervised = self.fleet.stdio_scope().await.supervised;
                let table = on_a_thread(table::read).await?;
                let processes = protected(std::process::id(), &supervised, &table);
                Ok(Answer::Protected { processes, port: self.bridge.port() })
            }
            Request::MarkerChanged => {
                self.note_marker(caller, peer);
                Ok(Answer::Done)
            }
            Request::Subscribe => {
                Err(Failure::new(ErrorCode::Internal, "a subscription was taken for a request"))
            }
        }
    }

    /// Carries a lifecycle request out, if it may be, and writes down what became of it.
    async fn govern<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        asked: Asked<'_>,
        carry_out: impl FnOnce(RestartPath) -> F,
        told: impl FnOnce(&T) -> Told,
    ) -> Result<T, Failure> {
        let Asked { caller, peer, allows_stale, path, agent } = asked;
        let begun = Instant::now();
        let before = self.glance(agent.as_deref()).await;
        let result = match self.admit(&caller, allows_stale, path) {
            Ok(path) => {
                if let Some(agent) = agent.clone() {
                    self.journal.note(Note::Begun { agent, path });
                }
                carry_out(path).await
            }
            Err(failure) => Err(failure),
        };
        let after = self.glance(agent.as_deref()).await;
        let told = match &result {
            Ok(answer) => told(answer),
            Err(failure) => Told::failure(failure),
        };
        let exit = after.last_exit.filter(|exit| before.last_exit.as_ref() != Some(exit));
        self.journal.line(Line {
            agent,
            path_id: Some(path.to_owned()),
            caller: Some(caller),
            peer: Some(peer),
            outcome: Some(told.outcome),
            message: told.message,
            old_pid: before.pid,
            new_pid: after.pid,
            generation: told.generation,
            exit,
            duration_ms: Some(millis(begun.elapsed())),
            config_before: before.launch,
            config_after: after.launch,
            ..Line::now(Happening::Requested)
        });
        result
    }

    /// The path that a request names, if the config and the state of this daemon let it be taken.
    fn admit(&self, caller: &Caller, allows_stale: bool, path: &str) -> Result<RestartPath, Failure> {
        let path = door(path)?;
        let (stale, contamination) = (self.stale(), Contamination::of(&self.state_dir));
        let request = gate::Request {
            caller,
            allows_stale,
            stale: stale.as_deref(),
            contamination: contamination.as_ref(),
        };
        self.gate.check(request)?;
        Ok(path)
    }

    /// Writes down that the end of this daemon was asked for.
    pub(super) fn note_request(&self, from: &From, path: &str, refused: Option<&Failure>) {
        let outcome = refused.map_or(Outcome::Well(Well::Accepted), |failure| Outcome::Failed(failure.code));
        self.journal.line(Line {
            path_id: Some(path.to_owned()),
            caller: decide(Facts::Socket(from.process.clone())).ok(),
            peer: Some(Peer { uid: from.peer.uid, pid: from.peer.pid }),
            outcome: Some(outcome),
            message: refused.map(|failure| failure.message.clone()),
            old_pid: Some(std::process::id()),
            ..Line::now(Happening::Requested)
        });
    }

    async fn glance(&self, agent: Option<&str>) -> Glance {
        match agent {
            Some(agent) => self.fleet.glance(agent.to_owned()).await,
            None => Glance::default(),
        }
    }

    fn note_marker(&self, caller: Caller, peer: Peer) {
        let marker = Contamination::of(&self.state_dir);
        let event = if marker.is_some() { Happening::Contaminated } else { Happening::Cleared };
        let message = marker.map(|marker| marker.to_string());
        if let Some(message) = &message {
            tracing::warn!("{message}");
        }
        self.journal.line(Line { caller: Some(caller), peer: Some(peer), message, ..Line::now(event) });
    }

    async fn status(&self, caller: Caller) -> Result<ServerStatus, Failure> {
        let agents = self.fleet.status().await?;
        Ok(ServerStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            url: self.bridge.url(),
            uptime_ms: millis(self.started.elapsed()),
            config_file: self.config_file.display().to_string(),
            config_error: agents.config_error,
            state_dir: self.state_dir.display().to_string(),
            state_error: agents.state_error,
            stale: self.stale(),
            endpoint_error: self.bridge.trouble(),
            contaminated: Contamination::of(&self.state_dir).map(|marker| marker.to_string()),
            pending_config: agents.pending_config,
            adopted: agents.adopted,
            recovered: agents.recovered,
            need_restart: agents.need_restart,
            stale_shims: self.stale_shims().await,
            agents: agents.agents,
            unlisted: agents.unlisted,
            caller,
        })
    }

    /// The agents whose shim runs another file than this daemon, where the system tells.
    async fn stale_shims(&self) -> Vec<String> {
        let own = table::running_file(std::process::id());
        let is_stale =
            |shim| own.is_some() && table::running_file(shim).is_some_and(|file| Some(file) != own);
        let supervised = self.fleet.stdio_scope().await.supervised.into_iter();
        supervised.filter(|agent| is_stale(agent.shim)).map(|agent| agent.agent).collect()
    }

    /// Says which program on disk is not the one that runs. Nothing is done about it.
    fn stale(&self) -> Option<String> {
        let change = self.program.change().or_else(|| self.bridge.stale())?;
        Some(match change {
            Change::Replaced(what) => {
                format!("{what}; `mcp-restartctl upgrade` starts what is on disk, and every agent runs on")
            }
            Change::Missing(what) => {
                format!(
                    "{what}; put it there again, and `mcp-restartctl upgrade` starts it, and every agent runs on"
                )
            }
        })
    }
}

/// The registered path that a request names.
pub(super) fn door(path: &str) -> Result<RestartPath, Failure> {
    RestartPath::from_door(path).map_err(|error| {
        Failure::new(ErrorCode::UnknownRestartPath, error.to_string())
            .hint("the programs of mcp-restart belong together: install them in one version")
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_nobody_registered_is_refused() {
        assert_eq!(door("pkill").unwrap_err().code, ErrorCode::UnknownRestartPath);
        assert_eq!(door(RestartPath::Autostart.id()).unwrap_err().code, ErrorCode::UnknownRestartPath);
        assert_eq!(door(RestartPath::CtlStop.id()), Ok(RestartPath::CtlStop));
    }
}
