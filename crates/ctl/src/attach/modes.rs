//! What an agent's output has turned on in the user's terminal, and how to turn exactly that off again.
//!
//! ```text
//!  output ─► sequences ─► modes that are not as they were ─► undo: the shortest way back
//! ```
//!
//! A terminal is not reset blindly: leaving an alternate screen that was never entered moves the cursor, and
//! what was never turned on may be the shell's own.

use std::collections::BTreeSet;

/// Private modes (`CSI ? n h`) that a shell does not expect to be on: application keys, reverse video, origin, the
/// mouse, margins, focus and paste reports, application keypad, synchronised output, reports of colours and sizes.
const OFF: [u16; 20] =
    [1, 5, 6, 9, 66, 69, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1015, 1016, 2004, 2026, 2031, 2048];
/// Private modes that it expects to be on: wrapping, the cursor.
const ON: [u16; 2] = [7, 25];
const ORIGIN: u16 = 6;
/// The alternate screen, in the order of its history.
const ALTERNATE: [u16; 3] = [47, 1047, 1049];

/// The modes of a terminal as far as its output tells.
#[derive(Debug, Clone, Default)]
pub(crate) struct Modes {
    state: State,
    /// Private modes that are the other way round.
    private: BTreeSet<u16>,
    /// The mode by which the alternate screen was entered.
    alternate: Option<u16>,
    /// The keyboard protocol of kitty on the main screen and on the alternate one.
    keyboards: [Keyboard; 2],
    modified_keys: bool,
    application_keypad: bool,
    insert: bool,
    scroll_region: bool,
    cursor_shape: bool,
    other_characters: bool,
    shifted_out: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Keyboard {
    pushed: u16,
    set: bool,
}

/// Where in a sequence the output is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    Escape,
    /// `ESC (` and the like, which take one more byte.
    Intermediate(u8),
    /// The parameters and intermediates so far.
    Control(Vec<u8>),
    /// An operating system command or another string, until BEL or `ESC \`.
    String,
    StringEscape,
}

/// More parameters than this have no meaning to us.
const LONG: usize = 64;

impl Modes {
    /// Takes what is shown next.
    pub(crate) fn take(&mut self, output: &[u8]) {
        for byte in output {
            self.take_byte(*byte);
        }
    }

    /// Whether the alternate screen is shown.
    pub(crate) fn is_alternate(&self) -> bool {
        self.alternate.is_some()
    }

    /// The bytes that turn off what was turned on. On the main screen the cursor stays in its column and line,
    /// unless a scroll region is undone, which moves it: then it goes to the last line.
    pub(crate) fn undo(&self) -> Vec<u8> {
        let mut undo = Vec::new();
        if self.state != State::Text {
            // Ends a sequence that was cut off.
            undo.push("\x1b\\".to_owned());
        }
        if self.scroll_region || self.private.contains(&ORIGIN) {
            undo.push("\x1b[?6l\x1b[r".to_owned());
            if !self.is_alternate() {
                undo.push("\x1b[999;1H".to_owned());
            }
        }
        let [main, alternate] = self.keyboards;
        if let Some(mode) = self.alternate {
            undo.extend(alternate.undo());
            undo.push(format!("\x1b[?{mode}l"));
        }
        undo.extend(main.undo());
        for mode in self.private.iter().filter(|mode| **mode != ORIGIN) {
            let last = if ON.contains(mode) { 'h' } else { 'l' };
            undo.push(format!("\x1b[?{mode}{last}"));
        }
        let others = [
            (self.modified_keys, "\x1b[>4m"),
            (self.application_keypad, "\x1b>"),
            (self.insert, "\x1b[4l"),
            (self.other_characters, "\x1b(B"),
            (self.shifted_out, "\x0f"),
            (self.cursor_shape, "\x1b[0 q"),
            // Colours are as at a prompt, whatever was shown.
            (true, "\x1b[0m"),
        ];
        undo.extend(others.into_iter().filter(|(is_due, _)| *is_due).map(|(_, off)| off.to_owned()));
        undo.concat().into_bytes()
    }

    fn take_byte(&mut self, byte: u8) {
        const CANCEL: u8 = 0x18;
        const SUBSTITUTE: u8 = 0x1a;
        const ESCAPE: u8 = 0x1b;
        const BELL: u8 = 0x07;
        self.state = match (std::mem::take(&mut self.state), byte) {
            (_, CANCEL | SUBSTITUTE) | (State::String, BELL) | (State::StringEscape, b'\\') => State::Text,
            (State::String | State::StringEscape, ESCAPE) => State::StringEscape,
            (State::String, _) => State::String,
            (_, ESCAPE) => State::Escape,
            (State::Text, _) => self.text(byte),
            (State::Escape | State::StringEscape, _) => self.escape(byte),
            (State::Intermediate(b'('), _) => {
                self.other_characters = byte != b'B';
                State::Text
            }
            (State::Intermediate(_), _) => State::Text,
            (State::Control(parameters), b'@'..=b'~') => {
                self.control(&parameters, byte);
                State::Text
            }
            (State::Control(mut parameters), b' '..=b'?') => {
                if parameters.len() < LONG {
                    parameters.push(byte);
                }
                State::Control(parameters)
            }
            // A control character inside a sequence is carried out, and the sequence goes on.
            (state @ State::Control(_), _) => state,
        };
    }

    fn text(&mut self, byte: u8) -> State {
        match byte {
            0x0e => self.shifted_out = true,
            0x0f => self.shifted_out = false,
            _ => {}
        }
        State::Text
    }

    fn escape(&mut self, byte: u8) -> State {
        match byte {
            b'[' => return State::Control(Vec::new()),
            b']' | b'P' | b'X' | b'^' | b'_' => return State::String,
            b' '..=b'/' => return State::Intermediate(byte),
            b'=' => self.application_keypad = true,
            b'>' => self.application_keypad = false,
            b'c' => *self = Self::default(),
            _ => {}
        }
        State::Text
    }

    fn control(&mut self, parameters: &[u8], last: u8) {
        let numbers = |text: &[u8]| -> Vec<u16> {
            let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse().ok();
            text.split(|byte| *byte == b';').map(|digits| number(digits).unwrap_or(0)).collect()
        };
        let first = |text: &[u8]| numbers(text).first().copied().unwrap_or(0);
        match (parameters, last) {
            ([b'?', modes @ ..], b'h' | b'l') => {
                for mode in numbers(modes) {
                    self.private_mode(mode, last == b'h');
                }
            }
            ([b'>', flags @ ..], b'm') => {
                if let [4, rest @ ..] = numbers(flags).as_slice() {
                    self.modified_keys = rest.iter().any(|level| *level > 0);
                }
            }
            ([b'>', ..], b'u') => self.keyboard().pushed = self.keyboard().pushed.saturating_add(1),
            ([b'<', count @ ..], b'u') => {
                let popped = first(count).max(1);
                self.keyboard().pushed = self.keyboard().pushed.saturating_sub(popped);
            }
            ([b'=', flags @ ..], b'u') => self.keyboard().set = first(flags) > 0,
            ([shape @ .., b' '], b'q') => self.cursor_shape = first(shape) > 0,
            ([b'?' | b'>' | b'<' | b'=', ..], _) => {}
            (region, b'r') => self.scroll_region = !region.is_empty(),
            (modes, b'h' | b'l') if numbers(modes).contains(&4) => self.insert = last == b'h',
            _ => {}
        }
    }

    fn private_mode(&mut self, mode: u16, set: bool) {
        if ALTERNATE.contains(&mode) {
            self.alternate = set.then(|| self.alternate.unwrap_or(mode));
        } else if OFF.contains(&mode) && set || ON.contains(&mode) && !set {
            self.private.insert(mode);
        } else {
            self.private.remove(&mode);
        }
    }

    fn keyboard(&mut self) -> &mut Keyboard {
        let [main, alternate] = &mut self.keyboards;
        if self.alternate.is_some() { alternate } else { main }
    }
}

impl Keyboard {
    fn undo(self) -> impl Iterator<Item = String> {
        let pop = (self.pushed > 0).then(|| format!("\x1b[<{}u", self.pushed));
        let unset = self.set.then(|| "\x1b[=0u".to_owned());
        pop.into_iter().chain(unset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLOURS: &str = "\x1b[0m";

    fn undo(output: &str) -> String {
        let mut modes = Modes::default();
        modes.take(output.as_bytes());
        String::from_utf8(modes.undo()).unwrap()
    }

    #[test]
    fn what_was_not_turned_on_is_not_turned_off() {
        for output in [
            "plain text\r\n\x1b[31mred\x1b[0m\x1b[2J\x1b[H",
            "\x1b]0;a title\x07\x1b]8;;http://x?25l\x1b\\\x1bPq[?1049h\x1b\\",
            "\x1b[?1049l\x1b[?25h\x1b[?2004l\x1b[?1000l\x1b>\x1b(B\x1b[r",
            "\x1b[?1049h\x1b[?1003h\x1b[?25l\x1b[>1u\x1b[<u\x1b[?25h\x1b[?1003l\x1b[?1049l",
            "\x1b[?1049h\x1b[>4;2m\x1b=\x1bc",
            "\x1b7\x1b8\x1b[6n\x1b[5;10H",
        ] {
            assert_eq!(undo(output), COLOURS, "{output:?}");
        }
    }

    #[test]
    fn what_was_turned_on_is_turned_off() {
        for (output, off) in [
            ("\x1b[?1049h", "\x1b[?1049l"),
            ("\x1b[?47h", "\x1b[?47l"),
            ("\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h"),
            ("\x1b[?1000;1006h\x1b[?2004h", "\x1b[?1000l\x1b[?1006l\x1b[?2004l"),
            ("\x1b[>1u\x1b[>3u", "\x1b[<2u"),
            ("\x1b[=1u", "\x1b[=0u"),
            ("\x1b[>4;2m", "\x1b[>4m"),
            ("\x1b=", "\x1b>"),
            ("\x1b[4h", "\x1b[4l"),
            ("\x1b(0", "\x1b(B"),
            ("\x0e", "\x0f"),
            ("\x1b[5 q", "\x1b[0 q"),
            ("\x1b[2;10r", "\x1b[?6l\x1b[r\x1b[999;1H"),
        ] {
            assert_eq!(undo(output), format!("{off}{COLOURS}"), "{output:?}");
        }
    }

    #[test]
    fn each_screen_gets_its_own_keyboard_back() {
        let output = "\x1b[>1u\x1b[?1049h\x1b[>1u\x1b[>1u";
        assert_eq!(undo(output), "\x1b[<2u\x1b[?1049l\x1b[<1u\x1b[0m");
    }

    #[test]
    fn a_sequence_that_was_cut_off_is_ended_first() {
        for output in ["\x1b", "\x1b[?10", "\x1b]0;tit", "\x1bP"] {
            assert_eq!(undo(output), format!("\x1b\\{COLOURS}"), "{output:?}");
        }
    }

    #[test]
    fn output_may_be_cut_anywhere() {
        let output = b"\x1b[?1049h\x1b[?1003;25l\x1b]0;x\x1b\\\x1b[>1u\x1b[?2004h\x1b(0";
        let mut whole = Modes::default();
        whole.take(output);
        let mut pieces = Modes::default();
        output.chunks(1).for_each(|piece| pieces.take(piece));
        assert_eq!(pieces.undo(), whole.undo());
    }
}
