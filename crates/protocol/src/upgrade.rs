//! What is said after a hello with [`Verb::Upgrade`](crate::hello::Verb::Upgrade).
//!
//! ```text
//!  command                                   daemon
//!    │ Ask{path} ────────────────────────────► │ may it?
//!    │ ◄──────────── Offer, or {"error": …} ── │ goes on as before
//!    │ asks the program on disk to check       │
//!    │ Leave{leave: true} ───────────────────► │ refuses new work, lets what is under way end
//!    │ ◄────────── Leaving, or {"error": …} ── │
//!    │ ◄─────────────────────── end of stream  │ exits with LEFT_STATUS, its lock given up
//!    │        or ◄──────────── {"error": …} ── │ was ended meanwhile: stops everything instead
//! ```
//!
//! What the program on disk prints when it is asked to check, and would take the daemon's place, is here too: by
//! that line, and not by an exit status alone, a daemon's program is known.
//!
//! Each message is a length as a little-endian `u32` and JSON. Every version reads those of every other:
//! fields are added, and none changes its meaning or goes away.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The exit status of a daemon that made way for its successor.
pub const LEFT_STATUS: u8 = 75;

/// Asks whether, and with what, the daemon would make way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Id of the restart path taken.
    pub path: String,
}

/// What whoever upgrades a daemon has to know of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Offer {
    /// The daemon's version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Where its program is on disk: what is there now is the successor's.
    pub program: SystemText,
    /// The config file that it serves.
    pub config_file: SystemText,
    /// Its state dir.
    pub state_dir: SystemText,
    /// The service manager that starts the successor; without one, whoever asks has to.
    pub manager: Option<String>,
    /// How the successor is to be started; never told to an agent.
    pub launch: Option<Launch>,
}

/// How a daemon was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Launch {
    /// The arguments, without the name of the program.
    pub arguments: Vec<SystemText>,
    /// The working directory, if there still is one.
    pub cwd: Option<SystemText>,
    /// The environment.
    pub environment: Vec<(SystemText, SystemText)>,
}

/// The word on which the daemon makes way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leave {
    /// `false` changes nothing.
    pub leave: bool,
}

/// The daemon's answer to it. The connection stays open until it is gone. Without a service manager it
/// stays where it is if the connection ends before that: then nobody would start its successor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// Whether it makes way.
    pub leaving: bool,
}

/// The line that a daemon's program prints first when it accepts config and state.
pub fn acceptance(version: &str, config_file: &Path, state_dir: &Path) -> String {
    format!("mcp-restartd {version} accepts {} and {}", config_file.display(), state_dir.display())
}

/// The version of the daemon's program that printed this, if its first line is an acceptance.
pub fn accepting_version(printed: &str) -> Option<&str> {
    let (version, _) = printed.lines().next()?.strip_prefix("mcp-restartd ")?.split_once(" accepts ")?;
    (!version.is_empty() && !version.contains(' ')).then_some(version)
}

/// A path, an argument or a variable: any bytes, as text. In JSON it is itself but for `%`, and for what
/// is no UTF-8, of which each byte is `%` and two hex digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemText(pub OsString);

impl<T: AsRef<OsStr>> From<T> for SystemText {
    fn from(text: T) -> Self {
        Self(text.as_ref().to_owned())
    }
}

impl Serialize for SystemText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&escape(self.0.as_bytes()))
    }
}

impl<'de> Deserialize<'de> for SystemText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = unescape(&text).ok_or_else(|| D::Error::custom("`%` without two hex digits"))?;
        Ok(Self(OsString::from_vec(bytes)))
    }
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(&chunk.valid().replace('%', "%25"));
        for byte in chunk.invalid() {
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut pieces = text.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn the_texts_of_an_upgrade_never_change() {
        let offer = Offer {
            version: "1.2.3".into(),
            pid: 7,
            program: "/bin/d".into(),
            config_file: "/c".into(),
            state_dir: "/s".into(),
            manager: Some("systemd".into()),
            launch: Some(Launch {
                arguments: vec!["--no-bridge".into()],
                cwd: Some("/".into()),
                environment: vec![("A".into(), SystemText(OsString::from_vec(b"50%\xff".to_vec())))],
            }),
        };
        let text = json!({
            "version": "1.2.3",
            "pid": 7,
            "program": "/bin/d",
            "configFile": "/c",
            "stateDir": "/s",
            "manager": "systemd",
            "launch": { "arguments": ["--no-bridge"], "cwd": "/", "environment": [["A", "50%25%ff"]] },
        });
        assert_eq!(serde_json::to_value(&offer).unwrap(), text);
        assert_eq!(serde_json::from_value::<Offer>(text).unwrap(), offer);
        let ask = serde_json::to_value(Ask { path: "ctl_upgrade".into() }).unwrap();
        assert_eq!(ask, json!({ "path": "ctl_upgrade" }));
        assert_eq!(serde_json::to_value(Leave { leave: true }).unwrap(), json!({ "leave": true }));
        assert_eq!(serde_json::to_value(Leaving { leaving: true }).unwrap(), json!({ "leaving": true }));
    }

    #[test]
    fn a_daemons_program_is_known_by_the_line_that_it_accepts_with() {
        let line = acceptance("1.2.3", Path::new("/c"), Path::new("/s"));
        assert_eq!(line, "mcp-restartd 1.2.3 accepts /c and /s");
        assert_eq!(accepting_version(&format!("{line}\nwarning: x\n")), Some("1.2.3"));
        for other in
            ["", "\n", "mcp-restartd 1.2.3", "mcp-restartd accepts /c", "I am mcp-restartd 1 accepts "]
        {
            assert_eq!(accepting_version(other), None, "{other:?}");
        }
    }

    #[test]
    fn what_a_newer_version_adds_is_passed_over() {
        let text = json!({ "leaving": true, "in": "a hurry" });
        assert_eq!(serde_json::from_value::<Leaving>(text).unwrap(), Leaving { leaving: true });
    }

    proptest! {
        #[test]
        fn any_bytes_come_through(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(unescape(&escape(&bytes)), Some(bytes));
        }

        #[test]
        fn no_text_makes_it_panic(text in "(%|[0-9a-f]|\\PC){0,20}") {
            let _ = unescape(&text);
        }
    }
}
