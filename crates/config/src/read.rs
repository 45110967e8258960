//! Reading files that only their owner may decide on.

use crate::fault::{Fault, LoadError};
use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A config file of this size, in bytes, is no config file.
const LARGEST: u64 = 1024 * 1024;

/// The text of a config file. Its faults are those that are not in the text: its owner, its mode, its size,
/// its encoding, the markers of an unresolved merge.
pub fn read(file: &Path) -> Result<String, LoadError> {
    let failed = |faults| LoadError { file: file.to_owned(), faults };
    let text = trusted(file).map_err(failed)?;
    let conflicts = conflict_faults(&text);
    if conflicts.is_empty() { Ok(text) } else { Err(failed(conflicts)) }
}

/// The text of a config file, whatever it says, if nobody else can have written it.
pub(crate) fn trusted(file: &Path) -> Result<String, Vec<Fault>> {
    let (mut open, metadata) =
        open_regular(file).map_err(|error| vec![Fault::of_file(why_unreadable(&error))])?;
    let faults = ownership_faults(&metadata);
    if !faults.is_empty() {
        return Err(faults);
    }
    read_text(&mut open).map_err(|message| vec![Fault::of_file(message)])
}

/// The first line of a file that holds a secret: readable to its owner alone, who is this user or root.
pub(crate) fn read_secret(file: &Path) -> Result<String, String> {
    let (mut open, metadata) = open_regular(file).map_err(|error| why_unreadable(&error))?;
    if is_foreign(metadata.uid(), geteuid().as_raw()) {
        return Err("it belongs to another user".to_owned());
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(format!("others may read or write it (mode {:03o}); chmod 600", metadata.mode() & 0o777));
    }
    let text = read_text(&mut open)?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// Opens a regular file for reading. A pipe in its place does not block.
fn open_regular(file: &Path) -> io::Result<(File, Metadata)> {
    let open = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(file)?;
    let metadata = open.metadata()?;
    if metadata.is_file() {
        Ok((open, metadata))
    } else if metadata.is_dir() {
        Err(ErrorKind::IsADirectory.into())
    } else {
        Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"))
    }
}

fn why_unreadable(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "there is no such file".to_owned(),
        ErrorKind::IsADirectory => "it is a folder, not a file".to_owned(),
        _ => format!("it cannot be read: {error}"),
    }
}

/// Whoever can write the file can run any command as this user.
fn ownership_faults(metadata: &Metadata) -> Vec<Fault> {
    let mut faults = Vec::new();
    if is_foreign(metadata.uid(), geteuid().as_raw()) {
        faults.push(Fault::of_file(format!(
            "it belongs to another user (uid {}), who could run any command through it",
            metadata.uid()
        )));
    }
    if metadata.mode() & 0o022 != 0 {
        faults.push(Fault::of_file(format!(
            "others may write it (mode {:03o}), and could run any command through it; chmod go-w",
            metadata.mode() & 0o777
        )));
    }
    faults
}

/// Whether a file is neither this user's nor root's.
fn is_foreign(owner: u32, user: u32) -> bool {
    owner != user && owner != 0
}

fn read_text(file: &mut File) -> Result<String, String> {
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| format!("it cannot be read: {error}"))?;
    if bytes.len() as u64 > LARGEST {
        return Err(format!("it is larger than {LARGEST} bytes"));
    }
    if bytes.starts_with("\u{feff}".as_bytes()) {
        return Err("it starts with a byte order mark; save it as UTF-8 without one".to_owned());
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = valid.split(|byte| *byte == b'\n').count();
        format!("it is not UTF-8 (line {line})")
    })
}

/// One fault for each conflict that a merge left in the text.
fn conflict_faults(text: &str) -> Vec<Fault> {
    let starts = |marker: &str| -> Vec<Fault> {
        let lines = text.lines().enumerate().filter(|(_, line)| line.starts_with(marker));
        lines.map(|(index, _)| conflict_at(index + 1, marker)).collect()
    };
    // No line of JSON begins so, inside a block comment aside.
    ["<<<<<<<", "=======", ">>>>>>>"]
        .into_iter()
        .map(starts)
        .find(|faults| !faults.is_empty())
        .unwrap_or_default()
}

fn conflict_at(line: usize, marker: &str) -> Fault {
    Fault {
        line: Some(line),
        column: Some(1),
        ..Fault::of_file(format!("unresolved merge conflict ({marker}); resolve it and save the file again"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn faults_of(bytes: &[u8], mode: u32) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        fs::write(&file, bytes).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let faults = read(&file).err().map(|error| error.faults).unwrap_or_default();
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_that_others_may_write_is_refused() {
        for mode in [0o622, 0o620, 0o602, 0o666] {
            let faults = faults_of(b"{}", mode);
            assert!(matches!(&*faults, [fault] if fault.contains("chmod go-w")), "{mode:o}: {faults:?}");
        }
        for mode in [0o600, 0o644, 0o400] {
            assert_eq!(faults_of(b"{}", mode), Vec::<String>::new(), "{mode:o}");
        }
    }

    #[test]
    fn only_the_user_and_root_are_trusted() {
        assert!(!is_foreign(1000, 1000));
        assert!(!is_foreign(0, 1000));
        assert!(is_foreign(1001, 1000));
        assert!(is_foreign(1000, 0), "root must not run what a user wrote");
    }

    #[test]
    fn what_is_not_text_is_told_apart() {
        assert_eq!(faults_of(b"{\n\xff}", 0o600), ["it is not UTF-8 (line 2)"]);
        assert_eq!(
            faults_of("\u{feff}{}".as_bytes(), 0o600),
            ["it starts with a byte order mark; save it as UTF-8 without one"]
        );
        assert_eq!(faults_of(&vec![b' '; 1024 * 1024 + 1], 0o600), ["it is larger than 1048576 bytes"]);
    }

    #[test]
    fn each_merge_conflict_is_named_by_its_line() {
        let text = "{\n<<<<<<< HEAD\n1\n=======\n2\n>>>>>>> theirs\n<<<<<<< HEAD\n}";
        let lines: Vec<_> = conflict_faults(text).iter().map(|fault| fault.line.unwrap()).collect();
        assert_eq!(lines, [2, 7]);
        assert_eq!(conflict_faults("{}\n>>>>>>> theirs\n")[0].line, Some(2));
        assert_eq!(conflict_faults("{ \"a\": \"<<<<<<< \" }"), []);
    }

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let messages = [pipe, folder.path().to_owned(), folder.path().join("none")]
            .map(|file| read(&file).unwrap_err().faults[0].message.clone());
        assert_eq!(
            messages,
            ["it cannot be read: not a regular file", "it is a folder, not a file", "there is no such file"]
        );
    }

    #[test]
    fn a_secret_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, "s3cret\n").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        assert!(read_secret(&file).unwrap_err().contains("chmod 600"));
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read_secret(&file).unwrap(), "s3cret");
    }
}
