//! Which processes a command must not hit: the daemon, its bridge, each shim, and each agent with its process group.

use mcp_restart_process::table::Row;
use mcp_restart_protocol::answer::{Owner, ProtectedProcess};
use mcp_restart_stdio::Supervised;

/// What the bridge is called, as much of it as the system keeps.
const BRIDGE: &str = "mcp-restart-htt";

/// Those among all processes. What an agent starts in groups of their own is left to the agent.
pub(crate) fn protected(daemon: u32, supervised: &[Supervised], table: &[Row]) -> Vec<ProtectedProcess> {
    let owner = |row: &Row| {
        if row.pid == daemon {
            return Some(Owner::Daemon);
        }
        let theirs = |agent: &&Supervised| {
            row.pid == agent.shim || agent.leader.is_some_and(|pid| row.pid == pid || row.group == pid)
        };
        if let Some(agent) = supervised.iter().find(theirs) {
            return Some(Owner::Agent(agent.agent.clone()));
        }
        (row.own.is_some() && row.command == BRIDGE).then_some(Owner::Bridge)
    };
    table.iter().filter_map(|row| Some(shown(row, owner(row)?))).collect()
}

fn shown(row: &Row, owner: Owner) -> ProtectedProcess {
    let mut names = vec![row.command.clone()];
    let mut command = row.command.clone();
    if let Some(own) = &row.own {
        let program = own.program.as_ref().and_then(|program| program.file_name());
        let called = own.arguments.first().and_then(|first| first.rsplit('/').next());
        names.extend(program.map(|name| name.to_string_lossy().into_owned()));
        names.extend(called.map(str::to_owned));
        names.sort();
        names.dedup();
        command = own.arguments.join(" ");
    }
    ProtectedProcess { pid: row.pid, parent: row.parent, group: row.group, names, command, owner }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcp_restart_process::table::Own;
    use std::time::SystemTime;

    fn row(pid: u32, group: u32, command: &str, arguments: &[&str]) -> Row {
        let own = Own {
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            program: Some("/usr/bin/node".into()),
            ..Own::default()
        };
        Row {
            pid,
            parent: 1,
            group,
            session: group,
            start_time: 0,
            started_at: SystemTime::UNIX_EPOCH,
            command: command.to_owned(),
            own: Some(own),
        }
    }

    #[test]
    fn daemon_bridge_shims_and_the_groups_of_agents_are_protected_and_what_agents_start_is_not() {
        let table = [
            row(10, 10, "mcp-restartd", &[]),
            row(11, 10, "mcp-restart-htt", &[]),
            row(20, 20, "mcp-restart: a", &[]),
            row(21, 21, "node", &["/opt/gemini", "--x"]),
            row(22, 21, "node", &[]),
            row(23, 23, "node", &["node", "vite"]),
            row(30, 30, "vim", &[]),
        ];
        let supervised = [Supervised { agent: "a".into(), shim: 20, leader: Some(21) }];
        let found = protected(10, &supervised, &table);
        let owners: Vec<_> = found.iter().map(|process| (process.pid, process.owner.clone())).collect();
        let agent = || Owner::Agent("a".to_owned());
        assert_eq!(
            owners,
            [(10, Owner::Daemon), (11, Owner::Bridge), (20, agent()), (21, agent()), (22, agent())]
        );
        assert_eq!(found[3].names, ["gemini", "node"]);
        assert_eq!(found[3].command, "/opt/gemini --x");
    }
}
