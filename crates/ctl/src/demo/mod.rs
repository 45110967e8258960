//! `demo`: the whole self-restart loop with real programs, in a temporary folder.
//!
//! ```text
//!  mcp-restartctl demo ── starts ──► mcp-restartd ──► bridge ◄── MCP over HTTP ──┐
//!        │                               └──► shim ──► mcp-restartctl demo-agent ┘
//!        ├── events of the daemon ─┐                    lists, edits its entry, restarts itself,
//!        ├── lines of the log ─────┴─► Story            comes back, reads the note
//!        └── whatever happened: daemon down, folder gone, no process left
//! ```

mod agent;
mod mcp;
mod stage;
mod story;

pub(crate) use agent::agent;

use crate::context::Context;
use crate::problem::{Exit, Problem};
use crate::screen::{Screen, Style};
use serde::Serialize;
use stage::Stage;
use std::time::Duration;
use story::{Line, Story};
use tokio::signal::unix::{SignalKind, signal};

/// How long the whole demo may take, its end aside.
const LIMIT: Duration = Duration::from_secs(20);

/// How the play came to its end.
enum End {
    Played,
    Interrupted,
    Failed(Problem),
}

/// The whole demo as JSON.
#[derive(Serialize)]
struct Told<'a> {
    ok: bool,
    missing: Option<&'static str>,
    timeline: &'a [Line],
}

/// Shows an agent that restarts itself; exits 0 only if all of it happened.
pub(crate) async fn demo(context: &Context) -> Result<Exit, Problem> {
    let screen = &context.screen;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    screen.done(screen.paint(Style::Bold, "An agent restarts itself over MCP\n"))?;
    let mut story = Story::begin();
    let mut stage = Stage::set()?;
    let end = tokio::select! {
        played = tokio::time::timeout(LIMIT, stage.play(&mut story, |line| tell(screen, line))) => match played {
            Ok(Ok(())) => End::Played,
            Ok(Err(problem)) => End::Failed(problem),
            Err(_) => End::Failed(Problem::new(Exit::TimedOut, "it took longer than 20 s")),
        },
        _ = interrupted.recv() => End::Interrupted,
        _ = terminated.recv() => End::Interrupted,
        _ = hung_up.recv() => End::Interrupted,
    };
    let tails = if matches!(end, End::Failed(_)) { stage.log_tails() } else { String::new() };
    match stage.clear_away().await {
        Ok(()) => tell(screen, &story.cleared_away())?,
        Err(problem) => {
            return Err(problem.hint("look for what is left of mcp-restart-demo-… in the temporary folder"));
        }
    }
    let failed = match end {
        End::Played => None,
        End::Interrupted => {
            return Err(Problem::new(Exit::Interrupted, "interrupted; nothing is left behind"));
        }
        End::Failed(Problem::ReaderGone) => return Err(Problem::ReaderGone),
        End::Failed(Problem::Told { exit, message, hint, .. }) => {
            Some((exit, format!("{message}{}", hint.map(|hint| format!(" ({hint})")).unwrap_or_default())))
        }
    };
    conclude(screen, &story, failed, &tails)
}

fn tell(screen: &Screen, line: &Line) -> Result<(), Problem> {
    let time = format!("{:>5} ms", line.at.as_millis());
    let style = if line.who == story::DAEMON { Style::Cyan } else { Style::Green };
    let who = format!("{:<12}", line.who);
    screen.done(format_args!(
        "{}  {}  {}",
        screen.paint(Style::Dim, time),
        screen.paint(style, who),
        line.text
    ))
}

fn conclude(
    screen: &Screen,
    story: &Story,
    failed: Option<(Exit, String)>,
    tails: &str,
) -> Result<Exit, Problem> {
    let missing = story.missing();
    if screen.json {
        screen.value(&Told {
            ok: failed.is_none() && missing.is_none(),
            missing: missing.map(story::Step::what),
            timeline: story.lines(),
        })?;
    }
    if failed.is_none() && missing.is_none() {
        let verdict = "The same agent: a new process, a changed config, and the note arrived.";
        screen.done(format_args!("\n{} {verdict}", screen.paint(Style::Green, "✓")))?;
        return Ok(Exit::Done);
    }
    let step = missing.map_or("the end", story::Step::what);
    let (exit, why) = failed.unwrap_or((Exit::Failed, "it did not happen".to_owned()));
    Err(Problem::new(exit, format!("the demo failed at “{step}”: {why}{tails}"))
        .hint("this is a fault of mcp-restart or of its installation: please report it with the lines above"))
}
