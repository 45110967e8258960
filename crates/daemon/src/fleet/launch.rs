//! From an entry of the config to a launch that was checked completely.

use super::sessions::{Choice, Session};
use mcp_restart_agents::{Circumstances, Endpoint, NESTING_MARKERS, Restart};
use mcp_restart_config::{Agent, Inject, KeepChildren, lookup, place_of};
use mcp_restart_process::file::{create_folder, create_folder_with_parents, open_log};
use mcp_restart_process::preflight::{self, Unusable};
use mcp_restart_process::read_regular;
use mcp_restart_protocol::answer::{ErrorCode, Failure, Handoff};
use mcp_restart_protocol::codec::FRAME_MAX;
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::shim::{self, ShimLaunch};
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows and columns of an agent's terminal until somebody attaches.
const TERMINAL: (u16, u16) = (40, 120);
/// Variables by which a service manager speaks to the daemon, not to its agents.
const SERVICE_MANAGER: [&str; 14] = [
    "CACHE_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LOGS_DIRECTORY",
    "MAINPID",
    "MANAGERPID",
    "MEMORY_PRESSURE_WATCH",
    "MEMORY_PRESSURE_WRITE",
    "NOTIFY_SOCKET",
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "SYSTEMD_EXEC_PID",
];

/// What a launch needs besides its entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub state_dir: &'a Path,
    pub socket: &'a Path,
    pub config_file: &'a Path,
    /// The MCP endpoint, once it listens.
    pub url: Option<&'a str>,
    /// The agent's own token.
    pub token: &'a str,
    /// The daemon's environment.
    pub inherited: &'a [(OsString, OsString)],
}

/// A launch that was checked, but for the number that it will get.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    /// The entry that it was made from.
    pub agent: Arc<Agent>,
    /// Hash of that entry.
    pub hash: u64,
    /// The way by which this came about.
    pub path: RestartPath,
    /// The conversation that the process will have, where that is known.
    pub session: Option<Box<Session>>,
    /// What came out otherwise than one might expect.
    pub warnings: Vec<String>,
    /// What a restart hands on.
    pub handoff: Option<Box<Handoff>>,
    /// What its MCP config file says, if it has one.
    pub mcp_config: Option<String>,
    /// What the shim is told.
    pub shim: Box<ShimLaunch>,
}

impl Launch {
    /// Writes down what is executed; secrets are left out.
    pub(super) fn log(&self, generation: u64) {
        let argv: Vec<String> =
            self.shim.argv.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let argv = mcp_restart_config::show::arguments(&argv);
        let cwd = String::from_utf8_lossy(&self.shim.cwd);
        tracing::info!(agent = self.agent.name, generation, ?argv, %cwd, "launched");
    }

    /// The launch of this generation.
    pub(super) fn numbered(mut self, generation: u64) -> Box<ShimLaunch> {
        self.shim.generation = generation;
        let number = generation.to_string().into_bytes();
        self.shim.environment.push((b"MCP_RESTART_GENERATION".to_vec(), number));
        self.shim
    }

    /// Writes the MCP config file once more, for a launch that another was prepared after.
    pub(super) fn write_mcp_config(&self, state_dir: &Path) {
        let Some(text) = &self.mcp_config else { return };
        if let Err(error) = write_mcp_config(&mcp_config_file(state_dir, &self.agent.name), text) {
            tracing::error!(agent = self.agent.name, %error, "its MCP config could not be written");
        }
    }
}

/// Checks everything that can be known before the old process is touched, and writes the MCP config file.
pub(super) fn prepare(
    agent: &Arc<Agent>,
    around: Surroundings<'_>,
    path: RestartPath,
    choice: &Choice,
    restart: Option<Restart<'_>>,
) -> Result<Launch, Failure> {
    let mcp_config_file = mcp_config_file(around.state_dir, &agent.name);
    let mcp_config_text = mcp_config_file.to_string_lossy();
    let endpoint = endpoint(agent, around, &mcp_config_text);
    let system_settings = mcp_restart_agents::takes_system_settings(around.state_dir);
    let circumstances =
        Circumstances { endpoint, conversation: choice.conversation(), restart, system_settings };
    let line = mcp_restart_agents::command_line(agent, circumstances);
    let environment = environment(agent, around, endpoint, &line.variables);
    let at = |field| move |failure| at_field(around.config_file, agent, field, failure);
    let program = resolve(agent, &environment).map_err(at("command"))?;
    check_cwd(agent, &choice.cwd).map_err(at("cwd"))?;
    let log_file = agent.log_file_in(around.state_dir);
    check_log(agent, around.state_dir, &log_file).map_err(at("logFile"))?;
    if let Some(text) = &line.mcp_config {
        write_mcp_config(&mcp_config_file, text)
            .map_err(|error| unusable(agent, &mcp_config_file, &error))?;
    }
    if let Some((file, text)) = &line.companion {
        let file = Path::new(file);
        write_mcp_config(file, text).map_err(|error| unusable(agent, file, &error))?;
    }
    let untold = line.settings.and_then(|file| name_server_in(&choice.cwd.join(file)).err());
    let argv = std::iter::once(&agent.command).chain(&line.arguments);
    let argv: Vec<Vec<u8>> = argv.map(|argument| argument.clone().into_bytes()).collect();
    check_sizes(agent, &argv, &environment).map_err(at("args"))?;
    let hash = agent.fingerprint();
    let shim = ShimLaunch {
        name: agent.name.clone(),
        generation: 0,
        launch_hash: hash,
        path: path.id().to_owned(),
        program: program.into_os_string().into_vec(),
        argv,
        environment: environment
            .into_iter()
            .map(|(name, value)| (name.into_vec(), value.into_vec()))
            .collect(),
        cwd: choice.cwd.as_os_str().as_bytes().to_vec(),
        terminal: agent.tty.then_some(TERMINAL),
        log_file: log_file.into_os_string().into_vec(),
        log_max_bytes: agent.log_max_bytes,
        log_keep: agent.log_keep,
        keep_children: match &agent.keep_children {
            KeepChildren::All => shim::KeepChildren::All,
            KeepChildren::Named(names) => shim::KeepChildren::Named(names.clone()),
        },
    };
    let session = line.session_id.map(|id| Box::new(Session { id, cwd: choice.cwd.clone() }));
    let warnings = choice.warning.iter().cloned().chain(untold).collect();
    let (agent, mcp_config) = (Arc::clone(agent), line.mcp_config);
    Ok(Launch { agent, hash, path, session, warnings, handoff: None, mcp_config, shim: Box::new(shim) })
}

/// Where an agent's generated MCP config is.
pub(super) fn mcp_config_file(state_dir: &Path, name: &str) -> PathBuf {
    lookup::mcp_config_file(state_dir, name)
}

/// Why a launch was refused, without the words that it was.
pub(super) fn bare_reason<'a>(agent: &Agent, failure: &'a Failure) -> &'a str {
    failure.message.strip_prefix(&preamble(agent)).unwrap_or(&failure.message)
}

fn endpoint<'a>(agent: &Agent, around: Surroundings<'a>, mcp_config_file: &'a str) -> Option<Endpoint<'a>> {
    (agent.inject_mcp != Inject::No).then_some(around.url).flatten().map(|url| Endpoint {
        url,
        token: around.token,
        mcp_config_file,
    })
}

/// The whole environment, but for the generation. The variables that say which agent this is come even
/// without injection: by them a lost process is known for what it is.
fn environment(
    agent: &Agent,
    around: Surroundings<'_>,
    endpoint: Option<Endpoint<'_>>,
    of_kind: &[(String, String)],
) -> Vec<(OsString, OsString)> {
    let mut environment: Vec<(OsString, OsString)> =
        around.inherited.iter().filter(|(name, _)| is_inherited(name)).cloned().collect();
    let mut set = |name: &str, value: &OsStr| {
        environment.retain(|(earlier, _)| earlier != name);
        environment.push((name.into(), value.to_owned()));
    };
    if agent.tty {
        set("TERM", "xterm-256color".as_ref());
    }
    for (name, value) in agent.env.iter().chain(of_kind.iter().map(|(name, value)| (name, value))) {
        set(name, value.as_ref());
    }
    set("MCP_RESTART_AGENT", agent.name.as_ref());
    set("MCP_RESTART_SOCKET", around.socket.as_ref());
    if agent.inject_mcp != Inject::No {
        set("MCP_RESTART_CONFIG", around.config_file.as_ref());
        set("MCP_RESTART_TOKEN", around.token.as_ref());
        set("MCP_RESTART_HANDOFF_FILE", super::handoff::file(around.state_dir, &agent.name).as_ref());
    }
    if let Some(endpoint) = endpoint {
        set("MCP_RESTART_URL", endpoint.url.as_ref());
        set("MCP_RESTART_CONFIG_FILE", endpoint.mcp_config_file.as_ref());
    }
    environment
}

fn is_inherited(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    !name.starts_with("MCP_RESTART_")
        && !name.starts_with("LISTEN_")
        && !name.starts_with("WATCHDOG_")
        && !SERVICE_MANAGER.contains(&&*name)
        && !NESTING_MARKERS.contains(&&*name)
}

/// The program's absolute path, by the agent's own PATH.
fn resolve(agent: &Agent, environment: &[(OsString, OsString)]) -> Result<PathBuf, Failure> {
    let search = environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    if agent.command.contains('/') {
        let program = PathBuf::from(&agent.command);
        return match preflight::check_program(&program, search.unwrap_or_default()) {
            Ok(()) => Ok(program),
            Err(why) => Err(cannot_run(agent, &format!("{} {why}", program.display()))),
        };
    }
    preflight::find_program(agent.command.as_ref(), search.unwrap_or_default()).map_err(|(program, why)| {
        let why = match why {
            Unusable::Missing => format!("{} was not found", agent.command),
            why => format!("{} {why}", program.display()),
        };
        cannot_run(agent, &why).hint(match search {
            Some(search) => format!("searched its PATH: {}", search.to_string_lossy()),
            None => "it has no PATH; give it one in its `env`, or name the program by its path".to_owned(),
        })
    })
}

/// The kernel's limits for a single argument or variable and for all of them, and the frame's.
fn check_sizes(agent: &Agent, argv: &[Vec<u8>], environment: &[(OsString, OsString)]) -> Result<(), Failure> {
    const STRING_MAX: usize = 128 * 1024 - 1;
    const FRAME: usize = FRAME_MAX - 64 * 1024;
    /// For each of them: a zero at its end, and its place in the list.
    const EACH: usize = 1 + size_of::<usize>();
    /// For what is added later: the generation, the path of the program, an interpreter.
    const RESERVE: usize = 16 * 1024;
    let variables = environment.iter().map(|(name, value)| name.len() + 1 + value.len());
    let sizes: Vec<usize> = argv.iter().map(Vec::len).chain(variables).collect();
    let all = sizes.iter().map(|size| size + EACH).sum::<usize>();
    let all_max = FRAME.min(preflight::arguments_max() - RESERVE);
    match sizes.iter().max() {
        Some(longest) if *longest > STRING_MAX => Err(cannot_run(
            agent,
            &format!("an argument or variable has {longest} bytes, at most {STRING_MAX} can be passed"),
        )),
        _ if all > all_max => Err(cannot_run(
            agent,
            &format!("its arguments and variables have {all} bytes, at most {all_max} can be passed"),
        )),
        _ => Ok(()),
    }
}

fn check_cwd(agent: &Agent, cwd: &Path) -> Result<(), Failure> {
    let why = match preflight::check_folder(cwd) {
        Ok(()) => return Ok(()),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => "does not exist".to_owned(),
            io::ErrorKind::NotADirectory => "is not a folder".to_owned(),
            _ => format!("cannot be entered: {error}"),
        },
    };
    Err(cannot_run(agent, &format!("its cwd {} {why}", cwd.display())))
}

/// Opens it as the shim will. Our own folder is made again if somebody has removed it; one elsewhere is not ours.
fn check_log(agent: &Agent, state_dir: &Path, log_file: &Path) -> Result<(), Failure> {
    if agent.log_file.is_none()
        && let Some(folder) = log_file.parent()
    {
        // If that fails, opening the log says why.
        let _ = create_folder(folder);
    }
    if is_for_the_daemon(state_dir, log_file) {
        let why = format!("its log {} would be among the daemon's own files", log_file.display());
        return Err(cannot_run(agent, &why));
    }
    match std::fs::symlink_metadata(log_file) {
        Ok(metadata) if metadata.is_symlink() => {
            Err(cannot_run(agent, &format!("its log {} is a symbolic link", log_file.display())))
        }
        Ok(metadata) if metadata.is_dir() => {
            Err(cannot_run(agent, &format!("its log {} is a folder", log_file.display())))
        }
        _ => open_log(log_file).map(drop).map_err(|error| unusable(agent, log_file, &error)),
    }
}

/// Whether the log would be one of our own files, by whatever links that is said. The config could not tell: the state
/// dir may be named elsewhere.
fn is_for_the_daemon(state_dir: &Path, log_file: &Path) -> bool {
    let folder = log_file.parent().map(Path::canonicalize);
    match (state_dir.canonicalize(), folder, log_file.file_name()) {
        (Ok(state_dir), Some(Ok(folder)), Some(name)) => {
            lookup::is_for_the_daemon(&state_dir, &folder.join(name))
        }
        _ => false,
    }
}

fn write_mcp_config(file: &Path, text: &str) -> io::Result<()> {
    if std::fs::read(file).is_ok_and(|present| present == text.as_bytes()) {
        return Ok(());
    }
    if let Some(folder) = file.parent() {
        create_folder_with_parents(folder)?;
    }
    mcp_restart_process::write_atomically(file, text.as_bytes())
}

/// Names the server in a settings file of the agent's CLI; says why it does not stand there, if it does not.
fn name_server_in(file: &Path) -> Result<(), String> {
    let untold = |why: &dyn Display| format!("{} does not name the restart server: {why}", file.display());
    // What a symbolic link leads to is what is written.
    let target = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let present = match read_regular(&target) {
        Ok(bytes) => String::from_utf8(bytes).map_err(|error| untold(&error))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(untold(&error)),
    };
    let Some(text) = mcp_restart_agents::settings_with_server(&present).map_err(|error| untold(&error))?
    else {
        return Ok(());
    };
    let permissions = std::fs::metadata(&target).map(|metadata| metadata.permissions());
    write_mcp_config(&target, &text).map_err(|error| untold(&error))?;
    match permissions {
        Ok(permissions) => std::fs::set_permissions(&target, permissions).map_err(|error| untold(&error)),
        Err(_) => Ok(()),
    }
}

/// Says which line of the file to mend.
fn at_field(file: &Path, agent: &Agent, field: &str, failure: Failure) -> Failure {
    let text = mcp_restart_config::read(file).ok();
    let Some(place) = text.and_then(|text| place_of(&text, &agent.name, field)) else { return failure };
    let mend = format!("mend {}:{place}", file.display());
    let hint = failure.hint.as_ref().map_or_else(|| mend.clone(), |hint| format!("{mend}; {hint}"));
    failure.hint(hint)
}

fn cannot_run(agent: &Agent, why: &str) -> Failure {
    Failure::new(ErrorCode::SpawnFailed, format!("{}{why}", preamble(agent)))
}

fn preamble(agent: &Agent) -> String {
    format!("{} cannot be started: ", agent.name)
}

fn unusable(agent: &Agent, path: &Path, error: &io::Error) -> Failure {
    cannot_run(agent, &format!("{} cannot be written: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcp_restart_config::{Environment, from_text};
    use std::os::unix::fs::PermissionsExt;

    struct Place {
        dir: tempfile::TempDir,
        inherited: Vec<(OsString, OsString)>,
    }

    impl Place {
        fn new() -> Self {
            let inherited = [
                ("PATH", "/usr/bin:/bin"),
                ("HOME", "/home/ada"),
                ("NOTIFY_SOCKET", "/run/x"),
                ("LISTEN_FDS", "1"),
                ("WATCHDOG_PID", "1"),
                ("CLAUDECODE", "1"),
                ("MCP_RESTART_TOKEN", "operator"),
            ];
            let inherited = inherited.map(|(name, value)| (name.into(), value.into())).to_vec();
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(dir.path().join("state/logs")).unwrap();
            Self { dir, inherited }
        }

        fn prepare(&self, entry: &str) -> Result<Launch, Failure> {
            let file = self.dir.path().join("mcp-restart.config.json");
            let home = Some(self.dir.path().to_owned());
            let state_dir = self.dir.path().join("state");
            let environment = Environment { home, ..Environment::default() };
            let text = format!("{{\"agents\":[{entry}]}}");
            std::fs::write(&file, &text).unwrap();
            let config = from_text(&text, &file, &environment).unwrap();
            let around = Surroundings {
                state_dir: &state_dir,
                socket: Path::new("/state/mcp-restartd.sock"),
                config_file: &file,
                url: Some("http://127.0.0.1:4310/mcp"),
                token: "mra_own",
                inherited: &self.inherited,
            };
            let agent = Arc::new(config.agents[0].clone());
            let choice = Choice { id: "id".into(), resumed: false, cwd: agent.cwd.clone(), warning: None };
            prepare(&agent, around, RestartPath::CtlStart, &choice, None)
        }
    }

    fn variable(launch: &ShimLaunch, name: &str) -> Option<String> {
        let mut found = launch.environment.iter().filter(|(key, _)| key == name.as_bytes());
        let value = found.next().map(|(_, value)| String::from_utf8(value.clone()).unwrap());
        assert!(found.next().is_none(), "{name} is set twice");
        value
    }

    #[test]
    fn an_agent_inherits_neither_the_operators_token_nor_the_service_managers_variables() {
        let place = Place::new();
        let launch =
            place.prepare(r#"{"name":"a","command":"sh","env":{"MCP_RESTART_AGENT":"b","X":"1"}}"#).unwrap();
        let launch = launch.numbered(7);
        assert_eq!(variable(&launch, "MCP_RESTART_TOKEN").as_deref(), Some("mra_own"));
        assert_eq!(variable(&launch, "MCP_RESTART_AGENT").as_deref(), Some("a"));
        assert_eq!(variable(&launch, "MCP_RESTART_GENERATION").as_deref(), Some("7"));
        assert_eq!(variable(&launch, "X").as_deref(), Some("1"));
        assert_eq!(variable(&launch, "HOME").as_deref(), Some("/home/ada"));
        for gone in ["NOTIFY_SOCKET", "LISTEN_FDS", "WATCHDOG_PID", "CLAUDECODE"] {
            assert_eq!(variable(&launch, gone), None, "{gone}");
        }
    }

    #[test]
    fn without_injection_an_agent_gets_no_token_and_no_endpoint() {
        let place = Place::new();
        let launch = place.prepare(r#"{"name":"a","command":"sh","injectMcp":false}"#).unwrap().numbered(1);
        for gone in ["MCP_RESTART_TOKEN", "MCP_RESTART_URL", "MCP_RESTART_CONFIG_FILE"] {
            assert_eq!(variable(&launch, gone), None, "{gone}");
        }
        assert!(!mcp_config_file(&place.dir.path().join("state"), "a").exists());
    }

    #[test]
    fn a_launch_that_cannot_work_is_told_apart_before_anything_is_touched() {
        let place = Place::new();
        std::fs::write(place.dir.path().join("plain"), "x").unwrap();
        std::os::unix::fs::symlink("state", place.dir.path().join("alias")).unwrap();
        let script = place.dir.path().join("script");
        std::fs::write(&script, "#!/no/interpreter -x\n").unwrap();
        let format = place.dir.path().join("format");
        std::fs::write(&format, "\u{1}\u{2}\u{3}").unwrap();
        for program in [script, format] {
            std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let table = [
            (r#"{"name":"a","command":"no-such-program"}"#, "no-such-program was not found"),
            (r#"{"name":"a","command":"./no-such"}"#, "does not exist"),
            (r#"{"name":"a","command":"./plain"}"#, "is not executable"),
            (r#"{"name":"a","command":"/usr"}"#, "is a folder"),
            (r#"{"name":"a","command":"./script"}"#, "needs /no/interpreter, which does not exist"),
            (r#"{"name":"a","command":"./format"}"#, "is neither a program nor a script that begins with #!"),
            (r#"{"name":"a","command":"sh","logFile":"nowhere/log"}"#, "cannot be written"),
            (r#"{"name":"a","command":"sh","logFile":"/usr"}"#, "is a folder"),
            (r#"{"name":"a","command":"sh","logFile":"state/state.json"}"#, "among the daemon's own files"),
            (r#"{"name":"a","command":"sh","logFile":"alias/state.json"}"#, "among the daemon's own files"),
            (r#"{"name":"a","command":"sh","cwd":"nowhere"}"#, "does not exist"),
            (r#"{"name":"a","command":"sh","cwd":"plain"}"#, "is not a folder"),
        ];
        for (entry, want) in table {
            let failure = place.prepare(entry).unwrap_err();
            assert_eq!(failure.code, ErrorCode::SpawnFailed);
            assert!(failure.message.contains(want), "{entry}: {}", failure.message);
            let hint = failure.hint.unwrap_or_default();
            assert!(hint.contains("config.json:1:") && hint.contains(": agents[0]."), "{entry}: {hint}");
        }
        let long = format!(r#"{{"name":"a","command":"sh","args":["{}"]}}"#, "x".repeat(200_000));
        assert!(place.prepare(&long).unwrap_err().message.contains("200000 bytes"));
        std::os::unix::fs::symlink("/etc/passwd", place.dir.path().join("link.log")).unwrap();
        let failure = place.prepare(r#"{"name":"a","command":"sh","logFile":"link.log"}"#).unwrap_err();
        assert!(failure.message.contains("is a symbolic link"), "{}", failure.message);
    }
}
