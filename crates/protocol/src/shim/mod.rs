//! The smaller protocol between a shim and its daemon, or somebody attached to its terminal.
//!
//! A shim outlives its daemon, so its words are frozen per number and decoded by number: each number has a
//! module of its own, and the newest is what this build's shims speak. A daemon that
//! started the shim speaks over the socket pair that the shim has as descriptor 0; a later daemon and
//! attached clients connect to `run/<id>.sock`. Both sides send a [`ShimHello`] first on either, and use the
//! shim's words from then on. A shim has one
//! daemon at a time: who started it, or the newest connection that sent [`ToShim::Describe`]. It alone may
//! send `Stop` and `Acknowledge`.
//!
//! Whatever its number, some things about a shim never change, so that a daemon that does not know its
//! words can still show and end its agent, and no second process is ever started beside it:
//!
//! - it holds `run/<id>.lock` for life; `run/<id>.json` says its number, what it started, and how that ended;
//! - the hello. Whoever has said nothing else is kept, whatever number it has, until the exit stands in
//!   `run/<id>.json`: by the end of that connection it is told that the agent has ended;
//! - SIGTERM ends the agent's whole tree (SIGTERM, [`SIGNAL_GRACE`], SIGKILL), then the shim itself, its exit
//!   left in `run/<id>.json`.

pub mod v1;

pub use v1::{FromShim, KeepChildren, Leftover, SHIM_FRAME_MAX, ShimExit, ShimFacts, ShimLaunch, ToShim};

use std::time::Duration;

/// The number that this build's shims speak.
pub const SHIM_PROTOCOL: u32 = v1::NUMBER;
/// How many bytes a hello has.
pub const SHIM_HELLO_LEN: usize = 16;
/// How long a shim that gets SIGTERM waits for its agent before SIGKILL: nobody named another time.
pub const SIGNAL_GRACE: Duration = Duration::from_secs(10);

/// How the line begins that a shim writes to the log when it starts an agent.
pub const START_MARKER: &str = "--- mcp-restart: generation ";

const MAGIC: [u8; 8] = *b"MCPRSHIM";

/// The first 16 bytes of either side: magic, protocol number, four zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShimHello {
    /// The sender's protocol number.
    pub protocol: u32,
}

impl ShimHello {
    /// The hello of this build.
    pub const OURS: Self = Self { protocol: SHIM_PROTOCOL };

    /// The bytes to send.
    pub fn to_bytes(self) -> [u8; SHIM_HELLO_LEN] {
        let mut bytes = [0; SHIM_HELLO_LEN];
        let fields = MAGIC.into_iter().chain(self.protocol.to_le_bytes());
        bytes.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
        bytes
    }

    /// Reads the bytes of the other side; `None` if they are not a shim's hello.
    pub fn from_bytes(bytes: [u8; SHIM_HELLO_LEN]) -> Option<Self> {
        let [m0, m1, m2, m3, m4, m5, m6, m7, p0, p1, p2, p3, ..] = bytes;
        ([m0, m1, m2, m3, m4, m5, m6, m7] == MAGIC)
            .then(|| Self { protocol: u32::from_le_bytes([p0, p1, p2, p3]) })
    }

    /// Whether this build knows the words of whoever sent it.
    pub fn is_understood(self) -> bool {
        self.protocol == v1::NUMBER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_of_a_shim_hello_never_changes() {
        let bytes = ShimHello { protocol: 3 }.to_bytes();
        assert_eq!(&bytes, b"MCPRSHIM\x03\0\0\0\0\0\0\0");
        assert_eq!(ShimHello::from_bytes(bytes), Some(ShimHello { protocol: 3 }));
        assert_eq!(ShimHello::from_bytes([0; 16]), None);
    }
}
