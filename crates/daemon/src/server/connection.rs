//! One connection: hellos, then what its verb is for.

use super::requests::From;
use super::{Context, talk, verbs};
use mcp_restart_process::peer_of_socket;
use mcp_restart_protocol::hello::{HELLO_LEN, Hello, HelloError, PROTOCOL, Verb};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// How long a client may take for its part of the hellos, and for the one text of the small verbs.
pub(super) const GREETING_DEADLINE: Duration = Duration::from_secs(5);

/// Serves one client until it leaves or misbehaves.
pub(super) async fn serve(mut stream: UnixStream, requests: TaskTracker, context: Arc<Context>) {
    let outcome = match timeout(GREETING_DEADLINE, read_hello(&mut stream)).await {
        Ok(Ok(hello)) => go_on(stream, hello, requests, context).await,
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "closed a connection");
    }
}

async fn read_hello(stream: &mut UnixStream) -> io::Result<Hello> {
    let mut bytes = [0; HELLO_LEN];
    stream.read_exact(&mut bytes).await?;
    match Hello::from_bytes(&bytes) {
        Ok(hello) => Ok(hello),
        Err(error) => {
            if matches!(error, HelloError::UnknownVerb(_)) {
                // A newer client learns from our hello what it talks to.
                answer_hello(stream, Verb::Talk).await?;
            }
            Err(io::Error::new(io::ErrorKind::InvalidData, error))
        }
    }
}

async fn go_on(
    mut stream: UnixStream,
    hello: Hello,
    requests: TaskTracker,
    context: Arc<Context>,
) -> io::Result<()> {
    // The other verbs are one request each.
    let _under_way = (hello.verb != Verb::Talk).then(|| requests.token());
    match hello.verb {
        Verb::Talk => {
            // Before the hello, since until then the client waits and its process can be followed.
            let peer = peer_of_socket(&stream)?;
            let process = context.identification.of_socket(peer).await;
            answer_hello(&mut stream, Verb::Talk).await?;
            // A client of another number reads that from our hello.
            if hello.protocol == PROTOCOL {
                talk::serve(stream, From { process, peer }, requests, context).await?;
            }
            Ok(())
        }
        Verb::Status => {
            answer_hello(&mut stream, Verb::Status).await?;
            verbs::status(stream, &context).await
        }
        Verb::Shutdown => {
            let peer = peer_of_socket(&stream)?;
            let process = context.identification.of_socket(peer).await;
            answer_hello(&mut stream, Verb::Shutdown).await?;
            verbs::shutdown(stream, &From { process, peer }, &context).await
        }
        Verb::Upgrade => {
            let peer = peer_of_socket(&stream)?;
            let process = context.identification.of_socket(peer).await;
            answer_hello(&mut stream, Verb::Upgrade).await?;
            verbs::upgrade(stream, &From { process, peer }, &context).await
        }
        Verb::Bridge => {
            let process = context.identification.of_socket(peer_of_socket(&stream)?).await;
            answer_hello(&mut stream, Verb::Bridge).await?;
            verbs::bridge(stream, process, &context).await
        }
    }
}

async fn answer_hello(stream: &mut UnixStream, verb: Verb) -> io::Result<()> {
    stream.write_all(&Hello::ours(verb).to_bytes()).await
}
