//! Code of other languages that a text runs: not understood, but searched for commands and for what it kills.

/// The code that an interpreter is given in its words, by its standard input or in a file.
pub(crate) fn of(program: &str, words: &[String], input: Option<&str>, file: Option<&str>) -> Option<String> {
    const INTERPRETERS: &[&str] =
        &["python", "node", "perl", "ruby", "php", "deno", "bun", "lua", "osascript"];
    if matches!(program, "awk" | "gawk" | "mawk") {
        return words.iter().skip(1).find(|word| !word.starts_with('-')).cloned();
    }
    if !INTERPRETERS.iter().any(|name| program.starts_with(name)) {
        return None;
    }
    let is_flag =
        |word: &&String| matches!(word.as_str(), "-c" | "-e" | "-r" | "-p" | "-pe" | "--eval" | "eval");
    let given = words.iter().skip_while(|word| !is_flag(word)).nth(1);
    let reads = words.iter().skip(1).all(|word| word.starts_with('-'));
    given.map(String::as_str).or(file).or(input.filter(|_| reads)).map(str::to_owned)
}

/// The commands that code may run: each text between quotes, and all of them put together, as in a list of words.
pub(crate) fn scripts(code: &str) -> Vec<String> {
    const RUNS: &[&str] =
        &["system", "subprocess", "popen", "exec", "spawn", "shell", "run(", "check_", "qx", "`", "| \""];
    let lower = code.to_lowercase();
    if !RUNS.iter().any(|word| lower.contains(word)) {
        return Vec::new();
    }
    let each = literals(code).map(str::to_owned);
    let together = ['"', '\''].into_iter().map(|quote| between(code, quote).collect::<Vec<_>>().join(" "));
    each.chain(together).collect()
}

/// Whether code kills by itself.
pub(crate) fn kills(code: &str) -> bool {
    ["kill", "terminate", "send_signal", "SIGTERM"].iter().any(|word| outside_quotes(code).contains(word))
}

/// The texts between quotes.
pub(crate) fn literals(code: &str) -> impl Iterator<Item = &str> {
    ['"', '\'', '`'].into_iter().flat_map(|quote| between(code, quote))
}

/// The numbers in it, with their sign.
pub(crate) fn numbers(code: &str) -> impl Iterator<Item = String> {
    code.split(|next: char| !next.is_ascii_digit() && next != '-')
        .filter(|number| number.bytes().any(|byte| byte.is_ascii_digit()))
        .map(str::to_owned)
}

fn between(code: &str, quote: char) -> impl Iterator<Item = &str> {
    code.split(quote).skip(1).step_by(2)
}

/// Code without the texts in it, so that what only speaks of a kill is none.
fn outside_quotes(code: &str) -> String {
    let mut open = None;
    let keep = |next: &char| match open {
        Some(quote) => {
            if *next == quote {
                open = None;
            }
            false
        }
        None if matches!(next, '"' | '\'' | '`') => {
            open = Some(*next);
            false
        }
        None => true,
    };
    code.chars().filter(keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_only_speaks_of_a_kill_is_none() {
        assert!(kills("os.kill(1, 9)"));
        assert!(kills("p.terminate()"));
        assert!(!kills("print('kill 1')"));
        assert!(scripts("print('pkill claude')").is_empty());
        assert!(scripts("run(['pkill', '-f', 'claude'])").contains(&"pkill -f claude".to_owned()));
        assert_eq!(numbers("kill(-1, 4201)").collect::<Vec<_>>(), ["-1", "4201"]);
    }

    #[test]
    fn code_is_found_in_words_files_and_standard_input() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let found =
            |line: &str| of(line.split(' ').next().unwrap(), &words(line), Some("input"), Some("file"));
        assert_eq!(found("python3 -u -c code").as_deref(), Some("code"));
        assert_eq!(found("python3 x.py").as_deref(), Some("file"));
        assert_eq!(of("python3", &words("python3 -"), Some("input"), None).as_deref(), Some("input"));
        assert_eq!(of("python3", &words("python3 x.py"), Some("input"), None), None);
        assert_eq!(found("cat x"), None);
    }
}
