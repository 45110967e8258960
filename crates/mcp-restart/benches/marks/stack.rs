//! The programs under measurement.

use crate::{Outcome, proc};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// The real daemon and bridge, in a state dir of their own; ends with its value.
pub(crate) struct Stack {
    folder: TempDir,
    config: PathBuf,
}

impl Stack {
    /// Starts daemon and bridge, and each of `agents`, which are entries of the config file.
    pub(crate) fn up(agents: &[Value]) -> Outcome<Self> {
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("mcp-restart.config.json");
        std::fs::write(&config, json!({ "port": 0, "agents": agents }).to_string())?;
        let stack = Self { folder, config };
        stack.ctl(&["up"])?;
        stack.ctl(&["start", "--all"])?;
        Ok(stack)
    }

    /// Runs one command of `mcp-restartctl`, which has to succeed, and gives what it prints.
    pub(crate) fn ctl(&self, words: &[&str]) -> Outcome<Vec<u8>> {
        let output = Command::new(env!("CARGO_BIN_EXE_mcp-restartctl"))
            .env_clear()
            .env("HOME", self.folder.path())
            .env("PATH", "/usr/bin:/bin")
            .arg("--config")
            .arg(&self.config)
            .arg("--state-dir")
            .arg(self.folder.path().join("state"))
            .args(words)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        if output.status.success() {
            Ok(output.stdout)
        } else {
            Err(format!("mcp-restartctl {words:?}: {}", output.status).into())
        }
    }

    /// The process ids of daemon and bridge.
    pub(crate) fn servers(&self) -> Outcome<[u32; 2]> {
        let pid = self.status()?.get("pid").and_then(Value::as_u64).ok_or("no pid in status")?;
        let daemon = u32::try_from(pid)?;
        Ok([daemon, proc::child(daemon, "mcp-restart-htt")?])
    }

    /// The MCP endpoint.
    pub(crate) fn url(&self) -> Outcome<String> {
        Ok(self.status()?.get("url").and_then(Value::as_str).ok_or("no endpoint in status")?.to_owned())
    }

    /// The shim of the only agent.
    pub(crate) fn shim(&self) -> Outcome<u32> {
        proc::child(self.servers()?[0], "mcp-shim")
    }

    /// The token that is the agent's own.
    pub(crate) fn agent_token(&self, name: &str) -> Outcome<String> {
        let generated: Value = serde_json::from_slice(&self.ctl(&["--json", "mcp-config", name])?)?;
        let header =
            generated.pointer("/content/mcpServers/restart/headers/Authorization").and_then(Value::as_str);
        Ok(header.and_then(|header| header.strip_prefix("Bearer ")).ok_or("no token")?.to_owned())
    }

    /// A config for a bridge beside the daemon's own.
    pub(crate) fn config_with_port(&self, port: u16) -> Outcome<PathBuf> {
        let config = self.folder.path().join("another.config.json");
        std::fs::write(&config, json!({ "port": port }).to_string())?;
        Ok(config)
    }

    /// A bridge beside the daemon's own.
    pub(crate) fn another_bridge(&self, config: &Path) -> Outcome<Running> {
        let child = Command::new(env!("CARGO_BIN_EXE_mcp-restart-http"))
            .env_clear()
            .arg("--config")
            .arg(config)
            .arg("--state-dir")
            .arg(self.folder.path().join("state"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Running(child))
    }

    fn status(&self) -> Outcome<Value> {
        Ok(serde_json::from_slice(&self.ctl(&["--json", "status"])?)?)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // The command says on stderr what it could not do; there is no one else to tell.
        drop(self.ctl(&["down"]));
    }
}

/// A server that the bridge is compared with; ends with its value.
pub(crate) struct Other {
    _process: Running,
    /// Its MCP endpoint.
    pub(crate) url: String,
}

impl Other {
    /// Runs `program`; its first line is its URL.
    pub(crate) fn start(program: &Path, args: &[&OsStr]) -> Outcome<Self> {
        let mut child =
            Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut url = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut url)?;
        }
        Ok(Self { _process: Running(child), url: url.trim().to_owned() })
    }
}

/// A process that ends with its value.
pub(crate) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only for a process that is gone already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
