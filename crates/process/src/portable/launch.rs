//! A child that is a copy of its parent, and says over a pipe what it could not do.
//!
//! ```text
//!  parent                        child
//!  fork ───────────────────────► the steps of the plan
//!  reads the pipe                exec: the pipe closes itself, without a word
//!                     ◄── or: the failed step and its errno, _exit
//! ```

use crate::descriptor::{self, duplicate_beyond};
use crate::launch::{Plan, Step};
use nix::errno::Errno;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};

/// The step, and the bytes of the error number.
type Report = [u8; 5];

/// Starts the child, and waits until it has become another program or has failed.
pub(crate) fn start(plan: &mut Plan) -> io::Result<u32> {
    let (mut reader, own) = io::pipe()?;
    // The plan puts its descriptors where this one may be.
    let writer = duplicate_beyond(own.as_fd(), plan.beyond())?;
    drop(own);
    // SAFETY: the child calls only what is async-signal-safe, and ends in exec or _exit.
    let pid = Errno::result(unsafe { libc::fork() })?;
    if pid == 0 {
        let step = plan.steps();
        let report = encode(step, Errno::last_raw());
        // SAFETY: the buffer outlives the call, which reads no more than its length.
        unsafe { libc::write(writer.as_raw_fd(), report.as_ptr().cast(), report.len()) };
        // SAFETY: _exit runs nothing of the parent's.
        unsafe { libc::_exit(127) }
    }
    drop(writer);
    let mut report = Report::default();
    plan.failure = match reader.read_exact(&mut report) {
        Ok(()) => decode(report),
        Err(_) => None,
    };
    Ok(pid.cast_unsigned())
}

/// There is no way to have the system kill this process with its parent. It ends only if it is late already.
pub(crate) fn die_with(parent: libc::pid_t) -> bool {
    // SAFETY: no arguments.
    if unsafe { libc::getppid() } != parent {
        // SAFETY: _exit runs nothing of the parent's.
        unsafe { libc::_exit(127) }
    }
    true
}

/// Makes every descriptor from `first` on close itself on exec.
pub(crate) fn close_on_exec_from(first: RawFd) {
    descriptor::mark_each_from(first);
}

fn encode(step: Step, errno: i32) -> Report {
    let [a, b, c, d] = errno.to_ne_bytes();
    [step as u8, a, b, c, d]
}

fn decode([step, a, b, c, d]: Report) -> Option<(Step, i32)> {
    const STEPS: [Step; 5] = [Step::Session, Step::Descriptors, Step::Terminal, Step::Folder, Step::Execute];
    let step = STEPS.into_iter().find(|known| *known as u8 == step)?;
    Some((step, i32::from_ne_bytes([a, b, c, d])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_understood_again() {
        for step in [Step::Session, Step::Descriptors, Step::Terminal, Step::Folder, Step::Execute] {
            assert_eq!(decode(encode(step, libc::ENOENT)), Some((step, libc::ENOENT)));
        }
    }
}
