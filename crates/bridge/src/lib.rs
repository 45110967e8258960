//! The bridge from MCP over HTTP to the control socket of mcp-restart.
//!
//! ```text
//!  client ── HTTP ──► serve ──► http ──► rmcp ──► server ──► link ── Unix socket ──► daemon
//!                       ▲     (doors,            (tools)       │
//!                       │    envelope)                         │
//!                       └──────────── delivery ───────────────►┘
//! ```
//!
//! It holds no state of any caller: killing it loses nothing but the answers that are under way.

mod body;
mod changes;
mod delivery;
mod doors;
mod envelope;
mod http;
mod link;
mod room;
mod schema;
mod serve;
mod server;
mod setup;
mod tools;

#[cfg(test)]
mod tests;

use clap::{Parser, ValueEnum};
use http::Endpoint;
use link::Link;
use mcp_restart_config::Environment;
use serve::Ending;
use setup::{Setup, SetupError};
use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Runs the program and gives its exit code.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
    };
    log_to_stderr(arguments.log_format);
    match start(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Serves MCP over HTTP on loopback for the daemon of mcp-restart.
#[derive(Debug, Parser)]
#[command(name = "mcp-restart-http", version)]
struct Arguments {
    /// The config file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The folder of the daemon's state, with its socket.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// How log lines are written.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

fn start(arguments: &Arguments) -> Result<(), SetupError> {
    let environment = Environment::from_process();
    let setup = setup::prepare(arguments.config.as_deref(), arguments.state_dir.as_deref(), &environment)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(SetupError::System)?;
    runtime.block_on(run(setup)).map_err(SetupError::System)
}

/// Serves until a signal says to end, or there was no daemon for too long.
async fn run(setup: Setup) -> io::Result<()> {
    let Setup { listener, bound, url, socket, patience, up_command } = setup;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => Ending::HandOver,
            _ = interrupt.recv() => Ending::ForGood,
        }
    };
    tracing::info!(%url, "listening");
    let (link, daemon) = Link::new(socket, listener.try_clone()?, url, patience, &up_command);
    let endpoint = Arc::new(Endpoint::new(bound, daemon));
    let listener = TcpListener::from_std(listener)?;
    // A task of its own: waking the runtime's outermost future costs a system call.
    let link = tokio::spawn(link.keep());
    tokio::select! {
        _ = link => tracing::warn!("ending: there is no daemon"),
        () = serve::serve(listener, endpoint, serve::connections_max(), stop) => tracing::info!("ended"),
    }
    Ok(())
}

fn log_to_stderr(format: LogFormat) {
    let filter = EnvFilter::try_from_env("MCP_RESTART_LOG")
        .unwrap_or_else(|_| EnvFilter::new("info,hyper=error,rmcp=error"));
    // A log that cannot be written loses its lines, no more: to say so on the same stderr would end the bridge.
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).log_internal_errors(false);
    match format {
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().init(),
    }
}

fn report(error: &SetupError) {
    let mut text = format!("error: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    if let Some(hint) = error.hint() {
        text = format!("{text}\nhint: {hint}");
    }
    // Nobody is left to tell when this fails.
    let _ = writeln!(io::stderr(), "{text}");
}
