//! Commands that run another command.

/// Where the words of the command begin that these words run, if they are a wrapper's: `sudo -u me kill 1` has it at 3.
///
/// None if the first word is no wrapper.
pub(crate) fn inner(program: &str, words: &[String]) -> Option<usize> {
    let (with_value, positional): (&[&str], usize) = match program {
        "sudo" => {
            (&["-u", "-g", "-h", "-p", "-C", "-r", "-t", "-T", "-U", "-D", "-R", "--user", "--group"], 0)
        }
        "doas" => (&["-u", "-C"], 0),
        "env" => (&["-u", "-C", "--unset", "--chdir"], 0),
        "nice" => (&["-n", "--adjustment"], 0),
        "ionice" => (&["-c", "-n", "--class", "--classdata"], 0),
        "timeout" | "gtimeout" => (&["-k", "-s", "--kill-after", "--signal"], 1),
        "chrt" | "taskset" => (&[], 1),
        "stdbuf" => (&["-i", "-o", "-e"], 0),
        "time" => (&["-f", "-o"], 0),
        "exec" => (&["-a"], 0),
        "xargs" => {
            (&["-n", "-I", "-P", "-L", "-d", "-E", "-s", "-a", "--max-args", "--max-procs", "--delimiter"], 0)
        }
        "parallel" => (&["-j", "-N", "-I", "--jobs"], 0),
        "nohup" | "setsid" | "builtin" | "busybox" | "command" | "setpriv" | "unbuffer" | "watch"
        | "strace" => (&[], 0),
        _ => return None,
    };
    let mut at = 1;
    let mut left = positional;
    while let Some(word) = words.get(at) {
        if with_value.contains(&word.as_str()) {
            at += 1;
        } else if !(word.starts_with('-') || program == "env" && word.contains('=')) {
            if left == 0 {
                break;
            }
            left -= 1;
        }
        at += 1;
    }
    // `command -v kill` looks it up.
    let looks_up =
        program == "command" && words.get(1).is_some_and(|word| matches!(word.as_str(), "-v" | "-V"));
    (!looks_up).then_some(at)
}

/// Whether a program reads a script of shell commands.
pub(crate) fn is_shell(program: &str) -> bool {
    matches!(program, "sh" | "bash" | "dash" | "zsh" | "ksh" | "fish" | "ash" | "mksh")
}

/// The script in the words of a shell: the word after `-c`.
pub(crate) fn script_of(words: &[String]) -> Option<&String> {
    let flag = words.iter().position(|word| {
        word.strip_prefix('-').is_some_and(|letters| !letters.starts_with('-') && letters.contains('c'))
    })?;
    words.get(flag + 1..)?.iter().find(|word| !word.starts_with('-'))
}

/// The code that an interpreter is given in its words.
pub(crate) fn code<'a>(program: &str, words: &'a [String]) -> Option<&'a String> {
    let interprets = ["python", "node", "perl", "ruby", "php", "deno", "bun", "lua"];
    let is_flag = |word: &&String| matches!(word.as_str(), "-c" | "-e" | "-r" | "--eval" | "eval");
    interprets
        .iter()
        .any(|name| program.starts_with(name))
        .then(|| words.iter().skip_while(|word| !is_flag(word)).nth(1))?
}

/// The texts between quotes in code, each of which may be a command.
pub(crate) fn literals(code: &str) -> impl Iterator<Item = &str> {
    ['"', '\'', '`'].into_iter().flat_map(|quote| code.split(quote).skip(1).step_by(2))
}

/// The numbers in code that kills.
pub(crate) fn killed_numbers(code: &str) -> impl Iterator<Item = u32> {
    let numbers = code.split(|next: char| !next.is_ascii_digit()).filter(|_| code.contains("kill"));
    numbers.filter_map(|number| number.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapper_is_seen_through() {
        let table = [
            ("sudo -u me kill 1", Some("kill 1")),
            ("env -u A B=1 kill 1", Some("kill 1")),
            ("timeout -k 1 5s kill 1", Some("kill 1")),
            ("nice -n 5 kill 1", Some("kill 1")),
            ("xargs -r -n 1 kill -9", Some("kill -9")),
            ("command -v kill", None),
            ("command kill 1", Some("kill 1")),
            ("grep kill", None),
        ];
        for (line, expected) in table {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            let found = inner(&words[0], &words).map(|at| words[at..].join(" "));
            assert_eq!(found.as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn the_script_of_a_shell_is_found_behind_its_flags() {
        for line in ["sh -c X", "bash -lc X a b", "bash -e -c -u X"] {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(script_of(&words).map(String::as_str), Some("X"), "{line}");
        }
        assert_eq!(script_of(&["sh".into(), "file".into()]), None);
    }
}
