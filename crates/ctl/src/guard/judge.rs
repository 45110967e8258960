//! The judgement on a text.

use super::code;
use super::printed;
use super::protected::Protected;
use super::shell::{self, Command, Piece, Pipeline, Word};
use super::targets::{self, Operand, Source, Template};
use super::wrappers::{self, Wrapped};
use mcp_restart_protocol::answer::Owner;
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Why a text may not be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// What it would hit, each once.
    pub(crate) hits: Vec<Owner>,
}

/// How deep scripts may be nested in scripts before the rest is taken for a kill of everything.
const DEPTH_MAX: usize = 8;

/// How many bytes may be made of the text, all in all: values of variables, files, scripts, and aims, each time that they are
/// used. A value beyond is not known, and a script or an aim beyond is taken for a kill of everything.
const MADE_MAX: usize = 16 << 20;

/// What a script or an aim takes of them beside its length.
const EACH: usize = 1 << 10;

/// Whether a text would hit what is protected.
pub(crate) fn judge(text: &str, protected: &Protected) -> Option<Refusal> {
    let mut judge = Judge {
        protected,
        variables: HashMap::new(),
        left_to_make: Cell::new(MADE_MAX),
        aliases: HashMap::new(),
        functions: HashSet::new(),
        written: HashMap::new(),
        values: BTreeSet::new(),
        kills: BTreeSet::new(),
        finds: BTreeSet::new(),
        templates: BTreeSet::new(),
    };
    judge.script(&shell::parse(text), 0, false);
    let hits = judge.hits();
    (!hits.is_empty()).then(|| Refusal { hits: hits.into_iter().collect() })
}

struct Judge<'a> {
    protected: &'a Protected,
    /// What was assigned in the text itself.
    variables: HashMap<String, Operand>,
    left_to_make: Cell<usize>,
    /// What stands for these words.
    aliases: HashMap<String, String>,
    /// The functions that the text defines.
    functions: HashSet<String>,
    /// The files that the text writes, as far as it is known what.
    written: HashMap<String, String>,
    /// Words by which a kill may come whose aim is not known where it stands: of loops, calls of functions, and what is read.
    values: BTreeSet<String>,
    kills: BTreeSet<Owner>,
    /// Whose numbers are looked up, and may be those that are killed.
    finds: BTreeSet<Owner>,
    /// The aims of kills that are not known where these stand.
    templates: BTreeSet<Template>,
}

/// What came out of the commands of a pipeline so far.
#[derive(Default)]
struct Flow {
    /// What was printed last, as far as it is known.
    text: Option<String>,
    /// Whether it is about processes.
    lists_processes: bool,
    /// What is left of the processes that were listed.
    listed: Option<Vec<Owner>>,
    /// Who was looked up.
    finds: Vec<Owner>,
    /// Whether a command does more than to show that.
    is_used: bool,
    /// Whether a line that is printed is a command that kills.
    writes_kills: bool,
}

impl Judge<'_> {
    fn hits(mut self) -> BTreeSet<Owner> {
        if self.templates.contains(&Template::Numbers) {
            self.kills.append(&mut self.finds);
        }
        for value in &self.values {
            for template in &self.templates {
                if !self.makes(value.len() + EACH) {
                    return self.protected.everything().into_iter().collect();
                }
                self.kills.extend(template.hits(value, self.protected));
            }
        }
        self.kills
    }

    /// `captured`: what it prints is used by what stands around it.
    fn script(&mut self, pipelines: &[Pipeline], depth: usize, captured: bool) {
        if depth > DEPTH_MAX {
            self.kills.extend(self.protected.everything());
            return;
        }
        for pipeline in pipelines {
            let mut flow = Flow { is_used: captured, ..Flow::default() };
            for command in pipeline {
                self.command(command, &mut flow, depth);
            }
            if flow.is_used {
                self.finds.extend(flow.finds);
                self.finds.extend(flow.listed.into_iter().flatten());
            }
        }
    }

    fn command(&mut self, command: &Command, flow: &mut Flow, depth: usize) {
        self.inside(command, depth);
        if command.defines {
            self.functions.extend(command.words.first().map(|word| self.operand(word).text));
            return;
        }
        let input = command.input.first().map(|word| self.operand(word).text).or_else(|| flow.text.take());
        let raw = command.words.first().map(|word| self.operand(word).text).unwrap_or_default();
        if printed::reads_for_others(&raw) {
            self.values.extend(words_of(input.as_deref()));
        }
        let words = self.words(command);
        flow.is_used |= !words.first().is_some_and(|first| printed::only_shows(&first.text)) && flow.lists();
        flow.is_used |= self.files(command).next().is_some();
        let found = self.program(words, input.as_deref(), depth);
        if let Some((program, operands)) = found {
            self.follow(&program, &operands, flow);
            flow.text = printed::by(&program, &operands, input.as_deref());
            self.write_down(command, &program, &operands, flow.text.as_deref());
        }
    }

    /// What a command makes of the processes that were listed before it.
    fn follow(&mut self, program: &str, operands: &[Operand], flow: &mut Flow) {
        if wrappers::reads_script(program) && flow.writes_kills {
            self.templates.insert(Template::Numbers);
        }
        if flow.lists_processes
            && let Some(through) = targets::filter(program, operands, self.protected)
        {
            flow.listed = Some(match flow.listed.take() {
                Some(listed) => listed.into_iter().filter(|owner| through.contains(owner)).collect(),
                None => through,
            });
        }
        if targets::lists_processes(program) {
            flow.lists_processes = true;
            flow.listed = targets::lists_everything(program, operands).then(|| self.protected.everything());
        }
        if flow.lists() && operands.iter().any(|operand| operand.text.contains("kill")) {
            flow.writes_kills = true;
            if operands.iter().any(|operand| operand.text.contains("system")) {
                self.templates.insert(Template::Numbers);
                flow.is_used = true;
            }
        }
        let aim = targets::aim(program, operands, self.protected);
        self.kills.extend(aim.kills);
        flow.finds.extend(aim.finds);
        self.templates.extend(aim.templates);
    }

    /// The files that a command is redirected to or from.
    fn files(&self, command: &Command) -> impl Iterator<Item = String> {
        let files = command.files.iter().map(|word| self.operand(word).text);
        files.filter(|file| !file.starts_with("/dev/") && file.parse::<u32>().is_err() && file != "-")
    }

    /// Remembers what is written to files, which may be run later.
    fn write_down(&mut self, command: &Command, program: &str, operands: &[Operand], text: Option<&str>) {
        let Some(text) = text else { return };
        let mut files: Vec<_> = self.files(command).collect();
        if program == "tee" {
            files.extend(operands.iter().map(|operand| operand.text.clone()));
        }
        for file in files {
            let written = self.written.entry(plain_path(&file).to_owned()).or_default();
            written.push_str(text);
            written.push('\n');
        }
    }

    /// A text that is run as a script of the shell.
    fn text(&mut self, text: &str, depth: usize) {
        if !self.makes(text.len() + EACH) {
            self.kills.extend(self.protected.everything());
            return;
        }
        self.script(&shell::parse(text), depth + 1, false);
    }

    /// The same in words that are put together.
    fn line(&mut self, words: &[Operand], depth: usize) {
        let words: Vec<_> = words.iter().map(|word| word.text.as_str()).collect();
        self.text(&words.join(" "), depth);
    }

    /// What is substituted into the words of a command, and the files it reads.
    fn inside(&mut self, command: &Command, depth: usize) {
        for word in command.words.iter().chain(&command.files).chain(&command.input) {
            self.substitutions(word, depth);
        }
        // The number of the daemon is in its lock.
        for word in command.words.iter().chain(&command.files) {
            if self.operand(word).text.ends_with("mcp-restartd.lock") {
                self.finds.extend(self.protected.matching(|process| process.owner == Owner::Daemon));
            }
        }
    }

    fn substitutions(&mut self, word: &Word, depth: usize) {
        for piece in word {
            match piece {
                Piece::Substitution(pipelines) => self.script(pipelines, depth + 1, true),
                Piece::Variable { or, .. } => self.substitutions(or, depth),
                Piece::Text(_) | Piece::OfShell | Piece::Unknown => {}
            }
        }
    }

    /// The words from the program on: without reserved words and assignments, which are remembered.
    fn words(&mut self, command: &Command) -> Vec<Operand> {
        const RESERVED: &[&str] = &[
            "if", "then", "elif", "else", "fi", "while", "until", "do", "done", "{", "}", "!", "coproc",
            "esac",
        ];
        let mut words = Vec::new();
        for word in &command.words {
            let operand = self.operand(word);
            if !words.is_empty() {
                words.push(operand);
            } else if let Some((name, value)) = assignment(&operand.text) {
                let value = Operand { text: value.to_owned(), source: operand.source };
                self.assign(name, value);
            } else if !RESERVED.contains(&operand.text.as_str()) {
                // An unquoted variable is as many words as it has.
                match word.as_slice() {
                    [Piece::Variable { quoted: false, .. }] => words.extend(operand.split()),
                    [Piece::Text(before), Piece::Variable { quoted: false, .. }] if before.is_empty() => {
                        words.extend(operand.split());
                    }
                    _ => words.push(operand),
                }
            }
        }
        if words.first().is_some_and(|first| first.text == "function") && words.len() > 1 {
            self.functions.insert(words.remove(1).text);
            words.remove(0);
            words.retain(|word| word.text != "{");
        }
        words
    }

    fn assign(&mut self, name: &str, value: Operand) {
        let (name, adds) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
        match self.variables.get_mut(name) {
            Some(before) if adds => {
                before.text.push_str(&value.text);
                before.source = before.source.max(value.source);
            }
            // Whether this assignment is run is not known, so either may be its value.
            Some(before) if before.source == Source::Within => {
                self.values.extend(words_of(Some(&value.text)));
            }
            _ => _ = self.variables.insert(name.to_owned(), value),
        }
    }

    /// Judges one command, given what it reads, and gives its program and operands.
    fn program(
        &mut self,
        words: Vec<Operand>,
        input: Option<&str>,
        depth: usize,
    ) -> Option<(String, Vec<Operand>)> {
        if depth > DEPTH_MAX {
            self.kills.extend(self.protected.everything());
            return None;
        }
        let first = words.first()?;
        let program = first.text.rsplit('/').next().unwrap_or_default().to_owned();
        if let Some(meaning) = self.aliases.remove(&program) {
            // Once, since an alias may be made of itself.
            let rest: Vec<_> = words.iter().skip(1).map(|word| word.text.as_str()).collect();
            self.text(&format!("{meaning} {}", rest.join(" ")), depth);
            return None;
        }
        let texts: Vec<String> = words.iter().map(|word| word.text.clone()).collect();
        match wrappers::unwrap(&program, &texts) {
            Wrapped::Command(at) => {
                let mut inner: Vec<_> = words.iter().skip(at).cloned().collect();
                if matches!(program.as_str(), "xargs" | "parallel") {
                    self.values.extend(words_of(input));
                    wrappers::fill_in(&mut inner, words.get(..at).unwrap_or_default());
                }
                return self.program(inner, input, depth + 1);
            }
            Wrapped::Script(script) => {
                self.text(&script, depth);
                return None;
            }
            Wrapped::Nothing => {}
        }
        let operands: Vec<_> = words.into_iter().skip(1).collect();
        if !self.built_in(&program, &operands, input, depth) {
            self.runs(&program, &texts, input, depth);
        }
        Some((program, operands))
    }

    /// Whether it is a command of the shell itself, or one that runs what it is given; what it does is judged.
    fn built_in(&mut self, program: &str, operands: &[Operand], input: Option<&str>, depth: usize) -> bool {
        match program {
            "eval" | "trap" => self.line(operands, depth),
            "alias" => self.aliases.extend(assignments(operands).map(|(name, meaning)| (name, meaning.text))),
            "export" | "declare" | "typeset" | "local" | "readonly" => {
                for (name, value) in assignments(operands) {
                    self.assign(&name, value);
                }
            }
            "read" | "mapfile" | "readarray" | "for" | "select" => {
                let at = operands.iter().position(|operand| operand.text == "in").unwrap_or(operands.len());
                let (names, values) = operands.split_at(at);
                self.variables.extend(names.iter().map(|name| (name.text.clone(), Operand::unknown())));
                self.pass(values.get(1..).unwrap_or_default());
            }
            "set" => self.pass(operands),
            "find" | "fd" => self.executed(operands, input, depth),
            "source" | "." => {
                self.scripts(operands.first().map(|operand| operand.text.as_str()), input, depth);
            }
            "at" | "batch" => self.scripts(None, input, depth),
            // What is typed into another terminal is run there.
            "tmux" | "screen" => {
                for operand in operands.iter().filter(|operand| operand.text.contains(char::is_whitespace)) {
                    self.text(&operand.text, depth);
                }
            }
            _ if self.functions.contains(program) => self.pass(operands),
            _ => return false,
        }
        true
    }

    /// The script or the code that a program runs.
    fn runs(&mut self, program: &str, words: &[String], input: Option<&str>, depth: usize) {
        if wrappers::reads_script(program) {
            if let Some((script, at)) = wrappers::script_of(words) {
                self.values.extend(words.iter().skip(at + 1).cloned());
                self.text(script, depth);
            } else {
                let mut operands = words.iter().skip(1).skip_while(|word| word.starts_with('-'));
                let file = operands.next();
                self.values.extend(operands.cloned());
                self.scripts(file.map(String::as_str), input, depth);
            }
            return;
        }
        let file = words.get(1).and_then(|file| self.written.get(plain_path(file)));
        if let Some(code) = code::of(program, words, input, file.map(String::as_str)) {
            self.code(&code, depth);
        }
        let itself = words.first().filter(|path| path.contains('/'));
        if let Some(script) = itself.and_then(|path| self.written.get(plain_path(path))).cloned() {
            self.text(&script, depth);
        }
    }

    /// Words that reach a kill by other ways than its own words.
    fn pass(&mut self, operands: &[Operand]) {
        self.values.extend(operands.iter().flat_map(|operand| words_of(Some(&operand.text))));
    }

    /// What a shell reads: the file, if the text wrote it, or what is printed in its place, or its standard input.
    fn scripts(&mut self, file: Option<&str>, input: Option<&str>, depth: usize) {
        let script = match file {
            // `<(…)` leaves what is printed there as the word.
            Some(file) if !file.starts_with("/dev/") => {
                Some(self.written.get(plain_path(file)).map_or(file, String::as_str))
            }
            _ => input,
        };
        if let Some(script) = script.map(str::to_owned) {
            self.text(&script, depth);
        }
    }

    fn code(&mut self, code: &str, depth: usize) {
        for script in code::scripts(code) {
            self.text(&script, depth);
        }
        if code::kills(code) {
            self.kills
                .extend(code::numbers(code).flat_map(|number| targets::numbered(&number, self.protected)));
            self.kills.extend(code::literals(code).flat_map(|name| targets::mentioned(name, self.protected)));
        }
    }

    /// What `find` runs.
    fn executed(&mut self, operands: &[Operand], input: Option<&str>, depth: usize) {
        let runs = |text: &str| matches!(text, "-exec" | "-execdir" | "-ok" | "-okdir" | "-x" | "-X");
        for (at, _) in operands.iter().enumerate().filter(|(_, operand)| runs(&operand.text)) {
            let inner = operands.iter().skip(at + 1);
            let inner: Vec<_> =
                inner.take_while(|operand| !matches!(operand.text.as_str(), ";" | "+")).cloned().collect();
            if let Some((program, operands)) = self.program(inner, input, depth + 1) {
                self.follow(&program, &operands, &mut Flow::default());
            }
        }
    }

    /// A word with the values of the variables that the text itself assigned, and what is known to be printed into it.
    fn operand(&self, word: &Word) -> Operand {
        let mut operand = Operand { text: String::new(), source: Source::Known };
        for piece in word {
            let value = match piece {
                Piece::Text(text) => Operand { text: text.clone(), source: Source::Known },
                Piece::Variable { name, or, .. } => self.variable(name, or),
                Piece::Substitution(pipelines) => match self.printed(pipelines) {
                    Some(text) => Operand { text, source: Source::Known },
                    None => Operand::unknown(),
                },
                Piece::OfShell => Operand { text: String::new(), source: Source::Elsewhere },
                Piece::Unknown => Operand::unknown(),
            };
            operand.text.push_str(&value.text);
            operand.source = operand.source.max(value.source);
        }
        operand
    }

    fn variable(&self, name: &str, or: &Word) -> Operand {
        if let Some(value) = self.variables.get(name) {
            return if self.makes(value.text.len()) { value.clone() } else { Operand::unknown() };
        }
        // The parent of an agent's shell is the agent.
        if let Some(agent) = (name == "PPID").then(|| self.protected.own_process()).flatten() {
            return Operand { text: agent.to_string(), source: Source::Known };
        }
        if !or.is_empty() {
            return self.operand(or);
        }
        // The words of a function or a script are known where that is called.
        let is_passed = name == "@" || name.bytes().all(|byte| byte.is_ascii_digit());
        if is_passed {
            Operand::unknown()
        } else {
            Operand { text: String::new(), source: Source::Elsewhere }
        }
    }

    /// Whether so many bytes more may be made.
    fn makes(&self, bytes: usize) -> bool {
        let left = self.left_to_make.get().checked_sub(bytes);
        self.left_to_make.set(left.unwrap_or(0));
        left.is_some()
    }

    /// What is known to be printed by one pipeline.
    fn printed(&self, pipelines: &[Pipeline]) -> Option<String> {
        let [pipeline] = pipelines else { return None };
        let mut text = None;
        for command in pipeline {
            let mut words = command.words.iter().map(|word| self.operand(word));
            let program = words.next()?;
            let operands: Vec<_> = words.collect();
            let input = command.input.first().map(|word| self.operand(word)).filter(Operand::is_known);
            let input = input.map(|operand| operand.text).or(text);
            let written = match operands.as_slice() {
                [file] if program.text == "cat" => self.written.get(plain_path(&file.text)),
                _ => None,
            };
            let written = written.filter(|written| self.makes(written.len())).cloned();
            text = Some(written.or_else(|| printed::by(&program.text, &operands, input.as_deref()))?);
        }
        text.map(|text| text.trim_end_matches('\n').to_owned())
    }
}

impl Flow {
    /// Whether somebody was looked up or listed.
    fn lists(&self) -> bool {
        self.lists_processes || !self.finds.is_empty()
    }
}

/// `NAME=VALUE`.
fn assignment(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let plain = name.strip_suffix('+').unwrap_or(name);
    let is_name = plain.chars().all(|next| next.is_ascii_alphanumeric() || next == '_');
    (!plain.is_empty() && is_name).then_some((name, value))
}

fn assignments(operands: &[Operand]) -> impl Iterator<Item = (String, Operand)> {
    let known = operands.iter().filter_map(|operand| Some((assignment(&operand.text)?, operand.source)));
    known.map(|((name, value), source)| (name.to_owned(), Operand { text: value.to_owned(), source }))
}

fn words_of(text: Option<&str>) -> impl Iterator<Item = String> {
    text.into_iter().flat_map(str::split_whitespace).map(str::to_owned)
}

fn plain_path(path: &str) -> &str {
    path.strip_prefix("./").unwrap_or(path)
}
