//! A log file that is rotated while it is read.
//!
//! ```text
//!  log.2 ──► log.1 ──► log          at the end of one file the next newer one goes on;
//!  oldest              newest       at the end of the newest there is nothing more at present
//! ```

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const PIECE: usize = 64 * 1024;

/// A log and its rotated predecessors, read as one stream.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    open: Option<File>,
}

impl LogFile {
    /// Opens the log at the beginning of its last `lines` lines; a log that does not exist yet is empty.
    pub(crate) fn at_last_lines(path: &Path, lines: usize) -> io::Result<Self> {
        let mut back = Backwards { newlines: None, lines };
        let mut oldest = None;
        for number in 0.. {
            let Some(mut file) = open(&numbered(path, number))? else { break };
            let start = back.start_in(&file)?;
            file.seek(SeekFrom::Start(start.unwrap_or(0)))?;
            oldest = Some(file);
            if start.is_some() {
                break;
            }
        }
        Ok(Self { path: path.to_owned(), open: oldest })
    }

    /// What comes next, at most 64 KiB; `None` when there is nothing more at present.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if self.open.is_none() {
                self.open = open(&self.path)?;
            }
            let Some(file) = &mut self.open else { return Ok(None) };
            if let Some(piece) = read(file)? {
                return Ok(Some(piece));
            }
            let found = file.metadata()?;
            if found.len() < file.stream_position()? {
                file.rewind()?;
                continue;
            }
            if is(&self.path, &found)? {
                return Ok(None);
            }
            // It was rotated away; what was written just before that is read before the successor.
            if let Some(piece) = read(file)? {
                return Ok(Some(piece));
            }
            match self.successor(&found)? {
                Some(newer) => self.open = Some(newer),
                None => return Ok(None),
            }
        }
    }

    /// The file that was written after this one; the oldest that is left if this one is gone.
    fn successor(&self, found: &Metadata) -> io::Result<Option<File>> {
        let mut newer = open(&self.path)?;
        for number in 1.. {
            let path = numbered(&self.path, number);
            if is(&path, found)? {
                break;
            }
            match open(&path)? {
                Some(file) => newer = Some(file),
                None => break,
            }
        }
        Ok(newer)
    }
}

/// Counts lines from the end of the stream to its beginning.
struct Backwards {
    /// How many line feeds to pass; not known before a byte was seen.
    newlines: Option<usize>,
    lines: usize,
}

impl Backwards {
    /// Where the last lines begin in the next older file, if they do.
    fn start_in(&mut self, file: &File) -> io::Result<Option<u64>> {
        let mut end = file.metadata()?.len();
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
            let newlines = self.newlines.get_or_insert(self.lines + ends_a_line);
            for (index, _) in piece.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
                *newlines = newlines.saturating_sub(1);
                if *newlines == 0 {
                    return Ok(Some(start + index as u64 + 1));
                }
            }
            end = start;
        }
        Ok(None)
    }
}

fn read(file: &mut File) -> io::Result<Option<Vec<u8>>> {
    let mut piece = vec![0; PIECE];
    let length = file.read(&mut piece)?;
    piece.truncate(length);
    Ok((length > 0).then_some(piece))
}

fn open(path: &Path) -> io::Result<Option<File>> {
    absent_is_none(File::open(path))
}

fn is(path: &Path, file: &Metadata) -> io::Result<bool> {
    let there = absent_is_none(path.metadata())?;
    Ok(there.is_some_and(|there| (there.dev(), there.ino()) == (file.dev(), file.ino())))
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

    fn rest(log: &mut LogFile) -> String {
        let mut bytes = Vec::new();
        while let Some(piece) = log.next().unwrap() {
            bytes.extend(piece);
        }
        String::from_utf8(bytes).unwrap()
    }

    fn last(log: &Log, lines: usize) -> String {
        rest(&mut LogFile::at_last_lines(&log.path(), lines).unwrap())
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
    fn nothing_is_lost_or_repeated_by_rotation() {
        let log = Log::new();
        log.append("a\n");
        let mut following = LogFile::at_last_lines(&log.path(), 10).unwrap();
        assert_eq!(rest(&mut following), "a\n");
        log.append("b\n");
        log.rotate(3);
        assert_eq!(rest(&mut following), "b\n");
        log.append("c\n");
        log.rotate(3);
        log.append("d\n");
        log.rotate(3);
        log.append("e\n");
        assert_eq!(rest(&mut following), "c\nd\ne\n");
    }

    #[test]
    fn a_file_that_was_emptied_is_read_from_its_beginning() {
        let log = Log::new();
        log.append("before\n");
        let mut following = LogFile::at_last_lines(&log.path(), 1).unwrap();
        assert_eq!(rest(&mut following), "before\n");
        File::create(log.path()).unwrap();
        log.append("new\n");
        assert_eq!(rest(&mut following), "new\n");
    }

    #[test]
    fn a_log_that_comes_later_is_followed() {
        let log = Log::new();
        let mut following = LogFile::at_last_lines(&log.path(), 10).unwrap();
        assert_eq!(rest(&mut following), "");
        log.append("first\n");
        assert_eq!(rest(&mut following), "first\n");
    }
}
