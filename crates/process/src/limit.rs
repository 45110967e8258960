//! How many descriptors a process may have open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;

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

/// Limits this process, and what it starts, to this many descriptors. Those that it has stay open.
pub fn limit_descriptors(limit: u64) -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, limit.min(hard), hard)?)
}
