//! The state dir: whose it is, the lock on it, and the socket in it.

use mcp_restart_config::lookup;
use mcp_restart_process::file::{create_folder, create_folder_with_parents};
use mcp_restart_process::{LockError, LockFile, effective_uid};
use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

/// A state dir of this user, with the lock that this daemon alone holds for life.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    lock: LockFile,
}

/// The daemon's listening socket; the file is removed with it.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    inode: (u64, u64),
}

/// Why a state dir cannot be used.
#[derive(Debug)]
pub(crate) enum StateDirError {
    /// It, or something in it, cannot be created, read or written.
    Io {
        /// What was tried: `create`, `lock`, `listen on`, …
        tried: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Something else has this name.
    NotAFolder(PathBuf),
    /// It, or the symbolic link that leads to it, belongs to somebody else.
    Foreign {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// Others may write to it.
    Writable {
        /// The folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another daemon serves it.
    Held {
        /// The folder.
        path: PathBuf,
        /// That daemon's process id, if it could be read.
        pid: Option<u32>,
    },
    /// The path of its socket is longer than the system allows.
    SocketPathTooLong {
        /// The socket.
        path: PathBuf,
        /// The longest path in bytes that the system allows.
        limit: usize,
    },
    /// What has the socket's name is no socket.
    InTheWay(PathBuf),
    /// What has the lock's name is no regular file.
    NotALock(PathBuf),
}

/// What the other parts of the daemon and the shims write into.
const FOLDERS: [&str; 4] = ["handoff", "logs", "mcp-config", "run"];

impl StateDir {
    /// Creates the folder if need be, checks whose it is and takes its lock.
    pub(crate) fn open(path: &Path) -> Result<Self, StateDirError> {
        create(path)?;
        let lock = take(path)?;
        create_folders(path)?;
        Ok(Self { path: path.to_owned(), lock })
    }

    /// Puts back what somebody has removed of the folder. Fails if another daemon has taken it meanwhile, or if what
    /// it lay in is gone as well.
    pub(crate) fn put_back(&mut self) -> Result<(), StateDirError> {
        if !self.lock.has_name(&lock_file(&self.path)) {
            create_folder(&self.path).map_err(|source| {
                let path = self.path.clone();
                StateDirError::Io { tried: "create", path, source }
            })?;
            self.lock = take(&self.path)?;
        }
        create_folders(&self.path)
    }

    /// Whether [`StateDir::open`] and [`StateDir::listen`] would accept this folder, if no other daemon served
    /// it. Changes nothing; one that is not there yet is fine.
    pub(crate) fn check(path: &Path) -> Result<(), StateDirError> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => drop(examine(path)?),
        }
        examine_lock(&lock_file(path))?;
        for folder in FOLDERS.map(|name| path.join(name)) {
            if fs::symlink_metadata(&folder).is_ok() {
                examine(&folder)?;
            }
        }
        let socket = socket_of(path)?;
        match fs::symlink_metadata(&socket) {
            Ok(found) if !found.file_type().is_socket() => Err(StateDirError::InTheWay(socket)),
            _ => Ok(()),
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Listens on the daemon's socket. One that a dead daemon left is replaced: its lock is ours.
    pub(crate) fn listen(&self) -> Result<(UnixListener, Socket), StateDirError> {
        let path = socket_of(&self.path)?;
        let failed = |tried| {
            let path = path.clone();
            move |source| StateDirError::Io { tried, path, source }
        };
        match fs::symlink_metadata(&path) {
            Ok(found) if !found.file_type().is_socket() => return Err(StateDirError::InTheWay(path)),
            Ok(_) => fs::remove_file(&path).map_err(failed("remove the stale"))?,
            Err(_) => {}
        }
        // Between these calls the folder's own mode keeps others out.
        let listener = UnixListener::bind(&path).map_err(failed("listen on"))?;
        fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(failed("close to others"))?;
        let inode = inode_of(&path).map_err(failed("examine"))?;
        Ok((listener, Socket { path, inode }))
    }
}

impl Socket {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it has its name still.
    pub(crate) fn is_there(&self) -> bool {
        inode_of(&self.path).is_ok_and(|inode| inode == self.inode)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn lock_file(state_dir: &Path) -> PathBuf {
    state_dir.join("mcp-restartd.lock")
}

/// The lock of a folder that is this user's, and now closed to others.
fn take(state_dir: &Path) -> Result<LockFile, StateDirError> {
    if examine(state_dir)? & 0o077 != 0 {
        fs::set_permissions(state_dir, Permissions::from_mode(0o700)).map_err(|source| {
            let path = state_dir.to_owned();
            StateDirError::Io { tried: "close to others", path, source }
        })?;
    }
    let file = lock_file(state_dir);
    examine_lock(&file)?;
    LockFile::try_acquire(&file).map_err(|error| match error {
        LockError::Held { holder } => StateDirError::Held { path: state_dir.to_owned(), pid: holder },
        LockError::Io(source) => StateDirError::Io { tried: "lock", path: file, source },
    })
}

fn create_folders(state_dir: &Path) -> Result<(), StateDirError> {
    for folder in FOLDERS.map(|name| state_dir.join(name)) {
        create(&folder)?;
        examine(&folder)?;
    }
    Ok(())
}

fn create(folder: &Path) -> Result<(), StateDirError> {
    create_folder_with_parents(folder).map_err(|source| match fs::metadata(folder) {
        Ok(found) if !found.is_dir() => StateDirError::NotAFolder(folder.to_owned()),
        _ => StateDirError::Io { tried: "create", path: folder.to_owned(), source },
    })
}

/// The permission bits of a folder that this user alone decides about.
fn examine(path: &Path) -> Result<u32, StateDirError> {
    let failed = |source| StateDirError::Io { tried: "examine", path: path.to_owned(), source };
    // Whoever owns the link decides where it leads.
    check_owner(path, fs::symlink_metadata(path).map_err(failed)?.uid())?;
    let folder = fs::metadata(path).map_err(failed)?;
    if !folder.is_dir() {
        return Err(StateDirError::NotAFolder(path.to_owned()));
    }
    check_owner(path, folder.uid())?;
    let mode = folder.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(StateDirError::Writable { path: path.to_owned(), mode });
    }
    Ok(mode)
}

/// Opening a fifo would wait, and what a lock is written into must keep it.
fn examine_lock(path: &Path) -> Result<(), StateDirError> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(StateDirError::NotALock(path.to_owned()));
    }
    Ok(())
}

fn socket_of(state_dir: &Path) -> Result<PathBuf, StateDirError> {
    let path = lookup::socket(state_dir);
    match SocketAddr::from_pathname(&path) {
        Ok(_) => Ok(path),
        Err(_) => Err(StateDirError::SocketPathTooLong { path, limit: longest_socket_path() }),
    }
}

fn check_owner(path: &Path, uid: u32) -> Result<(), StateDirError> {
    if uid == effective_uid() { Ok(()) } else { Err(StateDirError::Foreign { path: path.to_owned(), uid }) }
}

fn inode_of(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Asks the system instead of naming a number that differs between systems.
fn longest_socket_path() -> usize {
    (1..4096).take_while(|length| SocketAddr::from_pathname("x".repeat(*length)).is_ok()).count()
}

impl StateDirError {
    /// What to do about it.
    pub(crate) fn hint(&self) -> String {
        const ELSEWHERE: &str = "name another with --state-dir, MCP_RESTART_STATE_DIR or stateDir";
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                format!("the state dir must be writable: {ELSEWHERE}")
            }
            Self::Io { .. } => format!("make it accessible, or {ELSEWHERE}"),
            Self::NotAFolder(_) => format!("move it away, or {ELSEWHERE}"),
            Self::Foreign { .. } => ELSEWHERE.to_owned(),
            Self::Writable { path, .. } => format!("chmod go-w {}", path.display()),
            Self::Held { .. } => {
                "one daemon serves a state dir: use it (mcp-restartctl status), or end it with mcp-restartctl down"
                    .to_owned()
            }
            Self::SocketPathTooLong { .. } => format!("use a shorter state dir: {ELSEWHERE}"),
            Self::InTheWay(_) | Self::NotALock(_) => "move it away".to_owned(),
        }
    }
}

impl fmt::Display for StateDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { tried, path, .. } => write!(f, "cannot {tried} {}", path.display()),
            Self::NotAFolder(path) => write!(
                f,
                "{} is not a folder, but has the name of the state dir or of a folder in it",
                path.display()
            ),
            Self::Foreign { path, uid } => {
                write!(f, "the folder {} belongs to another user (uid {uid})", path.display())
            }
            Self::Writable { path, mode } => {
                write!(f, "others can write to the folder {} (mode {mode:04o})", path.display())
            }
            Self::Held { path, pid: Some(pid) } => {
                write!(f, "another daemon (pid {pid}) serves the state dir {}", path.display())
            }
            Self::Held { path, pid: None } => {
                write!(f, "another daemon serves the state dir {}", path.display())
            }
            Self::SocketPathTooLong { path, limit } => write!(
                f,
                "the socket path {} has {} bytes, this system allows {limit}",
                path.display(),
                path.as_os_str().len()
            ),
            Self::NotALock(path) => {
                write!(f, "{} is not a regular file, but has the name of the daemon's lock", path.display())
            }
            Self::InTheWay(path) => {
                write!(f, "{} is not a socket, but has the name of the daemon's", path.display())
            }
        }
    }
}

impl std::error::Error for StateDirError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixStream;
    use tempfile::TempDir;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn what_it_creates_is_for_its_owner_alone() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("deep/state");
        let state_dir = StateDir::open(&path).unwrap();
        let (_listener, _socket) = state_dir.listen().unwrap();
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&lookup::socket(&path)), 0o600);
        assert_eq!(mode(&path.join("mcp-restartd.lock")), 0o600);
    }

    #[test]
    fn a_folder_that_others_can_read_is_closed_to_them() {
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        StateDir::open(folder.path()).unwrap();
        assert_eq!(mode(folder.path()), 0o700);
    }

    #[test]
    fn what_is_put_back_is_for_its_owner_alone_whoever_makes_the_folder_first() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("state");
        let mut state_dir = StateDir::open(&path).unwrap();
        for made_meanwhile in [false, true] {
            fs::remove_dir_all(&path).unwrap();
            if made_meanwhile {
                fs::create_dir(&path).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
            }
            state_dir.put_back().unwrap();
            assert_eq!((mode(&path), mode(&path.join("run"))), (0o700, 0o700));
            assert!(matches!(StateDir::open(&path), Err(StateDirError::Held { .. })));
        }
        fs::remove_dir_all(folder.path()).unwrap();
        assert!(matches!(state_dir.put_back(), Err(StateDirError::Io { .. })));
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_refused_and_left_as_it_is() {
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o770)).unwrap();
        let link = folder.path().with_extension("link");
        symlink(folder.path(), &link).unwrap();
        for path in [folder.path(), &link] {
            assert!(matches!(StateDir::open(path), Err(StateDirError::Writable { mode: 0o770, .. })));
        }
        fs::remove_file(link).unwrap();
        assert_eq!(mode(folder.path()), 0o770);
    }

    #[test]
    fn a_file_is_no_state_dir() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("state");
        fs::write(&path, "").unwrap();
        assert!(matches!(StateDir::open(&path), Err(StateDirError::NotAFolder(_))));
    }

    #[test]
    fn what_is_not_what_its_name_says_is_named_and_left_as_it_is() {
        for name in FOLDERS {
            let state = TempDir::new().unwrap();
            fs::write(state.path().join(name), "precious").unwrap();
            StateDir::check(state.path()).unwrap_err();
            let error = StateDir::open(state.path()).unwrap_err();
            assert!(matches!(&error, StateDirError::NotAFolder(path) if path.ends_with(name)), "{error}");
            assert_eq!(fs::read(state.path().join(name)).unwrap(), b"precious");
        }
        let state = TempDir::new().unwrap();
        fs::create_dir(state.path().join("mcp-restartd.lock")).unwrap();
        assert!(matches!(StateDir::open(state.path()), Err(StateDirError::NotALock(_))));
    }

    #[test]
    fn a_link_into_a_folder_that_others_can_write_to_is_refused() {
        let elsewhere = TempDir::new().unwrap();
        fs::set_permissions(elsewhere.path(), Permissions::from_mode(0o770)).unwrap();
        for name in FOLDERS {
            let state = TempDir::new().unwrap();
            symlink(elsewhere.path(), state.path().join(name)).unwrap();
            let error = StateDir::open(state.path()).unwrap_err();
            assert!(matches!(error, StateDirError::Writable { mode: 0o770, .. }), "{error}");
        }
    }

    #[test]
    fn the_second_daemon_is_told_who_serves() {
        let folder = TempDir::new().unwrap();
        let first = StateDir::open(folder.path()).unwrap();
        let error = StateDir::open(folder.path()).unwrap_err();
        assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
        drop(first);
        StateDir::open(folder.path()).unwrap();
    }

    #[test]
    fn a_check_refuses_what_a_start_would_and_changes_nothing() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("state");
        StateDir::check(&path).unwrap();
        assert!(!path.exists());
        let served = StateDir::open(&path).unwrap();
        StateDir::check(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o770)).unwrap();
        assert!(matches!(StateDir::check(&path), Err(StateDirError::Writable { .. })));
        assert_eq!(mode(&path), 0o770);
        let file = path.join("mcp-restartd.lock");
        assert!(matches!(StateDir::check(&file), Err(StateDirError::NotAFolder(_))));
        let long = folder.path().join("x".repeat(120));
        assert!(matches!(StateDir::check(&long), Err(StateDirError::SocketPathTooLong { .. })));
        drop(served);
    }

    #[test]
    fn a_stale_socket_is_replaced_and_ours_removed_at_the_end() {
        let folder = TempDir::new().unwrap();
        let path = lookup::socket(folder.path());
        drop(UnixListener::bind(&path).unwrap());
        let state_dir = StateDir::open(folder.path()).unwrap();
        let (listener, socket) = state_dir.listen().unwrap();
        UnixStream::connect(&path).unwrap();
        drop((listener, socket));
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_socket_is_not_removed() {
        let folder = TempDir::new().unwrap();
        let path = lookup::socket(folder.path());
        fs::write(&path, "precious").unwrap();
        let state_dir = StateDir::open(folder.path()).unwrap();
        assert!(matches!(state_dir.listen(), Err(StateDirError::InTheWay(_))));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_socket_path_over_the_limit_is_refused_with_its_length() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("x".repeat(120));
        let error = StateDir::open(&path).unwrap().listen().unwrap_err();
        let length = lookup::socket(&path).as_os_str().len();
        let message = error.to_string();
        assert!(message.contains(&format!("{length} bytes")), "{message}");
        assert!(matches!(error, StateDirError::SocketPathTooLong { limit: 100..=110, .. }));
    }
}
