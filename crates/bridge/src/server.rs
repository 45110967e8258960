//! The MCP server: rmcp's handler over the tools and the link to the daemon.

use crate::changes::{self, About};
use crate::delivery::{AfterCall, Duty};
use crate::link::Daemon;
use crate::tools::{self, Tool};
use hyper::http::request::Parts;
use mcp_restart_protocol::answer::{Answer, ErrorCode as FailureCode};
use mcp_restart_protocol::request::{Credential, Request};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, ErrorCode, Implementation,
    InitializeRequestParams, InitializeResult, JsonObject, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ProgressToken,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ResourceContents,
    ServerCapabilities, ServerConfig, SubscriptionFilter, Tool as Definition,
};
use rmcp::service::{Peer, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, interval_at};
use tokio_util::sync::CancellationToken;

/// One handler for all requests: it holds no state of any of them.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    daemon: Daemon,
    leaving: CancellationToken,
    definitions: Arc<[Definition]>,
}

/// What the HTTP side knows of a request; it travels with the request's parts.
#[derive(Debug, Clone)]
pub(crate) struct Incoming {
    /// Who asks.
    pub(crate) credential: Credential,
    /// The caller's end of its connection, and ours.
    pub(crate) ends: (SocketAddr, SocketAddr),
    /// What the HTTP side has to do when the tool has its answer.
    pub(crate) after: AfterCall,
}

const SERVED: [&str; 9] = [
    "initialize",
    "ping",
    "resources/list",
    "resources/read",
    "resources/templates/list",
    "server/discover",
    "subscriptions/listen",
    "tools/call",
    "tools/list",
];
/// The version that begins without `initialize`.
const WITHOUT_A_HANDSHAKE: &str = "2026-07-28";
/// How often whoever waits for a stop or start is told that it goes on.
const PROGRESS: Duration = Duration::from_secs(1);

const INSTRUCTIONS: &str = "mcp-restart supervises the AI agents of this machine, you perhaps among them. To apply \
    a changed entry of its config file (server_status names the file) to yourself, edit the file and then call \
    restart_agent without a name, with a note for your next incarnation, once, as the last thing you do. If you find \
    yourself restarted, get_handoff has that note.";

impl Server {
    /// The server over a link, whose streams end with `leaving`.
    pub(crate) fn new(daemon: Daemon, leaving: CancellationToken) -> Self {
        Self { daemon, leaving, definitions: Tool::ALL.map(Tool::definition).into() }
    }

    /// Passes on which conversation the client says it is in, before its call is carried out.
    async fn tell_session(
        &self,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
        incoming: &Incoming,
    ) {
        if let Some(id) = tools::session(request.meta.as_ref().unwrap_or(&context.meta)) {
            let _ = self.daemon.ask(incoming.credential.clone(), Request::Session { id }).await;
        }
    }

    async fn call(
        &self,
        tool: Tool,
        arguments: JsonObject,
        incoming: &Incoming,
        progress: Option<Progress>,
    ) -> CallToolResponse {
        let asked = match tool.request(arguments, incoming.ends) {
            Ok(request) => {
                let asked = self.daemon.ask(incoming.credential.clone(), request);
                match progress {
                    Some(progress) => progress.during(tool, asked).await,
                    None => asked.await,
                }
            }
            Err(failure) => Err(failure),
        };
        let result = match asked {
            Ok(answer) => {
                if let Some(delivery) = tools::delivery(&answer) {
                    let _ = incoming.after.set(Duty::Report(delivery));
                }
                tools::answered(answer)
            }
            Err(failure) => {
                if failure.code == FailureCode::NotAllowed {
                    let _ = incoming.after.set(Duty::AskAgain);
                }
                tools::refused(&failure)
            }
        };
        result.into()
    }
}

/// The way to a caller who wants to know how it goes on.
struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
}

impl Progress {
    /// Says every second that it is still waited for.
    async fn during<T>(&self, tool: Tool, asked: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let mut ticks = interval_at(begun + PROGRESS, PROGRESS);
        tokio::pin!(asked);
        loop {
            tokio::select! {
                biased;
                answer = &mut asked => return answer,
                _ = ticks.tick() => {
                    let seconds = begun.elapsed().as_secs();
                    let message = format!("{}: waiting for {seconds} s", tool.name());
                    let progress = ProgressNotificationParam::new(self.token.clone(), begun.elapsed().as_secs_f64())
                        .with_message(message);
                    // A caller that has gone is told nothing.
                    let _ = self.peer.notify_progress(progress).await;
                }
            }
        }
    }
}

/// What the HTTP side put beside the request.
fn incoming(context: &RequestContext<RoleServer>) -> Result<&Incoming, ErrorData> {
    let parts = context.extensions.get::<Parts>();
    parts
        .and_then(|parts| parts.extensions.get::<Incoming>())
        .ok_or_else(|| ErrorData::internal_error("the request came past the HTTP side", None))
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let ours = Implementation::new("mcp-restart", env!("CARGO_PKG_VERSION")).with_title("mcp-restart");
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_resources_subscribe()
            .build();
        ServerConfig::new(capabilities).with_server_info(ours).with_instructions(INSTRUCTIONS)
    }

    /// Versions with a handshake have a subscription of their own, to sessions that there are none of: nothing would
    /// ever arrive.
    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        context.peer.set_peer_info(request.clone());
        let mut info = self.negotiate_initialize(&request)?;
        if let Some(resources) = &mut info.capabilities.resources {
            resources.subscribe = None;
        }
        Ok(info)
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(vec![changes::agents()]))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![changes::one_agent()]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri;
        let unknown = || ErrorData::resource_not_found(format!("there is no resource {uri:?}"), None);
        let about = About::of(&uri).ok_or_else(unknown)?;
        let credential = incoming(&context)?.credential.clone();
        let agents = match self.daemon.ask(credential, Request::List { all: false }).await {
            Ok(Answer::Agents(agents)) => agents,
            Ok(_) => return Err(ErrorData::internal_error("the daemon answered something else", None)),
            Err(failure) => {
                return Err(ErrorData::internal_error(failure.message, Some(json!(failure.hint))));
            }
        };
        let text = about.text(&agents).ok_or_else(unknown)?.to_string();
        let contents = ResourceContents::text(text, &*uri).with_mime_type("application/json");
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(changes::accepted(requested))
    }

    async fn listen(&self, stream: SubscriptionContext) -> Result<(), ErrorData> {
        changes::tell(&self.daemon, &self.leaving, &stream).await
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.definitions.to_vec()))
    }

    fn get_tool(&self, name: &str) -> Option<Definition> {
        self.definitions.iter().find(|tool| tool.name == name).cloned()
    }

    /// rmcp takes a known method whose parameters it cannot read for one that it does not know.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let CustomRequest { method, .. } = request;
        let parts = context.extensions.get::<Parts>();
        let version = parts.and_then(|parts| parts.headers.get("mcp-protocol-version"));
        // The handshake is no method of a version that has none.
        let removed = method == "initialize" && version.is_some_and(|version| version == WITHOUT_A_HANDSHAKE);
        Err(if SERVED.contains(&method.as_str()) && !removed {
            ErrorData::invalid_params(format!("the parameters are not those of {method}"), None)
        } else {
            ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("there is no method {method:?}"), None)
        })
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = Tool::named(&request.name) else {
            return Err(ErrorData::invalid_params(format!("there is no tool {:?}", request.name), None));
        };
        let incoming = incoming(&context)?;
        let token = context.meta.get_progress_token();
        let progress = token.map(|token| Progress { peer: context.peer.clone(), token });
        self.tell_session(&request, &context, incoming).await;
        // Boxed, since rmcp moves the future of a request several times.
        Ok(Box::pin(self.call(tool, request.arguments.unwrap_or_default(), incoming, progress)).await)
    }
}
