//! A log that is rotated while it is read.
//!
//! ```text
//!  log.2 ──► log.1 ──► log          a snapshot is what these held when they were opened, and ends;
//!  oldest              newest       following it goes on in the newest, and in what comes after that
//! ```
//!
//! Files are known by their inode: a name is another file's as soon as the log is rotated.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const PIECE: usize = 64 * 1024;
/// So many files are held open ahead of a slow reader; each may keep the disk space of a removed one.
const AHEAD: usize = 8;

/// The newest lines of a log at one moment, across its rotated files.
#[derive(Debug)]
pub(crate) struct Snapshot {
    path: PathBuf,
    parts: VecDeque<Part>,
}

/// What is still to be read of a file.
#[derive(Debug)]
struct Part {
    file: File,
    start: u64,
    end: u64,
}

/// What is written to a log from some moment on.
#[derive(Debug)]
pub(crate) struct Following {
    path: PathBuf,
    /// The file that is read, and those that were begun after it.
    held: VecDeque<Held>,
}

#[derive(Debug)]
struct Held {
    file: File,
    /// Whether files between the one before and this one are gone, unless there were none.
    after_gap: bool,
}

/// What comes next of a log that is followed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// At most 64 KiB.
    Bytes(Vec<u8>),
    /// The log was rotated away before it could be read: something may be missing here.
    Gap,
}

/// Whole lines out of pieces.
#[derive(Debug, Default)]
pub(crate) struct WholeLines {
    partial: Vec<u8>,
}

impl WholeLines {
    /// So much without a line feed is no line.
    const LONG: usize = 256 * 1024;

    /// The lines that end with this piece.
    pub(crate) fn take(&mut self, piece: &[u8]) -> Vec<u8> {
        self.partial.extend_from_slice(piece);
        let end = self.partial.iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index + 1);
        let end = if end == 0 && self.partial.len() > Self::LONG { self.partial.len() } else { end };
        self.partial.drain(..end).collect()
    }

    /// What has no end yet.
    pub(crate) fn rest(self) -> Vec<u8> {
        self.partial
    }
}

impl Snapshot {
    /// The last `lines` lines, but none from before the last line that begins with `marker`, if there is such a
    /// line; a log that does not exist is empty.
    pub(crate) fn of(path: &Path, lines: usize, marker: Option<&str>) -> io::Result<Self> {
        let mut back = Backwards { newlines: None, lines, marker: marker.map(str::as_bytes) };
        let mut parts = VecDeque::new();
        for file in newest_first(path)? {
            let end = file.metadata()?.len();
            let start = back.start_in(&file, end)?;
            parts.push_front(Part { file, start: start.unwrap_or(0), end });
            if start.is_some() {
                break;
            }
        }
        Ok(Self { path: path.to_owned(), parts })
    }

    /// What comes next, at most 64 KiB; `None` at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        while let Some(part) = self.parts.front_mut() {
            let left = usize::try_from(part.end.saturating_sub(part.start)).unwrap_or(PIECE);
            let mut piece = vec![0; left.min(PIECE)];
            let length = part.file.read_at(&mut piece, part.start)?;
            if length > 0 {
                part.start += length as u64;
                piece.truncate(length);
                return Ok(Some(piece));
            }
            if self.parts.len() == 1 {
                return Ok(None);
            }
            self.parts.pop_front();
        }
        Ok(None)
    }

    /// What is written after it.
    pub(crate) fn follow(self) -> io::Result<Following> {
        let mut held = VecDeque::new();
        if let Some(Part { mut file, end, .. }) = self.parts.into_iter().next_back() {
            file.seek(SeekFrom::Start(end))?;
            held.push_back(Held { file, after_gap: false });
        }
        Ok(Following { path: self.path, held })
    }
}

impl Following {
    /// Everything that is in a log and comes to it, from its beginning.
    pub(crate) fn from_beginning(path: &Path) -> Self {
        Self { path: path.to_owned(), held: VecDeque::new() }
    }

    /// What comes next; `None` when there is nothing more at present.
    pub(crate) fn next(&mut self) -> io::Result<Option<Piece>> {
        loop {
            // Before the present file is read: once there is a newer one, nothing more comes to it.
            self.look_ahead()?;
            let is_last = self.held.len() == 1;
            let Some(Held { file, after_gap }) = self.held.front_mut() else { return Ok(None) };
            if std::mem::take(after_gap) {
                return Ok(Some(Piece::Gap));
            }
            let mut piece = vec![0; PIECE];
            let length = file.read(&mut piece)?;
            if length > 0 {
                piece.truncate(length);
                return Ok(Some(Piece::Bytes(piece)));
            }
            if !is_last {
                self.held.pop_front();
            } else if file.metadata()?.len() < file.stream_position()? {
                // Somebody has emptied it.
                file.rewind()?;
            } else {
                return Ok(None);
            }
        }
    }

    /// Takes hold of the files that were begun after the newest that is held.
    fn look_ahead(&mut self) -> io::Result<()> {
        if self.held.len() >= AHEAD {
            return Ok(());
        }
        let newest = self.held.back().map(|held| identity(&held.file)).transpose()?;
        let mut newer = VecDeque::new();
        let mut after_gap = newest.is_some();
        for file in newest_first(&self.path)? {
            if Some(identity(&file)?) == newest {
                after_gap = false;
                break;
            }
            newer.push_front(file);
        }
        for file in newer {
            self.held.push_back(Held { file, after_gap: std::mem::take(&mut after_gap) });
        }
        Ok(())
    }
}

/// The files of a log, each once, although they may be renamed meanwhile: they only ever move on to the
/// next number, and in mid-rotation one number is free.
fn newest_first(path: &Path) -> io::Result<impl Iterator<Item = File>> {
    let mut files: Vec<((u64, u64), File)> = Vec::new();
    let mut free = 0;
    for number in 0.. {
        let Some(file) = absent_is_none(File::open(numbered(path, number)))? else {
            free += 1;
            if free == 2 {
                break;
            }
            continue;
        };
        free = 0;
        let identity = identity(&file)?;
        if files.iter().all(|(known, _)| *known != identity) {
            files.push((identity, file));
        }
    }
    Ok(files.into_iter().map(|(_, file)| file))
}

/// Counts lines from the end of the stream to its beginning.
struct Backwards<'a> {
    /// How many line feeds to pass; not known before a byte was seen.
    newlines: Option<usize>,
    lines: usize,
    /// How the line begins before which nothing is wanted.
    marker: Option<&'a [u8]>,
}

impl Backwards<'_> {
    /// Where the last lines begin in the next older file, if they do.
    fn start_in(&mut self, file: &File, mut end: u64) -> io::Result<Option<u64>> {
        if self.lines == 0 {
            return Ok(Some(end));
        }
        let mut buffer = vec![0; PIECE];
        while end > 0 {
            let start = end.saturating_sub(PIECE as u64);
            let length = usize::try_from(end - start).unwrap_or(PIECE);
            let Some(piece) = buffer.get_mut(..length) else { break };
            file.read_exact_at(piece, start)?;
            // The line feed at the very end ends the last line and begins none.
            let ends_a_line = usize::from(piece.last() == Some(&b'\n'));
            let newlines = self.newlines.get_or_insert(self.lines.saturating_add(ends_a_line));
            for (index, _) in piece.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
                *newlines = newlines.saturating_sub(1);
                let line = start + index as u64 + 1;
                if *newlines == 0
                    || self.marker.is_some_and(|marker| begins_with(file, line, marker, piece, start))
                {
                    return Ok(Some(line));
                }
            }
            end = start;
        }
        let marked = self.marker.is_some_and(|marker| begins_with(file, 0, marker, &[], 0));
        Ok(marked.then_some(0))
    }
}

/// Whether a line begins like this; `piece` is what was read of the file from `start` on.
fn begins_with(file: &File, line: u64, marker: &[u8], piece: &[u8], start: u64) -> bool {
    let from = usize::try_from(line - start).unwrap_or(usize::MAX);
    if let Some(begin) = piece.get(from..).and_then(|rest| rest.get(..marker.len())) {
        return begin == marker;
    }
    let mut begin = vec![0; marker.len()];
    file.read_exact_at(&mut begin, line).is_ok() && begin == marker
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|found| (found.dev(), found.ino()))
}

fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return path.to_owned();
    }
    let mut name = OsString::from(path);
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use tempfile::TempDir;

    struct Log {
        folder: TempDir,
    }

    impl Log {
        fn new() -> Self {
            Self { folder: TempDir::new().unwrap() }
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("x.log")
        }

        fn append(&self, text: &str) {
            let mut file = OpenOptions::new().append(true).create(true).open(self.path()).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }

        fn rotate(&self, keep: u32) {
            for number in (1..keep).rev() {
                let _ = fs::rename(numbered(&self.path(), number), numbered(&self.path(), number + 1));
            }
            fs::rename(self.path(), numbered(&self.path(), 1)).unwrap();
        }
    }

    fn rest(log: &mut Following) -> String {
        let mut text = String::new();
        while let Some(piece) = log.next().unwrap() {
            match piece {
                Piece::Bytes(bytes) => text.push_str(std::str::from_utf8(&bytes).unwrap()),
                Piece::Gap => text.push('…'),
            }
        }
        text
    }

    fn all(snapshot: &mut Snapshot) -> String {
        let mut bytes = Vec::new();
        while let Some(piece) = snapshot.next().unwrap() {
            bytes.extend(piece);
        }
        String::from_utf8(bytes).unwrap()
    }

    fn last(log: &Log, lines: usize) -> String {
        all(&mut Snapshot::of(&log.path(), lines, None).unwrap())
    }

    /// Follows from the end of the log as it is.
    fn follow(log: &Log) -> Following {
        Snapshot::of(&log.path(), 0, None).unwrap().follow().unwrap()
    }

    #[test]
    fn the_last_lines_may_begin_in_a_rotated_file() {
        let log = Log::new();
        assert_eq!(last(&log, 5), "");
        log.append("one\ntwo\n");
        log.rotate(3);
        log.append("three\nfour");
        assert_eq!(last(&log, 0), "");
        assert_eq!(last(&log, 1), "four");
        assert_eq!(last(&log, 2), "three\nfour");
        assert_eq!(last(&log, 3), "two\nthree\nfour");
        assert_eq!(last(&log, 99), "one\ntwo\nthree\nfour");
        log.append("\n");
        assert_eq!(last(&log, 1), "four\n");
        log.rotate(3);
        log.append("");
        assert_eq!(last(&log, 1), "four\n");
    }

    #[test]
    fn lines_are_counted_across_the_pieces_of_a_large_file() {
        let log = Log::new();
        let lines: Vec<String> = (0..20_000).map(|number| format!("line {number}\n")).collect();
        log.append(&lines.concat());
        for count in [1, 5000, 15_000, 20_000] {
            assert_eq!(last(&log, count), lines[20_000 - count..].concat());
        }
    }

    #[test]
    fn a_snapshot_may_begin_at_the_last_line_of_a_kind_wherever_that_is() {
        let since =
            |log: &Log, lines| all(&mut Snapshot::of(&log.path(), lines, Some("--- start ")).unwrap());
        let log = Log::new();
        log.append("none\n");
        assert_eq!(since(&log, usize::MAX), "none\n");
        log.append("--- start 1\none\n--- start 2\ntwo --- start \n");
        assert_eq!(since(&log, usize::MAX), "--- start 2\ntwo --- start \n");
        assert_eq!(since(&log, 1), "two --- start \n");
        log.rotate(3);
        log.append("three\n");
        assert_eq!(since(&log, usize::MAX), "--- start 2\ntwo --- start \nthree\n");
        log.rotate(3);
        log.append("--- start 3\n");
        assert_eq!(since(&log, usize::MAX), "--- start 3\n");
        // Across the pieces in which a large file is read.
        for room in 0..20 {
            let filler = "x".repeat(PIECE - room) + "\n";
            log.append(&format!("--- start 4\n{filler}"));
            assert_eq!(since(&log, usize::MAX), format!("--- start 4\n{filler}"), "{room}");
        }
    }

    #[test]
    fn a_snapshot_ends_where_the_log_ended_when_it_was_taken() {
        let log = Log::new();
        log.append("one\n");
        log.rotate(3);
        log.append("two\n");
        let mut snapshot = Snapshot::of(&log.path(), 10, None).unwrap();
        log.append("later\n");
        log.rotate(3);
        log.append("later still\n");
        assert_eq!(all(&mut snapshot), "one\ntwo\n");
        assert_eq!(rest(&mut snapshot.follow().unwrap()), "later\nlater still\n");
    }

    #[test]
    fn a_log_in_mid_rotation_is_whole() {
        let log = Log::new();
        for text in ["one\n", "two\n", "three\n"] {
            log.append(text);
            log.rotate(5);
        }
        assert_eq!(last(&log, 9), "one\ntwo\nthree\n");
        fs::rename(numbered(&log.path(), 1), log.path()).unwrap();
        assert_eq!(last(&log, 9), "one\ntwo\nthree\n");
    }

    #[test]
    fn nothing_is_lost_or_repeated_by_rotation() {
        let log = Log::new();
        log.append("a\n");
        let mut following = follow(&log);
        log.append("b\n");
        log.rotate(3);
        assert_eq!(rest(&mut following), "b\n");
        for text in ["c\n", "d\n"] {
            log.append(text);
            log.rotate(3);
        }
        log.append("e\n");
        assert_eq!(rest(&mut following), "c\nd\ne\n");
    }

    #[test]
    fn what_is_rotated_away_while_an_older_file_is_read_is_still_read() {
        let log = Log::new();
        log.append(&"a\n".repeat(PIECE));
        let mut following = Following::from_beginning(&log.path());
        let Some(Piece::Bytes(mut read)) = following.next().unwrap() else { panic!("bytes") };
        for text in ["b\n", "c\n"] {
            log.rotate(1);
            log.append(text);
            let Some(Piece::Bytes(piece)) = following.next().unwrap() else { panic!("bytes") };
            read.extend(piece);
        }
        assert_eq!(String::from_utf8(read).unwrap() + &rest(&mut following), "a\n".repeat(PIECE) + "b\nc\n");
    }

    #[test]
    fn what_is_gone_is_told() {
        let log = Log::new();
        log.append("a\n");
        let mut following = follow(&log);
        for text in ["b\n", "c\n", "d\n"] {
            log.rotate(1);
            log.append(text);
        }
        assert_eq!(rest(&mut following), "…c\nd\n");
    }

    #[test]
    fn a_file_that_was_emptied_is_read_from_its_beginning() {
        let log = Log::new();
        log.append("before\n");
        let mut following = Following::from_beginning(&log.path());
        assert_eq!(rest(&mut following), "before\n");
        File::create(log.path()).unwrap();
        log.append("new\n");
        assert_eq!(rest(&mut following), "new\n");
    }

    #[test]
    fn a_log_that_comes_later_is_followed() {
        let log = Log::new();
        let mut following = follow(&log);
        assert_eq!(rest(&mut following), "");
        log.append("first\n");
        assert_eq!(rest(&mut following), "first\n");
    }
}
