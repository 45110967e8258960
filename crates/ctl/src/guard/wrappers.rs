//! Commands that run another command.

use super::shell::HOLE;
use super::targets::{Operand, Source};

/// What the words of a command run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wrapped {
    /// Nothing: the program is no wrapper.
    Nothing,
    /// The command that begins at this word: `sudo -u me kill 1` has it at 3.
    Command(usize),
    /// A script of the shell.
    Script(String),
}

/// How the words of a wrapper are read.
struct Form {
    /// Options that take the next word.
    values: &'static [&'static str],
    /// Words that come before the command.
    positional: usize,
    /// The option whose value is a script.
    script: Option<&'static str>,
}

/// What the words of a command run.
pub(crate) fn unwrap(program: &str, words: &[String]) -> Wrapped {
    let Some(form) = form(program, words) else { return Wrapped::Nothing };
    let text = |at: usize| words.get(at).map(String::as_str);
    // `command -v kill` looks it up.
    if program == "command" && matches!(text(1), Some("-v" | "-V")) {
        return Wrapped::Nothing;
    }
    let mut left = form.positional;
    let mut at = 1;
    while let Some(word) = text(at) {
        if form.script.is_some_and(|flag| is_script_flag(word, flag)) {
            return text(at + 1).map_or(Wrapped::Nothing, |script| Wrapped::Script(script.to_owned()));
        }
        if let Some(script) = word.strip_prefix("--split-string=").or_else(|| word.strip_prefix("--command="))
        {
            return Wrapped::Script(script.to_owned());
        }
        if form.values.contains(&word) {
            at += 1;
        } else if !(word.starts_with('-') || takes_assignments(program) && word.contains('=')) {
            if left == 0 {
                break;
            }
            left -= 1;
        }
        at += 1;
    }
    let inner = words.get(at..).unwrap_or_default();
    match program {
        "watch" => Wrapped::Script(inner.join(" ")),
        // It is given whole lines, or words, or both behind `:::`.
        "parallel" if inner.len() == 1 || inner.iter().any(|word| word == ":::") => {
            let texts = inner.split(|word| word == ":::").map(|words| words.join(" "));
            Wrapped::Script(texts.collect::<Vec<_>>().join("\n").replace("{}", &HOLE.to_string()))
        }
        _ => Wrapped::Command(at),
    }
}

/// Puts what `xargs` reads where it belongs among the words of its command: in the place of the word that `-I` names, or at the end.
pub(crate) fn fill_in(inner: &mut Vec<Operand>, own: &[Operand]) {
    let named = own.iter().position(|word| word.text.starts_with("-I") || word.text == "-i");
    let place = named.and_then(|at| {
        let attached = own.get(at)?.text.get(2..).filter(|rest| !rest.is_empty());
        attached.or_else(|| own.get(at + 1).map(|word| word.text.as_str()))
    });
    let place = place.unwrap_or("{}");
    let mut filled = false;
    for word in inner.iter_mut().filter(|word| word.text.contains(place)) {
        word.text = word.text.replace(place, &HOLE.to_string());
        word.source = Source::Within;
        filled = true;
    }
    if !filled {
        inner.push(Operand::unknown());
    }
}

/// Whether a program reads a script of shell commands, from a file or its standard input.
pub(crate) fn reads_script(program: &str) -> bool {
    matches!(program, "sh" | "bash" | "dash" | "zsh" | "ksh" | "fish" | "ash" | "mksh")
}

/// The script in the words of a shell, which is the word after `-c`, and its place.
pub(crate) fn script_of(words: &[String]) -> Option<(&String, usize)> {
    let flag = words.iter().position(|word| is_script_flag(word, "-c") || word == "--command")?;
    let at = (flag + 1..words.len()).find(|at| words.get(*at).is_some_and(|word| !word.starts_with('-')))?;
    Some((words.get(at)?, at))
}

fn form(program: &str, words: &[String]) -> Option<Form> {
    let form = |values, positional| Some(Form { values, positional, script: None });
    let scripted = |values, positional, flag| Some(Form { values, positional, script: Some(flag) });
    match program {
        "sudo" => {
            form(&["-u", "-g", "-h", "-p", "-C", "-r", "-t", "-T", "-U", "-D", "-R", "--user", "--group"], 0)
        }
        "doas" => form(&["-u", "-C"], 0),
        "run0" | "pkexec" => form(&["-u", "-g", "--user", "--unit", "-p", "--property"], 0),
        "su" => scripted(&["-g", "-G", "-s", "--group", "--shell"], usize::MAX, "-c"),
        "runuser" => {
            let of_user = words.iter().any(|word| word == "-u" || word == "--user");
            let positional = if of_user { 0 } else { usize::MAX };
            scripted(&["-u", "-g", "-G", "-s", "--user", "--group", "--shell"], positional, "-c")
        }
        "env" => scripted(&["-u", "-C", "--unset", "--chdir"], 0, "-S"),
        "script" => scripted(&["-E", "-o", "-T", "-I", "-O", "-B"], usize::MAX, "-c"),
        "flock" => scripted(&["-w", "-E", "--timeout", "--wait"], 1, "-c"),
        "npm" | "npx" | "pnpx" | "bunx" | "pnpm" | "yarn" | "bun" | "uv" | "poetry" | "pipenv" => {
            let runs = |word: &String| matches!(word.as_str(), "exec" | "x" | "dlx" | "run");
            let is_runner = matches!(program, "npx" | "pnpx" | "bunx");
            if !is_runner && !words.get(1).is_some_and(runs) {
                return None;
            }
            scripted(&["-p", "--package", "--prefix", "-C"], usize::from(!is_runner), "-c")
        }
        "nice" => form(&["-n", "--adjustment"], 0),
        "ionice" => form(&["-c", "-n", "--class", "--classdata"], 0),
        "timeout" | "gtimeout" => form(&["-k", "-s", "--kill-after", "--signal"], 1),
        "chrt" | "taskset" | "chroot" | "toolbox" => form(&[], 1),
        "nsenter" => form(&["-t", "--target"], 0),
        "systemd-run" => {
            form(&["-p", "-u", "-E", "--property", "--unit", "--setenv", "--description", "--slice"], 0)
        }
        "stdbuf" => form(&["-i", "-o", "-e"], 0),
        "time" => form(&["-f", "-o"], 0),
        "exec" => form(&["-a"], 0),
        "watch" => form(&["-n", "--interval"], 0),
        "strace" => form(&["-e", "-o", "-s"], 0),
        "setpriv" => form(&["--reuid", "--regid", "--groups", "--pdeathsig", "--inh-caps"], 0),
        "xargs" => form(
            &["-n", "-I", "-P", "-L", "-d", "-E", "-s", "-a", "--max-args", "--max-procs", "--delimiter"],
            0,
        ),
        "parallel" => form(&["-j", "-N", "-I", "--jobs"], 0),
        "nohup" | "setsid" | "builtin" | "busybox" | "toybox" | "command" | "unbuffer" | "unshare"
        | "caffeinate" | "dbus-run-session" | "chronic" | "rlwrap" => form(&[], 0),
        _ => None,
    }
}

fn takes_assignments(program: &str) -> bool {
    matches!(program, "env" | "sudo" | "doas")
}

/// Whether a word is this option of one letter, alone or as the last of several.
fn is_script_flag(word: &str, flag: &str) -> bool {
    let letters = word.strip_prefix('-').filter(|letters| !letters.starts_with('-'));
    letters.zip(flag.strip_prefix('-')).is_some_and(|(letters, letter)| letters.contains(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_wrapper_is_seen_through() {
        let table = [
            ("sudo -u me kill 1", Some("kill 1")),
            ("sudo A=1 kill 1", Some("kill 1")),
            ("env -u A B=1 kill 1", Some("kill 1")),
            ("timeout -k 1 5s kill 1", Some("kill 1")),
            ("nice -n 5 kill 1", Some("kill 1")),
            ("xargs -r -n 1 kill -9", Some("kill -9")),
            ("flock -n /tmp/l kill 1", Some("kill 1")),
            ("npm exec -y -- kill-port 1", Some("kill-port 1")),
            ("npx -y kill-port 1", Some("kill-port 1")),
            ("npm install kill-port", None),
            ("command -v kill", None),
            ("command kill 1", Some("kill 1")),
            ("grep kill", None),
        ];
        for (line, expected) in table {
            let words = words(line);
            let found = match unwrap(&words[0], &words) {
                Wrapped::Command(at) => Some(words[at..].join(" ")),
                Wrapped::Nothing => None,
                Wrapped::Script(script) => panic!("{line}: {script}"),
            };
            assert_eq!(found.as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn the_script_of_a_wrapper_is_found() {
        for line in [
            "su - me -c X",
            "runuser -l me -c X",
            "env -S X",
            "script -qc X /dev/null",
            "flock /l -c X",
            "watch -n 1 X",
        ] {
            let words = words(line);
            assert_eq!(unwrap(&words[0], &words), Wrapped::Script("X".to_owned()), "{line}");
        }
    }

    #[test]
    fn the_script_of_a_shell_is_found_behind_its_flags() {
        for (line, at) in [("sh -c X", 2), ("bash -lc X a b", 2), ("bash -e -c -u X", 4)] {
            let words = words(line);
            assert_eq!(script_of(&words), Some((&"X".to_owned(), at)), "{line}");
        }
        assert_eq!(script_of(&["sh".into(), "file".into()]), None);
    }

    #[test]
    fn what_xargs_reads_has_its_place() {
        let operand = |text: &str| Operand { text: text.to_owned(), source: Source::Known };
        let filled = |own: &str, inner: &str| {
            let own: Vec<_> = own.split(' ').map(operand).collect();
            let mut inner: Vec<_> = inner.split(' ').map(operand).collect();
            fill_in(&mut inner, &own);
            inner.iter().map(|word| word.text.replace(HOLE, "?")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(filled("xargs -n 1", "kill -9"), "kill -9 ?");
        assert_eq!(filled("xargs -I{}", "kill {}"), "kill ?");
        assert_eq!(filled("xargs -I P", "kill -P"), "kill -?");
    }
}
