//! `events`: what was asked for, what became of it, and what happened unasked. Reads the file itself; no daemon is needed.

use crate::commands::follow::{Piece, Snapshot, WholeLines};
use crate::commands::logs::before_another_look;
use crate::context::Context;
use crate::problem::{Exit, Problem};
use crate::render;
use crate::screen::{Screen, Style};
use mcp_restart_protocol::journal::{Happening, Line, Outcome, Well, file};
use serde::Serialize;
use std::collections::VecDeque;

/// How many events are shown if nobody says how many.
const EVENTS: usize = 100;

/// Which events to show.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Go on with what happens.
    pub(crate) follow: bool,
    /// Only those of one agent.
    pub(crate) agent: Option<String>,
    /// How many of the newest.
    pub(crate) lines: Option<usize>,
}

#[derive(Serialize)]
struct Events {
    events: VecDeque<Line>,
}

/// Shows the events of the daemon's state dir.
pub(crate) async fn events(context: &Context, options: Options) -> Result<(), Problem> {
    let file = file(&context.place()?.state_dir);
    context.screen.detail(format_args!("events {}", file.display()));
    let unreadable = |error| Problem::caused(Exit::Failed, format!("cannot read {}", file.display()), &error);
    let wanted = |line: &Line| options.agent.is_none() || line.agent == options.agent;
    let mut snapshot = Snapshot::of(&file, usize::MAX, None).map_err(unreadable)?;
    let mut lines = WholeLines::default();
    let mut newest = VecDeque::new();
    let most = options.lines.unwrap_or(EVENTS);
    while let Some(bytes) = snapshot.next().map_err(unreadable)? {
        newest.extend(parsed(&lines.take(&bytes)).filter(wanted));
        let surplus = newest.len().saturating_sub(most);
        newest.drain(..surplus);
    }
    let screen = &context.screen;
    if !options.follow {
        if screen.json {
            return screen.value(&Events { events: newest });
        }
        return newest.iter().try_for_each(|line| show(screen, line));
    }
    newest.iter().try_for_each(|line| show(screen, line))?;
    let mut following = snapshot.follow().map_err(unreadable)?;
    loop {
        while let Some(piece) = following.next().map_err(unreadable)? {
            match piece {
                Piece::Bytes(bytes) => {
                    parsed(&lines.take(&bytes)).filter(wanted).try_for_each(|line| show(screen, &line))?;
                }
                Piece::Gap => screen.warning("events may be missing here"),
            }
        }
        before_another_look().await?;
    }
}

/// The events in whole lines. What is none is left out: half a line is what a daemon that was killed may leave.
fn parsed(lines: &[u8]) -> impl Iterator<Item = Line> {
    lines.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}

fn show(screen: &Screen, line: &Line) -> Result<(), Problem> {
    if screen.json {
        return screen.json_line(line);
    }
    screen.line(format_args!(
        "{}  {}  {}",
        screen.paint(Style::Dim, line.at),
        screen.paint(Style::Bold, format_args!("{:12}", line.agent.as_deref().unwrap_or("-"))),
        told(line)
    ))
}

/// An event in words.
fn told(line: &Line) -> String {
    let message = line.message.as_ref().map_or_else(String::new, |message| format!(": {message}"));
    let pid = |pid: Option<u32>| pid.map_or_else(|| "none".to_owned(), |pid| pid.to_string());
    let by_path = line.path_id.as_ref().map_or_else(String::new, |path| format!(", by {path}"));
    match line.event {
        Happening::DaemonStarted => format!("the daemon started, pid {}{message}", pid(line.new_pid)),
        Happening::UncleanShutdown => format!("the daemon before was killed, not stopped{message}"),
        Happening::DaemonStopped => format!("the daemon stopped{by_path}"),
        Happening::DaemonMadeWay => "the daemon made way for the next one; every agent runs on".to_owned(),
        Happening::Requested => requested(line, &message),
        Happening::Adopted => format!("runs on, pid {}", pid(line.new_pid)),
        Happening::Started => {
            format!(
                "started, pid {}, generation {}{by_path}",
                pid(line.new_pid),
                line.generation.unwrap_or_default()
            )
        }
        Happening::Ended => {
            let how = line.exit.as_ref().map_or_else(|| "ended".to_owned(), render::how_it_ended);
            format!("pid {}: {how}{by_path}", pid(line.old_pid))
        }
        Happening::Failed => format!("could not be started{message}"),
        Happening::BridgeStarted => format!("the endpoint's bridge started, pid {}", pid(line.new_pid)),
        Happening::BridgeEnded => {
            format!("the endpoint's bridge, pid {}, ended{by_path}{message}", pid(line.old_pid))
        }
        Happening::ServerEnded => format!("stdio server, pid {}: ended{by_path}", pid(line.old_pid)),
        Happening::Contaminated => format!("contaminated{message}"),
        Happening::Cleared => "the operator has cleared the contamination".to_owned(),
    }
}

fn requested(line: &Line, message: &str) -> String {
    let outcome = match line.outcome {
        Some(Outcome::Well(Well::Done)) => "done".to_owned(),
        Some(Outcome::Well(Well::Accepted)) => "accepted".to_owned(),
        Some(Outcome::Failed(code)) => code.to_string(),
        None => "unknown".to_owned(),
    };
    let who = line.caller.as_ref().map_or_else(|| "somebody".to_owned(), render::caller);
    let change = match (line.old_pid, line.new_pid) {
        (old, new) if old == new => String::new(),
        (Some(old), Some(new)) => format!(", pid {old} → {new}"),
        (Some(old), None) => format!(", pid {old} ended"),
        (None, Some(new)) => format!(", pid {new}"),
        (None, None) => String::new(),
    };
    let time = line.duration_ms.map_or_else(String::new, |millis| format!(", {millis} ms"));
    let path = line.path_id.as_deref().unwrap_or("unknown path");
    format!("{path} asked for by {who}: {outcome}{change}{time}{message}")
}
