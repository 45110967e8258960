//! The bridge as its callers meet it: real TCP, raw HTTP, and a stand-in for the daemon on its socket.

mod admission;
mod daemon;
mod mutation;
mod pressure;
mod stand_in;
mod streams;
mod tools;
mod wire;

use crate::http::Endpoint;
use crate::link::Link;
use crate::serve::{self, Ending};
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A bridge in the test's own runtime.
struct Bridge {
    address: SocketAddr,
    /// The bridge is told to end by it, or when it is dropped, for another one.
    stop: oneshot::Sender<Ending>,
    ended: JoinHandle<()>,
}

impl Bridge {
    fn start(socket: &Path) -> Self {
        Self::with_patience(socket, None)
    }

    /// One that serves so many connections at a time.
    fn with_room(socket: &Path, most: usize) -> Self {
        Self::with(socket, None, most)
    }

    fn with_patience(socket: &Path, patience: Option<Duration>) -> Self {
        Self::with(socket, patience, 512)
    }

    fn with(socket: &Path, patience: Option<Duration>, most: usize) -> Self {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("http://{address}/mcp");
        let (link, daemon) =
            Link::new(socket.to_owned(), listener.try_clone().unwrap(), url, patience, "mcp-restartctl up");
        let endpoint = Arc::new(Endpoint::new(address, daemon));
        let listener = TcpListener::from_std(listener).unwrap();
        let (stop, stopped) = oneshot::channel();
        let ended = tokio::task::spawn(async move {
            let stopped = async { stopped.await.unwrap_or(Ending::HandOver) };
            tokio::select! {
                () = link.keep() => {}
                () = serve::serve(listener, endpoint, most, stopped) => {}
            }
        });
        Self { address, stop, ended }
    }

    async fn connect(&self) -> Http {
        Http { stream: TcpStream::connect(self.address).await.unwrap(), host: self.address.to_string() }
    }

    /// One request on a connection of its own.
    async fn post(&self, message: &Value) -> Reply {
        self.connect().await.post(&[], message).await
    }
}

/// A client that writes what it is told and reads one reply after the other.
struct Http {
    stream: TcpStream,
    host: String,
}

#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Http {
    async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    async fn read(&mut self) -> Reply {
        let mut bytes = Vec::new();
        let end = loop {
            if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break at;
            }
            assert_ne!(
                self.stream.read_buf(&mut bytes).await.unwrap(),
                0,
                "the connection ended before the head"
            );
        };
        let mut body = bytes.split_off(end + 4);
        let head = String::from_utf8(bytes).unwrap();
        let length: usize = header_in(&head, "content-length").map_or(0, |length| length.parse().unwrap());
        while body.len() < length {
            assert_ne!(
                self.stream.read_buf(&mut body).await.unwrap(),
                0,
                "the connection ended before the body"
            );
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Reply { status, head, body: String::from_utf8(body).unwrap() }
    }

    /// What comes, up to and with this text.
    async fn until(&mut self, text: &str) -> String {
        let mut bytes = Vec::new();
        loop {
            let so_far = String::from_utf8_lossy(&bytes);
            if so_far.contains(text) {
                return so_far.into_owned();
            }
            let read = self.stream.read_buf(&mut bytes).await.unwrap();
            assert_ne!(read, 0, "the connection ended before {text:?}");
        }
    }

    async fn closed(mut self) -> bool {
        matches!(self.stream.read(&mut [0]).await, Ok(0) | Err(_))
    }

    fn request(&self, headers: &[(&str, &str)], body: &str) -> String {
        let headers: String =
            headers.iter().map(|(name, value)| [name, ": ", value, "\r\n"].concat()).collect();
        let (host, length) = (&self.host, body.len());
        format!(
            "POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{headers}\r\n{body}"
        )
    }

    async fn post(&mut self, headers: &[(&str, &str)], message: &Value) -> Reply {
        self.send(&self.request(headers, &message.to_string())).await;
        self.read().await
    }

    async fn get(&mut self, path: &str) -> Reply {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host)).await;
        self.read().await
    }

    async fn call(&mut self, headers: &[(&str, &str)], tool: &str, arguments: &Value) -> Reply {
        self.post(headers, &call(tool, arguments)).await
    }
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        header_in(&self.head, name)
    }

    fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        serde_json::from_str(&self.body).unwrap()
    }

    /// The result of a tool call that was carried out: structured content, and the same as text.
    fn result(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        let result = self.json()["result"].clone();
        assert_eq!(result["isError"], false, "{result}");
        let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(result["structuredContent"], text);
        text
    }

    /// The error of a tool call that was refused or failed: text alone.
    fn error(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        let result = self.json()["result"].clone();
        assert_eq!(result["isError"], true, "{result}");
        assert_eq!(result.get("structuredContent"), None);
        let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        text["error"].clone()
    }
}

fn header_in<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .filter_map(|line| line.split_once(": "))
        .find(|(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

fn message(method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })
}

fn call(tool: &str, arguments: &Value) -> Value {
    message("tools/call", &json!({ "name": tool, "arguments": arguments }))
}

fn initialize(version: &str) -> Value {
    message(
        "initialize",
        &json!({
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" },
        }),
    )
}

const MODERN: &str = "2026-07-28";

/// A message of the version without a handshake, with the headers that it has to have.
fn modern_message(method: &'static str, mut params: Value) -> ([(&'static str, &'static str); 2], Value) {
    let mut meta = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    if let Some(Value::Object(given)) = params.get("_meta") {
        meta.as_object_mut().unwrap().extend(given.clone());
    }
    params["_meta"] = meta;
    ([("MCP-Protocol-Version", MODERN), ("Mcp-Method", method)], message(method, &params))
}

async fn modern(http: &mut Http, method: &'static str, name: Option<&'static str>, params: Value) -> Value {
    let (headers, message) = modern_message(method, params);
    let mut headers = headers.to_vec();
    headers.extend(name.map(|name| ("Mcp-Name", name)));
    http.post(&headers, &message).await.json()
}
