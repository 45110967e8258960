//! The fixed bytes that both sides of the daemon's socket send before anything else.
//!
//! ```text
//!  0        8         12     13      16                 48       64
//!  ├ magic ─┼ protocol ┼ verb ┼ zeros ┼ program version ─┼ zeros ─┤
//! ```
//!
//! The layout never changes. [`Verb::Talk`] goes on with frames of [`PROTOCOL`] and is refused when the
//! numbers differ; the other verbs go on with JSON texts in frames, which every version understands, so that
//! a new command can still ask an old daemon how it is, have it make way, and end it.

use std::fmt;

/// The number of the protocol that `talk` speaks; bumped by every change of a wire type.
pub const PROTOCOL: u32 = 3;
/// How many bytes a hello has.
pub const HELLO_LEN: usize = 64;

const MAGIC: [u8; 8] = *b"MCPRSTRT";
const VERSION_AT: usize = 16;
const VERSION_LEN: usize = 32;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Verb {
    /// Requests and answers of this protocol number.
    Talk = 1,
    /// One JSON text about the daemon.
    Status = 2,
    /// Stop everything and end.
    Shutdown = 3,
    /// Make way for the program that is on disk now, and leave every agent running: see
    /// [`crate::upgrade`].
    Upgrade = 4,
    /// A bridge announces itself and hands its listening socket over.
    Bridge = 5,
}

/// One side's hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The protocol number of the sender's `talk`.
    pub protocol: u32,
    /// What the connection is for; the daemon repeats the client's.
    pub verb: Verb,
    /// The sender's program version, at most 32 bytes.
    pub version: String,
}

/// Why 64 bytes are not a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HelloError {
    /// The other side speaks something else.
    NotOurs,
    /// A verb of a newer version.
    UnknownVerb(u8),
}

impl Hello {
    /// The hello of this build.
    pub fn ours(verb: Verb) -> Self {
        Self { protocol: PROTOCOL, verb, version: env!("CARGO_PKG_VERSION").to_owned() }
    }

    /// The bytes to send.
    pub fn to_bytes(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        let fields =
            MAGIC.iter().copied().chain(self.protocol.to_le_bytes()).chain([self.verb as u8, 0, 0, 0]);
        let version = self.version.bytes().take(VERSION_LEN);
        bytes.iter_mut().zip(fields.chain(version)).for_each(|(to, from)| *to = from);
        bytes
    }

    /// Reads the bytes of the other side.
    pub fn from_bytes(bytes: &[u8; HELLO_LEN]) -> Result<Self, HelloError> {
        let [m0, m1, m2, m3, m4, m5, m6, m7, p0, p1, p2, p3, verb, ..] = *bytes;
        if [m0, m1, m2, m3, m4, m5, m6, m7] != MAGIC {
            return Err(HelloError::NotOurs);
        }
        let verb = match verb {
            1 => Verb::Talk,
            2 => Verb::Status,
            3 => Verb::Shutdown,
            4 => Verb::Upgrade,
            5 => Verb::Bridge,
            other => return Err(HelloError::UnknownVerb(other)),
        };
        let version: Vec<u8> =
            bytes.iter().skip(VERSION_AT).take(VERSION_LEN).copied().take_while(|byte| *byte != 0).collect();
        Ok(Self {
            protocol: u32::from_le_bytes([p0, p1, p2, p3]),
            verb,
            version: String::from_utf8_lossy(&version).into_owned(),
        })
    }
}

impl fmt::Display for HelloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOurs => f.write_str("the other side does not speak the protocol of mcp-restart"),
            Self::UnknownVerb(verb) => {
                write!(f, "the other side asks for verb {verb}, which this version does not know")
            }
        }
    }
}

impl std::error::Error for HelloError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_layout_of_a_hello_never_changes() {
        let hello = Hello { protocol: 7, verb: Verb::Shutdown, version: "1.2.3".into() };
        let mut want = [0; HELLO_LEN];
        want[..8].copy_from_slice(b"MCPRSTRT");
        want[8] = 7;
        want[12] = 3;
        want[16..21].copy_from_slice(b"1.2.3");
        assert_eq!(hello.to_bytes(), want);
        assert_eq!(Hello::from_bytes(&want), Ok(hello));
    }

    #[test]
    fn a_verb_of_a_newer_version_is_named() {
        let mut bytes = Hello::ours(Verb::Talk).to_bytes();
        bytes[12] = 99;
        assert_eq!(Hello::from_bytes(&bytes), Err(HelloError::UnknownVerb(99)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), HELLO_LEN)) {
            let bytes: [u8; HELLO_LEN] = bytes.try_into().unwrap();
            let _ = Hello::from_bytes(&bytes);
        }
    }
}
