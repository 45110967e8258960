//! Text of a terminal made safe to print and to read.

/// The text without escape sequences and control characters; a carriage return inside a line starts it
/// again, as on a terminal.
pub fn text(raw: &str) -> String {
    let mut plain = String::with_capacity(raw.len());
    let mut line_start = 0;
    let mut characters = raw.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' => skip_escape(&mut characters),
            '\u{9b}' => skip_control_sequence(&mut characters),
            '\n' => {
                plain.push('\n');
                line_start = plain.len();
            }
            '\r' if characters.peek().is_some_and(|next| !matches!(next, '\n' | '\r')) => {
                plain.truncate(line_start);
            }
            '\t' => plain.push('\t'),
            other if other.is_control() => {}
            other => plain.push(other),
        }
    }
    plain
}

/// Behind an ESC (ECMA-48): a control sequence, a string that ends with BEL or ST, or a short escape.
fn skip_escape(characters: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match characters.next() {
        Some('[') => skip_control_sequence(characters),
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(character) = characters.next() {
                match character {
                    '\u{7}' | '\u{9c}' => return,
                    '\u{1b}' => {
                        characters.next_if_eq(&'\\');
                        return;
                    }
                    _ => {}
                }
            }
        }
        Some(' '..='/') => {
            characters.next();
        }
        _ => {}
    }
}

fn skip_control_sequence(characters: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    for character in characters.by_ref() {
        if matches!(character, '@'..='~') {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_what_a_person_would_read_is_left() {
        let table = [
            ("\u{1b}[1;31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}text", "text"),
            ("\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("10%\r20%\r\n", "20%\n"),
            ("\u{1b}(Bplain\u{1b}=", "plain"),
            ("bell\u{7}\u{8}", "bell"),
            ("\u{1b}[38;2;1", ""),
        ];
        for (raw, want) in table {
            assert_eq!(text(raw), want, "{raw:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_moves_a_cursor_gets_through(raw in "(\\PC|\u{1b}|\\[|\\]|\r|\n|\u{7}|[0-9;]){0,60}") {
            prop_assert!(text(&raw).chars().all(|character| !character.is_control() || matches!(character, '\n' | '\t')));
        }
    }
}
