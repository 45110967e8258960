//! The agents that live under their shims while no daemon runs.

use serde_json::Value;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// How many are named before the rest is only counted.
const NAMED_MAX: usize = 5;

/// The agents of a state dir whose shims listen and that have not ended: `name (pid N)` each. What cannot be
/// read is named by its file.
pub(crate) fn living(state_dir: &Path) -> Vec<String> {
    held(state_dir).iter().filter_map(|file| described(file)).collect()
}

/// The facts of the shims that listen.
fn held(state_dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(state_dir.join("run")).into_iter().flatten().flatten();
    let mut facts: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|file| file.extension().is_some_and(|extension| extension == "json"))
        .collect();
    facts.sort();
    facts.retain(|file| UnixStream::connect(file.with_extension("sock")).is_ok());
    facts
}

/// The names of those whose facts can be read, each with the process id of its agent.
pub(crate) fn living_agents(state_dir: &Path) -> impl Iterator<Item = (String, Option<u32>)> {
    held(state_dir).into_iter().filter_map(|file| living_agent(&facts(&file)?))
}

/// Some of them by name, and how many more there are.
pub(crate) fn listed(all: &[String]) -> String {
    match all.split_at_checked(NAMED_MAX) {
        Some((named, rest)) if !rest.is_empty() => format!("{} and {} more", named.join(", "), rest.len()),
        _ => all.join(", "),
    }
}

/// None for one that has ended, whose shim only keeps the word of it.
fn described(file: &Path) -> Option<String> {
    let Some(facts) = facts(file) else { return Some(file.display().to_string()) };
    Some(match living_agent(&facts)? {
        (name, Some(pid)) => format!("{name} (pid {pid})"),
        (name, None) => name,
    })
}

fn facts(file: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

/// None for one that has ended.
fn living_agent(facts: &Value) -> Option<(String, Option<u32>)> {
    let pid = facts.pointer("/agent/pid").and_then(Value::as_u64).and_then(|pid| pid.try_into().ok());
    facts.get("exit").is_none_or(Value::is_null).then_some((facts.get("name")?.as_str()?.to_owned(), pid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_an_agent_that_lives_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        assert_eq!(living(dir.path()), [""; 0]);
        fs::create_dir(&run).unwrap();
        fs::write(run.join("1.json"), r#"{"name":"living","agent":{"pid":7},"exit":null}"#).unwrap();
        fs::write(run.join("2.json"), r#"{"name":"dead","agent":{"pid":8}}"#).unwrap();
        fs::write(run.join("3.json"), r#"{"name":"ended","agent":{"pid":9},"exit":{}}"#).unwrap();
        let _living = UnixListener::bind(run.join("1.sock")).unwrap();
        drop(UnixListener::bind(run.join("2.sock")).unwrap());
        let _ended = UnixListener::bind(run.join("3.sock")).unwrap();
        assert_eq!(living(dir.path()), ["living (pid 7)"]);
    }

    #[test]
    fn a_few_are_named_and_the_rest_is_counted() {
        let names: Vec<String> = (0..7).map(|number| format!("a{number}")).collect();
        assert_eq!(listed(&names[..2]), "a0, a1");
        assert_eq!(listed(&names), "a0, a1, a2, a3, a4 and 2 more");
    }
}
