//! The keys that detach: docker's syntax, found among what is typed.
//!
//! ```text
//!  typed ─► split into keys ─► key k of the sequence? ── no ──► held keys and this one go to the agent
//!                                   │ yes
//!                                   ├─ more to come: hold it
//!                                   └─ that was the last: detach
//! ```
//!
//! An agent may have switched the terminal to a keyboard protocol in which ctrl-p is not the byte 0x10 but
//! `ESC [ 112 ; 5 u` or `ESC [ 27 ; 5 ; 112 ~`: these are the same key here.

use std::str::FromStr;

/// A sequence of keys, `ctrl-p,ctrl-q`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DetachKeys(Vec<u8>);

impl FromStr for DetachKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(key).collect::<Option<_>>().map(Self).ok_or_else(|| {
            "expected keys separated by commas, each a character or ctrl- and one of a-z, @ [ \\ ] ^ _"
                .to_owned()
        })
    }
}

fn key(text: &str) -> Option<u8> {
    match text.as_bytes() {
        [character] if character.is_ascii_graphic() || *character == b' ' => Some(*character),
        [b'c', b't', b'r', b'l', b'-', letter] => control(letter.to_ascii_lowercase()),
        _ => None,
    }
}

fn control(letter: u8) -> Option<u8> {
    match letter {
        b'@' => Some(0),
        b'a'..=b'z' => Some(letter - b'a' + 1),
        b'[' => Some(27),
        b'\\' => Some(28),
        b']' => Some(29),
        b'^' => Some(30),
        b'_' => Some(31),
        _ => None,
    }
}

/// What is to be done with what was typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Typed {
    /// These bytes go to the agent, none perhaps.
    Send(Vec<u8>),
    /// The sequence is complete; the bytes before it go to the agent.
    Detach(Vec<u8>),
}

/// Looks for the detach sequence in a stream of keys.
#[derive(Debug, Clone)]
pub(crate) struct KeyFilter {
    sequence: Vec<u8>,
    matched: usize,
    held: Vec<u8>,
}

impl KeyFilter {
    /// A filter that has seen nothing yet.
    pub(crate) fn new(keys: DetachKeys) -> Self {
        Self { sequence: keys.0, matched: 0, held: Vec::new() }
    }

    /// Takes what was typed next.
    pub(crate) fn take(&mut self, mut typed: &[u8]) -> Typed {
        let mut send = Vec::new();
        while let Some((key, bytes, rest)) = next_key(typed) {
            typed = rest;
            match key {
                // A key that goes up, or a modifier alone, neither continues the sequence nor breaks it.
                Key::Release if self.matched > 0 => self.held.extend_from_slice(bytes),
                Key::Release => send.extend_from_slice(bytes),
                Key::Byte(byte) if self.sequence.get(self.matched) == Some(&byte) => self.hold(bytes),
                key => {
                    send.append(&mut self.held);
                    self.matched = 0;
                    if matches!(key, Key::Byte(byte) if self.sequence.first() == Some(&byte)) {
                        self.hold(bytes);
                    } else {
                        send.extend_from_slice(bytes);
                    }
                }
            }
            if self.matched == self.sequence.len() {
                return Typed::Detach(send);
            }
        }
        Typed::Send(send)
    }

    fn hold(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        self.matched += 1;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    /// The byte that this key sends on a plain terminal.
    Byte(u8),
    /// A key that goes up, or a modifier by itself.
    Release,
    /// Any other sequence.
    Other,
}

/// The first key of what was typed, its bytes, and the rest.
fn next_key(typed: &[u8]) -> Option<(Key, &[u8], &[u8])> {
    let (first, _) = typed.split_first()?;
    if let Some(parameters) = typed.strip_prefix(b"\x1b[") {
        let length = parameters.iter().take_while(|byte| matches!(byte, b'0'..=b';')).count();
        let (parameters, rest) = parameters.split_at(length);
        if let Some((last @ (b'u' | b'~'), rest)) = rest.split_first() {
            let (bytes, _) = typed.split_at(typed.len() - rest.len());
            return Some((sequence_key(parameters, *last), bytes, rest));
        }
    }
    let (bytes, rest) = typed.split_at(1);
    Some((Key::Byte(*first), bytes, rest))
}

const RELEASED: u32 = 3;
const MODIFIER_KEYS: std::ops::RangeInclusive<u32> = 57441..=57452;
const CTRL: u32 = 4;
// They make no other key.
const CAPS_LOCK: u32 = 64;
const NUM_LOCK: u32 = 128;

/// `CODE ; MODIFIERS : EVENT u`, or `27 ; MODIFIERS ; CODE ~`.
fn sequence_key(parameters: &[u8], last: u8) -> Key {
    let fields: Vec<Vec<u32>> = parameters.split(|byte| *byte == b';').map(numbers).collect();
    let field = |index: usize, part: usize| fields.get(index).and_then(|field| field.get(part)).copied();
    let (code, modifiers, event) = match (last, field(0, 0)) {
        (b'u', Some(code)) => (code, field(1, 0).unwrap_or(1), field(1, 1).unwrap_or(1)),
        (b'~', Some(27)) if fields.len() == 3 => (field(2, 0).unwrap_or(0), field(1, 0).unwrap_or(1), 1),
        _ => return Key::Other,
    };
    if event == RELEASED || MODIFIER_KEYS.contains(&code) {
        return Key::Release;
    }
    let held = modifiers.saturating_sub(1) & !(CAPS_LOCK | NUM_LOCK);
    match (u8::try_from(code), held) {
        (Ok(byte), 0) => Key::Byte(byte),
        (Ok(byte), CTRL) => control(byte.to_ascii_lowercase()).map_or(Key::Other, Key::Byte),
        _ => Key::Other,
    }
}

fn numbers(field: &[u8]) -> Vec<u32> {
    field
        .split(|byte| *byte == b':')
        .map(|digits| std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter() -> KeyFilter {
        KeyFilter::new("ctrl-p,ctrl-q".parse().unwrap())
    }

    #[test]
    fn the_syntax_is_dockers() {
        let cases: [(&str, &[u8]); 6] = [
            ("ctrl-p,ctrl-q", &[16, 17]),
            ("a", b"a"),
            ("ctrl-@,ctrl-[,ctrl-\\,ctrl-],ctrl-^,ctrl-_", &[0, 27, 28, 29, 30, 31]),
            ("ctrl-A,x", &[1, b'x']),
            ("~,.", b"~."),
            ("ctrl-z", &[26]),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse::<DetachKeys>(), Ok(DetachKeys(bytes.to_vec())), "{text}");
        }
        for wrong in ["", "ctrl-", "ctrl-1", "ctrl-pp", "ab", "a,", "é", "alt-x"] {
            assert!(wrong.parse::<DetachKeys>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_sequence_detaches_wherever_the_input_is_cut() {
        assert_eq!(filter().take(b"ls\x10\x11"), Typed::Detach(b"ls".to_vec()));
        let mut cut = filter();
        assert_eq!(cut.take(b"ls\x10"), Typed::Send(b"ls".to_vec()));
        assert_eq!(cut.take(b"\x11"), Typed::Detach(vec![]));
    }

    #[test]
    fn keys_that_only_begin_like_the_sequence_reach_the_agent() {
        let mut keys = filter();
        assert_eq!(keys.take(b"\x10"), Typed::Send(vec![]));
        assert_eq!(keys.take(b"x"), Typed::Send(b"\x10x".to_vec()));
        assert_eq!(keys.take(b"\x10\x10"), Typed::Send(b"\x10".to_vec()));
        assert_eq!(keys.take(b"\x11"), Typed::Detach(vec![]));
    }

    #[test]
    fn the_sequence_is_the_same_in_other_keyboard_protocols() {
        for typed in [
            "\x1b[112;5u\x1b[113;5u",
            "\x1b[112;5:1u\x1b[112;5:3u\x1b[113;5:1u",
            "\x1b[57442;5u\x1b[112;5u\x1b[113;133u",
            "\x1b[27;5;112~\x1b[27;5;113~",
            "\x10\x1b[113;5u",
        ] {
            assert!(matches!(filter().take(typed.as_bytes()), Typed::Detach(_)), "{typed:?}");
        }
    }

    #[test]
    fn everything_else_passes_unchanged() {
        for typed in
            ["\x1b[A\x1b[1;5C", "\x1b[200~pasted\x1b[201~", "\x1b[3~\x1b[112;6u", "日本 é", "\x1b", "\x1b[1"]
        {
            assert_eq!(filter().take(typed.as_bytes()), Typed::Send(typed.as_bytes().to_vec()), "{typed:?}");
        }
    }
}
