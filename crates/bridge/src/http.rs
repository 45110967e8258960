//! One HTTP request: what is refused here, what the daemon says to its sender, what rmcp gets to see.
//!
//! ```text
//!  target, Host, Origin ─403─► path ─404─► method ─405─► content type ─415─► bearer token ─401─►
//!      body ─408, 413─► JSON-RPC ─400─► rmcp ─► tool ─► daemon ─► answer
//! ```
//!
//! The daemon judges every call, with the call itself. Before rmcp parses anything of a caller the daemon
//! is asked whether it lets that caller in at all; the answer holds for the rest of the connection, so
//! that a call on a kept-alive connection costs one round trip to the daemon, not two, and the process of a
//! caller without a token is looked for once. While the daemon is away everybody gets the answers that need
//! none: what the tools are, and that it is away.

use crate::body::{BODY_MAX, Bodies, Fault, Whole};
use crate::delivery::{AfterCall, AnswerBody, Duty, Handed};
use crate::doors::{self, Claim, Doors, Foreign};
use crate::envelope::{self, INTERNAL_ERROR, INVALID_REQUEST, Id, Outline, Wrong};
use crate::link::Daemon;
use crate::room::{Busy, Place};
use crate::server::{Incoming, Server};
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Collected, Full};
use hyper::body::Body;
use hyper::header::{ACCEPT, ALLOW, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use mcp_restart_protocol::answer::{Answer as Answered, Caller, ErrorCode, Failure};
use mcp_restart_protocol::request::{self, Credential};
use rmcp::transport::StreamableHttpServerConfig;
use rmcp::transport::streamable_http_server::StreamableHttpService;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Where the MCP endpoint is.
const MCP_PATH: &str = "/mcp";
const HEALTH_PATH: &str = "/healthz";
/// The most streams that listen for changes; each costs as much as many idle connections.
const STREAMS_MAX: usize = 64;
const ACCEPT_BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const CLOSE: HeaderValue = HeaderValue::from_static("close");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What all connections share.
pub(crate) struct Endpoint {
    doors: Doors,
    daemon: Daemon,
    mcp: StreamableHttpService<Server, NeverSessionManager>,
    admissions: RandomState,
    bodies: Bodies,
    /// One place for each stream that listens for changes.
    streams: Arc<Semaphore>,
    /// Counts the requests that are not answered yet, those that listen aside.
    under_way: TaskTracker,
    /// Cancelled: connections close after their next answer, and streams end.
    leaving: CancellationToken,
    /// Cancelled: whatever is left of streams is cut off.
    closing: CancellationToken,
}

/// One connection; requests on it come one after the other.
pub(crate) struct Connection {
    endpoint: Arc<Endpoint>,
    peer: SocketAddr,
    local: SocketAddr,
    handed: Handed,
    admitted: Mutex<Option<Admission>>,
    place: Arc<Place>,
}

/// What the daemon said about who is at the other end.
#[derive(Debug, Clone)]
struct Admission {
    /// Hash of the daemon's session and the token that it was asked about.
    of: u64,
    /// Whom it found there, if there was no token to go by.
    found: Option<Caller>,
}

/// What is held until the body of an answer has ended.
#[expect(dead_code, reason = "held for what their end does")]
#[derive(Debug)]
enum Held {
    Request(Busy, TaskTrackerToken),
    Stream(Busy, OwnedSemaphorePermit),
}

type Answer = Response<BoxBody<Bytes, Infallible>>;
/// The answer to a request that goes no further.
type Refusal = Box<Answer>;

impl Endpoint {
    /// The endpoint that is reached at `bound` and asks `daemon`.
    pub(crate) fn new(bound: SocketAddr, daemon: Daemon) -> Self {
        let leaving = CancellationToken::new();
        let server = Server::new(daemon.clone(), leaving.clone());
        // Stateless: a restarted bridge, or a client that never initialises again, just goes on. The hosts
        // are checked by the doors, more strictly than rmcp does.
        let closing = CancellationToken::new();
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(closing.clone())
            .with_legacy_session_mode(false)
            .with_json_response(true)
            .disable_allowed_hosts();
        let mcp = StreamableHttpService::new(move || Ok(server.clone()), Arc::default(), config);
        Self {
            doors: Doors::new(bound),
            daemon,
            mcp,
            admissions: RandomState::new(),
            bodies: Bodies::new(),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            under_way: TaskTracker::new(),
            leaving,
            closing,
        }
    }

    /// From now on connections close after their next answer, and streams end. The result tells when nothing is under way.
    pub(crate) fn leave(&self) -> TaskTracker {
        self.leaving.cancel();
        self.under_way.close();
        self.under_way.clone()
    }

    /// Cuts off what is left of streams.
    pub(crate) fn close(&self) {
        self.closing.cancel();
    }

    /// The handle to the daemon.
    pub(crate) fn daemon(&self) -> &Daemon {
        &self.daemon
    }
}

impl Connection {
    /// A connection between `peer` and `local`; deliveries go through `handed`.
    pub(crate) fn new(
        endpoint: Arc<Endpoint>,
        (peer, local): (SocketAddr, SocketAddr),
        handed: Handed,
        place: Arc<Place>,
    ) -> Self {
        Self { endpoint, peer, local, handed, admitted: Mutex::default(), place }
    }

    /// Answers one request.
    pub(crate) async fn answer<B>(&self, request: Request<B>) -> Response<AnswerBody>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let under_way = self.endpoint.under_way.token();
        let mut answer = self.route(request, under_way).await;
        if self.endpoint.leaving.is_cancelled() {
            answer.headers_mut().insert(CONNECTION, CLOSE);
        }
        answer
    }

    async fn route<B>(&self, request: Request<B>, under_way: TaskTrackerToken) -> Response<AnswerBody>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        if let Err(foreign) = self.endpoint.doors.check(&parts, self.local) {
            tracing::warn!(peer = %self.peer, ?foreign, "refused a request that is not meant for this endpoint");
            return plain(failed(StatusCode::FORBIDDEN, &foreign.into()));
        }
        match (parts.uri.path(), &parts.method) {
            (MCP_PATH, &Method::POST) => {
                let after = AfterCall::default();
                let served = self.mcp(parts, body, after.clone(), under_way).await;
                let (answer, held) = served.unwrap_or_else(|refusal| (*refusal, None));
                answer.map(|body| AnswerBody::reported(body, after, self.handed.clone()).holding(held))
            }
            (HEALTH_PATH, &Method::GET) => {
                let health = json!({ "status": "ok", "daemon": self.endpoint.daemon.is_up() });
                plain(in_json(StatusCode::OK, &health))
            }
            (MCP_PATH, method) => plain(not_allowed(method, "POST")),
            (HEALTH_PATH, method) => plain(not_allowed(method, "GET")),
            (path, _) => plain(failed(
                StatusCode::NOT_FOUND,
                &invalid(format!("there is nothing at {path}"))
                    .hint(format!("the MCP endpoint is {MCP_PATH}")),
            )),
        }
    }

    /// A request to the MCP endpoint. `Err`: what is answered to one that rmcp does not get to see.
    async fn mcp<B>(
        &self,
        mut parts: Parts,
        body: B,
        after: AfterCall,
        under_way: TaskTrackerToken,
    ) -> Result<(Answer, Option<Held>), Refusal>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if !doors::is_json(&parts.headers) {
            let failure = invalid("the content type of a request must be application/json");
            return Err(failed(StatusCode::UNSUPPORTED_MEDIA_TYPE, &failure).into());
        }
        if !doors::is_plain(&parts.headers) {
            let failure = invalid("a body may be sent in chunks, but in no other encoding");
            return Err(closing(failed(StatusCode::UNSUPPORTED_MEDIA_TYPE, &failure)).into());
        }
        if let Some(name) = doors::repeated(&parts.headers) {
            let failure = invalid(format!("the header {name} is there more than once"));
            return Err(failed(StatusCode::BAD_REQUEST, &failure).into());
        }
        let token = match doors::claim(&parts.headers) {
            Claim::None => None,
            Claim::Token(token) => Some(token),
            Claim::Unusable => {
                let failure = Failure::new(ErrorCode::NotAllowed, "Authorization must be one bearer token");
                return Err(unauthorized(true, &failure).into());
            }
        };
        let credential = Credential::Http { token, peer: self.peer, local: self.local };
        let credential = self.let_in(credential).await?;
        let Whole { bytes: body, place } =
            self.endpoint.bodies.read(body).await.map_err(|fault| Refusal::new(unread(fault)))?;
        let busy = self.place.begin();
        let Outline { id, listens } = envelope::read(&body)
            .map_err(|wrong| Refusal::new(in_json(StatusCode::BAD_REQUEST, &wrong.to_json())))?;
        let held = if listens {
            let stream = Arc::clone(&self.endpoint.streams).try_acquire_owned();
            Held::Stream(busy, stream.map_err(|_| too_many_streams(id.clone()))?)
        } else {
            Held::Request(busy, under_way)
        };
        accept_what_we_send(&mut parts.headers);
        let ends = (self.peer, self.local);
        parts.extensions.insert(Incoming { credential: credential.clone(), ends, after: after.clone() });
        let request = Request::from_parts(parts, Full::new(body));
        let answer = self.endpoint.mcp.handle(request).await;
        drop(place);
        // Only what was said of a token can have changed.
        if after.get() == Some(&Duty::AskAgain) && matches!(credential, Credential::Http { .. }) {
            self.remember(None);
            self.let_in(credential).await?;
        }
        Ok((errors_in_json(answer, id).await, Some(held)))
    }

    /// Whether the daemon lets the caller in, and by what it knows the caller from now on. `Err`: the answer
    /// that it does not.
    async fn let_in(&self, credential: Credential) -> Result<Credential, Refusal> {
        let Credential::Http { token, .. } = &credential else { return Ok(credential) };
        let session = self.endpoint.daemon.session().await;
        // A keyed hash: it is compared in constant time with respect to the token, and keeps no token.
        let of = self.endpoint.admissions.hash_one((session, token));
        if session.is_some()
            && let Some(admission) = self.last_admission().filter(|admission| admission.of == of)
        {
            return Ok(admission.found.map_or(credential, Credential::Admitted));
        }
        match self.endpoint.daemon.ask(credential.clone(), request::Request::Authenticate).await {
            Ok(answer) => {
                let found = match answer {
                    Answered::Admitted(caller) if token.is_none() => Some(caller),
                    _ => None,
                };
                self.remember(Some(Admission { of, found: found.clone() }));
                self.place.let_in();
                Ok(found.map_or(credential, Credential::Admitted))
            }
            Err(failure) if failure.code == ErrorCode::NotAllowed => {
                Err(unauthorized(token.is_some(), &failure).into())
            }
            Err(_) => Ok(credential),
        }
    }

    fn last_admission(&self) -> Option<Admission> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn remember(&self, admission: Option<Admission>) {
        *self.admitted.lock().unwrap_or_else(PoisonError::into_inner) = admission;
    }
}

impl From<Foreign> for Failure {
    fn from(foreign: Foreign) -> Self {
        let message = match foreign {
            Foreign::Target => "the request's target must be a path, not a URL: this is no proxy",
            Foreign::Host => "Host must name this endpoint, with its port, once",
            Foreign::Origin => "this endpoint does not answer web pages of other origins",
        };
        Failure::new(ErrorCode::NotAllowed, message)
    }
}

/// rmcp insists that a client names both forms; whoever accepts anything accepts them.
fn accept_what_we_send(headers: &mut HeaderMap) {
    let mut accepted = headers.get_all(ACCEPT).iter();
    let anything = |value: &HeaderValue| value.to_str().is_ok_and(|value| value.contains("*/*"));
    if !headers.contains_key(ACCEPT) || accepted.any(anything) {
        headers.insert(ACCEPT, ACCEPT_BOTH);
    }
}

/// rmcp's own refusals are plain text; clients parse the body as JSON-RPC.
async fn errors_in_json(answer: Answer, id: Option<Id>) -> Answer {
    let status = answer.status();
    if status.is_success() || answer.headers().get(CONTENT_TYPE) == Some(&JSON) {
        return answer;
    }
    let text = answer.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let (status, code, message) = match status {
        // The content type was right and the body a message: its parameters are not those of its method.
        StatusCode::UNSUPPORTED_MEDIA_TYPE => (
            StatusCode::BAD_REQUEST,
            envelope::INVALID_PARAMS,
            "the parameters are not those of the method".to_owned(),
        ),
        status if status.is_server_error() => (status, INTERNAL_ERROR, text),
        status => (status, INVALID_REQUEST, text),
    };
    in_json(status, &Wrong { code, message, id }.to_json())
}

/// What is answered to a body that was not read; the connection has no next request.
fn unread(fault: Fault) -> Answer {
    let (status, message) = match fault {
        Fault::TooLong => {
            (StatusCode::PAYLOAD_TOO_LARGE, format!("the body is longer than {BODY_MAX} bytes"))
        }
        Fault::TooSlow => (StatusCode::REQUEST_TIMEOUT, "the body did not come in time".to_owned()),
        Fault::Unreadable(why) => (StatusCode::BAD_REQUEST, format!("the body cannot be read: {why}")),
    };
    closing(failed(status, &invalid(message)))
}

fn closing(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(CONNECTION, CLOSE);
    answer
}

fn too_many_streams(id: Option<Id>) -> Answer {
    let message = format!("{STREAMS_MAX} streams listen already");
    let wrong = Wrong { code: envelope::SERVER_ERROR, message, id };
    in_json(StatusCode::TOO_MANY_REQUESTS, &wrong.to_json())
}

fn plain(answer: Answer) -> Response<AnswerBody> {
    answer.map(AnswerBody::plain)
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::InvalidArgument, message)
}

fn not_allowed(method: &Method, allowed: &'static str) -> Answer {
    let mut answer =
        failed(StatusCode::METHOD_NOT_ALLOWED, &invalid(format!("{method} is not for this path")));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

fn unauthorized(had_token: bool, failure: &Failure) -> Answer {
    let challenge = if had_token {
        r#"Bearer realm="mcp-restart", error="invalid_token""#
    } else {
        r#"Bearer realm="mcp-restart""#
    };
    let mut answer = failed(StatusCode::UNAUTHORIZED, failure);
    answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    answer
}

fn failed(status: StatusCode, failure: &Failure) -> Answer {
    in_json(status, &json!({ "error": failure }))
}

fn in_json(status: StatusCode, value: &Value) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(value.to_string())).boxed());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, JSON);
    answer
}
