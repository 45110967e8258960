//! What /proc tells about processes.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::PathBuf;

/// The fields of /proc/PID/stat that matter here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) command: String,
    pub(crate) state: char,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    pub(crate) threads: u32,
    /// Clock ticks since the system's boot.
    pub(crate) start_time: u64,
}

pub(crate) fn stat(pid: u32) -> Option<Stat> {
    let mut buffer = [0; 1024];
    parse_stat(&String::from_utf8_lossy(read_once(&format!("/proc/{pid}/stat"), &mut buffer)?))
}

/// The children of a process, however many threads of it had them. `None` if the process is gone, or if
/// the kernel was built without these lists.
pub(crate) fn children(pid: u32, threads: u32) -> Option<Vec<u32>> {
    let of_thread = |thread: u32| -> Option<Vec<u32>> {
        let list = fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")).ok()?;
        Some(list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
    };
    let of_first = of_thread(pid);
    if threads == 1 {
        return of_first;
    }
    let others = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let others = others.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
    let others = others.filter(|&thread| thread != pid).filter_map(of_thread).flatten();
    // A first thread that has ended has no children: the others have them.
    Some(of_first.unwrap_or_default().into_iter().chain(others).collect())
}

/// The children of every process that can be seen, by their parent.
pub(crate) fn children_by_parent() -> HashMap<u32, Vec<u32>> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in pids() {
        if let Some(stat) = stat(pid) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    children
}

/// The program that a process runs, if it may be known.
pub(crate) fn executable(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// The process that traces this one.
pub(crate) fn tracer(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    tracer.trim().parse().ok().filter(|&pid| pid != 0)
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
        state: field(3)?.chars().next()?,
        parent: field(4)?.parse().ok()?,
        group: field(5)?.parse().ok()?,
        threads: field(20)?.parse().ok()?,
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
        assert_eq!((stat.state, stat.parent, stat.group, stat.start_time), ('R', 7, 41, 987_654));
        assert_eq!(parse_stat("42 (cut"), None);
        assert_eq!(parse_stat("42 (cut) R 7"), None);
    }

    #[test]
    fn a_process_sees_itself() {
        let own = std::process::id();
        assert_eq!(stat(own).unwrap().parent, std::os::unix::process::parent_id());
        assert!(children_by_parent().get(&std::os::unix::process::parent_id()).unwrap().contains(&own));
    }
}
