//! Which processes take in those whose parent has ended.

use crate::discovery::Known;

/// Programs that are the first process of a system or of a container, and no one's client.
const FIRST: [&str; 12] = [
    "systemd",
    "init",
    "launchd",
    "tini",
    "dumb-init",
    "docker-init",
    "podman-init",
    "catatonit",
    "s6-svscan",
    "runit",
    "runsvdir",
    "openrc-init",
];

/// Whether `parent` has `child` because it takes in orphans, rather than because it started it.
pub(crate) fn takes_in(parent: &Known, child: &Known) -> bool {
    // A shim takes in what its agent leaves.
    if parent.is_ours() || is_user_manager(parent) {
        return true;
    }
    if parent.row.pid != 1 {
        return false;
    }
    // In a container any program may be the first, a client too: what it started is in its session.
    FIRST.iter().any(|name| parent.row.command == *name || parent.reading.is_named(name))
        || parent.row.session != child.row.session
}

/// `systemd --user`.
fn is_user_manager(parent: &Known) -> bool {
    let own = parent.row.own.as_ref();
    parent.reading.is_named("systemd")
        && own.is_some_and(|own| own.arguments.iter().any(|word| word == "--user"))
}
