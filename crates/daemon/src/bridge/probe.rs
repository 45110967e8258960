//! Whether the bridge's program on disk can be used, before anybody relies on it.

use super::keeper::describe;
use super::program::environment;
use crate::children::Children;
use mcp_restart_paths::RestartPath;
use mcp_restart_process::descriptor::set_nonblocking;
use mcp_restart_process::{Exit, Signal, Spawn};
use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::timeout;

/// How long it may take to tell its version.
const PATIENCE: Duration = Duration::from_secs(5);
/// What is read of its answer.
const ANSWER_MAX: u64 = 4096;

/// A bridge's program that cannot be used.
#[derive(Debug)]
pub(crate) struct UnfitBridge {
    program: PathBuf,
    why: Unfit,
}

#[derive(Debug)]
enum Unfit {
    Unexecutable(io::Error),
    Silent,
    Ended(Exit, String),
    OtherVersion(String),
    NoBridge,
}

/// Asks the program for its version, which has to be this one.
pub(crate) async fn check(children: &Children, program: &Path) -> Result<(), UnfitBridge> {
    let unfit = |why| UnfitBridge { program: program.to_owned(), why };
    let (exit, answer) = ask(children, program).await.map_err(unfit)?;
    judge(exit, &answer).map_err(unfit)
}

async fn ask(children: &Children, program: &Path) -> Result<(Exit, String), Unfit> {
    let (answer, writer) = io::pipe().map_err(Unfit::Unexecutable)?;
    set_nonblocking(&answer).map_err(Unfit::Unexecutable)?;
    let spawn = Spawn {
        program: program.to_owned(),
        arg0: None,
        args: vec!["--version".into()],
        environment: environment(std::env::vars_os()),
        stdin: None,
        output: Some(writer.into()),
        inherited: Vec::new(),
    };
    let (pid, mut exit) = children.spawn(RestartPath::BridgeChild, spawn).map_err(Unfit::Unexecutable)?;
    let Ok(Ok(exit)) = timeout(PATIENCE, &mut exit).await else {
        children.signal(RestartPath::BridgeChild, pid, Signal::KILL);
        let _ = timeout(PATIENCE, exit).await;
        return Err(Unfit::Silent);
    };
    // All of it is there by now: a version is shorter than what a pipe holds.
    let mut said = Vec::new();
    // Where somebody else still holds the pipe, it ends with an error.
    let _ = answer.take(ANSWER_MAX).read_to_end(&mut said);
    Ok((exit, String::from_utf8_lossy(&said).into_owned()))
}

fn judge(exit: Exit, answer: &str) -> Result<(), Unfit> {
    if exit != Exit::Code(0) {
        return Err(Unfit::Ended(exit, answer.lines().last().unwrap_or_default().to_owned()));
    }
    match answer.trim().strip_prefix("mcp-restart-http ") {
        Some(env!("CARGO_PKG_VERSION")) => Ok(()),
        Some(version) => Err(Unfit::OtherVersion(version.to_owned())),
        None => Err(Unfit::NoBridge),
    }
}

impl fmt::Display for UnfitBridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = env!("CARGO_PKG_VERSION");
        write!(f, "the bridge {} ", self.program.display())?;
        match &self.why {
            Unfit::Unexecutable(_) => f.write_str("cannot be executed"),
            Unfit::Silent => write!(f, "does not tell its version within {} s", PATIENCE.as_secs()),
            Unfit::Ended(exit, last) if last.is_empty() => {
                write!(f, "cannot tell its version: it ended {}", describe(*exit))
            }
            Unfit::Ended(exit, last) => {
                write!(f, "cannot tell its version: it ended {} and said {last:?}", describe(*exit))
            }
            Unfit::OtherVersion(version) => {
                write!(f, "is version {version}, and mcp-restartd is version {own}")
            }
            Unfit::NoBridge => f.write_str("is no mcp-restart-http"),
        }
    }
}

impl std::error::Error for UnfitBridge {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.why {
            Unfit::Unexecutable(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bridge_of_this_version_is_fit() {
        let own = concat!("mcp-restart-http ", env!("CARGO_PKG_VERSION"), "\n");
        assert!(judge(Exit::Code(0), own).is_ok());
        assert!(matches!(judge(Exit::Code(0), "mcp-restart-http 99.0.0\n"), Err(Unfit::OtherVersion(_))));
        assert!(matches!(judge(Exit::Code(0), ""), Err(Unfit::NoBridge)));
        assert!(matches!(judge(Exit::Code(0), "mcp-restartd 0.1.0\n"), Err(Unfit::NoBridge)));
        let ended = judge(Exit::Code(127), "one\nlibx.so: not found\n");
        assert!(matches!(ended, Err(Unfit::Ended(Exit::Code(127), last)) if last == "libx.so: not found"));
        assert!(judge(Exit::Signal(Signal::KILL), own).is_err());
    }
}
