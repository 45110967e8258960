//! What the kernel makes of a file that is no script.

use crate::preflight::Unusable;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;

/// The loader that a program names, if it names one; or that it is no program for this machine. `head` is how
/// the file begins.
pub(crate) fn loader(file: &File, head: &[u8]) -> Result<Option<OsString>, Unusable> {
    if other_formats_are_executed() {
        return Ok(None);
    }
    let elf = Elf::of(head)?.ok_or(Unusable::NoFormat)?;
    elf.loader(file)
}

/// Whether the kernel was told of interpreters for other kinds of files.
fn other_formats_are_executed() -> bool {
    let entries = std::fs::read_dir("/proc/sys/fs/binfmt_misc").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| name != "register" && name != "status")
}

/// Where an executable of this machine's width and byte order has its table of segments.
struct Elf {
    table: u64,
    entry: u64,
    entries: u64,
}

impl Elf {
    /// `None` if it is no ELF file at all; no table if it is one that the kernel may know better.
    fn of(head: &[u8]) -> Result<Option<Self>, Unusable> {
        const CLASS_64: u8 = 2;
        const EXECUTABLE: u64 = 2;
        const SHARED: u64 = 3;
        const ORDER: u8 = if cfg!(target_endian = "little") { 1 } else { 2 };
        let Some((ident, rest)) = head.split_first_chunk::<16>() else { return Ok(None) };
        if !ident.starts_with(b"\x7fELF") {
            return Ok(None);
        }
        let [.., class, order, _, _, _, _, _, _, _, _, _, _] = *ident;
        if order == ORDER && number(rest, 2, 2).is_some_and(is_foreign) {
            return Err(Unusable::OtherMachine);
        }
        if order == ORDER && number(rest, 0, 2).is_some_and(|kind| ![EXECUTABLE, SHARED].contains(&kind)) {
            return Err(Unusable::NoFormat);
        }
        let field =
            |at, size| number(head, at, size).filter(|_| class == CLASS_64 && order == ORDER).unwrap_or(0);
        Ok(Some(Self { table: field(32, 8), entry: field(54, 2), entries: field(56, 2) }))
    }

    /// The loader that it names; or that a part of it lies beyond the end of its file.
    fn loader(&self, file: &File) -> Result<Option<OsString>, Unusable> {
        const LOADED: u64 = 1;
        const INTERPRETER: u64 = 3;
        const LONGEST: u64 = 4096;
        let length = file.metadata().map_err(Unusable::Unreadable)?.len();
        let mut loader = None;
        for index in 0..self.entries {
            let mut segment = [0; 56];
            let at = self.table.saturating_add(index * self.entry);
            file.read_exact_at(&mut segment, at).map_err(|_| Unusable::CutShort)?;
            let field = |at, size| number(&segment, at, size).unwrap_or_default();
            let (kind, begin, size) = (field(0, 4), field(8, 8), field(32, 8));
            if [LOADED, INTERPRETER].contains(&kind) && begin.checked_add(size).is_none_or(|end| end > length)
            {
                return Err(Unusable::CutShort);
            }
            if kind == INTERPRETER {
                let mut name = vec![0; usize::try_from(size.min(LONGEST)).unwrap_or_default()];
                file.read_exact_at(&mut name, begin).map_err(Unusable::Unreadable)?;
                name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(name.len()));
                loader = Some(OsString::from_vec(name));
            }
        }
        Ok(loader)
    }
}

/// Whether a program for this kind of processor surely does not run here. Some run those of the next narrower
/// kind, too.
fn is_foreign(machine: u64) -> bool {
    const I386: u64 = 3;
    const ARM: u64 = 40;
    const X86_64: u64 = 62;
    const AARCH64: u64 = 183;
    if cfg!(target_arch = "x86_64") {
        ![I386, X86_64].contains(&machine)
    } else if cfg!(target_arch = "aarch64") {
        ![ARM, AARCH64].contains(&machine)
    } else {
        false
    }
}

/// A number in this machine's byte order.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(size)?)?;
    let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    Some(if cfg!(target_endian = "little") {
        field.iter().rev().fold(0, add)
    } else {
        field.iter().fold(0, add)
    })
}
