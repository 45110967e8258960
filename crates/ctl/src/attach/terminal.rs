//! The user's terminal: raw while attached, given back as it was.

use crate::attach::modes::Modes;
use crate::problem::{Exit, Problem};
use rustix::io::Errno;
use rustix::termios::{self, OptionalActions, QueueSelector, Termios};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tokio::net::unix::pipe;

/// The user's terminal in raw mode; dropping it gives it back, however the program comes to that.
///
/// It is opened anew, because a write to it must not wait for a reader: `O_NONBLOCK` on standard output would
/// be one on everybody's who has it from the same shell.
pub(crate) struct RawTerminal {
    input: pipe::Receiver,
    output: pipe::Sender,
    before: Termios,
    modes: RefCell<Modes>,
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
        require(name)?;
        let cannot = |error: io::Error| Problem::caused(Exit::Failed, "cannot use the terminal", &error);
        let (input, output) = reopen().map_err(cannot)?;
        let before = termios::tcgetattr(&output).map_err(|error| cannot(error.into()))?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(&output, OptionalActions::Now, &raw).map_err(|error| cannot(error.into()))?;
        Ok(Self { input, output, before, modes: RefCell::default() })
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

    /// Shows an agent's screen. What was on the main screen moves up, out of its way, and can be scrolled to.
    pub(crate) async fn show_picture(&self, picture: &[u8]) -> io::Result<()> {
        const LEAVE: &[u8] = b"\x1b[?1049l";
        let picture = picture.strip_prefix(LEAVE).unwrap_or(picture);
        if self.modes.borrow().is_alternate() || picture.starts_with(b"\x1b[?1049h") {
            return self.show(picture).await;
        }
        let lines = usize::from(self.size().rows);
        self.show(&[b"\n".repeat(lines).as_slice(), picture].concat()).await
    }

    /// Shows output as it is.
    pub(crate) async fn show(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.output.writable().await?;
            match self.output.try_write(bytes) {
                Ok(written) => {
                    let (shown, rest) = bytes.split_at(written);
                    self.modes.borrow_mut().take(shown);
                    bytes = rest;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Undoes what a process that is gone did to the terminal.
    pub(crate) async fn reset_modes(&self) -> io::Result<()> {
        let undo = self.modes.borrow().undo();
        self.show(&undo).await?;
        self.modes.take();
        Ok(())
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // What is below the cursor was the agent's as well: what is printed next would be written across it.
        let undo = [self.modes.borrow().undo().as_slice(), b"\r\n\x1b[J"].concat();
        // None of this can fail in a way that leaves something else to do: the terminal may be gone.
        if rustix::io::write(&self.output, &undo) == Err(Errno::AGAIN) {
            // Nobody reads what is still on its way to the terminal: without that there is room.
            let _ = termios::tcflush(&self.output, QueueSelector::OFlush);
            let _ = rustix::io::write(&self.output, &undo);
        }
        let _ = termios::tcsetattr(&self.output, OptionalActions::Now, &self.before);
    }
}

/// Refuses to go on where there is no terminal to connect.
pub(crate) fn require(name: &str) -> Result<(), Problem> {
    if io::stdin().is_terminal() && io::stdout().is_terminal() {
        return Ok(());
    }
    Err(Problem::new(Exit::Usage, "standard input and output are not a terminal")
        .hint(format!("mcp-restartctl logs -f {name} shows the output of an agent without one")))
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
