//! Where the config file, the state dir and the socket are.

use crate::config::Config;
use crate::environment::Environment;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The config file that is looked for in the working directory, and that `init` writes.
pub const PROJECT_FILE: &str = "mcp-restart.config.json";

/// Neither a flag, a variable nor the config names a state dir, and there is no home folder for the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoStateDir;

/// The config file: `--config`, `MCP_RESTART_CONFIG`, `./mcp-restart.config.json` if there is one, the
/// user's own. Absolute; whether it exists shows when it is loaded.
pub fn config_file(flag: Option<&Path>, environment: &Environment) -> PathBuf {
    if let Some(named) = flag.or(environment.config.as_deref()) {
        return environment.cwd.join(named);
    }
    let project = environment.cwd.join(PROJECT_FILE);
    match user_config_folder(environment) {
        Some(folder) if !project.exists() => folder.join("config.json"),
        _ => project,
    }
}

/// The state dir: `--state-dir`, `MCP_RESTART_STATE_DIR`, the config's `stateDir`, the default. Absolute.
pub fn state_dir(
    flag: Option<&Path>,
    config: Option<&Config>,
    environment: &Environment,
) -> Result<PathBuf, NoStateDir> {
    if let Some(named) = flag.or(environment.state_dir.as_deref()) {
        return Ok(environment.cwd.join(named));
    }
    if let Some(named) = config.and_then(|config| config.state_dir.clone()) {
        return Ok(named);
    }
    let state_home = environment
        .xdg_state_home
        .clone()
        .or_else(|| environment.home.as_ref().map(|home| home.join(".local/state")))
        .ok_or(NoStateDir)?;
    Ok(state_home.join("mcp-restart"))
}

/// The daemon's socket in a state dir.
pub fn socket(state_dir: &Path) -> PathBuf {
    state_dir.join("mcp-restartd.sock")
}

/// The MCP config file that is generated for an agent.
pub fn mcp_config_file(state_dir: &Path, name: &str) -> PathBuf {
    state_dir.join("mcp-config").join(format!("{name}.mcp.json"))
}

/// The log of an agent whose entry names none.
pub fn log_file(state_dir: &Path, name: &str) -> PathBuf {
    state_dir.join("logs").join(format!("{name}.log"))
}

/// The URL of the MCP endpoint that listens on this address.
pub fn bridge_url(host: IpAddr, port: u16) -> String {
    format!("http://{}/mcp", std::net::SocketAddr::new(host, port))
}

/// The folder of the user's own config file.
pub(crate) fn user_config_folder(environment: &Environment) -> Option<PathBuf> {
    let config_home = environment
        .xdg_config_home
        .clone()
        .or_else(|| environment.home.as_ref().map(|home| home.join(".config")))?;
    Some(config_home.join("mcp-restart"))
}

impl fmt::Display for NoStateDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is no home folder to keep the state in; name a state dir")
    }
}

impl std::error::Error for NoStateDir {}
