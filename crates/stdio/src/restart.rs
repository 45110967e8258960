//! The restart: who is meant, their end, and whether their clients start them again.
//!
//! ```text
//!  table ─► meant, others │ own ─► SIGTERM … SIGKILL ─► look at the table until all are back, or time is up ─► report
//!                         └───────────────────────────────────────────────────────── ends after the answer ┘
//! ```
//!
//! Nothing tells of the children of other processes, so the table is looked at again and again, at growing
//! pauses, and only while somebody waits for the answer.

use crate::discovery::{Client, Known, Server, World};
use crate::ending::{self, Target};
use crate::note::{self, OwnServer, Story};
use crate::{Asker, Reach, Scope, show};
use mcp_restart_config::StdioServer as Declared;
use mcp_restart_paths::RestartPath;
use mcp_restart_process::table;
use mcp_restart_protocol::stdio::{
    NotRespawned, Respawned, StdioClient, StdioFailure, StdioRestartRequest, StdioRestarted, StdioStatus,
};
use std::collections::HashSet;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

/// The pauses between two looks at the table.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// A request that names a server which the config does not declare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownServer {
    /// The name.
    pub name: String,
    /// Those that there are.
    pub declared: Vec<String>,
}

/// What became of a restart.
#[derive(Debug)]
pub struct Restarted {
    /// What the caller is told.
    pub report: StdioRestarted,
    /// The server through which the request came, if it is to end once that was told.
    pub own: Option<OwnEnd>,
}

/// What ends after the answer to its own request: the server through which that came, or several, one below the
/// other.
#[derive(Debug)]
pub struct OwnEnd {
    targets: Vec<Target>,
    path: RestartPath,
    /// How long after the delivery of the answer.
    pub delay: Duration,
}

impl OwnEnd {
    /// The process of each closest to its client.
    pub fn pids(&self) -> Vec<u32> {
        self.targets.iter().filter_map(|target| target.members.first()).map(|(pid, _)| *pid).collect()
    }

    /// Ends it, and gives what could not be ended. Blocks for its grace and a little more.
    pub fn end(self) -> Vec<StdioFailure> {
        ending::end(self.path, &self.targets).into_iter().flatten().collect()
    }
}

/// Ends the servers that a request means and watches whether they come back. Blocks for as long as that takes: the
/// longest grace of them, five seconds at most if SIGKILL does not end one, and the wait of the request.
pub fn restart(
    path: RestartPath,
    scope: &Scope,
    asker: &Asker,
    request: &StdioRestartRequest,
) -> Result<Restarted, UnknownServer> {
    check_names(&scope.declared, &request.names)?;
    let world = World::of(table::read(), &scope.supervised);
    let servers = world.servers(&scope.declared);
    let before =
        servers.iter().flat_map(|server| server.members.iter().map(|member| identity(member))).collect();
    let meant = choose(servers, &world, asker, request);
    let mut story = meant.story(request);
    if request.dry_run {
        let report = report(StdioStatus::DryRun, Vec::new(), Vec::new(), Watch::default(), &story);
        return Ok(Restarted { report, own: None });
    }
    let targets: Vec<Target> = meant.others.iter().map(target).collect();
    let failures = ending::end(path, &targets);
    let ended: Vec<&Server<'_>> = meant
        .others
        .iter()
        .zip(&failures)
        .filter(|(_, failure)| failure.is_none())
        .map(|(server, _)| server)
        .collect();
    let killed: Vec<u32> = ended.iter().map(|server| server.pid()).collect();
    let lost: Vec<Lost> = ended.iter().filter_map(|server| Lost::of(server)).collect();
    let watch = watch(&lost, &before, scope, Duration::from_millis(request.respawn_wait_ms));
    for (server, failure) in std::mem::take(&mut story.meant).into_iter().zip(&failures) {
        if failure.is_none() { &mut story.meant } else { &mut story.failed }.push(server);
    }
    story.missing = watch.missing.iter().map(|lost| (lost.name.clone(), lost.client.clone())).collect();
    let failed: Vec<StdioFailure> = failures.into_iter().flatten().collect();
    let status = match (killed.is_empty(), failed.is_empty()) {
        (_, true) => StdioStatus::Success,
        (false, false) => StdioStatus::Partial,
        (true, false) => StdioStatus::Failed,
    };
    let mut report = report(status, killed, failed, watch, &story);
    let own = (request.include_self && !meant.own.is_empty()).then(|| OwnEnd {
        targets: meant.own.iter().map(target).collect(),
        path,
        delay: Duration::from_millis(request.self_delay_ms),
    });
    report.self_exit_scheduled = own.is_some();
    Ok(Restarted { report, own })
}

/// The servers that a request means.
struct Meant<'a> {
    others: Vec<Server<'a>>,
    /// Those through which it came.
    own: Vec<Server<'a>>,
    out_of_reach: usize,
}

impl Meant<'_> {
    fn story(&self, request: &StdioRestartRequest) -> Story {
        let delay = Duration::from_millis(request.self_delay_ms);
        let own = self.own.first();
        Story {
            meant: self.others.iter().map(|server| (server.declared.name.clone(), server.pid())).collect(),
            failed: Vec::new(),
            dry_run: request.dry_run,
            orphans: self.others.iter().filter(|server| server.is_orphaned()).count(),
            out_of_reach: self.out_of_reach,
            missing: Vec::new(),
            watched: Duration::from_millis(request.respawn_wait_ms),
            own: own
                .map(|own| OwnServer { pid: own.pid(), ends_after: request.include_self.then_some(delay) }),
        }
    }
}

fn check_names(declared: &[Declared], names: &[String]) -> Result<(), UnknownServer> {
    let is_declared = |name: &String| declared.iter().any(|declared| declared.name == *name);
    match names.iter().find(|name| !is_declared(name)) {
        Some(name) => Err(UnknownServer {
            name: name.clone(),
            declared: declared.iter().map(|declared| declared.name.clone()).collect(),
        }),
        None => Ok(()),
    }
}

fn choose<'a>(
    servers: Vec<Server<'a>>,
    world: &World,
    asker: &Asker,
    request: &StdioRestartRequest,
) -> Meant<'a> {
    let is_meant = |server: &Server<'_>| {
        (request.names.is_empty() || request.names.contains(&server.declared.name))
            && (!request.orphaned_only || server.is_orphaned())
            && (!request.stale_only || show::is_stale(server))
    };
    let is_reached = |server: &Server<'_>| match &asker.reach {
        Reach::Everything => true,
        Reach::Below(agent) => server.agent == Some(&**agent),
    };
    let is_own = |server: &Server<'_>| asker.pid.is_some_and(|pid| world.is_below(pid, &server.members));
    let (reached, beyond): (Vec<_>, Vec<_>) = servers.into_iter().filter(is_meant).partition(is_reached);
    let (own, others): (Vec<_>, Vec<_>) = reached.into_iter().partition(is_own);
    Meant { others, own, out_of_reach: beyond.len() }
}

fn target(server: &Server<'_>) -> Target {
    Target {
        members: server.members.iter().map(|member| identity(member)).collect(),
        grace: server.declared.grace,
    }
}

fn identity(known: &Known) -> (u32, u64) {
    (known.row.pid, known.row.start_time)
}

/// A server that has ended and has a client that may start it again.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lost {
    name: String,
    pid: u32,
    client: StdioClient,
    client_identity: (u32, u64),
}

impl Lost {
    fn of(server: &Server<'_>) -> Option<Self> {
        let Client::Is(client) = server.client else { return None };
        Some(Self {
            name: server.declared.name.clone(),
            pid: server.pid(),
            client: show::client(client, server.agent),
            client_identity: identity(client),
        })
    }
}

/// Who came back.
#[derive(Debug, Default)]
struct Watch {
    respawned: Vec<(Lost, u32)>,
    missing: Vec<Lost>,
}

/// Looks until all are back or the time is up.
fn watch(lost: &[Lost], before: &HashSet<(u32, u64)>, scope: &Scope, limit: Duration) -> Watch {
    let deadline = Instant::now() + limit;
    let mut pause = FIRST_PAUSE;
    loop {
        let world = World::of(table::read(), &scope.supervised);
        let seen = come_back(lost, before, &world.servers(&scope.declared));
        let left = deadline.saturating_duration_since(Instant::now());
        if seen.missing.is_empty() || left.is_zero() {
            return seen;
        }
        thread::sleep(pause.min(left));
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
}

/// Which of the servers that run now take the place of which that have ended: of the same name and client.
fn come_back(lost: &[Lost], before: &HashSet<(u32, u64)>, now: &[Server<'_>]) -> Watch {
    let mut new: Vec<&Server<'_>> = now
        .iter()
        .filter(|server| !server.members.iter().any(|member| before.contains(&identity(member))))
        .collect();
    let mut watch = Watch::default();
    for lost in lost {
        let takes_its_place = |server: &&Server<'_>| {
            server.declared.name == lost.name
                && matches!(server.client, Client::Is(client) if identity(client) == lost.client_identity)
        };
        match new.iter().position(takes_its_place) {
            Some(index) => watch.respawned.push((lost.clone(), new.remove(index).pid())),
            None => watch.missing.push(lost.clone()),
        }
    }
    watch
}

fn report(
    status: StdioStatus,
    killed: Vec<u32>,
    failed: Vec<StdioFailure>,
    watch: Watch,
    story: &Story,
) -> StdioRestarted {
    let respawned = watch.respawned.into_iter();
    StdioRestarted {
        status,
        killed_other: u32::try_from(killed.len()).unwrap_or(u32::MAX),
        killed,
        failed,
        respawned: respawned
            .map(|(lost, new_pid)| Respawned { old_pid: lost.pid, new_pid, client: lost.client })
            .collect(),
        not_respawned: watch
            .missing
            .into_iter()
            .map(|lost| NotRespawned { pid: lost.pid, client: lost.client })
            .collect(),
        self_exit_scheduled: false,
        note: note::note(story),
        delivery: None,
    }
}

impl fmt::Display for UnknownServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stdioServers of the config has no {:?}", self.name)
    }
}

impl std::error::Error for UnknownServer {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::testing::{World as Table, row};

    fn declared() -> Vec<Declared> {
        vec![Declared { name: "tuiml".into(), matches: "tuiml-mcp".into(), grace: Duration::ZERO }]
    }

    fn request() -> StdioRestartRequest {
        StdioRestartRequest {
            path: RestartPath::CtlRestartServers.id().to_owned(),
            names: Vec::new(),
            stale_only: false,
            orphaned_only: false,
            include_self: false,
            dry_run: false,
            respawn_wait_ms: 0,
            self_delay_ms: 0,
            connection: None,
        }
    }

    /// Two clients with a server each, one orphan, and an agent's server with a process below it.
    fn world() -> Table {
        Table::of(
            &[
                row(10, 1, "claude"),
                row(11, 10, "tuiml-mcp"),
                row(20, 1, "cursor"),
                row(21, 20, "tuiml-mcp"),
                row(22, 21, "curl http://127.0.0.1:4310/mcp"),
                row(30, 1, "tuiml-mcp").orphan(),
                row(40, 1, "mcp-restartd shim"),
                row(41, 40, "codex"),
                row(42, 41, "tuiml-mcp"),
            ],
            &[("reviewer", 40, 41)],
        )
    }

    fn chosen(asker: &Asker, request: &StdioRestartRequest) -> (Vec<u32>, Vec<u32>, usize) {
        let (world, declared) = (world(), declared());
        let meant = choose(world.0.servers(&declared), &world.0, asker, request);
        let pids = |servers: &[Server<'_>]| servers.iter().map(Server::pid).collect();
        (pids(&meant.others), pids(&meant.own), meant.out_of_reach)
    }

    fn anybody(pid: Option<u32>) -> Asker {
        Asker { pid, reach: Reach::Everything }
    }

    #[test]
    fn every_declared_server_is_meant_if_nothing_else_is_said() {
        assert_eq!(chosen(&anybody(None), &request()), (vec![11, 21, 30, 42], vec![], 0));
        let orphans = StdioRestartRequest { orphaned_only: true, ..request() };
        assert_eq!(chosen(&anybody(None), &orphans), (vec![30], vec![], 0));
    }

    #[test]
    fn the_server_through_which_a_request_comes_is_set_apart_from_the_others() {
        for caller in [21, 22] {
            assert_eq!(chosen(&anybody(Some(caller)), &request()), (vec![11, 30, 42], vec![21], 0));
        }
        // A client is above its server.
        assert_eq!(chosen(&anybody(Some(20)), &request()), (vec![11, 21, 30, 42], vec![], 0));
    }

    #[test]
    fn who_may_control_only_itself_reaches_the_servers_below_it() {
        let asker = Asker { pid: Some(41), reach: Reach::Below("reviewer".into()) };
        assert_eq!(chosen(&asker, &request()), (vec![42], vec![], 3));
        let other = Asker { pid: None, reach: Reach::Below("other".into()) };
        assert_eq!(chosen(&other, &request()), (vec![], vec![], 4));
    }

    #[test]
    fn a_name_that_is_not_declared_is_refused() {
        let error = check_names(&declared(), &["tuiml".into(), "tuiml-mcp".into()]).unwrap_err();
        assert_eq!(error.to_string(), "stdioServers of the config has no \"tuiml-mcp\"");
        assert_eq!(error.declared, ["tuiml"]);
        assert_eq!(check_names(&declared(), &["tuiml".into()]), Ok(()));
    }

    #[test]
    fn a_new_server_counts_for_the_client_that_started_it_and_for_one_that_ended() {
        let (before, declared) = (world(), declared());
        let servers = before.0.servers(&declared);
        let seen: HashSet<_> =
            servers.iter().flat_map(|server| server.members.iter().map(|member| identity(member))).collect();
        let lost: Vec<Lost> = servers.iter().filter_map(Lost::of).collect();
        assert_eq!(
            lost.iter().map(|lost| lost.pid).collect::<Vec<_>>(),
            [11, 21, 42],
            "orphans have no client"
        );
        let after = Table::of(
            &[
                row(10, 1, "claude"),
                row(12, 10, "tuiml-mcp"),
                row(13, 10, "tuiml-mcp"),
                // Another process that got the number of the client.
                row(20, 1, "cursor").started(999),
                row(23, 20, "tuiml-mcp"),
                row(41, 40, "codex"),
                row(42, 41, "tuiml-mcp"),
            ],
            &[("reviewer", 40, 41)],
        );
        let watch = come_back(&lost, &seen, &after.0.servers(&declared));
        let back: Vec<_> = watch.respawned.iter().map(|(lost, pid)| (lost.pid, *pid)).collect();
        assert_eq!(back, [(11, 12)]);
        let missing: Vec<_> = watch.missing.iter().map(|lost| lost.pid).collect();
        assert_eq!(missing, [21, 42], "one that did not end has not come back");
    }
}
