//! `events.jsonl`: one line for each thing that happens in the life of agents and daemon. One task writes it.

use crate::fleet::{Fleet, Subscription};
use mcp_restart_paths::RestartPath;
use mcp_restart_process::file::{has_name, open_log};
use mcp_restart_protocol::agent::{AgentState, AgentView, ExitReason};
use mcp_restart_protocol::journal::{Happening, Line, file, older_file};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use tokio::sync::{mpsc, oneshot};

/// The size in bytes from which on a new file is begun; one older file is kept.
const BYTES_MAX: u64 = 4 << 20;
/// No line is longer.
const LINE_MAX: u64 = 64 << 10;

/// A handle on the task that writes.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    notes: mpsc::UnboundedSender<Note>,
}

/// What the task is told.
#[derive(Debug)]
pub(crate) enum Note {
    /// Something to write.
    Line(Box<Line>),
    /// A request for an agent begins; what changes about it from now on is by this path.
    Begun { agent: String, path: RestartPath },
    /// Every agent is being stopped by this path.
    Ending(RestartPath),
    /// The last line, and who waits until it is written.
    Last(Box<Line>, oneshot::Sender<()>),
}

impl Journal {
    /// Opens the file of a state dir, says in it how the daemon before ended, and follows what changes about the agents.
    pub(crate) fn start(state_dir: &Path, fleet: Fleet) -> Self {
        let mut book = Book::open(state_dir);
        if let Some(before) = book.unclean() {
            tracing::warn!("the daemon before this one was killed, not stopped");
            book.write(&Line {
                message: Some(format!("the last line before is of {}", before.at)),
                ..Line::now(Happening::UncleanShutdown)
            });
        }
        book.write(&Line {
            new_pid: Some(std::process::id()),
            message: Some(format!("version {}", env!("CARGO_PKG_VERSION"))),
            ..Line::now(Happening::DaemonStarted)
        });
        let (notes, inbox) = mpsc::unbounded_channel();
        let changes = fleet.subscribe();
        tokio::spawn(
            Writer { book, fleet, seen: BTreeMap::new(), paths: BTreeMap::new(), ending: None }
                .run(inbox, changes),
        );
        Self { notes }
    }

    /// Writes or remembers something.
    pub(crate) fn note(&self, note: Note) {
        let _ = self.notes.send(note);
    }

    /// Writes a line.
    pub(crate) fn line(&self, line: Line) {
        self.note(Note::Line(Box::new(line)));
    }

    /// Writes the last line of this daemon and returns when it is written.
    pub(crate) async fn end(&self, event: Happening) {
        let (written, wait) = oneshot::channel();
        let line = Line { old_pid: Some(std::process::id()), ..Line::now(event) };
        self.note(Note::Last(Box::new(line), written));
        let _ = wait.await;
    }
}

struct Writer {
    book: Book,
    fleet: Fleet,
    /// What was last seen of each agent.
    seen: BTreeMap<String, AgentView>,
    /// The path of the last request for each agent.
    paths: BTreeMap<String, RestartPath>,
    ending: Option<RestartPath>,
}

impl Writer {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Note>, mut changes: Subscription) {
        // A subscription that ends before it has told anything is that of a fleet that has ended.
        let mut heard = true;
        loop {
            tokio::select! {
                // What has changed is told before the last line.
                biased;
                change = changes.next(), if heard => {
                    heard = change.is_some();
                    match change {
                        Some(event) => self.change(&event.agent),
                        None => changes = self.fleet.subscribe(),
                    }
                }
                note = inbox.recv() => match note {
                    Some(Note::Line(line)) => self.book.write(&line),
                    Some(Note::Begun { agent, path }) => _ = self.paths.insert(agent, path),
                    Some(Note::Ending(path)) => self.ending = Some(path),
                    Some(Note::Last(line, written)) => {
                        let path = match line.event {
                            Happening::DaemonMadeWay => Some(RestartPath::CtlUpgrade),
                            _ => self.ending,
                        };
                        self.book.write(&Line { path_id: path.map(|path| path.id().to_owned()), ..*line });
                        let _ = written.send(());
                        return;
                    }
                    None => return,
                },
            }
        }
    }

    fn change(&mut self, now: &AgentView) {
        let before = self.seen.insert(now.name.clone(), now.clone());
        let path = self.ending.or_else(|| self.paths.get(&now.name).copied());
        for line in lines(before.as_ref(), now, path) {
            self.book.write(&line);
        }
    }
}

/// What there is to write about a change of an agent that was last asked for by that path.
fn lines(before: Option<&AgentView>, now: &AgentView, path: Option<RestartPath>) -> Vec<Line> {
    let about = |event, path: Option<RestartPath>| Line {
        agent: Some(now.name.clone()),
        path_id: path.map(|path| path.id().to_owned()),
        generation: Some(now.generation),
        ..Line::now(event)
    };
    let Some(before) = before else {
        // The first that is heard of it: if it runs, a daemon before has started it.
        return now
            .pid
            .map(|pid| Line { new_pid: Some(pid), ..about(Happening::Adopted, None) })
            .into_iter()
            .collect();
    };
    let mut lines = Vec::new();
    if let Some(exit) = now.last_exit.as_ref().filter(|exit| before.last_exit.as_ref() != Some(exit)) {
        if exit.reason == ExitReason::SpawnFailed {
            lines.push(Line { message: exit.message.clone(), ..about(Happening::Failed, path) });
        } else {
            let path = match exit.reason {
                ExitReason::Exited | ExitReason::RolledBack => Some(RestartPath::ExitSweep),
                ExitReason::Lost => Some(RestartPath::LostSweep),
                _ => path,
            };
            lines.push(Line {
                old_pid: before.pid,
                exit: Some(exit.clone()),
                ..about(Happening::Ended, path)
            });
        }
    }
    let started = now.pid.filter(|_| {
        now.state == AgentState::Running && (before.pid, before.generation) != (now.pid, now.generation)
    });
    if let Some(pid) = started {
        let rolled_back = now.last_exit.as_ref().is_some_and(|exit| exit.reason == ExitReason::RolledBack);
        let path = if rolled_back { RestartPath::Rollback } else { path.unwrap_or(RestartPath::Autostart) };
        lines.push(Line { new_pid: Some(pid), ..about(Happening::Started, Some(path)) });
    }
    lines
}

/// The file.
struct Book {
    path: PathBuf,
    older: PathBuf,
    file: Option<File>,
    size: u64,
    /// Whether the last write failed, which is logged once.
    failing: bool,
}

impl Book {
    fn open(state_dir: &Path) -> Self {
        let mut book =
            Self { path: file(state_dir), older: older_file(state_dir), file: None, size: 0, failing: false };
        if let Err(error) = book.open_file() {
            book.complain(&error);
        }
        book
    }

    fn open_file(&mut self) -> io::Result<()> {
        let mut file = open_log(&self.path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        self.size = metadata.len();
        if self.size > 0 {
            // A daemon that was killed may have left half a line.
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                self.size += 1;
            }
        }
        self.file = Some(file);
        Ok(())
    }

    /// The last line of the daemon before, if that has not said that it ended.
    fn unclean(&mut self) -> Option<Line> {
        let file = self.file.as_mut()?;
        let mut end = Vec::new();
        file.seek(SeekFrom::Start(self.size.saturating_sub(LINE_MAX))).ok()?;
        file.read_to_end(&mut end).ok()?;
        let text = String::from_utf8_lossy(&end);
        // Half a line is the end of a daemon too.
        let last = text.lines().rev().find_map(|line| serde_json::from_str::<Line>(line).ok())?;
        (!matches!(last.event, Happening::DaemonStopped | Happening::DaemonMadeWay)).then_some(last)
    }

    fn write(&mut self, line: &Line) {
        match self.try_write(line) {
            Ok(()) => self.failing = false,
            Err(error) => self.complain(&error),
        }
    }

    fn try_write(&mut self, line: &Line) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        if self.size > 0 && self.size + bytes.len() as u64 > BYTES_MAX {
            fs::rename(&self.path, &self.older)?;
            self.file = None;
        }
        // One that somebody deleted or moved away is begun anew.
        if !self.file.as_ref().is_some_and(|file| has_name(file, &self.path)) {
            self.open_file()?;
        }
        if let Some(file) = &mut self.file {
            file.write_all(&bytes)?;
            self.size += bytes.len() as u64;
        }
        Ok(())
    }

    /// What cannot be written stops nothing.
    fn complain(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.failing, true) {
            tracing::error!(file = %self.path.display(), %error, "events cannot be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcp_restart_protocol::agent::LastExit;
    use mcp_restart_protocol::timestamp::Timestamp;

    fn running(generation: u64) -> AgentView {
        let pid = u32::try_from(generation).unwrap();
        serde_json::from_value(serde_json::json!({
            "name": "a", "kind": "generic", "state": "running", "pid": pid, "generation": generation, "startedAt": null,
            "uptimeMs": null, "autostart": false, "tty": false, "sessionId": null, "connectedAt": null,
            "configChanged": false, "listed": true, "logFile": "", "lastExit": null,
        }))
        .unwrap()
    }

    fn message(text: &str) -> Line {
        Line { message: Some(text.to_owned()), ..Line::now(Happening::Requested) }
    }

    fn messages(file: &Path) -> Vec<String> {
        let text = fs::read_to_string(file).unwrap();
        text.lines().map(|line| serde_json::from_str::<Line>(line).unwrap().message.unwrap()).collect()
    }

    #[test]
    fn a_file_that_has_become_too_large_is_kept_as_the_older_one_and_no_line_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let mut book = Book::open(folder.path());
        let line = |number: u64| message(&format!("{number:0>50000}"));
        let count = BYTES_MAX / 50_000 + 5;
        for number in 0..count {
            book.write(&line(number));
        }
        let kept = [messages(&older_file(folder.path())), messages(&file(folder.path()))].concat();
        let expected: Vec<_> = (0..count).map(|number| line(number).message.unwrap()).collect();
        assert_eq!(kept, expected);
        assert!(older_file(folder.path()).metadata().unwrap().len() <= BYTES_MAX);
        // The next daemon reads how this one ended.
        assert_eq!(Book::open(folder.path()).unclean().unwrap().message, line(count - 1).message);
    }

    #[test]
    fn only_a_daemon_that_said_so_has_ended_well() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Book::open(folder.path()).unclean(), None);
        for (event, well) in [
            (Happening::DaemonStarted, false),
            (Happening::DaemonStopped, true),
            (Happening::Requested, false),
            (Happening::DaemonMadeWay, true),
        ] {
            Book::open(folder.path()).write(&Line::now(event));
            assert_eq!(Book::open(folder.path()).unclean().is_none(), well, "{event:?}");
        }
    }

    #[test]
    fn half_a_line_of_a_daemon_that_was_killed_takes_no_line_of_the_next_with_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(file(folder.path()), "{\"at\":").unwrap();
        Book::open(folder.path()).write(&message("whole"));
        let text = fs::read_to_string(file(folder.path())).unwrap();
        assert_eq!(
            serde_json::from_str::<Line>(text.lines().last().unwrap()).unwrap().message.unwrap(),
            "whole"
        );
    }

    #[test]
    fn the_launch_that_takes_the_place_of_a_bad_one_is_by_rollback() {
        let last_exit = LastExit::unseen(Timestamp(1), ExitReason::RolledBack);
        let now = AgentView { last_exit: Some(last_exit), ..running(5) };
        let lines = lines(Some(&running(4)), &now, Some(RestartPath::McpRestart));
        let told: Vec<_> = lines.iter().map(|line| (line.event, line.path_id.as_deref().unwrap())).collect();
        assert_eq!(told, [(Happening::Ended, "exit_sweep"), (Happening::Started, "rollback")]);
    }
}
