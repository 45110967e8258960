//! What is wrong with a file, and where.

use std::fmt;
use std::path::PathBuf;

/// A file that cannot be used, with everything that is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadError {
    /// The file.
    pub file: PathBuf,
    /// At least one fault, in the order of the file.
    pub faults: Vec<Fault>,
}

/// One thing that is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fault {
    /// The line, counted from 1; none where the fault is not in the text (its owner, its mode).
    pub line: Option<usize>,
    /// The column in characters, counted from 1.
    pub column: Option<usize>,
    /// The path of the field, `agents[0].env.PATH`.
    pub field: Option<String>,
    /// What is wrong.
    pub message: String,
    /// The word that was probably meant.
    pub suggestion: Option<String>,
}

impl Fault {
    /// A fault of the file as a whole.
    pub(crate) fn of_file(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(field) = &self.field {
            write!(f, "{field}: ")?;
        }
        f.write_str(&self.message)?;
        if let Some(suggestion) = &self.suggestion {
            write!(f, "; did you mean {suggestion}?")?;
        }
        Ok(())
    }
}

/// One line per fault: `FILE:LINE:COLUMN: FIELD: MESSAGE`.
impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}:", self.file.display())?;
            if let Some(line) = fault.line {
                write!(f, "{line}:")?;
                if let Some(column) = fault.column {
                    write!(f, "{column}:")?;
                }
            }
            write!(f, " {fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {}

/// The candidate that a misspelt word was probably meant to be.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Below this likeness (Jaro-Winkler, 0 to 1) a suggestion would be a guess.
    const ALIKE: f64 = 0.8;
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(&word, &candidate.to_lowercase()), candidate))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, candidate)| candidate)
}
