//! The program on disk that would take the daemon's place, asked whether it does (`--check`).
//!
//! ```text
//!  started, in a group of its own ─► ends ──────────────► its group is ended ─► what it said is judged
//!                                 └► PATIENCE is over, ─► its group is ended
//!                                    or nobody waits
//! ```

use crate::daemon_process::{arguments, as_it_was};
use crate::problem::{Exit, Problem};
use crate::said::Said;
use mcp_restart_paths::RestartPath;
use mcp_restart_protocol::upgrade::{Launch, accepting_version};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::io::{self, PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until};

/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// So long is waited for whoever has just written it to close it, and for those whom they have forked meanwhile.
const BUSY: Duration = Duration::from_secs(2);
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// So many bytes are kept of what it says on each of its two outputs.
const KEPT: usize = 64 * 1024;

/// Asks the program whether it accepts config and state as they are, as the daemon that was launched like this.
pub(crate) async fn check(path: RestartPath, program: &Path, launch: &Launch) -> Result<(), Problem> {
    let shown = program.display();
    let failed = |error: io::Error| Problem::caused(Exit::Failed, format!("cannot execute {shown}"), &error);
    let deadline = Instant::now() + BUSY;
    let asked = loop {
        match Asked::start(path, program, launch) {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                sleep(BUSY_PAUSE).await;
            }
            started => break started.map_err(failed)?,
        }
    };
    let answer = asked.answer().await.map_err(failed)?;
    let Some(answer) = answer else {
        let message = format!("`{shown} --check` does not end within {} s", PATIENCE.as_secs());
        return Err(Problem::new(Exit::Failed, message).hint("every process that it had started was ended"));
    };
    answer.judge(program)
}

/// A program that is asked. It, and what it has started, ends when nobody waits for its answer any more.
struct Asked {
    child: Child,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
    /// The same two pipes, to be read without the runtime.
    left: (PipeReader, PipeReader),
    ends: tokio::signal::unix::Signal,
    /// Its number may be somebody else's by now.
    waited_for: bool,
}

/// What it said, and how it ended.
struct Answer {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Asked {
    fn start(path: RestartPath, program: &Path, launch: &Launch) -> io::Result<Self> {
        if path != RestartPath::CtlUpgrade {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "only `upgrade` asks a program"));
        }
        // From before its start on, so that its end is not missed.
        let ends = signal(SignalKind::child())?;
        let mut command = as_it_was(program, launch);
        command.args(arguments(launch)).arg("--check").process_group(0);
        let (stdout, says) = io::pipe()?;
        command.stdout(says);
        let (stderr, says) = io::pipe()?;
        command.stderr(says);
        let left = (stdout.try_clone()?, stderr.try_clone()?);
        let (stdout, stderr) = (receiver(stdout)?, receiver(stderr)?);
        let child = command.spawn()?;
        Ok(Self { child, stdout, stderr, left, ends, waited_for: false })
    }

    /// None if it takes too long.
    async fn answer(mut self) -> io::Result<Option<Answer>> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let deadline = Instant::now() + PATIENCE;
        while !self.has_ended()? {
            // Whatever it writes is taken, or it would wait for a reader.
            tokio::select! {
                _ = self.ends.recv() => {}
                () = take(&mut self.stdout, &mut stdout) => {}
                () = take(&mut self.stderr, &mut stderr) => {}
                () = sleep_until(deadline) => return Ok(None),
            }
        }
        // Whoever it has left behind would keep the pipes open.
        self.end_group();
        take_rest(&mut self.left.0, &mut stdout);
        take_rest(&mut self.left.1, &mut stderr);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&stdout), text(&stderr));
        self.waited_for = true;
        Ok(Some(Answer { status: self.child.wait()?, stdout, stderr }))
    }

    /// It is not waited for here, so that its number stays its own, and that of its group.
    fn has_ended(&self) -> io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(Pid::from_child(&self.child)), options)?.is_some())
    }

    #[expect(clippy::disallowed_methods, reason = "the group of a child of this program, not waited for yet")]
    fn end_group(&self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.waited_for {
            self.end_group();
            let _ = self.child.wait();
        }
    }
}

impl Answer {
    fn judge(&self, program: &Path) -> Result<(), Problem> {
        let shown = program.display();
        if self.status.success() {
            return match accepting_version(&self.stdout) {
                Some(_) => Ok(()),
                None => Err(Problem::new(Exit::Failed, format!("{shown} is no mcp-restartd")).hint(
                    "its `--check` did not say what it accepts; put the program of the new version there",
                )),
            };
        }
        let said = Said::parse(&self.stderr);
        let verb = if said.error.is_some() { "refuses" } else { "fails" };
        let why = said.error_or(|| format!("`--check` ended with {}", self.status));
        let is_config = self.status.code() == Some(Exit::ConfigInvalid as i32);
        let exit = if is_config { Exit::ConfigInvalid } else { Exit::Failed };
        let problem = Problem::new(exit, format!("{shown} {verb}: {why}"));
        Err(problem.hint(said.hint.unwrap_or_else(|| "put a program there that works".to_owned())))
    }
}

fn receiver(pipe: PipeReader) -> io::Result<pipe::Receiver> {
    pipe::Receiver::from_owned_fd(pipe.into())
}

/// Keeps the last of what comes from there, for as long as it is polled.
async fn take(pipe: &mut pipe::Receiver, taken: &mut Vec<u8>) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        keep(taken, buffer.get(..read).unwrap_or_default());
    }
    std::future::pending::<()>().await;
}

/// The same with what is there already, whatever the runtime has noticed of it.
fn take_rest(pipe: &mut PipeReader, taken: &mut Vec<u8>) {
    let mut buffer = [0; 4096];
    // Somebody outside the group may still write.
    for _ in 0..KEPT / buffer.len() {
        let Ok(read @ 1..) = pipe.read(&mut buffer) else { return };
        keep(taken, buffer.get(..read).unwrap_or_default());
    }
}

fn keep(taken: &mut Vec<u8>, bytes: &[u8]) {
    taken.extend_from_slice(bytes);
    if taken.len() > 2 * KEPT {
        taken.drain(..taken.len() - KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn judged(code: i32, stdout: &str, stderr: &str) -> Result<(), (Exit, String)> {
        let status = ExitStatus::from_raw(code << 8);
        let answer = Answer { status, stdout: stdout.to_owned(), stderr: stderr.to_owned() };
        answer.judge(Path::new("/d")).map_err(|problem| match problem {
            Problem::Told { exit, message, .. } => (exit, message),
            Problem::ReaderGone => panic!("a message"),
        })
    }

    #[test]
    fn only_a_program_that_says_what_it_accepts_takes_the_place_of_a_daemon() {
        let accepts = "mcp-restartd 9.9.9 accepts /c and /s\n";
        assert_eq!(judged(0, accepts, "warning: x\n"), Ok(()));
        let no_daemon = Err((Exit::Failed, "/d is no mcp-restartd".to_owned()));
        for said in ["", "yes\n", "mcp-restart-http 9.9.9\n"] {
            assert_eq!(judged(0, said, ""), no_daemon, "{said:?}");
        }
        let refuses = |exit| Err((exit, "/d refuses: no".to_owned()));
        assert_eq!(judged(6, "", "error: no\n"), refuses(Exit::ConfigInvalid));
        assert_eq!(judged(1, accepts, "error: no\n"), refuses(Exit::Failed));
        let fails = "/d fails: `--check` ended with exit status: 127; its last words:\n  libx.so: not found";
        assert_eq!(judged(127, "", "libx.so: not found\n"), Err((Exit::Failed, fails.to_owned())));
    }
}
