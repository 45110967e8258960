//! How many descriptors a process may have open.

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

/// The limits of a process that has raised its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// What whoever started it had set.
    pub inherited: u64,
    /// What it has now.
    pub own: u64,
}

/// Lets this process have as many descriptors as it may. Whoever it starts gets that too, unless it calls
/// [`limit_descriptors`] with what was inherited.
pub fn raise_descriptor_limit() -> io::Result<DescriptorLimit> {
    let (inherited, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // A system that has a lower limit for what it calls unlimited refuses this; then all stays as it was.
    let own = if setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() { hard } else { inherited };
    Ok(DescriptorLimit { inherited, own })
}

/// Fails as the system does when it has no descriptor left, if this process may have fewer than so many beyond
/// those that it has.
///
/// The lowest free number tells: all below it are taken.
pub fn leave_descriptors(reserve: u64) -> io::Result<()> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let lowest = io::stdin().as_fd().try_clone_to_owned()?;
    let taken = u64::try_from(lowest.as_raw_fd()).map_err(io::Error::other)?;
    if limit.saturating_sub(taken) < reserve { Err(Errno::EMFILE.into()) } else { Ok(()) }
}

/// Limits this process, and what it starts, to this many descriptors. Those that it has stay open.
pub fn limit_descriptors(limit: u64) -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, limit.min(hard), hard)?)
}
