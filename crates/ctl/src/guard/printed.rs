//! What commands print, where their words tell it, and which commands do no more than to show what they read.

use super::targets::Operand;

/// What a program prints that has these operands and reads that text. None if it cannot be known.
pub(crate) fn by(program: &str, operands: &[Operand], input: Option<&str>) -> Option<String> {
    let has = |flag: &str| operands.iter().any(|operand| operand.text == flag);
    match program {
        "echo" => Some(joined(operands.iter().filter(|operand| !is_flag(&operand.text)), " ")?),
        "printf" => formatted(operands),
        "which" => joined(operands.iter(), "\n"),
        "command" | "type" if has("-v") || has("-p") || has("-P") => joined(operands.iter().skip(1), "\n"),
        "base64" if has("-d") || has("-D") || has("--decode") => decoded(input?),
        // With files it prints those.
        "cat" | "tee" | "head" | "tail" | "sort" | "uniq" | "nl"
            if program == "tee" || operands.iter().all(|operand| operand.text.starts_with('-')) =>
        {
            input.map(str::to_owned)
        }
        _ => None,
    }
}

/// Whether a program does no more than to show what it reads, for somebody to look at.
pub(crate) fn only_shows(program: &str) -> bool {
    matches!(
        program,
        "grep"
            | "egrep"
            | "fgrep"
            | "rg"
            | "awk"
            | "gawk"
            | "sed"
            | "cut"
            | "head"
            | "tail"
            | "sort"
            | "uniq"
            | "wc"
            | "cat"
            | "less"
            | "more"
            | "tr"
            | "jq"
            | "column"
            | "nl"
            | "tac"
            | "fold"
            | "ps"
            | "pgrep"
            | "pidof"
            | "pstree"
            | "top"
            | "ss"
            | "netstat"
            | "lsof"
            | "mcp-restartctl"
    )
}

/// Whether the first word of a command has what it reads used by others: a loop, or a variable.
pub(crate) fn reads_for_others(word: &str) -> bool {
    matches!(word, "read" | "mapfile" | "readarray" | "while" | "until" | "for" | "done" | "}" | "fi")
}

fn is_flag(text: &str) -> bool {
    matches!(text, "-n" | "-e" | "-E" | "-ne" | "-en")
}

fn joined<'a>(operands: impl Iterator<Item = &'a Operand>, between: &str) -> Option<String> {
    let texts: Option<Vec<_>> =
        operands.map(|operand| operand.is_known().then_some(operand.text.as_str())).collect();
    Some(texts?.join(between))
}

/// What `printf` makes of its format: with each place filled, or all operands after one another.
fn formatted(operands: &[Operand]) -> Option<String> {
    let (format, values) = operands.split_first()?;
    let lines = joined(values.iter(), "\n")?;
    let format = format.is_known().then(|| format.text.replace("\\n", "\n"))?;
    match values {
        [] => Some(format),
        [value] => Some(format.replace("%s", &value.text).replace("%d", &value.text)),
        _ => Some(lines),
    }
}

/// Base64 without its padding; none if it is none, or no text.
fn decoded(text: &str) -> Option<String> {
    let digits = text.bytes().filter(|byte| !byte.is_ascii_whitespace() && *byte != b'=');
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::super::targets::Source;
    use super::*;

    fn printed(line: &str, input: Option<&str>) -> Option<String> {
        let mut words = line.split(' ').map(|text| Operand { text: text.to_owned(), source: Source::Known });
        let program = words.next().unwrap().text;
        by(&program, &words.collect::<Vec<_>>(), input)
    }

    #[test]
    fn what_is_printed_is_known_where_the_words_tell_it() {
        assert_eq!(printed("echo -n a b", None).as_deref(), Some("a b"));
        assert_eq!(printed("printf kill\\n", None).as_deref(), Some("kill\n"));
        assert_eq!(printed("printf %s\\n a", None).as_deref(), Some("a\n"));
        assert_eq!(printed("printf %s\\n a b", None).as_deref(), Some("a\nb"));
        assert_eq!(printed("base64 -d", Some("cGtpbGwgY2xhdWRl")).as_deref(), Some("pkill claude"));
        assert_eq!(printed("base64 -d", Some("cGtpbGw=\n")).as_deref(), Some("pkill"));
        assert_eq!(printed("base64 -d", Some("*")), None);
        assert_eq!(printed("cat", Some("a")).as_deref(), Some("a"));
        assert_eq!(printed("cat file", Some("a")), None);
        assert_eq!(printed("date", None), None);
    }
}
