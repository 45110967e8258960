//! What changed between two readings of a file.

use crate::config::{Agent, Config};
use crate::{Environment, from_text, show};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

impl Config {
    /// The JSON names of the top-level fields that differ, of those that a re-read does not apply: all but
    /// `agents` and `stdioServers`. A token that moved into its file and is the same is no difference.
    pub fn settings_diff(&self, other: &Self) -> Vec<String> {
        changed_fields(&show::settings(self), &show::settings(other))
    }
}

impl Agent {
    /// The JSON names of the fields that differ, each variable of `env` by its own (`env.PATH`).
    pub fn diff(&self, other: &Self) -> Vec<String> {
        let (this, other) = (show::agent_fields(self), show::agent_fields(other));
        let mut changed = changed_fields(&this, &other);
        if let Some(env) = changed.iter().position(|name| name == "env") {
            let variables = |agent: &Map<String, Value>| agent.get("env").and_then(Value::as_object).cloned();
            let names =
                changed_fields(&variables(&this).unwrap_or_default(), &variables(&other).unwrap_or_default());
            changed.splice(env..=env, names.into_iter().map(|name| format!("env.{name}")));
        }
        changed
    }

    /// Every field by its JSON name, secrets and all: only for places that nobody else reads.
    /// [`Agent::from_fields`] gives the same agent.
    pub fn to_fields(&self) -> Map<String, Value> {
        show::agent_fields(self)
    }

    /// The agent of [`Agent::to_fields`]; none if this version does not know a field, or no longer takes its value.
    pub fn from_fields(mut fields: Map<String, Value>) -> Option<Self> {
        fields.retain(|_, value| !value.is_null());
        let text = serde_json::json!({ "agents": [fields] }).to_string();
        let environment = Environment { cwd: "/".into(), ..Environment::default() };
        from_text(&text, Path::new("/config.json"), &environment).ok()?.agents.pop()
    }

    /// A number that is the same for the same entry, whichever version of these programs reads it: FNV-1a over its fields, each
    /// with its JSON name and its value as JSON, in the order of the names. Fields without a value do not count. One that a later
    /// version adds has to have none unless the file gives it one, lest that version takes every process for one of another entry.
    pub fn fingerprint(&self) -> u64 {
        let fields: BTreeMap<_, _> =
            show::agent_fields(self).into_iter().filter(|(_, value)| !value.is_null()).collect();
        let text =
            fields.into_iter().fold(String::new(), |text, (name, value)| text + &format!("{name}={value}\n"));
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// Whether a process of this entry is launched as one of the other would be: the same program in the
    /// same folder with the same arguments, environment and terminal. How it is stopped, logged or limited
    /// may differ.
    pub fn launches_like(&self, other: &Self) -> bool {
        let launch = |agent: &Self| {
            let Self { name, command, args, cwd, env, kind, tty, inject_mcp, resume, restart_args, .. } =
                agent.clone();
            (name, command, args, cwd, env, kind, tty, inject_mcp, resume, restart_args)
        };
        launch(self) == launch(other)
    }
}

fn changed_fields(this: &Map<String, Value>, other: &Map<String, Value>) -> Vec<String> {
    let names: BTreeSet<_> = this.keys().chain(other.keys()).collect();
    names.into_iter().filter(|name| this.get(*name) != other.get(*name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str) -> Agent {
        let text = format!(r#"{{ "agents": [{{ "name": "a", "command": "sleep", "cwd": "/" {text} }}] }}"#);
        let environment = Environment { cwd: "/".into(), ..Environment::default() };
        from_text(&text, Path::new("/config.json"), &environment).unwrap().agents.pop().unwrap()
    }

    #[test]
    fn a_fingerprint_is_the_same_in_every_version_and_another_for_every_other_entry() {
        // Processes outlive daemons: if this number has to change, each of them is shown as changed once.
        assert_eq!(entry("").fingerprint(), 0xcf87_398f_6b14_406a);
        let others = [
            r#", "args": ["60"]"#,
            r#", "args": ["6", "0"]"#,
            r#", "env": { "A": "1" }"#,
            r#", "tty": true"#,
            r#", "logFile": "/tmp/a""#,
            r#", "control": "none""#,
        ];
        let mut found: Vec<u64> = others.iter().map(|text| entry(text).fingerprint()).collect();
        found.push(entry("").fingerprint());
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), others.len() + 1);
        assert_eq!(entry(r#", "args": []"#).fingerprint(), entry("").fingerprint());
    }
}
