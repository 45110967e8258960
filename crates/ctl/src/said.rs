//! What a program that was started has said on standard error, in the words that are worth repeating.

use std::fmt::Write as _;

/// So many of the last lines are repeated …
const LINES: usize = 5;
/// … with so many characters of each.
const WIDTH: usize = 200;

/// The last `error:` and `hint:` that a program printed; and its last lines, for one that prints neither.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) error: Option<String>,
    pub(crate) hint: Option<String>,
    last_lines: Vec<String>,
}

impl Said {
    pub(crate) fn parse(text: &str) -> Self {
        let mut said = Self::default();
        let mut target: Option<&mut String> = None;
        for line in text.lines().map(plain) {
            if let Some(error) = line.strip_prefix("error: ") {
                said.hint = None;
                target = Some(said.error.insert(error.to_owned()));
            } else if let Some(hint) = line.strip_prefix("hint: ") {
                target = Some(said.hint.insert(hint.to_owned()));
            } else if line.is_empty() {
                // Usage and the like follow.
                target = None;
            } else if let Some(words) = &mut target {
                words.push('\n');
                words.push_str(&line);
            }
        }
        let lines: Vec<String> = text.lines().map(plain).filter(|line| !line.is_empty()).map(cut).collect();
        said.last_lines = lines.into_iter().rev().take(LINES).rev().collect();
        said
    }

    /// Its error; else what became of it, with its last lines.
    pub(crate) fn error_or(&self, what: impl FnOnce() -> String) -> String {
        if let Some(error) = &self.error {
            return error.clone();
        }
        let mut message = what();
        if !self.last_lines.is_empty() {
            message.push_str("; its last words:");
        }
        for line in &self.last_lines {
            let _ = write!(message, "\n  {line}");
        }
        message
    }
}

/// A line without what could do anything to a terminal.
fn plain(line: &str) -> String {
    let line: String = line.chars().filter(|letter| !letter.is_control()).collect();
    line.trim_end().to_owned()
}

/// A line that is not longer than is worth repeating. An error is repeated whole: its end may matter most.
fn cut(line: String) -> String {
    match line.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_own_error_and_hint_are_found_among_its_log_lines() {
        let said = Said::parse("INFO starting\nerror: port 1 is taken\nby pid 2\nhint: take another\n");
        assert_eq!(said.error.as_deref(), Some("port 1 is taken\nby pid 2"));
        assert_eq!(said.hint.as_deref(), Some("take another"));
        let said = Said::parse("error: unexpected argument '--check' found\n\nUsage: x [OPTIONS]\n");
        assert_eq!(said.error_or(String::new), "unexpected argument '--check' found");
    }

    #[test]
    fn the_last_lines_of_a_program_that_names_no_error_are_not_lost() {
        let ended = || "it ended".to_owned();
        assert_eq!(Said::parse("").error_or(ended), "it ended");
        let long = "x".repeat(WIDTH + 7);
        let said = Said::parse(&format!("1\n2\n3\n4\n\n\u{1b}[31mSegmentation fault\n{long}\n"));
        let told = said.error_or(ended);
        let lines: Vec<_> = told.lines().collect();
        assert_eq!(&lines[..4], ["it ended; its last words:", "  2", "  3", "  4"]);
        assert_eq!(lines[4], "  [31mSegmentation fault");
        assert_eq!(lines[5].chars().count(), WIDTH + 3);
    }
}
