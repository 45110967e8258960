//! The user's terminal: raw while attached, given back as it was.

use crate::problem::{Exit, Problem};
use rustix::io::Errno;
use rustix::termios::{self, OptionalActions, QueueSelector, Termios};
use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tokio::net::unix::pipe;

/// Turns off whatever an agent may have turned on: first it ends a sequence that was cut off, then come the
/// keyboard protocols of the alternate screen, the alternate screen itself, those of the main screen, mouse,
/// focus and paste reports, synchronised output, application keys, scroll region, insert mode, character set,
/// colours, cursor. Moves the cursor nowhere on the main screen.
const RESET: &str = concat!(
    "\x1b\\",
    "\x1b[<99u\x1b[>4m",
    "\x1b7\x1b[?1049l",
    "\x1b[<99u",
    "\x1b[?9l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1016l",
    "\x1b[?1004l\x1b[?2004l\x1b[?2026l\x1b[?2031l\x1b[?2048l",
    "\x1b[?1l\x1b>\x1b[?66l",
    "\x1b7\x1b[?6l\x1b[r\x1b8",
    "\x1b[?7h\x1b[4l\x1b(B\x0f",
    "\x1b[0m\x1b[?25h\x1b[0 q",
);

/// The user's terminal in raw mode; dropping it gives it back, however the program comes to that.
///
/// It is opened anew, because a write to it must not wait for a reader: `O_NONBLOCK` on standard output would
/// be one on everybody's who has it from the same shell.
pub(crate) struct RawTerminal {
    input: pipe::Receiver,
    output: pipe::Sender,
    before: Termios,
}

/// Rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    /// Rows.
    pub(crate) rows: u16,
    /// Columns.
    pub(crate) columns: u16,
}

impl RawTerminal {
    /// Puts the terminal in raw mode, if there is one.
    pub(crate) fn enter(name: &str) -> Result<Self, Problem> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Err(Problem::new(Exit::Usage, "standard input and output are not a terminal")
                .hint(format!("mcp-restartctl logs -f {name} shows the output of an agent without one")));
        }
        let cannot = |error: io::Error| Problem::caused(Exit::Failed, "cannot use the terminal", &error);
        let (input, output) = reopen().map_err(cannot)?;
        let before = termios::tcgetattr(&output).map_err(|error| cannot(error.into()))?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(&output, OptionalActions::Now, &raw).map_err(|error| cannot(error.into()))?;
        Ok(Self { input, output, before })
    }

    /// Its size now.
    pub(crate) fn size(&self) -> Size {
        match termios::tcgetwinsize(&self.output) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
                Size { rows: size.ws_row, columns: size.ws_col }
            }
            _ => Size { rows: 24, columns: 80 },
        }
    }

    /// What is typed next; an error when the terminal is gone.
    pub(crate) async fn typed(&self) -> io::Result<Vec<u8>> {
        let mut typed = vec![0; 4096];
        loop {
            self.input.readable().await?;
            match self.input.try_read(&mut typed) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    typed.truncate(length);
                    return Ok(typed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Shows bytes as they are.
    pub(crate) async fn show(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.output.writable().await?;
            match self.output.try_write(bytes) {
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Undoes what a process that is gone did to the terminal.
    pub(crate) async fn reset_modes(&self) -> io::Result<()> {
        self.show(RESET.as_bytes()).await
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // None of this can fail in a way that leaves something else to do: the terminal may be gone.
        if rustix::io::write(&self.output, RESET.as_bytes()) == Err(Errno::AGAIN) {
            // Nobody reads what is still on its way to the terminal: without that there is room.
            let _ = termios::tcflush(&self.output, QueueSelector::OFlush);
            let _ = rustix::io::write(&self.output, RESET.as_bytes());
        }
        let _ = termios::tcsetattr(&self.output, OptionalActions::Now, &self.before);
        let _ = rustix::io::write(&self.output, b"\r\n");
    }
}

/// The terminal that standard output is, by its name, else the controlling terminal. To the runtime a
/// terminal is what it calls a pipe: a file that one waits for.
fn reopen() -> io::Result<(pipe::Receiver, pipe::Sender)> {
    let open = |path: &Path| {
        let mut options = pipe::OpenOptions::new();
        options.unchecked(true);
        Ok((options.open_receiver(path)?, options.open_sender(path)?))
    };
    let name = termios::ttyname(io::stdout(), Vec::new()).map_err(io::Error::from);
    name.and_then(|name| open(Path::new(OsStr::from_bytes(name.as_bytes()))))
        .or_else(|_| open(Path::new("/dev/tty")))
}
