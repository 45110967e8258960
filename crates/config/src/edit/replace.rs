//! Replacing a file as a whole, one at a time.

use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// The mode of a new file: it may come to hold a token.
const NEW_MODE: u32 = 0o600;

/// A file that no other program of this kind changes as long as this value lives.
pub(super) struct Locked {
    /// The file itself, where its name is a symlink.
    target: PathBuf,
    lock: Flock<File>,
}

/// Locks an existing file, waiting for whoever has it locked.
///
/// The lock is on the file, and whoever replaces it leaves the next in line with the lock of a file that
/// has no name any more: then it is taken anew.
pub(super) fn lock(file: &Path) -> io::Result<Locked> {
    loop {
        let target = fs::canonicalize(file)?;
        let open = File::open(&target)?;
        let lock = Flock::lock(open, FlockArg::LockExclusive).map_err(|(_, errno)| io::Error::from(errno))?;
        let (locked, named) = (lock.metadata()?, fs::metadata(file)?);
        if (locked.dev(), locked.ino()) == (named.dev(), named.ino()) {
            return Ok(Locked { target, lock });
        }
    }
}

impl Locked {
    /// Gives the file a new content, at once and wholly; owner and mode stay.
    pub(super) fn replace(self, text: &str) -> io::Result<()> {
        let old = self.lock.metadata()?;
        write_beside(&self.target, text, |new| {
            let created = new.metadata()?;
            if (created.uid(), created.gid()) != (old.uid(), old.gid()) {
                fchown(new, Some(old.uid()), Some(old.gid()))?;
            }
            new.set_permissions(Permissions::from_mode(old.mode() & 0o7777))
        })
    }
}

/// Writes a new file; an error if there is one.
pub(super) fn create(file: &Path, text: &str) -> io::Result<()> {
    let mut new = OpenOptions::new().write(true).create_new(true).mode(NEW_MODE).open(file)?;
    let written = new.write_all(text.as_bytes());
    if written.is_err() {
        // Half a file is worse than none; the error that counts is the first one.
        let _ = fs::remove_file(file);
    }
    written
}

/// Writes a file, over one that is there.
pub(super) fn write(file: &Path, text: &str) -> io::Result<()> {
    match lock(file) {
        Ok(locked) => locked.replace(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => create(file, text),
        Err(error) => Err(error),
    }
}

/// Writes a file beside the target and renames it into its place.
fn write_beside(target: &Path, text: &str, prepare: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = target.with_file_name(name);
    let write = || {
        let mut new = OpenOptions::new().write(true).create_new(true).mode(NEW_MODE).open(&temporary)?;
        new.write_all(text.as_bytes())?;
        prepare(&new)?;
        new.sync_all()?;
        fs::rename(&temporary, target)
    };
    let written = write();
    if written.is_err() {
        // It may not exist; the error that counts is the first one.
        let _ = fs::remove_file(&temporary);
    }
    written
}
