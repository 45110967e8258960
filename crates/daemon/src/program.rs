//! Whether the program on disk is still the one that runs.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A program as it was when it was started.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    path: PathBuf,
    started: Mark,
}

/// By what a file is told from its replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Program {
    /// The program that is at `path` now and is about to be, or has just been, started.
    pub(crate) fn at(path: PathBuf) -> io::Result<Self> {
        let started = Mark::of(&fs::metadata(&path)?);
        Ok(Self { path, started })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What became of the file since, if anything: a part of a sentence.
    pub(crate) fn change(&self) -> Option<String> {
        match fs::metadata(&self.path) {
            Ok(now) if Mark::of(&now) == self.started => None,
            Ok(_) => Some(format!("{} was replaced since it was started", self.path.display())),
            Err(error) => Some(format!("{} cannot be found any more: {error}", self.path.display())),
        }
    }
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
    fn a_program_is_stale_once_its_file_is_replaced_or_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, "one").unwrap();
        let program = Program::at(path.clone()).unwrap();
        assert_eq!(program.change(), None);

        let next = folder.path().join("next");
        fs::write(&next, "two").unwrap();
        fs::rename(next, &path).unwrap();
        assert!(program.change().unwrap().contains("was replaced"));

        fs::remove_file(&path).unwrap();
        assert!(program.change().unwrap().contains("cannot be found"));
    }
}
