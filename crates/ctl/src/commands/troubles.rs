//! What the daemon finds wrong, in one wording for `status`, `list`, `upgrade` and `doctor`.

use crate::screen::Screen;
use mcp_restart_protocol::answer::{NeedRestart, ServerStatus};

/// One thing that is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// What it is about: `config`, `state`, `endpoint`, `daemon`, `agent`.
    pub(crate) about: &'static str,
    /// What is wrong.
    pub(crate) message: String,
    /// What helps.
    pub(crate) remedy: String,
}

impl Trouble {
    fn new(about: &'static str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { about, message: message.into(), remedy: remedy.into() }
    }
}

/// Tells them as warnings.
pub(crate) fn warn(screen: &Screen, troubles: impl IntoIterator<Item = Trouble>) {
    for Trouble { message, remedy, .. } in troubles {
        screen.warning(format_args!("{message}\n         remedy: {remedy}"));
    }
}

/// Everything that a daemon says is wrong; `program` is what this command is called.
pub(crate) fn of(status: &ServerStatus, program: &str) -> Vec<Trouble> {
    let log = format!("see mcp-restart.log in {}", status.state_dir);
    let endpoint = status.endpoint_error.as_ref().map(|error| {
        Trouble::new(
            "endpoint",
            format!("the MCP endpoint is not served: {error}"),
            format!("{log}; the daemon starts it again by itself"),
        )
    });
    let state = status.state_error.as_ref().map(|error| {
        let message = format!(
            "the state cannot be stored, so that a daemon that dies now is not succeeded by one that knows it all: {error}"
        );
        Trouble::new("state", message, "free what it lacks; it is tried again by itself")
    });
    let pending = (!status.pending_config.is_empty()).then(|| {
        let fields = status.pending_config.join(", ");
        let message = format!("changes of {fields} wait for the next start of the daemon");
        Trouble::new("daemon", message, format!("{program} upgrade"))
    });
    // The daemon says what helps behind what is wrong.
    let replaced = status.stale.as_ref().map(|stale| match stale.rsplit_once("; ") {
        Some((message, remedy)) => Trouble::new("daemon", message, remedy),
        None => Trouble::new("daemon", stale, format!("{program} upgrade")),
    });
    let contaminated = status.contaminated.as_ref().map(|marker| {
        Trouble::new(
            "daemon",
            marker,
            format!("look at what happened, then {program} clear, outside any agent"),
        )
    });
    let recovered = status.recovered.iter().filter(|recovered| recovered.attention);
    let recovered = recovered.map(|recovered| Trouble::new("daemon", &recovered.text, &log));
    let single = [endpoint, config(status), state, pending, replaced, contaminated];
    single.into_iter().flatten().chain(recovered).chain(needs(&status.need_restart, program)).collect()
}

/// A config file that cannot be used any more.
pub(crate) fn config(status: &ServerStatus) -> Option<Trouble> {
    let error = status.config_error.as_ref()?;
    let message = format!("the config file cannot be used: {error}");
    Some(Trouble::new("config", message, "mend it; until then the last good one is in force"))
}

/// The agents that have to be restarted before this daemon can do all for them that it should.
pub(crate) fn needs(needs: &[NeedRestart], program: &str) -> Vec<Trouble> {
    let need = |NeedRestart { name, reason }: &NeedRestart| {
        Trouble::new(
            "agent",
            format!("{name} needs a restart: {reason}"),
            format!("{program} restart {name}"),
        )
    };
    needs.iter().map(need).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::status;
    use mcp_restart_protocol::answer::Recovered;
    use std::path::Path;

    #[test]
    fn each_trouble_is_told_once_and_with_its_remedy() {
        let status = ServerStatus {
            config_error: Some("c.json:1:1: no".into()),
            endpoint_error: Some("it ended 5 times in a row".into()),
            state_error: Some("no space left".into()),
            stale: Some(
                "/bin/mcp-restartd was replaced; `mcp-restartctl upgrade` starts what is on disk".into(),
            ),
            contaminated: Some("a command that would have hit agent a was refused".into()),
            pending_config: vec!["port".into()],
            recovered: vec![
                Recovered { agent: None, text: "all is well".into(), attention: false },
                Recovered { agent: None, text: "a shim is silent".into(), attention: true },
            ],
            need_restart: vec![NeedRestart { name: "a".into(), reason: "its shim is old".into() }],
            ..status(Path::new("/c.json"), Vec::new())
        };
        let told: Vec<_> = of(&status, "mcp-restartctl")
            .iter()
            .map(|trouble| format!("{}: {}\n  {}", trouble.about, trouble.message, trouble.remedy))
            .collect();
        insta::assert_snapshot!(told.join("\n"));
    }
}
