//! Files that are replaced as a whole, and logs that never block who writes them.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Replaces a file: readers see the old bytes or the new ones, never a part. Mode 0600.
///
/// One process writes a path at a time. Nothing is synced: it survives a crash of ours, and on the usual
/// file systems one of the machine too.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = draft_of(path)?;
    let result =
        create(&draft).and_then(|mut file| file.write_all(bytes)).and_then(|()| fs::rename(&draft, path));
    if result.is_err() {
        // The draft may not exist; the first fault is the one to tell.
        let _ = fs::remove_file(&draft);
    }
    result
}

/// The bytes of a regular file. Whatever else has its name is an error and is not waited for.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a file to which output is appended, and makes it (0600) if it is not there.
///
/// A symbolic link is refused (`ELOOP`). What is not a regular file (a pipe, a device) answers
/// `WouldBlock` instead of making the writer wait.
pub fn open_log(path: &Path) -> io::Result<File> {
    // Also for reading: a pipe that nobody reads can be opened like this, and the last byte be seen.
    OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
}

/// Makes a folder (0700) in one that is there. One that has this name already is fine.
pub fn create_folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        created => created,
    }
}

/// The same, and what it lies in is made as well.
pub fn create_folder_with_parents(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Whether an open file has this name still: nobody has removed it, moved it away or put another in its place.
pub fn has_name(file: &File, path: &Path) -> bool {
    let of = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(own), Ok(named)) => of(own) == of(named),
        _ => false,
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

fn draft_of(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut draft = std::ffi::OsString::from(".");
    draft.push(name);
    draft.push(format!(".{}.draft", std::process::id()));
    Ok(path.with_file_name(draft))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_no_draft_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        write_atomically(&path, b"first").unwrap();
        write_atomically(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_replacement_that_fails_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in-the-way");
        fs::create_dir(&path).unwrap();
        write_atomically(&path, b"bytes").unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_log_that_is_a_symbolic_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("log");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        assert_eq!(open_log(&link).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }
}
