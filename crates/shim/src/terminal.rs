//! The agent's pseudo-terminal, what it shows, and what is typed into it.

use mcp_restart_process::terminal::{self, Size};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// More than this in the queue, and no further input is read from whoever types.
const INPUT_MAX: usize = 64 * 1024;
/// The largest terminal: what it shows is kept in memory.
const LARGEST: Size = Size { rows: 500, columns: 1000 };

/// A terminal that an agent runs in.
pub(crate) struct Terminal {
    master: File,
    /// Held so that the terminal does not hang up while the agent lives, whatever it closes.
    slave: OwnedFd,
    size: Size,
    parser: vt100::Parser,
    input: VecDeque<u8>,
}

impl Terminal {
    pub(crate) fn open(size: Size) -> io::Result<Self> {
        let size = within_limits(size);
        let pair = terminal::open(size)?;
        Ok(Self {
            master: pair.master.into(),
            slave: pair.slave,
            size,
            parser: parser(size),
            input: VecDeque::new(),
        })
    }

    /// What the agent gets as 0, 1 and 2.
    pub(crate) fn slave(&self) -> BorrowedFd<'_> {
        self.slave.as_fd()
    }

    pub(crate) fn master(&self) -> BorrowedFd<'_> {
        self.master.as_fd()
    }

    /// Reads output and keeps up with what the terminal shows.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.master.read(buffer)?;
        let bytes = buffer.get(..read).unwrap_or_default();
        // The bytes are the agent's, the parser is not ours: a fault in it must not end the agent.
        if catch_unwind(AssertUnwindSafe(|| self.parser.process(bytes))).is_err() {
            self.parser = parser(self.size);
        }
        Ok(read)
    }

    /// The bytes that make a terminal show what this one shows.
    pub(crate) fn picture(&self) -> Vec<u8> {
        let screen = self.parser.screen();
        let buffer = if screen.alternate_screen() { "\x1b[?1049h" } else { "\x1b[?1049l" };
        let state = catch_unwind(AssertUnwindSafe(|| screen.state_formatted())).unwrap_or_default();
        [buffer.as_bytes(), state.as_bytes()].concat()
    }

    /// Gives it another size; the agent is told if that is one.
    pub(crate) fn resize(&mut self, size: Size) {
        let size = within_limits(size);
        if size == self.size || terminal::set_size(&self.master, size).is_err() {
            return;
        }
        self.size = size;
        let (rows, columns) = numbers(size);
        if catch_unwind(AssertUnwindSafe(|| self.parser.set_size(rows, columns))).is_err() {
            self.parser = parser(size);
        }
    }

    /// Takes what was typed; written as soon as there is room.
    pub(crate) fn type_in(&mut self, bytes: &[u8]) {
        self.input.extend(bytes);
        self.flush();
    }

    /// Writes as much as there is room for.
    pub(crate) fn flush(&mut self) {
        while !self.input.is_empty() {
            let (next, _) = self.input.as_slices();
            match self.master.write(next) {
                Ok(written) => drop(self.input.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Nobody has the terminal open any more.
                Err(_) => self.input.clear(),
            }
        }
    }

    /// Whether something waits for room.
    pub(crate) fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// Whether whoever types has to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.input.len() > INPUT_MAX
    }
}

fn parser(size: Size) -> vt100::Parser {
    let (rows, columns) = numbers(size);
    // No scrollback: the log has it, and a thousand lines would cost seven megabytes.
    vt100::Parser::new(rows, columns, 0)
}

fn numbers(size: Size) -> (NonZeroU16, NonZeroU16) {
    let number = |number| NonZeroU16::new(number).unwrap_or(NonZeroU16::MIN);
    (number(size.rows), number(size.columns))
}

fn within_limits(size: Size) -> Size {
    Size { rows: size.rows.clamp(1, LARGEST.rows), columns: size.columns.clamp(1, LARGEST.columns) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcp_restart_process::poll::{Watch, wait};

    #[test]
    fn the_picture_shows_what_was_drawn() {
        let mut terminal = Terminal::open(Size { rows: 4, columns: 20 }).unwrap();
        let mut agent = File::from(terminal.slave().try_clone_to_owned().unwrap());
        agent.write_all(b"\x1b[?1049h\x1b[2;3Hhello").unwrap();
        let mut buffer = [0; 256];
        terminal.read(&mut buffer).unwrap();
        let mut copy = parser(terminal.size);
        copy.process(&terminal.picture());
        assert_eq!(copy.screen().contents(), terminal.parser.screen().contents());
        assert!(copy.screen().contents().contains("  hello"));
        assert!(copy.screen().alternate_screen());
    }

    #[test]
    fn no_size_is_refused_and_none_is_boundless() {
        for (rows, columns) in [(0, 0), (1, 1), (u16::MAX, u16::MAX)] {
            let mut terminal = Terminal::open(Size { rows: 24, columns: 80 }).unwrap();
            terminal.resize(Size { rows, columns });
            assert_eq!(terminal.size, within_limits(Size { rows, columns }));
        }
    }

    #[test]
    fn a_long_paste_waits_for_room_and_arrives_whole() {
        let mut terminal = Terminal::open(Size { rows: 24, columns: 80 }).unwrap();
        let mut agent = File::from(terminal.slave().try_clone_to_owned().unwrap());
        // Lines, as a terminal that is not in raw mode cuts longer ones.
        let paste = "a line of input\n".repeat(16 * 1024);
        terminal.type_in(paste.as_bytes());
        assert!(terminal.is_full());
        let mut received = Vec::new();
        let mut buffer = [0; 4096];
        while received.len() < paste.len() {
            let slave = terminal.slave();
            let watches = [
                Watch { descriptor: slave, read: true, write: false },
                Watch { descriptor: terminal.master(), read: true, write: terminal.has_input() },
            ];
            let ready = wait(&watches, None).unwrap();
            if ready[0].read {
                let read = agent.read(&mut buffer).unwrap();
                received.extend_from_slice(&buffer[..read]);
            }
            if ready[1].write {
                terminal.flush();
            }
            if ready[1].read {
                // The echo.
                let _ = terminal.read(&mut buffer);
            }
        }
        assert!(received == paste.as_bytes());
    }
}
