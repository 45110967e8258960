//! Every system call of mcp-restart that acts, and all of its unsafe code.
//!
//! | module | what it does |
//! |---|---|
//! | [`child`] | starts the daemon's own children: shims and the bridge |
//! | [`preflight`] | tells what a launch would fail of, before anything is touched |
//! | [`launch`] | starts an agent: fork, a clean slate, exec, errors told apart |
//! | [`tree`] | finds and signals what is below a process |
//! | [`identity`] | tells a process from a later one with the same number |
//! | [`session`] | what a shim does to itself: session, subreaper, signals, reaping |
//! | [`lock`], [`file`] | locks with a holder, atomic replacement, logs that never block |
//! | [`descriptor`], [`poll`], [`terminal`] | passing descriptors, waiting for them, pseudo-terminals |
//! | [`limit`] | how many descriptors there may be |
//! | [`peer`] | who is at the other end of a connection |
//!
//! What starts or signals a process takes a [`RestartPath`](mcp_restart_paths::RestartPath): a way that
//! nobody registered does not compile.

#[cfg(not(target_os = "linux"))]
compile_error!("mcp-restart runs on Linux only so far: process trees and peers are found through /proc");

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
pub mod signal;
pub mod terminal;
pub mod tree;

mod facts;
#[path = "linux/mod.rs"]
mod system;

pub use child::{Child, Exit, Spawn, own_executable, spawn};
pub use descriptor::{receive_with_descriptor, send_with_descriptor};
pub use file::write_atomically;
pub use identity::{Identity, ancestors, boot_id};
pub use limit::{DescriptorLimit, limit_descriptors, raise_descriptor_limit};
pub use lock::{LockError, LockFile};
pub use lost::{Lost, end_lost};
pub use peer::{TcpPeer, effective_uid, has_hung_up, owner_of_inode, peer_of_socket, tcp_peer};
pub use signal::Signal;

pub use libc::{EAGAIN, EINVAL, EPIPE};
