//! The verbs that every version understands: status, shutdown, upgrade and bridge.

use super::callers::{Facts, Process, decide};
use super::connection::GREETING_DEADLINE;
use super::requests::{From, door};
use super::{Context, Wish, Word, json_text};
use crate::bridge::Announcement;
use crate::successor;
use mcp_restart_process::{peer_of_socket, receive_with_descriptor};
use mcp_restart_protocol::answer::{Caller, ErrorCode, Failure};
use mcp_restart_protocol::hello::PROTOCOL;
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::upgrade::{Ask, Leave, Leaving, Offer};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::TcpListener;
use std::time::Duration;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long an offer to make way stands: the program on disk is asked meanwhile.
const OFFER_STANDS: Duration = Duration::from_secs(60);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusText {
    version: &'static str,
    pid: u32,
    protocol: u32,
    state_dir: String,
    config_file: String,
    url: Option<String>,
}

#[derive(Deserialize)]
struct ShutdownText {
    path: String,
}

#[derive(Serialize)]
struct AcceptedText {
    accepted: bool,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
}

#[derive(Serialize)]
struct ErrorText {
    error: Failure,
}

#[derive(Deserialize)]
struct AnnouncementText {
    version: String,
    url: String,
    protocol: u32,
}

/// Says what daemon this is.
pub(super) async fn status(mut stream: UnixStream, context: &Context) -> io::Result<()> {
    let text = StatusText {
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        protocol: PROTOCOL,
        state_dir: context.state_dir.display().to_string(),
        config_file: context.config_file.display().to_string(),
        url: context.bridge.url(),
    };
    json_text::write(&mut stream, &text).await
}

/// Ends the daemon. The connection stays open until it is gone, by which the client sees that it is.
pub(super) async fn shutdown(mut stream: UnixStream, from: &From, context: &Context) -> io::Result<()> {
    let text = timeout(GREETING_DEADLINE, json_text::read(&mut stream, &[])).await??;
    let request: ShutdownText = serde_json::from_slice(&text)?;
    let path = door(&request.path).and_then(|path| match path {
        RestartPath::CtlDown => may_shut_down(from.process.clone()).map(|()| path),
        other => {
            Err(Failure::new(ErrorCode::UnknownRestartPath, format!("{other} is no way to end the daemon")))
        }
    });
    context.note_request(from, &request.path, path.as_ref().err());
    // The daemon ends only after it has been answered.
    let under_way = context.under_way.token();
    let error = match path {
        Ok(path) => context.wishes.send(Wish::End(path)).await.err().map(|_| is_leaving()),
        Err(failure) => Some(failure),
    };
    let answer = AcceptedText { accepted: error.is_none(), pid: std::process::id(), error };
    json_text::write(&mut stream, &answer).await?;
    drop(under_way);
    if answer.accepted {
        until_closed(&mut stream).await;
    }
    Ok(())
}

/// Offers to make way for the next daemon, and does on the client's word. The connection stays open until this
/// daemon is gone.
pub(super) async fn upgrade(mut stream: UnixStream, from: &From, context: &Context) -> io::Result<()> {
    let text = timeout(GREETING_DEADLINE, json_text::read(&mut stream, &[])).await??;
    let ask: Ask = serde_json::from_slice(&text)?;
    let offer = match offer(&ask, from.process.clone(), context).await {
        Ok(offer) => offer,
        Err(error) => {
            context.note_request(from, &ask.path, Some(&error));
            return json_text::write(&mut stream, &ErrorText { error }).await;
        }
    };
    json_text::write(&mut stream, &offer).await?;
    let text = timeout(OFFER_STANDS, json_text::read(&mut stream, &[])).await??;
    let Leave { leave: true } = serde_json::from_slice(&text)? else { return Ok(()) };
    context.note_request(from, &ask.path, None);
    leave(&mut stream, context).await?;
    until_closed(&mut stream).await;
    Ok(())
}

/// Has the daemon make way, and passes on what it says to that.
async fn leave(stream: &mut UnixStream, context: &Context) -> io::Result<()> {
    // The daemon ends only after its words have been passed on.
    let _under_way = context.under_way.token();
    let (asker, mut words) = mpsc::channel(2);
    if context.wishes.send(Wish::MakeWay(asker)).await.is_err() {
        return write_word(stream, Word::Refused(ended_meanwhile())).await;
    }
    let mut ignored = [0; 64];
    loop {
        tokio::select! {
            biased;
            word = words.recv() => match word {
                Some(word) => write_word(stream, word).await?,
                None => return Ok(()),
            },
            // The words have no reader any more, which tells the daemon that nobody starts the next one.
            read = stream.read(&mut ignored) => if matches!(read, Ok(0) | Err(_)) { return Ok(()) },
        }
    }
}

async fn write_word(stream: &mut UnixStream, word: Word) -> io::Result<()> {
    match word {
        Word::Leaving => json_text::write(stream, &Leaving { leaving: true }).await,
        Word::Refused(error) => json_text::write(stream, &ErrorText { error }).await,
    }
}

fn is_leaving() -> Failure {
    Failure::new(ErrorCode::ShuttingDown, "the daemon is leaving already").hint("ask again in a moment")
}

/// That the daemon stops everything instead of making way.
pub(crate) fn ended_meanwhile() -> Failure {
    Failure::new(ErrorCode::ShuttingDown, "the daemon was ended meanwhile, and every agent with it")
}

async fn offer(ask: &Ask, process: Process, context: &Context) -> Result<Offer, Failure> {
    match door(&ask.path)? {
        RestartPath::CtlUpgrade => {}
        other => {
            let message = format!("{other} is no way to have the daemon make way");
            return Err(Failure::new(ErrorCode::UnknownRestartPath, message));
        }
    }
    let caller = decide(Facts::Socket(process))?;
    let is_agent = matches!(caller, Caller::Agent { .. });
    context.fleet.may_upgrade(caller, context.manager.is_some()).await?;
    Ok(Offer {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        program: context.program.path().into(),
        config_file: (&context.config_file).into(),
        state_dir: (&context.state_dir).into(),
        manager: context.manager.map(|manager| manager.name().to_owned()),
        launch: (!is_agent).then(successor::own_launch),
    })
}

/// Takes a bridge's announcement and listener, and tells the keeper when the bridge leaves.
pub(super) async fn bridge(mut stream: UnixStream, process: Process, context: &Context) -> io::Result<()> {
    if let Ok(Caller::Agent { name }) = decide(Facts::Socket(process)) {
        tracing::warn!(agent = name, "an agent announced a bridge: it is not taken for the endpoint");
        return Ok(());
    }
    let pid = peer_of_socket(&stream)?.pid;
    let (text, listener) = timeout(GREETING_DEADLINE, read_announcement(&mut stream)).await??;
    let connection = context
        .bridge
        .announced(Announcement {
            pid,
            version: text.version,
            protocol: text.protocol,
            url: text.url,
            listener,
        })
        .await;
    // Without a number the keeper is gone: the daemon is ending.
    if let Some(connection) = connection {
        until_closed(&mut stream).await;
        context.bridge.gone(connection).await;
    }
    Ok(())
}

async fn read_announcement(stream: &mut UnixStream) -> io::Result<(AnnouncementText, TcpListener)> {
    let mut buffer = [0; 1024];
    let (read, descriptor) =
        stream.async_io(Interest::READABLE, || receive_with_descriptor(&*stream, &mut buffer)).await?;
    let descriptor = descriptor
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a bridge without a listener"))?;
    let text = json_text::read(stream, buffer.get(..read).unwrap_or_default()).await?;
    Ok((serde_json::from_slice(&text)?, TcpListener::from(descriptor)))
}

fn may_shut_down(process: Process) -> Result<(), Failure> {
    match decide(Facts::Socket(process))? {
        Caller::Agent { name } => {
            Err(Failure::new(ErrorCode::NotAllowed, format!("agent {name} may not shut the daemon down"))
                .hint("run mcp-restartctl down outside of any agent"))
        }
        Caller::Operator | Caller::LocalUser { .. } | Caller::Supervisor => Ok(()),
        Caller::Unknown => Err(Failure::new(ErrorCode::NotAllowed, "the process that asks is not known")),
    }
}

async fn until_closed(stream: &mut UnixStream) {
    let mut ignored = [0; 64];
    while matches!(stream.read(&mut ignored).await, Ok(1..)) {}
}
