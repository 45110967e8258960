//! The agents that have a task, and what was last reported of each.

use super::agent::{AgentTask, Launched, Order, Report};
use super::config_watch::Entry;
use super::link::Link;
use super::store::{AgentRecord, Store};
use super::{Glance, Message};
use crate::children::Children;
use mcp_restart_config::Agent;
use mcp_restart_protocol::agent::{AgentState, AgentView};
use mcp_restart_protocol::answer::{ErrorCode, Failure, NeedRestart, Recovered, Terminal};
use mcp_restart_protocol::shim::{SIGNAL_GRACE, ShimFacts};
use mcp_restart_protocol::timestamp::Timestamp;
use mcp_restart_shim::{RunFiles, ShimArgs, run_id};
use mcp_restart_supervisor::{Machine, StopPlan};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::mpsc;

#[derive(Debug)]
pub(super) struct Members {
    state_dir: PathBuf,
    children: Children,
    messages: mpsc::UnboundedSender<Message>,
    by_name: BTreeMap<String, Member>,
    /// Orders that wait until the state is stored.
    outbox: Vec<(String, Order)>,
}

#[derive(Debug)]
pub(super) struct Member {
    orders: mpsc::UnboundedSender<Order>,
    /// How many events it was given, those in the outbox included.
    ordered: u64,
    /// What its task said last.
    pub report: Report,
    /// The generation that reached the MCP endpoint, and when it last did.
    connected: Option<(u64, Timestamp)>,
}

impl Members {
    pub(super) fn new(
        state_dir: PathBuf,
        children: Children,
        messages: mpsc::UnboundedSender<Message>,
    ) -> Self {
        Self { state_dir, children, messages, by_name: BTreeMap::new(), outbox: Vec::new() }
    }

    /// Gives an agent of the config its task, if it has none.
    pub(super) fn enlist(&mut self, name: &str, store: &Store) {
        if !self.by_name.contains_key(name) {
            let record = store.agent(name).cloned().unwrap_or_default();
            let state = record.state.unwrap_or(AgentState::Stopped);
            self.add(name, Machine::new(state, record.generation, record.last_exit), None, None);
        }
    }

    /// See [`Children::end_lost`].
    pub(super) async fn end_lost(&self, name: &str, generation: u64) -> u32 {
        self.children.end_lost(&self.state_dir, name, generation).await
    }

    /// Takes on a process that an earlier daemon started.
    pub(super) fn adopt(&mut self, facts: &ShimFacts, link: Option<Link>, record: &AgentRecord) {
        let last_exit = record.last_exit.clone();
        let machine = Machine::adopted(facts.generation, facts.pid, facts.started_at, last_exit);
        let launched = Launched {
            hash: facts.launch_hash,
            generation: facts.generation,
            session: None,
            entry: None,
            tty: facts.tty,
            log_file: String::from_utf8_lossy(&facts.log_file).into_owned(),
            is_described: !facts.log_file.is_empty(),
            foreign: link.as_ref().and_then(Link::foreign_protocol),
            shim_pid: Some(facts.shim_pid),
        };
        self.add(&facts.name, machine, link, Some(launched));
        if let Some(member) = self.by_name.get_mut(&facts.name) {
            member.connected = record.connected;
        }
    }

    fn add(
        &mut self,
        name: &str,
        machine: Machine<super::launch::Launch>,
        link: Option<Link>,
        launched: Option<Launched>,
    ) {
        let task = AgentTask {
            name: name.to_owned(),
            shim: ShimArgs::for_agent(&self.state_dir, name, self.children.descriptors()),
            state_dir: self.state_dir.clone(),
            children: self.children.clone(),
            machine,
            link,
            launched,
            fleet: self.messages.clone(),
        };
        let report = task.report();
        let member = Member { orders: task.start(), ordered: 0, report, connected: None };
        self.by_name.insert(name.to_owned(), member);
    }

    /// Gives an order, which goes out with [`Members::dispatch`].
    pub(super) fn order(&mut self, name: &str, order: Order) {
        if let Some(member) = self.by_name.get_mut(name) {
            member.ordered += u64::from(matches!(order, Order::Event(_)));
            self.outbox.push((name.to_owned(), order));
        }
    }

    pub(super) fn order_all(&mut self, order: impl Fn() -> Order) {
        let names: Vec<String> = self.by_name.keys().cloned().collect();
        for name in names {
            self.order(&name, order());
        }
    }

    /// Sends the orders that were given: what leads to them is stored by now.
    pub(super) fn dispatch(&mut self) {
        for (name, order) in self.outbox.drain(..) {
            if let Some(member) = self.by_name.get(&name) {
                // An agent task lives as long as its sender.
                let _ = member.orders.send(order);
            }
        }
    }

    /// Whether a report tells what became of every order that was given.
    pub(super) fn is_latest(&self, report: &Report) -> bool {
        self.by_name.get(&report.name).is_some_and(|member| member.ordered == report.seen)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Member)> {
        self.by_name.iter().map(|(name, member)| (name.as_str(), member))
    }

    pub(super) fn get(&self, name: &str) -> Option<&Member> {
        self.by_name.get(name)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub(super) fn is_idle(&self, name: &str) -> bool {
        self.by_name.get(name).is_none_or(|member| member.report.idle)
    }

    /// Another agent that is not idle and whose files an agent of this name would share: its name differs
    /// in its case alone, or has the same hash.
    pub(super) fn namesake(&self, name: &str) -> Option<&str> {
        let same = |other: &str| other != name && run_id(other) == run_id(name);
        self.iter().find(|(other, member)| same(other) && !member.report.idle).map(|(other, _)| other)
    }

    /// Its process id, while it has a process.
    pub(super) fn process(&self, name: &str) -> Option<u32> {
        self.by_name.get(name)?.report.process.map(|(pid, ..)| pid)
    }

    pub(super) fn generation(&self, name: &str) -> u64 {
        self.by_name.get(name).map_or(0, |member| member.report.generation)
    }

    /// The entry by which this daemon launched the present process.
    pub(super) fn launched_entry(&self, name: &str) -> Option<Arc<Agent>> {
        self.by_name.get(name)?.report.launched.as_ref()?.entry.clone()
    }

    /// The entries that agents were launched with, as far as they are known.
    pub(super) fn launched_entries(&self) -> impl Iterator<Item = &Agent> {
        self.by_name.values().filter_map(|member| member.report.launched.as_ref()?.entry.as_deref())
    }

    /// Whether the report changes what users see.
    pub(super) fn take_report(&mut self, report: Report) -> bool {
        let Some(member) = self.by_name.get_mut(&report.name) else { return false };
        let shown =
            |report: &Report| (report.state, report.process, report.generation, report.last_exit.clone());
        let changed = shown(&member.report) != shown(&report);
        member.report = report;
        changed
    }

    /// Whether the report is about another process than the one before, or about none any more.
    pub(super) fn has_moved_on(&self, report: &Report) -> bool {
        let process = |report: &Report| (report.process, report.generation);
        self.by_name.get(&report.name).is_some_and(|member| process(&member.report) != process(report))
    }

    /// The agents whose present process an earlier daemon started.
    pub(super) fn adopted(&self) -> Vec<String> {
        self.adopted_processes().map(|(name, _)| name.to_owned()).collect()
    }

    /// The adopted agents whose shims have not answered yet.
    pub(super) fn unheard(&self) -> impl Iterator<Item = Recovered> {
        let unheard = self
            .adopted_processes()
            .filter(|(_, launched)| !launched.is_described && launched.foreign.is_none());
        unheard.map(|(name, launched)| {
            let shim = launched.shim_pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
            Recovered {
                agent: Some(name.to_owned()),
                text: format!(
                    "the shim of {name}{shim} does not answer; until it does, its written word is taken for true"
                ),
                attention: true,
            }
        })
    }

    fn adopted_processes(&self) -> impl Iterator<Item = (&str, &Launched)> {
        let running = self.iter().filter(|(_, member)| member.report.process.is_some());
        let launched = running.filter_map(|(name, member)| Some((name, member.report.launched.as_ref()?)));
        launched.filter(|(_, launched)| launched.entry.is_none())
    }

    /// Notes that an agent reached the endpoint: as which generation, and whether for the first time. None if it does not run.
    pub(super) fn connected(&mut self, name: &str, at: Timestamp) -> Option<(u64, bool)> {
        let member = self.by_name.get_mut(name)?;
        let (_, generation, _) = member.report.process?;
        let first = member.connected.is_none_or(|(earlier, _)| earlier != generation);
        member.connected = Some((generation, at));
        Some((generation, first))
    }

    /// Names of the fields in which an entry differs from the launch of the running process.
    pub(super) fn diff(&self, name: &str, entry: &Entry) -> Vec<String> {
        let Some(member) = self.by_name.get(name) else { return Vec::new() };
        match &member.report.launched {
            Some(Launched { entry: Some(launched), .. }) => launched.diff(&entry.agent),
            // An earlier daemon knew the entry; only its hash is left.
            Some(Launched { hash, .. }) if *hash != entry.hash => vec!["entry".to_owned()],
            _ => Vec::new(),
        }
    }

    /// How an agent is shown, under its entry if it has one.
    pub(super) fn view(&self, name: &str, entry: Option<&Entry>) -> Option<AgentView> {
        let Member { report, connected, .. } = self.by_name.get(name)?;
        let running = report.process.is_some();
        let launched = report.launched.as_ref().filter(|_| running || entry.is_none());
        let shown = launched.and_then(|launched| launched.entry.as_ref()).or(entry.map(|entry| &entry.agent));
        let connected_at = connected
            .filter(|(generation, _)| report.process.is_some_and(|(_, running, _)| running == *generation))
            .map(|(_, at)| at);
        let known = launched.map(|launched| launched.log_file.clone()).filter(|file| !file.is_empty());
        let log_file = known.or_else(|| {
            entry.map(|entry| entry.agent.log_file_in(&self.state_dir).to_string_lossy().into_owned())
        });
        Some(AgentView {
            name: name.to_owned(),
            kind: shown.map_or("generic", |agent| agent.kind.as_str()).to_owned(),
            state: report.state,
            pid: report.process.map(|(pid, ..)| pid),
            generation: report.generation,
            started_at: report.process.map(|(.., at)| at),
            uptime_ms: report.process.map(|(.., at)| Timestamp::now().millis_since(at)),
            autostart: entry.is_some_and(|entry| entry.agent.autostart),
            tty: launched.map_or_else(|| entry.is_some_and(|entry| entry.agent.tty), |launched| launched.tty),
            session_id: None,
            connected_at,
            config_changed: launched.zip(entry).is_some_and(|(launched, entry)| launched.hash != entry.hash),
            listed: entry.is_some(),
            log_file: log_file.unwrap_or_default(),
            last_exit: report.last_exit.clone(),
        })
    }

    /// What an agent is at, for the record.
    pub(super) fn glance(&self, name: &str) -> Glance {
        let Some(Member { report, .. }) = self.by_name.get(name) else { return Glance::default() };
        let pid = report.process.map(|(pid, ..)| pid);
        let launched = report.launched.as_ref().filter(|_| pid.is_some());
        Glance {
            pid,
            launch: launched.map(|launched| format!("{:016x}", launched.hash)),
            last_exit: report.last_exit.clone(),
        }
    }

    /// Those whose shims do not understand this daemon.
    pub(super) fn need_restart(&self) -> Vec<NeedRestart> {
        let running = self.iter().filter(|(_, member)| member.report.process.is_some());
        running
            .filter_map(|(name, member)| {
                let protocol = member.report.launched.as_ref()?.foreign?;
                let reason = format!(
                    "its shim speaks protocol {protocol}, which this daemon does not know: until then it can be \
                     stopped, but not attached to"
                );
                Some(NeedRestart { name: name.to_owned(), reason })
            })
            .collect()
    }

    /// The same stop as it can be had: a shim that is ended by a signal takes its own time.
    pub(super) fn as_possible(&self, name: &str, stop: StopPlan) -> StopPlan {
        let launched = self.by_name.get(name).and_then(|member| member.report.launched.as_ref());
        match launched.and_then(|launched| launched.foreign) {
            Some(_) => StopPlan { grace: stop.grace.max(SIGNAL_GRACE), ..stop },
            None => stop,
        }
    }

    /// Where to attach; none for a name that nobody has.
    pub(super) fn terminal(&self, name: &str) -> Option<Result<Terminal, Failure>> {
        let report = &self.by_name.get(name)?.report;
        Some(match (&report.process, &report.launched) {
            (Some((_, generation, _)), Some(Launched { tty: true, .. })) => {
                let socket =
                    RunFiles::new(&self.state_dir, &run_id(name)).socket.to_string_lossy().into_owned();
                Ok(Terminal { socket, generation: *generation })
            }
            (Some(_), Some(Launched { foreign: Some(_), .. })) => Err(Failure::new(
                ErrorCode::InvalidArgument,
                format!("the shim of {name} is of another version than this daemon"),
            )
            .hint(format!("`mcp-restartctl restart {name}`"))),
            (Some(_), _) => Err(Failure::new(
                ErrorCode::InvalidArgument,
                format!("{name} runs without a terminal"),
            )
            .hint(format!(
                "`mcp-restartctl set {name} tty=true` and restart it, or read `mcp-restartctl logs {name}`"
            ))),
            (None, _) => Err(Failure::new(ErrorCode::NotRunning, format!("{name} is not running"))
                .hint(format!("`mcp-restartctl start {name}`"))),
        })
    }

    /// The agent below whose shim a process is, or that shim's.
    pub(super) fn of_process(&self, pid: u32) -> Option<String> {
        let line = mcp_restart_process::ancestors(pid);
        self.shims().find(|(_, shim)| line.contains(shim)).map(|(name, _)| name.to_owned())
    }

    /// The agents that have processes, and the shim above each.
    pub(super) fn shims(&self) -> impl Iterator<Item = (&str, u32)> {
        self.iter().filter_map(|(name, member)| {
            let shim_pid = member.report.launched.as_ref()?.shim_pid?;
            (!member.report.idle).then_some((name, shim_pid))
        })
    }

    /// The state dir that all this is about.
    pub(super) fn state_dir(&self) -> &Path {
        &self.state_dir
    }
}
