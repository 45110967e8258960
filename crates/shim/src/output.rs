//! Where the agent's output comes from and where it goes.

use crate::log::Log;
use crate::terminal::Terminal;
use mcp_restart_process::descriptor::set_nonblocking;
use std::fs::File;
use std::io::{self, PipeReader, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

/// After the tree is empty no more than this is read: who is not of the tree may go on writing.
const LAST_BYTES_MAX: usize = 1024 * 1024;

/// The output of an agent.
pub(crate) struct Output {
    log: Log,
    source: Source,
    /// Whether something may still come.
    open: bool,
}

enum Source {
    Pipe(PipeReader),
    Terminal(Box<Terminal>),
}

impl Output {
    /// Output through a pipe; the other end is what the agent gets as 1 and 2.
    pub(crate) fn pipe(log: Log) -> io::Result<(Self, File)> {
        let (reader, writer) = io::pipe()?;
        set_nonblocking(&reader)?;
        let output = Self { log, source: Source::Pipe(reader), open: true };
        Ok((output, OwnedFd::from(writer).into()))
    }

    /// Output through a terminal.
    pub(crate) fn terminal_and(log: Log, terminal: Terminal) -> Self {
        Self { log, source: Source::Terminal(Box::new(terminal)), open: true }
    }

    /// The terminal, if the agent has one.
    pub(crate) fn terminal(&self) -> Option<&Terminal> {
        match &self.source {
            Source::Terminal(terminal) => Some(terminal),
            Source::Pipe(_) => None,
        }
    }

    pub(crate) fn terminal_mut(&mut self) -> Option<&mut Terminal> {
        match &mut self.source {
            Source::Terminal(terminal) => Some(terminal),
            Source::Pipe(_) => None,
        }
    }

    /// What to wait for, as long as something may come.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.open.then(|| match &self.source {
            Source::Pipe(reader) => reader.as_fd(),
            Source::Terminal(terminal) => terminal.master(),
        })
    }

    /// Moves what has come, a buffer full at most, into the log; returns it for those who watch. Empty
    /// when nothing is there.
    pub(crate) fn read<'a>(&mut self, buffer: &'a mut [u8]) -> &'a [u8] {
        let read = match &mut self.source {
            Source::Pipe(reader) => reader.read(buffer),
            Source::Terminal(terminal) => terminal.read(buffer),
        };
        let read = match read {
            Ok(read) => {
                self.open = read > 0;
                read
            }
            Err(error) => {
                let later = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
                // A terminal ends with EIO.
                self.open = later.contains(&error.kind());
                0
            }
        };
        let bytes = buffer.get(..read).unwrap_or_default();
        self.log.write(bytes);
        bytes
    }

    /// The tree is empty: takes what it has written last, and then no more.
    pub(crate) fn finish(&mut self, buffer: &mut [u8], mut show: impl FnMut(&[u8])) {
        let mut total = 0;
        while self.open && total < LAST_BYTES_MAX {
            let bytes = self.read(buffer);
            if bytes.is_empty() {
                break;
            }
            total += bytes.len();
            show(bytes);
        }
        self.open = false;
    }

    /// When [`Output::due`] is.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.log.wake_at()
    }

    /// Tells in the log what could not be written to it, once there is room.
    pub(crate) fn due(&mut self, now: Instant) {
        self.log.due(now);
    }

    /// Adds a line of our own to the log.
    pub(crate) fn note(&mut self, text: &str) {
        self.log.note(text);
    }
}
