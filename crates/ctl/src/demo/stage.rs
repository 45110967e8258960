//! The temporary folder of the demo and the daemon in it.

use super::story::{self, AGENT, Line, NOTE, Story};
use crate::commands::{Following, Piece};
use crate::context::{Found, Place};
use crate::daemon_process::{self, Outcome, Owner, Starting};
use crate::problem::{Exit, Problem};
use crate::talk::{self, Daemon};
use mcp_restart_paths::RestartPath;
use mcp_restart_protocol::answer::{Caller, Handoff};
use mcp_restart_protocol::client::ClientError;
use mcp_restart_protocol::request::{Credential, Request};
use rustix::process::{Pid, test_kill_process};
use serde_json::json;
use std::collections::VecDeque;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

/// How often the agent's log is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// How long the end of the daemon may take.
const END: Duration = Duration::from_secs(8);

/// A temporary folder with a config, and a daemon when it plays.
pub(super) struct Stage {
    folder: TempDir,
    place: Place,
    config: PathBuf,
    daemon: Option<Starting>,
    pids: Vec<u32>,
}

impl Stage {
    /// Makes the folder and the config with the one agent: this program.
    pub(super) fn set() -> Result<Self, Problem> {
        let folder = tempfile::Builder::new().prefix("mcp-restart-demo-").tempdir()?;
        let config = folder.path().join("mcp-restart.config.json");
        let own = env::current_exe()?;
        let text = serde_json::to_string_pretty(&json!({
            "port": 0,
            "agents": [{
                "name": AGENT,
                "command": own.to_string_lossy(),
                "args": ["demo-agent", "--edition", "1"],
            }],
        }))
        .map_err(std::io::Error::from)?;
        fs::write(&config, text)?;
        let place = Place::new(
            folder.path().join("state"),
            Some(config.clone()),
            Found::By("mcp-restartctl".to_owned()),
        );
        Ok(Self { folder, place, config, daemon: None, pids: Vec::new() })
    }

    /// Plays the whole loop; each line of it is told as it happens.
    pub(super) async fn play(
        &mut self,
        story: &mut Story,
        tell: impl Fn(&Line) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let starting = daemon_process::start(RestartPath::CtlUp, &self.place, &self.config, Owner::Demo)?;
        let summary = {
            let starting = self.daemon.insert(starting);
            match starting.outcome().await? {
                Outcome::Serves(summary) => summary,
                Outcome::Ended(status) => return Err(starting.failure(status)),
            }
        };
        tell(&story.daemon_serves(summary.pid, summary.url.as_deref().unwrap_or("nothing")))?;

        let mut asking = Daemon::connect(&self.place, Credential::Peer).await?;
        let mut watching = Daemon::connect(&self.place, Credential::Peer).await?;
        watching.send(Request::Subscribe).await?;
        let path = RestartPath::CtlStart.id().to_owned();
        asking.send(Request::Start { path, name: AGENT.to_owned(), force: false, wait: false }).await?;

        let mut lines = Lines::new(&self.place);
        let mut started = false;
        while !story.told() {
            tokio::select! {
                biased;
                event = watching.event() => {
                    let agent = event?.agent;
                    self.pids.extend(agent.pid.filter(|pid| !self.pids.contains(pid)));
                    if let Some(line) = story.event(&agent) {
                        tell(&line)?;
                    }
                }
                frame = asking.next(), if !started => {
                    talk::answer(frame?.body)??;
                    started = true;
                }
                () = tokio::time::sleep(LOOK) => {
                    lines.read()?;
                    while let Some(line) = lines.next(story.generation()) {
                        tell(&story.said(&line))?;
                    }
                }
            }
        }
        let mut asking = Daemon::connect(&self.place, Credential::Peer).await?;
        agrees(&asking.handoff(Some(AGENT.to_owned())).await?)?;
        story.daemon_agrees();
        Ok(())
    }

    /// The newest lines of the logs, for a report of a failure.
    pub(super) fn log_tails(&self) -> String {
        const LINES: usize = 15;
        let mut tails = String::new();
        for (what, file) in
            [("agent", agent_log(&self.place)), ("daemon", self.place.state_dir.join("mcp-restart.log"))]
        {
            let Ok(bytes) = fs::read(file) else { continue };
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.lines().collect();
            let newest = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default();
            // Writing to a string cannot fail.
            let _ = write!(tails, "\n{what}'s log:\n  {}", newest.join("\n  "));
        }
        tails
    }

    /// Ends the daemon with everything below it and removes the folder.
    pub(super) async fn clear_away(mut self) -> Result<(), Problem> {
        if let Some(daemon) = &mut self.daemon {
            let deadline = Instant::now() + END;
            while !shut_down(&self.place).await
                && daemon.ended_within(LOOK).await?.is_none()
                && Instant::now() < deadline
            {}
            if daemon.ended_within(deadline.saturating_duration_since(Instant::now())).await?.is_none() {
                daemon.kill(RestartPath::CtlDown)?;
                return Err(Problem::new(Exit::Failed, "the daemon had to be killed, since it did not end"));
            }
        }
        let alive = |pid: &&u32| {
            let pid = i32::try_from(**pid).ok().and_then(Pid::from_raw);
            pid.is_some_and(|pid| test_kill_process(pid).is_ok())
        };
        if let Some(pid) = self.pids.iter().find(alive) {
            return Err(Problem::new(Exit::Failed, format!("process {pid} of the agent is left")));
        }
        Ok(self.folder.close()?)
    }
}

/// Asks the daemon to end and waits until its connection does; false if it cannot be asked yet.
async fn shut_down(place: &Place) -> bool {
    let request = json!({ "path": RestartPath::CtlDown.id() });
    match talk::shut_down(&place.socket, &request).await {
        Ok((mut connection, _)) => {
            let mut rest = Vec::new();
            // However the connection ends, the daemon's process tells whether it is gone.
            let _ = tokio::time::timeout(END, connection.read_to_end(&mut rest)).await;
            true
        }
        Err(ClientError::Unreachable(_)) => false,
        Err(_) => true,
    }
}

fn agrees(handoff: &Handoff) -> Result<(), Problem> {
    let from = Caller::Agent { name: AGENT.to_owned() };
    let note = handoff.notes.iter().any(|note| note.from == from && note.text.as_deref() == Some(NOTE));
    let changed = handoff.config_diff.iter().any(|field| field == "args");
    if handoff.generation == 2 && note && changed {
        return Ok(());
    }
    Err(Problem::new(Exit::Failed, format!("the hand-off record is not what the agent read: {handoff:?}")))
}

fn agent_log(place: &Place) -> PathBuf {
    place.state_dir.join("logs").join(format!("{AGENT}.log"))
}

/// The whole lines of the agent's log as they come.
struct Lines {
    log: Following,
    partial: Vec<u8>,
    whole: VecDeque<String>,
}

impl Lines {
    fn new(place: &Place) -> Self {
        let log = Following::from_beginning(&agent_log(place));
        Self { log, partial: Vec::new(), whole: VecDeque::new() }
    }

    fn read(&mut self) -> Result<(), Problem> {
        while let Some(piece) = self.log.next()? {
            if let Piece::Bytes(bytes) = piece {
                self.partial.extend(bytes);
            }
        }
        if let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') {
            let whole: Vec<u8> = self.partial.drain(..=end).collect();
            let text = String::from_utf8_lossy(&whole);
            // The shim's own headings say nothing that the daemon's events do not say.
            self.whole.extend(text.lines().filter(|line| !line.starts_with("--- ")).map(str::to_owned));
        }
        Ok(())
    }

    /// The next line, unless it is from a generation whose start the daemon has still to tell.
    fn next(&mut self, generation: u64) -> Option<String> {
        let due = |line: &String| story::parse(line).is_none_or(|(from, _)| from <= generation);
        if self.whole.front().is_some_and(due) { self.whole.pop_front() } else { None }
    }
}
