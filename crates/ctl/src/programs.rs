//! Programs as a shell would find them.

use std::env;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Whether this is a file that may be executed.
pub(crate) fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Where a PATH leads to for a bare name.
pub(crate) fn on_path(name: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    path.map(env::split_paths)?.map(|folder| folder.join(name)).find(|file| is_program(file))
}
