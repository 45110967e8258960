//! Log lines: always to `<stateDir>/mcp-restart.log`, and to stderr unless that is the same file.
//!
//! `mcp-restartctl up` points stderr at the log file, a service manager at its journal, a person at a terminal.
//! A line that stderr cannot take at once (a stopped terminal, a pipe that nobody reads) goes to the file
//! alone: no reader of the log may hold up the supervisor.

use crate::arguments::LogFormat;
use mcp_restart_process::file::{has_name, open_log};
use mcp_restart_process::poll::{Watch, wait};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;
use tracing_subscriber::EnvFilter;

/// The size in bytes at which the log is set aside as `mcp-restart.log.1`.
const LOG_MAX: u64 = 10 * 1024 * 1024;

/// The log file of the daemon and its bridge.
pub(crate) fn log_file(state_dir: &Path) -> PathBuf {
    state_dir.join("mcp-restart.log")
}

/// Opens the log file for appending; the bridge's stderr is another such descriptor.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let refused = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    match open_log(path) {
        Err(_) if path.is_symlink() => refused("it is a symbolic link"),
        Ok(file) if !file.metadata()?.is_file() => refused("it is not a regular file"),
        opened => opened,
    }
}

/// Sends every event of this process to the log. Called once.
pub(crate) fn start(path: &Path, format: LogFormat) -> io::Result<()> {
    let file = open(path)?;
    let stderr = (!is_same_file(&file)?).then(io::stderr);
    let log = Log { path: path.to_owned(), file, stderr };
    let filter = EnvFilter::builder()
        .with_regex(false)
        .with_env_var("MCP_RESTART_LOG")
        .with_default_directive(tracing::Level::INFO.into());
    let (filter, unusable) = match filter.try_from_env() {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    };
    let subscriber = tracing_subscriber::fmt()
        .with_writer(Mutex::new(log))
        .with_ansi(false)
        .log_internal_errors(false)
        .with_env_filter(filter);
    match format {
        LogFormat::Text => subscriber.init(),
        LogFormat::Json => subscriber.json().init(),
    }
    // Nobody reads the daemon's stderr for long, and what went wrong must not be lost with it.
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    // The filter that is not set at all is the default one, and no error.
    if let Some(error) = unusable.filter(|_| std::env::var_os("MCP_RESTART_LOG").is_some()) {
        tracing::warn!("MCP_RESTART_LOG is not used: {error}");
    }
    Ok(())
}

struct Log {
    path: PathBuf,
    file: File,
    stderr: Option<io::Stderr>,
}

impl Log {
    /// What somebody deleted or moved away is begun anew.
    fn reopen_if_taken_away(&mut self) {
        if !has_name(&self.file, &self.path)
            && let Ok(file) = open(&self.path)
        {
            self.file = file;
        }
    }

    fn rotate_if_full(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() < LOG_MAX {
            return Ok(());
        }
        let mut aside = self.path.clone().into_os_string();
        aside.push(".1");
        fs::rename(&self.path, aside)?;
        self.file = open(&self.path)?;
        Ok(())
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(stderr) = self.stderr.as_mut().filter(|stderr| takes_a_line(stderr)) {
            // Its terminal may be gone; the file has the line.
            let _ = stderr.write_all(line);
        }
        self.reopen_if_taken_away();
        // A log that cannot be rotated is still written to.
        let _ = self.rotate_if_full();
        self.file.write_all(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn takes_a_line(stderr: &io::Stderr) -> bool {
    let watch = Watch { descriptor: stderr.as_fd(), read: false, write: true };
    wait(&[watch], Some(Instant::now()))
        .is_ok_and(|ready| ready.iter().all(|ready| ready.write && !ready.hang_up))
}

fn is_same_file(file: &File) -> io::Result<bool> {
    let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() else { return Ok(true) };
    let (stderr, log) = (File::from(stderr).metadata()?, file.metadata()?);
    Ok((stderr.dev(), stderr.ino()) == (log.dev(), log.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn log_in(folder: &Path) -> Log {
        let path = log_file(folder);
        Log { file: open(&path).unwrap(), path, stderr: None }
    }

    #[test]
    fn the_log_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let log = log_in(folder.path());
        assert_eq!(log.file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_log_that_somebody_deleted_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log_in(folder.path());
        log.write_all(b"one\n").unwrap();
        fs::remove_file(&log.path).unwrap();
        log.write_all(b"two\n").unwrap();
        assert_eq!(fs::read(&log.path).unwrap(), b"two\n");
    }

    #[test]
    fn a_full_log_is_set_aside_and_none_of_its_lines_lost() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log_in(folder.path());
        log.file.set_len(LOG_MAX).unwrap();
        log.write_all(b"first line of the new file\n").unwrap();
        assert_eq!(fs::read(&log.path).unwrap(), b"first line of the new file\n");
        assert_eq!(fs::metadata(folder.path().join("mcp-restart.log.1")).unwrap().len(), LOG_MAX);
    }
}
