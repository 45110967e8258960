//! Hearing of it when the name of a file goes.

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::io;
use std::path::Path;

/// Blocks until something may have happened to the name of one of these: it was removed, or given to another one.
pub fn wait_for_removal(paths: &[impl AsRef<Path>]) -> io::Result<()> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    // A file that is open loses a link with its name, which is a change of its attributes.
    let events = AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_DELETE_SELF;
    for path in paths {
        inotify.add_watch(path.as_ref(), events | AddWatchFlags::IN_DONT_FOLLOW)?;
    }
    loop {
        match inotify.read_events() {
            // Those with a name tell of what is in a folder.
            Ok(events) if events.iter().all(|event| event.name.is_some()) => {}
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
