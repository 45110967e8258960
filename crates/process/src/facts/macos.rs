//! What macOS tells: libproc, sysctl, and a few numbers.

use super::process_arguments::{self, variables};
use super::{Stat, State};
use crate::peer::SocketPeer;
use crate::preflight::Unusable;
use crate::session::set_disposition;
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{Pid, getsid};
use std::ffi::{CStr, OsStr, OsString, c_char, c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `waitpid` sees every child without being asked to.
pub(crate) const WAIT_FOR_ANY: c_int = 0;

/// The unit of start times.
pub(crate) const TICK: Duration = Duration::from_micros(1);

/// The request by which a session takes a terminal.
pub(crate) const TAKE_TERMINAL: libc::c_ulong = libc::TIOCSCTTY as libc::c_ulong;

/// The highest number of a signal.
pub(crate) fn last_signal() -> i32 {
    libc::SIGUSR2
}

/// The first of the signals that have no name: there is none.
pub(crate) fn first_unnamed_signal() -> i32 {
    last_signal() + 1
}

/// How many bytes the arguments and variables of a program may have.
pub(crate) fn arguments_max() -> usize {
    // SAFETY: the call takes one number.
    let max = unsafe { libc::sysconf(libc::_SC_ARG_MAX) };
    usize::try_from(max).unwrap_or(256 * 1024)
}

/// Passes what begins as an executable does, for one processor or for several; the loader is always the same.
pub(crate) fn loader(_file: &File, head: &[u8]) -> Result<Option<OsString>, Unusable> {
    const MAGIC: [u32; 3] = [libc::MH_MAGIC, libc::MH_MAGIC_64, 0xcafe_babe];
    let begins = head.first_chunk().map(|begin| u32::from_ne_bytes(*begin));
    let known =
        begins.is_some_and(|begin| MAGIC.iter().any(|magic| [*magic, magic.swap_bytes()].contains(&begin)));
    if known { Ok(None) } else { Err(Unusable::NoFormat) }
}

/// Gives every signal its default disposition.
pub(crate) fn default_dispositions() {
    for number in 1..=last_signal() {
        set_disposition(number, libc::SIG_DFL);
    }
}

/// Names this boot of the system.
pub(crate) fn boot_id() -> String {
    let mut text = [0_u8; 64];
    let mut length = text.len();
    // SAFETY: the name ends with a zero; the call writes no more than `length` bytes of the buffer, and how
    // many it wrote. There is no new value (null).
    let told = unsafe {
        libc::sysctlbyname(
            c"kern.bootsessionuuid".as_ptr(),
            text.as_mut_ptr().cast(),
            &raw mut length,
            ptr::null_mut(),
            0,
        )
    };
    if told != 0 {
        return String::new();
    }
    CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy().into_owned()
}

/// Who is at the other end of a Unix socket.
pub(crate) fn peer_of_socket(socket: &impl AsFd) -> io::Result<SocketPeer> {
    let uid = getsockopt(socket, sockopt::LocalPeerCred)?.uid();
    let pid = getsockopt(socket, sockopt::LocalPeerPid)?.cast_unsigned();
    Ok(SocketPeer { uid, pid })
}

/// The process that has this number now.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    let info = bsd_info(pid)?;
    let session = getsid(Some(Pid::from_raw(pid.cast_signed()))).ok()?;
    Some(Stat {
        command: String::from_utf8_lossy(&bytes_of(&info.pbi_comm)).into_owned(),
        state: match info.pbi_status {
            libc::SZOMB => State::Zombie,
            libc::SSTOP => State::Stopped,
            _ => State::Alive,
        },
        parent: info.pbi_ppid,
        group: info.pbi_pgid,
        session: session.as_raw().cast_unsigned(),
        start_time: info.pbi_start_tvsec * 1_000_000 + info.pbi_start_tvusec,
    })
}

/// The base name of the program that a process runs, if it may be known.
pub(crate) fn program(pid: u32) -> Option<String> {
    Some(program_file(pid)?.file_name()?.to_string_lossy().into_owned())
}

/// The file that a process runs, if it may be known.
pub(crate) fn program_file(pid: u32) -> Option<PathBuf> {
    let mut path = [0_u8; libc::PROC_PIDPATHINFO_MAXSIZE as usize];
    let room = u32::try_from(path.len()).ok()?;
    // SAFETY: the call writes no more than `room` bytes of the buffer.
    let length = unsafe { libc::proc_pidpath(pid.cast_signed(), path.as_mut_ptr().cast(), room) };
    let path = path.get(..usize::try_from(length).ok()?)?;
    (!path.is_empty()).then(|| Path::new(OsStr::from_bytes(path)).to_owned())
}

/// There is no path that leads to the file which a process runs once another is in its place.
pub(crate) fn running_program(_pid: u32) -> Option<PathBuf> {
    None
}

/// The root folder, which all have in common.
pub(crate) fn root(_pid: u32) -> PathBuf {
    PathBuf::from("/")
}

/// The working directory of a process.
pub(crate) fn folder(pid: u32) -> Option<PathBuf> {
    // SAFETY: zeros are valid for each of its fields, all of which are numbers.
    let mut info: libc::proc_vnodepathinfo = unsafe { std::mem::zeroed() };
    let room = c_int::try_from(size_of_val(&info)).ok()?;
    let buffer = (&raw mut info).cast();
    // SAFETY: the call writes no more than `room` bytes of the buffer.
    let written =
        unsafe { libc::proc_pidinfo(pid.cast_signed(), libc::PROC_PIDVNODEPATHINFO, 0, buffer, room) };
    let path = bytes_of(info.pvi_cdir.vip_path.as_flattened());
    (written == room && !path.is_empty()).then(|| Path::new(OsStr::from_bytes(&path)).to_owned())
}

/// The arguments of a process.
pub(crate) fn arguments(pid: u32) -> Option<Vec<String>> {
    process_arguments::arguments(&argument_block(pid)?)
}

/// The time at which a process started: the system counts microseconds since 1970.
pub(crate) fn start_clock() -> impl Fn(u64) -> SystemTime {
    |start_time| UNIX_EPOCH + Duration::from_micros(start_time)
}

/// The process that traces this one, which the system makes its parent without saying that it did.
pub(crate) fn tracer(_pid: u32) -> Option<u32> {
    None
}

/// The user whose process it is.
pub(crate) fn owner(pid: u32) -> Option<u32> {
    bsd_info(pid).map(|info| info.pbi_uid)
}

/// The user as whom a process acts.
pub(crate) fn effective_owner(pid: u32) -> Option<u32> {
    owner(pid)
}

/// The variables of a process, each with a zero at its end. The system shows none of another user's process,
/// and none of a program of its own.
pub(crate) fn environment(pid: u32) -> Option<Vec<u8>> {
    variables(&argument_block(pid)?).map(<[u8]>::to_vec)
}

fn argument_block(pid: u32) -> Option<Vec<u8>> {
    let mut name = [libc::CTL_KERN, libc::KERN_PROCARGS2, pid.cast_signed()];
    let mut block = vec![0_u8; arguments_max()];
    let mut length = block.len();
    // SAFETY: the call reads three numbers, writes no more than `length` bytes of the buffer, and how many it
    // wrote. There is no new value (null).
    let told = unsafe {
        libc::sysctl(name.as_mut_ptr(), 3, block.as_mut_ptr().cast(), &raw mut length, ptr::null_mut(), 0)
    };
    block.truncate(length);
    (told == 0).then_some(block)
}

/// Every process that can be seen.
pub(crate) fn pids() -> impl Iterator<Item = u32> {
    let mut pids: Vec<c_int> = Vec::new();
    loop {
        // Some more than there were, for those that start meanwhile.
        let expected = count_of_pids(&mut []) + 64;
        pids.resize(expected, 0);
        let found = count_of_pids(&mut pids);
        if found < expected {
            pids.truncate(found);
            return pids.into_iter().map(c_int::cast_unsigned);
        }
    }
}

/// Fills in as many as there is room for; without room it says how many there are.
fn count_of_pids(pids: &mut [c_int]) -> usize {
    let room = c_int::try_from(size_of_val(pids)).unwrap_or(c_int::MAX);
    let buffer = if pids.is_empty() { ptr::null_mut() } else { pids.as_mut_ptr().cast::<c_void>() };
    // SAFETY: the call writes no more than `room` bytes of the buffer, which may be absent (null).
    let count = unsafe { libc::proc_listallpids(buffer, room) };
    usize::try_from(count).unwrap_or(0)
}

fn bsd_info(pid: u32) -> Option<libc::proc_bsdinfo> {
    // To be told of zombies, too.
    const ZOMBIES: u64 = 1;
    // SAFETY: zeros are valid for each of its fields, all of which are numbers.
    let mut info: libc::proc_bsdinfo = unsafe { std::mem::zeroed() };
    let room = c_int::try_from(size_of_val(&info)).ok()?;
    let buffer = (&raw mut info).cast();
    // SAFETY: the call writes no more than `room` bytes of the buffer.
    let written =
        unsafe { libc::proc_pidinfo(pid.cast_signed(), libc::PROC_PIDTBSDINFO, ZOMBIES, buffer, room) };
    (written == room).then_some(info)
}

/// Up to the first zero, if there is one.
fn bytes_of(text: &[c_char]) -> Vec<u8> {
    text.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0).collect()
}
