//! Who starts the next daemon when this one makes way: a service manager, or whoever asks for the upgrade.

use mcp_restart_process::tree::Process;
use mcp_restart_protocol::upgrade::Launch;
use std::env;
use std::ffi::OsString;

/// A service manager that started this process, and starts it again when it ends with status 75.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manager {
    /// systemd, the system's or a user's.
    Systemd,
    /// launchd.
    Launchd,
}

/// What a process knows about who started it.
#[derive(Debug, Default)]
struct Origin {
    pid: u32,
    /// The parent's command name.
    parent: Option<String>,
    /// Whether the parent is the first process.
    parent_is_first: bool,
    /// `SYSTEMD_EXEC_PID`: the process that systemd started, since version 248.
    systemd_exec_pid: Option<OsString>,
    /// `INVOCATION_ID`, which systemd sets for every unit.
    invocation_id: bool,
    /// `XPC_SERVICE_NAME`: launchd's name for what it started.
    xpc_service_name: Option<OsString>,
}

impl Manager {
    /// The manager of this process.
    pub(crate) fn of_own_process() -> Option<Self> {
        let parent = std::os::unix::process::parent_id();
        manager(&Origin {
            pid: std::process::id(),
            parent: Process::of(parent).map(|parent| parent.command),
            parent_is_first: parent == 1,
            systemd_exec_pid: env::var_os("SYSTEMD_EXEC_PID"),
            invocation_id: env::var_os("INVOCATION_ID").is_some(),
            xpc_service_name: env::var_os("XPC_SERVICE_NAME"),
        })
    }

    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Systemd => "systemd",
            Self::Launchd => "launchd",
        }
    }
}

/// How this process was started, for a successor that is to be started the same way.
pub(crate) fn own_launch() -> Launch {
    Launch {
        arguments: env::args_os().skip(1).map(Into::into).collect(),
        cwd: env::current_dir().ok().map(Into::into),
        environment: env::vars_os().map(|(name, value)| (name.into(), value.into())).collect(),
    }
}

// Every variable is inherited: a shell in a terminal that is a service has them all, and so has whatever is
// started in it. So each counts only with something that holds for the manager's direct child alone.
fn manager(origin: &Origin) -> Option<Manager> {
    let started_by_systemd = match &origin.systemd_exec_pid {
        Some(pid) => pid.to_str() == Some(&origin.pid.to_string()),
        None => origin.invocation_id && origin.parent.as_deref() == Some("systemd"),
    };
    // "0" and "application.…" are what programs that a user opened have.
    let named_by_launchd = origin
        .xpc_service_name
        .as_ref()
        .is_some_and(|name| name != "0" && !name.as_encoded_bytes().starts_with(b"application."));
    if started_by_systemd {
        Some(Manager::Systemd)
    } else if named_by_launchd && origin.parent_is_first {
        Some(Manager::Launchd)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn systemd(exec_pid: Option<&str>, parent: &str) -> Origin {
        Origin {
            pid: 7,
            parent: Some(parent.to_owned()),
            systemd_exec_pid: exec_pid.map(Into::into),
            invocation_id: true,
            ..Origin::default()
        }
    }

    fn launchd(name: &str, parent_is_first: bool) -> Origin {
        Origin { pid: 7, xpc_service_name: Some(name.into()), parent_is_first, ..Origin::default() }
    }

    #[test]
    fn only_the_direct_child_of_a_service_manager_is_started_again_by_it() {
        let table = [
            (systemd(Some("7"), "systemd"), Some(Manager::Systemd)),
            // In a shell of a terminal that is a service, before and since systemd 248.
            (systemd(Some("6"), "bash"), None),
            (systemd(None, "bash"), None),
            // Orphaned there, and taken on by the user's manager.
            (systemd(Some("6"), "systemd"), None),
            // An old systemd.
            (systemd(None, "systemd"), Some(Manager::Systemd)),
            (launchd("mcp-restart.daemon", true), Some(Manager::Launchd)),
            (launchd("mcp-restart.daemon", false), None),
            (launchd("0", true), None),
            (launchd("application.com.apple.Terminal.1", true), None),
            (Origin { pid: 7, parent_is_first: true, ..Origin::default() }, None),
        ];
        for (origin, expected) in table {
            assert_eq!(manager(&origin), expected, "{origin:?}");
        }
    }
}
