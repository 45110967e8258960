//! What Linux tells: /proc, and a few numbers.

use super::{Stat, State};
use crate::peer::SocketPeer;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{getsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::ptr;
use std::thread;
use std::time::{Duration, SystemTime};

pub(crate) use super::elf::loader;

/// Makes `waitpid` see children that some other thread, or `clone`, has made.
pub(crate) const WAIT_FOR_ANY: libc::c_int = libc::__WALL;

/// The unit of start times: the kernel tells them in hundredths of a second on every machine.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// The request by which a session takes a terminal.
pub(crate) const TAKE_TERMINAL: libc::c_ulong = libc::TIOCSCTTY;

/// The highest number of a signal.
pub(crate) fn last_signal() -> i32 {
    libc::SIGRTMAX()
}

/// The first of the signals that have no name.
pub(crate) fn first_unnamed_signal() -> i32 {
    libc::SIGRTMIN()
}

/// How many bytes the arguments and variables of a program may have.
pub(crate) fn arguments_max() -> usize {
    // The kernel grants a quarter of the stack, from 128 KiB to three quarters of the usual 8 MiB.
    const LEAST: u64 = 128 * 1024;
    const MOST: u64 = 6 * 1024 * 1024;
    let stack = getrlimit(Resource::RLIMIT_STACK).map_or(LEAST * 4, |(soft, _)| soft);
    usize::try_from((stack / 4).clamp(LEAST, MOST)).unwrap_or(usize::MAX)
}

/// Gives every signal its default disposition.
pub(crate) fn default_dispositions() {
    // The C library keeps two signals for itself and refuses to touch them; but they, too, may have been
    // inherited as ignored. All zeros are the default disposition, whatever the fields' order.
    const SET_SIZE: usize = 8;
    let default = [0_u64; 8];
    for number in 1..=libc::SIGRTMAX() {
        // SAFETY: the kernel reads no more than the buffer has; the old disposition is not asked for. The
        // default disposition runs no code of ours.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                number,
                default.as_ptr(),
                ptr::null_mut::<libc::c_void>(),
                SET_SIZE,
            )
        };
    }
}

/// Names this boot of the system and the pid namespace that the caller lives in.
pub(crate) fn boot_id() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let first = stat(1).map_or(0, |stat| stat.start_time);
    format!("{}+{first}", boot.trim())
}

/// Who is at the other end of a Unix socket.
pub(crate) fn peer_of_socket(socket: &impl AsFd) -> io::Result<SocketPeer> {
    let credentials = getsockopt(socket, sockopt::PeerCredentials)?;
    Ok(SocketPeer { uid: credentials.uid(), pid: credentials.pid().cast_unsigned() })
}

/// The process that has this number now.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    let mut buffer = [0; 1024];
    parse_stat(&String::from_utf8_lossy(read_once(&format!("/proc/{pid}/stat"), &mut buffer)?))
}

/// The base name of the program that a process runs, if it may be known.
pub(crate) fn program(pid: u32) -> Option<String> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = path.file_name()?.to_string_lossy();
    Some(name.strip_suffix(" (deleted)").unwrap_or(&name).to_owned())
}

/// The file that a process runs, if it may be known.
pub(crate) fn program_file(pid: u32) -> Option<PathBuf> {
    let path = fs::read_link(running_program(pid)?).ok()?;
    let bytes = path.as_os_str().as_bytes();
    Some(
        bytes.strip_suffix(b" (deleted)").map_or_else(|| path.clone(), |path| OsStr::from_bytes(path).into()),
    )
}

/// The path by which the file that a process runs is reached, whatever is in its place now.
#[expect(clippy::unnecessary_wraps, reason = "another system has none")]
pub(crate) fn running_program(pid: u32) -> Option<PathBuf> {
    Some(format!("/proc/{pid}/exe").into())
}

/// The path by which we reach the root folder of a process.
pub(crate) fn root(pid: u32) -> PathBuf {
    format!("/proc/{pid}/root").into()
}

/// The working directory of a process.
pub(crate) fn folder(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

/// The arguments of a process, or the title that it has put in their place.
pub(crate) fn arguments(pid: u32) -> Option<Vec<String>> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    // A title leaves zeros where the arguments were.
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let words = bytes.get(..end)?.split(|byte| *byte == 0);
    Some(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// The time at which a process started that has a start time of so many ticks.
pub(crate) fn start_clock() -> impl Fn(u64) -> SystemTime {
    let since_boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    let boot = SystemTime::now() - since_boot;
    move |start_time| boot + Duration::from_millis(start_time.saturating_mul(10))
}

/// The process that traces this one.
pub(crate) fn tracer(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    tracer.trim().parse().ok().filter(|&pid| pid != 0)
}

/// The user whose process it is. Root owns what may not be dumped, too.
pub(crate) fn owner(pid: u32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).map(|metadata| metadata.uid()).ok()
}

/// The user as whom a process acts.
pub(crate) fn effective_owner(pid: u32) -> Option<u32> {
    // The folder of what may not be dumped is root's, whoever's process it is.
    owner(pid).filter(|owner| *owner != 0).or_else(|| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        uids.split_whitespace().nth(1)?.parse().ok()
    })
}

/// The variables of a process, each with a zero at its end. The kernel shows none of another user's process,
/// nor of a zombie.
pub(crate) fn environment(pid: u32) -> Option<Vec<u8>> {
    // In the middle of its exec a process shows neither variables nor arguments, for a part of a millisecond, and is asked
    // again. The arguments come first, so that one that shows only them may still be about to show the others.
    const TRIES: usize = 1000;
    const TRIES_WITH_ARGUMENTS: usize = 5;
    let (mut tries, mut with_arguments) = (0, 0);
    loop {
        let environment = read_environment(pid).ok()?;
        // What has no program is a zombie, or the kernel's own.
        let is_sure = !environment.is_empty() || fs::read_link(format!("/proc/{pid}/exe")).is_err();
        if is_sure || tries == TRIES || with_arguments == TRIES_WITH_ARGUMENTS {
            return Some(environment);
        }
        tries += 1;
        let arguments = fs::read(format!("/proc/{pid}/cmdline"));
        with_arguments += usize::from(arguments.is_ok_and(|arguments| !arguments.is_empty()));
        thread::yield_now();
    }
}

fn read_environment(pid: u32) -> io::Result<Vec<u8>> {
    // What one call reads is of one program; in the middle of a second one there may be another, and nothing to read.
    const USUAL_MAX: usize = 256 * 1024;
    let mut file = File::open(format!("/proc/{pid}/environ"))?;
    let mut environment = vec![0; USUAL_MAX];
    let read = file.read(&mut environment)?;
    environment.truncate(read);
    if read == USUAL_MAX {
        file.read_to_end(&mut environment)?;
    }
    Ok(environment)
}

/// Files of /proc that fit are read whole by one call.
fn read_once<'a>(path: &str, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let read = File::open(path).ok()?.read(buffer).ok()?;
    buffer.get(..read)
}

/// Every process that can be seen.
pub(crate) fn pids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The command name stands in parentheses and may contain any character, parentheses too.
fn parse_stat(line: &str) -> Option<Stat> {
    let (head, tail) = line.rsplit_once(')')?;
    let (_, command) = head.split_once('(')?;
    let fields: Vec<&str> = tail.split_whitespace().collect();
    // The first field here is the third of the manual page.
    let field = |number: usize| fields.get(number - 3);
    Some(Stat {
        command: command.to_owned(),
        state: match *field(3)? {
            "Z" | "X" => State::Zombie,
            "T" => State::Stopped,
            "D" => State::Uninterruptible,
            _ => State::Alive,
        },
        parent: field(4)?.parse().ok()?,
        group: field(5)?.parse().ok()?,
        session: field(6)?.parse().ok()?,
        start_time: field(22)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_may_contain_anything() {
        let line = "42 (a) b (c) R 7 41 40 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 1";
        let stat = parse_stat(line).unwrap();
        assert_eq!(stat.command, "a) b (c");
        assert_eq!((stat.state, stat.parent, stat.group), (State::Alive, 7, 41));
        assert_eq!((stat.session, stat.start_time), (40, 987_654));
        assert_eq!(parse_stat("42 (cut"), None);
        assert_eq!(parse_stat("42 (cut) R 7"), None);
    }

    #[test]
    fn a_process_sees_itself() {
        let own = std::process::id();
        assert_eq!(stat(own).unwrap().parent, std::os::unix::process::parent_id());
        assert_eq!(owner(own), Some(crate::effective_uid()));
    }
}
