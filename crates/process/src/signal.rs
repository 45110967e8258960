//! Signals by number and name.

use crate::facts;
use std::fmt;

/// A signal that the system knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signal(i32);

impl Signal {
    /// SIGTERM.
    pub const TERMINATE: Self = Self(libc::SIGTERM);
    /// SIGKILL.
    pub const KILL: Self = Self(libc::SIGKILL);
    /// SIGCONT.
    pub const CONTINUE: Self = Self(libc::SIGCONT);
    /// SIGINT.
    pub const INTERRUPT: Self = Self(libc::SIGINT);
    /// SIGHUP.
    pub const HANG_UP: Self = Self(libc::SIGHUP);
    /// SIGQUIT.
    pub const QUIT: Self = Self(libc::SIGQUIT);
    /// SIGCHLD.
    pub const CHILD: Self = Self(libc::SIGCHLD);

    /// The signal with this number, if there is one.
    pub fn from_number(number: i32) -> Option<Self> {
        (1..=facts::last_signal()).contains(&number).then_some(Self(number))
    }

    /// The system's number.
    pub const fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match nix::sys::signal::Signal::try_from(self.0) {
            Ok(signal) => f.write_str(signal.as_str()),
            Err(_) => write!(f, "SIGRTMIN+{}", self.0 - facts::first_unnamed_signal()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_shown_by_its_name() {
        assert_eq!(Signal::TERMINATE.to_string(), "SIGTERM");
        assert_eq!(Signal::from_number(libc::SIGRTMIN() + 2).unwrap().to_string(), "SIGRTMIN+2");
        assert_eq!(Signal::from_number(0), None);
        assert_eq!(Signal::from_number(4242), None);
    }
}
