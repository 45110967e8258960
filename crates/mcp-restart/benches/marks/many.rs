//! Restarting a hundred agents at once, from the command to the last new process in `main`: ours, and the
//! supervisors that are installed.

use crate::stack::Stack;
use crate::{Outcome, median, proc};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The argument that makes this program one of the hundred.
pub(crate) const MEMBER: &str = "member";

const COUNT: usize = 100;
const ROUNDS: usize = 5;
/// runit and s6 do not start what ran for less than a second again before that second is over.
const PAUSE: Duration = Duration::from_millis(1500);

/// One of the hundred: says on the FIFO that it is in `main`, then waits for the signal that ends it.
pub(crate) fn member(fifo: Option<&str>) -> Outcome<()> {
    let mut said = OpenOptions::new().write(true).open(fifo.ok_or("a member needs its FIFO")?)?;
    said.write_all(b".")?;
    drop(said);
    loop {
        std::thread::park();
    }
}

/// Measures all of them and prints the comparison.
pub(crate) fn restart() -> Outcome<()> {
    let (ours, resident) = ours()?;
    println!("daemon, {COUNT} agents  {:.1} MiB resident (mark: under 10 MB)", resident as f64 / 1024.0);
    let others = [("runit", runit()?), ("s6", s6()?), ("supervisord", supervisord()?)];
    let best = others.iter().filter_map(|(name, time)| time.map(|time| (time, *name))).min();
    print!("restart of {COUNT}      {ours:?}");
    for (name, time) in others {
        match time {
            Some(time) => print!(", {name} {time:?}"),
            None => print!(", {name} is not installed"),
        }
    }
    match best {
        Some((time, name)) => {
            let ratio = ours.as_secs_f64() / time.as_secs_f64();
            println!(": {ratio:.2} times that of {name} (mark: at most 1)");
        }
        None => println!("; nothing to compare with"),
    }
    Ok(())
}

/// The time, and what the daemon holds with all of them running, in KiB.
fn ours() -> Outcome<(Duration, u64)> {
    let witness = Witness::new()?;
    let program = std::env::current_exe()?;
    let entry = |number: usize| -> Value {
        let args = [MEMBER.as_ref(), witness.path.as_os_str()].map(|word| word.to_string_lossy());
        json!({ "name": format!("a{number}"), "command": program, "args": args, "settleMs": 0 })
    };
    let stack = Stack::up(&(0..COUNT).map(entry).collect::<Vec<_>>())?;
    witness.hear()?;
    let time = witness.rounds(|| stack.ctl(&["restart", "--all"]).map(drop))?;
    let [daemon, _] = stack.servers()?;
    Ok((time, proc::resident_kib(&[daemon])?))
}

fn runit() -> Outcome<Option<Duration>> {
    let witness = Witness::new()?;
    let services = witness.services()?;
    let command = &mut Command::new("runsvdir");
    let Some(_supervisor) = Supervisor::start(command.arg(witness.folder.path()), Signal::SIGHUP)? else {
        return Ok(None);
    };
    witness.hear()?;
    witness.rounds(|| succeed(Command::new("sv").arg("term").args(&services))).map(Some)
}

fn s6() -> Outcome<Option<Duration>> {
    let witness = Witness::new()?;
    let services = witness.services()?;
    let command = &mut Command::new("s6-svscan");
    let Some(_supervisor) = Supervisor::start(command.arg(witness.folder.path()), Signal::SIGTERM)? else {
        return Ok(None);
    };
    witness.hear()?;
    let each = |service: &PathBuf| succeed(Command::new("s6-svc").arg("-t").arg(service));
    witness.rounds(|| services.iter().try_for_each(each)).map(Some)
}

fn supervisord() -> Outcome<Option<Duration>> {
    let witness = Witness::new()?;
    let folder = witness.folder.path().display();
    let mut config = format!(
        "[unix_http_server]\nfile={folder}/socket\n\
         [supervisord]\nlogfile={folder}/log\npidfile={folder}/pid\nnodaemon=true\n\
         [rpcinterface:supervisor]\n\
         supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface\n\
         [supervisorctl]\nserverurl=unix://{folder}/socket\n"
    );
    for number in 0..COUNT {
        let command = witness.command()?;
        writeln!(config, "[program:a{number}]\ncommand={command}\nstartsecs=0")?;
    }
    let file = witness.folder.path().join("config");
    fs::write(&file, config)?;
    let command = &mut Command::new("supervisord");
    let Some(_supervisor) = Supervisor::start(command.arg("-c").arg(&file), Signal::SIGTERM)? else {
        return Ok(None);
    };
    witness.hear()?;
    let all = || succeed(Command::new("supervisorctl").arg("-c").arg(&file).args(["restart", "all"]));
    witness.rounds(all).map(Some)
}

/// Hears each member that is in `main`; its folder goes with it.
struct Witness {
    folder: TempDir,
    path: PathBuf,
    fifo: File,
}

impl Witness {
    fn new() -> Outcome<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join(".fifo");
        nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        // Writing too, so that it has no end while nobody else writes.
        let fifo = OpenOptions::new().read(true).write(true).open(&path)?;
        Ok(Self { folder, path, fifo })
    }

    /// How a member is started.
    fn command(&self) -> Outcome<String> {
        Ok(format!("{} {MEMBER} {}", std::env::current_exe()?.display(), self.path.display()))
    }

    /// A folder for each member, with its `run` script, as runit and s6 want them.
    fn services(&self) -> Outcome<Vec<PathBuf>> {
        let script = format!("#!/bin/sh\nexec {}\n", self.command()?);
        (0..COUNT)
            .map(|number| {
                let service = self.folder.path().join(format!("a{number}"));
                fs::create_dir(&service)?;
                let run = service.join("run");
                fs::write(&run, &script)?;
                fs::set_permissions(&run, Permissions::from_mode(0o755))?;
                Ok(service)
            })
            .collect()
    }

    /// Waits until all members are in `main`.
    fn hear(&self) -> Outcome<()> {
        let mut missing = COUNT;
        while missing > 0 {
            let ready = &mut [PollFd::new(&self.fifo, PollFlags::IN)];
            if poll(ready, Some(&Timespec { tv_sec: 30, tv_nsec: 0 }))? == 0 {
                return Err(format!("{missing} of {COUNT} did not come up").into());
            }
            missing -= (&self.fifo).read(vec![0; missing].as_mut_slice())?;
        }
        Ok(())
    }

    /// The median time from the begin of `command` until all members are in `main` again.
    fn rounds(&self, mut command: impl FnMut() -> Outcome<()> + Send) -> Outcome<Duration> {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            std::thread::sleep(PAUSE);
            let begin = Instant::now();
            // What a command does after the last member is up is not what is measured.
            let time = std::thread::scope(|scope| {
                let commanded = scope.spawn(|| command().map_err(|error| error.to_string()));
                let heard = self.hear().map(|()| begin.elapsed());
                commanded.join().map_err(|_| "the command panicked")??;
                heard
            })?;
            times.push(time);
        }
        Ok(median(&mut times))
    }
}

/// Another supervisor; it is told to end with its value.
struct Supervisor {
    child: Child,
    end: Signal,
}

impl Supervisor {
    /// `None`: it is not installed. `end`: the signal that makes it stop its services and leave.
    fn start(command: &mut Command, end: Signal) -> Outcome<Option<Self>> {
        match command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => Ok(Some(Self { child, end })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // Both fail only for a process that is gone already.
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), self.end);
        }
        let _ = self.child.wait();
    }
}

fn succeed(command: &mut Command) -> Outcome<()> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}
