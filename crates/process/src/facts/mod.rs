//! What the system tells about processes, and its own peculiarities: the same functions for each system.

#[cfg(target_os = "linux")]
mod elf;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(any(test, target_os = "macos"))]
mod process_arguments;

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(target_os = "macos")]
pub(crate) use macos::*;

/// What is known of a process that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    /// At most 15 bytes.
    pub(crate) command: String,
    pub(crate) state: State,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    pub(crate) session: u32,
    /// In the system's own unit: two processes that had the same number differ in it.
    pub(crate) start_time: u64,
}

/// What a process is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It runs or sleeps.
    Alive,
    /// A signal has stopped it.
    Stopped,
    /// It waits for a device or a file system, and hears nothing meanwhile.
    #[cfg_attr(target_os = "macos", expect(dead_code, reason = "this system does not tell"))]
    Uninterruptible,
    /// It has ended, and its parent has not taken notice yet.
    Zombie,
}
