//! A child that shares its parent's memory until exec.
//!
//! Nothing is copied for it, and it runs at once: that is what makes a restart fast.

use crate::descriptor;
use crate::launch::Plan;
use nix::errno::Errno;
use std::io;
use std::os::fd::RawFd;
use std::ptr;

/// More than enough for a few system calls, in a debug build too.
const CHILD_STACK: usize = 32 * 1024;

/// Starts the child, and waits until it has become another program or has failed.
pub(crate) fn start(plan: &mut Plan) -> io::Result<u32> {
    let mut stack = vec![0_u8; CHILD_STACK];
    let stack_top = stack.as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: this thread sleeps until the child has its own memory or none, so what the child reads and
    // writes (the plan, its stack) is alive and used by nobody else. The child runs `carry_out` alone, which
    // allocates nothing, takes no lock, and ends in exec or _exit.
    let pid = unsafe { libc::clone(carry_out, stack_top.cast(), flags, ptr::from_mut(plan).cast()) };
    Ok(Errno::result(pid)?.cast_unsigned())
}

/// Has the system kill this process with its parent.
pub(crate) fn die_with(parent: libc::pid_t) -> bool {
    // SAFETY: the request takes one number.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } < 0 {
        return false;
    }
    // SAFETY: no arguments.
    if unsafe { libc::getppid() } != parent {
        // The parent died before it could be said that this is to die with it.
        // SAFETY: _exit runs nothing of this process's.
        unsafe { libc::_exit(127) }
    }
    true
}

/// Makes every descriptor from `first` on close itself on exec.
pub(crate) fn close_on_exec_from(first: RawFd) {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: close_range takes three numbers; with this flag it closes nothing.
    let done = unsafe {
        libc::syscall(libc::SYS_close_range, first.cast_unsigned(), libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC)
    };
    if done != 0 {
        // A kernel before 5.11.
        descriptor::mark_each_from(first);
    }
}

/// What the child does. Only system calls from here on, and no allocation.
extern "C" fn carry_out(plan: *mut libc::c_void) -> libc::c_int {
    // SAFETY: it is the plan that `launch` passed, which waits and does not touch it.
    let plan = unsafe { &mut *plan.cast::<Plan>() };
    let step = plan.steps();
    plan.failure = Some((step, Errno::last_raw()));
    // SAFETY: _exit runs nothing of this process's.
    unsafe { libc::_exit(127) }
}
