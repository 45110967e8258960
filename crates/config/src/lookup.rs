//! Where the config file, the state dir and the socket are.

use crate::config::Config;
use crate::environment::Environment;
use crate::salvage;
use std::fmt;
use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};

/// The config file that is looked for in the working directory, and that `init` writes.
pub const PROJECT_FILE: &str = "mcp-restart.config.json";

/// Neither a flag, a variable nor the config names a state dir, and there is no home folder for the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoStateDir;

/// The config file: `--config`, `MCP_RESTART_CONFIG`, `./mcp-restart.config.json` if there is one, the
/// user's own. Absolute; whether it exists shows when it is loaded.
pub fn config_file(flag: Option<&Path>, environment: &Environment) -> PathBuf {
    if let Some(named) = flag.or(environment.config.as_deref()) {
        return tidied(&environment.cwd.join(named));
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
    first_state_dir(flag, || config.and_then(|config| config.state_dir.clone()), environment)
}

/// The same for a config file that cannot be used: what it names as its state dir is read past its faults.
pub fn state_dir_of_broken(
    flag: Option<&Path>,
    file: &Path,
    environment: &Environment,
) -> Result<PathBuf, NoStateDir> {
    first_state_dir(flag, || salvage::state_dir(file, environment), environment)
}

fn first_state_dir(
    flag: Option<&Path>,
    of_file: impl FnOnce() -> Option<PathBuf>,
    environment: &Environment,
) -> Result<PathBuf, NoStateDir> {
    if let Some(named) = flag.or(environment.state_dir.as_deref()) {
        return Ok(tidied(&environment.cwd.join(named)));
    }
    if let Some(named) = of_file() {
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

/// Whether a path is among the daemon's own files: all of the state dir, but for the folder of the logs.
pub fn is_for_the_daemon(state_dir: &Path, path: &Path) -> bool {
    path.starts_with(state_dir) && !path.starts_with(state_dir.join("logs"))
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

/// The path without `.`, and without `..` where its folder is there: after a symbolic link, that means more than
/// its letters do. A last name that is a link stays, so that one that is switched to another file is followed.
fn tidied(path: &Path) -> PathBuf {
    let leads_up = path.components().any(|component| component == Component::ParentDir);
    let Some(name) = path.file_name().filter(|_| leads_up) else { return path.components().collect() };
    match path.parent().map(Path::canonicalize) {
        Some(Ok(folder)) => folder.join(name),
        _ => path.to_owned(),
    }
}

impl fmt::Display for NoStateDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is no home folder to keep the state in; name a state dir")
    }
}

impl std::error::Error for NoStateDir {}
