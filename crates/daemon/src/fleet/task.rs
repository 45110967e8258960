//! The fleet task: takes requests, decides who may do what with which config, and publishes the views.

use super::adopt;
use super::agent::{Order, Report, until};
use super::answers;
use super::config_watch::ConfigWatch;
use super::handoff;
use super::intent::Intent;
use super::leave::Leave;
use super::members::{Member, Members};
use super::repetition::{self, ReplayKey};
use super::requests::stop_plan;
use super::store::Store;
use super::{FleetSetup, FleetStatus, Message, Reply};
use crate::last_good::LastGood;
use mcp_restart_config::{Agent, lookup};
use mcp_restart_protocol::agent::{AgentState, AgentView};
use mcp_restart_protocol::answer::{AgentAnswer, Event, Recovered, RestartAnswer};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::timestamp::Timestamp;
use mcp_restart_supervisor::{Event as MachineEvent, Outcome, Ticket};
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// How long after the state could not be stored that is tried again, unless something happens before.
const SAVE_AGAIN: Duration = Duration::from_secs(5);
/// How long launches wait for an endpoint.
const ENDPOINT_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct FleetTask {
    pub(super) config: ConfigWatch,
    pub(super) store: Store,
    pub(super) members: Members,
    pub(super) state_dir: PathBuf,
    pub(super) socket: PathBuf,
    pub(super) inherited: Vec<(OsString, OsString)>,
    pub(super) url: Option<String>,
    /// Agents whose launch waits for the endpoint; their intents are in the store.
    pub(super) waiting: BTreeSet<String>,
    /// Agents whose present launch was on trial when the daemon before ended, and is to be again.
    pub(super) trials: Vec<String>,
    /// What there is to tell about the daemon before this one.
    pub(super) recovered: Vec<Recovered>,
    pub(super) next_ticket: u64,
    pub(super) pending: HashMap<Ticket, Pending>,
    subscribers: Vec<mpsc::Sender<Event>>,
    revision: u64,
    closing: Option<oneshot::Sender<()>>,
    pub(super) is_closing: bool,
    pub(super) leave: Leave,
    /// How many restarts of stdio servers are under way.
    pub(super) stdio_restarts: usize,
    /// Who waits for the delivery of an answer that is about no agent.
    pub(super) deliveries: HashMap<u64, oneshot::Sender<()>>,
}

/// A request that an agent task works on.
#[derive(Debug)]
pub(super) enum Pending {
    Agent {
        name: String,
        entry: Option<Arc<Agent>>,
        reply: Reply<AgentAnswer>,
    },
    Restart {
        name: String,
        entry: Arc<Agent>,
        config_diff: Vec<String>,
        warnings: Vec<String>,
        replay: Vec<ReplayKey>,
        audience: Audience,
        /// The same request, come again before it was answered.
        repeated: Vec<Reply<RestartAnswer>>,
    },
    /// Something that nobody waits for.
    Unattended {
        name: String,
        entry: Option<Arc<Agent>>,
        begun: Box<Intent>,
    },
}

/// Who is told how a restart came out.
#[derive(Debug)]
pub(super) enum Audience {
    Caller(Reply<RestartAnswer>),
    /// The caller was that of an earlier daemon: whoever looks.
    Everybody(Box<Intent>),
}

impl FleetTask {
    pub(super) async fn new(setup: FleetSetup, messages: mpsc::UnboundedSender<Message>) -> Self {
        let FleetSetup { first, environment, state_dir, socket, children } = setup;
        let (mut store, autostart) = Store::open(&state_dir, &mcp_restart_process::boot_id());
        // Also an agent that is started before the endpoint listens is told where it will.
        let (host, port) = (first.config.host, first.config.port);
        let url = (port != 0).then(|| lookup::bridge_url(host, port));
        let config = ConfigWatch::new(first, environment, LastGood::in_folder(&state_dir));
        // Under the last good config nothing is started.
        let autostart = autostart && config.error().is_none();
        let mut members = Members::new(state_dir.clone(), children, messages);
        let adopted = adopt::adopt(&mut members, &mut store).await;
        let mut task = Self {
            config,
            store,
            members,
            state_dir,
            socket,
            inherited: std::env::vars_os().collect(),
            url,
            waiting: BTreeSet::new(),
            trials: Vec::new(),
            recovered: Vec::new(),
            next_ticket: 0,
            pending: HashMap::new(),
            subscribers: Vec::new(),
            revision: 0,
            closing: None,
            is_closing: false,
            leave: Leave::Staying,
            stdio_restarts: 0,
            deliveries: HashMap::new(),
        };
        task.enlist();
        for facts in adopted.ended.values() {
            task.look_up_last_session(facts);
        }
        task.take_up(adopted, autostart);
        task.store_and_dispatch();
        task
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Message>) {
        let mut give_up = Some(Instant::now() + ENDPOINT_LIMIT);
        loop {
            give_up = give_up.filter(|_| !self.waiting.is_empty() || !self.trials.is_empty());
            let save_again = self.store.unsaved().is_some().then(|| Instant::now() + SAVE_AGAIN);
            tokio::select! {
                biased;
                message = inbox.recv() => match message {
                    Some(message) => self.handle(message),
                    None => return,
                },
                () = until(give_up) => self.launch_waiting(),
                () = until(save_again) => {}
            }
            while let Ok(message) = inbox.try_recv() {
                self.handle(message);
            }
            self.store_and_dispatch();
            self.leave_if_quiet();
        }
    }

    /// One write for everything that came at once. Nothing is begun, and no exit forgotten, before it; but where
    /// nothing can be written, agents are started and stopped all the same.
    fn store_and_dispatch(&mut self) {
        self.store.save();
        self.members.dispatch();
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::List { all, reply } => {
                self.refresh();
                self.look_up_sessions();
                let _ = reply.send(self.list(all));
            }
            Message::Status { reply } => {
                self.refresh();
                self.look_up_sessions();
                let _ = reply.send(self.status());
            }
            Message::Start { request, reply } => self.start(&request, reply),
            Message::Stop { request, reply } => self.stop(&request, reply),
            Message::Restart { caller, path, request, reply } => self.restart(&caller, path, &request, reply),
            Message::Glance { name, reply } => {
                let _ = reply.send(self.members.glance(&name));
            }
            Message::Handoff { caller, name, reply } => {
                let _ = reply.send(self.handoff(&caller, name));
            }
            Message::Terminal { name, reply } => {
                let _ = reply.send(self.members.terminal(&name).unwrap_or_else(|| Err(self.unknown(&name))));
            }
            Message::McpConfig { caller, name, reply } => {
                let _ = reply.send(self.mcp_config(&caller, &name));
            }
            Message::Logs { caller, name, lines, reply } => {
                let _ = reply.send(self.logs(&caller, &name, lines));
            }
            Message::StdioScope { reply } => {
                self.refresh();
                let _ = reply.send(self.stdio_scope());
            }
            Message::RestartStdio { caller, lease, reply } => {
                let _ = reply.send(self.grant_stdio_restart(&caller, lease));
            }
            Message::StdioRestarted => self.stdio_restarts = self.stdio_restarts.saturating_sub(1),
            Message::AwaitDelivery { reply } => self.await_delivery(reply),
            Message::Delivered { delivery } => {
                self.tell_delivered(delivery);
                self.members.order_all(|| Order::event(MachineEvent::Delivered(Ticket(delivery))));
            }
            Message::Session { caller, id } => self.note_session(&caller, id),
            Message::Connected { agent } => self.connected(&agent),
            Message::AgentOfToken { token, reply } => {
                let _ = reply.send(super::tokens::owner(&self.store, &token));
            }
            Message::AgentOfProcess { pid, reply } => {
                let _ = reply.send(self.members.of_process(pid));
            }
            Message::Shims { reply } => {
                let _ =
                    reply.send(self.members.shims().map(|(name, shim)| (name.to_owned(), shim)).collect());
            }
            Message::Subscribe { events } => self.subscribe(events),
            Message::Endpoint { url } => {
                self.url = Some(url);
                self.launch_waiting();
            }
            Message::ShutDown { path, reply } => self.shut_down(path, reply),
            Message::Hurry => self.members.order_all(|| Order::event(MachineEvent::Hurry)),
            Message::MayUpgrade { caller, managed, reply } => {
                let _ = reply.send(self.may_upgrade(&caller, managed));
            }
            Message::MakeWay { reply } => self.make_way(reply),
            Message::Stay => self.stay(),
            Message::WriteAgain => {
                self.store.write_again();
                self.config.write_again();
                self.members.order_all(|| Order::WriteAgain);
            }
            Message::Report(report) => self.report(report),
        }
    }

    fn list(&self, all: bool) -> Vec<AgentView> {
        let listed = self.config.entries().iter().filter_map(|entry| self.view(&entry.agent.name));
        let unlisted = if all { self.unlisted() } else { Vec::new() };
        listed.chain(unlisted).collect()
    }

    fn unlisted(&self) -> Vec<AgentView> {
        let living = self.members.iter().filter(|(_, member)| member.report.process.is_some());
        living
            .filter(|(name, _)| self.config.entry(name).is_none())
            .filter_map(|(name, _)| self.view(name))
            .collect()
    }

    fn status(&self) -> FleetStatus {
        FleetStatus {
            agents: self.list(false),
            unlisted: self.unlisted(),
            config_error: self.config.error().map(ToString::to_string),
            state_error: self.store.unsaved().map(str::to_owned),
            pending_config: self.config.pending(),
            adopted: self.members.adopted(),
            recovered: self.recovered.iter().cloned().chain(self.members.unheard()).collect(),
            need_restart: self.members.need_restart(),
        }
    }

    fn view(&self, name: &str) -> Option<AgentView> {
        let session_id =
            self.store.agent(name).and_then(|record| record.session.as_ref()).map(|it| it.id.clone());
        self.members.view(name, self.config.entry(name)).map(|view| AgentView { session_id, ..view })
    }

    /// Reads the config again if its file changed; new entries get a member each.
    pub(super) fn refresh(&mut self) {
        if self.is_closing {
            return;
        }
        self.config.refresh();
        self.enlist();
    }

    pub(super) fn enlist(&mut self) {
        for entry in self.config.entries() {
            self.members.enlist(&entry.agent.name, &self.store);
        }
    }

    fn subscribe(&mut self, events: mpsc::Sender<Event>) {
        for agent in self.list(true) {
            // The channel is new and has room for more agents than a machine runs.
            let _ = events.try_send(Event { revision: self.revision, agent });
        }
        self.subscribers.push(events);
    }

    fn publish(&mut self, name: &str) {
        self.revision += 1;
        self.subscribers.retain(|subscriber| !subscriber.is_closed());
        if self.subscribers.is_empty() {
            return;
        }
        if let Some(agent) = self.view(name) {
            let event = Event { revision: self.revision, agent };
            // One that does not read is dropped, rather than to let it grow without bound.
            self.subscribers.retain(|subscriber| subscriber.try_send(event.clone()).is_ok());
        }
    }

    fn connected(&mut self, agent: &str) {
        let now = Timestamp::now();
        let Some((generation, first)) = self.members.connected(agent, now) else { return };
        if self.store.is_news(agent, generation, now) {
            self.store.agent_mut(agent).connected = Some((generation, now));
            // Of a process that ends with the machine this is all that will be known.
            self.look_up_session(agent);
        }
        if first {
            self.publish(agent);
        }
    }

    fn shut_down(&mut self, path: RestartPath, reply: oneshot::Sender<()>) {
        self.is_closing = true;
        self.closing = Some(reply);
        let names: Vec<String> = self.members.iter().map(|(name, _)| name.to_owned()).collect();
        for name in std::mem::take(&mut self.waiting) {
            // One whose entry was removed has no task that would tell.
            self.store.forget_intent(&name);
        }
        for name in names {
            self.store.agent_mut(&name).launches.end_trial();
            if !self.members.is_idle(&name) {
                self.store.begin(&name, Intent::stop(path, self.members.generation(&name)));
            }
            // It may take that away when it ends.
            self.look_up_session(&name);
            let stop = stop_plan(self.entry_or_launched(&name).as_deref(), path);
            let stop = self.members.as_possible(&name, stop);
            self.members.order(&name, Order::event(MachineEvent::Shutdown(stop)));
        }
        self.finish_if_idle();
    }

    /// An agent that was idle when it was heard of last may have had the order to start in its queue.
    fn finish_if_idle(&mut self) {
        if self.is_closing
            && self
                .members
                .iter()
                .all(|(_, member)| member.report.closing && (member.report.idle || member.report.stuck))
            && let Some(reply) = self.closing.take()
        {
            let stuck: Vec<&str> =
                self.members.iter().filter(|(_, member)| member.report.stuck).map(|(name, _)| name).collect();
            if stuck.is_empty() {
                self.store.mark_clean();
            } else {
                tracing::error!(
                    ?stuck,
                    "not everything could be ended; their shims stay, and the next daemon takes them on"
                );
            }
            self.store.save();
            let _ = reply.send(());
        }
    }

    fn report(&mut self, mut report: Report) {
        let name = report.name.clone();
        let answers = std::mem::take(&mut report.answers);
        if report.process.is_none() {
            // What it has written down goes on being there if it ended by accident.
            self.look_up_session(&name);
        }
        let record = self.store.agent(&name);
        let left = matches!(report.state, AgentState::Stopped | AgentState::Exited | AgentState::Failed);
        let state = left.then_some(report.state);
        let launched = report.launched.as_ref().filter(|launched| launched.generation == report.generation);
        let session = launched.map(|launched| launched.session.clone());
        let anew = record.is_none_or(|record| record.generation != report.generation);
        if record.is_none_or(|record| {
            record.generation != report.generation
                || record.last_exit != report.last_exit
                || record.state != state
        }) {
            let record = self.store.agent_mut(&name);
            record.generation = report.generation;
            record.last_exit.clone_from(&report.last_exit);
            record.state = state;
            if let Some(session) = session.filter(|_| anew) {
                record.session = session.map(|session| *session);
            }
        }
        if report.to_save {
            self.members.order(&name, Order::Saved);
        }
        self.note_launch(&report);
        // Of a launch that waits for the endpoint the machine does not know.
        if self.members.is_latest(&report) && !self.waiting.contains(&name) {
            self.store.follow(&name, report.under_way);
        }
        if self.members.has_moved_on(&report) {
            self.recovered.retain(|recovered| recovered.agent.as_ref() != Some(&name));
        }
        if self.members.take_report(report) {
            self.log_change(&name);
            self.publish(&name);
        }
        for (ticket, outcome) in answers {
            self.answer(ticket, outcome);
        }
        self.finish_if_idle();
    }

    fn log_change(&self, name: &str) {
        let Some(Member { report, .. }) = self.members.get(name) else { return };
        let pid = report.process.map(|(pid, ..)| pid);
        let exit = report.last_exit.as_ref().filter(|_| pid.is_none());
        tracing::info!(agent = name, state = ?report.state, pid, generation = report.generation, ?exit);
    }

    fn answer(&mut self, ticket: Ticket, outcome: Outcome) {
        let Some(pending) = self.pending.remove(&ticket) else { return };
        let (Pending::Agent { name, .. } | Pending::Restart { name, .. } | Pending::Unattended { name, .. }) =
            &pending;
        let Some(view) = self.view(name) else { return };
        match pending {
            Pending::Agent { entry, reply, .. } => {
                let _ = reply.send(answers::agent_answer(ticket, outcome, view, entry.as_deref()));
            }
            Pending::Restart { name, entry, config_diff, warnings, replay, audience, repeated } => {
                if matches!(outcome, Outcome::SpawnFailed(_)) && view.pid.is_some() {
                    // It was refused before anything was touched, so nobody is handed its note.
                    handoff::discard_next(&self.state_dir, &name);
                }
                let answer = answers::restart_answer(ticket, outcome, view, &entry, config_diff)
                    .map(|answer| RestartAnswer { warnings, ..answer });
                if let Ok(answer) = &answer {
                    for key in replay {
                        key.remember(&mut self.store, answer, Timestamp::now());
                    }
                }
                for reply in repeated {
                    let answer = answer.clone().map(|answer| repetition::replayed(answer, Timestamp::now()));
                    let _ = reply.send(answer);
                }
                match audience {
                    Audience::Caller(reply) => drop(reply.send(answer)),
                    Audience::Everybody(begun) => self.tell_outcome(&name, &begun, answer.as_ref().err()),
                }
            }
            Pending::Unattended { name, entry, begun } => {
                let answer = answers::agent_answer(ticket, outcome, view, entry.as_deref());
                self.tell_outcome(&name, &begun, answer.as_ref().err());
            }
        }
    }
}
