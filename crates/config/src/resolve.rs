//! From entries to the configuration: defaults, paths, and what contradicts what.

use crate::config::{
    Agent, Config, Control, Inject, KeepChildren, Kind, Rollback, SelfRestartLimit, StdioServer, Strictness,
};
use crate::decode::Field;
use crate::entry::{
    AgentEntry, ConfigEntry, RollbackEntry, SelfRestartLimitEntry, StdioServerEntry, default,
};
use crate::environment::{AGENT_TOKEN_PREFIX, Environment};
use crate::fault::{Faults, Path};
use crate::lookup;
use crate::read::read_secret;
use crate::secret::Secret;
use crate::value::{NotEmpty, OrBoolean, Rule, Text};
use jsonc_parser::ast::Value;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::{Component, Path as FilePath, PathBuf};
use std::time::Duration;

/// Who reads the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A program that listens: it has to know its token.
    Server,
    /// A program that asks the daemon or edits the file. The token that the daemon's environment may have
    /// is not in its own, and nothing that it does needs one.
    Client,
}

/// Resolves the entries of a file. What is wrong is recorded; the configuration holds only if nothing was.
pub(crate) fn resolve(
    entry: ConfigEntry,
    file: &FilePath,
    environment: &Environment,
    reader: Reader,
    root: &Value<'_>,
    faults: &Faults<'_>,
) -> Config {
    let resolver = Resolver {
        reader,
        folder: file.parent().unwrap_or(file),
        default_cwd: default_cwd(file, environment),
        environment,
        root,
        faults,
    };
    let token = resolver.token(&entry);
    let host = entry.host.given().map_or(IpAddr::V4(default::HOST), |host| host.0);
    let is_exposed = token.is_none() && !host.to_canonical().is_loopback();
    if reader == Reader::Server && is_exposed {
        let message = "an address that is not loopback needs a token (token, tokenFile or MCP_RESTART_TOKEN)";
        resolver.fault(Path::Root.field("host"), message);
    }
    let config = Config {
        file: file.to_owned(),
        host,
        port: entry.port.given().map_or(default::PORT, |port| u16::try_from(port.0).unwrap_or_default()),
        token,
        state_dir: resolver.path(entry.state_dir, Path::Root.field("stateDir")),
        agents: resolver.agents(entry.agents),
        stdio_servers: resolver.stdio_servers(entry.stdio_servers),
        stale_daemon: entry.stale_daemon.given().unwrap_or(Strictness::Warn),
        contamination: entry.contamination.given().unwrap_or(Strictness::Warn),
    };
    resolver.check_log_files(&config);
    config
}

/// A path as a file in this folder means it: `~/` is the home folder, and relative is to the folder.
pub(crate) fn absolute(
    text: &str,
    folder: &FilePath,
    environment: &Environment,
) -> Result<PathBuf, &'static str> {
    let home = || environment.home.clone().ok_or("there is no home folder that ~ could mean");
    match text.strip_prefix('~') {
        None => Ok(normalise(&folder.join(text))),
        Some("") => home(),
        Some(below) if below.starts_with('/') => Ok(normalise(&home()?.join(below.trim_start_matches('/')))),
        Some(_) => Err("only ~/ is known here, not the home folders of other users"),
    }
}

/// What every field is resolved against.
struct Resolver<'a> {
    reader: Reader,
    folder: &'a FilePath,
    default_cwd: PathBuf,
    environment: &'a Environment,
    root: &'a Value<'a>,
    faults: &'a Faults<'a>,
}

impl Resolver<'_> {
    fn fault(&self, field: Path<'_>, message: impl Into<String>) {
        self.faults.of_value(self.root, field, message);
    }

    /// The value of a field that has to be there.
    fn required<T: Default>(&self, value: Field<T>, field: Path<'_>) -> T {
        if matches!(value, Field::Absent) {
            self.fault(field, "missing");
        }
        value.given().unwrap_or_default()
    }

    fn path(&self, text: Field<Text<NotEmpty>>, field: Path<'_>) -> Option<PathBuf> {
        text.given().map(|text| self.absolute(&text.0, field))
    }

    fn absolute(&self, text: &str, field: Path<'_>) -> PathBuf {
        absolute(text, self.folder, self.environment).unwrap_or_else(|message| {
            self.fault(field, message);
            PathBuf::new()
        })
    }

    fn token(&self, entry: &ConfigEntry) -> Option<Secret> {
        let (in_file, token_file) = (Path::Root.field("token"), Path::Root.field("tokenFile"));
        if !matches!(entry.token, Field::Absent) && !matches!(entry.token_file, Field::Absent) {
            self.fault(token_file, "token and tokenFile cannot both be given");
        }
        let in_entry = match &entry.token {
            Field::Given(token) => Some(self.checked_token(token.0.clone(), in_file)),
            Field::Absent | Field::Faulty => None,
        };
        if self.reader == Reader::Client {
            return in_entry;
        }
        if let Some(token) = &self.environment.token {
            if let Err(why) = check_token(token.expose()) {
                self.faults.elsewhere(format!("MCP_RESTART_TOKEN: {why}"));
            }
            return Some(token.clone());
        }
        match &entry.token_file {
            Field::Given(path) if in_entry.is_none() => self.token_from(&path.0, token_file),
            _ => in_entry,
        }
    }

    fn token_from(&self, path: &str, field: Path<'_>) -> Option<Secret> {
        let path = self.absolute(path, field);
        match read_secret(&path) {
            Ok(token) => Some(self.checked_token(token, field)),
            Err(why) => {
                self.fault(field, format!("{}: {why}", path.display()));
                None
            }
        }
    }

    fn checked_token(&self, token: String, field: Path<'_>) -> Secret {
        if let Err(why) = check_token(&token) {
            self.fault(field, why);
        }
        Secret::new(token)
    }

    fn agents(&self, entries: Field<Vec<Field<AgentEntry>>>) -> Vec<Agent> {
        let field = Path::Root.field("agents");
        let mut names = Names::default();
        let agents = entries.given().unwrap_or_default().into_iter().enumerate();
        agents
            .filter_map(|(index, entry)| {
                let field = field.element(index);
                let agent = self.agent(entry.given()?, field);
                self.check_name(&mut names, &agent.name, field, "agent");
                Some(agent)
            })
            .collect()
    }

    fn agent(&self, entry: AgentEntry, field: Path<'_>) -> Agent {
        let name = self.required(entry.name.map(|name| name.0), field.field("name"));
        let command = self.required(entry.command.map(|command| command.0), field.field("command"));
        let kind = entry.kind.given().unwrap_or_else(|| Kind::from_command(&command));
        Agent {
            command: self.program(command, field.field("command")),
            args: texts(entry.args).unwrap_or_default(),
            cwd: self.path(entry.cwd, field.field("cwd")).unwrap_or_else(|| self.default_cwd.clone()),
            env: self.variables(entry.env, field.field("env")),
            autostart: entry.autostart.given().unwrap_or(false),
            graceful_timeout: milliseconds(
                entry.graceful_timeout_ms.given().map(|time| time.0),
                default::GRACEFUL_TIMEOUT_MS,
            ),
            stop_signal: entry.stop_signal.given().unwrap_or_default(),
            kind,
            tty: entry.tty.given().unwrap_or(kind.default_tty()),
            inject_mcp: entry.inject_mcp.given().unwrap_or(Inject::Yes),
            resume: entry.resume.given().unwrap_or(kind.default_resume()),
            restart_args: self.restart_args(entry.restart_args, field.field("restartArgs")),
            rollback: rollback(entry.rollback),
            self_restart_delay: milliseconds(
                entry.self_restart_delay_ms.given().map(|time| time.0),
                default::SELF_RESTART_DELAY_MS,
            ),
            keep_children: keep_children(entry.keep_children),
            settle: entry
                .settle_ms
                .given()
                .map_or(kind.default_settle(), |time| Duration::from_millis(time.0)),
            log_file: self.path(entry.log_file, field.field("logFile")),
            log_max_bytes: entry.log_max_bytes.given().map_or(default::LOG_MAX_BYTES, |size| size.0),
            log_keep: entry
                .log_keep
                .given()
                .map_or(default::LOG_KEEP, |count| u32::try_from(count.0).unwrap_or(u32::MAX)),
            control: entry.control.given().unwrap_or(Control::All),
            self_restart_limit: self_restart_limit(entry.self_restart_limit),
            name,
        }
    }

    /// A program is looked up on a PATH if it is a bare name, and a path like any other if it is not.
    fn program(&self, command: String, field: Path<'_>) -> String {
        if !command.contains('/') && command != "~" {
            return command;
        }
        let path = self.absolute(&command, field);
        path.into_os_string().into_string().unwrap_or_else(|_| {
            self.fault(field, "the folder that it is relative to has a name that is not UTF-8");
            command
        })
    }

    fn variables(
        &self,
        variables: Field<BTreeMap<String, Field<Text>>>,
        field: Path<'_>,
    ) -> BTreeMap<String, String> {
        let mut resolved = BTreeMap::new();
        for (name, value) in variables.given().unwrap_or_default() {
            if name.is_empty() || name.contains(['=', '\0']) {
                self.fault(field.field(&name), "the name of a variable is not empty and has no '=' in it");
            }
            if let Field::Given(value) = value {
                resolved.insert(name, value.0);
            }
        }
        resolved
    }

    fn restart_args(&self, args: Field<Vec<Field<Text>>>, field: Path<'_>) -> Option<Vec<String>> {
        let args = texts(args)?;
        for (index, arg) in args.iter().enumerate() {
            for unknown in placeholders(arg).filter(|name| !PLACEHOLDERS.contains(name)) {
                let message =
                    format!("unknown placeholder {{{unknown}}}; there are {{sessionId}} and {{prompt}}");
                self.fault(field.element(index), message);
            }
        }
        Some(args)
    }

    fn stdio_servers(&self, entries: Field<Vec<Field<StdioServerEntry>>>) -> Vec<StdioServer> {
        let field = Path::Root.field("stdioServers");
        let mut names = Names::default();
        let servers = entries.given().unwrap_or_default().into_iter().enumerate();
        servers
            .filter_map(|(index, entry)| {
                let field = field.element(index);
                let server = self.stdio_server(entry.given()?, field);
                self.check_name(&mut names, &server.name, field, "server");
                Some(server)
            })
            .collect()
    }

    fn stdio_server(&self, entry: StdioServerEntry, field: Path<'_>) -> StdioServer {
        let matches = self.required(entry.matches.map(|matches| matches.0), field.field("match"));
        if matches.contains('/') {
            self.fault(field.field("match"), "a basename is compared with it: it has no '/' in it");
        }
        StdioServer {
            name: self.required(entry.name.map(|name| name.0), field.field("name")),
            matches,
            grace: milliseconds(entry.grace_ms.given().map(|time| time.0), default::STDIO_GRACE_MS),
        }
    }

    fn check_name(&self, names: &mut Names, name: &str, field: Path<'_>, what: &str) {
        if name.is_empty() {
            return;
        }
        if let Some(earlier) = names.0.insert(name.to_ascii_lowercase(), name.to_owned()) {
            let message = format!("{what} {earlier:?} has this name already (case is ignored)");
            self.fault(field.field("name"), message);
        }
    }

    /// Two agents that rotate one file would lose each other's output.
    fn check_log_files(&self, config: &Config) {
        let state_dir = lookup::state_dir(None, Some(config), self.environment).ok();
        let agents = Path::Root.field("agents");
        let mut owners: HashMap<PathBuf, &str> = HashMap::new();
        for (index, agent) in config.agents.iter().enumerate() {
            let log = agent.log_file_in(state_dir.as_deref().unwrap_or(FilePath::new("")));
            if log == config.file {
                let field = agents.element(index);
                self.fault(field.field("logFile"), "this is the config file itself");
            }
            if let Some(state_dir) = &state_dir
                && lookup::is_for_the_daemon(state_dir, &log)
            {
                let message = format!("the daemon keeps its own files in {}", state_dir.display());
                self.fault(agents.element(index).field("logFile"), message);
            }
            // Devices are no files that are rotated: /dev/null may be everybody's log. An agent without a
            // name, which is a fault already, has no log yet.
            if log.starts_with("/dev") || agent.name.is_empty() {
                continue;
            }
            if let Some(owner) = owners.insert(log, &agent.name) {
                let field = agents.element(index);
                self.fault(field.field("logFile"), format!("agent {owner:?} has the same log file"));
            }
        }
    }
}

/// The names that were given so far, by their lower case.
#[derive(Default)]
struct Names(HashMap<String, String>);

/// What `restartArgs` may have replaced.
const PLACEHOLDERS: [&str; 2] = ["sessionId", "prompt"];

/// The words in braces. Other braces, those of JSON in an argument for example, are text.
fn placeholders(arg: &str) -> impl Iterator<Item = &str> {
    arg.split('{').skip(1).filter_map(|rest| {
        let (word, _) = rest.split_once('}')?;
        (!word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic())).then_some(word)
    })
}

/// The folder of the file. The user's own file has no project around it: there it is the home folder.
fn default_cwd(file: &FilePath, environment: &Environment) -> PathBuf {
    let folder = file.parent().unwrap_or(file);
    let is_users_own = lookup::user_config_folder(environment).is_some_and(|own| folder == own);
    environment.home.clone().filter(|_| is_users_own).unwrap_or_else(|| folder.to_owned())
}

/// The path without `.` and `..`, by its letters alone.
fn normalise(path: &FilePath) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}

/// A token travels in an HTTP header.
fn check_token(token: &str) -> Result<(), &'static str> {
    if token.is_empty() {
        Err("the token is empty")
    } else if token.starts_with(AGENT_TOKEN_PREFIX) {
        Err("a token that starts with mra_ is an agent's; the operator's has to be another")
    } else if token.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(())
    } else {
        Err("a token has only visible ASCII characters, and no spaces")
    }
}

fn texts<R: Rule>(texts: Field<Vec<Field<Text<R>>>>) -> Option<Vec<String>> {
    let texts = texts.given()?;
    Some(texts.into_iter().filter_map(Field::given).map(|text| text.0).collect())
}

fn milliseconds(given: Option<u64>, default: u64) -> Duration {
    Duration::from_millis(given.unwrap_or(default))
}

fn rollback(entry: Field<OrBoolean<false, RollbackEntry>>) -> Rollback {
    let (within, always) = match entry.given() {
        Some(OrBoolean::Boolean) => return Rollback::Never,
        Some(OrBoolean::Other(entry)) => (entry.within_ms.given(), entry.always.given()),
        None => (None, None),
    };
    let within = milliseconds(within.map(|time| time.0), default::ROLLBACK_WITHIN_MS);
    if always == Some(true) { Rollback::EveryRestart(within) } else { Rollback::SelfRestarts(within) }
}

fn keep_children(entry: Field<OrBoolean<true, Vec<Field<Text<NotEmpty>>>>>) -> KeepChildren {
    match entry.given() {
        Some(OrBoolean::Boolean) => KeepChildren::All,
        Some(OrBoolean::Other(names)) => KeepChildren::Named(texts(Field::Given(names)).unwrap_or_default()),
        None => KeepChildren::Named(Vec::new()),
    }
}

fn self_restart_limit(entry: Field<SelfRestartLimitEntry>) -> SelfRestartLimit {
    let entry = entry.given();
    let (max, within) = entry.map_or((None, None), |entry| (entry.max.given(), entry.within_ms.given()));
    SelfRestartLimit {
        max: max.map_or(default::SELF_RESTARTS, |max| u32::try_from(max.0).unwrap_or(u32::MAX)),
        within: milliseconds(within.map(|time| time.0), default::SELF_RESTARTS_WITHIN_MS),
    }
}
