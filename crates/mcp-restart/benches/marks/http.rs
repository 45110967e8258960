//! The smallest HTTP client that can ask for `list_agents` as fast as a server answers.

use crate::Outcome;
use serde_json::Value;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const CALL: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_agents","arguments":{}}}"#;

/// One connection that is kept alive.
pub(crate) struct Client {
    connection: BufReader<TcpStream>,
    request: Vec<u8>,
    body: Vec<u8>,
}

/// Requests per second, all of `clients` asking at the same time, `requests` in all.
pub(crate) fn rate(clients: &mut [Client], requests: u32) -> Outcome<f64> {
    let each = requests / u32::try_from(clients.len())?;
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let asking: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                scope.spawn(move || {
                    (0..each).try_for_each(|_| client.call()).map_err(|error| error.to_string())
                })
            })
            .collect();
        asking
            .into_iter()
            .try_for_each(|asked| asked.join().map_err(|_| "a client panicked")?.map_err(Into::into))
    })
    .map_err(|error: Box<dyn Error>| error)?;
    Ok(f64::from(requests) / begin.elapsed().as_secs_f64())
}

impl Client {
    /// Connects to `http://host:port/path`; fails unless the server answers with an agent.
    pub(crate) fn connect(url: &str, token: Option<&str>) -> Outcome<Self> {
        let (host, path) =
            url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).ok_or("no http URL")?;
        let stream = TcpStream::connect(host)?;
        stream.set_nodelay(true)?;
        let mut head = format!(
            "POST /{path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-06-18\r\n\
             Content-Length: {}\r\n",
            CALL.len()
        );
        if let Some(token) = token {
            write!(head, "Authorization: Bearer {token}\r\n")?;
        }
        let request = format!("{head}\r\n{CALL}").into_bytes();
        let mut client = Self { connection: BufReader::new(stream), request, body: Vec::new() };
        client.call()?;
        let answer = String::from_utf8_lossy(&client.body);
        if !answer.contains("structuredContent") {
            return Err(format!("no list of agents: {answer}").into());
        }
        Ok(client)
    }

    /// How long each of so many requests took, the last byte of its answer included.
    pub(crate) fn times(&mut self, requests: u32, times: &mut Vec<Duration>) -> Outcome<()> {
        for _ in 0..requests {
            let begin = Instant::now();
            self.call()?;
            times.push(begin.elapsed());
        }
        Ok(())
    }

    /// The structured content of the last answer.
    pub(crate) fn structured(&self) -> Outcome<String> {
        let answer: Value = serde_json::from_slice(&self.body)?;
        let structured = answer.pointer("/result/structuredContent").ok_or("no list of agents")?;
        Ok(structured.to_string())
    }

    /// One request and its whole answer, whose body is left in `self.body`.
    fn call(&mut self) -> Outcome<()> {
        self.connection.get_mut().write_all(&self.request)?;
        let mut line = String::new();
        let mut length = None;
        while self.connection.read_line(&mut line)? > 2 {
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = Some(value.trim().parse()?);
            }
            line.clear();
        }
        self.body.resize(length.ok_or("an answer without a length")?, 0);
        self.connection.read_exact(&mut self.body)?;
        Ok(())
    }
}
