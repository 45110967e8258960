//! How agents and times look to people.

use crate::screen::{Style, paint};
use mcp_restart_protocol::agent::{AgentState, AgentView, ExitReason, LastExit};
use mcp_restart_protocol::answer::Caller;
use mcp_restart_protocol::timestamp::Timestamp;

/// One cell of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell in a style.
    pub(crate) fn new(style: Style, text: impl Into<String>) -> Self {
        Self { text: text.into(), style }
    }
}

/// Rows with aligned columns, a line each; the last column is not padded.
pub(crate) fn table(colour: bool, rows: &[Vec<Cell>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.text.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<Cell>| {
        let mut line = String::new();
        for (index, (cell, width)) in row.iter().zip(&widths).enumerate() {
            line.push_str(&paint(colour, cell.style, &cell.text));
            if index + 1 < row.len() {
                let padding = width - cell.text.chars().count() + 2;
                line.extend(std::iter::repeat_n(' ', padding));
            }
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The table of agents at a point in time; `silent` are those that should have reached the endpoint and have not.
pub(crate) fn agents(colour: bool, agents: &[AgentView], silent: &[&str], now: Timestamp) -> String {
    let heading = ["NAME", "STATE", "PID", "GENERATION", "UPTIME", "MCP", "NOTE"];
    let mut rows = vec![heading.map(|text| Cell::new(Style::Bold, text)).to_vec()];
    rows.extend(agents.iter().map(|agent| row(agent, silent.contains(&&*agent.name), now)));
    table(colour, &rows)
}

fn row(agent: &AgentView, silent: bool, now: Timestamp) -> Vec<Cell> {
    let dash = || Cell::new(Style::Dim, "-");
    vec![
        Cell::new(Style::Plain, &agent.name),
        Cell::new(state_style(agent), state(agent.state)),
        agent.pid.map_or_else(dash, |pid| Cell::new(Style::Plain, pid.to_string())),
        Cell::new(Style::Plain, agent.generation.to_string()),
        agent.uptime_ms.map_or_else(dash, |millis| Cell::new(Style::Plain, span(millis))),
        agent.pid.map_or_else(dash, |_| match agent.connected_at {
            Some(at) => Cell::new(Style::Plain, format!("{} ago", span(now.millis_since(at)))),
            None if silent => Cell::new(Style::Red, "never"),
            None => Cell::new(Style::Dim, "not yet"),
        }),
        Cell::new(Style::Dim, remarks(agent, silent, now).join("; ")),
    ]
}

/// What is worth knowing of an agent beside its state.
fn remarks(agent: &AgentView, silent: bool, now: Timestamp) -> Vec<String> {
    let mut remarks = Vec::new();
    if silent {
        remarks.push(format!("never connected: {}", if agent.tty { "attach" } else { "see its logs" }));
    }
    let failed = agent.last_exit.as_ref().filter(|exit| exit.reason == ExitReason::RolledBack);
    if let Some(exit) = failed.filter(|_| agent.pid.is_some()) {
        remarks.push(format!("rolled back, since the new launch {}", how_it_ended(exit)));
    }
    if !agent.listed {
        remarks.push("no longer in the config".to_owned());
    }
    if agent.config_changed {
        remarks.push("config changed since its start".to_owned());
    }
    let ended = matches!(agent.state, AgentState::Exited | AgentState::Failed | AgentState::Stopped);
    if let Some(exit) = agent.last_exit.as_ref().filter(|_| ended) {
        remarks.push(format!("{}, {} ago", how_it_ended(exit), span(now.millis_since(exit.at))));
    }
    remarks
}

/// `exited with 3`, `ended by SIGTERM`, and what was needed for it.
pub(crate) fn how_it_ended(exit: &LastExit) -> String {
    if exit.reason == ExitReason::SpawnFailed || exit.message.is_some() {
        let why = exit.message.as_ref().map(|message| format!(": {message}"));
        return format!("could not be started{}", why.unwrap_or_default());
    }
    // One that ended by itself had no grace period: what was forced is what it had left behind.
    let asked = !matches!(exit.reason, ExitReason::Exited | ExitReason::RolledBack);
    let forced = asked && exit.forced && exit.signal.as_deref() == Some("SIGKILL");
    let how = match (exit.code, &exit.signal) {
        (Some(code), _) => format!("exited with {code}"),
        (None, Some(_)) if forced => "killed by SIGKILL after its grace period".to_owned(),
        (None, Some(signal)) => format!("ended by {signal}"),
        (None, None) => "ended unseen".to_owned(),
    };
    let more = if forced { "more " } else { "" };
    let leftovers = match exit.leftovers {
        0 if asked && exit.forced && !forced => "; SIGKILL was needed".to_owned(),
        0 => String::new(),
        1 => format!("; 1 {more}process of its tree killed"),
        many => format!("; {many} {more}processes of its tree killed"),
    };
    format!("{how}{leftovers}")
}

/// The word for a state.
pub(crate) fn state(state: AgentState) -> &'static str {
    match state {
        AgentState::Stopped => "stopped",
        AgentState::Running => "running",
        AgentState::Stopping => "stopping",
        AgentState::Exited => "exited",
        AgentState::Failed => "failed",
    }
}

fn state_style(agent: &AgentView) -> Style {
    match agent.state {
        AgentState::Stopped => Style::Dim,
        AgentState::Running => Style::Green,
        AgentState::Stopping => Style::Yellow,
        AgentState::Exited if exited_well(agent) => Style::Plain,
        AgentState::Exited | AgentState::Failed => Style::Red,
    }
}

/// Whether its last process ended by itself with code 0.
pub(crate) fn exited_well(agent: &AgentView) -> bool {
    agent.last_exit.as_ref().is_some_and(|exit| exit.code == Some(0))
}

/// Who asked for something.
pub(crate) fn caller(caller: &Caller) -> String {
    match caller {
        Caller::Operator => "the operator".to_owned(),
        Caller::LocalUser { pid: Some(pid) } => format!("a local user (pid {pid})"),
        Caller::LocalUser { pid: None } => "a local user".to_owned(),
        Caller::Agent { name } => format!("agent {name}"),
        Caller::Supervisor => "the supervisor".to_owned(),
        Caller::Unknown => "somebody on this machine".to_owned(),
    }
}

/// Milliseconds as the two largest units: `850 ms`, `12 s`, `3m 4s`, `2h 5m`, `9d 3h`.
pub(crate) fn span(millis: u64) -> String {
    let seconds = millis / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match () {
        () if days > 0 => format!("{days}d {}h", hours % 24),
        () if hours > 0 => format!("{hours}h {}m", minutes % 60),
        () if minutes > 0 => format!("{minutes}m {}s", seconds % 60),
        () if seconds > 0 => format!("{seconds}s"),
        () => format!("{millis}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::view;

    const NOW: Timestamp = Timestamp(1_796_040_000_000);

    fn zoo() -> Vec<AgentView> {
        let exit = LastExit {
            code: Some(3),
            signal: None,
            at: Timestamp(NOW.0 - 125_000),
            reason: ExitReason::Exited,
            forced: false,
            leftovers: 2,
            message: None,
        };
        vec![
            AgentView { config_changed: true, ..view("claude", AgentState::Running, 3) },
            AgentView { last_exit: Some(exit.clone()), ..view("codex-reviewer", AgentState::Exited, 1) },
            AgentView { listed: false, ..view("old", AgentState::Stopping, 12) },
            AgentView {
                last_exit: Some(LastExit {
                    code: None,
                    signal: Some("SIGKILL".into()),
                    forced: true,
                    leftovers: 1,
                    reason: ExitReason::Stop,
                    ..exit.clone()
                }),
                ..view("stubborn", AgentState::Stopped, 2)
            },
            AgentView {
                last_exit: Some(LastExit {
                    code: None,
                    reason: ExitReason::SpawnFailed,
                    leftovers: 0,
                    message: Some("/bin/nothing: No such file or directory".into()),
                    ..exit
                }),
                ..view("typo", AgentState::Failed, 1)
            },
            view("new", AgentState::Stopped, 0),
        ]
    }

    #[test]
    fn the_table_of_agents_is_aligned() {
        insta::assert_snapshot!(agents(false, &zoo(), &["claude"], NOW));
    }

    #[test]
    fn colours_change_nothing_but_colours() {
        let coloured = agents(true, &zoo(), &["claude"], NOW);
        let stripped = mcp_restart_protocol::plain::text(&coloured);
        let lines = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        assert_eq!(lines(&stripped), lines(&agents(false, &zoo(), &["claude"], NOW)));
    }

    #[test]
    fn what_went_well_is_not_red() {
        let exit = LastExit { code: Some(0), ..LastExit::unseen(NOW, ExitReason::Exited) };
        let exited = |exit| AgentView { last_exit: Some(exit), ..view("x", AgentState::Exited, 1) };
        assert_eq!(state_style(&exited(exit.clone())), Style::Plain);
        assert_eq!(state_style(&exited(LastExit { code: Some(1), ..exit })), Style::Red);
    }

    #[test]
    fn a_kill_from_outside_is_not_told_as_ours() {
        let killed = |reason| {
            let exit = LastExit::unseen(NOW, reason);
            how_it_ended(&LastExit { signal: Some("SIGKILL".into()), forced: true, leftovers: 3, ..exit })
        };
        assert_eq!(killed(ExitReason::Exited), "ended by SIGKILL; 3 processes of its tree killed");
        let ours = "killed by SIGKILL after its grace period; 3 more processes of its tree killed";
        assert_eq!(killed(ExitReason::Stop), ours);
    }

    #[test]
    fn a_span_shows_its_two_largest_units() {
        let cases = [
            (0, "0ms"),
            (999, "999ms"),
            (1000, "1s"),
            (61_234, "1m 1s"),
            (7_500_000, "2h 5m"),
            (788_400_000, "9d 3h"),
        ];
        for (millis, text) in cases {
            assert_eq!(span(millis), text);
        }
    }
}
