//! How a bridge is started: which program, with what.

use crate::program::Program;
use mcp_restart_config::AGENT_TOKEN_PREFIX;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The bridge's program: the one in the folder of the daemon's, or of that to which a symbolic link of that
/// name leads, else the first on `PATH`.
pub(crate) fn find(daemon: &Program) -> Option<PathBuf> {
    const NAME: &str = "mcp-restart-http";
    let path = env::var_os("PATH").unwrap_or_default();
    let folder = |program: &Path| program.parent().map(Path::to_owned);
    let behind_links = daemon.path().canonicalize().ok();
    folder(daemon.path())
        .into_iter()
        .chain(behind_links.as_deref().and_then(folder))
        .chain(env::split_paths(&path).filter(|folder| folder.is_absolute()))
        .map(|folder| folder.join(NAME))
        .find(|program| is_executable(program))
}

/// The environment of a bridge, out of the daemon's own: without what a service manager says to its
/// direct child, and without what an agent inherits from its supervisor.
pub(crate) fn environment(own: impl Iterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    own.filter(|(name, value)| is_for_a_bridge(name, value)).collect()
}

fn is_for_a_bridge(name: &OsStr, value: &OsStr) -> bool {
    match name.as_encoded_bytes() {
        b"MCP_RESTART_LOG" => true,
        b"MCP_RESTART_TOKEN" => !value.as_encoded_bytes().starts_with(AGENT_TOKEN_PREFIX.as_bytes()),
        b"NOTIFY_SOCKET" => false,
        name => {
            !["MCP_RESTART_", "LISTEN_", "WATCHDOG_"].iter().any(|prefix| name.starts_with(prefix.as_bytes()))
        }
    }
}

fn is_executable(program: &Path) -> bool {
    fs::metadata(program).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_gets_nothing_that_was_meant_for_the_daemon_alone_or_for_an_agent() {
        let own = [
            ("PATH", "/bin"),
            ("MCP_RESTART_LOG", "debug"),
            ("MCP_RESTART_TOKEN", "operator"),
            ("MCP_RESTART_TOKEN", "mra_0123"),
            ("MCP_RESTART_SOCKET", "/s"),
            ("NOTIFY_SOCKET", "/n"),
            ("LISTEN_FDS", "2"),
            ("WATCHDOG_USEC", "1"),
        ];
        let kept = environment(own.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        let kept: Vec<_> = kept.iter().map(|(_, value)| value.to_str().unwrap()).collect();
        assert_eq!(kept, ["/bin", "debug", "operator"]);
    }
}
