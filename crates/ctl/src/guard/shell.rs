//! As much of the shell's language as it takes to find the commands in a text.
//!
//! It tells which programs a text would run with which words, in which pipelines, and what is inside of substitutions. Compound
//! commands are laid out flat: whether a command *is* run does not matter here, only that it may be. A whole parser of bash
//! from elsewhere brings some ninety packages and refuses the texts that it does not understand; this one reads every text.

use std::iter::Peekable;
use std::str::Chars;

/// Commands that hand their output on to each other.
pub(crate) type Pipeline = Vec<Command>;

/// One word, in pieces.
pub(crate) type Word = Vec<Piece>;

/// One command: a program and its words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Command {
    /// Its words, assignments and reserved words included.
    pub(crate) words: Vec<Word>,
    /// The files that it is redirected from or to.
    pub(crate) files: Vec<Word>,
    /// What here-documents and here-strings give it to read.
    pub(crate) input: Vec<Word>,
    /// Whether this is only the name of a function, whose body comes next.
    pub(crate) defines: bool,
}

/// A piece of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Text, without its quotes.
    Text(String),
    /// The value of a variable.
    Variable {
        /// Its name.
        name: String,
        /// What stands for a value that it does not have.
        or: Word,
        /// Whether it stands in double quotes, which keep its words together.
        quoted: bool,
    },
    /// What commands print.
    Substitution(Vec<Pipeline>),
    /// What the shell itself knows: `$!`, `$$` and their like.
    OfShell,
    /// What only the shell can know.
    Unknown,
}

/// Stands in texts for what is not known of them.
pub(crate) const HOLE: char = '\0';

/// How deep substitutions may be nested; what is deeper is [`Piece::Unknown`].
const DEPTH_MAX: usize = 16;

/// The pipelines of a text, in order.
pub(crate) fn parse(text: &str) -> Vec<Pipeline> {
    Reader::of(text, 0).script(false)
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    depth: usize,
}

/// What has been read of a script so far.
#[derive(Default)]
struct Script {
    done: Vec<Pipeline>,
    pipeline: Pipeline,
    command: Command,
    /// The ends of the here-documents that begin after this line, and whether they are taken as they stand.
    documents: Vec<(String, bool)>,
    /// Their texts belong to the command that has this place.
    owners: Vec<(usize, usize)>,
}

impl Script {
    fn end_command(&mut self) {
        let command = std::mem::take(&mut self.command);
        if command != Command::default() {
            self.pipeline.push(command);
        }
    }

    fn end_pipeline(&mut self) {
        self.end_command();
        if !self.pipeline.is_empty() {
            self.done.push(std::mem::take(&mut self.pipeline));
        }
    }

    /// A here-document for the command that is being read.
    fn expect_document(&mut self, end: String, literal: bool) {
        self.owners.push((self.done.len(), self.pipeline.len()));
        self.documents.push((end, literal));
    }

    fn give_document(&mut self, (pipeline, command): (usize, usize), text: Word) {
        if let Some(owner) = self.done.get_mut(pipeline).and_then(|pipeline| pipeline.get_mut(command)) {
            owner.input.push(text);
        }
    }
}

impl<'a> Reader<'a> {
    fn of(text: &'a str, depth: usize) -> Self {
        Self { rest: text.chars().peekable(), depth }
    }

    fn take(&mut self, wanted: char) -> bool {
        self.rest.next_if_eq(&wanted).is_some()
    }

    /// Reads to the end, or to the parenthesis that closes a substitution.
    fn script(&mut self, closes: bool) -> Vec<Pipeline> {
        let mut script = Script::default();
        let mut open = 0_usize;
        while let Some(&next) = self.rest.peek() {
            match next {
                ' ' | '\t' | '\r' => _ = self.rest.next(),
                '#' => while self.rest.next_if(|next| *next != '\n').is_some() {},
                '\n' => {
                    self.rest.next();
                    script.end_pipeline();
                    self.documents(&mut script);
                }
                ';' => {
                    self.rest.next();
                    script.end_pipeline();
                }
                '&' => {
                    self.rest.next();
                    match self.rest.peek() {
                        Some('>') => self.redirection(&mut script),
                        _ => script.end_pipeline(),
                    }
                }
                '|' => {
                    self.rest.next();
                    if self.take('|') {
                        script.end_pipeline();
                    } else {
                        self.take('&');
                        script.end_command();
                    }
                }
                '(' => {
                    self.rest.next();
                    if script.command.words.last().is_some_and(is_assignment) {
                        self.list(&mut script);
                        continue;
                    }
                    script.command.defines =
                        script.command.words.len() == 1 && self.rest.peek() == Some(&')');
                    open += 1;
                    script.end_pipeline();
                }
                ')' => {
                    self.rest.next();
                    script.end_pipeline();
                    if open == 0 && closes {
                        break;
                    }
                    open = open.saturating_sub(1);
                }
                '<' | '>' => self.redirection(&mut script),
                _ => {
                    let word = self.word();
                    // A number right before a redirection is that of a descriptor.
                    let is_descriptor = is_number(&word) && matches!(self.rest.peek(), Some('<' | '>'));
                    if !word.is_empty() && !is_descriptor {
                        script.command.words.push(word);
                    }
                }
            }
        }
        script.end_pipeline();
        self.documents(&mut script);
        script.done
    }

    /// The elements of an array, as the one value of its variable with spaces between.
    fn list(&mut self, script: &mut Script) {
        let inside = self.nested(|reader| reader.script(true)).unwrap_or_default();
        if let Some(word) = script.command.words.last_mut() {
            for element in inside.into_iter().flatten().flat_map(|command| command.words) {
                push(word, " ");
                word.extend(element);
            }
        }
    }

    fn redirection(&mut self, script: &mut Script) {
        let mut operator = String::new();
        while let Some(sign) = self.rest.next_if(|next| matches!(next, '<' | '>' | '&' | '|')) {
            operator.push(sign);
        }
        if matches!(operator.as_str(), "<" | ">") && self.take('(') {
            let inside = self.nested(|reader| reader.script(true));
            script.command.words.push(vec![inside.map_or(Piece::Unknown, Piece::Substitution)]);
            return;
        }
        if operator == "<<" {
            self.take('-');
        }
        while self.rest.next_if(|next| matches!(next, ' ' | '\t')).is_some() {}
        let literal = self.rest.peek().is_some_and(|next| matches!(next, '\'' | '"' | '\\'));
        let target = self.word();
        match operator.as_str() {
            "<<" => script.expect_document(plain(&target), literal),
            "<<<" => script.command.input.push(target),
            _ => script.command.files.push(target),
        }
    }

    /// The here-documents that begin here.
    fn documents(&mut self, script: &mut Script) {
        let owners = std::mem::take(&mut script.owners);
        for ((end, literal), owner) in std::mem::take(&mut script.documents).into_iter().zip(owners) {
            let mut text = String::new();
            while self.rest.peek().is_some() {
                let mut line = String::new();
                while let Some(next) = self.rest.next_if(|next| *next != '\n') {
                    line.push(next);
                }
                self.rest.next();
                if line.trim_start_matches('\t') == end {
                    break;
                }
                text.push_str(&line);
                text.push('\n');
            }
            let word =
                if literal { vec![Piece::Text(text)] } else { Reader::of(&text, self.depth).quoted(None) };
            script.give_document(owner, word);
        }
    }

    fn word(&mut self) -> Word {
        let mut word = Word::new();
        while let Some(&next) = self.rest.peek() {
            match next {
                ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>' => break,
                '\'' => {
                    self.rest.next();
                    self.single_quoted(&mut word);
                }
                '"' => {
                    self.rest.next();
                    push(&mut word, "");
                    word.append(&mut self.quoted(Some('"')));
                }
                _ => self.piece(&mut word, false),
            }
        }
        word
    }

    /// What means nearly the same with and without double quotes.
    fn piece(&mut self, word: &mut Word, quoted: bool) {
        match self.rest.next() {
            Some('\\') => match self.rest.next() {
                Some('\n') | None => {}
                Some(next) => push(word, next.encode_utf8(&mut [0; 4])),
            },
            Some('$') => self.dollar(word, quoted),
            Some(HOLE) => word.push(Piece::Unknown),
            Some('`') => {
                let mut text = String::new();
                while let Some(next) = self.rest.next_if(|next| *next != '`') {
                    match next {
                        '\\' => text.extend(self.rest.next()),
                        _ => text.push(next),
                    }
                }
                self.rest.next();
                let inside =
                    (self.depth < DEPTH_MAX).then(|| Reader::of(&text, self.depth + 1).script(false));
                word.push(inside.map_or(Piece::Unknown, Piece::Substitution));
            }
            Some(next) => push(word, next.encode_utf8(&mut [0; 4])),
            None => {}
        }
    }

    /// To the quote that closes, or to the end.
    fn quoted(&mut self, closing: Option<char>) -> Word {
        let mut word = Word::new();
        while let Some(next) = self.rest.peek() {
            if Some(*next) == closing {
                self.rest.next();
                break;
            }
            self.piece(&mut word, true);
        }
        word
    }

    fn single_quoted(&mut self, word: &mut Word) {
        let mut text = String::new();
        while let Some(next) = self.rest.next_if(|next| *next != '\'') {
            text.push(next);
        }
        self.rest.next();
        push(word, &text);
    }

    fn dollar(&mut self, word: &mut Word, quoted: bool) {
        match self.rest.peek() {
            Some('(') => {
                self.rest.next();
                // Arithmetic reads well enough as commands: what is substituted in it is found.
                let inside = self.nested(|reader| reader.script(true));
                word.push(inside.map_or(Piece::Unknown, Piece::Substitution));
            }
            Some('{') => {
                self.rest.next();
                let inside = self.nested(|reader| reader.quoted(Some('}'))).unwrap_or_default();
                word.extend(parameter(inside, quoted));
            }
            Some('\'') if !quoted => {
                self.rest.next();
                self.escaped(word);
            }
            // The quote is read as one.
            Some('"') => {}
            Some(next) if is_name(*next) => {
                let mut name = String::new();
                while let Some(next) = self.rest.next_if(|next| is_name(*next)) {
                    name.push(next);
                }
                word.push(Piece::Variable { name, or: Word::new(), quoted });
            }
            Some('@' | '*') => {
                self.rest.next();
                word.push(Piece::Variable { name: "@".to_owned(), or: Word::new(), quoted: false });
            }
            Some('$' | '!' | '?' | '#' | '-') => {
                self.rest.next();
                word.push(Piece::OfShell);
            }
            _ => push(word, "$"),
        }
    }

    /// `$'…'`, in which a backslash means what it does in C.
    fn escaped(&mut self, word: &mut Word) {
        let mut text = String::new();
        while let Some(next) = self.rest.next_if(|next| *next != '\'') {
            if next != '\\' {
                text.push(next);
                continue;
            }
            match self.rest.next() {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some('x') => text.extend(self.code_point(16, 2, 0)),
                Some('u') => text.extend(self.code_point(16, 4, 0)),
                Some(digit @ '0'..='7') => text.extend(self.code_point(8, 2, digit as u32 - '0' as u32)),
                Some(other) => text.push(other),
                None => {}
            }
        }
        self.rest.next();
        push(word, &text);
    }

    fn code_point(&mut self, radix: u32, digits: usize, first: u32) -> Option<char> {
        let mut number = first;
        for _ in 0..digits {
            let Some(digit) = self.rest.peek().and_then(|next| next.to_digit(radix)) else { break };
            number = number * radix + digit;
            self.rest.next();
        }
        char::from_u32(number)
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.depth >= DEPTH_MAX {
            return None;
        }
        self.depth += 1;
        let inside = read(self);
        self.depth -= 1;
        Some(inside)
    }
}

fn push(word: &mut Word, text: &str) {
    match word.last_mut() {
        Some(Piece::Text(before)) => before.push_str(text),
        _ => word.push(Piece::Text(text.to_owned())),
    }
}

/// What stands between the braces of `${…}`.
fn parameter(inside: Word, quoted: bool) -> Word {
    let mut pieces = inside.into_iter();
    let Some(Piece::Text(text)) = pieces.next() else { return vec![Piece::Unknown] };
    let end = text.find(|next| !is_name(next)).unwrap_or(text.len());
    let (name, operator) = text.split_at(end);
    // The elements of an array are words of their own in quotes too.
    let quoted = quoted && !operator.starts_with('[');
    let variable = |or| Piece::Variable { name: name.to_owned(), or, quoted };
    match operator {
        "" | "[@]" | "[*]" if !name.is_empty() => vec![variable(Word::new())],
        _ => match [":-", ":=", "-", "="].iter().find_map(|sign| operator.strip_prefix(sign)) {
            Some(or) => vec![variable([Piece::Text(or.to_owned())].into_iter().chain(pieces).collect())],
            None => [Piece::Unknown]
                .into_iter()
                .chain(pieces.filter(|piece| matches!(piece, Piece::Substitution(_))))
                .collect(),
        },
    }
}

/// Whether a word is an assignment whose value comes next.
fn is_assignment(word: &Word) -> bool {
    matches!(word.as_slice(), [Piece::Text(text)] if text.strip_suffix('=').is_some_and(|name| {
        let name = name.strip_suffix('+').unwrap_or(name);
        !name.is_empty() && name.chars().all(is_name)
    }))
}

fn is_name(next: char) -> bool {
    next.is_ascii_alphanumeric() || next == '_'
}

fn is_number(word: &Word) -> bool {
    matches!(word.as_slice(), [Piece::Text(text)] if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The text of a word as far as it is known.
fn plain(word: &Word) -> String {
    let texts = word.iter().filter_map(|piece| match piece {
        Piece::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Each command in brackets, its words apart by commas; substitutions in braces.
    fn shown(pipelines: &[Pipeline]) -> String {
        fn piece(of: &Piece) -> String {
            match of {
                Piece::Text(text) => text.clone(),
                Piece::Variable { name, or, .. } if or.is_empty() => format!("${name}"),
                Piece::Variable { name, or, .. } => {
                    format!("${name}-{}", or.iter().map(piece).collect::<String>())
                }
                Piece::Substitution(inside) => format!("{{{}}}", shown(inside)),
                Piece::OfShell | Piece::Unknown => "?".to_owned(),
            }
        }
        let word = |word: &Word| word.iter().map(piece).collect::<String>();
        let words = |words: &[Word]| words.iter().map(word).collect::<Vec<_>>().join(",");
        let command = |command: &Command| {
            let mut text = format!("[{}]", words(&command.words));
            for (sign, others) in [(">", &command.files), ("<<", &command.input)] {
                if !others.is_empty() {
                    text.push_str(sign);
                    text.extend(["(".to_owned(), words(others), ")".to_owned()]);
                }
            }
            text
        };
        let pipeline = |pipeline: &Pipeline| pipeline.iter().map(command).collect::<Vec<_>>().join("|");
        pipelines.iter().map(pipeline).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_commands_of_a_text_are_found() {
        let table = [
            ("kill -9 12 # not this", "[kill,-9,12]"),
            ("a 'b c' \"d $e\" f\\ g", "[a,b c,d $e,f g]"),
            ("a|b |& c && d;e & f||g\nh", "[a]|[b]|[c] [d] [e] [f] [g] [h]"),
            ("kill $(pgrep -f 'x y')", "[kill,{[pgrep,-f,x y]}]"),
            ("kill `pgrep \\`a\\``", "[kill,{[pgrep,{[a]}]}]"),
            ("a \"b $(c \"d\") e\"", "[a,b {[c,d]} e]"),
            ("(a; b) | c", "[a] [b] [c]"),
            ("if a; then b; fi", "[if,a] [then,b] [fi]"),
            ("f() { a; }", "[f] [{,a] [}]"),
            ("a >b 2>&1 <c d", "[a,d]>(b,1,c)"),
            ("a 1 >b 2 2>c", "[a,1,2]>(b,c)"),
            ("a &>b", "[a]>(b)"),
            ("a <<<'b c'", "[a]<<(b c)"),
            ("a <<E | b\nc $(d)\nE\nf", "[a]<<(c {[d]}\n)|[b] [f]"),
            ("a <<-'E'\nc $(d)\n\tE\nf", "[a]<<(c $(d)\n) [f]"),
            ("diff <(a) >(b)", "[diff,{[a]},{[b]}]"),
            ("A=1 B=\"$A\" c ${D} ${E:-$(f)} $! $", "[A=1,B=$A,c,$D,$E-{[f]},?,$]"),
            ("a=(b 'c d') e+=($f) g", "[a= b c d,e+= $f,g]"),
            ("kill ${a[@]} ${a[1]} \"$@\"", "[kill,$a,?,$@]"),
            ("$'\\x70kill\\'s' $'\\141\\n'", "[pkill's,a\n]"),
            ("a ''", "[a,]"),
            ("a $(( 1 + 2 )) b", "[a,{[1,+,2]},b]"),
            ("'unclosed", "[unclosed]"),
            ("a \\\n b", "[a,b]"),
        ];
        for (text, expected) in table {
            assert_eq!(shown(&parse(text)), expected, "{text}");
        }
    }

    #[test]
    fn what_is_nested_too_deep_is_unknown() {
        let text = "$(".repeat(10_000);
        assert!(shown(&parse(&text)).contains('?'));
    }

    proptest! {
        #[test]
        fn every_text_is_read_to_its_end(text in "[a-c $(){}`'\"\\\\|&;<>#\n]{0,60}") {
            parse(&text);
        }
    }
}
