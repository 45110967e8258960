//! The file that takes the agent's output: rotated by size, losing nothing, never waited for.

use mcp_restart_process::file::{has_name, open_log};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// From the first loss to the first look whether there is room again; each pause is twice the last.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);

/// An open log.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: File,
    /// Only a regular file has a size and is rotated.
    rotation: Option<Rotation>,
    at_line_start: bool,
    /// Bytes that could not be written since the last that could be, and why.
    lost: u64,
    fault: String,
    /// When it is tried again to tell so, without new output, and how long after that once more.
    retry: Option<(Instant, Duration)>,
}

#[derive(Debug)]
struct Rotation {
    size: u64,
    /// At this size it is rotated.
    limit: u64,
    max_bytes: u64,
    keep: u32,
}

impl Log {
    /// Opens the log, which is made if it is not there. With `max_bytes` zero it is never rotated.
    pub(crate) fn open(path: &Path, max_bytes: u64, keep: u32) -> io::Result<Self> {
        let file = open_log(path)?;
        let metadata = file.metadata()?;
        let size = metadata.len();
        let rotation = metadata.is_file().then_some(Rotation { size, limit: max_bytes, max_bytes, keep });
        let at_line_start = rotation.is_none() || size == 0 || last_byte(&file, size) == Some(b'\n');
        Ok(Self {
            path: path.to_owned(),
            file,
            rotation,
            at_line_start,
            lost: 0,
            fault: String::new(),
            retry: None,
        })
    }

    /// When there may be room again to tell what was lost.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.retry.map(|(at, _)| at)
    }

    /// Tells what was lost, if it is time to try.
    pub(crate) fn due(&mut self, now: Instant) {
        if let Some((at, pause)) = self.retry
            && at <= now
            && !self.tell_lost()
        {
            self.retry = Some((now + pause, (pause * 2).min(LONGEST_PAUSE)));
        }
    }

    /// Appends output. What cannot be written is counted and told when writing works again.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        if self.lost > 0 && !self.tell_lost() {
            self.lost += bytes.len() as u64;
            return;
        }
        self.append(bytes);
    }

    /// Appends a line of our own.
    pub(crate) fn note(&mut self, text: &str) {
        self.write(note_line(self.at_line_start, text).as_bytes());
    }

    /// Says how much was lost; false if that cannot be written either.
    fn tell_lost(&mut self) -> bool {
        let text = format!("{} bytes of output were lost: {}", self.lost, self.fault);
        let line = note_line(self.at_line_start, &text);
        let lost = std::mem::take(&mut self.lost);
        self.append(line.as_bytes());
        let told = self.lost == 0;
        if told {
            self.retry = None;
        } else {
            self.lost = lost;
        }
        told
    }

    fn append(&mut self, mut bytes: &[u8]) {
        self.reopen_if_taken_away();
        while !bytes.is_empty() {
            let Some(room) = self.room_for(bytes) else {
                self.rotate();
                continue;
            };
            let piece = bytes.get(..room).unwrap_or(bytes);
            match self.file.write(piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(written) if written > 0 => {
                    self.at_line_start = piece.get(written - 1) == Some(&b'\n');
                    if let Some(rotation) = &mut self.rotation {
                        rotation.size += written as u64;
                    }
                    bytes = bytes.get(written..).unwrap_or_default();
                }
                result => {
                    self.lost += bytes.len() as u64;
                    self.retry.get_or_insert_with(|| (Instant::now() + FIRST_PAUSE, FIRST_PAUSE * 2));
                    self.fault =
                        result.map_or_else(|error| error.to_string(), |_| "no reason given".to_owned());
                    return;
                }
            }
        }
    }

    /// What somebody deleted, or moved away to keep it, would take in the rest unseen.
    fn reopen_if_taken_away(&mut self) {
        let Some(rotation) = &mut self.rotation else { return };
        if !has_name(&self.file, &self.path)
            && let Ok(file) = open_log(&self.path)
        {
            rotation.size = file.metadata().map_or(0, |metadata| metadata.len());
            rotation.limit = rotation.max_bytes;
            self.at_line_start = true;
            self.file = file;
        }
    }

    /// How many of these bytes go into the file as it is: whole lines if they fit, else as much as the
    /// file may hold; `None` when it has to be rotated first.
    fn room_for(&self, bytes: &[u8]) -> Option<usize> {
        let Some(rotation) = self.rotation.as_ref().filter(|rotation| rotation.max_bytes > 0) else {
            return Some(bytes.len());
        };
        let room = usize::try_from(rotation.limit.saturating_sub(rotation.size)).unwrap_or(usize::MAX);
        let Some(fitting) = bytes.get(..room).filter(|_| room < bytes.len()) else {
            return Some(bytes.len());
        };
        match fitting.iter().rposition(|&byte| byte == b'\n') {
            Some(newline) => Some(newline + 1),
            // A line that is longer than a whole file.
            None if rotation.size == 0 => Some(room),
            None => None,
        }
    }

    /// Begins a new file. If that fails, the present one goes on and it is tried again later.
    fn rotate(&mut self) {
        let Some(rotation) = &mut self.rotation else { return };
        if let Ok(now) = self.file.metadata().map(|metadata| metadata.len())
            && now < rotation.size
        {
            // Somebody has emptied it meanwhile.
            rotation.size = now;
            if now < rotation.limit {
                return;
            }
        }
        match begin_new(&self.path, rotation.keep) {
            Ok(file) => {
                self.file = file;
                rotation.size = 0;
                rotation.limit = rotation.max_bytes;
            }
            Err(_) => rotation.limit = rotation.size.saturating_add(rotation.max_bytes),
        }
    }
}

/// A new, empty file in the place of the log, which becomes `.1`, and so on up to `keep`.
fn begin_new(path: &Path, keep: u32) -> io::Result<File> {
    let draft = numbered(path, "next");
    let _ = fs::remove_file(&draft);
    // First of all the new file: without one nothing is moved.
    let file = open_log(&draft)?;
    let moved = shift(path, keep).and_then(|()| fs::rename(&draft, path));
    if moved.is_err() {
        let _ = fs::remove_file(&draft);
    }
    moved.map(|()| file)
}

fn shift(path: &Path, keep: u32) -> io::Result<()> {
    for number in (1..keep).rev() {
        rename(&numbered(path, number), &numbered(path, number + 1))?;
    }
    if keep > 0 { rename(path, &numbered(path, 1)) } else { Ok(()) }
}

/// Somebody else may have moved it away already.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn numbered(path: &Path, suffix: impl std::fmt::Display) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{suffix}"));
    name.into()
}

fn note_line(at_line_start: bool, text: &str) -> String {
    let begin = if at_line_start { "" } else { "\n" };
    format!("{begin}--- mcp-restart: {text} ---\n")
}

fn last_byte(file: &File, size: u64) -> Option<u8> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, size.checked_sub(1)?).ok()?;
    let [byte] = byte;
    Some(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn rotation_loses_and_doubles_nothing_and_no_file_is_over_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        let mut log = Log::open(&path, 1000, 400).unwrap();
        let text = (0..20_000).fold(String::new(), |text, number| text + &number.to_string() + "\n");
        for piece in text.as_bytes().chunks(777) {
            log.write(piece);
        }
        let mut all = String::new();
        for number in (1..=400).rev() {
            all += &read(&numbered(&path, number));
        }
        all += &read(&path);
        assert!(all == text);
        for entry in fs::read_dir(folder.path()).unwrap() {
            let entry = entry.unwrap();
            assert!(entry.metadata().unwrap().len() <= 1000, "{entry:?}");
        }
    }

    #[test]
    fn a_log_that_somebody_deleted_or_moved_away_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (folder.path().join("a.log"), folder.path().join("a.log-20261201"));
        let mut log = Log::open(&path, 1000, 2).unwrap();
        log.write(b"one\n");
        fs::remove_file(&path).unwrap();
        log.write(b"two\n");
        assert_eq!(read(&path), "two\n");
        fs::rename(&path, &elsewhere).unwrap();
        log.write(b"three\n");
        assert_eq!((read(&elsewhere), read(&path)), ("two\n".into(), "three\n".into()));
        // As those do who make the next file themselves.
        fs::rename(&path, &elsewhere).unwrap();
        fs::write(&path, "").unwrap();
        log.write(b"four\n");
        assert_eq!((read(&elsewhere), read(&path)), ("three\n".into(), "four\n".into()));
        std::os::unix::fs::symlink(&elsewhere, folder.path().join("link")).unwrap();
        fs::rename(folder.path().join("link"), &path).unwrap();
        log.write(b"five\n");
        assert_eq!(read(&elsewhere), "three\n", "a link is not followed");
    }

    #[test]
    fn only_so_many_files_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        let mut log = Log::open(&path, 10, 2).unwrap();
        for number in 0..10 {
            log.write(format!("line {number}\n").as_bytes());
        }
        assert_eq!(read(&path), "line 9\n");
        assert_eq!(read(&numbered(&path, 1)), "line 8\n");
        assert_eq!(read(&numbered(&path, 2)), "line 7\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        let mut log = Log::open(&path, 10, 0).unwrap();
        log.write(b"line 10\n");
        assert_eq!(read(&path), "line 10\n");
    }

    #[test]
    fn a_line_longer_than_a_file_is_cut_and_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        let mut log = Log::open(&path, 4, 3).unwrap();
        log.write(b"abcdefghij");
        assert_eq!(read(&numbered(&path, 2)) + &read(&numbered(&path, 1)) + &read(&path), "abcdefghij");
    }

    #[test]
    fn a_log_that_cannot_be_rotated_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        fs::create_dir_all(numbered(&path, 1).join("in the way")).unwrap();
        let mut log = Log::open(&path, 10, 1).unwrap();
        for _ in 0..10 {
            log.write(b"line\n");
        }
        assert_eq!(read(&path), "line\n".repeat(10));
        fs::remove_dir_all(numbered(&path, 1)).unwrap();
        log.write(b"line\nline\n");
        assert_eq!(read(&numbered(&path, 1)) + &read(&path), "line\n".repeat(12));
    }

    #[test]
    fn a_note_is_a_line_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        fs::write(&path, "cut off").unwrap();
        let mut log = Log::open(&path, 0, 0).unwrap();
        log.note("one");
        log.note("two");
        assert_eq!(read(&path), "cut off\n--- mcp-restart: one ---\n--- mcp-restart: two ---\n");
    }

    #[test]
    fn a_pipe_that_nobody_reads_blocks_nobody_and_its_loss_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        #[expect(clippy::disallowed_methods, reason = "the standard library makes no named pipes")]
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let mut log = Log::open(&path, 10, 3).unwrap();
        let block = [b'x'; 4096];
        for _ in 0..32 {
            log.write(&block);
        }
        assert!(log.lost > 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "it was rotated");
        let lost = log.lost;
        let mut reader = open_log(&path).unwrap();
        let mut kept = vec![0; 128 * 1024];
        let kept = io::Read::read(&mut reader, &mut kept).unwrap() as u64;
        assert_eq!(kept + lost, 32 * 4096);
        log.write(b"again\n");
        let mut rest = vec![0; 1024];
        let read = io::Read::read(&mut reader, &mut rest).unwrap();
        let rest = String::from_utf8_lossy(&rest[..read]).into_owned();
        assert!(rest.contains(&format!("--- mcp-restart: {lost} bytes of output were lost: ")), "{rest}");
        assert!(rest.ends_with("---\nagain\n"), "{rest}");
    }

    #[test]
    fn a_full_disk_is_told_when_there_is_room_again() {
        // Every write to this device fails as on a full disk.
        let mut log = Log::open(Path::new("/dev/full"), 10, 3).unwrap();
        log.write(b"12345");
        log.write(b"67890");
        assert_eq!(log.lost, 10);
        // It is looked for room now and then, also if the agent has nothing more to say.
        let (first, _) = log.retry.unwrap();
        log.due(first);
        let second = log.wake_at().unwrap();
        assert_eq!(second, first + FIRST_PAUSE * 2);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        log.file = open_log(&path).unwrap();
        log.due(first);
        assert_eq!(read(&path), "");
        log.due(second);
        assert_eq!(log.wake_at(), None);
        log.write(b"again\n");
        assert!(read(&path).starts_with("--- mcp-restart: 10 bytes of output were lost: No space left"));
        assert!(read(&path).ends_with("---\nagain\n"));
    }
}
