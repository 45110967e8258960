//! The configuration as it is in force, for people to look at: every field by its JSON name, defaults
//! included, secrets redacted.

use crate::config::{
    Agent, Config, Control, Inject, KeepChildren, Resume, Rollback, StdioServer, Strictness,
};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// What stands in the place of a secret.
const REDACTED: &str = "[redacted]";

/// The whole configuration. What has no value (`token`, `stateDir`, `logFile`, …) is null.
pub fn config(config: &Config) -> Value {
    let mut fields = settings(config);
    if config.token.is_some() {
        fields.insert("token".to_owned(), REDACTED.into());
    }
    fields.insert("agents".to_owned(), config.agents.iter().map(agent).collect());
    fields.insert("stdioServers".to_owned(), config.stdio_servers.iter().map(stdio_server).collect());
    Value::Object(fields)
}

/// One agent.
pub fn agent(agent: &Agent) -> Value {
    let mut fields = agent_fields(agent);
    fields.insert("args".to_owned(), redacted_args(&agent.args).into());
    fields.insert("env".to_owned(), variables(&agent.env));
    Value::Object(fields)
}

/// Variables, without the secrets among them.
pub fn variables<'a>(variables: impl IntoIterator<Item = (&'a String, &'a String)>) -> Value {
    let shown = variables.into_iter().map(|(name, value)| {
        let is_secret = is_secret_name(name) || has_password(value);
        (name.clone(), Value::from(if is_secret { REDACTED } else { value }))
    });
    Value::Object(shown.collect())
}

/// The fields of the top level that a re-read does not apply, secrets and all.
pub(crate) fn settings(config: &Config) -> Map<String, Value> {
    object(json!({
        "host": config.host,
        "port": config.port,
        "token": config.token.as_ref().map(crate::Secret::expose),
        "stateDir": config.state_dir.as_ref().map(|folder| folder.to_string_lossy()),
        "staleDaemon": strictness(config.stale_daemon),
        "contamination": strictness(config.contamination),
    }))
}

/// Every field of an agent, secrets and all.
pub(crate) fn agent_fields(agent: &Agent) -> Map<String, Value> {
    object(json!({
        "name": agent.name,
        "command": agent.command,
        "args": agent.args,
        "cwd": agent.cwd.to_string_lossy(),
        "env": agent.env,
        "autostart": agent.autostart,
        "gracefulTimeoutMs": milliseconds(agent.graceful_timeout),
        "stopSignal": agent.stop_signal.name(),
        "kind": agent.kind.as_str(),
        "tty": agent.tty,
        "injectMcp": match agent.inject_mcp {
            Inject::No => json!(false),
            Inject::Yes => json!(true),
            Inject::Project => json!("project"),
        },
        "resume": match agent.resume {
            Resume::Same => "same",
            Resume::Fresh => "fresh",
        },
        "restartArgs": agent.restart_args,
        "rollback": match agent.rollback {
            Rollback::Never => json!(false),
            Rollback::SelfRestarts(within) => json!({ "withinMs": milliseconds(within), "always": false }),
            Rollback::EveryRestart(within) => json!({ "withinMs": milliseconds(within), "always": true }),
        },
        "selfRestartDelayMs": milliseconds(agent.self_restart_delay),
        "keepChildren": match &agent.keep_children {
            KeepChildren::All => json!(true),
            KeepChildren::Named(programs) => json!(programs),
        },
        "settleMs": milliseconds(agent.settle),
        "logFile": agent.log_file.as_ref().map(|file| file.to_string_lossy()),
        "logMaxBytes": agent.log_max_bytes,
        "logKeep": agent.log_keep,
        "control": match agent.control {
            Control::All => "all",
            Control::SelfOnly => "self",
            Control::None => "none",
        },
        "selfRestartLimit": {
            "max": agent.self_restart_limit.max,
            "withinMs": milliseconds(agent.self_restart_limit.within),
        },
    }))
}

fn stdio_server(server: &StdioServer) -> Value {
    json!({ "name": server.name, "match": server.matches, "graceMs": milliseconds(server.grace) })
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn strictness(strictness: Strictness) -> &'static str {
    match strictness {
        Strictness::Warn => "warn",
        Strictness::Refuse => "refuse",
    }
}

/// Times come from whole milliseconds of at most a day.
fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Arguments, without the secrets among them.
pub fn arguments(args: &[String]) -> Vec<String> {
    redacted_args(args)
}

/// Redacts `--api-key=VALUE`, `--api-key VALUE`, and addresses with a password.
pub fn redacted_args(args: &[String]) -> Vec<String> {
    let mut follows_secret = false;
    let redacted = args.iter().map(|arg| {
        if std::mem::take(&mut follows_secret) && !arg.starts_with('-') {
            return REDACTED.to_owned();
        }
        match arg.split_once('=') {
            Some((name, _)) if is_secret_name(name) => format!("{name}={REDACTED}"),
            _ if has_password(arg) => REDACTED.to_owned(),
            _ => {
                follows_secret = arg.starts_with('-') && is_secret_name(arg);
                arg.clone()
            }
        }
    });
    redacted.collect()
}

/// Whether what goes by this name is probably a secret. Redacting too much does no harm.
fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "AUTHORIZATION"]
        .iter()
        .any(|word| name.contains(word))
}

/// Whether a text is an address such as `postgres://ada:hunter2@host`.
fn has_password(text: &str) -> bool {
    text.split_once("://").is_some_and(|(_, rest)| {
        let authority = rest.split('/').next().unwrap_or(rest);
        authority.split_once('@').is_some_and(|(user, _)| user.contains(':'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(args: &[&str]) -> Vec<String> {
        redacted_args(&args.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_that_carry_a_secret_are_redacted() {
        assert_eq!(redacted(&["--api-key=x", "run"]), ["--api-key=[redacted]", "run"]);
        assert_eq!(redacted(&["--token", "x", "y"]), ["--token", "[redacted]", "y"]);
        assert_eq!(redacted(&["--no-token", "--verbose"]), ["--no-token", "--verbose"]);
        assert_eq!(redacted(&["postgres://ada:hunter2@db/x"]), ["[redacted]"]);
        assert_eq!(redacted(&["https://example.org/a:b@c", "key"]), ["https://example.org/a:b@c", "key"]);
    }
}
