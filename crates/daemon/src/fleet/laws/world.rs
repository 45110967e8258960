//! Everything around the daemon: its clients, its config file, the shims, the clock, and its own death.
//!
//! The daemon is the real one, from the fleet's handle down to the sockets of the shims. It runs only while
//! [`World::run`] lets it, one task at a time, in a runtime whose clock stands still; dropping that runtime is its
//! death.

use super::kernel::{Done, Kernel};
use super::shim::Shim;
use crate::children::Children;
use crate::fleet::{Fleet, FleetSetup, Lifecycle, Message, start};
use crate::last_good;
use mcp_restart_config::{Environment, lookup};
use mcp_restart_protocol::agent::AgentView;
use mcp_restart_protocol::answer::{AgentAnswer, Caller, ErrorCode, Failure, RestartAnswer};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::request::RestartRequest;
use mcp_restart_shim::run_id;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// The agents; the last one starts with the daemon.
pub(super) const AGENTS: [&str; 2] = ["a", "b"];
/// Above every number that a real process can have, so that nobody is taken for an agent.
const FIRST_PID: u32 = 1 << 30;

/// Nobody is given up before so much time.
const SHORTEST_LIMIT: Duration = Duration::from_secs(5);
/// So many steps, and the daemon has heard whatever was said to it.
pub(super) const HEARING: u32 = 25;
/// Of a process that is replaced earlier the next one gets the notes.
const SETTLE: Duration = Duration::from_millis(200);

/// What a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    Start,
    Stop,
    Restart,
}

/// How an agent's entry, or the whole file, is left by an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edit {
    /// Another argument.
    Change(usize),
    Remove(usize),
    Add(usize),
    Break,
    Mend,
}

/// How a request was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Done {
        delivery: Option<u64>,
        is_replayed: bool,
    },
    Refused(ErrorCode),
    /// The daemon died before.
    Lost,
}

/// A request and what became of it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) agent: usize,
    pub(super) want: Want,
    /// When, in moments of the world.
    pub(super) at: u64,
    pub(super) note: Option<String>,
    pub(super) request_id: Option<u8>,
    /// The number of the entry that was in the file; none if it changed before the answer came.
    pub(super) entry: Option<u32>,
    /// The daemon had been told to shut down.
    pub(super) while_closing: bool,
    waiting: Option<Waiting>,
    pub(super) answer: Option<Answer>,
}

#[derive(Debug)]
enum Waiting {
    Agent(oneshot::Receiver<Result<AgentAnswer, Failure>>),
    Restart(oneshot::Receiver<Result<RestartAnswer, Failure>>),
}

/// What happened to an agent that no request can answer for, and when it last did.
#[derive(Debug, Default, Clone)]
pub(super) struct Fate {
    /// A launch failed, a process ended by itself, a shim was killed, a stop gave up.
    pub(super) fault: u64,
    /// The daemon may not have heard of it: who asks for something meanwhile asks at the same time.
    is_unheard: bool,
    /// Its entry was missing, or the file could not be read.
    pub(super) no_entry: u64,
    /// The number of the last process.
    pub(super) generation: u64,
    /// For how long something has been waited for.
    owed: Duration,
    /// The notes that its processes found and had the time to read.
    pub(super) notes: Vec<String>,
    /// Those of the process that lives, and for how long it has.
    pub(super) present: Vec<String>,
    lived: Duration,
}

struct Daemon {
    runtime: Runtime,
    starting: oneshot::Receiver<Fleet>,
    fleet: Option<Fleet>,
    closing: Option<oneshot::Receiver<()>>,
    has_closed: bool,
    leaving: Option<oneshot::Receiver<()>>,
}

#[derive(Debug)]
pub(super) struct World {
    folder: TempDir,
    daemon: Option<Daemon>,
    kernel: Arc<Kernel>,
    pub(super) shims: Vec<Shim>,
    pub(super) asked: Vec<Asked>,
    pub(super) fates: Vec<Fate>,
    /// The number of moments so far.
    pub(super) now: u64,
    pub(super) last_death: u64,
    /// When every agent was told to stop.
    pub(super) last_closing: u64,
    /// Whether a daemon has stopped everything and another has come: agents start with it.
    pub(super) last_clean_start: u64,
    entries: BTreeMap<usize, u32>,
    is_broken: bool,
    edits: u32,
    agent_pids: u32,
}

impl fmt::Debug for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let serves = self.fleet.is_some();
        f.debug_struct("Daemon")
            .field("serves", &serves)
            .field("closing", &self.closing.is_some())
            .finish_non_exhaustive()
    }
}

impl World {
    /// A world with a daemon that has just been started.
    pub(super) fn new() -> Self {
        // In memory, where there is such a folder: a disk is written to whenever a file takes another's place.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        for sub in ["logs", "run"] {
            fs::create_dir(folder.path().join(sub)).unwrap();
        }
        let mut world = Self {
            folder,
            daemon: None,
            kernel: Arc::default(),
            shims: Vec::new(),
            asked: Vec::new(),
            fates: vec![Fate::default(); AGENTS.len()],
            now: 1,
            last_death: 0,
            last_closing: 0,
            last_clean_start: 1,
            entries: (0..AGENTS.len()).map(|agent| (agent, 0)).collect(),
            is_broken: false,
            edits: 0,
            agent_pids: 0,
        };
        world.write_config();
        world.start_daemon();
        world
    }

    /// Starts a daemon, if none runs.
    pub(super) fn start_daemon(&mut self) {
        if self.daemon.is_some() {
            return;
        }
        if self.is_broken && !self.shims.iter().any(Shim::holds_lock) {
            // It would refuse.
            self.edit(Edit::Mend);
        }
        let environment = Environment { cwd: self.folder.path().to_owned(), ..Environment::default() };
        let state_dir = self.folder.path().to_owned();
        let (first, _) = last_good::find(Some(&self.config_file()), Some(&state_dir), &environment).unwrap();
        let setup = FleetSetup {
            first,
            environment,
            socket: lookup::socket(&state_dir),
            state_dir,
            children: Children::of(self.kernel.clone()),
        };
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).event_interval(1).build().unwrap();
        let (started, starting) = oneshot::channel();
        runtime.spawn(async move { started.send(start(setup).await) });
        self.daemon =
            Some(Daemon { runtime, starting, fleet: None, closing: None, has_closed: false, leaving: None });
    }

    /// The daemon dies, whatever it is about to do.
    pub(super) fn kill_daemon(&mut self) {
        self.listen();
        self.daemon = None;
        self.last_death = self.now;
        // To the next daemon their processes are there.
        self.fates.iter_mut().for_each(|fate| fate.lived = SETTLE);
        for asked in &mut self.asked {
            asked.waiting = None;
            asked.answer.get_or_insert(Answer::Lost);
        }
        self.hear_all();
    }

    /// Lets the daemon take so many steps, and everybody hear what it said.
    pub(super) fn run(&mut self, steps: u32) {
        let Some(daemon) = &mut self.daemon else { return self.hear_all() };
        daemon.runtime.block_on(async {
            for _ in 0..steps {
                tokio::task::yield_now().await;
            }
        });
        if daemon.fleet.is_none() {
            daemon.fleet = daemon.starting.try_recv().ok();
        }
        if steps >= HEARING {
            self.fates.iter_mut().for_each(|fate| fate.is_unheard = false);
        }
        daemon.has_closed |= daemon.closing.as_mut().is_some_and(|closing| closing.try_recv().is_ok());
        let has_made_way = daemon.leaving.as_mut().is_some_and(|leaving| leaving.try_recv().is_ok());
        self.listen();
        self.hear_all();
        if has_made_way {
            assert!(
                !self.shims.iter().any(|shim| shim.is_ordered() && !shim.is_frozen),
                "it makes way in the middle of a launch: {self:#?}"
            );
            assert!(self.asked.iter().all(|asked| asked.answer.is_some()), "somebody still waits: {self:#?}");
            self.kill_daemon();
        }
    }

    /// Lets so much time pass. Who is waited for and does nothing for too long is given up, which is a fault.
    pub(super) fn wait(&mut self, time: Duration) {
        let Some(daemon) = &self.daemon else { return };
        daemon.runtime.block_on(tokio::time::advance(time));
        for (agent, name) in AGENTS.iter().enumerate() {
            let id = run_id(name);
            let is_due =
                |shim: &Shim| shim.id == id && (shim.is_frozen || shim.is_ordered() || shim.is_stopping());
            let asks = |asked: &Asked| asked.agent == agent && asked.waiting.is_some();
            let fate = &mut self.fates[agent];
            fate.lived += time;
            let is_waited_for = self.shims.iter().any(is_due) || self.asked.iter().any(asks);
            fate.owed = if is_waited_for { fate.owed + time } else { Duration::ZERO };
            if fate.owed >= SHORTEST_LIMIT {
                fate.fault = self.now;
            }
        }
    }

    /// Sends a request, if there is somebody to take it.
    pub(super) fn ask(&mut self, agent: usize, want: Want, own: bool, waits: bool, request_id: Option<u8>) {
        let caller = if own { Caller::Agent { name: AGENTS[agent].to_owned() } } else { Caller::Operator };
        let at = self.now;
        let note = (want == Want::Restart).then(|| format!("note {at}"));
        let (message, waiting) = request(agent, want, caller, waits, note.clone(), request_id);
        let Some(daemon) = &self.daemon else { return };
        let Some(fleet) = &daemon.fleet else { return };
        let while_closing = daemon.closing.is_some();
        fleet.tell(message);
        let entry = self.entries.get(&agent).copied();
        let request_id = request_id.filter(|_| want == Want::Restart && !own);
        let waiting = Some(waiting);
        self.asked.push(Asked {
            agent,
            want,
            at,
            note,
            request_id,
            entry,
            while_closing,
            waiting,
            answer: None,
        });
    }

    /// Tells the daemon that a caller has its answer, the last one that waits for that.
    pub(super) fn deliver(&mut self) {
        let delivery = self.asked.iter().rev().find_map(|asked| match asked.answer {
            Some(Answer::Done { delivery, .. }) => delivery,
            _ => None,
        });
        if let (Some(fleet), Some(delivery)) = (self.fleet(), delivery) {
            fleet.delivered(delivery);
        }
    }

    /// The endpoint listens.
    pub(super) fn tell_endpoint(&self) {
        if let Some(fleet) = self.fleet() {
            fleet.endpoint("http://127.0.0.1:4310/mcp".to_owned());
        }
    }

    pub(super) fn hurry(&self) {
        if let Some(fleet) = self.fleet() {
            fleet.hurry();
        }
    }

    /// Everything is to be stopped, and the daemon to end.
    pub(super) fn shut_down(&mut self) {
        let Some(Daemon { fleet: Some(fleet), closing, .. }) = &mut self.daemon else { return };
        if closing.is_none() {
            let (reply, closed) = oneshot::channel();
            fleet.tell(Message::ShutDown { path: RestartPath::DaemonShutdown, reply });
            *closing = Some(closed);
            self.last_closing = self.now;
        }
    }

    /// The daemon is to make way for another.
    pub(super) fn make_way(&mut self) {
        if let Some(Daemon { fleet: Some(fleet), closing: None, leaving: leaving @ None, .. }) =
            &mut self.daemon
        {
            let (reply, left) = oneshot::channel();
            fleet.tell(Message::MakeWay { reply });
            *leaving = Some(left);
        }
    }

    /// It is to stay after all.
    pub(super) fn stay(&mut self) {
        if let Some(Daemon { fleet: Some(fleet), leaving, .. }) = &mut self.daemon
            && leaving.take().is_some()
        {
            fleet.stay();
        }
    }

    pub(super) fn edit(&mut self, edit: Edit) {
        self.edits += 1;
        match edit {
            Edit::Change(agent) | Edit::Add(agent) => drop(self.entries.insert(agent, self.edits)),
            Edit::Remove(agent) => drop(self.entries.remove(&agent)),
            Edit::Break => self.is_broken = true,
            Edit::Mend => self.is_broken = false,
        }
        for asked in self.asked.iter_mut().filter(|asked| asked.waiting.is_some()) {
            asked.entry = asked.entry.filter(|entry| self.entries.get(&asked.agent) == Some(entry));
        }
        self.write_config();
    }

    /// Whether the system has a process for whoever wants one.
    pub(super) fn set_full(&self, is_full: bool) {
        self.kernel.set_full(is_full);
    }

    /// The next moment.
    pub(super) fn tick(&mut self) {
        self.now += 1;
        for (agent, fate) in self.fates.iter_mut().enumerate() {
            if fate.is_unheard {
                fate.fault = self.now;
            }
            if self.is_broken || !self.entries.contains_key(&agent) {
                fate.no_entry = self.now;
            }
        }
    }

    /// The shims of an agent that are heard and seen now.
    pub(super) fn shims_of(&mut self, agent: usize) -> impl Iterator<Item = &mut Shim> {
        let id = run_id(AGENTS[agent]);
        self.shims.iter_mut().filter(move |shim| shim.id == id && !shim.is_gone() && !shim.is_frozen)
    }

    /// One of them carries out its launch. The laws that are about every process are checked here.
    pub(super) fn start_agent(&mut self, agent: usize) {
        self.agent_pids += 1;
        let pid = FIRST_PID + self.agent_pids;
        let Some(generation) = self.shims_of(agent).find_map(|shim| shim.start(pid)) else { return };
        let id = run_id(AGENTS[agent]);
        let living = self.shims.iter().filter(|shim| shim.id == id && shim.process().is_some()).count();
        assert_eq!(living, 1, "two processes of {}", AGENTS[agent]);
        let notes = self.notes(agent);
        let fate = &mut self.fates[agent];
        assert!(generation > fate.generation, "generation {generation} after {}", fate.generation);
        fate.generation = generation;
        (fate.present, fate.lived) = (notes, Duration::ZERO);
    }

    /// Whatever is done to a shim of an agent; if it did something, no request answers for the agent any more.
    pub(super) fn strike(&mut self, agent: usize, blow: impl Fn(&mut Shim) -> bool) {
        if self.shims_of(agent).any(blow) {
            let fate = &mut self.fates[agent];
            (fate.fault, fate.is_unheard) = (self.now, true);
        }
    }

    /// The tree of an agent that is to be stopped has ended.
    pub(super) fn end_tree(&mut self, agent: usize) {
        let ended = self.shims_of(agent).filter(|shim| shim.is_stopping()).any(|shim| shim.end(false));
        let fate = &mut self.fates[agent];
        let present = if ended { std::mem::take(&mut fate.present) } else { Vec::new() };
        if fate.lived >= SETTLE {
            fate.notes.extend(present);
        }
    }

    /// The daemon ends, having stopped everything.
    pub(super) fn end_daemon(&mut self) {
        self.kill_daemon();
        self.last_clean_start = self.now;
    }

    /// The process that lives, and its generation.
    pub(super) fn process(&self, agent: usize) -> Option<(u32, u64)> {
        let id = run_id(AGENTS[agent]);
        self.shims.iter().filter(|shim| shim.id == id).find_map(Shim::process)
    }

    /// What the daemon says of an agent; none if it does not show it.
    pub(super) fn views(&mut self) -> Vec<AgentView> {
        let (reply, mut listed) = oneshot::channel();
        self.fleet().expect("a daemon that serves").tell(Message::List { all: true, reply });
        for _ in 0..100 {
            self.run(10);
            if let Ok(views) = listed.try_recv() {
                return views;
            }
        }
        panic!("the list never came");
    }

    /// What stands in `state.json` as under way.
    pub(super) fn intents(&self) -> BTreeMap<String, serde_json::Value> {
        let Ok(bytes) = fs::read(self.folder.path().join("state.json")) else { return BTreeMap::new() };
        let state: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let agents = state["agents"].as_object().unwrap().iter();
        agents
            .filter(|(_, record)| !record["intent"].is_null())
            .map(|(name, record)| (name.clone(), record["intent"].clone()))
            .collect()
    }

    pub(super) fn serves(&self) -> bool {
        self.fleet().is_some()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| daemon.closing.is_some())
    }

    /// Whether the daemon has said that everything is stopped.
    pub(super) fn has_closed(&self) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| daemon.has_closed)
    }

    fn fleet(&self) -> Option<&Fleet> {
        self.daemon.as_ref()?.fleet.as_ref()
    }

    fn config_file(&self) -> PathBuf {
        self.folder.path().join("config.json")
    }

    fn write_config(&self) {
        let agents = self.entries.iter().map(|(&agent, entry)| {
            serde_json::json!({
                "name": AGENTS[agent],
                "command": "/bin/true",
                "args": [entry.to_string()],
                "autostart": agent + 1 == AGENTS.len(),
                "injectMcp": agent == 0,
            })
        });
        let config = serde_json::json!({ "port": 0, "agents": agents.collect::<Vec<_>>() });
        let text = if self.is_broken { "{".to_owned() } else { config.to_string() };
        let next = self.folder.path().join("config.next");
        fs::write(&next, text).unwrap();
        fs::rename(next, self.config_file()).unwrap();
    }

    fn notes(&self, agent: usize) -> Vec<String> {
        let file = self.folder.path().join("handoff").join(format!("{}.json", AGENTS[agent]));
        let Ok(bytes) = fs::read(file) else { return Vec::new() };
        let handoff: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let notes = handoff["notes"].as_array().unwrap().iter();
        notes.filter_map(|note| note["text"].as_str().map(str::to_owned)).collect()
    }

    /// Takes the answers that have come. While a daemon lives, none is left out.
    fn listen(&mut self) {
        for asked in &mut self.asked {
            let Some(waiting) = &mut asked.waiting else { continue };
            let came = match waiting {
                Waiting::Agent(answer) => answer.try_recv().map(|answer| {
                    answer.map(|done| Answer::Done { delivery: done.delivery, is_replayed: false })
                }),
                Waiting::Restart(answer) => answer.try_recv().map(|answer| {
                    answer.map(|done| Answer::Done { delivery: done.delivery, is_replayed: done.replayed })
                }),
            };
            match came {
                Ok(answer) => {
                    asked.answer = Some(answer.unwrap_or_else(|failure| Answer::Refused(failure.code)));
                    asked.waiting = None;
                }
                Err(oneshot::error::TryRecvError::Empty) => {}
                Err(oneshot::error::TryRecvError::Closed) => panic!("never answered: {asked:?}"),
            }
        }
    }

    /// The shims that were started come to be, those that were killed are gone, and all hear what they were told.
    fn hear_all(&mut self) {
        let Done { spawned, killed, refused } = self.kernel.take();
        for (pid, program) in spawned {
            let id = program.args.iter().skip_while(|argument| *argument != "--id").nth(1).unwrap();
            let id = id.to_str().unwrap().to_owned();
            self.shims.push(Shim::new(self.folder.path(), id, pid, program.stdin.unwrap()));
        }
        if refused > 0 {
            // Whose it was is not known.
            self.fates.iter_mut().for_each(|fate| fate.fault = self.now);
        }
        for (agent, name) in AGENTS.iter().enumerate() {
            let id = run_id(name);
            for shim in self.shims.iter_mut().filter(|shim| shim.id == id && killed.contains(&shim.pid)) {
                if shim.die() {
                    self.fates[agent].fault = self.now;
                }
            }
        }
        self.shims.retain(|shim| !shim.is_gone());
        self.shims.iter_mut().for_each(Shim::hear);
    }
}

fn request(
    agent: usize,
    want: Want,
    caller: Caller,
    waits: bool,
    note: Option<String>,
    request_id: Option<u8>,
) -> (Message, Waiting) {
    let name = AGENTS[agent].to_owned();
    if want == Want::Restart {
        let (reply, answer) = oneshot::channel();
        let path = RestartPath::CtlRestart;
        let request = RestartRequest {
            path: path.id().to_owned(),
            name: Some(name),
            note,
            resume: None,
            request_id: request_id.map(|id| id.to_string()),
            force: false,
            wait: waits,
        };
        return (Message::Restart { caller, path, request, reply }, Waiting::Restart(answer));
    }
    let (reply, answer) = oneshot::channel();
    let path = if want == Want::Start { RestartPath::CtlStart } else { RestartPath::CtlStop };
    let request = Lifecycle { caller, path, name, force: false, wait: waits };
    let message = if want == Want::Start {
        Message::Start { request, reply }
    } else {
        Message::Stop { request, reply }
    };
    (message, Waiting::Agent(answer))
}
