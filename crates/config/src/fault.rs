//! What is wrong with a file, and where.

use jsonc_parser::ast::Value;
use jsonc_parser::common::Ranged;
use std::cell::RefCell;
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

/// The way from the root of a file to a value. It borrows its parents, so it costs nothing until a fault
/// prints it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Element(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    pub(crate) fn field(&'a self, name: &'a str) -> Path<'a> {
        Path::Field(self, name)
    }

    pub(crate) fn element(&'a self, index: usize) -> Path<'a> {
        Path::Element(self, index)
    }

    /// The value at this path, or the innermost one above it that exists.
    pub(crate) fn locate<'v, 't>(&self, root: &'v Value<'t>) -> &'v Value<'t> {
        match self {
            Path::Root => root,
            Path::Field(parent, name) => {
                let parent = parent.locate(root);
                let property = parent.as_object().and_then(|object| object.get(name));
                property.map_or(parent, |property| &property.value)
            }
            Path::Element(parent, index) => {
                let parent = parent.locate(root);
                parent.as_array().and_then(|array| array.elements.get(*index)).unwrap_or(parent)
            }
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Field(Path::Root, name) => f.write_str(name),
            Path::Field(parent, name) => write!(f, "{parent}.{name}"),
            Path::Element(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Collects the faults of one text.
pub(crate) struct Faults<'t> {
    text: &'t str,
    found: RefCell<Vec<(usize, Fault)>>,
}

impl<'t> Faults<'t> {
    pub(crate) fn of(text: &'t str) -> Self {
        Self { text, found: RefCell::default() }
    }

    /// Records a fault at a byte offset of the text.
    pub(crate) fn at(&self, offset: usize, field: Path<'_>, message: String, suggestion: Option<&str>) {
        let (line, column) = position(self.text, offset);
        let field = Some(field.to_string()).filter(|field| !field.is_empty());
        let suggestion = suggestion.map(str::to_owned);
        let fault = Fault { line: Some(line), column: Some(column), field, message, suggestion };
        self.found.borrow_mut().push((offset, fault));
    }

    /// Records a fault of the value at a path.
    pub(crate) fn of_value(&self, root: &Value<'_>, field: Path<'_>, message: impl Into<String>) {
        self.at(field.locate(root).start(), field, message.into(), None);
    }

    /// Records a fault that is not in the text but in what goes with it.
    pub(crate) fn elsewhere(&self, message: String) {
        self.found.borrow_mut().push((0, Fault::of_file(message)));
    }

    /// Every fault, in the order of the text.
    pub(crate) fn into_sorted(self) -> Vec<Fault> {
        let mut found = self.found.into_inner();
        found.sort_by_key(|(offset, _)| *offset);
        found.into_iter().map(|(_, fault)| fault).collect()
    }
}

/// Line and column of a byte offset, both counted from 1.
pub(crate) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.matches('\n').count() + 1;
    let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
    (line, column)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters_and_lines_count_from_one() {
        assert_eq!(position("", 0), (1, 1));
        assert_eq!(position("é: x", "é: ".len()), (1, 4));
        assert_eq!(position("a\nbc\n", 4), (2, 3));
        assert_eq!(position("a\n", 2), (2, 1));
    }

    #[test]
    fn only_a_word_that_is_alike_is_suggested() {
        let fields = ["gracefulTimeoutMs", "settleMs", "command"];
        assert_eq!(nearest("gracefulTimeoutMS", fields), Some("gracefulTimeoutMs"));
        assert_eq!(nearest("comand", fields), Some("command"));
        assert_eq!(nearest("colour", fields), None);
    }
}
