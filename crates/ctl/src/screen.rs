//! Where output goes: standard output for what was asked for, standard error for everything else.

use crate::arguments::{Global, When};
use crate::problem::{Exit, Problem, Shown};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::env;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// The two streams of the program and how to write on them.
pub(crate) struct Screen {
    output: Stream,
    errors: Stream,
    /// Whether JSON was asked for.
    pub(crate) json: bool,
    quiet: bool,
    verbose: bool,
    progress: Cell<bool>,
    /// Whether programs have their JSON.
    answered: Cell<bool>,
}

struct Stream {
    writer: RefCell<Box<dyn Write>>,
    terminal: bool,
    colour: bool,
}

/// How a piece of text looks on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Style {
    /// As it is.
    #[default]
    Plain,
    /// Names and headings.
    Bold,
    /// What matters less.
    Dim,
    /// What is well.
    Green,
    /// What is under way.
    Yellow,
    /// What is wrong.
    Red,
    /// Who speaks.
    Cyan,
}

impl Screen {
    /// The screen of this process.
    pub(crate) fn of_process(global: &Global) -> Self {
        let stream = |writer: Box<dyn Write>, terminal: bool| {
            let colour = wants_colour(
                global.color,
                terminal,
                env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()),
                env::var_os("TERM").is_some_and(|value| value == "dumb"),
            );
            Stream { writer: RefCell::new(writer), terminal, colour }
        };
        Self {
            output: stream(Box::new(io::stdout()), io::stdout().is_terminal()),
            errors: stream(Box::new(io::stderr()), io::stderr().is_terminal()),
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose,
            progress: Cell::new(false),
            answered: Cell::new(false),
        }
    }

    /// A screen without terminals and colours on two writers.
    #[cfg(test)]
    pub(crate) fn on(output: Box<dyn Write>, errors: Box<dyn Write>, global: &Global) -> Self {
        let stream = |writer| Stream {
            writer: RefCell::new(writer),
            terminal: false,
            colour: wants_colour(global.color, false, false, false),
        };
        Self {
            output: stream(output),
            errors: stream(errors),
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose,
            progress: Cell::new(false),
            answered: Cell::new(false),
        }
    }

    /// Text in a style, if standard output is coloured.
    pub(crate) fn paint(&self, style: Style, text: impl Display) -> String {
        paint(self.output.colour, style, text)
    }

    /// Whether standard output shows colours.
    pub(crate) fn colour(&self) -> bool {
        self.output.colour
    }

    /// One line of what was asked for.
    pub(crate) fn line(&self, text: impl Display) -> Result<(), Problem> {
        self.clear_progress();
        self.bytes(format!("{text}\n").as_bytes())
    }

    /// Bytes of what was asked for, as they are.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<(), Problem> {
        let mut writer = self.output.writer.borrow_mut();
        writer.write_all(bytes).and_then(|()| writer.flush()).map_err(|error| Problem::of_output(&error))
    }

    /// A value as JSON for programs to read.
    pub(crate) fn value(&self, value: &impl Serialize) -> Result<(), Problem> {
        self.answered.set(true);
        let text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
        self.line(text)
    }

    /// One of many values, on a line of its own.
    pub(crate) fn json_line(&self, value: &impl Serialize) -> Result<(), Problem> {
        self.answered.set(true);
        let text = serde_json::to_string(value).map_err(io::Error::from)?;
        self.line(text)
    }

    /// What was done, for people: not with `--quiet`, and not among JSON.
    pub(crate) fn done(&self, text: impl Display) -> Result<(), Problem> {
        if self.quiet || self.json { Ok(()) } else { self.line(text) }
    }

    /// Something that the user should know, on standard error.
    pub(crate) fn warning(&self, text: impl Display) {
        self.complain(Style::Yellow, "warning", text);
    }

    /// What is being done and with what, with `--verbose`, on standard error.
    pub(crate) fn detail(&self, text: impl Display) {
        if self.verbose {
            self.complain(Style::Dim, "detail", text);
        }
    }

    /// Tells a problem and gives its exit code.
    pub(crate) fn problem(&self, problem: &Problem) -> Exit {
        if let Problem::Told { message, hint, .. } = problem {
            self.complain(Style::Red, "error", message);
            if let Some(hint) = hint {
                self.complain(Style::Cyan, "hint", hint);
            }
        }
        problem.exit()
    }

    /// Tells the problem that ends the program, to programs as well unless they have an answer already.
    pub(crate) fn end(&self, problem: &Problem) -> Exit {
        if self.json
            && !self.answered.get()
            && let Some(shown) = Shown::of(problem)
        {
            // What cannot be written here is told on standard error all the same.
            let _ = self.value(&shown);
        }
        self.problem(problem)
    }

    /// Whether a progress line is wanted: a person watches.
    pub(crate) fn shows_progress(&self) -> bool {
        self.errors.terminal && !self.quiet
    }

    /// Replaces the progress line.
    pub(crate) fn progress(&self, text: impl Display) {
        if self.shows_progress() {
            self.progress.set(true);
            let text = paint(self.errors.colour, Style::Dim, text);
            self.on_errors(&format!("\r\x1b[K{text}"));
        }
    }

    /// Takes the progress line away.
    pub(crate) fn clear_progress(&self) {
        if self.progress.replace(false) {
            self.on_errors("\r\x1b[K");
        }
    }

    fn complain(&self, style: Style, word: &str, text: impl Display) {
        self.clear_progress();
        let word = paint(self.errors.colour, style, format_args!("{word}:"));
        self.on_errors(&format!("{word} {text}\n"));
    }

    fn on_errors(&self, text: &str) {
        let mut writer = self.errors.writer.borrow_mut();
        // There is no further stream to report a broken standard error on.
        let _ = writer.write_all(text.as_bytes()).and_then(|()| writer.flush());
    }
}

/// Text in a style.
pub(crate) fn paint(colour: bool, style: Style, text: impl Display) -> String {
    let code = match style {
        Style::Plain => return text.to_string(),
        _ if !colour => return text.to_string(),
        Style::Bold => "1",
        Style::Dim => "2",
        Style::Green => "32",
        Style::Yellow => "33",
        Style::Red => "31",
        Style::Cyan => "36",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

fn wants_colour(when: When, terminal: bool, no_color: bool, dumb: bool) -> bool {
    match when {
        When::Always => true,
        When::Never => false,
        When::Auto => terminal && !no_color && !dumb,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_follows_the_flag_then_the_terminal_then_no_color() {
        assert!(wants_colour(When::Always, false, true, true));
        assert!(!wants_colour(When::Never, true, false, false));
        assert!(wants_colour(When::Auto, true, false, false));
        assert!(!wants_colour(When::Auto, false, false, false));
        assert!(!wants_colour(When::Auto, true, true, false));
        assert!(!wants_colour(When::Auto, true, false, true));
    }
}
