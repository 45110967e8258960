//! What commands that kill, and commands that look processes up, aim at.

use super::protected::{Pattern, Protected};
use mcp_restart_protocol::answer::Owner;

/// What one command aims at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Aim {
    /// Those that it signals.
    pub(crate) kills: Vec<Owner>,
    /// Whether it signals what only the shell can know.
    pub(crate) kills_unknown: bool,
    /// Those that it looks up, for another command to signal.
    pub(crate) finds: Vec<Owner>,
}

/// A word after the program, with its text as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Operand {
    /// The text.
    pub(crate) text: String,
    /// Whether that is all of it.
    pub(crate) known: bool,
}

/// The signal that only asks whether a process is there.
const PROBE: &[&str] = &["0", "EXIT", "SIGEXIT"];

/// What a program with these operands aims at.
pub(crate) fn aim(program: &str, operands: &[Operand], protected: &Protected) -> Aim {
    match program {
        "kill" => kill(operands, protected),
        "pkill" => Aim { kills: pattern(operands, protected), ..Aim::default() },
        "pgrep" => Aim { finds: pattern(operands, protected), ..Aim::default() },
        "killall" | "skill" => Aim { kills: killall(operands, protected), ..Aim::default() },
        "killall5" => Aim { kills: protected.everything(), ..Aim::default() },
        "pidof" => Aim { finds: names(operands, protected), ..Aim::default() },
        "fuser" | "kill-port" | "fkill" | "lsof" | "ss" | "netstat" => port(program, operands, protected),
        "ps" => Aim { finds: ps(operands, protected), ..Aim::default() },
        "systemctl" | "launchctl" => Aim { kills: service(operands, protected), ..Aim::default() },
        "mcp-restartctl" => Aim { finds: own(operands, protected), ..Aim::default() },
        _ => Aim::default(),
    }
}

/// What a filter like `grep` lets through of the lines of `ps` and its like. None if it is none, or keeps lines out.
pub(crate) fn filter(program: &str, operands: &[Operand], protected: &Protected) -> Option<Vec<Owner>> {
    let patterns: Vec<String> = match program {
        "grep" | "egrep" | "rg" | "ag" => {
            let mut flags =
                operands.iter().map(|operand| operand.text.as_str()).filter(|text| text.starts_with('-'));
            let inverse =
                |text: &str| text == "--invert-match" || !text.starts_with("--") && text.contains('v');
            if flags.any(inverse) {
                return None;
            }
            let extends = |operand: &Operand| matches!(operand.text.as_str(), "-E" | "-P");
            let basic = program == "grep" && !operands.iter().any(extends);
            let pattern = operands.iter().map(|operand| &operand.text).find(|text| !text.starts_with('-'))?;
            vec![if basic { extended(pattern) } else { pattern.clone() }]
        }
        // `awk '/claude/ {print $2}'`
        "awk" | "gawk" | "mawk" | "sed" | "perl" => operands
            .iter()
            .flat_map(|operand| operand.text.split('/').skip(1).step_by(2))
            .map(str::to_owned)
            .collect(),
        _ => return None,
    };
    if patterns.is_empty() {
        return None;
    }
    let how = Pattern { full: true, ignore_case: true, ..Pattern::default() };
    let through =
        |pattern: &String| [protected.fitting(pattern, how), named_port(pattern, protected)].concat();
    Some(patterns.iter().flat_map(through).collect())
}

fn is_probe(signal: Option<&Operand>) -> bool {
    signal.is_some_and(|signal| PROBE.contains(&signal.text.as_str()))
}

fn kill(operands: &[Operand], protected: &Protected) -> Aim {
    let mut aim = Aim::default();
    let mut rest = operands.iter();
    let mut signal_given = false;
    while let Some(Operand { text, known }) = rest.next() {
        match text.strip_prefix('-') {
            Some("l" | "L" | "-list" | "-table") => return Aim::default(),
            Some("s" | "n" | "-signal") => {
                if is_probe(rest.next()) {
                    return Aim::default();
                }
                signal_given = true;
            }
            Some("-") => signal_given = true,
            Some(signal) if !signal_given && *known => {
                if PROBE.contains(&signal) {
                    return Aim::default();
                }
                signal_given = true;
            }
            Some("1") => aim.kills.extend(protected.everything()),
            Some(group) => match group.parse() {
                Ok(group) => aim.kills.extend(protected.matching(|process| process.group == Some(group))),
                Err(_) => aim.kills_unknown |= !known,
            },
            None if !known => aim.kills_unknown = true,
            None => match text.parse() {
                Ok(pid) => aim.kills.extend(protected.number(pid)),
                Err(_) => aim.kills.extend(protected.named(text, false)),
            },
        }
    }
    aim
}

/// What `pkill` and `pgrep` select.
fn pattern(operands: &[Operand], protected: &Protected) -> Vec<Owner> {
    const WITH_VALUE: &[&str] = &[
        "-u",
        "-U",
        "-G",
        "-t",
        "-r",
        "-O",
        "-d",
        "-c",
        "--euid",
        "--uid",
        "--group",
        "--terminal",
        "--runstates",
        "--older",
        "--delimiter",
        "--cgroup",
        "--ns",
        "--nslist",
        "-q",
        "--queue",
        "-s",
        "--session",
    ];
    let mut how = Pattern::default();
    let mut expression = None;
    let mut parents = None;
    let mut groups = None;
    let mut rest = operands.iter();
    while let Some(Operand { text, known }) = rest.next() {
        let list = |value: Option<&Operand>| {
            value.map(|value| {
                value.text.split(',').filter_map(|number| number.parse().ok()).collect::<Vec<u32>>()
            })
        };
        match text.as_str() {
            "--signal" if is_probe(rest.next()) => {
                return Vec::new();
            }
            "-0" | "--signal=0" => return Vec::new(),
            "--full" => how.full = true,
            "--exact" => how.exact = true,
            "--ignore-case" => how.ignore_case = true,
            "--inverse" => how.inverse = true,
            "-P" | "--parent" => parents = list(rest.next()),
            "-g" | "--pgroup" => groups = list(rest.next()),
            "-F" | "--pidfile" => {
                if rest.next().is_some_and(|file| file.text.ends_with("mcp-restartd.lock")) {
                    return protected.matching(|process| process.owner == Owner::Daemon);
                }
                return Vec::new();
            }
            // pgrep has `-c` without a value, and pkill's is another.
            flag if WITH_VALUE.contains(&flag) && flag != "-c" => _ = rest.next(),
            flag if flag.starts_with("--") => {}
            flag if flag.starts_with('-') && flag.len() > 1 => {
                how.full |= flag.contains('f');
                how.exact |= flag.contains('x');
                how.ignore_case |= flag.contains('i');
                how.inverse |= flag.contains('v') && flag.len() == 2;
            }
            text if *known => expression = Some(text.to_owned()),
            _ => {}
        }
    }
    let narrowed = parents.is_some() || groups.is_some();
    let selected = match expression {
        Some(expression) => protected.fitting(&expression, how),
        None if operands
            .iter()
            .any(|operand| operand.text.starts_with("-u") || operand.text.starts_with("-U"))
            || narrowed =>
        {
            protected.everything()
        }
        None => Vec::new(),
    };
    let among = |numbers: &Option<Vec<u32>>, own: Option<u32>| {
        numbers.as_ref().is_none_or(|numbers| own.is_some_and(|own| numbers.contains(&own)))
    };
    let within =
        protected.matching(|process| among(&parents, process.parent) && among(&groups, process.group));
    selected.into_iter().filter(|owner| within.contains(owner)).collect()
}

fn killall(operands: &[Operand], protected: &Protected) -> Vec<Owner> {
    let flag = |letter: char| {
        move |operand: &Operand| {
            let text = operand.text.as_str();
            text.starts_with('-') && !text.starts_with("--") && text.len() < 4 && text.contains(letter)
        }
    };
    if operands.iter().any(flag('l')) || operands.iter().any(|operand| operand.text == "-0") {
        return Vec::new();
    }
    let by_pattern =
        operands.iter().any(|operand| operand.text == "--regexp") || operands.iter().any(flag('r'));
    let ignore_case =
        operands.iter().any(|operand| operand.text == "--ignore-case") || operands.iter().any(flag('I'));
    let mut named = Vec::new();
    let mut of_user = false;
    let mut rest = operands.iter();
    while let Some(Operand { text, .. }) = rest.next() {
        match text.as_str() {
            "-s" | "--signal" if is_probe(rest.next()) => {
                return Vec::new();
            }
            "-u" | "--user" => {
                rest.next();
                of_user = true;
            }
            "-o" | "-y" | "-t" | "-n" | "-Z" => _ = rest.next(),
            text if !text.starts_with('-') => named.push(text),
            _ => {}
        }
    }
    if named.is_empty() && of_user {
        return protected.everything();
    }
    let how = Pattern { ignore_case, ..Pattern::default() };
    let hits = named.into_iter().flat_map(|name| {
        if by_pattern { protected.fitting(name, how) } else { protected.named(name, ignore_case) }
    });
    hits.collect()
}

fn names(operands: &[Operand], protected: &Protected) -> Vec<Owner> {
    let named = operands.iter().filter(|operand| !operand.text.starts_with('-'));
    named.flat_map(|operand| protected.named(&operand.text, false)).collect()
}

/// `ps -C NAME`; what else it lists is for a filter to judge.
fn ps(operands: &[Operand], protected: &Protected) -> Vec<Owner> {
    let by_name = operands.iter().skip_while(|operand| operand.text != "-C").nth(1);
    by_name.map_or_else(Vec::new, |name| protected.named(&name.text, false))
}

/// What has to do with the endpoint's port.
fn port(program: &str, operands: &[Operand], protected: &Protected) -> Aim {
    let found: Vec<_> = operands.iter().flat_map(|operand| named_port(&operand.text, protected)).collect();
    let kills = match program {
        "fuser" => operands.iter().any(|operand| operand.text.starts_with('-') && operand.text.contains('k')),
        "kill-port" | "fkill" => true,
        _ => false,
    };
    let by_name = match program {
        "fkill" => names(operands, protected),
        "lsof" => {
            let name = operands.iter().skip_while(|operand| operand.text != "-c").nth(1);
            name.map_or_else(Vec::new, |name| protected.named(&name.text, false))
        }
        _ => Vec::new(),
    };
    let hits = [found, by_name].concat();
    if kills { Aim { kills: hits, ..Aim::default() } } else { Aim { finds: hits, ..Aim::default() } }
}

/// The endpoint, if a text names its port.
fn named_port(text: &str, protected: &Protected) -> Vec<Owner> {
    let names =
        |port: u16| text.split(|next: char| !next.is_ascii_digit()).any(|part| part == port.to_string());
    if protected.port.is_some_and(names) { vec![Owner::Bridge] } else { Vec::new() }
}

/// A service manager that is told to end the daemon.
fn service(operands: &[Operand], protected: &Protected) -> Vec<Owner> {
    let ends = |text: &str| {
        matches!(text, "kill" | "stop" | "restart" | "try-restart" | "bootout" | "kickstart" | "unload")
    };
    let ours = |text: &str| text.contains("mcp-restart") || text.ends_with("mcp_restart");
    let told = operands.iter().any(|operand| ends(&operand.text))
        && operands.iter().any(|operand| ours(&operand.text));
    if told { protected.matching(|process| process.owner == Owner::Daemon) } else { Vec::new() }
}

/// `mcp-restartctl list` and `status` tell numbers.
fn own(operands: &[Operand], protected: &Protected) -> Vec<Owner> {
    let tells = |text: &str| matches!(text, "list" | "ls" | "status");
    if operands.iter().any(|operand| tells(&operand.text)) { protected.everything() } else { Vec::new() }
}

/// A basic regular expression, written as an extended one.
fn extended(basic: &str) -> String {
    let mut text = String::new();
    let mut rest = basic.chars();
    while let Some(next) = rest.next() {
        match next {
            '\\' => match rest.next() {
                Some(special @ ('|' | '(' | ')' | '{' | '}' | '+' | '?')) => text.push(special),
                Some(other) => text.extend(['\\', other]),
                None => {}
            },
            '|' | '(' | ')' | '{' | '}' | '+' | '?' => text.extend(['\\', next]),
            _ => text.push(next),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_basic_expression_is_written_as_an_extended_one() {
        for (basic, expected) in
            [("a\\|b", "a|b"), ("a+b", "a\\+b"), ("\\(a\\)*", "(a)*"), ("a\\.b", "a\\.b")]
        {
            assert_eq!(extended(basic), expected);
        }
    }
}
