//! Whether what a process runs is still what is on disk.
//!
//! | what runs | how it is compared |
//! |---|---|
//! | a program | its inode with that of the file in its place; and the file's time |
//! | a script | the file's times: the interpreter has read it and let go of it |
//! | a Python module | the same, for the file where `python -m` would find it |
//!
//! Other files of a package are not looked at: installers replace the script with them.

use crate::discovery::Known;
use mcp_restart_process::table::{self, Own, TICK};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is known of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Device and inode.
    pub(crate) file: (u64, u64),
    /// When its content was last written.
    pub(crate) written: SystemTime,
    /// When that, its name, its rights, or the link that leads to it were: an installer keeps the time of
    /// writing that the file had in its package.
    pub(crate) changed: SystemTime,
    /// Whether it is a folder.
    pub(crate) is_folder: bool,
}

/// The files that a process sees.
pub(crate) trait Disk {
    /// The file with this absolute path. `Err`: that cannot be known.
    fn stamp(&self, path: &Path) -> io::Result<Option<Stamp>>;
    /// Device and inode of the program that runs, where that is known.
    fn running(&self) -> Option<(u64, u64)>;
}

/// The real files, as one process sees them.
pub(crate) struct DiskOf(pub(crate) u32);

impl Disk for DiskOf {
    fn stamp(&self, path: &Path) -> io::Result<Option<Stamp>> {
        let path = table::as_seen_by(self.0, path);
        let found = fs::symlink_metadata(&path).and_then(|link| Ok((link, fs::metadata(&path)?)));
        match found {
            Ok((link, file)) => Ok(Some(Stamp {
                file: (file.dev(), file.ino()),
                written: time(file.mtime(), file.mtime_nsec()),
                changed: [&link, &file]
                    .into_iter()
                    .flat_map(|found| {
                        [time(found.mtime(), found.mtime_nsec()), time(found.ctime(), found.ctime_nsec())]
                    })
                    .max()
                    .unwrap_or(UNIX_EPOCH),
                is_folder: file.is_dir(),
            })),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn running(&self) -> Option<(u64, u64)> {
        table::running_file(self.0)
    }
}

/// Whether the program, a script or a module of this process is newer on disk than the process, or gone.
pub(crate) fn is_stale(process: &Known, disk: &impl Disk) -> bool {
    let Some(own) = &process.row.own else { return false };
    // The clock of the kernel that stamps files is not finer than that.
    let started = process.row.started_at + TICK;
    let program = own.program.as_deref().filter(|_| process.reading.wraps.is_none());
    program.is_some_and(|program| is_replaced(program, started, disk))
        || process.reading.scripts.iter().any(|script| is_newer(&script_files(script, own), started, disk))
        || process.reading.modules.iter().any(|module| is_newer(&module_files(module, own), started, disk))
}

fn is_replaced(program: &Path, started: SystemTime, disk: &impl Disk) -> bool {
    match (disk.stamp(program), disk.running()) {
        (Ok(Some(stamp)), Some(running)) => stamp.file != running || stamp.written > started,
        (Ok(Some(stamp)), None) => stamp.changed > started,
        (Ok(None), _) => true,
        (Err(_), _) => false,
    }
}

/// The places where a file may be.
#[derive(Debug, PartialEq, Eq)]
struct Candidates {
    paths: Vec<PathBuf>,
    /// Whether it was certainly in one of them.
    certain: bool,
}

fn is_newer(candidates: &Candidates, started: SystemTime, disk: &impl Disk) -> bool {
    for path in &candidates.paths {
        match disk.stamp(path) {
            Ok(Some(stamp)) if !stamp.is_folder => return stamp.changed > started,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
    candidates.certain
}

/// Where an interpreter finds a script of this name.
fn script_files(script: &str, own: &Own) -> Candidates {
    const ENDINGS: [&str; 8] =
        ["", ".js", ".cjs", ".mjs", "/index.js", "/index.cjs", "/index.mjs", "/__main__.py"];
    let nowhere = Candidates { paths: Vec::new(), certain: false };
    // What is passed as a descriptor, or comes from the network, has no file.
    if script.starts_with("/dev/") || script.starts_with("/proc/") || script.contains("://") {
        return nowhere;
    }
    let Some(path) = absolute(script, own) else { return nowhere };
    let ended = |ending: &&str| {
        let mut path = path.clone().into_os_string();
        path.push(ending);
        PathBuf::from(path)
    };
    // The process may have gone to another folder since it was given a relative path.
    Candidates { paths: ENDINGS.iter().map(ended).collect(), certain: script.starts_with('/') }
}

/// Where `python -m` finds a module: in the working directory, or among the packages of its environment.
fn module_files(module: &str, own: &Own) -> Candidates {
    let inside = module.replace('.', "/");
    let python = own.program.as_deref().and_then(Path::file_name).unwrap_or_default();
    let environment = |program: &Path| {
        let library = program.parent()?.parent()?.join("lib").join(python);
        Some([library.join("site-packages"), library.join("dist-packages")])
    };
    // A virtual environment is where the command line says that Python is, and Python itself is elsewhere.
    let named = own.arguments.first().filter(|word| word.contains('/')).and_then(|word| absolute(word, own));
    let environments =
        [named.as_deref(), own.program.as_deref()].into_iter().flatten().filter_map(environment);
    let folders = own.folder.clone().into_iter().chain(environments.flatten());
    let files = folders
        .flat_map(|folder| [folder.join(&inside).join("__main__.py"), folder.join(format!("{inside}.py"))]);
    Candidates { paths: files.collect(), certain: false }
}

fn absolute(path: &str, own: &Own) -> Option<PathBuf> {
    let path = Path::new(path);
    if path.is_absolute() { Some(path.to_owned()) } else { Some(own.folder.as_ref()?.join(path)) }
}

fn time(seconds: i64, nanoseconds: i64) -> SystemTime {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::Reading;
    use mcp_restart_process::table::Row;
    use std::collections::HashMap;

    const STARTED: u64 = 1_000;

    /// Files by their path, written and changed at so many seconds, with an inode.
    struct Made {
        files: HashMap<&'static str, (u64, u64, u64)>,
        running: Option<u64>,
    }

    impl Disk for Made {
        fn stamp(&self, path: &Path) -> io::Result<Option<Stamp>> {
            let found = path.to_str().and_then(|path| self.files.get(path));
            let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
            Ok(found.map(|(written, changed, inode)| Stamp {
                file: (1, *inode),
                written: at(*written),
                changed: at(*changed),
                is_folder: false,
            }))
        }

        fn running(&self) -> Option<(u64, u64)> {
            self.running.map(|inode| (1, inode))
        }
    }

    fn process(line: &str, program: &str) -> Known {
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let reading = Reading::of(&arguments, Some(Path::new(program)));
        let own = Own { arguments, program: Some(program.into()), folder: Some("/srv".into()) };
        let row = Row {
            pid: 7,
            parent: 1,
            group: 7,
            session: 7,
            start_time: 7,
            started_at: UNIX_EPOCH + Duration::from_secs(STARTED),
            command: String::new(),
            own: Some(own),
        };
        Known { row, reading }
    }

    fn python(line: &str, files: &[(&'static str, u64, u64)]) -> bool {
        let program = ("/usr/bin/python3.12", (1, 1, 5));
        let files = files.iter().map(|(path, written, changed)| (*path, (*written, *changed, 9)));
        let disk = Made { files: [program].into_iter().chain(files).collect(), running: Some(5) };
        is_stale(&process(line, "/usr/bin/python3.12"), &disk)
    }

    #[test]
    fn a_program_is_stale_once_another_file_or_none_is_in_its_place() {
        let stale = |files: &[(&'static str, (u64, u64, u64))], running| {
            let disk = Made { files: files.iter().copied().collect(), running };
            is_stale(&process("/opt/tuiml-mcp", "/opt/tuiml-mcp"), &disk)
        };
        assert!(!stale(&[("/opt/tuiml-mcp", (1, 1, 5))], Some(5)));
        assert!(stale(&[("/opt/tuiml-mcp", (1, 1, 6))], Some(5)), "replaced by a file that is older");
        assert!(stale(&[], Some(5)), "deleted");
        assert!(stale(&[("/opt/tuiml-mcp", (STARTED + 1, 1, 5))], Some(5)), "written in place");
        // A link more to a program is no new program; where inodes are not told it has to count.
        assert!(!stale(&[("/opt/tuiml-mcp", (1, STARTED + 1, 5))], Some(5)));
        assert!(stale(&[("/opt/tuiml-mcp", (1, STARTED + 1, 5))], None));
    }

    #[test]
    fn a_script_is_stale_once_it_is_newer_replaced_or_gone() {
        let line = "python3 /v/bin/tuiml-mcp";
        assert!(!python(line, &[("/v/bin/tuiml-mcp", 1, STARTED)]));
        assert!(python(line, &[("/v/bin/tuiml-mcp", STARTED + 1, STARTED + 1)]));
        assert!(
            python(line, &[("/v/bin/tuiml-mcp", 1, STARTED + 1)]),
            "an installer keeps the time of writing"
        );
        assert!(python(line, &[]), "deleted");
    }

    #[test]
    fn what_may_be_elsewhere_is_not_said_to_be_deleted() {
        for line in ["python3 server.py", "python3 -m tuiml", "python3 /dev/fd/3", "python3 -c 0"] {
            assert!(!python(line, &[]), "{line}");
        }
    }

    #[test]
    fn a_module_is_looked_for_where_python_finds_it() {
        let newer = STARTED + 1;
        assert!(python("python3 -m a.b", &[("/srv/a/b.py", newer, newer)]));
        assert!(python(
            "/v/bin/python -m a",
            &[("/v/lib/python3.12/site-packages/a/__main__.py", newer, newer)]
        ));
        assert!(python("python3 -m a", &[("/usr/lib/python3.12/site-packages/a.py", newer, newer)]));
    }

    #[test]
    fn node_finds_a_script_without_its_ending() {
        let disk = Made {
            files: [("/usr/bin/node", (1, 1, 5)), ("/x/server/index.js", (1, STARTED + 1, 9))]
                .into_iter()
                .collect(),
            running: Some(5),
        };
        assert!(is_stale(&process("node /x/server", "/usr/bin/node"), &disk));
    }

    #[test]
    fn the_runner_of_a_server_is_not_looked_at() {
        let disk = Made { files: HashMap::new(), running: Some(5) };
        assert!(!is_stale(&process("uvx tuiml-mcp", "/usr/bin/uv"), &disk));
        assert!(!is_stale(&process("sh -c tuiml-mcp", "/usr/bin/dash"), &disk));
    }

    #[test]
    fn the_real_disk_tells_a_link_that_was_turned_to_an_older_file() {
        let folder = tempfile::tempdir().unwrap();
        let (old, link) = (folder.path().join("old"), folder.path().join("link"));
        fs::write(&old, "").unwrap();
        let past = UNIX_EPOCH + Duration::from_secs(1);
        fs::File::options().write(true).open(&old).unwrap().set_modified(past).unwrap();
        std::os::unix::fs::symlink(&old, &link).unwrap();
        let stamp = DiskOf(std::process::id()).stamp(&link).unwrap().unwrap();
        assert_eq!(stamp.written, past);
        assert!(stamp.changed > past + Duration::from_secs(1));
        assert_eq!(DiskOf(std::process::id()).stamp(&folder.path().join("none")).unwrap(), None);
    }
}
