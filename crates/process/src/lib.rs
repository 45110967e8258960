//! Every system call of mcp-restart that acts, and all of its unsafe code.
//!
//! | module | what it does |
//! |---|---|
//! | [`child`] | starts the daemon's own children: shims and the bridge |
//! | [`preflight`] | tells what a launch would fail of, before anything is touched |
//! | [`launch`] | starts an agent: fork, a clean slate, exec, errors told apart |
//! | [`sibling`] | forks a process of one thread, without another program |
//! | [`tree`] | finds and signals what is below a process |
//! | [`table`] | every process with its command line, and holding some of them |
//! | [`identity`] | tells a process from a later one with the same number |
//! | [`session`] | what a shim does to itself: session, subreaper, signals, reaping |
//! | [`lock`], [`file`] | locks with a holder, atomic replacement, logs that never block |
//! | [`descriptor`], [`poll`], [`terminal`] | passing descriptors, waiting for them, pseudo-terminals |
//! | [`limit`] | how many descriptors there may be |
//! | [`peer`] | who is at the other end of a connection |
//!
//! Systems differ twice: in what they tell (`facts`, chosen by the system) and in what can be done with it:
//! `linux` uses what only Linux has, `portable` what every Unix has. The feature `portable` chooses the
//! latter on Linux, too, so that its tests run there. Where one of them has a function, the other has it.
//!
//! What starts or signals a process takes a [`RestartPath`](mcp_restart_paths::RestartPath): a way that
//! nobody registered does not compile.

pub mod child;
pub mod descriptor;
pub mod file;
pub mod identity;
pub mod launch;
pub mod limit;
pub mod lock;
pub mod lost;
pub mod peer;
pub mod poll;
pub mod preflight;
pub mod session;
pub mod sibling;
pub mod signal;
pub mod table;
pub mod terminal;
pub mod tree;

mod alarm;
mod facts;
// The one place where it is chosen how things are done.
#[cfg(all(target_os = "linux", not(feature = "portable")))]
#[path = "linux/mod.rs"]
mod system;
#[cfg(not(all(target_os = "linux", not(feature = "portable"))))]
#[path = "portable/mod.rs"]
mod system;

pub use child::{Child, Exit, Spawn, own_executable, spawn};
pub use descriptor::{receive_with_descriptor, send_with_descriptor};
pub use file::{read_regular, write_atomically};
pub use identity::{Identity, ancestors, boot_id, boot_time};
pub use limit::{DescriptorLimit, leave_descriptors, limit_descriptors, raise_descriptor_limit};
pub use lock::{LockError, LockFile};
pub use lost::{Lost, end_lost};
pub use peer::{
    TcpPeer, effective_uid, has_hung_up, is_open_below, owner_of_socket, peer_of_socket, tcp_peer,
};
pub use signal::Signal;
pub use system::wait_for_removal;

pub use libc::{EAGAIN, EINVAL, EPIPE};
