//! Somebody who talks to the shim: a daemon, or a person who is attached to the terminal.

use mcp_restart_process::terminal::Size;
use mcp_restart_protocol::codec::{FRAME_MAX, take_frame, to_frame};
use mcp_restart_protocol::shim::{
    FromShim, SHIM_FRAME_MAX, SHIM_HELLO_LEN, SHIM_PROTOCOL, ShimHello, ToShim,
};
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;

/// With more than this waiting for a viewer it is skipped until it has caught up.
const BEHIND: usize = 128 * 1024;
/// With more than this waiting, nobody is reading at all.
const STALLED: usize = 4 * FRAME_MAX;

/// One connection. It costs only itself: whatever it sends, or does not read, is bounded.
#[derive(Debug)]
pub(crate) struct Connection {
    /// By which the shim remembers it.
    number: u64,
    stream: UnixStream,
    /// Whether it is the one over which a launch may come.
    is_control: bool,
    greeted: bool,
    /// Whether it has said anything after its hello.
    spoke: bool,
    inbox: Vec<u8>,
    outbox: VecDeque<u8>,
    viewer: Option<Viewer>,
    /// Set when nothing more is to be read: it is closed once the outbox is empty.
    leaving: bool,
    /// Nobody reads what is sent any more. What was said before that is still read.
    unheard: bool,
    broken: bool,
}

/// Somebody who is shown the terminal.
#[derive(Debug, Clone, Copy)]
struct Viewer {
    size: Size,
    /// Output was left out: the whole picture is due when there is room.
    behind: bool,
}

impl Connection {
    /// The daemon that started this shim.
    pub(crate) fn control(number: u64, stream: UnixStream) -> io::Result<Self> {
        Self::new(number, stream, true)
    }

    /// Somebody who connected to the socket.
    pub(crate) fn accepted(number: u64, stream: UnixStream) -> io::Result<Self> {
        Self::new(number, stream, false)
    }

    fn new(number: u64, stream: UnixStream, is_control: bool) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let mut connection = Self {
            number,
            stream,
            is_control,
            greeted: false,
            spoke: false,
            inbox: Vec::new(),
            outbox: VecDeque::new(),
            viewer: None,
            leaving: false,
            unheard: false,
            broken: false,
        };
        connection.push(&ShimHello::OURS.to_bytes());
        Ok(connection)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    pub(crate) fn is_control(&self) -> bool {
        self.is_control
    }

    pub(crate) fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// Whether it only waits for the end: it may be of a version that knows nothing but the hello.
    pub(crate) fn only_waits(&self) -> bool {
        self.greeted && !self.spoke
    }

    /// Whether there is something that waits to be written.
    pub(crate) fn has_output(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether it is to be forgotten.
    pub(crate) fn is_over(&self) -> bool {
        self.broken || (self.leaving && self.outbox.is_empty())
    }

    /// The messages that have come. One that makes no sense ends the connection.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Vec<ToShim> {
        match self.stream.read(buffer) {
            Ok(0) => self.broken = true,
            Ok(read) => self.inbox.extend_from_slice(buffer.get(..read).unwrap_or_default()),
            Err(error) => self.broken |= !is_temporary(&error),
        }
        if self.leaving {
            self.inbox.clear();
        }
        let mut messages = Vec::new();
        while let Some(message) = self.next_message() {
            messages.push(message);
        }
        self.spoke |= !messages.is_empty();
        // What a large launch needed is given back.
        if self.inbox.is_empty() {
            self.inbox = Vec::new();
        }
        messages
    }

    /// Sends a message, as far as there is room now; the rest follows.
    pub(crate) fn send(&mut self, message: &FromShim) {
        match to_frame(message) {
            Ok(frame) => self.push(&frame),
            Err(_) => self.broken = true,
        }
    }

    /// Writes what there is room for.
    pub(crate) fn flush(&mut self) {
        while !self.outbox.is_empty() && !self.broken && !self.unheard {
            let (next, _) = self.outbox.as_slices();
            match self.stream.write(next) {
                Ok(written) => drop(self.outbox.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => self.unheard = !is_temporary(&error),
            }
        }
        self.outbox = VecDeque::new();
    }

    /// Shows it the terminal from now on.
    pub(crate) fn attach(&mut self, size: Size, picture: &[u8]) {
        self.viewer = Some(Viewer { size, behind: false });
        self.send_output(picture);
    }

    /// The size of its terminal, if it is shown ours.
    pub(crate) fn viewed_size(&self) -> Option<Size> {
        self.viewer.map(|viewer| viewer.size)
    }

    /// Its terminal has another size.
    pub(crate) fn set_viewed_size(&mut self, size: Size) {
        if let Some(viewer) = &mut self.viewer {
            viewer.size = size;
        }
    }

    /// Passes output on to a viewer, or leaves it out until the viewer has caught up.
    pub(crate) fn show(&mut self, bytes: &[u8]) {
        let Some(viewer) = &mut self.viewer else { return };
        viewer.behind |= self.outbox.len() > BEHIND;
        if !viewer.behind {
            self.send_output(bytes);
        }
    }

    /// Whether the whole picture is due.
    pub(crate) fn wants_picture(&self) -> bool {
        self.outbox.is_empty() && self.viewer.is_some_and(|viewer| viewer.behind)
    }

    /// Shows the whole picture to a viewer that had fallen behind.
    pub(crate) fn show_picture(&mut self, picture: &[u8]) {
        if let Some(viewer) = &mut self.viewer {
            viewer.behind = false;
            self.send_output(picture);
        }
    }

    /// Nothing more comes for a viewer.
    pub(crate) fn detach(&mut self, reason: &str) {
        self.viewer = None;
        self.send(&FromShim::Detached { reason: reason.to_owned() });
        self.leaving = true;
    }

    fn send_output(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(SHIM_FRAME_MAX / 2) {
            self.send(&FromShim::Output(piece.to_vec()));
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.outbox.extend(bytes);
        self.broken |= self.outbox.len() > STALLED;
        self.flush();
    }

    fn next_message(&mut self) -> Option<ToShim> {
        if !self.greeted {
            let (hello, rest) = self.inbox.split_first_chunk::<SHIM_HELLO_LEN>()?;
            let theirs = ShimHello::from_bytes(*hello);
            self.inbox = rest.to_vec();
            self.greeted = true;
            // A newer daemon has read our number and speaks it.
            if theirs.is_none_or(|theirs| theirs.protocol < SHIM_PROTOCOL) {
                return self.give_up();
            }
        }
        if !self.frame_fits() {
            return self.give_up();
        }
        take_frame(&mut self.inbox).unwrap_or_else(|_| self.give_up())
    }

    fn give_up<T>(&mut self) -> Option<T> {
        self.inbox.clear();
        self.broken = true;
        None
    }

    /// Whether the frame that has begun is one that this connection may send.
    fn frame_fits(&self) -> bool {
        let limit = if self.is_control { FRAME_MAX } else { SHIM_FRAME_MAX };
        let Some((head, _)) = self.inbox.split_first_chunk::<4>() else { return true };
        usize::try_from(u32::from_le_bytes(*head)).is_ok_and(|length| length <= limit)
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Shutdown;

    #[test]
    fn what_was_said_before_somebody_left_is_heard() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::accepted(1, ours).unwrap();
        theirs.shutdown(Shutdown::Read).unwrap();
        theirs.write_all(&ShimHello::OURS.to_bytes()).unwrap();
        theirs.write_all(&to_frame(&ToShim::Acknowledge).unwrap()).unwrap();
        connection.send(&FromShim::Refused { reason: "nobody reads this".to_owned() });
        drop(theirs);
        assert!(!connection.is_over() && !connection.has_output());
        let mut buffer = [0; 256];
        assert_eq!(connection.receive(&mut buffer), [ToShim::Acknowledge]);
        assert_eq!(connection.receive(&mut buffer), []);
        assert!(connection.is_over());
    }
}
