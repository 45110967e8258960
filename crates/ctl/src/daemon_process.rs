//! The daemon as a process that this program starts: the one place that starts any.
//!
//! ```text
//!  mcp-restartctl ── starts ──► mcp-restartctl daemon-session ── setsid, exec ──► mcp-restartd
//!        │                         same pid, terminal left behind                      │
//!        └── asks the socket until it serves, or sees the process end ◄────────────────┘
//! ```

use crate::context::Place;
use crate::problem::{Exit, Problem};
use crate::said::Said;
use crate::talk::{self, Summary};
use mcp_restart_paths::RestartPath;
use mcp_restart_protocol::client::ClientError;
use mcp_restart_protocol::upgrade::Launch;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon may take until it serves and its endpoint listens.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two looks at a daemon that is starting.
const PAUSE: Duration = Duration::from_millis(4);
/// So many of the last bytes that it says are kept.
const KEPT: u64 = 64 * 1024;
/// What a service manager tells its direct child.
const MANAGERS: [&str; 5] =
    ["INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "SYSTEMD_EXEC_PID", "XPC_SERVICE_NAME"];
/// The variables of mcp-restart that a daemon has from its operator; an agent's others are not passed on.
const OPERATORS: [&str; 3] = ["MCP_RESTART_LOG", "MCP_RESTART_TOKEN", "MCP_RESTART_ALLOW_STALE"];

/// A daemon that was started and is not known to serve yet.
pub(crate) struct Starting {
    child: Child,
    /// What it says on standard error, until it serves.
    said: PipeReader,
    words: Vec<u8>,
    place: Place,
}

/// Whom a new daemon serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The user: it gets the variables that an operator sets, log level and token, and stays.
    User,
    /// The demo: it gets the log level alone, and ends with this program.
    Demo,
}

/// What became of a daemon that was started.
pub(crate) enum Outcome {
    /// It serves, and its endpoint listens if there is a URL.
    Serves(Summary),
    /// It ended.
    Ended(ExitStatus),
}

/// Starts the daemon of a place in a session of its own. It alone touches the state dir, once it has found that
/// it may; until it serves, what it says comes here.
pub(crate) fn start(
    path: RestartPath,
    place: &Place,
    config: &Path,
    owner: Owner,
) -> Result<Starting, Problem> {
    let program = daemon_program();
    let state_dir = place.state_dir.as_os_str();
    let flags = ["--config".as_ref(), config.as_os_str(), "--state-dir".as_ref(), state_dir];
    let (child, said) =
        spawn(path, &program, &flags, owner).map_err(|error| cannot_start(&program, &error))?;
    Ok(Starting { child, said, words: Vec::new(), place: place.clone() })
}

/// Starts the successor of a daemon that has made way, as that one was started.
pub(crate) fn start_successor(
    path: RestartPath,
    place: &Place,
    program: &Path,
    launch: &Launch,
) -> Result<Starting, Problem> {
    let session = || {
        let mut command = as_it_was(&env::current_exe()?, launch);
        command.arg("daemon-session").arg("--").arg(program).args(arguments(launch));
        listened_to_daemon(path, command)
    };
    let (child, said) = session().map_err(|error| cannot_start(program, &error))?;
    Ok(Starting { child, said, words: Vec::new(), place: place.clone() })
}

/// Makes this process the leader of a session of its own and then the daemon. Returns only an error.
#[expect(clippy::disallowed_methods, reason = "the second half of `spawn`, whose process this is")]
pub(crate) fn become_daemon(command: &[OsString]) -> Problem {
    let Some((program, arguments)) = command.split_first() else {
        return Problem::new(Exit::Usage, "no program is named");
    };
    if let Err(error) = rustix::process::setsid() {
        return Problem::caused(Exit::Failed, "cannot make a session", &error);
    }
    let error = Command::new(program).args(arguments).exec();
    Problem::caused(Exit::Failed, format!("cannot start {}", program.display()), &error)
        .hint("mcp-restartd has to be in the folder of mcp-restartctl, or on PATH")
}

impl Starting {
    /// The process id that the daemon has or had.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it serves and its endpoint listens, or until it ends.
    pub(crate) async fn outcome(&mut self) -> Result<Outcome, Problem> {
        let deadline = Instant::now() + PATIENCE;
        let place = self.place.clone();
        let socket = &place.socket;
        loop {
            // A pipe that is full would keep it waiting.
            self.listen();
            let summary = talk::summary(socket).await;
            match summary {
                Ok(summary) if summary.pid == self.pid() && summary.url.is_some() => {
                    return Ok(Outcome::Serves(summary));
                }
                // Between its hello and its answer a daemon can end; whether it has shows below.
                Ok(_) | Err(ClientError::Unreachable(_) | ClientError::Closed) => {}
                Err(error) => return Err(talk::problem(&error, &place)),
            }
            if let Some(status) = self.child.try_wait()? {
                return Ok(Outcome::Ended(status));
            }
            if Instant::now() >= deadline {
                return match talk::summary(socket).await {
                    Ok(summary) => Ok(Outcome::Serves(summary)),
                    Err(_) => Err(Problem::new(
                        Exit::TimedOut,
                        format!("the daemon (pid {}) does not serve yet after 10 s", self.pid()),
                    )
                    .hint(self.look_into_log())),
                };
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Why it ended, in its own words where it left some.
    pub(crate) fn failure(&mut self, status: ExitStatus) -> Problem {
        self.listen();
        let exit = if status.code() == Some(Exit::ConfigInvalid as i32) {
            Exit::ConfigInvalid
        } else {
            Exit::Failed
        };
        let said = Said::parse(&String::from_utf8_lossy(&self.words));
        let message = said.error_or(|| format!("the daemon ended at once ({status})"));
        Problem::new(exit, message).hint(said.hint.unwrap_or_else(|| self.look_into_log()))
    }

    /// Takes what it has said so far.
    fn listen(&mut self) {
        // It does not wait, so it ends with an error; without the words there is still the status.
        let _ = (&mut self.said).take(KEPT).read_to_end(&mut self.words);
        let overlong = self.words.len().saturating_sub(usize::try_from(KEPT).unwrap_or_default());
        self.words.drain(..overlong);
    }

    fn look_into_log(&self) -> String {
        format!("look into {}", self.place.state_dir.join("mcp-restart.log").display())
    }

    /// Waits until the process has ended, for as long as `patience`; tells how, if it has.
    pub(crate) async fn ended_within(&mut self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + patience;
        loop {
            // A pipe that is full would keep it waiting.
            self.listen();
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Ends the process by force and waits for it: for a daemon that answers nothing any more.
    #[expect(
        clippy::disallowed_methods,
        reason = "a child of this program, not waited for yet, by a registered path"
    )]
    pub(crate) fn kill(&mut self, path: RestartPath) -> io::Result<()> {
        if !matches!(path, RestartPath::CtlDown | RestartPath::CtlUpgrade) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "only `down` and `upgrade` end a daemon",
            ));
        }
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

#[expect(clippy::disallowed_methods, reason = "the one process that the command line starts: the daemon")]
fn spawn(
    path: RestartPath,
    program: &Path,
    flags: &[&OsStr],
    owner: Owner,
) -> io::Result<(Child, PipeReader)> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("daemon-session").arg("--").arg(program).args(flags).stdin(Stdio::null());
    if owner == Owner::Demo {
        // That ends with this process, however this one ends.
        command.arg("--ends-with-stdin").stdin(Stdio::piped());
    }
    for (variable, value) in env::vars_os() {
        if !passes(&variable, &value, owner) {
            command.env_remove(variable);
        }
    }
    command.current_dir("/");
    listened_to_daemon(path, command)
}

/// A program in the environment and the working directory of the daemon that was launched like this.
#[expect(clippy::disallowed_methods, reason = "the daemon that comes after another, and what asks it before")]
pub(crate) fn as_it_was(program: &Path, launch: &Launch) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command.env_clear().envs(launch.environment.iter().map(|(name, value)| (&name.0, &value.0)));
    let cwd = launch.cwd.as_ref().map(|cwd| Path::new(&cwd.0)).filter(|cwd| cwd.is_dir());
    command.current_dir(cwd.unwrap_or(Path::new("/")));
    command
}

/// The arguments that the daemon was launched with.
pub(crate) fn arguments(launch: &Launch) -> impl Iterator<Item = &OsStr> {
    launch.arguments.iter().map(|argument| argument.0.as_os_str())
}

fn listened_to_daemon(path: RestartPath, command: Command) -> io::Result<(Child, PipeReader)> {
    if !matches!(path, RestartPath::CtlUp | RestartPath::CtlUpgrade) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "only `up` and `upgrade` start a daemon"));
    }
    listened_to(command)
}

/// Starts a program whose standard error comes here.
fn listened_to(mut command: Command) -> io::Result<(Child, PipeReader)> {
    let (said, says) = io::pipe()?;
    rustix::io::ioctl_fionbio(&said, true)?;
    command.stdout(Stdio::null()).stderr(says);
    Ok((command.spawn()?, said))
}

fn cannot_start(program: &Path, error: &io::Error) -> Problem {
    Problem::caused(Exit::Failed, format!("cannot start {}", program.display()), error)
}

fn passes(variable: &OsStr, value: &OsStr, owner: Owner) -> bool {
    // A daemon in the background is nobody's service, whatever the terminal is.
    if MANAGERS.iter().any(|known| variable == *known) {
        return false;
    }
    if !variable.as_bytes().starts_with(b"MCP_RESTART_") {
        return true;
    }
    match owner {
        Owner::Demo => variable == "MCP_RESTART_LOG",
        Owner::User => {
            OPERATORS.iter().any(|known| variable == *known) && !value.as_bytes().starts_with(b"mra_")
        }
    }
}

/// `mcp-restartd` beside this program, else whatever PATH has.
fn daemon_program() -> PathBuf {
    let name = Path::new("mcp-restartd");
    env::current_exe()
        .ok()
        .and_then(|own| own.parent().map(|folder| folder.join(name)))
        .filter(|beside| beside.is_file())
        .unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variables_of_an_agent_are_not_passed_on() {
        let passes = |variable: &str, value: &str, owner| passes(variable.as_ref(), value.as_ref(), owner);
        for owner in [Owner::User, Owner::Demo] {
            assert!(passes("PATH", "/bin", owner));
            assert!(passes("MCP_RESTART_LOG", "debug", owner));
            assert!(!passes("SYSTEMD_EXEC_PID", "7", owner));
            assert!(!passes("MCP_RESTART_SOCKET", "/s", owner));
            assert!(!passes("MCP_RESTART_AGENT", "claude", owner));
            assert!(!passes("MCP_RESTART_TOKEN", "mra_1", owner));
        }
        assert!(passes("MCP_RESTART_TOKEN", "operator", Owner::User));
        assert!(!passes("MCP_RESTART_TOKEN", "operator", Owner::Demo));
    }
}
