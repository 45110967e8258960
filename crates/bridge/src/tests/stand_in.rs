//! A stand-in for the daemon: it speaks the protocol on a socket, answers what the test tells it to, and
//! shows the test everything that it was asked.

use futures_util::{SinkExt, StreamExt};
use mcp_restart_protocol::agent::{AgentState, AgentView};
use mcp_restart_protocol::answer::{
    AgentAnswer, Answer, Caller, ErrorCode, Failure, Handoff, LogLines, RestartAnswer, ServerBody,
    ServerFrame, ServerStatus,
};
use mcp_restart_protocol::codec::Frames;
use mcp_restart_protocol::hello::{HELLO_LEN, Hello, Verb};
use mcp_restart_protocol::request::{ClientFrame, Credential, Request};
use mcp_restart_protocol::stdio::{
    NotRespawned, Respawned, StdioClient, StdioFailure, StdioRestarted, StdioServer, StdioStatus,
};
use mcp_restart_protocol::timestamp::Timestamp;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use serde_json::Value;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::codec::Framed;

/// What the stand-in answers; `None`: nothing, ever.
pub(super) type Judge = Arc<dyn Fn(&ClientFrame) -> Option<ServerBody> + Send + Sync>;

pub(super) struct StandIn {
    pub(super) socket: PathBuf,
    /// Everything that was asked, in order.
    pub(super) asked: mpsc::UnboundedReceiver<ClientFrame>,
    /// Every announcement with the descriptor that came with it.
    pub(super) announced: mpsc::UnboundedReceiver<(Value, RawFd)>,
    task: AbortHandle,
}

impl StandIn {
    pub(super) fn start(folder: &Path, judge: Judge) -> Self {
        Self::speaking(folder, Hello::ours(Verb::Talk).protocol, judge)
    }

    pub(super) fn speaking(folder: &Path, protocol: u32, judge: Judge) -> Self {
        let socket = folder.join("mcp-restartd.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let (asked_to, asked) = mpsc::unbounded_channel();
        let (announced_to, announced) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (judge, asked, announced) = (judge.clone(), asked_to.clone(), announced_to.clone());
                connections.spawn(serve(stream, protocol, judge, asked, announced));
            }
        })
        .abort_handle();
        Self { socket, asked, announced, task }
    }

    pub(super) async fn next(&mut self) -> ClientFrame {
        self.asked.recv().await.unwrap()
    }

    /// The next request that is no question about who may come in.
    pub(super) async fn next_call(&mut self) -> ClientFrame {
        loop {
            let frame = self.next().await;
            if frame.request != Request::Authenticate {
                return frame;
            }
        }
    }

    /// What was asked so far, and not yet looked at.
    pub(super) fn so_far(&mut self) -> Vec<Request> {
        std::iter::from_fn(|| self.asked.try_recv().ok()).map(|frame| frame.request).collect()
    }
}

impl Drop for StandIn {
    /// As a daemon dies: all of its connections at once.
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.socket);
    }
}

async fn serve(
    mut stream: UnixStream,
    protocol: u32,
    judge: Judge,
    asked: mpsc::UnboundedSender<ClientFrame>,
    announced: mpsc::UnboundedSender<(Value, RawFd)>,
) {
    let mut hello = [0; HELLO_LEN];
    stream.read_exact(&mut hello).await.unwrap();
    let verb = Hello::from_bytes(&hello).unwrap().verb;
    let ours = Hello { protocol, ..Hello::ours(verb) };
    stream.write_all(&ours.to_bytes()).await.unwrap();
    if verb == Verb::Bridge {
        announced.send(announcement(&stream).await).unwrap();
        let _ = stream.read(&mut [0]).await;
        return;
    }
    let mut frames: Framed<_, Frames<ClientFrame, ServerFrame>> = Framed::new(stream, Frames::default());
    while let Some(Ok(frame)) = frames.next().await {
        let body = judge(&frame);
        let id = frame.id;
        // Every bridge does that first.
        if frame.request != Request::Subscribe {
            let _ = asked.send(frame);
        }
        if let Some(body) = body {
            frames.send(ServerFrame { id, body }).await.unwrap();
        }
    }
}

async fn announcement(stream: &UnixStream) -> (Value, RawFd) {
    stream
        .async_io(Interest::READABLE, || {
            let mut bytes = [0; 1024];
            let mut space = nix::cmsg_space!([RawFd; 1]);
            let mut slices = [IoSliceMut::new(&mut bytes)];
            let received =
                recvmsg::<()>(stream.as_raw_fd(), &mut slices, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)
                    .map_err(io::Error::from)?;
            let rights = received.cmsgs().unwrap().next();
            let Some(ControlMessageOwned::ScmRights(descriptors)) = rights else { panic!("{rights:?}") };
            let length = received.bytes;
            let (text, descriptor) = (bytes[4..length].to_vec(), descriptors[0]);
            assert_eq!(bytes[..4], u32::try_from(text.len()).unwrap().to_le_bytes());
            Ok((serde_json::from_slice(&text).unwrap(), descriptor))
        })
        .await
        .unwrap()
}

/// Lets everybody in and carries everything out.
pub(super) fn obliging() -> Judge {
    Arc::new(|frame| Some(ServerBody::Answer(carried_out(&frame.request))))
}

/// Lets those in that have this token and carries everything out for them.
pub(super) fn behind(token: &'static str) -> Judge {
    Arc::new(move |frame| {
        let claimed = match &frame.credential {
            Credential::Http { token, .. } => token.as_deref(),
            Credential::Peer | Credential::Token(_) | Credential::Admitted(_) => Some(token),
        };
        Some(if claimed == Some(token) {
            ServerBody::Answer(carried_out(&frame.request))
        } else {
            failed(ErrorCode::NotAllowed, "no such token")
        })
    })
}

pub(super) fn failed(code: ErrorCode, message: &str) -> ServerBody {
    ServerBody::Failed(Failure::new(code, message).hint("a hint"))
}

pub(super) fn agent(name: &str) -> AgentView {
    AgentView {
        name: name.to_owned(),
        kind: "generic".to_owned(),
        state: AgentState::Running,
        pid: Some(4242),
        generation: 3,
        started_at: Some(Timestamp(1_796_040_000_123)),
        uptime_ms: Some(61_234),
        autostart: true,
        tty: false,
        session_id: None,
        connected_at: None,
        config_changed: false,
        listed: true,
        log_file: "/tmp/x.log".to_owned(),
        last_exit: None,
    }
}

fn client() -> StdioClient {
    StdioClient { program: "claude".to_owned(), pid: 4, agent: None }
}

pub(super) fn carried_out(request: &Request) -> Answer {
    match request {
        Request::List { .. } => Answer::Agents(vec![agent("claude"), agent("codex")]),
        Request::Status => Answer::Status(Box::new(ServerStatus {
            version: "0.1.0".to_owned(),
            pid: 7,
            url: None,
            uptime_ms: 5,
            config_file: "/c.json".to_owned(),
            config_error: None,
            state_dir: "/s".to_owned(),
            state_error: None,
            stale: None,
            endpoint_error: None,
            contaminated: None,
            pending_config: vec![],
            adopted: vec![],
            recovered: vec![],
            need_restart: vec![],
            stale_shims: vec![],
            agents: vec![agent("claude")],
            unlisted: vec![],
            caller: Caller::Agent { name: "claude".to_owned() },
        })),
        Request::Start { name, .. } | Request::Stop { name, .. } => {
            Answer::Agent(Box::new(AgentAnswer { agent: agent(name), delivery: None }))
        }
        Request::Restart(restart) => Answer::Restarted(Box::new(RestartAnswer {
            accepted: true,
            generation: 4,
            agent: agent(restart.name.as_deref().unwrap_or("claude")),
            previous: None,
            config_diff: vec!["args".to_owned()],
            rolled_back: false,
            warnings: Vec::new(),
            replayed: false,
            replayed_at: None,
            delivery: restart.name.is_none().then_some(7),
        })),
        Request::Handoff { .. } => Answer::Handoff(Box::new(Handoff {
            agent: "claude".to_owned(),
            generation: 3,
            at: Timestamp(1_796_040_000_123),
            notes: vec![],
            config_diff: vec![],
            request_id: None,
            rolled_back: false,
            read_at: None,
        })),
        Request::Logs { .. } => Answer::Logs(LogLines { lines: vec!["a line".to_owned()], truncated: false }),
        Request::Authenticate => Answer::Admitted(Caller::LocalUser { pid: Some(4711) }),
        Request::StdioServers => Answer::StdioServers(vec![StdioServer {
            name: "tuiml".to_owned(),
            pid: 5,
            ppid: 4,
            command: "tuiml-mcp".to_owned(),
            started_at: Timestamp(1_796_040_000_123),
            client: Some(client()),
            orphaned: false,
            stale: true,
        }]),
        Request::RestartStdioServers(_) => Answer::StdioRestarted(Box::new(StdioRestarted {
            status: StdioStatus::Success,
            killed_other: 1,
            killed: vec![5],
            failed: vec![StdioFailure { pid: 6, error: "traced".to_owned() }],
            respawned: vec![Respawned { old_pid: 5, new_pid: 7, client: client() }],
            not_respawned: vec![NotRespawned { pid: 8, client: client() }],
            self_exit_scheduled: true,
            note: "done".to_owned(),
            delivery: Some(8),
        })),
        Request::Terminal { .. }
        | Request::McpConfig { .. }
        | Request::Subscribe
        | Request::Protected
        | Request::MarkerChanged
        | Request::Session { .. }
        | Request::Delivered { .. } => Answer::Done,
    }
}
