//! A limit for system calls that have none of their own.

use nix::errno::Errno;
use nix::unistd::alarm;
use std::io;

/// Until this is dropped, a call that waits is interrupted (`EINTR`) when the time is over, but for one that begins
/// after that.
#[derive(Debug)]
pub(crate) struct Alarm {
    before: libc::sigaction,
}

impl Alarm {
    pub(crate) fn set(seconds: u32) -> io::Result<Self> {
        // SAFETY: zeros are valid for each field: no flag, so that what is interrupted is not begun again, and a
        // mask that sigemptyset may fill.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = ring as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the set outlives the call.
        unsafe { libc::sigemptyset(&raw mut action.sa_mask) };
        let before = exchange(&action)?;
        alarm::set(seconds);
        Ok(Self { before })
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        alarm::cancel();
        // It was in force before: it is valid.
        let _ = exchange(&self.before);
    }
}

fn exchange(action: &libc::sigaction) -> io::Result<libc::sigaction> {
    // SAFETY: zeros are valid for each field.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both outlive the call, and the handler is ours, which does nothing, or was in force before.
    Errno::result(unsafe { libc::sigaction(libc::SIGALRM, action, &raw mut before) })?;
    Ok(before)
}

/// The handler: that there is one is what interrupts the call.
extern "C" fn ring(_number: libc::c_int) {}
