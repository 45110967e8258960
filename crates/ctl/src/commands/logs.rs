//! `logs`: reads the log file itself.

use crate::commands::follow::{Piece, Snapshot, WholeLines};
use crate::context::{Context, Place};
use crate::problem::{Exit, Problem};
use mcp_restart_config::lookup;
use mcp_restart_protocol::plain;
use mcp_restart_protocol::shim::START_MARKER;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a followed file is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// How many lines are shown if nobody says what to begin with.
const LINES: usize = 100;

/// What to show of a log, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Go on with what is written.
    pub(crate) follow: bool,
    /// How many of the newest lines to begin with, if that is limited.
    pub(crate) lines: Option<usize>,
    /// Nothing from before the last process was started.
    pub(crate) since_restart: bool,
    /// Leave escape sequences in.
    pub(crate) raw: bool,
}

/// Shows the log of an agent.
pub(crate) async fn logs(context: &Context, name: &str, options: Options) -> Result<(), Problem> {
    let file = log_file(context, name).await?;
    context.screen.detail(format_args!("log {}", file.display()));
    if file.metadata().is_ok_and(|found| !found.is_file()) {
        return Err(Problem::new(Exit::Failed, format!("{} is not a regular file", file.display())));
    }
    let unreadable = |error| Problem::caused(Exit::Failed, format!("cannot read {}", file.display()), &error);
    let lines = options.lines.unwrap_or(if options.since_restart { usize::MAX } else { LINES });
    let marker = options.since_restart.then_some(START_MARKER);
    let mut snapshot = Snapshot::of(&file, lines, marker).map_err(unreadable)?;
    let mut print = Printer::new(context, options);
    while let Some(bytes) = snapshot.next().map_err(unreadable)? {
        print.bytes(&bytes)?;
    }
    if !options.follow {
        return print.end();
    }
    let mut log = snapshot.follow().map_err(unreadable)?;
    loop {
        while let Some(piece) = log.next().map_err(unreadable)? {
            match piece {
                Piece::Bytes(bytes) => print.bytes(&bytes)?,
                Piece::Gap => context.screen.warning(
                    "lines may be missing here: the log was rotated away faster than it could be shown",
                ),
            }
        }
        before_another_look().await?;
    }
}

/// Lets some time pass for a command that follows a file, unless nobody reads what it shows any more: as long as there is
/// nothing to write it would not hear of that.
pub(crate) async fn before_another_look() -> Result<(), Problem> {
    tokio::time::sleep(LOOK).await;
    let output = io::stdout();
    let mut watched = [PollFd::new(&output, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let is_unread = poll(&mut watched, Some(&now)).is_ok()
        && watched.iter().any(|output| output.revents().intersects(PollFlags::ERR | PollFlags::HUP));
    if is_unread { Err(Problem::of_output(&io::ErrorKind::BrokenPipe.into())) } else { Ok(()) }
}

/// The daemon knows where the log is; where none answers, the config says it.
async fn log_file(context: &Context, name: &str) -> Result<PathBuf, Problem> {
    let place = context.place()?;
    let asked = async { context.daemon_at(&place).await?.agent(name).await };
    let problem = match asked.await {
        Ok(agent) => return Ok(agent.log_file.into()),
        Err(problem) if matches!(problem.exit(), Exit::NotRunning | Exit::TimedOut) => problem,
        Err(problem) => return Err(problem),
    };
    let file = log_file_by_config(context, &place, name, &problem)?;
    if problem.exit() == Exit::TimedOut {
        context
            .screen
            .warning(format_args!("the daemon does not answer; the config says that this is {name}'s log"));
    }
    Ok(file)
}

/// Where the config puts the log. An agent that is no longer in it, or whose config cannot be used, may have left
/// one in the usual place.
fn log_file_by_config(
    context: &Context,
    place: &Place,
    name: &str,
    problem: &Problem,
) -> Result<PathBuf, Problem> {
    let agents = context.config().map(|config| config.agents);
    if let Some(agent) = agents.iter().flatten().find(|agent| agent.name == name) {
        return Ok(agent.log_file_in(&place.state_dir));
    }
    let usual = lookup::log_file(&place.state_dir, name);
    let is_plain = Path::new(name).file_name() == Some(name.as_ref());
    if is_plain && usual.exists() {
        return Ok(usual);
    }
    let agents = agents.map_err(|_| problem.clone())?;
    let names: Vec<_> = agents.into_iter().map(|agent| agent.name).collect();
    Err(crate::talk::unknown_agent(name, &names))
}

/// Prints what comes: whole lines made safe, the bytes as they are, or JSON.
struct Printer<'a> {
    context: &'a Context,
    options: Options,
    partial: WholeLines,
    /// For the one JSON document at the end.
    lines: Vec<String>,
}

/// What is shown of a log that is not followed, as JSON.
#[derive(Serialize)]
struct Lines {
    lines: Vec<String>,
}

/// One line of a log that is followed, as JSON.
#[derive(Serialize)]
struct Line<'a> {
    line: &'a str,
}

impl<'a> Printer<'a> {
    fn new(context: &'a Context, options: Options) -> Self {
        Self { context, options, partial: WholeLines::default(), lines: Vec::new() }
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        if self.options.raw && !self.context.screen.json {
            return self.context.screen.bytes(bytes);
        }
        let whole = self.partial.take(bytes);
        self.text(&whole)
    }

    fn end(mut self) -> Result<(), Problem> {
        let rest = std::mem::take(&mut self.partial).rest();
        self.text(&rest)?;
        if self.context.screen.json {
            return self.context.screen.value(&Lines { lines: self.lines });
        }
        Ok(())
    }

    fn text(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        let text = String::from_utf8_lossy(bytes);
        let text = if self.options.raw { text } else { plain::text(&text).into() };
        let screen = &self.context.screen;
        match (screen.json, self.options.follow) {
            (false, _) => screen.bytes(text.as_bytes()),
            (true, false) => {
                self.lines.extend(text.lines().map(str::to_owned));
                Ok(())
            }
            (true, true) => text.lines().try_for_each(|line| screen.json_line(&Line { line })),
        }
    }
}
