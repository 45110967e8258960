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
use serde_json::json;
use stage::Stage;
use std::time::Duration;
use story::{Line, Story};
use tokio::signal::unix::{SignalKind, signal};

/// How long the whole demo may take, its end aside.
const LIMIT: Duration = Duration::from_secs(20);

/// Shows an agent that restarts itself; exits 0 only if all of it happened.
pub(crate) async fn demo(context: &Context) -> Result<Exit, Problem> {
    let screen = &context.screen;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    screen.done(screen.paint(Style::Bold, "An agent restarts itself over MCP\n"))?;
    let mut story = Story::begin();
    let mut stage = Stage::set()?;
    let played = tokio::select! {
        played = tokio::time::timeout(LIMIT, stage.play(&mut story, |line| tell(screen, line))) => {
            played.unwrap_or_else(|_| Err(Problem::new(Exit::TimedOut, "it took longer than 20 s")))
        }
        _ = interrupted.recv() => Err(Problem::new(Exit::Failed, "interrupted")),
        _ = terminated.recv() => Err(Problem::new(Exit::Failed, "terminated")),
        _ = hung_up.recv() => Err(Problem::new(Exit::Failed, "the terminal is gone")),
    };
    let tails = if played.is_err() { stage.log_tails() } else { String::new() };
    let cleared = stage.clear_away().await;
    let failed = played.err().or(cleared.as_ref().err().cloned());
    if cleared.is_ok() {
        let line = story.cleared_away();
        tell(screen, &line)?;
    }
    conclude(context, &story, failed, &tails)
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

fn conclude(context: &Context, story: &Story, failed: Option<Problem>, tails: &str) -> Result<Exit, Problem> {
    let screen = &context.screen;
    let missing = story.missing();
    let happened = failed.is_none() && missing.is_none();
    if screen.json {
        screen.value(&json!({
            "ok": happened,
            "timeline": story.lines(),
            "missing": missing.map(story::Step::what),
        }))?;
    }
    match (failed, missing) {
        (None, None) => {
            let verdict = "The same agent: a new process, a changed config, and the note arrived.";
            screen.done(format_args!("\n{} {verdict}", screen.paint(Style::Green, "✓")))?;
            Ok(Exit::Done)
        }
        (failed, missing) => {
            let step = missing.map_or("everything happened, but", story::Step::what);
            let (exit, why) = match failed {
                Some(Problem::Told { exit, message, hint }) => {
                    (exit, [Some(message), hint].into_iter().flatten().collect::<Vec<_>>().join("; "))
                }
                Some(Problem::ReaderGone) => return Err(Problem::ReaderGone),
                None => (Exit::Failed, "it did not happen".to_owned()),
            };
            Err(Problem::new(exit, format!("the demo failed at “{step}”: {why}{tails}"))
                .hint("please report this with the lines above"))
        }
    }
}
