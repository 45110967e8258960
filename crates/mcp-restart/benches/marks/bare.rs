//! A server of rmcp with `list_agents` and nothing else: no second hop, no caller to judge, no limits. What the bridge
//! costs beyond it is what the bridge does.

use crate::Outcome;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::transport::StreamableHttpServerConfig;
use rmcp::transport::streamable_http_server::StreamableHttpService;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::net::TcpListener;

/// The argument that makes this program that server.
pub(crate) const SERVER: &str = "bare";

#[derive(Clone)]
struct Bare {
    agents: Value,
}

impl ServerHandler for Bare {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        Ok(CallToolResult::structured(self.agents.clone()).into())
    }
}

/// Prints its URL and answers every call with `agents`, the text of a JSON object, until it is ended.
pub(crate) fn serve(agents: Option<&str>) -> Outcome<()> {
    let server = Bare { agents: serde_json::from_str(agents.ok_or("nothing to answer with")?)? };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(accept(server))
}

async fn accept(server: Bare) -> Outcome<()> {
    let config =
        StreamableHttpServerConfig::default().with_legacy_session_mode(false).with_json_response(true);
    let mcp: StreamableHttpService<_, NeverSessionManager> =
        StreamableHttpService::new(move || Ok(server.clone()), Arc::default(), config);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/mcp", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let mcp = mcp.clone();
        let service = service_fn(move |request| {
            let mcp = mcp.clone();
            async move { Ok::<_, Infallible>(mcp.handle(request).await) }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}
