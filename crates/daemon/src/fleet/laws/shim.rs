//! A shim without a process: the words, the lock and the files of a real one, and an agent that lives and ends
//! when the schedule says so.
//!
//! ```text
//!            Launch              start               end             Acknowledge
//!  Waiting ─────────► Ordered ─────────► Running ──────────► Ended ─────────────► Gone
//!     └───────────────────┴── the daemon is gone, fail, die ───┴──────────────────►┘
//! ```

use crate::fleet::adopt::as_described;
use mcp_restart_process::{Identity, LockFile, boot_id, write_atomically};
use mcp_restart_protocol::codec::{take_frame, to_frame};
use mcp_restart_protocol::shim::{
    FromShim, Leftover, SHIM_HELLO_LEN, SHIM_PROTOCOL, ShimExit, ShimFacts, ShimHello, ShimLaunch, ToShim,
};
use mcp_restart_protocol::timestamp::Timestamp;
use mcp_restart_shim::{Facts, RecordedProcess, RunFiles};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// The errno of a program that is not there.
const ENOENT: i32 = 2;

#[derive(Debug)]
pub(super) struct Shim {
    /// By which its daemon knows it.
    pub(super) pid: u32,
    /// Which agent's.
    pub(super) id: String,
    /// It is stopped: it neither hears nor says anything.
    pub(super) is_frozen: bool,
    files: RunFiles,
    stage: Stage,
    lock: Option<LockFile>,
    listener: Option<UnixListener>,
    talks: Vec<Talk>,
    /// The number of the daemon's connection.
    daemon: u64,
    next_talk: u64,
}

#[derive(Debug)]
enum Stage {
    Waiting,
    Ordered(Box<ShimLaunch>),
    Running { facts: Box<Facts>, stopping: bool },
    Ended { facts: Box<Facts>, is_written: bool },
    Gone,
}

#[derive(Debug)]
struct Talk {
    number: u64,
    stream: UnixStream,
    inbox: Vec<u8>,
    greeted: bool,
    over: bool,
}

impl Shim {
    /// One that waits for its launch.
    pub(super) fn new(state_dir: &Path, id: String, pid: u32, control: OwnedFd) -> Self {
        let files = RunFiles::new(state_dir, &id);
        Self {
            pid,
            id,
            is_frozen: false,
            files,
            stage: Stage::Waiting,
            lock: None,
            listener: None,
            talks: vec![Talk::new(0, control.into())],
            daemon: 0,
            next_talk: 1,
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.stage, Stage::Gone)
    }

    /// Whether it has not heard of a launch.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }

    /// Whether no other may launch its agent.
    pub(super) fn holds_lock(&self) -> bool {
        self.lock.is_some()
    }

    /// Whether it has a launch to carry out.
    pub(super) fn is_ordered(&self) -> bool {
        matches!(self.stage, Stage::Ordered(_))
    }

    /// Whether its agent lives and is to be ended.
    pub(super) fn is_stopping(&self) -> bool {
        matches!(self.stage, Stage::Running { stopping: true, .. })
    }

    /// The agent's process id and generation, while it lives.
    pub(super) fn process(&self) -> Option<(u32, u64)> {
        match &self.stage {
            Stage::Running { facts, .. } => Some((facts.agent.pid, facts.generation)),
            _ => None,
        }
    }

    /// Hears what was said to it.
    pub(super) fn hear(&mut self) {
        if self.is_frozen {
            return;
        }
        while let Some((stream, _)) = self.listener.as_ref().and_then(|listener| listener.accept().ok()) {
            self.talks.push(Talk::new(self.next_talk, stream));
            self.next_talk += 1;
        }
        let mut heard = Vec::new();
        for talk in &mut self.talks {
            let number = talk.number;
            heard.extend(talk.hear().into_iter().map(|message| (number, message)));
        }
        for (number, message) in heard {
            if !self.is_gone() {
                self.handle(number, message);
            }
        }
        self.talks.retain(|talk| !talk.over);
        if matches!(self.stage, Stage::Waiting | Stage::Ordered(_)) && self.talks.is_empty() {
            self.stage = Stage::Gone;
        }
        self.write_if_alone();
    }

    /// Carries the launch out, if the shim before it has let go of the lock. Gives the generation.
    pub(super) fn start(&mut self, agent_pid: u32) -> Option<u64> {
        self.hear();
        if !self.is_ordered() || !self.take_lock() {
            return None;
        }
        let Stage::Ordered(launch) = std::mem::replace(&mut self.stage, Stage::Gone) else { return None };
        let (pid, generation) = (agent_pid, launch.generation);
        let own = Identity::of(std::process::id()).unwrap();
        let facts = Facts {
            protocol: SHIM_PROTOCOL,
            name: launch.name,
            generation,
            launch_hash: launch.launch_hash,
            boot_id: boot_id(),
            shim: RecordedProcess { pid: own.pid, start_time: own.start_time },
            agent: RecordedProcess { pid, start_time: 1 },
            started_at: Timestamp::now(),
            exit: None,
        };
        write(&facts, &self.files);
        let _ = fs::remove_file(&self.files.socket);
        let listener = UnixListener::bind(&self.files.socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        self.listener = Some(listener);
        self.say(&FromShim::Started { pid, at: facts.started_at });
        self.stage = Stage::Running { facts: Box::new(facts), stopping: false };
        Some(generation)
    }

    /// The program cannot be executed. Gives whether there was a launch.
    pub(super) fn fail(&mut self) -> bool {
        self.hear();
        if !self.is_ordered() || !self.take_lock() {
            return false;
        }
        self.say(&FromShim::SpawnFailed { step: "execute /bin/true".to_owned(), errno: ENOENT });
        self.die();
        true
    }

    /// The agent and its tree have ended. Gives whether there was one.
    pub(super) fn end(&mut self, by_itself: bool) -> bool {
        let Stage::Running { facts, .. } = &mut self.stage else { return false };
        let exit = ShimExit {
            code: Some(0),
            signal: None,
            at: Timestamp::now(),
            by_itself,
            forced: false,
            leftovers: 0,
        };
        facts.exit = Some(exit.clone());
        let facts = facts.clone();
        self.stage = Stage::Ended { facts, is_written: false };
        self.say(&FromShim::Exited(exit));
        self.write_if_alone();
        true
    }

    /// Some of the tree cannot be ended. Gives whether that was asked for.
    pub(super) fn give_up(&mut self) -> bool {
        let stopping = self.is_stopping();
        if stopping {
            let left = Leftover { pid: 7, command: "sh".to_owned(), reason: "uninterruptible".to_owned() };
            self.say(&FromShim::StopIncomplete { left: vec![left] });
        }
        stopping
    }

    /// It has waited long enough for its daemon to take note of the exit.
    pub(super) fn write_exit(&mut self) {
        if let Stage::Ended { facts, is_written } = &mut self.stage
            && !*is_written
        {
            write(facts, &self.files);
            *is_written = true;
        }
    }

    /// It is killed, and its agent with it: its files stay. Gives whether it was there.
    pub(super) fn die(&mut self) -> bool {
        let lost = !self.is_gone();
        self.stage = Stage::Gone;
        self.talks.clear();
        self.listener = None;
        self.lock = None;
        lost
    }

    fn take_lock(&mut self) -> bool {
        if self.lock.is_none() {
            self.lock = LockFile::acquire(&self.files.lock, 0).ok();
        }
        self.lock.is_some()
    }

    fn handle(&mut self, sender: u64, message: ToShim) {
        match message {
            ToShim::Launch(launch) => {
                assert!(matches!(self.stage, Stage::Waiting), "a second launch: {self:?}");
                self.stage = Stage::Ordered(launch);
            }
            ToShim::Describe => self.describe(sender),
            ToShim::Stop { .. } => {
                assert_eq!(sender, self.daemon, "only the daemon may stop an agent");
                match &mut self.stage {
                    Stage::Running { stopping, .. } => *stopping = true,
                    Stage::Ended { facts, .. } => {
                        let exit = facts.exit.clone().unwrap();
                        self.say(&FromShim::Exited(exit));
                    }
                    stage => panic!("a stop of nothing: {stage:?}"),
                }
            }
            ToShim::Acknowledge => {
                assert!(matches!(self.stage, Stage::Ended { .. }), "no exit to acknowledge: {self:?}");
                let _ = fs::remove_file(&self.files.socket);
                let _ = fs::remove_file(&self.files.facts);
                self.die();
            }
            other => panic!("{other:?}"),
        }
    }

    fn describe(&mut self, sender: u64) {
        self.daemon = sender;
        let (Stage::Running { facts, .. } | Stage::Ended { facts, .. }) = &self.stage else {
            panic!("nothing to describe: {self:?}")
        };
        let described = ShimFacts { stopping: self.is_stopping(), ..as_described(*facts.clone()) };
        let exit = facts.exit.clone();
        self.say(&FromShim::Facts(Box::new(described)));
        if let Some(exit) = exit {
            self.say(&FromShim::Exited(exit));
        }
    }

    fn write_if_alone(&mut self) {
        if !self.talks.iter().any(|talk| talk.number == self.daemon) {
            self.write_exit();
        }
    }

    fn say(&mut self, message: &FromShim) {
        if let Some(talk) = self.talks.iter_mut().find(|talk| talk.number == self.daemon) {
            // A daemon that has died does not hear it.
            let _ = talk.stream.write_all(&to_frame(message).unwrap());
        }
    }
}

impl Talk {
    fn new(number: u64, mut stream: UnixStream) -> Self {
        stream.set_nonblocking(true).unwrap();
        let over = stream.write_all(&ShimHello::OURS.to_bytes()).is_err();
        Self { number, stream, inbox: Vec::new(), greeted: false, over }
    }

    fn hear(&mut self) -> Vec<ToShim> {
        let mut buffer = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.over = true,
                Ok(length) => {
                    self.inbox.extend_from_slice(&buffer[..length]);
                    continue;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => self.over = true,
            }
            break;
        }
        if !self.greeted && self.inbox.len() >= SHIM_HELLO_LEN {
            self.inbox.drain(..SHIM_HELLO_LEN);
            self.greeted = true;
        }
        if !self.greeted {
            return Vec::new();
        }
        std::iter::from_fn(|| take_frame(&mut self.inbox).unwrap()).collect()
    }
}

fn write(facts: &Facts, files: &RunFiles) {
    write_atomically(&files.facts, &serde_json::to_vec(facts).unwrap()).unwrap();
}
