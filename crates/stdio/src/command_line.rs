//! What a process is, told from its command line: names to know it by, never words that it only mentions.
//!
//! ```text
//!  npx -y tsx@4 --tsconfig t.json src/server.ts --verbose
//!  │      └──── a package, known by its name ───┘       └── its own arguments: of no interest
//!  └─ runner    which is a program that we know, too, so its operand counts: server.ts
//! ```

use crate::grammar::{Given, Grammar, Role};
use std::path::Path;

/// How often what is run may itself be a program that runs something.
const DEPTH: u32 = 4;

/// What is known of a process by its command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The program's name, by the command line and by its file; then what it was given to run.
    pub(crate) names: Vec<String>,
    /// The files that it was given to run, as they were named.
    pub(crate) scripts: Vec<String>,
    /// The Python modules that it was given to run.
    pub(crate) modules: Vec<String>,
    /// Whether it only starts the program that matters.
    pub(crate) wraps: Option<Wraps>,
}

/// In what way a process only starts another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wraps {
    /// It is a package runner, or a shell that was given a command.
    Command,
    /// It is a shell with a script, which may do more.
    Script,
}

impl Reading {
    /// Reads a command line, as the system shows it; `program` is the file that runs.
    pub(crate) fn of(arguments: &[String], program: Option<&Path>) -> Self {
        let words = words(arguments, program);
        let by_file = program.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let by_word = words.first().map(|word| base_name(word));
        let mut reading = Self::default();
        reading.names.extend(by_word.map(str::to_owned));
        reading.names.extend(by_file.clone());
        let grammar = by_word.and_then(Grammar::of).or_else(|| by_file.as_deref().and_then(Grammar::of));
        if let Some(grammar) = grammar {
            reading.follow(grammar, words.get(1..).unwrap_or_default(), DEPTH);
        }
        reading
    }

    /// Whether the process is known by this name.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// What to call the process: the innermost of what it runs.
    pub(crate) fn title(&self) -> Option<&str> {
        self.names.last().map(String::as_str)
    }

    fn follow(&mut self, grammar: &Grammar, words: &[&str], depth: u32) {
        let given = grammar.given(words);
        self.wraps = match (grammar.role, given) {
            (_, Given::Operand(_, _, Role::Shell)) => Some(Wraps::Script),
            (Role::Shell, Given::Code) | (Role::Runner, _) | (_, Given::Operand(_, _, Role::Runner)) => {
                Some(Wraps::Command)
            }
            (Role::Shell | Role::Interpreter, _) => self.wraps,
        };
        let (file, behind) = match given {
            Given::Nothing | Given::Code => return,
            Given::Module(module, behind) => {
                self.names.push(base_name(module).to_owned());
                (base_name(module), behind)
            }
            Given::Operand(package, behind, role) if is_package(role, package) => {
                self.names.push(package_name(package).to_owned());
                (package_name(package), behind)
            }
            Given::Operand(script, behind, _) => {
                self.names.push(base_name(script).to_owned());
                (base_name(script), behind)
            }
        };
        match (Grammar::of(file).filter(|_| depth > 0), given) {
            (Some(inner), _) => self.follow(inner, behind, depth - 1),
            (None, Given::Module(jar, _)) if is_jar(jar) => self.scripts.push(jar.to_owned()),
            (None, Given::Module(module, _)) => self.modules.push(module.to_owned()),
            (None, Given::Operand(script, _, role)) if !is_package(role, script) => {
                self.scripts.push(script.to_owned());
            }
            (None, _) => {}
        }
    }
}

/// The words of a command line. A process that has put a title in the place of its arguments
/// (`npm exec @scope/name`) shows one word with blanks in it.
fn words<'a>(arguments: &'a [String], program: Option<&Path>) -> Vec<&'a str> {
    match arguments {
        [title] if title.contains(' ') && program != Some(Path::new(title)) => {
            title.split_whitespace().collect()
        }
        words => words.iter().map(String::as_str).collect(),
    }
}

fn base_name(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

/// Whether an operand names a package and no file.
fn is_package(role: Role, operand: &str) -> bool {
    operand.starts_with("npm:")
        || operand.starts_with("jsr:")
        || role == Role::Runner && !operand.starts_with(['.', '/']) && !has_extension(operand, &["py", "pyw"])
}

/// Java is given a file where others are given a module.
fn is_jar(module: &str) -> bool {
    has_extension(module, &["jar", "war"])
}

fn has_extension(path: &str, extensions: &[&str]) -> bool {
    Path::new(path).extension().is_some_and(|found| extensions.iter().any(|extension| found == *extension))
}

/// The name of a package without scope, source, extras and version: `@scope/name@1.2`, `name[cli]==1.2`.
fn package_name(package: &str) -> &str {
    let package =
        package.split_once(':').filter(|(source, _)| is_source(source)).map_or(package, |(_, rest)| rest);
    let name = base_name(package);
    name.split(['@', '=', '<', '>', '~', '!', '[', ';'])
        .next()
        .filter(|name| !name.is_empty())
        .unwrap_or(name)
}

fn is_source(source: &str) -> bool {
    matches!(source, "npm" | "jsr" | "github" | "git+https" | "git+ssh" | "https")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Reading {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Reading::of(&words, None)
    }

    #[test]
    fn a_process_is_known_by_what_it_runs_and_by_nothing_that_it_mentions() {
        for (line, name) in [
            ("/usr/local/bin/tuiml-mcp --stdio", "tuiml-mcp"),
            ("python -m tuiml.mcp --verbose", "tuiml.mcp"),
            ("python3.12 -u /opt/x/server.py tuiml", "server.py"),
            ("python3 -Eum tuiml.mcp", "tuiml.mcp"),
            ("python -mtuiml", "tuiml"),
            ("python -W ignore -X dev -Xfrozen_modules=off /a/b.py", "b.py"),
            ("/venv/bin/python /venv/bin/tuiml-mcp", "tuiml-mcp"),
            ("python -m pipx run --spec x tuiml-mcp", "tuiml-mcp"),
            ("node --max-old-space-size=4096 -r dotenv/config /x/dist/server.js stdio", "server.js"),
            ("node --import tsx -C dev src/server.ts", "server.ts"),
            ("node /x/node_modules/.bin/tsx watch src/server.ts", "server.ts"),
            ("node /usr/bin/npx -y @scope/tuiml-mcp@1.2.3 --flag", "tuiml-mcp"),
            ("npx --yes --package tuiml tuiml-mcp", "tuiml-mcp"),
            ("npx -y tsx@4 src/server.ts", "server.ts"),
            ("npm exec -- @scope/tuiml-mcp", "tuiml-mcp"),
            ("node /usr/lib/node_modules/npm/bin/npm-cli.js exec tuiml-mcp@latest", "tuiml-mcp"),
            ("pnpm dlx tuiml-mcp", "tuiml-mcp"),
            ("uvx --from git+https://example.org/a/b@main tuiml-mcp", "tuiml-mcp"),
            ("uvx -p3.12 --with rich tuiml-mcp[cli]==1.2", "tuiml-mcp"),
            ("uv tool uvx tuiml-mcp@2", "tuiml-mcp"),
            ("uv --directory /x run --with mcp server.py", "server.py"),
            ("uv run -m tuiml.mcp", "tuiml.mcp"),
            ("uv run python -m tuiml.mcp", "tuiml.mcp"),
            ("uvx git+https://example.org/a/tuiml-mcp@v1", "tuiml-mcp"),
            ("bunx tuiml-mcp", "tuiml-mcp"),
            ("bun x tuiml-mcp@1", "tuiml-mcp"),
            ("bun --watch run src/server.ts", "server.ts"),
            ("bun server.ts", "server.ts"),
            ("deno run -A --config deno.json npm:@scope/tuiml-mcp@1", "tuiml-mcp"),
            ("deno run --allow-net=a.example x.ts", "x.ts"),
            ("ruby -W0 -rbundler/setup -I lib bin/tuiml-mcp", "tuiml-mcp"),
            ("java -Xmx1g -cp a:b -jar /x/tuiml-mcp.jar --stdio", "tuiml-mcp.jar"),
            ("/bin/sh -e /opt/tuiml-mcp", "tuiml-mcp"),
            ("npm exec @scope/tuiml-mcp", "tuiml-mcp"),
        ] {
            let reading = read(line);
            assert!(reading.is_named(name), "{line}: {reading:?}");
            assert_eq!(reading.title(), Some(name), "{line}");
        }
    }

    #[test]
    fn what_is_only_mentioned_is_no_name() {
        for line in [
            "vim /usr/local/bin/tuiml-mcp",
            "less tuiml-mcp",
            "grep -r tuiml-mcp .",
            "tail -f tuiml-mcp",
            "bash -c tuiml-mcp",
            "bash -lc tuiml-mcp",
            "sh -s tuiml-mcp",
            "bash",
            "python editor.py tuiml-mcp",
            "python -c pass tuiml-mcp",
            "python - tuiml-mcp",
            "python -W tuiml-mcp",
            "node -e 0 tuiml-mcp",
            "node --require tuiml-mcp",
            "node x.js /bin/tuiml-mcp",
            "npm install tuiml-mcp",
            "npm run tuiml-mcp",
            "npx vim tuiml-mcp",
            "npx --package tuiml-mcp tsc",
            "npx -c tuiml-mcp",
            "uv pip install tuiml-mcp",
            "uv tool install tuiml-mcp",
            "uvx --with tuiml-mcp other",
            "uvx --from tuiml-mcp other",
            "bun add tuiml-mcp",
            "deno cache tuiml-mcp",
            "java -cp tuiml-mcp Main",
            "mytuiml-mcp",
            "tuiml-mcp.bak",
        ] {
            assert!(!read(line).is_named("tuiml-mcp"), "{line}: {:?}", read(line));
        }
    }

    #[test]
    fn a_title_in_the_place_of_the_arguments_is_read_as_a_command_line() {
        let titled = |title: &str, program: &str| Reading::of(&[title.to_owned()], Some(Path::new(program)));
        let npm = titled("npm exec @scope/tuiml-mcp", "/usr/bin/node");
        assert_eq!((npm.title(), npm.wraps), (Some("tuiml-mcp"), Some(Wraps::Command)));
        assert!(!titled("editor /x/tuiml-mcp", "/usr/bin/editor").is_named("tuiml-mcp"));
        assert!(titled("/My Programs/tuiml-mcp", "/My Programs/tuiml-mcp").is_named("tuiml-mcp"));
    }

    #[test]
    fn the_file_that_runs_is_a_name_whatever_the_command_line_says() {
        let words = ["renamed".to_owned(), "/x/server.py".to_owned()];
        let reading = Reading::of(&words, Some(Path::new("/usr/bin/python3.12")));
        for name in ["renamed", "python3.12", "server.py"] {
            assert!(reading.is_named(name), "{name}");
        }
    }

    #[test]
    fn runners_and_shells_wrap_and_interpreters_do_not() {
        for line in
            ["npx -y x", "uvx x", "uv run x.py", "npm exec x", "sh -c x", "npm run x", "node /bin/npx x"]
        {
            assert_eq!(read(line).wraps, Some(Wraps::Command), "{line}");
        }
        assert_eq!(read("bash /x/launch.sh").wraps, Some(Wraps::Script));
        for line in ["python x.py", "node x.js", "bash", "bash -l", "zsh -i", "vim x"] {
            assert_eq!(read(line).wraps, None, "{line}");
        }
    }

    #[test]
    fn the_files_to_look_at_are_those_of_the_server_and_not_of_its_runner() {
        assert_eq!(read("python /v/bin/tuiml-mcp").scripts, ["/v/bin/tuiml-mcp"]);
        assert_eq!(read("node /usr/bin/npx -y tuiml-mcp").scripts, [""; 0]);
        assert_eq!(read("uv run server.py").scripts, ["server.py"]);
        assert_eq!(read("python -m a.b").modules, ["a.b"]);
        assert_eq!(read("java -jar /x/y.jar").scripts, ["/x/y.jar"]);
    }

    #[test]
    fn no_command_line_makes_it_panic() {
        for line in
            ["", "/", "//", "-", "python", "python -m", "uv run --", "npx @", "npx @/", "bun x", "sh -é"]
        {
            let _ = read(line);
        }
        let _ = Reading::of(&[], None);
    }
}
