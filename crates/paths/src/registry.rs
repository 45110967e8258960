//! What is known of each path: how it works, what guards it, and where.

use crate::RestartPath;
use std::fmt;

/// One way in which something may be started, restarted, reloaded, stopped or killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The id that requests, logs, events and the docs name it by.
    pub path_id: &'static str,
    /// What kind of way it is.
    pub classification: Classification,
    /// What happens.
    pub mechanism: &'static str,
    /// What keeps it from doing harm.
    pub guard: &'static str,
    /// The files, from the root of the repository, that take the path or guard it.
    pub references: &'static [&'static str],
    /// The id that the inventory which this one continues (Gitea-Tools, issue 657) gives to the same way.
    pub stands_for: Option<&'static str>,
}

/// The five kinds of ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Classification {
    /// Done once for each request or cause, safe by its construction, never aimed at a running daemon.
    SanctionedNarrowRecovery,
    /// A condition that calls for a restart is found and reported, and what it makes unsafe is refused.
    GuardedFailClosed,
    /// Must not happen; a guard finds it.
    Forbidden,
    /// Not here any more, or never let in; a guard keeps it out.
    Removed,
    /// Up to the host or its user, and outside of what these programs can see or prevent.
    HostResidual,
}

use Classification::{Forbidden, GuardedFailClosed, HostResidual, Removed, SanctionedNarrowRecovery};

/// Every entry: first the paths that code takes, then the others.
pub fn registry() -> impl Iterator<Item = Entry> {
    RestartPath::ALL.into_iter().map(RestartPath::entry).chain(OTHERS)
}

impl Entry {
    /// Its row in the table of `docs/restart-paths.md`.
    pub fn markdown(&self) -> String {
        let Self { path_id, classification, mechanism, guard, references, stands_for } = self;
        let references: Vec<_> = references.iter().map(|file| format!("`{file}`")).collect();
        let stands_for = stands_for.map_or_else(String::new, |id| format!("`{id}`"));
        format!(
            "| `{path_id}` | {classification} | {mechanism} | {guard} | {} | {stands_for} |",
            references.join(", ")
        )
    }
}

impl Classification {
    /// All of them.
    pub const ALL: [Self; 5] =
        [SanctionedNarrowRecovery, GuardedFailClosed, Forbidden, Removed, HostResidual];

    /// The word for it.
    pub const fn id(self) -> &'static str {
        match self {
            SanctionedNarrowRecovery => "sanctioned_narrow_recovery",
            GuardedFailClosed => "guarded_fail_closed",
            Forbidden => "forbidden",
            Removed => "removed",
            HostResidual => "host_residual",
        }
    }
}

impl fmt::Display for Classification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

impl RestartPath {
    /// What the registry says of this path.
    #[expect(clippy::too_many_lines, reason = "a table with a row for each path")]
    pub const fn entry(self) -> Entry {
        match self {
            Self::McpStart => sanctioned(
                "mcp_start_agent",
                "`start_agent` over MCP: the daemon starts a shim, and the shim the agent.",
                "Only agents of the config file, which is read again; the whole launch is checked first; the caller's `control` must \
                 allow it; a lock per agent lets no second process be.",
                &["crates/bridge/src/tools.rs"],
            ),
            Self::McpStop => sanctioned(
                "mcp_stop_agent",
                "`stop_agent` over MCP: the stop signal to the agent's process tree, SIGKILL after the grace period.",
                "Only what is below the agent's own shim, identified by the kernel and never by name; the caller's `control` must \
                 allow it; a stop of the caller itself is answered first.",
                &["crates/bridge/src/tools.rs"],
            ),
            Self::McpRestart => sanctioned(
                "mcp_restart_agent",
                "`restart_agent` over MCP: a stop and a start with the config read again.",
                "As for stop and start; the new launch is checked before the running process is touched; a request id restarts once; \
                 two restarts at the same time are one.",
                &["crates/bridge/src/tools.rs"],
            ),
            Self::McpRestartServers => sanctioned(
                "mcp_restart_stdio_servers",
                "`restart_stdio_servers` over MCP: SIGTERM to stdio MCP servers, SIGKILL after their grace period; their clients start them again.",
                "Only servers that the config declares, known by the program or script that they run and never by a word of their command \
                 line; only the same user's, and only as far as the caller's `control` reaches; the identity is checked before each signal; \
                 never an agent or a program of ours; the server that asks ends after its answer, if at all.",
                &["crates/bridge/src/tools.rs"],
            ),
            Self::CtlStart => sanctioned(
                "ctl_start",
                "`mcp-restartctl start`, and the start that `run` does.",
                "As for `mcp_start_agent`; an agent that uses the command line is recognised and has its `control`.",
                &[
                    "crates/ctl/src/attach/mod.rs",
                    "crates/ctl/src/commands/lifecycle.rs",
                    "crates/ctl/src/demo/stage.rs",
                    "crates/daemon/src/fleet/intent.rs",
                ],
            ),
            Self::CtlStop => sanctioned(
                "ctl_stop",
                "`mcp-restartctl stop`.",
                "As for `mcp_stop_agent`; an agent that uses the command line is recognised and has its `control`.",
                &["crates/ctl/src/commands/lifecycle.rs", "crates/daemon/src/fleet/intent.rs"],
            ),
            Self::CtlRestart => sanctioned(
                "ctl_restart",
                "`mcp-restartctl restart`.",
                "As for `mcp_restart_agent`; an agent that uses the command line is recognised and has its `control`.",
                &["crates/ctl/src/commands/lifecycle.rs", "crates/daemon/src/fleet/intent.rs"],
            ),
            Self::CtlRestartServers => sanctioned(
                "ctl_restart_servers",
                "`mcp-restartctl servers restart`.",
                "As for `mcp_restart_stdio_servers`; an agent that uses the command line is recognised and has its `control`.",
                &["crates/ctl/src/commands/servers.rs"],
            ),
            Self::CtlDown => sanctioned(
                "ctl_down",
                "`mcp-restartctl down`: the daemon stops every agent and the bridge, and ends.",
                "Only for callers that may act on every agent; the command waits until all of them are gone and says what is left.",
                &[
                    "crates/ctl/src/commands/daemon.rs",
                    "crates/ctl/src/daemon_process.rs",
                    "crates/ctl/src/demo/stage.rs",
                    "crates/daemon/src/server/verbs.rs",
                ],
            ),
            Self::CtlUp => sanctioned(
                "ctl_up",
                "`mcp-restartctl up`: starts the daemon in a session of its own.",
                "Refused inside an agent, whose tree it would be part of; the lock of the state dir lets one daemon serve.",
                &[
                    "crates/ctl/src/commands/daemon.rs",
                    "crates/ctl/src/daemon_process.rs",
                    "crates/ctl/src/demo/stage.rs",
                ],
            ),
            Self::CtlUpgrade => sanctioned(
                "ctl_upgrade",
                "`mcp-restartctl upgrade`: the daemon ends with status 75 and leaves every agent running; the service manager, or the \
                 command, starts the program on disk, which adopts them.",
                "The new program's `--check` has to accept config and state first; nothing may be under way; inside an agent only where a \
                 service manager starts the next daemon.",
                &[
                    "crates/ctl/src/candidate.rs",
                    "crates/ctl/src/commands/upgrade.rs",
                    "crates/ctl/src/daemon_process.rs",
                    "crates/ctl/src/talk.rs",
                    "crates/daemon/src/governance/journal.rs",
                    "crates/daemon/src/run.rs",
                    "crates/daemon/src/server/verbs.rs",
                ],
            ),
            Self::Autostart => sanctioned(
                "autostart",
                "The agents with `autostart` are started when the daemon starts clean or the machine is new, and what was under way when a \
                 daemon died is finished.",
                "Never after a crash or an upgrade of the daemon, and never because an agent ended.",
                &["crates/daemon/src/fleet/finish.rs", "crates/daemon/src/governance/journal.rs"],
            ),
            Self::Rollback => sanctioned(
                "rollback",
                "A restart with a changed launch, whose process ends by itself within `rollback.withinMs`: the last launch that stayed up is \
                 started in its place.",
                "Once: the fallback is itself on no trial, and the launch that failed is refused until its entry changes. Never after a stop, \
                 and never for an agent that did not restart itself, unless its entry says `always`.",
                &[
                    "crates/daemon/src/fleet/agent.rs",
                    "crates/daemon/src/fleet/trials.rs",
                    "crates/daemon/src/governance/journal.rs",
                    "crates/shim/src/agent.rs",
                ],
            ),
            Self::DaemonShutdown => sanctioned(
                "daemon_shutdown",
                "SIGTERM or SIGINT to the daemon: it stops every agent and the bridge, and ends.",
                "The signal of a service manager or of the operator; new requests are refused meanwhile; a second signal skips the grace period only.",
                &["crates/daemon/src/run.rs", "crates/supervisor/src/machine.rs"],
            ),
            Self::BridgeChild => sanctioned(
                "bridge_child",
                "The daemon starts its bridge, again when the bridge ended, and ends it with itself; `mcp-restartd --check` asks its program for its version.",
                "The bridge holds no state; a bridge that ends again and again is started at ever longer intervals.",
                &["crates/daemon/src/bridge/keeper.rs", "crates/daemon/src/bridge/probe.rs"],
            ),
            Self::ExitSweep => sanctioned(
                "exit_sweep",
                "An agent ended by itself; its shim ends what it left behind.",
                "Only descendants of that shim; the programs in `keepChildren` are left alone.",
                &["crates/daemon/src/governance/journal.rs", "crates/shim/src/agent.rs"],
            ),
            Self::LostSweep => sanctioned(
                "lost_sweep",
                "A shim was killed; what its agent left is ended before the next start.",
                "Only processes of the same user that carry this state dir's socket, this agent and that generation in their environment; the \
                 identity is checked before each signal.",
                &["crates/daemon/src/children.rs", "crates/daemon/src/governance/journal.rs"],
            ),
            Self::AbandonedShim => sanctioned(
                "abandoned_shim",
                "A shim that never got its launch, or whose start failed, is ended by its daemon or by itself.",
                "Only the shim that the daemon started itself, or whose socket and identity it checked.",
                &[
                    "crates/daemon/src/children.rs",
                    "crates/daemon/src/fleet/foreign.rs",
                    "crates/daemon/src/fleet/link.rs",
                    "crates/shim/src/agent.rs",
                ],
            ),
            Self::ShimSignalled => sanctioned(
                "shim_signalled",
                "SIGTERM or SIGINT to a shim: it ends its agent's tree before itself.",
                "As for a stop of that agent; nothing else is below it.",
                &["crates/shim/src/agent.rs"],
            ),
        }
    }
}

const fn sanctioned(
    path_id: &'static str,
    mechanism: &'static str,
    guard: &'static str,
    references: &'static [&'static str],
) -> Entry {
    Entry {
        path_id,
        classification: SanctionedNarrowRecovery,
        mechanism,
        guard,
        references,
        stands_for: None,
    }
}

/// The ways that no code of ours takes.
const OTHERS: [Entry; 16] = [
    Entry {
        path_id: "bootstrap_exec",
        classification: SanctionedNarrowRecovery,
        mechanism: "The child that a shim has forked becomes the agent's program, and the child of `mcp-restartctl up` the daemon.",
        guard: "Once in that child's life, before anything is connected to it; no other program of ours replaces itself, which a scan of the source sees to.",
        references: &["crates/ctl/src/daemon_process.rs", "crates/process/src/launch.rs", "tests/guards.rs"],
        stands_for: Some("cli_venv_bootstrap_execv"),
    },
    Entry {
        path_id: "config_reread",
        classification: SanctionedNarrowRecovery,
        mechanism: "The config file is read again at each start, restart and list.",
        guard: "Changes what the next launch will be and starts or ends nothing; a broken file leaves the last good one in force.",
        references: &["crates/daemon/src/fleet/config_watch.rs"],
        stands_for: Some("profile_switch_runtime"),
    },
    Entry {
        path_id: "broken_config_start",
        classification: GuardedFailClosed,
        mechanism: "A daemon starts with a config file that is broken, or has unresolved merge-conflict markers.",
        guard: "It ends with exit code 6 and waits for a person; if agents live, it adopts them and starts nothing. It never tries again by itself.",
        references: &["crates/config/src/read.rs", "crates/daemon/src/run.rs"],
        stands_for: Some("conflict_marker_infra_stop"),
    },
    Entry {
        path_id: "stale_daemon",
        classification: GuardedFailClosed,
        mechanism: "The daemon's or the bridge's program on disk is no longer the one that runs.",
        guard: "Reported with the exact remedy. With `staleDaemon: \"refuse\"` start, stop and restart fail closed until the operator acts, whose \
                consent is read from the environment of their command alone; the daemon never restarts itself.",
        references: &["crates/daemon/src/governance/gate.rs", "crates/daemon/src/program.rs"],
        stands_for: Some("master_advance_auto_restart"),
    },
    Entry {
        path_id: "stale_report",
        classification: GuardedFailClosed,
        mechanism: "`server_status` and `mcp-restartctl status` find stale programs, agents whose entry changed, and shims of another program or version.",
        guard: "They report and name the command to run, and do nothing themselves.",
        references: &["crates/daemon/src/server/requests.rs"],
        stands_for: Some("stale_runtime_resolver_reconnect"),
    },
    Entry {
        path_id: "contaminated_requests",
        classification: GuardedFailClosed,
        mechanism: "Somebody has tried to kill the supervisor or an agent by name, pattern or number.",
        guard: "A marker in the state dir is reported, and with `contamination: \"refuse\"` start, stop and restart are refused until the operator \
                runs `mcp-restartctl clear` outside any agent.",
        references: &["crates/ctl/src/commands/guard.rs", "crates/daemon/src/governance/gate.rs"],
        stands_for: None,
    },
    Entry {
        path_id: "foreign_shim",
        classification: GuardedFailClosed,
        mechanism: "A daemon finds an agent whose shim is of a version that it does not understand.",
        guard: "Reported as needing a restart; the agent is never ended for it.",
        references: &["crates/daemon/src/fleet/foreign.rs"],
        stands_for: None,
    },
    Entry {
        path_id: "daemon_self_replacement",
        classification: Forbidden,
        mechanism: "The daemon or the bridge replaces or kills itself to run other code.",
        guard: "clippy's `disallowed-methods`, and a scan of the whole source for exec, abort and exit; `upgrade` is the way.",
        references: &["clippy.toml", "tests/guards.rs"],
        stands_for: Some("daemon_self_replacement"),
    },
    Entry {
        path_id: "manual_daemon_kill",
        classification: Forbidden,
        mechanism: "A shell command kills the supervisor or an agent by name, pattern or number: `pkill -f`, `killall`, `kill` and their like.",
        guard: "`mcp-restartctl guard`, also as a hook of Claude Code, refuses it, names the right command and leaves a durable marker.",
        references: &["crates/ctl/src/guard"],
        stands_for: Some("manual_daemon_kill"),
    },
    Entry {
        path_id: "crash_restart",
        classification: Removed,
        mechanism: "A helper starts an agent again because it ended, without being asked.",
        guard: "An agent that ends by itself stays `exited`; a scan of the source keeps such helpers out.",
        references: &["crates/supervisor/src/machine.rs", "tests/guards.rs"],
        stands_for: Some("legacy_auto_restart_helper"),
    },
    Entry {
        path_id: "config_touch_reload",
        classification: Removed,
        mechanism: "The time of a client's config file is changed to make that client load its servers again.",
        guard: "A scan of the source keeps out every call that changes the time of a file.",
        references: &["tests/guards.rs"],
        stands_for: Some("config_touch_reload"),
    },
    Entry {
        path_id: "shell_kill",
        classification: Removed,
        mechanism: "A shell, `kill`, `pkill` or `killall` is run to signal by number, name or pattern.",
        guard: "No shell is ever run; a scan of the source keeps those words out.",
        references: &["clippy.toml", "tests/guards.rs"],
        stands_for: None,
    },
    Entry {
        path_id: "client_reconnect",
        classification: HostResidual,
        mechanism: "A client's own command (`/mcp` and its like) connects to a server anew.",
        guard: "The endpoint is stateless, so that it needs none; for stdio servers it is what the client's user can do.",
        references: &["docs/mcp.md"],
        stands_for: Some("ide_client_reconnect"),
    },
    Entry {
        path_id: "service_manager_restart",
        classification: HostResidual,
        mechanism: "systemd or launchd starts, stops or restarts the daemon.",
        guard: "The units end the daemon alone and leave it to stop its agents; after a crash the next daemon adopts them.",
        references: &["launchd", "systemd"],
        stands_for: None,
    },
    Entry {
        path_id: "host_kill",
        classification: HostResidual,
        mechanism: "SIGKILL from a person, the kernel short of memory, or the end of the machine.",
        guard: "The next daemon adopts what lives and reports what does not; an agent dies with its shim.",
        references: &["crates/daemon/src/fleet/adopt.rs"],
        stands_for: None,
    },
    Entry {
        path_id: "agent_own_exit",
        classification: HostResidual,
        mechanism: "An agent ends, or replaces its own program, by itself.",
        guard: "The end is logged with its status and what was left behind is ended; nothing is started.",
        references: &["crates/shim/src/agent.rs"],
        stands_for: None,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_path_has_an_id_of_its_own_and_says_what_it_is() {
        let entries: Vec<_> = registry().collect();
        let ids: HashSet<_> = entries.iter().map(|entry| entry.path_id).collect();
        assert_eq!(ids.len(), entries.len());
        for Entry { path_id, mechanism, guard, references, .. } in entries {
            assert!(path_id.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{path_id}");
            assert!(mechanism.ends_with('.') && guard.ends_with('.') && !references.is_empty(), "{path_id}");
            assert!(references.is_sorted(), "{path_id}");
        }
    }

    #[test]
    fn every_classification_is_used() {
        let used: HashSet<_> = registry().map(|entry| entry.classification).collect();
        assert_eq!(used, HashSet::from(Classification::ALL));
    }
}
