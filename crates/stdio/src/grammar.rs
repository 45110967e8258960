//! How the command lines of interpreters, package runners and shells are read: where among the options the
//! script, the module or the package stands.

/// The command line of one program.
#[derive(Debug)]
pub(crate) struct Grammar {
    /// Base names of the program, in lower case; a version at their end does not count.
    names: &'static [&'static str],
    /// What it does with what it is given.
    pub(crate) role: Role,
    /// Options that take the next word.
    values: &'static [&'static str],
    /// Options after which there is code instead of a file.
    code: &'static [&'static str],
    /// Options that name a module, or a file that is no plain operand.
    modules: &'static [&'static str],
    /// The subcommands that run something; none if the first operand is it.
    verbs: &'static [&'static [&'static str]],
    /// The one of them that runs packages, where the others run scripts.
    runner_verb: Option<&'static str>,
    /// Whether something is run without a subcommand, too.
    without_verb: bool,
    /// Whether letters may stand together behind one dash, the last with its value.
    clustered: bool,
}

/// What a program does with what it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It is the process in which a script runs.
    Interpreter,
    /// It installs a package, and the program from it is another process.
    Runner,
    /// It starts other programs.
    Shell,
}

/// What a command line gives a program to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Given<'a> {
    /// Nothing, or nothing that has a name.
    Nothing,
    /// Code, on the command line itself.
    Code,
    /// A module, and the words behind it.
    Module(&'a str, &'a [&'a str]),
    /// A script or a package, the words behind it, and what is done with it.
    Operand(&'a str, &'a [&'a str], Role),
}

enum Meaning<'a> {
    Flag,
    TakesNext,
    Code,
    Module(&'a str),
    ModuleNext,
}

const PLAIN: Grammar = Grammar {
    names: &[],
    role: Role::Runner,
    values: &[],
    code: &[],
    modules: &[],
    verbs: &[],
    runner_verb: None,
    without_verb: false,
    clustered: false,
};

const UV_VALUES: &[&str] = &[
    "--from",
    "--with",
    "-w",
    "--with-editable",
    "--with-requirements",
    "--python",
    "-p",
    "--index",
    "--default-index",
    "--index-url",
    "-i",
    "--extra-index-url",
    "--find-links",
    "-f",
    "--index-strategy",
    "--keyring-provider",
    "--allow-insecure-host",
    "--upgrade-package",
    "-P",
    "--reinstall-package",
    "--refresh-package",
    "--config-setting",
    "-C",
    "--config-file",
    "--cache-dir",
    "--directory",
    "--project",
    "--package",
    "--extra",
    "--no-extra",
    "--group",
    "--no-group",
    "--only-group",
    "--env-file",
    "--constraints",
    "-c",
    "--overrides",
    "--build-constraints",
    "-b",
    "--link-mode",
    "--resolution",
    "--prerelease",
    "--fork-strategy",
    "--exclude-newer",
    "--python-platform",
    "--color",
];

const NPM_VALUES: &[&str] = &[
    "--package",
    "-p",
    "--prefix",
    "-C",
    "--cache",
    "--registry",
    "--userconfig",
    "--globalconfig",
    "--workspace",
    "-w",
    "--loglevel",
    "--script-shell",
    "--node-arg",
    "-n",
];

const PROGRAMS: [Grammar; 16] = [
    Grammar {
        names: &["python", "pythonw", "pypy"],
        role: Role::Interpreter,
        values: &["-W", "-X", "--check-hash-based-pycs"],
        code: &["-c"],
        modules: &["-m"],
        clustered: true,
        ..PLAIN
    },
    Grammar {
        names: &["node", "nodejs"],
        role: Role::Interpreter,
        values: &[
            "-r",
            "--require",
            "--import",
            "--loader",
            "--experimental-loader",
            "-C",
            "--conditions",
            "--env-file",
            "--env-file-if-exists",
            "--input-type",
            "--inspect-port",
            "--debug-port",
            "--title",
            "--watch-path",
            "--icu-data-dir",
            "--openssl-config",
            "--redirect-warnings",
            "--disable-warning",
            "--trace-event-categories",
            "--dns-result-order",
            "--unhandled-rejections",
            "--diagnostic-dir",
            "--cpu-prof-dir",
            "--heap-prof-dir",
            "--heapsnapshot-signal",
            "--report-dir",
            "--report-directory",
            "--report-signal",
            "--secure-heap",
            "--stack-trace-limit",
            "--experimental-config-file",
        ],
        code: &["-e", "--eval", "-p", "--print", "-pe", "-i", "--interactive", "--run", "--test"],
        ..PLAIN
    },
    Grammar {
        names: &["tsx", "ts-node", "ts-node-esm"],
        role: Role::Interpreter,
        values: &["--tsconfig", "--env-file", "-r", "--require", "--import", "-P", "--project", "--include"],
        code: &["-e", "--eval", "-p", "--print"],
        verbs: &[&["watch"]],
        without_verb: true,
        ..PLAIN
    },
    Grammar {
        names: &["ruby"],
        role: Role::Interpreter,
        values: &["-r", "-I", "-C", "-E", "--encoding", "--external-encoding", "--internal-encoding"],
        code: &["-e"],
        clustered: true,
        ..PLAIN
    },
    Grammar {
        names: &["java"],
        role: Role::Interpreter,
        values: &[
            "-cp",
            "-classpath",
            "--class-path",
            "-p",
            "--module-path",
            "--add-modules",
            "--add-opens",
            "--add-exports",
            "--add-reads",
            "--upgrade-module-path",
            "--source",
        ],
        modules: &["-jar", "-m", "--module"],
        ..PLAIN
    },
    Grammar {
        names: &["bun"],
        values: &[
            "--cwd",
            "-c",
            "--config",
            "-r",
            "--preload",
            "--env-file",
            "--filter",
            "-F",
            "--shell",
            "-d",
        ],
        code: &["-e", "--eval", "-p", "--print"],
        verbs: &[&["run"], &["x"]],
        runner_verb: Some("x"),
        without_verb: true,
        role: Role::Interpreter,
        ..PLAIN
    },
    Grammar { names: &["bunx"], values: &["-p", "--package"], ..PLAIN },
    Grammar {
        names: &["deno"],
        values: &[
            "-c",
            "--config",
            "--import-map",
            "-L",
            "--log-level",
            "--location",
            "--cert",
            "--seed",
            "--preload",
            "--import",
            "--node-modules-linker",
        ],
        verbs: &[&["run"], &["serve"]],
        without_verb: true,
        role: Role::Interpreter,
        ..PLAIN
    },
    Grammar { names: &["npx", "npx-cli.js", "pnpx"], values: NPM_VALUES, code: &["-c", "--call"], ..PLAIN },
    Grammar {
        names: &["npm", "npm-cli.js"],
        values: NPM_VALUES,
        code: &["-c", "--call"],
        verbs: &[&["exec"], &["x"]],
        ..PLAIN
    },
    Grammar {
        names: &["pnpm", "pnpm.cjs", "yarn", "yarn.js", "yarnpkg"],
        values: &["--package", "-p", "-C", "--dir", "--filter", "-F", "--cwd"],
        code: &["-c", "--shell-mode"],
        verbs: &[&["dlx"], &["exec"]],
        ..PLAIN
    },
    Grammar { names: &["uvx"], values: UV_VALUES, clustered: true, ..PLAIN },
    Grammar {
        names: &["uv"],
        values: UV_VALUES,
        modules: &["-m", "--module"],
        verbs: &[&["run"], &["tool", "run"], &["tool", "uvx"]],
        clustered: true,
        ..PLAIN
    },
    Grammar {
        names: &["pipx"],
        values: &["--spec", "--python", "--index-url", "-i", "--pip-args"],
        verbs: &[&["run"]],
        ..PLAIN
    },
    Grammar {
        names: &["poetry", "pdm", "pipenv", "hatch", "rye"],
        values: &["-C", "--directory", "-P", "--project", "-p", "-e", "--env"],
        verbs: &[&["run"]],
        ..PLAIN
    },
    Grammar {
        names: &["sh", "dash", "bash", "zsh", "ksh", "ash", "busybox"],
        role: Role::Shell,
        values: &["-o", "+o", "-O", "+O", "--rcfile", "--init-file"],
        code: &["-c", "-s"],
        verbs: &[&["sh"], &["ash"]],
        without_verb: true,
        clustered: true,
        ..PLAIN
    },
];

impl Grammar {
    /// The grammar of the program with this base name.
    pub(crate) fn of(name: &str) -> Option<&'static Self> {
        static KNOWN: [Grammar; PROGRAMS.len()] = PROGRAMS;
        let name = name.to_lowercase();
        let plain = name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
        KNOWN.iter().find(|grammar| grammar.names.iter().any(|known| *known == name || *known == plain))
    }

    /// What the words behind the program's name give it to run.
    pub(crate) fn given<'a>(&self, words: &'a [&'a str]) -> Given<'a> {
        let mut verbs: Vec<&str> = Vec::new();
        let mut options = true;
        let mut rest = words;
        while let [word, behind @ ..] = rest {
            rest = behind;
            if options && *word == "--" {
                options = false;
            } else if options && self.is_option(word) {
                match self.meaning(word) {
                    Meaning::Flag => {}
                    Meaning::TakesNext => rest = rest.get(1..).unwrap_or_default(),
                    Meaning::Code => return Given::Code,
                    Meaning::Module(module) => return Given::Module(module, rest),
                    Meaning::ModuleNext => {
                        return rest
                            .split_first()
                            .map_or(Given::Nothing, |(module, rest)| Given::Module(module, rest));
                    }
                }
            } else if *word == "-" {
                return Given::Code;
            } else {
                match self.step(&verbs, word) {
                    Step::Verb => verbs.push(word),
                    Step::Operand => return Given::Operand(word, rest, self.role_after(&verbs)),
                    Step::Nothing => return Given::Nothing,
                }
            }
        }
        Given::Nothing
    }

    fn is_option(&self, word: &str) -> bool {
        word.len() > 1 && (word.starts_with('-') || self.role == Role::Shell && word.starts_with('+'))
    }

    fn meaning<'a>(&self, word: &'a str) -> Meaning<'a> {
        if self.values.contains(&word) {
            return Meaning::TakesNext;
        }
        if self.modules.contains(&word) {
            return Meaning::ModuleNext;
        }
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        if self.code.contains(&name) {
            return Meaning::Code;
        }
        match value.filter(|_| self.modules.contains(&name)) {
            Some(module) => Meaning::Module(module),
            None if self.clustered && !word.starts_with("--") => self.cluster(word),
            None => Meaning::Flag,
        }
    }

    /// `-Eum module`: each letter is an option, and one with a value takes what is left of the word.
    fn cluster<'a>(&self, word: &'a str) -> Meaning<'a> {
        for (index, letter) in word.char_indices().skip(1) {
            let option = format!("-{letter}");
            let attached = word.get(index + letter.len_utf8()..).filter(|rest| !rest.is_empty());
            if self.code.contains(&&*option) {
                return Meaning::Code;
            }
            if self.modules.contains(&&*option) {
                return attached.map_or(Meaning::ModuleNext, Meaning::Module);
            }
            if self.values.contains(&&*option) {
                return if attached.is_some() { Meaning::Flag } else { Meaning::TakesNext };
            }
        }
        Meaning::Flag
    }

    fn role_after(&self, verbs: &[&str]) -> Role {
        if self.runner_verb.is_some() && verbs.last().copied() == self.runner_verb {
            Role::Runner
        } else {
            self.role
        }
    }

    fn step(&self, before: &[&str], word: &str) -> Step {
        if self.verbs.is_empty() || self.verbs.contains(&before) {
            return Step::Operand;
        }
        let path = [before, &[word]].concat();
        if self.verbs.iter().any(|verb| verb.starts_with(&path)) {
            Step::Verb
        } else if before.is_empty() && self.without_verb {
            Step::Operand
        } else {
            Step::Nothing
        }
    }
}

enum Step {
    Verb,
    Operand,
    Nothing,
}
