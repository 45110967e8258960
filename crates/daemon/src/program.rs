//! Whether the program on disk is still the one that runs.

use serde::{Deserialize, Serialize};
use std::env;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A program as it was when it was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    path: PathBuf,
    started: Mark,
}

/// What became of a program on disk: a part of a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// There is another one now.
    Replaced(String),
    /// There is none.
    Missing(String),
}

/// By what a file is told from its replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Program {
    /// The program that this process runs, where it was found when it was started: a symbolic link that led to
    /// it is kept, since the next version is put behind it.
    pub(crate) fn own() -> io::Result<Self> {
        let executable = Self::at(env::current_exe()?)?;
        let called = env::args_os().next().and_then(|name| {
            found_as(&name, &env::current_dir().ok()?, &env::var_os("PATH").unwrap_or_default())
        });
        let called = called.and_then(|path| Self::at(path).ok());
        Ok(called.filter(|called| called.started == executable.started).unwrap_or(executable))
    }

    /// The program that is at `path` now and is about to be, or has just been, started.
    pub(crate) fn at(path: PathBuf) -> io::Result<Self> {
        let started = Mark::of(&fs::metadata(&path)?);
        Ok(Self { path, started })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What became of the file since, if anything.
    pub(crate) fn change(&self) -> Option<Change> {
        let path = self.path.display();
        match fs::metadata(&self.path) {
            Ok(now) if Mark::of(&now) == self.started => None,
            Ok(_) => Some(Change::Replaced(format!("{path} was replaced since it was started"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Some(Change::Missing(format!("{path} is not there any more")))
            }
            Err(error) => Some(Change::Missing(format!("{path} cannot be found any more: {error}"))),
        }
    }
}

/// Where a program with this name was found, if it was found as a shell finds it.
fn found_as(name: &OsStr, cwd: &Path, path: &OsStr) -> Option<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(cwd.join(name));
    }
    env::split_paths(path)
        .map(|folder| folder.join(name))
        .find(|found| found.is_absolute() && found.is_file())
}

impl Mark {
    fn of(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_where_a_shell_found_it() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::write(&program, "").unwrap();
        let path = env::join_paths([Path::new("/nowhere"), folder.path()]).unwrap();
        let found = |name: &str| found_as(name.as_ref(), Path::new("/cwd"), &path);
        assert_eq!(found("program"), Some(program));
        assert_eq!(found("./program"), Some("/cwd/./program".into()));
        assert_eq!(found("/bin/program"), Some("/bin/program".into()));
        assert_eq!(found("other"), None);
    }

    #[test]
    fn a_program_is_stale_once_its_file_is_replaced_or_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, "one").unwrap();
        let program = Program::at(path.clone()).unwrap();
        assert_eq!(program.change(), None);

        let next = folder.path().join("next");
        fs::write(&next, "two").unwrap();
        fs::rename(next, &path).unwrap();
        assert!(matches!(program.change(), Some(Change::Replaced(_))));

        fs::remove_file(&path).unwrap();
        assert!(matches!(program.change(), Some(Change::Missing(_))));
    }
}
