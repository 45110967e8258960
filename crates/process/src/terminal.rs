//! Pseudo-terminals.

use crate::descriptor::{set_close_on_exec, set_nonblocking};
use crate::system;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, unlockpt};
use nix::sys::termios::{InputFlags, SetArg, tcgetattr, tcsetattr};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

/// The two ends of a pseudo-terminal. Both close themselves on exec; the terminal is nobody's controlling
/// one yet.
#[derive(Debug)]
pub struct PseudoTerminal {
    /// What whoever shows the terminal reads and writes. Never blocks.
    pub master: OwnedFd,
    /// What the program in the terminal has as 0, 1 and 2.
    pub slave: OwnedFd,
}

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

/// Opens a pseudo-terminal of this size.
pub fn open(size: Size) -> io::Result<PseudoTerminal> {
    // The other flags are not defined for this call.
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY)?;
    set_close_on_exec(&master)?;
    set_nonblocking(&master)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = system::open_slave(&master)?;
    let mut settings = tcgetattr(&slave)?;
    settings.input_flags.insert(InputFlags::IUTF8);
    tcsetattr(&slave, SetArg::TCSANOW, &settings)?;
    set_size(&slave, size)?;
    Ok(PseudoTerminal { master: master.into(), slave })
}

/// Gives a terminal a new size; the programs in it are told by SIGWINCH.
pub fn set_size(terminal: &impl AsFd, size: Size) -> io::Result<()> {
    let size = libc::winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the request reads one winsize, which outlives the call.
    Errno::result(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) })?;
    Ok(())
}
