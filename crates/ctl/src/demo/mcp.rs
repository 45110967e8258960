//! A small MCP client over streamable HTTP.

use crate::problem::{Exit, Problem};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::error::Error;
use tokio::net::TcpStream;

const VERSION: &str = "2025-11-25";

/// A connection to an MCP server, initialised.
pub(super) struct Mcp {
    sender: SendRequest<Full<Bytes>>,
    uri: Uri,
    token: String,
    version: String,
    next_id: u64,
}

impl Mcp {
    /// Connects to `url` and initialises.
    pub(super) async fn connect(url: &str, token: String) -> Result<Self, Problem> {
        let uri: Uri = url.parse().map_err(|error| failed(&error))?;
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let stream = TcpStream::connect(&authority).await.map_err(|error| failed(&error))?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        // It ends with the sender; how it ended shows in the answers.
        tokio::spawn(async { drop(connection.await) });
        let mut mcp = Self { sender, uri, token, version: VERSION.to_owned(), next_id: 0 };
        let initialized = mcp
            .request(
                "initialize",
                json!({
                    "protocolVersion": VERSION,
                    "capabilities": {},
                    "clientInfo": { "name": "mcp-restart-demo", "version": env!("CARGO_PKG_VERSION") },
                }),
            )
            .await?;
        if let Some(version) = initialized.get("protocolVersion").and_then(Value::as_str) {
            version.clone_into(&mut mcp.version);
        }
        mcp.post(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await?;
        Ok(mcp)
    }

    /// Calls a tool and gives its structured result.
    pub(super) async fn call(&mut self, tool: &str, arguments: Value) -> Result<Value, Problem> {
        let mut result = self.request("tools/call", json!({ "name": tool, "arguments": arguments })).await?;
        let refused = result.get("isError").and_then(Value::as_bool) == Some(true);
        match result.get_mut("structuredContent").map(Value::take) {
            Some(structured) if !refused => Ok(structured),
            _ => Err(Problem::new(Exit::Failed, format!("{tool} was refused: {result}"))),
        }
    }

    async fn request(&mut self, method: &str, params: Value) -> Result<Value, Problem> {
        self.next_id += 1;
        let message = json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params });
        let body = self.post(&message).await?;
        let mut answer: Value = serde_json::from_slice(&body).map_err(|error| failed(&error))?;
        match answer.get_mut("result").map(Value::take) {
            Some(result) => Ok(result),
            None => Err(Problem::new(Exit::Failed, format!("{method} failed: {answer}"))),
        }
    }

    async fn post(&mut self, message: &Value) -> Result<Bytes, Problem> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(self.uri.path())
            .header(HOST, self.uri.authority().map_or("", |authority| authority.as_str()))
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream")
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .header("MCP-Protocol-Version", &self.version)
            .body(Full::new(Bytes::from(message.to_string())))
            .map_err(|error| failed(&error))?;
        self.sender.ready().await.map_err(|error| failed(&error))?;
        let response = self.sender.send_request(request).await.map_err(|error| failed(&error))?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| failed(&error))?.to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        Err(Problem::new(
            Exit::Failed,
            format!("the endpoint answers {status}: {}", String::from_utf8_lossy(&body)),
        ))
    }
}

fn failed(error: &dyn Error) -> Problem {
    Problem::caused(Exit::Failed, "the MCP endpoint cannot be asked", error)
}
