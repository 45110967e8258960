//! What a launch needs, looked at before anything is touched.
//!
//! `execve` alone decides, but it says little, and by then the process that was to be replaced is gone. What is
//! found here is what it would refuse; where it cannot be known, the program passes.

use crate::facts;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// Why a program cannot be executed. Shown behind its name: "is a folder".
#[derive(Debug)]
pub enum Unusable {
    /// There is no such file.
    Missing,
    /// It is a folder.
    Folder,
    /// This user may not execute it.
    NotExecutable,
    /// A script or a program that needs another one, which cannot be used.
    Needs {
        /// What stands in its first line, or is named as its loader.
        name: OsString,
        /// What is wrong with that.
        why: Box<Unusable>,
    },
    /// It is nothing that the system executes.
    NoFormat,
    /// It was built for a processor that this is not.
    OtherMachine,
    /// The file ends before the program does.
    CutShort,
    /// Each script names the next one as what it is written in.
    Circle,
    /// It cannot be looked at.
    Unreadable(io::Error),
}

/// Finds out whether a program can be executed, its interpreter or loader included. `search` is the `PATH` by
/// which `/usr/bin/env` would look for what a script is written in.
pub fn check_program(program: &Path, search: &OsStr) -> Result<(), Unusable> {
    check(program, search, 0)
}

/// Finds out whether this user may enter a folder; the system's reason if not.
pub fn check_folder(folder: &Path) -> io::Result<()> {
    if !std::fs::metadata(folder)?.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    Ok(may_execute(folder)?)
}

/// The first file of this name in the folders of `search` that can be executed; else why the first that is
/// there cannot be. Only absolute folders count.
pub fn find_program(name: &OsStr, search: &OsStr) -> Result<PathBuf, (PathBuf, Unusable)> {
    find(name, search, 0)
}

/// How many bytes the arguments and variables of a program may have, each with eight for its place in the list.
pub fn arguments_max() -> usize {
    facts::arguments_max()
}

/// The kernel follows no more interpreters of interpreters.
const DEPTH: u32 = 5;
/// The kernel reads no more of a file to tell what it is.
const HEAD: u64 = 256;

fn find(name: &OsStr, search: &OsStr, depth: u32) -> Result<PathBuf, (PathBuf, Unusable)> {
    let mut unusable = None;
    for folder in std::env::split_paths(search).filter(|folder| folder.is_absolute()) {
        let program = folder.join(name);
        match check(&program, search, depth) {
            Ok(()) => return Ok(program),
            Err(Unusable::Missing) => {}
            Err(why) => unusable = unusable.or(Some((program, why))),
        }
    }
    Err(unusable.unwrap_or_else(|| (name.into(), Unusable::Missing)))
}

fn check(program: &Path, search: &OsStr, depth: u32) -> Result<(), Unusable> {
    let metadata = std::fs::metadata(program).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Unusable::Missing,
        _ => Unusable::Unreadable(error),
    })?;
    if metadata.is_dir() {
        return Err(Unusable::Folder);
    }
    if !metadata.is_file() || may_execute(program).is_err() {
        return Err(Unusable::NotExecutable);
    }
    // What may be executed but not read is left to the kernel.
    let Ok(file) = File::open(program) else { return Ok(()) };
    let mut head = Vec::new();
    if (&file).take(HEAD).read_to_end(&mut head).is_err() {
        return Ok(());
    }
    match head.strip_prefix(b"#!") {
        Some(_) if depth == DEPTH => Err(Unusable::Circle),
        None if depth == DEPTH => Ok(()),
        Some(line) => check_script(line, search, depth + 1),
        None => check_format(&file, &head),
    }
}

/// The program in a script's first line, or the one that `env` would look for.
fn check_script(head: &[u8], search: &OsStr, depth: u32) -> Result<(), Unusable> {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    // Only blanks and tabs: a carriage return belongs to the name, which is why there is no such file.
    let mut words = line.split(|byte| b" \t".contains(byte)).filter(|word| !word.is_empty());
    let Some(name) = words.next() else { return Err(Unusable::NoFormat) };
    let needs =
        |name: &[u8], why| Unusable::Needs { name: OsString::from_vec(name.to_vec()), why: Box::new(why) };
    let interpreter = Path::new(OsStr::from_bytes(name));
    if !interpreter.is_absolute() {
        return Ok(());
    }
    check(interpreter, search, depth).map_err(|why| needs(name, why))?;
    if interpreter.file_name() != Some(OsStr::new("env")) {
        return Ok(());
    }
    match words.find(|word| *word != b"-S") {
        // Other options, and assignments, may change where it looks.
        Some(name) if !name.starts_with(b"-") && !name.contains(&b'=') && !name.contains(&b'/') => {
            find(OsStr::from_bytes(name), search, depth).map(drop).map_err(|(_, why)| needs(name, why))
        }
        _ => Ok(()),
    }
}

fn check_format(file: &File, head: &[u8]) -> Result<(), Unusable> {
    match facts::loader(file, head)? {
        Some(loader) => check(Path::new(&loader), OsStr::new(""), DEPTH)
            .map_err(|why| Unusable::Needs { name: loader, why: Box::new(why) }),
        None => Ok(()),
    }
}

fn may_execute(path: &Path) -> nix::Result<()> {
    faccessat(AT_FDCWD, path, AccessFlags::X_OK, AtFlags::AT_EACCESS)
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("does not exist"),
            Self::Folder => f.write_str("is a folder"),
            Self::NotExecutable => f.write_str("is not executable"),
            Self::Needs { name, why } => {
                // A carriage return is seen nowhere else.
                write!(f, "needs {}, which {why}", name.to_string_lossy().escape_debug())
            }
            Self::NoFormat => f.write_str("is neither a program nor a script that begins with #!"),
            Self::OtherMachine => f.write_str("was built for another kind of machine"),
            Self::CutShort => f.write_str("is cut short: the file ends before the program does"),
            Self::Circle => f.write_str("is a script whose interpreters are scripts without end"),
            Self::Unreadable(error) => write!(f, "cannot be looked at: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    const SEARCH: &str = "/usr/bin:/bin";

    fn verdict(content: &[u8], mode: u32) -> String {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::write(&program, content).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        match check_program(&program, OsStr::new(SEARCH)) {
            Ok(()) => "fine".to_owned(),
            Err(why) => why.to_string(),
        }
    }

    /// The test program itself, with some bytes changed.
    fn changed(at: usize, bytes: &[u8]) -> Vec<u8> {
        let mut program = fs::read(std::env::current_exe().unwrap()).unwrap();
        program[at..at + bytes.len()].copy_from_slice(bytes);
        program
    }

    #[test]
    fn what_can_be_executed_passes() {
        check_program(&std::env::current_exe().unwrap(), OsStr::new("")).unwrap();
        for script in ["#!/bin/sh\n", "#! /bin/sh -e", "#!/usr/bin/env -S sh -e\n", "#!relative\n"] {
            assert_eq!(verdict(script.as_bytes(), 0o755), "fine", "{script}");
        }
    }

    #[test]
    fn reasons_are_told_apart() {
        let table: [(&[u8], u32, &str); 7] = [
            (b"#!/bin/sh\n", 0o644, "is not executable"),
            (b"#!/no/such -x\n", 0o755, "needs /no/such, which does not exist"),
            (b"#!/bin/sh\r\n", 0o755, "needs /bin/sh\\r, which does not exist"),
            (b"#!/usr/bin/env no-such\n", 0o755, "needs no-such, which does not exist"),
            (b"#!/usr\n", 0o755, "needs /usr, which is a folder"),
            (b"echo hello\n", 0o755, "is neither a program nor a script that begins with #!"),
            (b"", 0o755, "is neither a program nor a script that begins with #!"),
        ];
        for (content, mode, why) in table {
            assert_eq!(verdict(content, mode), why);
        }
        assert_eq!(check_program(Path::new("/usr"), OsStr::new("")).unwrap_err().to_string(), "is a folder");
        let missing = check_program(Path::new("/etc/passwd/x"), OsStr::new("")).unwrap_err();
        assert_eq!(missing.to_string(), "does not exist");
    }

    #[test]
    fn a_program_of_another_machine_and_one_without_its_loader_are_told_apart() {
        assert_eq!(verdict(&changed(18, &[0xfe, 0xfe]), 0o755), "was built for another kind of machine");
        let program = fs::read(std::env::current_exe().unwrap()).unwrap();
        let loader = program.windows(4).position(|bytes| bytes == b"/lib").unwrap();
        let why = verdict(&changed(loader, b"/nil"), 0o755);
        assert!(why.starts_with("needs /nil") && why.ends_with(", which does not exist"), "{why}");
    }

    #[test]
    fn an_object_file_and_half_a_program_are_no_programs() {
        let relocatable = 1_u16.to_ne_bytes();
        let why = verdict(&changed(16, &relocatable), 0o755);
        assert_eq!(why, "is neither a program nor a script that begins with #!");
        let mut half = fs::read(std::env::current_exe().unwrap()).unwrap();
        for length in [half.len() / 8, 4000, 100] {
            half.truncate(length);
            assert_eq!(
                verdict(&half, 0o755),
                "is cut short: the file ends before the program does",
                "{length}"
            );
        }
    }

    #[test]
    fn scripts_that_name_each_other_have_no_end() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
        for (script, interpreter) in [(&a, &b), (&b, &a)] {
            fs::write(script, format!("#!{}\n", interpreter.display())).unwrap();
            fs::set_permissions(script, Permissions::from_mode(0o755)).unwrap();
        }
        let why = check_program(&a, OsStr::new(SEARCH)).unwrap_err().to_string();
        assert!(why.ends_with("is a script whose interpreters are scripts without end"), "{why}");
    }

    #[test]
    fn a_folder_is_one_that_can_be_entered() {
        check_folder(Path::new("/usr")).unwrap();
        assert_eq!(check_folder(Path::new("/no/such")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        assert_eq!(check_folder(Path::new("/etc/passwd")).unwrap_err().raw_os_error(), Some(libc::ENOTDIR));
    }
}
