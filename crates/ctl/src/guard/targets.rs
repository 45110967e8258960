//! What commands that kill, and commands that look processes up, aim at.

use super::protected::{Pattern, Protected};
use super::shell::HOLE;
use mcp_restart_protocol::answer::Owner;

/// What one command aims at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Aim {
    /// Those that it signals.
    pub(crate) kills: Vec<Owner>,
    /// What it signals beside them, of which not all is known here.
    pub(crate) templates: Vec<Template>,
    /// Those that it looks up, for another command to signal.
    pub(crate) finds: Vec<Owner>,
}

/// Whom a command signals, with a [`HOLE`] where values go that are known elsewhere in the text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Template {
    /// Processes by their numbers.
    Numbers,
    /// Processes that a pattern fits.
    Pattern(String, Pattern),
    /// Processes of a name.
    Name(String),
}

impl Template {
    /// Those that it means with this value.
    pub(crate) fn hits(&self, value: &str, protected: &Protected) -> Vec<Owner> {
        match self {
            Self::Numbers => numbered(value, protected),
            Self::Pattern(text, how) => protected.fitting(&text.replace(HOLE, value), *how),
            Self::Name(text) => protected.named(&text.replace(HOLE, value), false),
        }
    }
}

/// A word after the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Operand {
    /// The text, as far as it is known.
    pub(crate) text: String,
    /// Where it comes from.
    pub(crate) source: Source,
}

/// Where a word comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// All of it stands in the text that is judged.
    Known,
    /// A part of it was set elsewhere: by another command, or by the shell itself.
    Elsewhere,
    /// A part of it comes from commands of the text, and has a [`HOLE`] in its place.
    Within,
}

impl Operand {
    /// A word of which only that is known that it comes from the text.
    pub(crate) fn unknown() -> Self {
        Self { text: HOLE.to_string(), source: Source::Within }
    }

    /// Whether all of it is known.
    pub(crate) fn is_known(&self) -> bool {
        self.source == Source::Known
    }

    /// Its words.
    pub(crate) fn split(&self) -> Vec<Self> {
        let part = |text: &str| Self { text: text.to_owned(), source: self.source };
        self.text.split_whitespace().map(part).collect()
    }
}

/// The signal that only asks whether a process is there.
const PROBE: &[&str] = &["0", "EXIT", "SIGEXIT"];

/// What a program with these operands aims at.
pub(crate) fn aim(program: &str, operands: &[Operand], protected: &Protected) -> Aim {
    match program {
        "kill" => kill(operands, protected),
        "pkill" => pattern(operands, protected),
        "pgrep" => {
            let Aim { kills: finds, .. } = pattern(operands, protected);
            Aim { finds, ..Aim::default() }
        }
        "killall" | "skill" => killall(operands, protected),
        "killall5" => Aim { kills: protected.everything(), ..Aim::default() },
        "pidof" => Aim { finds: names(operands, protected), ..Aim::default() },
        "fuser" | "kill-port" | "killport" | "fkill" | "fkill-cli" | "lsof" | "ss" | "netstat" => {
            port(program, operands, protected)
        }
        "grep" | "egrep" | "fgrep" | "rg" | "cat" => {
            Aim { finds: in_proc(operands, protected), ..Aim::default() }
        }
        "tmux" | "screen" => Aim { kills: multiplexer(operands, protected), ..Aim::default() },
        "loginctl" => Aim { kills: session(operands, protected), ..Aim::default() },
        "ps" => Aim { finds: ps(operands, protected), ..Aim::default() },
        "systemctl" | "launchctl" | "service" | "rc-service" | "sv" | "initctl" | "supervisorctl"
        | "brew" => Aim { kills: service(operands, protected), ..Aim::default() },
        "mcp-restartctl" => Aim { finds: own(operands, protected), ..Aim::default() },
        _ => Aim::default(),
    }
}

/// What a filter like `grep` lets through of the lines of `ps` and its like. None if it is none, or keeps lines out.
pub(crate) fn filter(program: &str, operands: &[Operand], protected: &Protected) -> Option<Vec<Owner>> {
    let patterns: Vec<String> = match program {
        "grep" | "egrep" | "fgrep" | "rg" | "ag" | "ack" => {
            let mut flags =
                operands.iter().map(|operand| operand.text.as_str()).filter(|text| text.starts_with('-'));
            let inverse =
                |text: &str| text == "--invert-match" || !text.starts_with("--") && text.contains('v');
            if flags.any(inverse) {
                return None;
            }
            let extends = |operand: &Operand| matches!(operand.text.as_str(), "-E" | "-P");
            let basic = program == "grep" && !operands.iter().any(extends);
            let pattern = operands.iter().find(|operand| !operand.text.starts_with('-'))?;
            if !pattern.is_known() {
                return Some(Vec::new());
            }
            vec![if basic { extended(&pattern.text) } else { pattern.text.clone() }]
        }
        // `awk '/claude/ {print $2}'`, `awk '$11 == "claude"'`
        "awk" | "gawk" | "mawk" | "sed" | "perl" => {
            let between =
                |sign| operands.iter().flat_map(move |operand| operand.text.split(sign).skip(1).step_by(2));
            let compared = operands.iter().any(|operand| operand.text.contains("=="));
            between('/').chain(between('"').filter(|_| compared)).map(str::to_owned).collect()
        }
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
    while let Some(Operand { text, source }) = rest.next() {
        match text.strip_prefix('-') {
            Some("l" | "L" | "-list" | "-table") => return Aim::default(),
            Some("s" | "n" | "-signal") => {
                if is_probe(rest.next()) {
                    return Aim::default();
                }
                signal_given = true;
            }
            Some("-") => signal_given = true,
            Some(signal) if !signal_given && *source == Source::Known => {
                if PROBE.contains(&signal) {
                    return Aim::default();
                }
                signal_given = true;
            }
            _ if *source == Source::Within => aim.templates.push(Template::Numbers),
            _ => {
                aim.kills.extend(text.split_whitespace().flat_map(|part| numbered(part, protected)));
                if *source == Source::Known {
                    aim.kills.extend(protected.named(text, false));
                }
            }
        }
    }
    aim
}

/// Those that a number means, as `kill` reads it: a process, or with a minus its group; `-1` means all.
pub(crate) fn numbered(text: &str, protected: &Protected) -> Vec<Owner> {
    match text.strip_prefix('-') {
        Some("1") => protected.everything(),
        Some(group) => {
            let group = group.parse().ok();
            protected.matching(|process| group.is_some() && process.group == group)
        }
        None => text.parse().map_or_else(|_| Vec::new(), |pid| protected.number(pid)),
    }
}

/// Those that a name in code which kills may mean.
pub(crate) fn mentioned(name: &str, protected: &Protected) -> Vec<Owner> {
    const LENGTH_MIN: usize = 3;
    let is_name = name.len() >= LENGTH_MIN && !name.contains(char::is_whitespace);
    let fits = |text: &str| text.contains(name);
    protected
        .matching(|process| is_name && (process.names.iter().any(|own| fits(own)) || fits(&process.command)))
}

/// Whether an option of `pkill` and `pgrep` takes the next word. (`-c` does for the one and not for the other.)
fn takes_value(option: &str) -> bool {
    matches!(option, "-u" | "-U" | "-G" | "-t" | "-r" | "-O" | "-d" | "-q" | "-s")
        || matches!(
            option,
            "--euid" | "--uid" | "--group" | "--terminal" | "--runstates" | "--older" | "--delimiter"
        )
        || matches!(option, "--cgroup" | "--ns" | "--nslist" | "--queue" | "--session")
}

/// What `pkill` and `pgrep` select.
fn pattern(operands: &[Operand], protected: &Protected) -> Aim {
    let mut how = Pattern::default();
    let mut expressions = Vec::new();
    let mut parents = None;
    let mut groups = None;
    let mut rest = operands.iter();
    while let Some(operand) = rest.next() {
        let list = |value: Option<&Operand>| {
            value.map(|value| {
                value.text.split(',').filter_map(|number| number.parse().ok()).collect::<Vec<u32>>()
            })
        };
        match operand.text.as_str() {
            "--signal" if is_probe(rest.next()) => return Aim::default(),
            "-0" | "--signal=0" => return Aim::default(),
            "--full" => how.full = true,
            "--exact" => how.exact = true,
            "--ignore-case" => how.ignore_case = true,
            "--inverse" => how.inverse = true,
            "-P" | "--parent" => parents = list(rest.next()),
            "-g" | "--pgroup" => groups = list(rest.next()),
            "-F" | "--pidfile" => {
                let ours = rest.next().is_some_and(|file| file.text.ends_with("mcp-restartd.lock"));
                let kills = protected.matching(|process| ours && process.owner == Owner::Daemon);
                return Aim { kills, ..Aim::default() };
            }
            flag if takes_value(flag) => _ = rest.next(),
            flag if flag.starts_with("--") => {}
            flag if flag.starts_with('-') && flag.len() > 1 => {
                how.full |= flag.contains('f');
                how.exact |= flag.contains('x');
                how.ignore_case |= flag.contains('i');
                how.inverse |= flag.contains('v') && flag.len() == 2;
            }
            _ => expressions.push(operand),
        }
    }
    let mut aim = Aim::default();
    for Operand { text, source } in &expressions {
        match source {
            Source::Known => aim.kills.extend(protected.fitting(text, how)),
            Source::Within => aim.templates.push(Template::Pattern(text.clone(), how)),
            Source::Elsewhere => {}
        }
    }
    let of_user = |operand: &Operand| operand.text.starts_with("-u") || operand.text.starts_with("-U");
    let narrowed = parents.is_some() || groups.is_some();
    if expressions.is_empty() && (narrowed || operands.iter().any(of_user)) {
        aim.kills = protected.everything();
    }
    let among = |numbers: &Option<Vec<u32>>, own: Option<u32>| {
        numbers.as_ref().is_none_or(|numbers| own.is_some_and(|own| numbers.contains(&own)))
    };
    let within =
        protected.matching(|process| among(&parents, process.parent) && among(&groups, process.group));
    aim.kills.retain(|owner| within.contains(owner));
    aim
}

fn killall(operands: &[Operand], protected: &Protected) -> Aim {
    let flag = |letter: char| {
        move |operand: &Operand| {
            let text = operand.text.as_str();
            text.starts_with('-') && !text.starts_with("--") && text.len() < 4 && text.contains(letter)
        }
    };
    if operands.iter().any(flag('l')) || operands.iter().any(|operand| operand.text == "-0") {
        return Aim::default();
    }
    // `-r` of Linux is `-m` of macOS.
    let by_pattern = operands.iter().any(|operand| operand.text == "--regexp")
        || operands.iter().any(flag('r'))
        || operands.iter().any(flag('m'));
    let ignore_case =
        operands.iter().any(|operand| operand.text == "--ignore-case") || operands.iter().any(flag('I'));
    let mut named = Vec::new();
    let mut of_user = false;
    let mut rest = operands.iter();
    while let Some(operand) = rest.next() {
        match operand.text.as_str() {
            "-s" | "--signal" if is_probe(rest.next()) => return Aim::default(),
            "-u" | "--user" => {
                rest.next();
                of_user = true;
            }
            "-o" | "-y" | "-t" | "-n" | "-Z" => _ = rest.next(),
            text if !text.starts_with('-') => named.push(operand),
            _ => {}
        }
    }
    if named.is_empty() && of_user {
        return Aim { kills: protected.everything(), ..Aim::default() };
    }
    let how = Pattern { ignore_case, ..Pattern::default() };
    let mut aim = Aim::default();
    for Operand { text, source } in named {
        match source {
            Source::Known if by_pattern => aim.kills.extend(protected.fitting(text, how)),
            Source::Known => {
                aim.kills.extend(text.split_whitespace().flat_map(|name| protected.named(name, ignore_case)));
            }
            Source::Within => aim.templates.push(Template::Name(text.clone())),
            Source::Elsewhere => {}
        }
    }
    aim
}

fn names(operands: &[Operand], protected: &Protected) -> Vec<Owner> {
    let named = operands.iter().filter(|operand| !operand.text.starts_with('-'));
    named.flat_map(|operand| protected.named(&operand.text, false)).collect()
}

/// Whom `ps` is asked for by name or number; it tells their numbers, those of their groups, or, of an agent's shell, the
/// agent. What else it lists is for a filter to judge.
fn ps(operands: &[Operand], protected: &Protected) -> Vec<Owner> {
    let after = |flags: &'static [&str]| {
        let at = operands.iter().position(|operand| flags.contains(&operand.text.as_str()));
        at.and_then(|at| operands.get(at + 1))
    };
    let numbers = |flags| {
        let numbers =
            after(flags).map(|value| value.text.split(',').filter_map(|number| number.parse().ok()));
        numbers.map_or_else(Vec::new, Iterator::collect::<Vec<u32>>)
    };
    let (own, parents) = (numbers(&["-p", "-q", "--pid"]), numbers(&["--ppid"]));
    let asked = protected.matching(|process| {
        let is_in =
            |numbers: &[u32], number: Option<u32>| number.is_some_and(|number| numbers.contains(&number));
        is_in(&own, process.pid) || is_in(&parents, process.parent)
    });
    let named = after(&["-C"]).map_or_else(Vec::new, |name| protected.named(&name.text, false));
    let tells_parent = operands.iter().any(|operand| operand.text.contains("ppid="));
    let parent = protected.own_process().filter(|_| tells_parent);
    [asked, named, parent.map_or_else(Vec::new, |pid| protected.number(pid))].concat()
}

/// Whether a program shows processes, a line each.
pub(crate) fn lists_processes(program: &str) -> bool {
    matches!(program, "ps" | "pstree" | "top" | "ss" | "netstat" | "lsof")
}

/// Whether it shows every process there is.
pub(crate) fn lists_everything(program: &str, operands: &[Operand]) -> bool {
    let mut selects = false;
    let mut all = program == "pstree" || program == "top";
    for text in operands.iter().map(|operand| operand.text.as_str()) {
        match text.strip_prefix('-') {
            Some("p" | "q" | "C" | "t" | "s" | "g" | "-pid" | "-ppid" | "-tty" | "-sid") => selects = true,
            Some("-user" | "-User" | "u" | "U") => all = true,
            Some(letters) if !letters.starts_with('-') => all |= letters.contains(['e', 'A', 'x', 'u']),
            Some(_) => {}
            None => all |= program == "ps" && text.starts_with(['a', 'x', 'u']) && text.contains('x'),
        }
    }
    matches!(program, "ps" | "pstree" | "top") && all && !selects
}

/// Those that a search through `/proc` may find.
fn in_proc(operands: &[Operand], protected: &Protected) -> Vec<Owner> {
    let looks =
        |operand: &Operand| ["/proc/", "/cmdline", "/comm"].iter().any(|part| operand.text.contains(part));
    if !operands.iter().any(looks) {
        return Vec::new();
    }
    let pattern = operands.iter().find(|operand| !operand.text.starts_with('-'));
    let how = Pattern { full: true, ignore_case: true, ..Pattern::default() };
    pattern.map_or_else(Vec::new, |pattern| protected.fitting(&pattern.text, how))
}

/// A terminal multiplexer that is told to end, if it is what an agent runs.
fn multiplexer(operands: &[Operand], protected: &Protected) -> Vec<Owner> {
    let ends = |text: &str| matches!(text, "kill-server" | "kill-session" | "quit");
    let told = operands.iter().any(|operand| ends(&operand.text));
    if told { protected.fitting("^(tmux|screen|SCREEN)", Pattern::default()) } else { Vec::new() }
}

/// A session manager that is told to end all of a user.
fn session(operands: &[Operand], protected: &Protected) -> Vec<Owner> {
    let ends = |text: &str| text.starts_with("terminate-") || text.starts_with("kill-");
    if operands.iter().any(|operand| ends(&operand.text)) { protected.everything() } else { Vec::new() }
}

/// What has to do with the endpoint's port, or with a file that is open.
fn port(program: &str, operands: &[Operand], protected: &Protected) -> Aim {
    let kills = match program {
        "fuser" => operands.iter().any(|operand| operand.text.starts_with('-') && operand.text.contains('k')),
        "kill-port" | "killport" | "fkill" | "fkill-cli" => true,
        _ => false,
    };
    let mut hits: Vec<_> = operands.iter().flat_map(|operand| named_port(&operand.text, protected)).collect();
    match program {
        "fkill" | "fkill-cli" => hits.extend(names(operands, protected)),
        "fuser" | "lsof" => hits.extend(operands.iter().flat_map(|operand| opened(&operand.text, protected))),
        _ => {}
    }
    if program == "lsof"
        && let Some(name) = operands.iter().skip_while(|operand| operand.text != "-c").nth(1)
    {
        hits.extend(protected.named(&name.text, false));
    }
    if kills { Aim { kills: hits, ..Aim::default() } } else { Aim { finds: hits, ..Aim::default() } }
}

/// Those that have a file open, as far as its name tells: the daemon's own, and the program of a process.
fn opened(path: &str, protected: &Protected) -> Vec<Owner> {
    if path.ends_with("mcp-restartd.sock") || path.ends_with("mcp-restartd.lock") {
        return protected.matching(|process| process.owner == Owner::Daemon);
    }
    if path.contains('/') { protected.named(path, false) } else { Vec::new() }
}

/// The endpoint, if a text names its port.
fn named_port(text: &str, protected: &Protected) -> Vec<Owner> {
    let names =
        |port: u16| text.split(|next: char| !next.is_ascii_digit()).any(|part| part == port.to_string());
    if protected.port.is_some_and(names) { vec![Owner::Bridge] } else { Vec::new() }
}

/// A service manager that is told to end the daemon.
fn service(operands: &[Operand], protected: &Protected) -> Vec<Owner> {
    let now = operands.iter().any(|operand| operand.text == "--now");
    let ends = |text: &str| match text {
        "disable" | "mask" => now,
        _ => matches!(
            text,
            "kill"
                | "stop"
                | "restart"
                | "try-restart"
                | "reload-or-restart"
                | "bootout"
                | "kickstart"
                | "unload"
                | "remove"
                | "down"
                | "term"
                | "exit"
                | "force-stop"
                | "force-restart"
                | "shutdown"
        ),
    };
    let ours = |text: &str| match text.split_once('*') {
        Some((begin, _)) => !begin.is_empty() && "mcp-restartd.service".starts_with(begin),
        None => text.contains("mcp-restart") || text.ends_with("mcp_restart"),
    };
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
