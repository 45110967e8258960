//! The MCP server: rmcp's handler over the tools and the link to the daemon.

use crate::delivery::{AfterCall, Duty};
use crate::link::Daemon;
use crate::tools::{self, Tool};
use hyper::http::request::Parts;
use mcp_restart_protocol::answer::ErrorCode as FailureCode;
use mcp_restart_protocol::request::Credential;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, ErrorCode, Implementation,
    JsonObject, ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
    Tool as Definition,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use std::sync::Arc;

/// One handler for all requests: it holds no state of any of them.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    daemon: Daemon,
    definitions: Arc<[Definition]>,
}

/// What the HTTP side knows of a request; it travels with the request's parts.
#[derive(Debug, Clone)]
pub(crate) struct Incoming {
    /// Who asks.
    pub(crate) credential: Credential,
    /// What the HTTP side has to do when the tool has its answer.
    pub(crate) after: AfterCall,
}

const SERVED: [&str; 5] = ["initialize", "ping", "server/discover", "tools/call", "tools/list"];

const INSTRUCTIONS: &str = "mcp-restart supervises the AI agents of this machine, you perhaps among them. To apply \
    a changed entry of its config file (server_status names the file) to yourself, edit the file and then call \
    restart_agent without a name, with a note for your next incarnation, once, as the last thing you do. If you find \
    yourself restarted, get_handoff has that note.";

impl Server {
    /// The server over a link.
    pub(crate) fn new(daemon: Daemon) -> Self {
        Self { daemon, definitions: Tool::ALL.map(Tool::definition).into() }
    }

    async fn call(&self, tool: Tool, arguments: JsonObject, incoming: &Incoming) -> CallToolResponse {
        let asked = match tool.request(arguments) {
            Ok(request) => self.daemon.ask(incoming.credential.clone(), request).await,
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

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let ours = Implementation::new("mcp-restart", env!("CARGO_PKG_VERSION")).with_title("mcp-restart");
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(ours)
            .with_instructions(INSTRUCTIONS)
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
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let CustomRequest { method, .. } = request;
        Err(if SERVED.contains(&method.as_str()) {
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
        let incoming = context.extensions.get::<Parts>().and_then(|parts| parts.extensions.get::<Incoming>());
        let Some(incoming) = incoming else {
            return Err(ErrorData::internal_error("the request came past the HTTP side", None));
        };
        // Boxed, since rmcp moves the future of a request several times.
        Ok(Box::pin(self.call(tool, request.arguments.unwrap_or_default(), incoming)).await)
    }
}
