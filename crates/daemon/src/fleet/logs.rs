//! The newest lines of an agent's log, for callers that cannot read files.

use mcp_restart_protocol::answer::LogLines;
use mcp_restart_protocol::request::LOG_BYTES_MAX;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// How much of the file's end is looked at: escape sequences take room that the answer does not need.
const TAIL_BYTES: u64 = 4 * LOG_BYTES_MAX as u64;

/// The last `lines` lines, at most [`LOG_BYTES_MAX`] bytes of them, without escape sequences. A log that
/// does not exist yet has none.
pub(super) fn newest(file: &Path, lines: usize) -> io::Result<LogLines> {
    let (bytes, whole) = match tail(file) {
        Ok(tail) => tail,
        Err(error) if error.kind() == io::ErrorKind::NotFound => (Vec::new(), true),
        Err(error) => return Err(error),
    };
    let text = mcp_restart_protocol::plain::text(&String::from_utf8_lossy(&bytes));
    // The first line of a part of a file is a part of a line.
    let text = if whole { &*text } else { text.split_once('\n').map_or("", |(_, rest)| rest) };
    let all: Vec<&str> = text.lines().collect();
    let mut size = 0;
    let newest = all.iter().rev().take(lines).take_while(|line| {
        size += line.len() + 1;
        size <= LOG_BYTES_MAX
    });
    let mut newest: Vec<String> = newest.map(|line| (*line).to_owned()).collect();
    newest.reverse();
    let truncated = newest.len() < lines && (newest.len() < all.len() || !whole);
    Ok(LogLines { lines: newest, truncated })
}

fn tail(file: &Path) -> io::Result<(Vec<u8>, bool)> {
    let metadata = std::fs::metadata(file)?;
    if !metadata.is_file() {
        return Ok((Vec::new(), true));
    }
    let start = metadata.len().saturating_sub(TAIL_BYTES);
    let mut file = File::open(file)?;
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok((bytes, start == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(content: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.log");
        std::fs::write(&file, content).unwrap();
        (dir, file)
    }

    #[test]
    fn the_newest_lines_come_oldest_first_and_without_escape_sequences() {
        let (_dir, file) = log("one\n\x1b[31mtwo\x1b[0m\nthree\n");
        let LogLines { lines, truncated } = newest(&file, 2).unwrap();
        assert_eq!((lines, truncated), (vec!["two".to_owned(), "three".to_owned()], false));
    }

    #[test]
    fn a_long_log_is_cut_at_a_line_and_says_so() {
        let line = "x".repeat(999);
        let (_dir, file) = log(&format!("{line}\n").repeat(1_000));
        let LogLines { lines, truncated } = newest(&file, 1_000).unwrap();
        assert_eq!(lines.len(), LOG_BYTES_MAX / 1_000);
        assert!(truncated);
        assert!(lines.iter().all(|found| *found == line));
    }

    #[test]
    fn a_log_that_does_not_exist_has_no_lines() {
        let (dir, _) = log("");
        assert_eq!(
            newest(&dir.path().join("none"), 5).unwrap(),
            LogLines { lines: vec![], truncated: false }
        );
    }
}
