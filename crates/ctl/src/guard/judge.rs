//! The judgement on a text.

use super::protected::Protected;
use super::shell::{self, Command, Piece, Pipeline, Word};
use super::targets::{self, Operand};
use super::wrappers;
use mcp_restart_protocol::answer::Owner;
use std::collections::HashMap;

/// Why a text may not be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// What it would hit, each once.
    pub(crate) hits: Vec<Owner>,
}

/// How deep scripts may be nested in scripts before the rest is taken for a kill of everything.
const DEPTH_MAX: usize = 8;

/// Whether a text would hit what is protected.
pub(crate) fn judge(text: &str, protected: &Protected) -> Option<Refusal> {
    let mut judge = Judge {
        protected,
        variables: HashMap::new(),
        kills: Vec::new(),
        finds: Vec::new(),
        kills_unknown: false,
    };
    judge.script(&shell::parse(text), 0);
    let Judge { mut kills, finds, kills_unknown, .. } = judge;
    if kills_unknown {
        kills.extend(finds);
    }
    kills.sort();
    kills.dedup();
    (!kills.is_empty()).then_some(Refusal { hits: kills })
}

struct Judge<'a> {
    protected: &'a Protected,
    /// What was assigned in the text itself.
    variables: HashMap<String, Operand>,
    kills: Vec<Owner>,
    finds: Vec<Owner>,
    kills_unknown: bool,
}

impl Judge<'_> {
    fn script(&mut self, pipelines: &[Pipeline], depth: usize) {
        if depth > DEPTH_MAX {
            self.kills.extend(self.protected.everything());
            return;
        }
        for pipeline in pipelines {
            let mut before: Option<(String, Vec<Operand>)> = None;
            let mut lists_processes = false;
            // What is left of the processes that were listed.
            let mut listed: Option<Vec<Owner>> = None;
            for command in pipeline {
                self.inside(command, depth);
                let words = self.words(command);
                let Some((program, operands)) = self.program(words, depth) else { continue };
                lists_processes |=
                    matches!(program.as_str(), "ps" | "pstree" | "top" | "ss" | "netstat" | "lsof");
                if let Some(through) =
                    targets::filter(&program, &operands, self.protected).filter(|_| lists_processes)
                {
                    listed = Some(listed.map_or(through.clone(), |listed| {
                        listed.into_iter().filter(|owner| through.contains(owner)).collect()
                    }));
                }
                if wrappers::is_shell(&program) {
                    self.standard_input(command, before.as_ref(), depth);
                }
                before = Some((program, operands));
            }
            self.finds.extend(listed.into_iter().flatten());
        }
    }

    /// A text that a command is given to run.
    fn text(&mut self, text: &str, depth: usize) {
        self.script(&shell::parse(text), depth + 1);
    }

    /// The same in words that are put together.
    fn line(&mut self, words: &[Operand], depth: usize) {
        let words: Vec<_> = words.iter().map(|word| word.text.as_str()).collect();
        self.text(&words.join(" "), depth);
    }

    /// What is substituted into the words of a command, and the files it reads.
    fn inside(&mut self, command: &Command, depth: usize) {
        for piece in command.words.iter().chain(&command.files).chain(&command.input).flatten() {
            if let Piece::Substitution(pipelines) = piece {
                self.script(pipelines, depth + 1);
            }
        }
        // The number of the daemon is in its lock.
        for word in command.words.iter().chain(&command.files) {
            if self.operand(word).text.ends_with("mcp-restartd.lock") {
                self.finds.extend(self.protected.matching(|process| process.owner == Owner::Daemon));
            }
        }
    }

    /// The words from the program on: without reserved words and assignments, which are remembered.
    fn words(&mut self, command: &Command) -> Vec<Operand> {
        const RESERVED: &[&str] = &[
            "if", "then", "elif", "else", "fi", "while", "until", "do", "done", "{", "}", "!", "time",
            "coproc", "esac",
        ];
        let mut words =
            command.words.iter().map(|word| self.operand(word)).collect::<Vec<_>>().into_iter().peekable();
        while let Some(first) = words.peek() {
            let assigned = first.text.split_once('=').filter(|(name, _)| {
                !name.is_empty() && name.chars().all(|next| next.is_ascii_alphanumeric() || next == '_')
            });
            if let Some((name, value)) = assigned {
                self.variables
                    .insert(name.to_owned(), Operand { text: value.to_owned(), known: first.known });
            } else if !RESERVED.contains(&first.text.as_str()) {
                break;
            }
            words.next();
        }
        words.collect()
    }

    /// Judges one command and gives its program and operands.
    fn program(&mut self, words: Vec<Operand>, depth: usize) -> Option<(String, Vec<Operand>)> {
        let first = words.first()?;
        let program = first.text.rsplit('/').next().unwrap_or_default().to_owned();
        let texts: Vec<String> = words.iter().map(|word| word.text.clone()).collect();
        if let Some(at) = wrappers::inner(&program, &texts) {
            let mut inner: Vec<_> = words.into_iter().skip(at).collect();
            if matches!(program.as_str(), "xargs" | "parallel") {
                inner.push(Operand { text: String::new(), known: false });
            }
            if program == "watch" {
                self.line(&inner, depth);
            }
            return if depth > DEPTH_MAX { None } else { self.program(inner, depth + 1) };
        }
        let operands: Vec<_> = words.into_iter().skip(1).collect();
        match program.as_str() {
            "eval" | "trap" => {
                self.line(&operands, depth);
            }
            shell if wrappers::is_shell(shell) => {
                if let Some(script) = wrappers::script_of(&texts) {
                    self.text(script, depth);
                }
            }
            "find" | "fd" => self.executed(&operands, depth),
            "npx" | "bunx" | "pnpx" => {
                let inner =
                    operands.iter().skip_while(|operand| operand.text.starts_with('-')).cloned().collect();
                return self.program(inner, depth + 1);
            }
            _ => {
                if let Some(code) = wrappers::code(&program, &texts) {
                    for literal in wrappers::literals(code) {
                        self.text(literal, depth);
                    }
                    self.kills
                        .extend(wrappers::killed_numbers(code).flat_map(|pid| self.protected.number(pid)));
                }
            }
        }
        let aim = targets::aim(&program, &operands, self.protected);
        self.kills.extend(aim.kills);
        self.finds.extend(aim.finds);
        self.kills_unknown |= aim.kills_unknown;
        Some((program, operands))
    }

    /// What `find` runs.
    fn executed(&mut self, operands: &[Operand], depth: usize) {
        let runs = |text: &str| matches!(text, "-exec" | "-execdir" | "-ok" | "-okdir" | "-x" | "-X");
        if let Some(at) = operands.iter().position(|operand| runs(&operand.text)) {
            let inner = operands
                .iter()
                .skip(at + 1)
                .take_while(|operand| !matches!(operand.text.as_str(), ";" | "+"));
            let inner = inner.cloned().collect();
            self.program(inner, depth + 1);
        }
    }

    /// What a shell reads from its standard input: a here-document, or what `echo` prints.
    fn standard_input(&mut self, command: &Command, before: Option<&(String, Vec<Operand>)>, depth: usize) {
        for word in &command.input {
            let text = self.operand(word).text;
            self.text(&text, depth);
        }
        if let Some((program, operands)) =
            before.filter(|(program, _)| matches!(program.as_str(), "echo" | "printf"))
        {
            let _ = program;
            self.line(operands, depth);
        }
    }

    /// A word with the values of the variables that the text itself assigned.
    fn operand(&self, word: &Word) -> Operand {
        let mut operand = Operand { text: String::new(), known: true };
        for piece in word {
            match piece {
                Piece::Text(text) => operand.text.push_str(text),
                Piece::Variable(name) => match self.variables.get(name) {
                    Some(value) => {
                        operand.text.push_str(&value.text);
                        operand.known &= value.known;
                    }
                    None => operand.known = false,
                },
                Piece::Substitution(_) | Piece::Unknown => operand.known = false,
            }
        }
        operand
    }
}

#[cfg(test)]
mod tests {
    use super::super::protected::Process;
    use super::*;
    use proptest::prelude::*;

    /// A daemon, its bridge, claude with its shim, and a gemini that is a script of node.
    fn protected() -> Protected {
        let process = |pid, names: &[&str], command: &str, owner: Owner| Process {
            pid: Some(pid),
            parent: Some(pid - 1),
            group: Some(pid),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            command: command.to_owned(),
            owner,
        };
        let claude = || Owner::Agent("claude".into());
        let gemini = || Owner::Agent("gemini".into());
        Protected {
            processes: vec![
                process(
                    4100,
                    &["mcp-restartd"],
                    "/usr/bin/mcp-restartd --config /home/a/c.json",
                    Owner::Daemon,
                ),
                process(
                    4101,
                    &["mcp-restart-htt", "mcp-restart-http"],
                    "/usr/bin/mcp-restart-http",
                    Owner::Bridge,
                ),
                process(4200, &["mcp-restart: cl"], "mcp-restart: claude", claude()),
                process(4201, &["claude", "claude.exe"], "claude --mcp-config=/s/claude.mcp.json", claude()),
                process(4301, &["node"], "node /usr/bin/gemini --session-id 1", gemini()),
            ],
            port: Some(4310),
        }
    }

    #[test]
    fn what_hits_the_supervisor_or_an_agent_is_refused() {
        let table: &[(&str, &str)] = &[
            ("pkill -f claude", "claude"),
            ("pkill claude", "claude"),
            ("pkill -9 -f 'claude --mcp'", "claude"),
            ("killall node", "gemini"),
            ("killall -9 node", "gemini"),
            ("killall -r 'no.e'", "gemini"),
            ("kill 4100", "daemon"),
            ("kill -9 4100", "daemon"),
            ("kill -s KILL 4201", "claude"),
            ("kill -TERM -- -4201", "claude"),
            ("kill -9 -1", "daemon bridge claude gemini"),
            ("kill -1 4100", "daemon"),
            ("kill $(pgrep -f claude)", "claude"),
            ("kill -9 `pidof node`", "gemini"),
            ("pgrep -f claude | xargs kill -9", "claude"),
            ("pgrep -f claude | xargs -r -n 1 sudo kill", "claude"),
            ("ps aux | grep [c]laude | awk '{print $2}' | xargs kill", "claude"),
            ("ps aux | grep -v grep | awk '/gemini/ {print $2}' | xargs kill", "gemini"),
            ("ps -ef | grep 'claude\\|gemini' | while read a b c; do kill $b; done", "claude gemini"),
            ("PID=$(pgrep claude); kill $PID", "claude"),
            ("for p in $(pgrep node); do kill -9 \"$p\"; done", "gemini"),
            ("cd /tmp && pkill -f mcp-restartd", "daemon"),
            ("true; pkill -f 'mcp-restart'", "daemon bridge claude"),
            ("echo hi || pkill node &", "gemini"),
            ("sudo pkill -f mcp-restart-http", "bridge"),
            ("sudo -u me env A=1 nohup timeout -k 1 5 pkill claude", "claude"),
            ("sh -c 'pkill claude'", "claude"),
            ("bash -lc \"kill 4201\"", "claude"),
            ("bash -c 'sh -c \"killall node\"'", "gemini"),
            ("eval 'pkill claude'", "claude"),
            ("/usr/bin/pkill claude", "claude"),
            ("\\pkill claude", "claude"),
            ("'pk'\"ill\" cl\\aude", "claude"),
            ("p=pkill; $p claude", "claude"),
            ("x=claude; pkill -f \"$x\"", "claude"),
            ("bash <<E\npkill claude\nE", "claude"),
            ("echo 'pkill claude' | sh", "claude"),
            ("f() { pkill claude; }; f", "claude"),
            ("if true; then pkill claude; fi", "claude"),
            ("(pkill claude)", "claude"),
            ("echo \"$(pkill claude)\"", "claude"),
            ("find . -name x -exec pkill claude \\;", "claude"),
            ("python3 -c 'import os; os.system(\"pkill -f claude\")'", "claude"),
            ("python3 -c 'import os; os.kill(4201, 9)'", "claude"),
            ("node -e 'process.kill(4100)'", "daemon"),
            ("fuser -k 4310/tcp", "bridge"),
            ("npx kill-port 4310", "bridge"),
            ("lsof -ti :4310 | xargs kill -9", "bridge"),
            ("kill -9 $(lsof -t -i tcp:4310)", "bridge"),
            ("kill $(cat ~/.local/state/mcp-restart/mcp-restartd.lock)", "daemon"),
            ("kill $(<state/mcp-restartd.lock)", "daemon"),
            ("pkill -F state/mcp-restartd.lock", "daemon"),
            ("pkill -u me", "daemon bridge claude gemini"),
            ("pkill -P 4200", "claude"),
            ("pkill -v vim", "daemon bridge claude gemini"),
            ("pkill -x CLAUDE -i", "claude"),
            ("killall -u me", "daemon bridge claude gemini"),
            ("systemctl --user kill mcp-restartd", "daemon"),
            ("systemctl --user restart mcp-restartd.service", "daemon"),
            ("mcp-restartctl list --json | jq '.agents[].pid' | xargs kill", "daemon bridge claude gemini"),
        ];
        for (text, expected) in table {
            let refusal = judge(text, &protected());
            let hits = refusal.map_or_else(Vec::new, |refusal| refusal.hits);
            let shown: Vec<_> = hits
                .iter()
                .map(|owner| match owner {
                    Owner::Daemon => "daemon",
                    Owner::Bridge => "bridge",
                    Owner::Agent(name) => name,
                })
                .collect();
            assert_eq!(shown.join(" "), *expected, "{text}");
        }
    }

    #[test]
    fn what_hits_neither_passes() {
        let table = [
            "",
            "ls -la",
            "kill 5555",
            "kill -9 5555 5556",
            "kill %1",
            "kill 0",
            "kill -0 4100",
            "kill -l",
            "kill -l 9",
            "kill $!",
            "kill $PID",
            "kill \"$(cat server.pid)\"",
            "pkill -f vite",
            "pkill -P $$",
            "pkill -0 claude",
            "pgrep -f claude",
            "pidof node",
            "ps aux | grep claude",
            "ps aux | grep claude | wc -l",
            "pgrep vite | xargs kill",
            "kill $(pgrep vite)",
            "ps aux | grep vite | awk '{print $2}' | xargs kill",
            "ps aux | grep -v claude | grep vite | xargs kill",
            "ps aux | grep node | grep vite | awk '{print $2}' | xargs kill",
            "killall vite",
            "killall -l",
            "killall nodes",
            "echo 'pkill -f claude'",
            "echo pkill claude",
            "git commit -m \"pkill -f claude no more\"",
            "grep -rn pkill src",
            "man pkill",
            "cat <<'E' > notes\npkill -f claude\nE",
            "# pkill -f claude",
            "ls # && pkill claude",
            "which pkill && command -v killall",
            "ssh host pkill node",
            "docker exec box pkill node",
            "docker kill claude",
            "claude --version",
            "mcp-restartctl stop claude",
            "mcp-restartctl restart --note 'pkill claude'",
            "systemctl --user status mcp-restartd",
            "systemctl --user stop other",
            "fuser 4310/tcp",
            "fuser -k 4311/tcp",
            "lsof -i :4310",
            "npx kill-port 3000",
            "python3 -c 'print(\"claude\")'",
            "python3 -c 'import os; os.kill(5555, 9)'",
            "node server.js 4100",
            "sleep 4100",
            "skillful claude",
            "./kill.sh claude",
        ];
        for text in table {
            assert_eq!(judge(text, &protected()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_kill_in_any_surroundings_is_found(
            before in prop::sample::select(vec!["", "true; ", "cd / && ", "A=1 ", "( ", "! ", "x | ", "{ ", "if true; then "]),
            after in prop::sample::select(vec!["", " ; true", " || true", " &", " 2>/dev/null", " | cat", " )", "\n}", " # so"]),
        ) {
            let text = format!("{before}pkill -f claude{after}");
            prop_assert!(judge(&text, &protected()).is_some(), "{}", text);
        }

        #[test]
        fn every_text_is_judged(text in "[a-z $(){}`'\"\\\\|&;<>#\n-]{0,60}") {
            judge(&text, &protected());
        }
    }
}
