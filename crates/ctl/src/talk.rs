//! The conversation with the daemon, its errors turned into problems with remedies.

use crate::context::{Found, Place};
use crate::problem::{Exit, Problem};
use crate::shims;
use futures_util::{SinkExt, StreamExt};
use mcp_restart_paths::RestartPath;
use mcp_restart_protocol::agent::AgentView;
use mcp_restart_protocol::answer::{
    Answer, ErrorCode, Event, Failure, Handoff, McpConfig, ServerBody, ServerFrame, ServerStatus, Terminal,
};
use mcp_restart_protocol::client::{self, ClientError, PATIENCE};
use mcp_restart_protocol::codec::{CodecError, FRAME_MAX, Frames};
use mcp_restart_protocol::hello::{HELLO_LEN, Hello, PROTOCOL, Verb};
use mcp_restart_protocol::request::{ClientFrame, Credential, Request};
use mcp_restart_protocol::stdio::{StdioRestartRequest, StdioRestarted, StdioServer};
use mcp_restart_protocol::upgrade::{Ask, Leave, Leaving, Offer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io;
use std::os::unix::net::SocketAddr;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_util::codec::Framed;

/// A connection to the daemon. The hello leaves with the first request, so that they cost one round trip.
pub(crate) struct Daemon {
    frames: Framed<UnixStream, Frames<ServerFrame, ClientFrame>>,
    place: Place,
    greeted: bool,
    credential: Credential,
    next_id: u64,
}

/// What the daemon tells about itself across all protocol numbers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    /// Its version.
    pub(crate) version: String,
    /// Its process id.
    pub(crate) pid: u32,
    /// The config file that it serves.
    pub(crate) config_file: String,
    /// The MCP endpoint, once it listens.
    pub(crate) url: Option<String>,
}

/// Names its answer's kind; anything else is a fault of the daemon.
macro_rules! expect {
    ($answer:expr, $variant:path) => {
        match $answer {
            $variant(value) => Ok(value),
            other => Err(unexpected(&other)),
        }
    };
}

/// Whether the operator consents to what a daemon that is no longer the program on disk does: the environment of this command says it.
fn allows_stale() -> bool {
    std::env::var_os("MCP_RESTART_ALLOW_STALE").is_some_and(|value| value == "1")
}

impl Daemon {
    /// Connects to the daemon at this place.
    pub(crate) async fn connect(place: &Place, credential: Credential) -> Result<Self, Problem> {
        let stream = UnixStream::connect(&place.socket).await;
        let stream = stream.map_err(|error| problem(&ClientError::Unreachable(error), place))?;
        let frames = Framed::new(stream, Frames::default());
        Ok(Self { frames, place: place.clone(), greeted: false, credential, next_id: 0 })
    }

    /// Sends a request and gives its number.
    pub(crate) async fn send(&mut self, request: Request) -> Result<u64, Problem> {
        self.next_id += 1;
        let frame = ClientFrame {
            id: self.next_id,
            credential: self.credential.clone(),
            allows_stale: allows_stale(),
            request,
        };
        if !self.greeted {
            self.frames.write_buffer_mut().extend_from_slice(&Hello::ours(Verb::Talk).to_bytes());
        }
        let late = ClientError::silent(self.frames.get_ref());
        let Ok(sent) = timeout(PATIENCE, self.frames.send(frame)).await else {
            return Err(problem(&late, &self.place));
        };
        if !self.greeted {
            self.read_hello().await.map_err(|error| problem(&error, &self.place))?;
            self.greeted = true;
        }
        sent.map_err(|error| broken(error, &self.place))?;
        Ok(self.next_id)
    }

    async fn read_hello(&mut self) -> Result<(), ClientError> {
        let late = ClientError::silent(self.frames.get_ref());
        let mut bytes = [0; HELLO_LEN];
        let read = timeout(PATIENCE, self.frames.get_mut().read_exact(&mut bytes)).await.map_err(|_| late)?;
        read.map_err(|_| ClientError::Closed)?;
        let hello = Hello::from_bytes(&bytes).map_err(ClientError::Hello)?;
        if hello.protocol == PROTOCOL {
            return Ok(());
        }
        Err(ClientError::Mismatch { daemon_version: hello.version, daemon_protocol: hello.protocol })
    }

    /// The next message to any request.
    pub(crate) async fn next(&mut self) -> Result<ServerFrame, Problem> {
        self.frames
            .next()
            .await
            .unwrap_or(Err(CodecError::Io(io::ErrorKind::UnexpectedEof.into())))
            .map_err(|error| broken(error, &self.place))
    }

    /// Sends a request that has nothing to wait for, and gives its answer.
    pub(crate) async fn ask(&mut self, request: Request) -> Result<Result<Answer, Failure>, Problem> {
        let id = self.send(request).await?;
        let late = ClientError::silent(self.frames.get_ref());
        match timeout(PATIENCE, self.answer_to(id)).await {
            Ok(answer) => answer,
            Err(_) => Err(problem(&late, &self.place)),
        }
    }

    async fn answer_to(&mut self, id: u64) -> Result<Result<Answer, Failure>, Problem> {
        loop {
            let frame = self.next().await?;
            if frame.id == id {
                return answer(frame.body);
            }
        }
    }

    /// One agent, in the config or not.
    pub(crate) async fn agent(&mut self, name: &str) -> Result<AgentView, Problem> {
        let agents = expect!(self.ask(Request::List { all: true }).await??, Answer::Agents)?;
        let names: Vec<_> = agents.iter().map(|agent| agent.name.clone()).collect();
        agents.into_iter().find(|agent| agent.name == name).ok_or_else(|| unknown_agent(name, &names))
    }

    /// The daemon itself.
    pub(crate) async fn status(&mut self) -> Result<ServerStatus, Problem> {
        let status = expect!(self.ask(Request::Status).await??, Answer::Status)?;
        Ok(*status)
    }

    /// The note for an agent, or for the caller.
    pub(crate) async fn handoff(&mut self, name: Option<String>) -> Result<Handoff, Problem> {
        let named = name.is_some();
        let handoff = expect!(
            self.ask(Request::Handoff { name }).await?.map_err(|failure| {
                // There is nothing wrong with the question: there is no note.
                let is_answer = named && failure.code == ErrorCode::InvalidArgument;
                if is_answer { Problem::new(Exit::Failed, failure.message) } else { failure.into() }
            })?,
            Answer::Handoff
        )?;
        Ok(*handoff)
    }

    /// Where an agent's terminal is.
    pub(crate) async fn terminal(&mut self, name: String) -> Result<Terminal, Problem> {
        expect!(self.ask(Request::Terminal { name }).await??, Answer::Terminal)
    }

    /// The MCP config of an agent.
    pub(crate) async fn mcp_config(&mut self, name: String) -> Result<McpConfig, Problem> {
        expect!(self.ask(Request::McpConfig { name }).await??, Answer::McpConfig)
    }

    /// The stdio servers that run.
    pub(crate) async fn stdio_servers(&mut self) -> Result<Vec<StdioServer>, Problem> {
        expect!(self.ask(Request::StdioServers).await??, Answer::StdioServers)
    }

    /// Ends stdio servers and tells what became of them, however long that takes.
    pub(crate) async fn restart_stdio_servers(
        &mut self,
        request: StdioRestartRequest,
    ) -> Result<StdioRestarted, Problem> {
        let id = self.send(Request::RestartStdioServers(request)).await?;
        let restarted = expect!(self.answer_to(id).await??, Answer::StdioRestarted)?;
        Ok(*restarted)
    }

    /// The next event; the request before has to be `Subscribe`.
    pub(crate) async fn event(&mut self) -> Result<Event, Problem> {
        loop {
            match self.next().await?.body {
                ServerBody::Event(event) => return Ok(event),
                ServerBody::Failed(failure) => return Err(failure.into()),
                ServerBody::Answer(_) => {}
            }
        }
    }
}

/// The answer in a message that is no event.
pub(crate) fn answer(body: ServerBody) -> Result<Result<Answer, Failure>, Problem> {
    match body {
        ServerBody::Answer(answer) => Ok(Ok(answer)),
        ServerBody::Failed(failure) => Ok(Err(failure)),
        ServerBody::Event(_) => Err(Problem::new(Exit::Failed, "the daemon sent an event for an answer")),
    }
}

/// An answer of the wrong kind.
pub(crate) fn unexpected(answer: &Answer) -> Problem {
    let kind: String = format!("{answer:?}").chars().take_while(|letter| letter.is_alphanumeric()).collect();
    Problem::new(Exit::Failed, format!("the daemon sent the answer to another question: {kind}"))
}

/// A name that no agent has, with those that there are.
pub(crate) fn unknown_agent(name: &str, names: &[String]) -> Problem {
    let hint = match names {
        [] => "there is none; mcp-restartctl add NAME -- COMMAND adds one".to_owned(),
        names => format!("the agents are: {}", names.join(", ")),
    };
    Problem::new(Exit::UnknownAgent, format!("there is no agent {name:?}")).hint(hint)
}

/// What a daemon of any version tells about itself.
pub(crate) async fn summary(socket: &Path) -> Result<Summary, ClientError> {
    let (mut stream, _) = client::greet(socket, Verb::Status).await?;
    read_json(&mut stream).await
}

/// Asks a daemon of any version to stop everything; the connection ends when it is gone.
pub(crate) async fn shut_down(socket: &Path, request: &Value) -> Result<(UnixStream, Value), ClientError> {
    let (mut stream, _) = client::greet(socket, Verb::Shutdown).await?;
    write_json(&mut stream, request).await?;
    let answer = read_json(&mut stream).await?;
    Ok((stream, answer))
}

/// A daemon of any version that has been asked to make way, and does once it is told to.
pub(crate) struct Upgrade {
    stream: UnixStream,
    /// What it said about itself.
    pub(crate) offer: Offer,
}

impl Upgrade {
    /// Asks the daemon of this place; it goes on as before.
    pub(crate) async fn ask(place: &Place) -> Result<Self, Problem> {
        let failed = |error| problem(&error, place);
        let (mut stream, hello) = match client::greet(&place.socket, Verb::Upgrade).await {
            Err(ClientError::Closed) => return Err(too_late(place, None).await),
            greeted => greeted.map_err(failed)?,
        };
        if hello.verb != Verb::Upgrade {
            let message =
                format!("the running daemon is version {}, which cannot be upgraded", hello.version);
            return Err(Problem::new(Exit::Failed, message).hint(format!("end it: {} down", place.program())));
        }
        write_json(&mut stream, &Ask { path: RestartPath::CtlUpgrade.id().to_owned() })
            .await
            .map_err(failed)?;
        let answer = match read_json(&mut stream).await {
            Err(ClientError::Closed) => return Err(too_late(place, None).await),
            answer => answer.map_err(failed)?,
        };
        Ok(Self { stream, offer: accepted(answer).map_err(not_upgraded)?.map_err(failed)? })
    }

    /// Has it make way. It refuses everything new from now on, and is gone when [`Upgrade::gone`] returns.
    pub(crate) async fn leave(&mut self, place: &Place) -> Result<(), Problem> {
        let failed = |error| problem(&error, place);
        let leave = async {
            write_json(&mut self.stream, &Leave { leave: true }).await?;
            read_json(&mut self.stream).await
        };
        let answer = match leave.await {
            Err(ClientError::Closed) => return Err(too_late(place, Some(self.offer.pid)).await),
            answer => answer.map_err(failed)?,
        };
        let Leaving { leaving } = accepted(answer).map_err(not_upgraded)?.map_err(failed)?;
        if leaving { Ok(()) } else { Err(Problem::new(Exit::Failed, "the daemon does not make way")) }
    }

    /// Waits until the daemon has made way; fails when it stops everything instead.
    pub(crate) async fn gone(&mut self, place: &Place) -> Result<(), Problem> {
        // What a newer version says besides is passed over.
        while let Ok(answer) = read_json_in_time::<Value>(&mut self.stream).await {
            accepted::<Value>(answer)
                .map_err(|problem| {
                    not_upgraded(problem)
                        .hint(format!("start the new one once it is gone: {} up", place.program()))
                })?
                .map_err(|error| problem(&error, place))?;
        }
        Ok(())
    }
}

/// A daemon that ends or makes way for somebody else runs: the exit code is that of a failure.
fn not_upgraded(problem: Problem) -> Problem {
    match problem {
        Problem::Told { exit: Exit::NotRunning, code, message, hint } => {
            Problem::Told { exit: Exit::Failed, code, message, hint }
        }
        other => other,
    }
}

/// Why the daemon is gone before it was told to leave: somebody else was faster.
async fn too_late(place: &Place, asked: Option<u32>) -> Problem {
    let message = match summary(&place.socket).await {
        Ok(Summary { version, pid, .. }) if Some(pid) != asked => {
            format!("another upgrade was faster: mcp-restartd {version} (pid {pid}) serves")
        }
        _ => "another upgrade is under way, or the daemon was ended meanwhile".to_owned(),
    };
    Problem::new(Exit::Failed, message)
        .hint(format!("{} status tells which daemon serves; up starts one if none does", place.program()))
}

/// What an answer of the small verbs says, unless it is a refusal.
fn accepted<T: for<'de> Deserialize<'de>>(answer: Value) -> Result<Result<T, ClientError>, Problem> {
    let Some(error) = answer.get("error") else {
        return Ok(serde_json::from_value(answer)
            .map_err(|error| ClientError::Codec(CodecError::Malformed(error.to_string()))));
    };
    let text = |name: &str| error.get(name).and_then(Value::as_str).map(str::to_owned);
    let message = text("message").unwrap_or_else(|| "the daemon refuses".to_owned());
    let code = error.get("code").cloned().and_then(|code| serde_json::from_value(code).ok());
    // A newer daemon may have words for it that this version does not know.
    let failure = Failure { code: code.unwrap_or(ErrorCode::Internal), message, hint: text("hint") };
    Err(failure.into())
}

async fn write_json(stream: &mut UnixStream, value: &impl Serialize) -> Result<(), ClientError> {
    let text = serde_json::to_vec(value)
        .map_err(|error| ClientError::Codec(CodecError::Malformed(error.to_string())))?;
    let length = u32::try_from(text.len()).map_err(|_| ClientError::Codec(CodecError::TooLong))?;
    let frame = [&length.to_le_bytes()[..], &text].concat();
    stream.write_all(&frame).await.map_err(|_| ClientError::Closed)
}

async fn read_json<T: for<'de> Deserialize<'de>>(stream: &mut UnixStream) -> Result<T, ClientError> {
    let late = ClientError::silent(stream);
    timeout(PATIENCE, read_json_in_time(stream)).await.map_err(|_| late)?
}

async fn read_json_in_time<T: for<'de> Deserialize<'de>>(stream: &mut UnixStream) -> Result<T, ClientError> {
    let length = stream.read_u32_le().await.map_err(|_| ClientError::Closed)?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > FRAME_MAX {
        return Err(ClientError::Codec(CodecError::TooLong));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text).await.map_err(|_| ClientError::Closed)?;
    serde_json::from_slice(&text)
        .map_err(|error| ClientError::Codec(CodecError::Malformed(error.to_string())))
}

/// What an error of the conversation means to the user.
pub(crate) fn problem(error: &ClientError, place: &Place) -> Problem {
    let socket = &place.socket;
    let program = place.program();
    match error {
        ClientError::Unreachable(_) if SocketAddr::from_pathname(socket).is_err() => too_long(socket),
        ClientError::Unreachable(cause) if cause.kind() == io::ErrorKind::PermissionDenied => {
            Problem::caused(
                Exit::NotAllowed,
                format!("the daemon's socket {} is not yours", socket.display()),
                cause,
            )
        }
        ClientError::Unreachable(cause)
            if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
        {
            not_running(place)
        }
        ClientError::Unreachable(cause) => Problem::caused(
            Exit::NotRunning,
            format!("the daemon in {} cannot be reached", place.state_dir.display()),
            cause,
        ),
        ClientError::Mismatch { daemon_protocol, .. } => {
            let hint = if *daemon_protocol < PROTOCOL {
                format!("upgrade the daemon, every agent runs on: {program} upgrade")
            } else {
                "this program is older than the daemon: use the one that was installed with it".to_owned()
            };
            Problem::caused(Exit::Failed, "version mismatch", error).hint(hint)
        }
        ClientError::Refused(failure) => failure.clone().into(),
        ClientError::Silent { pid } => {
            let look = match pid {
                Some(pid) => format!(
                    "`ps -o stat= -p {pid}` says T if somebody stopped it, and `kill -CONT {pid}` lets it go on"
                ),
                None => "look whether somebody stopped it, or whether its machine is overloaded".to_owned(),
            };
            Problem::caused(Exit::TimedOut, format!("{}", socket.display()), error).hint(look)
        }
        ClientError::Hello(_) | ClientError::Closed | ClientError::Codec(_) => {
            Problem::caused(Exit::Failed, format!("{}", socket.display()), error)
        }
    }
}

fn not_running(place: &Place) -> Problem {
    match &place.found {
        Found::By(program) => {
            let living = shims::living(&place.state_dir);
            let nobody = format!("no daemon runs in {}", place.state_dir.display());
            if living.is_empty() {
                return Problem::new(Exit::NotRunning, nobody).hint(format!("start it: {program} up"));
            }
            let message = format!("{nobody}, but agents do: {}", shims::listed(&living));
            Problem::new(Exit::NotRunning, message)
                .hint(format!("start one, which takes them on as they are: {program} up"))
        }
        Found::BySocket => Problem::new(
            Exit::NotRunning,
            format!("no daemon listens on {}, which MCP_RESTART_SOCKET names", place.socket.display()),
        )
        .hint("it is set inside agents: without it the config leads to the daemon"),
    }
}

fn too_long(socket: &Path) -> Problem {
    // Asks the system instead of naming a number that differs between systems.
    let limit = (1..4096).take_while(|length| SocketAddr::from_pathname("x".repeat(*length)).is_ok()).count();
    let length = socket.as_os_str().len();
    Problem::new(
        Exit::Failed,
        format!("the socket path {} has {length} bytes, this system allows {limit}", socket.display()),
    )
    .hint("use a shorter state dir: name another with --state-dir, MCP_RESTART_STATE_DIR or stateDir")
}

fn broken(error: CodecError, place: &Place) -> Problem {
    match error {
        CodecError::Io(_) => Problem::new(Exit::Failed, "the daemon closed the connection")
            .hint(format!("{} status tells whether it still runs", place.program())),
        other => Problem::caused(Exit::Failed, "the daemon sent something that cannot be read", &other),
    }
}
