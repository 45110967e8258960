//! `guard` and `clear`: commands that would hit the supervisor or an agent are refused, and that is remembered.

use crate::context::{Context, Place};
use crate::guard::{Process, Protected, Refusal, judge};
use crate::problem::{Exit, Problem};
use crate::shims;
use crate::talk::Daemon;
use mcp_restart_protocol::answer::{Answer, Caller, Owner, ProtectedProcess};
use mcp_restart_protocol::contamination::{self, Contamination};
use mcp_restart_protocol::request::Request;
use mcp_restart_protocol::timestamp::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;

/// Where a command comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// From the command line, its words; without any from standard input.
    Words(Vec<String>),
    /// From the JSON that a hook of Claude Code is given.
    ClaudeHook,
}

/// As much of a command as the marker keeps, in characters.
const COMMAND_MAX: usize = 500;
/// The most that is read from standard input.
const INPUT_MAX: u64 = 4 << 20;

#[derive(Serialize)]
struct Allowed {
    allowed: bool,
}

/// What Claude Code tells a hook.
#[derive(Deserialize)]
struct HookInput {
    tool_name: String,
    #[serde(default)]
    tool_input: serde_json::Value,
}

/// Judges a command.
pub(crate) async fn guard(context: &Context, source: Source) -> Result<Exit, Problem> {
    match source {
        Source::Words(words) => {
            let command = if words.is_empty() { standard_input()? } else { words.join(" ") };
            match look_at(context, &command).await? {
                Some(refusal) => Err(Problem::new(Exit::NotAllowed, told(&refusal)).hint(instead(&refusal))),
                None if context.screen.json => {
                    context.screen.value(&Allowed { allowed: true }).map(|()| Exit::Done)
                }
                None => Ok(Exit::Done),
            }
        }
        Source::ClaudeHook => {
            let input = standard_input()?;
            // What cannot be understood cannot be let through; exit status 2 is how a hook says so.
            let Some(command) = hook_command(&input) else {
                let problem = Problem::new(
                    Exit::Usage,
                    "the hook's JSON names no tool, or a Bash tool without a command",
                );
                return Err(problem
                    .hint("mcp-restartctl guard --hook claude belongs to PreToolUse hooks of Claude Code"));
            };
            let Some(command) = command else { return Ok(Exit::Done) };
            if let Some(refusal) = look_at(context, &command).await.map_err(blocking)? {
                context.screen.json_line(&json!({ "hookSpecificOutput": {
                    "hookEventName": "PreToolUse",
                    "permissionDecision": "deny",
                    "permissionDecisionReason": format!("{}. Instead: {}", told(&refusal), instead(&refusal)),
                } }))?;
            }
            Ok(Exit::Done)
        }
    }
}

/// A problem that keeps a hook's command from being run, as any other exit status than 2 does not.
fn blocking(problem: Problem) -> Problem {
    match problem {
        Problem::Told { code, message, hint, .. } => Problem::Told {
            exit: Exit::Usage,
            code,
            message: format!("the command cannot be judged, so it may not be run: {message}"),
            hint,
        },
        Problem::ReaderGone => problem,
    }
}

/// Removes the marker of a refused command.
pub(crate) async fn clear(context: &Context) -> Result<(), Problem> {
    let place = context.place()?;
    let own = |agent: &str| {
        Problem::new(Exit::NotAllowed, format!("only the operator clears, and this runs inside {agent}"))
            .hint("run it in a terminal of your own")
    };
    if let Some(agent) = context.agent() {
        return Err(own(agent));
    }
    let mut daemon = match context.daemon_at(&place).await {
        Ok(daemon) => Some(daemon),
        Err(problem) if problem.exit() == Exit::NotRunning => None,
        Err(problem) => return Err(problem),
    };
    if let Some(daemon) = &mut daemon
        && let Caller::Agent { name } = daemon.status().await?.caller
    {
        return Err(own(&name));
    }
    let file = contamination::file(&place.state_dir);
    match fs::remove_file(&file) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return context.screen.done("there is nothing to clear");
        }
        Err(error) => {
            return Err(Problem::caused(Exit::Failed, format!("cannot remove {}", file.display()), &error));
        }
    }
    if let Some(daemon) = &mut daemon {
        daemon.ask(Request::MarkerChanged).await??;
    }
    context.screen.done("cleared")
}

fn standard_input() -> Result<String, Problem> {
    let mut bytes = Vec::new();
    io::stdin().lock().take(INPUT_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The command in the JSON of a hook; none for a tool that runs none.
#[expect(clippy::option_option, reason = "there is no command, or it is not known whether there is")]
fn hook_command(input: &str) -> Option<Option<String>> {
    let input: HookInput = serde_json::from_str(input).ok()?;
    let command = input.tool_input.get("command").and_then(|command| command.as_str()).map(str::to_owned);
    if input.tool_name == "Bash" && command.is_none() { None } else { Some(command) }
}

/// Judges a command by what runs now, and leaves the marker if it is refused.
async fn look_at(context: &Context, command: &str) -> Result<Option<Refusal>, Problem> {
    let place = context.place()?;
    let mut daemon = context.daemon_at(&place).await.ok();
    let protected = match &mut daemon {
        Some(daemon) => match daemon.ask(Request::Protected).await?? {
            Answer::Protected { processes, port } => protected(processes, port, context.agent()),
            other => return Err(crate::talk::unexpected(&other)),
        },
        None => without_daemon(&place, context.agent()),
    };
    let Some(refusal) = judge(command, &protected) else { return Ok(None) };
    // A refusal that cannot be remembered is one all the same.
    if let Err(Problem::Told { message, .. }) =
        remember(context, &place, daemon.as_mut(), &refusal, command).await
    {
        context.screen.warning(format_args!("this is not remembered: {message}"));
    }
    Ok(Some(refusal))
}

/// Leaves the marker, and has the daemon write down that it did.
async fn remember(
    context: &Context,
    place: &Place,
    daemon: Option<&mut Daemon>,
    refusal: &Refusal,
    command: &str,
) -> Result<(), Problem> {
    if mark(place, refusal, command, context.agent())?
        && let Some(daemon) = daemon
    {
        daemon.ask(Request::MarkerChanged).await??;
    }
    Ok(())
}

fn protected(processes: Vec<ProtectedProcess>, port: Option<u16>, own: Option<&str>) -> Protected {
    let process = |process: ProtectedProcess| Process {
        pid: Some(process.pid),
        parent: Some(process.parent),
        group: Some(process.group),
        names: process.names,
        command: process.command,
        owner: process.owner,
    };
    Protected { processes: processes.into_iter().map(process).collect(), port, own: own.map(str::to_owned) }
}

/// What is known where no daemon tells: what its programs are called, and which agents run on.
fn without_daemon(place: &Place, own: Option<&str>) -> Protected {
    let named = |name: &str, pid, owner| Process {
        pid,
        parent: None,
        group: pid,
        names: vec![name.to_owned()],
        command: name.to_owned(),
        owner,
    };
    // One that stands still, or is of another version, listens all the same and has its number in its lock.
    let listens = UnixStream::connect(&place.socket).is_ok();
    let lock = fs::read_to_string(place.state_dir.join("mcp-restartd.lock")).ok().filter(|_| listens);
    let daemon = lock.and_then(|text| text.trim().parse().ok());
    let mut processes =
        vec![named("mcp-restartd", daemon, Owner::Daemon), named("mcp-restart-http", None, Owner::Bridge)];
    processes.extend(
        shims::living_agents(&place.state_dir)
            .map(|(name, pid)| named(&name, pid, Owner::Agent(name.clone()))),
    );
    Protected { processes, port: None, own: own.map(str::to_owned) }
}

/// Leaves the marker of a refused command; whether there was none before.
fn mark(place: &Place, refusal: &Refusal, command: &str, agent: Option<&str>) -> Result<bool, Problem> {
    let file = contamination::file(&place.state_dir);
    // Without a state dir there has never been a daemon that the marker could stop.
    if file.exists() || !place.state_dir.is_dir() {
        return Ok(false);
    }
    let marker = Contamination {
        at: Timestamp::now(),
        command: command.chars().take(COMMAND_MAX).collect(),
        would_hit: refusal.hits.iter().map(ToString::to_string).collect(),
        agent: agent.map(str::to_owned),
    };
    let write = || {
        let mut draft = tempfile::NamedTempFile::new_in(&place.state_dir)?;
        draft.write_all(&serde_json::to_vec(&marker)?)?;
        draft.persist(&file)?;
        Ok::<_, io::Error>(())
    };
    write()
        .map_err(|error| Problem::caused(Exit::Failed, format!("cannot write {}", file.display()), &error))?;
    Ok(true)
}

fn told(refusal: &Refusal) -> String {
    let hits: Vec<_> = refusal.hits.iter().map(ToString::to_string).collect();
    format!("refused: this would hit {}", hits.join(", "))
}

/// The right commands for what was meant.
fn instead(refusal: &Refusal) -> String {
    let advice = refusal.hits.iter().map(|owner| match owner {
        Owner::Daemon => {
            "`mcp-restartctl upgrade` puts another daemon in its place and leaves every agent running, \
                          `mcp-restartctl down` stops everything"
                .to_owned()
        }
        Owner::Bridge => {
            "the daemon keeps the endpoint running by itself, `mcp-restartctl upgrade` renews it".to_owned()
        }
        Owner::Agent(name) => {
            format!("`mcp-restartctl restart {name}` restarts it, `mcp-restartctl stop {name}` ends it")
        }
    });
    advice.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Found;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_daemon_that_does_not_answer_is_known_by_its_lock_for_as_long_as_it_listens() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path().to_owned(), None, Found::BySocket);
        fs::write(folder.path().join("mcp-restartd.lock"), "4100\n").unwrap();
        assert_eq!(judge("kill 4100", &without_daemon(&place, None)), None);
        let _listening = UnixListener::bind(&place.socket).unwrap();
        let refusal = judge("kill 4100", &without_daemon(&place, None)).unwrap();
        assert_eq!(refusal.hits, [Owner::Daemon]);
        assert!(judge("pkill mcp-restartd", &without_daemon(&place, None)).is_some());
    }

    #[test]
    fn the_command_of_a_hook_is_found_and_what_cannot_be_understood_is_not_let_through() {
        let bash = r#"{ "tool_name": "Bash", "tool_input": { "command": "ls" }, "session_id": "x" }"#;
        assert_eq!(hook_command(bash), Some(Some("ls".into())));
        assert_eq!(
            hook_command(r#"{ "tool_name": "Read", "tool_input": { "file_path": "/x" } }"#),
            Some(None)
        );
        for wrong in [
            "",
            "{}",
            r#"{ "tool_name": "Bash" }"#,
            r#"{ "tool_name": "Bash", "tool_input": { "command": 1 } }"#,
        ] {
            assert_eq!(hook_command(wrong), None, "{wrong}");
        }
    }
}
