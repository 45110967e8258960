//! The programs under measurement.

use crate::{Outcome, proc};
use serde_json::{Value, json};
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

/// The server that the bridge is compared with; ends with its value.
pub(crate) struct Other {
    child: Child,
    /// Its MCP endpoint.
    pub(crate) url: String,
}

impl Other {
    /// Runs `script` with Node; its first line is its URL.
    pub(crate) fn start(script: &Path) -> Outcome<Self> {
        let mut child =
            Command::new("node").arg(script).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut url = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut url)?;
        }
        Ok(Self { child, url: url.trim().to_owned() })
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Both fail only for a process that is gone already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
