//! `upgrade`: another program in the daemon's place, and every agent runs on.
//!
//! ```text
//!  ask the daemon ─► the program on disk, --check ─► have it leave ─► gone ─► start the next one ─► it serves
//!     │ refuses            │ refuses                    │ we are gone            (a service manager's task,
//!     ▼                    ▼                            ▼                         if it has one)
//!   the daemon goes on as before ◄──────────────────────┘
//! ```

use super::troubles;
use crate::candidate;
use crate::context::{Context, Place};
use crate::daemon_process::{self, Outcome, Starting};
use crate::problem::{Exit, Problem};
use crate::talk::{self, Summary, Upgrade};
use mcp_restart_paths::RestartPath;
use mcp_restart_protocol::answer::{NeedRestart, ServerStatus};
use mcp_restart_protocol::upgrade::{Launch, Offer};
use serde::Serialize;
use std::cell::RefCell;
use std::env;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a service manager may take to start the next daemon.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two looks whether it has.
const PAUSE: Duration = Duration::from_millis(20);

/// How the upgrade is waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Not for the next daemon.
    pub(crate) no_wait: bool,
    /// At most so long for all of it.
    pub(crate) timeout: Option<Duration>,
}

/// What has happened.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Upgraded {
    previous: Version,
    /// Not known without waiting for it.
    daemon: Option<Version>,
    url: Option<String>,
    /// The agents that run on.
    adopted: Vec<String>,
    need_restart: Vec<NeedRestart>,
}

#[derive(Debug, Serialize)]
struct Version {
    version: String,
    pid: u32,
}

/// A running agent, by name and process id.
type Running = (String, u32);

/// How far it has come: what somebody who waits no longer has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Progress {
    /// The program on disk is asked.
    Asking,
    /// The old daemon, of this process id, was told to leave.
    Leaving(u32),
    /// It is gone.
    Gone,
}

/// Upgrades the daemon.
pub(crate) async fn upgrade(context: &Context, options: Options) -> Result<(), Problem> {
    let place = context.place()?;
    let progress = RefCell::new(Progress::Asking);
    let limit = async {
        match options.timeout {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    let (exit, message) = tokio::select! {
        done = carry_out(context, &place, options.no_wait, &progress) => return done,
        () = limit => {
            let seconds = options.timeout.unwrap_or_default().as_secs_f64();
            (Exit::TimedOut, format!("the upgrade is not done after {seconds} s"))
        }
        Ok(()) = tokio::signal::ctrl_c() => (Exit::Interrupted, "the upgrade was interrupted".to_owned()),
    };
    let (state, remedy) = progress.borrow().told(place.program());
    Err(Problem::new(exit, format!("{message}: {state}")).hint(remedy))
}

impl Progress {
    /// What is so now, and what to do.
    fn told(&self, program: &str) -> (String, String) {
        match self {
            Self::Asking => (
                "the new program has not said yet that it takes over, and the old daemon goes on as before"
                    .to_owned(),
                format!("{program} upgrade tries again"),
            ),
            Self::Leaving(pid) => (
                format!(
                    "the old daemon (pid {pid}) was told to make way, and stays if nobody else starts the next one"
                ),
                format!("{program} status tells which daemon serves; {program} up starts one if none does"),
            ),
            Self::Gone => (
                "the old daemon has made way, every agent runs on, and the new one does not serve yet"
                    .to_owned(),
                format!("{program} status tells whether it does; {program} up starts one if none does"),
            ),
        }
    }
}

async fn carry_out(
    context: &Context,
    place: &Place,
    no_wait: bool,
    progress: &RefCell<Progress>,
) -> Result<(), Problem> {
    let mut upgrade = Upgrade::ask(place).await?;
    let offer = upgrade.offer.clone();
    place.is_served(&offer.config_file.0.to_string_lossy())?;
    let program = Path::new(&offer.program.0);
    let launch = launch_of(&offer);
    check(&offer, program, &launch).await?;
    let had_endpoint = talk::summary(&place.socket).await.is_ok_and(|summary| summary.url.is_some());
    let before = status(context, place).await.map(|status| running(&status));
    progress.replace(Progress::Leaving(offer.pid));
    upgrade.leave(place).await?;
    let (version, pid) = (offer.version, offer.pid);
    let previous = Version { version, pid };
    let next = if let Some(manager) = offer.manager {
        if no_wait {
            return left(context, previous, &format!("{manager} starts {}", program.display()));
        }
        upgrade.gone(place).await?;
        progress.replace(Progress::Gone);
        started_by(&manager, pid, place).await?
    } else {
        context.screen.detail(format_args!("waiting for the daemon (pid {pid}) to make way"));
        upgrade.gone(place).await?;
        progress.replace(Progress::Gone);
        // From here on nobody serves until this has done its part, or somebody says `up`.
        let starting = daemon_process::start_successor(RestartPath::CtlUpgrade, place, program, &launch)
            .map_err(|problem| again(problem, place))?;
        if no_wait {
            return left(
                context,
                previous,
                &format!("{} is started, pid {}", program.display(), starting.pid()),
            );
        }
        started_here(starting, place).await?
    };
    let lost = (had_endpoint && next.url.is_none()).then(|| endpoint_lost(&next));
    match lost {
        Some(lost) => Err(why_no_endpoint(lost, status(context, place).await)),
        None => tell(context, place, previous, next, before).await,
    }
}

/// That the new daemon serves and its endpoint does not.
fn endpoint_lost(next: &Summary) -> String {
    format!(
        "mcp-restartd {} (pid {}) serves and every agent runs on, but the MCP endpoint does not listen",
        next.version, next.pid
    )
}

fn why_no_endpoint(message: String, status: Option<ServerStatus>) -> Problem {
    let why = status.and_then(|status| status.endpoint_error);
    let lines: Vec<_> = std::iter::once(message).chain(why).collect();
    Problem::new(Exit::Failed, lines.join(": "))
        .hint("it is tried again and again; put a bridge there that works, and it listens without an upgrade")
}

/// How the successor is started. An agent is not told; what it would have to start is a service manager's.
fn launch_of(offer: &Offer) -> Launch {
    offer.launch.clone().unwrap_or_else(|| Launch {
        arguments: vec![
            "--config".into(),
            offer.config_file.clone(),
            "--state-dir".into(),
            offer.state_dir.clone(),
        ],
        cwd: None,
        environment: env::vars_os().map(|(name, value)| (name.into(), value.into())).collect(),
    })
}

/// The new program's own word before the old one is touched.
async fn check(offer: &Offer, program: &Path, launch: &Launch) -> Result<(), Problem> {
    let checked = if program.exists() {
        candidate::check(RestartPath::CtlUpgrade, program, launch).await
    } else {
        let message = format!("there is no program {} any more", program.display());
        Err(Problem::new(Exit::Failed, message)
            .hint("the daemon was started from there, and its successor will be: put the new version there"))
    };
    checked.map_err(|problem| match problem {
        Problem::Told { exit, message, hint, .. } => {
            let stays =
                format!("the daemon (pid {}, version {}) goes on as before", offer.pid, offer.version);
            Problem::Told { exit, code: None, message: format!("{stays}: {message}"), hint }
        }
        Problem::ReaderGone => Problem::ReaderGone,
    })
}

async fn started_here(mut starting: Starting, place: &Place) -> Result<Summary, Problem> {
    match starting.outcome().await {
        Ok(Outcome::Serves(summary)) => Ok(summary),
        // Somebody else has said `up` meanwhile.
        Ok(Outcome::Ended(status)) => match talk::summary(&place.socket).await {
            Ok(summary) => Ok(summary),
            Err(_) => Err(again(starting.failure(status), place)),
        },
        Err(problem) => {
            // It would keep another daemon from serving.
            starting.kill(RestartPath::CtlUpgrade)?;
            Err(again(problem, place))
        }
    }
}

/// The next daemon with its endpoint, or without it after a while.
async fn started_by(manager: &str, old: u32, place: &Place) -> Result<Summary, Problem> {
    let mut deadline = Instant::now() + PATIENCE;
    let mut serving = None;
    while Instant::now() < deadline {
        match talk::summary(&place.socket).await {
            Ok(summary) if summary.pid != old && summary.url.is_some() => return Ok(summary),
            Ok(summary) if summary.pid != old => {
                if serving.replace(summary).is_none() {
                    deadline = Instant::now() + daemon_process::PATIENCE;
                }
            }
            // Not yet there, or between its hello and its answer.
            Ok(_) | Err(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
    if let Some(summary) = serving {
        return Ok(summary);
    }
    let seconds = PATIENCE.as_secs();
    let message = format!(
        "the daemon (pid {old}) has made way with status 75, and {manager} has not started the next one after {seconds} s"
    );
    Err(Problem::new(Exit::Failed, message)
        .hint(format!("{manager} knows why; every agent runs on meanwhile")))
}

/// The old daemon is gone and the new one does not serve: what there is to be done.
fn again(problem: Problem, place: &Place) -> Problem {
    match problem {
        Problem::Told { message, hint, .. } => {
            let message = format!("the old daemon is gone and the new one does not serve: {message}");
            let remedy = format!(
                "every agent runs on; {} up takes them on as soon as the program works",
                place.program()
            );
            let hint = hint.map_or(remedy.clone(), |hint| format!("{hint}\n{remedy}"));
            Problem::new(Exit::Failed, message).hint(hint)
        }
        Problem::ReaderGone => Problem::ReaderGone,
    }
}

/// What the daemon tells, if this program speaks its protocol.
async fn status(context: &Context, place: &Place) -> Option<ServerStatus> {
    context.daemon_at(place).await.ok()?.status().await.ok()
}

fn running(status: &ServerStatus) -> Vec<Running> {
    let agents = status.agents.iter().chain(&status.unlisted);
    agents.filter_map(|agent| Some((agent.name.clone(), agent.pid?))).collect()
}

fn left(context: &Context, previous: Version, next: &str) -> Result<(), Problem> {
    let screen = &context.screen;
    if screen.json {
        let (adopted, need_restart) = (Vec::new(), Vec::new());
        return screen.value(&Upgraded { previous, daemon: None, url: None, adopted, need_restart });
    }
    screen.done(format_args!("the daemon {} (pid {}) makes way; {next}", previous.version, previous.pid))
}

async fn tell(
    context: &Context,
    place: &Place,
    previous: Version,
    next: Summary,
    before: Option<Vec<Running>>,
) -> Result<(), Problem> {
    let status = status(context, place).await;
    let after = status.as_ref().map(running).unwrap_or_default();
    let screen = &context.screen;
    for (name, pid) in before.iter().flatten().filter(|agent| status.is_some() && !after.contains(agent)) {
        screen.warning(format_args!(
            "{name} (pid {pid}) ended meanwhile; {} status shows how",
            place.program()
        ));
    }
    let kept = |agent: &&Running| before.as_ref().is_none_or(|before| before.contains(agent));
    let adopted: Vec<String> = after.iter().filter(kept).map(|(name, _)| name.clone()).collect();
    let need_restart = status.map(|status| status.need_restart).unwrap_or_default();
    if !screen.json {
        troubles::warn(screen, troubles::needs(&need_restart, place.program()));
        let on = match adopted.len() {
            0 => String::new(),
            1 => format!("; {} runs on", adopted.concat()),
            _ => format!("; {} run on", adopted.join(", ")),
        };
        return screen.done(format_args!(
            "upgraded: mcp-restartd {} (pid {}) → {} (pid {}){on}",
            previous.version, previous.pid, next.version, next.pid
        ));
    }
    let daemon = Some(Version { version: next.version, pid: next.pid });
    screen.value(&Upgraded { previous, daemon, url: next.url, adopted, need_restart })
}
