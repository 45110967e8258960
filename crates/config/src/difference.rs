//! What changed between two readings of a file.

use crate::config::{Agent, Config};
use crate::show;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

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
