//! Which processes are servers, and whose: decisions on a table of processes.
//!
//! ```text
//!  claude ───► npx ───► sh -c ───► node …/tuiml-mcp ───► chrome
//!  client      └───────── one server ─────────┘         what the server started: not touched
//! ```
//!
//! A server is one or more processes in a line: a package runner, or a shell with a script, and what it came to
//! run; or workers of the same name. Whoever is above them and is no runner or shell is the client.

use crate::command_line::{Reading, Wraps};
use crate::orphans;
use mcp_restart_config::StdioServer as Declared;
use mcp_restart_process::table::Row;
use std::collections::BTreeMap;

/// The programs of mcp-restart, which are never taken for servers.
const OURS: [&str; 3] = ["mcp-restartd", "mcp-restart-http", "mcp-restartctl"];

/// An agent that runs under this supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Supervised {
    /// Its name.
    pub agent: String,
    /// The process that it was started by.
    pub shim: u32,
    /// Its own process.
    pub leader: Option<u32>,
}

/// A process, and what its command line tells.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) row: Row,
    pub(crate) reading: Reading,
}

/// The processes of one moment, and what they are to each other.
#[derive(Debug)]
pub(crate) struct World {
    by_pid: BTreeMap<u32, Known>,
    children: BTreeMap<u32, Vec<u32>>,
    supervised: Vec<Supervised>,
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Server<'a> {
    /// The entry that declares it.
    pub(crate) declared: &'a Declared,
    /// Its processes, the one closest to the client first, and never none.
    pub(crate) members: Vec<&'a Known>,
    /// Whose it is.
    pub(crate) client: Client<'a>,
    /// The agent below whose shim it is.
    pub(crate) agent: Option<&'a str>,
}

/// Whose a server is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Client<'a> {
    /// Of this process.
    Is(&'a Known),
    /// Of one that has ended.
    Gone,
    /// Of one that cannot be seen from here.
    Unseen,
}

impl Server<'_> {
    /// The process closest to the client.
    pub(crate) fn pid(&self) -> u32 {
        self.members.first().map_or(0, |first| first.row.pid)
    }

    /// Whether its client has ended.
    pub(crate) fn is_orphaned(&self) -> bool {
        matches!(self.client, Client::Gone)
    }
}

impl Known {
    fn of(row: Row) -> Self {
        let reading = match &row.own {
            Some(own) => Reading::of(&own.arguments, own.program.as_deref()),
            None => Reading::of(std::slice::from_ref(&row.command), None),
        };
        Self { row, reading }
    }

    /// Whether it is a program of mcp-restart.
    pub(crate) fn is_ours(&self) -> bool {
        OURS.iter().any(|name| self.reading.is_named(name))
    }
}

impl World {
    /// Reads the command lines of a table.
    pub(crate) fn of(rows: Vec<Row>, supervised: &[Supervised]) -> Self {
        let by_pid: BTreeMap<u32, Known> = rows.into_iter().map(|row| (row.pid, Known::of(row))).collect();
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for known in by_pid.values() {
            children.entry(known.row.parent).or_default().push(known.row.pid);
        }
        Self { by_pid, children, supervised: supervised.to_vec() }
    }

    /// The servers that run, in the order of their process ids.
    pub(crate) fn servers<'a>(&'a self, declared: &'a [Declared]) -> Vec<Server<'a>> {
        let entry = |known: &Known| {
            declared
                .iter()
                .position(|declared| known.reading.is_named(&declared.matches))
                .filter(|_| self.may_be_server(known))
        };
        let matched: BTreeMap<u32, usize> =
            self.by_pid.iter().filter_map(|(pid, known)| Some((*pid, entry(known)?))).collect();
        let outermost = matched.iter().filter(|(pid, entry)| !self.is_inner(**pid, **entry, &matched));
        outermost
            .filter_map(|(pid, entry)| {
                let first = self.by_pid.get(pid)?;
                Some(Server {
                    declared: declared.get(*entry)?,
                    members: self.members(first, *entry, &matched),
                    client: self.client(first),
                    agent: self.agent_of(*pid),
                })
            })
            .collect()
    }

    /// Whether a process is one of these, or below one.
    pub(crate) fn is_below(&self, pid: u32, members: &[&Known]) -> bool {
        self.line(pid).any(|known| members.iter().any(|member| member.row.pid == known.row.pid))
    }

    /// The agent below whose shim a process is.
    pub(crate) fn agent_of(&self, pid: u32) -> Option<&str> {
        self.line(pid).find_map(|known| self.supervisor_of(known)).map(|supervised| &*supervised.agent)
    }

    /// A process, its parent, and so on.
    fn line(&self, pid: u32) -> impl Iterator<Item = &Known> {
        let parent = |known: &&Known| self.by_pid.get(&known.row.parent);
        // A number that was given away while the table was read could close a circle.
        std::iter::successors(self.by_pid.get(&pid), parent).take(self.by_pid.len())
    }

    /// The shim directly above a process.
    fn supervisor_of(&self, known: &Known) -> Option<&Supervised> {
        self.supervised.iter().find(|supervised| supervised.shim == known.row.parent)
    }

    fn may_be_server(&self, known: &Known) -> bool {
        known.row.own.is_some() && !known.is_ours() && !self.is_agent(known)
    }

    /// Whether it is an agent, of this supervisor or of another.
    fn is_agent(&self, known: &Known) -> bool {
        match self.supervisor_of(known) {
            Some(supervised) => supervised.leader == Some(known.row.pid),
            None => self.by_pid.get(&known.row.parent).is_some_and(Known::is_ours),
        }
    }

    /// Whether a process belongs to the server of another one above it.
    fn is_inner(&self, pid: u32, entry: usize, matched: &BTreeMap<u32, usize>) -> bool {
        for above in self.line(pid).skip(1) {
            let of = matched.get(&above.row.pid);
            if of == Some(&entry) || of.is_some() && above.reading.wraps.is_some() {
                return true;
            }
            if above.reading.wraps.is_none() {
                return false;
            }
        }
        false
    }

    /// From the outermost process of a server down to the program that does its work.
    fn members<'a>(
        &'a self,
        first: &'a Known,
        entry: usize,
        matched: &BTreeMap<u32, usize>,
    ) -> Vec<&'a Known> {
        let mut members = vec![first];
        let mut next = 0;
        while let Some(member) = members.get(next) {
            let wraps = member.reading.wraps.is_some();
            let children = self.children.get(&member.row.pid).into_iter().flatten();
            let children = children.filter_map(|pid| self.by_pid.get(pid));
            let joins = |child: &&Known| {
                self.may_be_server(child) && (wraps || matched.get(&child.row.pid) == Some(&entry))
            };
            let joining: Vec<_> =
                children.filter(joins).filter(|child| child.row.pid != first.row.pid).collect();
            members.extend(joining);
            next += 1;
        }
        members
    }

    fn client<'a>(&'a self, first: &'a Known) -> Client<'a> {
        let mut below = first;
        for above in self.line(first.row.pid).skip(1) {
            let ours = self.is_agent(below);
            if ours || orphans::takes_in(above, below) {
                // A shell with a script may be the client itself.
                let client =
                    below.row.pid != first.row.pid && (ours || below.reading.wraps == Some(Wraps::Script));
                return if client { Client::Is(below) } else { Client::Gone };
            }
            if above.reading.wraps.is_none() {
                return Client::Is(above);
            }
            below = above;
        }
        Client::Unseen
    }
}

/// Tables made up for tests.
#[cfg(test)]
pub(crate) mod testing {
    use super::Supervised;
    use mcp_restart_process::table::{Own, Row};
    use std::time::SystemTime;

    /// A made-up row.
    #[derive(Clone)]
    pub(crate) struct Made(Row);

    /// A process of our user with this command line, in the session of the first process.
    pub(crate) fn row(pid: u32, parent: u32, line: &str) -> Made {
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Made(Row {
            pid,
            parent,
            group: 1,
            session: 1,
            start_time: u64::from(pid),
            started_at: SystemTime::UNIX_EPOCH,
            command: arguments.first().cloned().unwrap_or_default(),
            own: Some(Own { arguments, program: None, folder: None }),
        })
    }

    impl Made {
        /// Another session than that of the first process.
        pub(crate) fn orphan(mut self) -> Self {
            self.0.session = self.0.pid;
            self
        }

        pub(crate) fn started(mut self, at: u64) -> Self {
            self.0.start_time = at;
            self
        }

        /// A process of another user.
        pub(crate) fn foreign(mut self) -> Self {
            self.0.own = None;
            self
        }
    }

    /// A world whose first process is a program of no name that is known.
    pub(crate) struct World(pub(crate) super::World);

    impl World {
        /// With these processes, and these agents by name, shim and leader.
        pub(crate) fn of(rows: &[Made], agents: &[(&str, u32, u32)]) -> Self {
            let first = row(1, 0, "/entry").foreign();
            let rows = [first].into_iter().chain(rows.iter().cloned()).map(|made| made.0).collect();
            let supervised: Vec<Supervised> = agents
                .iter()
                .map(|(agent, shim, leader)| Supervised {
                    agent: (*agent).to_owned(),
                    shim: *shim,
                    leader: Some(*leader),
                })
                .collect();
            Self(super::World::of(rows, &supervised))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{Made, World as Table, row};
    use super::*;
    use std::time::Duration;

    fn declared() -> Vec<Declared> {
        ["tuiml-mcp", "other-mcp"]
            .map(|name| Declared { name: name.into(), matches: name.into(), grace: Duration::ZERO })
            .into()
    }

    /// Each server as its processes and its client; -1: gone, 0: unseen.
    fn servers(rows: &[Made], agents: &[(&str, u32, u32)]) -> Vec<(Vec<u32>, i64)> {
        let (world, declared) = (Table::of(rows, agents), declared());
        let servers = world.0.servers(&declared);
        servers
            .iter()
            .map(|server| {
                let client = match server.client {
                    Client::Is(client) => i64::from(client.row.pid),
                    Client::Gone => -1,
                    Client::Unseen => 0,
                };
                (server.members.iter().map(|member| member.row.pid).collect(), client)
            })
            .collect()
    }

    #[test]
    fn a_runner_and_what_it_came_to_run_are_one_server_and_its_client_is_above_them() {
        let chain = [
            row(10, 1, "claude"),
            row(11, 10, "npm exec @scope/tuiml-mcp"),
            row(12, 11, "sh -c tuiml"),
            row(13, 12, "node /x/.bin/tuiml"),
            row(14, 13, "chrome --headless"),
        ];
        assert_eq!(servers(&chain, &[]), [(vec![11, 12, 13], 10)]);
    }

    #[test]
    fn runners_above_a_server_that_they_do_not_name_are_seen_through_and_left_alone() {
        let chain = [
            row(10, 1, "node /usr/bin/claude"),
            row(11, 10, "npm exec @scope/tuiml"),
            row(12, 11, "sh -c tuiml-mcp"),
            row(13, 12, "node /x/.bin/tuiml-mcp"),
        ];
        assert_eq!(servers(&chain, &[]), [(vec![13], 10)]);
    }

    #[test]
    fn workers_of_the_same_name_belong_to_their_server_and_other_servers_do_not() {
        let table = [
            row(10, 1, "claude"),
            row(11, 10, "python /v/bin/tuiml-mcp"),
            row(12, 11, "python /v/bin/tuiml-mcp"),
            row(13, 11, "other-mcp"),
        ];
        // A server may be the client of another.
        assert_eq!(servers(&table, &[]), [(vec![11, 12], 10), (vec![13], 11)]);
    }

    #[test]
    fn a_script_that_starts_the_server_is_part_of_it() {
        let table = [row(10, 1, "claude"), row(11, 10, "sh /x/tuiml-mcp"), row(12, 11, "python -m tuiml")];
        assert_eq!(servers(&table, &[]), [(vec![11, 12], 10)]);
    }

    #[test]
    fn one_whose_parent_takes_in_orphans_is_an_orphan() {
        let below =
            |parent, line: &str| [row(9, 1, line), row(parent, 9, "npx tuiml-mcp"), row(12, parent, "sh")];
        assert_eq!(servers(&below(11, "/lib/systemd/systemd --user"), &[]), [(vec![11, 12], -1)]);
        assert_eq!(servers(&below(11, "mcp-restartd shim"), &[("a", 9, 10)]), [(vec![11, 12], -1)]);
        assert_eq!(servers(&[row(11, 1, "tuiml-mcp").orphan()], &[]), [(vec![11], -1)]);
    }

    #[test]
    fn the_first_process_of_a_container_may_be_a_client() {
        assert_eq!(servers(&[row(11, 1, "tuiml-mcp")], &[]), [(vec![11], 1)]);
        // A script may be one, too, and is none itself if it only started the client.
        let table = [row(10, 1, "sh /x/client.sh").orphan(), row(11, 10, "tuiml-mcp")];
        assert_eq!(servers(&table, &[]), [(vec![11], 10)]);
    }

    #[test]
    fn a_client_outside_of_what_can_be_seen_is_not_said_to_be_gone() {
        assert_eq!(servers(&[row(11, 0, "tuiml-mcp")], &[]), [(vec![11], 0)]);
        assert_eq!(servers(&[row(11, 77, "tuiml-mcp")], &[]), [(vec![11], 0)]);
    }

    #[test]
    fn agents_our_own_programs_and_the_processes_of_others_are_never_servers() {
        let table = [
            row(9, 1, "mcp-restartd shim"),
            row(10, 9, "tuiml-mcp"),
            row(11, 10, "tuiml-mcp"),
            row(20, 1, "mcp-restartd shim"),
            row(21, 20, "tuiml-mcp"),
            row(30, 1, "tuiml-mcp").foreign(),
        ];
        // An agent of ours by that name has a server of that name; the agent of another supervisor is its own.
        assert_eq!(servers(&table, &[("a", 9, 10)]), [(vec![11], 10)]);
        let own = vec![Declared { name: "x".into(), matches: "mcp-restartd".into(), grace: Duration::ZERO }];
        assert!(Table::of(&table, &[]).0.servers(&own).is_empty());
    }

    #[test]
    fn an_agent_that_is_a_shell_command_is_the_client_of_its_servers() {
        let table = [row(9, 1, "mcp-restartd shim"), row(10, 9, "sh -c work"), row(11, 10, "tuiml-mcp")];
        let world = Table::of(&table, &[("a", 9, 10)]);
        let declared = declared();
        let servers = world.0.servers(&declared);
        let server = servers.first().unwrap();
        assert!(matches!(server.client, Client::Is(client) if client.row.pid == 10));
        assert_eq!(server.agent, Some("a"));
    }

    #[test]
    fn a_circle_in_a_table_that_changed_while_it_was_read_is_survived() {
        let table = [row(11, 12, "npx tuiml-mcp"), row(12, 11, "sh -c x")];
        let _ = servers(&table, &[]);
    }
}
