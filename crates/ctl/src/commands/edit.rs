//! `init`, `add`, `remove` and `set`: the config file, changed under a lock.

use crate::context::{Context, no_config_file, same_file};
use crate::problem::{Exit, Problem};
use crate::programs::on_path;
use crate::screen::Screen;
use crate::talk::unknown_agent;
use mcp_restart_config::Kind;
use mcp_restart_config::edit::{self, EditError, FoundAgent};
use serde_json::json;
use std::env;
use std::ffi::OsStr;
use std::path::Path;

/// Writes a config file with the agents that are found on PATH.
pub(crate) fn init(context: &Context, force: bool) -> Result<(), Problem> {
    let file = context.new_config_file();
    let found = found_agents(env::var_os("PATH").as_deref());
    edit::init(&file, &found, force).map_err(|error| problem(context, error))?;
    let names: Vec<_> = found.iter().map(|agent| agent.name.as_str()).collect();
    let screen = &context.screen;
    if screen.json {
        return screen.value(&json!({ "file": file, "found": names }));
    }
    screen.done(format_args!("wrote {}", file.display()))?;
    match names.as_slice() {
        [] => screen.done("found no agent CLI on PATH, so it has an entry for claude to begin with"),
        names => screen.done(format_args!("found on PATH: {}", names.join(", "))),
    }?;
    screen.done("next: mcp-restartctl up")
}

/// Adds an agent.
pub(crate) fn add(context: &Context, name: &str, command: &[String]) -> Result<(), Problem> {
    let file = context.config_file();
    edit::add(&file, &context.environment, name, command).map_err(|error| problem(context, error))?;
    tell(&context.screen, &file, &format!("added {name}"))
}

/// Removes an agent.
pub(crate) async fn remove(context: &Context, name: &str) -> Result<(), Problem> {
    let file = context.config_file();
    edit::remove(&file, &context.environment, name).map_err(|error| problem(context, error))?;
    let left = match running(context, &file, name).await {
        Some(pid) => format!("; its process {pid} runs on: {} stop {name} ends it", context.program()),
        None => String::new(),
    };
    tell(&context.screen, &file, &format!("removed {name}{left}"))
}

/// The process of an agent, if a daemon runs that serves this file and has one.
async fn running(context: &Context, file: &Path, name: &str) -> Option<u32> {
    let mut daemon = context.daemon().await.ok()?;
    let status = daemon.status().await.ok()?;
    let agent = status.agents.iter().chain(&status.unlisted).find(|agent| agent.name == name)?;
    agent.pid.filter(|_| same_file(file, Path::new(&status.config_file)))
}

/// Changes fields of an agent.
pub(crate) fn set(context: &Context, name: &str, fields: &[(String, String)]) -> Result<(), Problem> {
    let file = context.config_file();
    edit::set(&file, &context.environment, name, fields).map_err(|error| problem(context, error))?;
    let names: Vec<_> = fields.iter().map(|(field, _)| field.as_str()).collect();
    tell(&context.screen, &file, &format!("set {} of {name}, for its next start", names.join(", ")))
}

fn tell(screen: &Screen, file: &Path, text: &str) -> Result<(), Problem> {
    screen.detail(format_args!("file {}", file.display()));
    if screen.json { screen.value(&json!({ "file": file })) } else { screen.done(text) }
}

fn problem(context: &Context, error: EditError) -> Problem {
    match error {
        EditError::Invalid(error) if !error.file.exists() => no_config_file(&error.file),
        EditError::Invalid(error) => error.into(),
        EditError::Exists(file) => Problem::new(Exit::Failed, format!("{} is there already", file.display()))
            .hint("--force replaces it"),
        EditError::UnknownAgent { name, suggestion } => {
            let unknown = unknown_agent(&name, &agent_names(context));
            match suggestion {
                Some(meant) => Problem::new(Exit::UnknownAgent, format!("there is no agent {name:?}"))
                    .hint(format!("did you mean {meant}?")),
                None => unknown,
            }
        }
        EditError::Change(_) => Problem::caused(Exit::Usage, "nothing was changed", &error),
        EditError::NameTaken(taken) => {
            Problem::new(Exit::Failed, format!("there is an agent {taken} already (case is ignored)"))
                .hint(format!("{} set {taken} FIELD=VALUE changes it", context.program()))
        }
        EditError::Renamed => Problem::caused(Exit::Usage, "nothing was changed", &error)
            .hint("under another name it is another agent: add that one and remove this one"),
        EditError::Field(_) => Problem::caused(Exit::Usage, "nothing was changed", &error)
            .hint("mcp-restartctl config schema describes every field"),
        EditError::Io { .. } => Problem::caused(Exit::Failed, "nothing was changed", &error),
    }
}

fn agent_names(context: &Context) -> Vec<String> {
    context.config().map_or(Vec::new(), |config| config.agents.into_iter().map(|agent| agent.name).collect())
}

/// The agent CLIs that a PATH leads to.
fn found_agents(path: Option<&OsStr>) -> Vec<FoundAgent> {
    let is_there = |kind: &Kind| on_path(kind.as_str(), path).is_some();
    let known = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Generic).filter(is_there);
    known
        .map(|kind| FoundAgent { name: kind.as_str().to_owned(), command: kind.as_str().to_owned() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn agents_are_found_where_path_has_a_program_of_their_name() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, mode: u32| {
            let file = folder.path().join(name);
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        };
        write("codex", 0o755);
        write("claude", 0o644);
        write("generic", 0o755);
        fs::create_dir(folder.path().join("gemini")).unwrap();
        let names = |path: Option<&OsStr>| -> Vec<String> {
            found_agents(path).into_iter().map(|agent| agent.name).collect()
        };
        assert_eq!(names(Some(folder.path().as_os_str())), ["codex"]);
        assert!(names(None).is_empty());
    }
}
