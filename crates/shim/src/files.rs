//! What a shim leaves under `run/`: its socket, the lock that it holds for life, and the facts.

use mcp_restart_process::file::create_folder;
use mcp_restart_process::{Identity, LockFile, write_atomically};
use mcp_restart_protocol::shim::ShimExit;
use mcp_restart_protocol::timestamp::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The name under which the shim of an agent keeps its files: eight hex digits.
///
/// Agent names are unique also when case is ignored, so the case does not count here.
pub fn run_id(name: &str) -> String {
    let hash = name
        .to_ascii_lowercase()
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

/// The files of one shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFiles {
    /// Where it is talked to.
    pub socket: PathBuf,
    /// Held as long as it lives. The file stays.
    pub lock: PathBuf,
    /// What it knows: [`Facts`].
    pub facts: PathBuf,
}

impl RunFiles {
    /// The files of the shim with this id.
    pub fn new(state_dir: &Path, id: &str) -> Self {
        Self::in_folder(&run_dir(state_dir), id)
    }

    pub(crate) fn in_folder(run_dir: &Path, id: &str) -> Self {
        let file = |extension: &str| run_dir.join(format!("{id}.{extension}"));
        Self { socket: file("sock"), lock: file("lock"), facts: file("json") }
    }

    pub(crate) fn create_folder(&self) -> io::Result<()> {
        create_folder(self.lock.parent().ok_or(io::ErrorKind::InvalidInput)?)
    }

    /// All but the lock.
    pub(crate) fn remove(&self) {
        for file in [&self.socket, &self.facts] {
            let _ = fs::remove_file(file);
        }
    }
}

/// The folder of the shims' files.
pub fn run_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("run")
}

/// What a shim writes down about itself and its agent, for a daemon that comes when it is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// The shim's protocol number.
    pub protocol: u32,
    /// The agent's name.
    pub name: String,
    /// The number of this incarnation.
    pub generation: u64,
    /// From the launch.
    pub launch_hash: u64,
    /// The boot in which the two process ids mean something.
    pub boot_id: String,
    /// The shim.
    pub shim: RecordedProcess,
    /// The agent.
    pub agent: RecordedProcess,
    /// When the agent was started.
    pub started_at: Timestamp,
    /// Set when it ended and nothing of its tree is left.
    pub exit: Option<ShimExit>,
}

/// A process as it is written down; together with the boot it is an [`Identity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedProcess {
    /// Its id.
    pub pid: u32,
    /// When it started, in the system's own unit.
    pub start_time: u64,
}

impl Facts {
    /// The shim, by which one can see whether it still lives.
    pub fn shim_identity(&self) -> Identity {
        self.identity(self.shim)
    }

    /// The agent, by which one can see whether it still lives.
    pub fn agent_identity(&self) -> Identity {
        self.identity(self.agent)
    }

    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        write_atomically(path, &serde_json::to_vec(self)?)
    }

    fn identity(&self, process: RecordedProcess) -> Identity {
        Identity { pid: process.pid, start_time: process.start_time, boot_id: self.boot_id.clone() }
    }
}

/// What one shim has left, or holds.
#[derive(Debug)]
pub struct FoundShim {
    /// Its id.
    pub id: String,
    /// The process that holds its lock: it lives, whatever its facts say. Where that cannot be told it may live.
    pub lock: io::Result<Option<u32>>,
    /// What it wrote down, or why that cannot be read; none if it has written nothing.
    pub facts: Option<Result<Facts, FactsError>>,
}

impl FoundShim {
    /// Looks at what the shim with this id has left, or holds.
    pub fn look(state_dir: &Path, id: String) -> Self {
        let files = RunFiles::new(state_dir, &id);
        Self { id, lock: LockFile::holder(&files.lock), facts: read(&files.facts) }
    }

    /// Whether there is a shim, as far as can be told.
    pub fn may_live(&self) -> bool {
        !matches!(self.lock, Ok(None))
    }
}

/// Why a facts file cannot be read.
#[derive(Debug)]
pub struct FactsError {
    /// The file.
    pub file: PathBuf,
    source: io::Error,
}

/// Every shim under a state dir that lives or has left its facts; none if there is no such folder.
pub fn find_shims(state_dir: &Path) -> io::Result<Vec<FoundShim>> {
    let entries = match fs::read_dir(run_dir(state_dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut ids = BTreeSet::new();
    for entry in entries {
        let file = entry?.path();
        ids.extend(
            file.file_stem().and_then(|stem| stem.to_str()).filter(|id| is_run_id(id)).map(str::to_owned),
        );
    }
    let shims = ids.into_iter().map(|id| FoundShim::look(state_dir, id));
    Ok(shims.filter(|shim| shim.may_live() || shim.facts.is_some()).collect())
}

impl FactsError {
    /// Whether it was the system that failed, and not what is written.
    pub fn is_of_system(&self) -> bool {
        self.source.raw_os_error().is_some()
    }
}

fn read(file: &Path) -> Option<Result<Facts, FactsError>> {
    let read = || {
        // Anything else might make the reader wait.
        if !fs::symlink_metadata(file)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a file"));
        }
        serde_json::from_slice(&fs::read(file)?).map_err(io::Error::from)
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        read => Some(read.map_err(|source| FactsError { file: file.to_owned(), source })),
    }
}

fn is_run_id(text: &str) -> bool {
    text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl fmt::Display for FactsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read what a shim wrote down in {}", self.file.display())
    }
}

impl std::error::Error for FactsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_name_never_changes_and_knows_no_case() {
        assert_eq!(run_id(""), "811c9dc5");
        assert_eq!(run_id("foobar"), "bf9cf968");
        assert_eq!(run_id("FooBar"), run_id("foobar"));
    }

    #[test]
    fn facts_that_cannot_be_read_are_reported_beside_those_that_can() {
        let folder = tempfile::tempdir().unwrap();
        assert!(find_shims(folder.path()).unwrap().is_empty());
        fs::create_dir(run_dir(folder.path())).unwrap();
        let process = RecordedProcess { pid: 1, start_time: 2 };
        let facts = Facts {
            protocol: 1,
            name: "claude".to_owned(),
            generation: 3,
            launch_hash: u64::MAX,
            boot_id: "boot".to_owned(),
            shim: process,
            agent: process,
            started_at: Timestamp(4),
            exit: None,
        };
        facts.write(&RunFiles::new(folder.path(), "00000001").facts).unwrap();
        fs::write(RunFiles::new(folder.path(), "00000002").facts, "{").unwrap();
        fs::write(RunFiles::new(folder.path(), "00000002").lock, "7").unwrap();
        let held = LockFile::try_acquire(&RunFiles::new(folder.path(), "00000003").lock).unwrap();
        let found = find_shims(folder.path()).unwrap();
        let [good, bad, living] = &found[..] else { panic!("{found:?}") };
        assert_eq!(good.facts.as_ref().unwrap().as_ref().unwrap(), &facts);
        assert_eq!((&*bad.id, bad.may_live()), ("00000002", false));
        bad.facts.as_ref().unwrap().as_ref().unwrap_err();
        assert_eq!(living.lock.as_ref().unwrap(), &Some(std::process::id()));
        assert!(living.facts.is_none());
        drop(held);
    }
}
