//! The user's terminal: raw while attached, given back as it was.

use crate::problem::{Exit, Problem};
use rustix::termios::{self, OptionalActions, QueueSelector, Termios};
use std::io::{self, IsTerminal, Read};
use tokio::sync::mpsc;

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
pub(crate) struct RawTerminal {
    before: Termios,
    discard: bool,
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
        let cannot =
            |error: rustix::io::Errno| Problem::caused(Exit::Failed, "cannot set the terminal", &error);
        let before = termios::tcgetattr(io::stdin()).map_err(cannot)?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(io::stdin(), OptionalActions::Drain, &raw).map_err(cannot)?;
        Ok(Self { before, discard: false })
    }

    /// Gives up on output that is still on its way: nobody may be reading it.
    pub(crate) fn discard_output(&mut self) {
        self.discard = true;
    }
}

impl Size {
    /// The size of the terminal now.
    pub(crate) fn now() -> Self {
        match termios::tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
                Size { rows: size.ws_row, columns: size.ws_col }
            }
            _ => Size { rows: 24, columns: 80 },
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // None of this can fail in a way that leaves something else to do: the terminal may be gone.
        if self.discard {
            let _ = termios::tcflush(io::stdout(), QueueSelector::OFlush);
        }
        let _ = reset_modes();
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
        let _ = write_all(b"\r\n");
    }
}

/// Undoes what a process that is gone did to the terminal.
pub(crate) fn reset_modes() -> io::Result<()> {
    write_all(RESET.as_bytes())
}

/// Writes bytes to the terminal as they are, past the buffer that the standard library has for lines. Waits
/// on a thread of its own, so that a terminal that nobody reads does not keep signals from being heard; in
/// small pieces, so that little is left on its way when it is given up.
pub(crate) async fn show(bytes: &[u8]) -> io::Result<()> {
    const PIECE: usize = 1024;
    for piece in bytes.chunks(PIECE) {
        let piece = piece.to_vec();
        tokio::task::spawn_blocking(move || write_all(&piece)).await??;
    }
    Ok(())
}

/// Writes to standard output past the lock and the buffer of the standard library: a thread that waits in
/// there for a terminal that nobody reads would keep the reset from being written.
fn write_all(mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(io::stdout(), bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What is typed, piece by piece, from a thread that ends with the program; the end of the channel is the
/// end of the terminal.
pub(crate) fn keys() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        let mut input = io::stdin().lock();
        while let Ok(length @ 1..) = input.read(&mut piece) {
            let typed = piece.get(..length).unwrap_or_default().to_vec();
            if sender.blocking_send(typed).is_err() {
                break;
            }
        }
    });
    receiver
}
