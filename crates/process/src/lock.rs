//! Lock files: one holder at a time, and everybody can read who it is.

use crate::alarm::Alarm;
use crate::file::has_name;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// A child that is just being started holds copies of our descriptors for a moment, so a lock that its
/// holder has released may still be taken.
const LINGERING: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_millis(1);

/// A lock that is held until this is dropped. The file stays: unlinking it would let two hold "it".
#[derive(Debug)]
pub struct LockFile {
    file: Flock<File>,
}

/// Why a lock was not taken.
#[derive(Debug)]
pub enum LockError {
    /// Somebody holds it.
    Held {
        /// The process id that the holder wrote down, if it can be read.
        holder: Option<u32>,
    },
    /// The file could not be opened, locked or written.
    Io(io::Error),
}

impl LockFile {
    /// Takes the lock, or says who holds it; waits some milliseconds at most.
    pub fn try_acquire(path: &Path) -> Result<Self, LockError> {
        let begin = Instant::now();
        let mut file = open(path).map_err(LockError::Io)?;
        loop {
            file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(locked) => return Self::sign(locked).map_err(LockError::Io),
                Err((file, Errno::EWOULDBLOCK)) if begin.elapsed() < LINGERING => file,
                Err((_, errno)) => return Err(Self::failure(path, errno)),
            };
            thread::sleep(PAUSE);
        }
    }

    /// Takes the lock at the moment when its holder gives it up, if that happens within so many seconds. For a
    /// process of one thread, which lets nobody else use its alarm.
    pub fn acquire(path: &Path, patience_seconds: u32) -> Result<Self, LockError> {
        let patience = Duration::from_secs(patience_seconds.into());
        let begin = Instant::now();
        let mut file = match Flock::lock(open(path).map_err(LockError::Io)?, FlockArg::LockExclusiveNonblock)
        {
            Ok(locked) => return Self::sign(locked).map_err(LockError::Io),
            Err((file, Errno::EWOULDBLOCK)) if patience_seconds > 0 => file,
            Err((_, errno)) => return Err(Self::failure(path, errno)),
        };
        let _alarm = Alarm::set(patience_seconds).map_err(LockError::Io)?;
        loop {
            file = match Flock::lock(file, FlockArg::LockExclusive) {
                Ok(locked) => return Self::sign(locked).map_err(LockError::Io),
                Err((file, Errno::EINTR)) if begin.elapsed() < patience => file,
                Err((_, errno)) => return Err(Self::failure(path, errno)),
            };
        }
    }

    /// Whether the lock has this name still. Where it has not, somebody else may hold what has.
    pub fn has_name(&self, path: &Path) -> bool {
        has_name(&self.file, path)
    }

    /// Who holds this lock now, if anybody does. An error says nothing about that: there may be a holder.
    pub fn holder(path: &Path) -> io::Result<Option<u32>> {
        // Without O_CREAT: asking must not make a lock file, nor wait for what is none.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(_) => Ok(None),
            Err((file, Errno::EWOULDBLOCK)) => {
                let holder = io::read_to_string(file)?;
                let holder = holder.trim().parse();
                holder.map(Some).map_err(|_| io::Error::other("its holder is not written down"))
            }
            Err((_, errno)) => Err(errno.into()),
        }
    }

    fn failure(path: &Path, errno: Errno) -> LockError {
        match errno {
            Errno::EWOULDBLOCK | Errno::EINTR => LockError::Held { holder: read_holder(path) },
            errno => LockError::Io(errno.into()),
        }
    }

    fn sign(file: Flock<File>) -> io::Result<Self> {
        // As long as any number is, so that one write replaces what an earlier holder wrote.
        file.write_all_at(format!("{:<10}\n", std::process::id()).as_bytes(), 0)?;
        Ok(Self { file })
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

fn read_holder(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held { holder: Some(pid) } => write!(f, "process {pid} holds the lock"),
            Self::Held { holder: None } => f.write_str("another process holds the lock"),
            Self::Io(_) => f.write_str("the lock file cannot be used"),
        }
    }
}

impl std::error::Error for LockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Held { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_lock_has_one_holder_who_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let lock = LockFile::try_acquire(&path).unwrap();
        let own = std::process::id();
        match LockFile::try_acquire(&path) {
            Err(LockError::Held { holder }) => assert_eq!(holder, Some(own)),
            other => panic!("{other:?}"),
        }
        assert_eq!(LockFile::holder(&path).unwrap(), Some(own));
        drop(lock);
        assert_eq!(LockFile::holder(&path).unwrap(), None);
        LockFile::try_acquire(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_waiter_gets_the_lock_when_it_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let lock = LockFile::try_acquire(&path).unwrap();
        let waiter = thread::spawn({
            let path = path.clone();
            move || LockFile::acquire(&path, 10).map(drop)
        });
        drop(lock);
        waiter.join().unwrap().unwrap();
    }

    #[test]
    fn a_lock_whose_file_was_removed_has_its_name_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let lock = LockFile::try_acquire(&path).unwrap();
        assert!(lock.has_name(&path));
        fs::remove_file(&path).unwrap();
        assert!(!lock.has_name(&path));
        let another = LockFile::try_acquire(&path).unwrap();
        assert!(another.has_name(&path) && !lock.has_name(&path));
    }

    #[test]
    fn asking_for_the_holder_makes_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        assert_eq!(LockFile::holder(&path).unwrap(), None);
        assert!(!path.exists());
    }
}
