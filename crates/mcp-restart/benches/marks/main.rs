//! The marks of this project, as ratios of one run on one machine: `cargo bench -p mcp-restart --bench marks`.
//!
//! The comparison with the TypeScript SDK needs its packages, which `tests/clients/run.py` installs, and the one with
//! other supervisors those that are to be found on PATH: runit (`runsvdir`), s6 (`s6-svscan`), `supervisord`.

#![expect(clippy::print_stdout, reason = "what was measured is what this program is for")]
#![expect(clippy::disallowed_methods, reason = "a bench starts the programs as a user would")]
#![expect(clippy::cast_precision_loss, reason = "the figures are far from 2^52")]

mod bare;
mod endpoint;
mod http;
mod many;
mod proc;
mod stack;

use serde_json::json;
use stack::Stack;
use std::error::Error;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What everything here fails with: a bench has nobody who could act on a kind.
type Outcome<T> = Result<T, Box<dyn Error>>;

const RESTARTS: usize = 300;
const LISTS: usize = 300;
/// How long the last request has to be over before the servers count as idle.
const CALM: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(10);
/// An agent that has filled a screen of 50 rows and 200 columns, if it has one.
const FILL: &str = "stty rows 50 cols 200 2>/dev/null; yes 0123456789 | head -c 20000; exec sleep 1000";
/// The argument that makes this program the agent of the bench.
const AGENT: &str = "agent";
/// The name of the one agent.
const NAME: &str = "worker";

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some(AGENT) => return agent(),
        Some(bare::SERVER) => return bare::serve(words.next().as_deref()),
        Some(many::MEMBER) => return many::member(words.next().as_deref()),
        _ => {}
    }
    let entry = json!({ "name": NAME, "command": std::env::current_exe()?, "args": [AGENT], "settleMs": 0 });
    let stack = Stack::up(&[entry])?;
    restart(&stack)?;
    list(&stack)?;
    idle(&stack)?;
    endpoint::measure(&stack)?;
    drop(stack);
    shim_memory()?;
    many::restart()
}

/// Says that it is in `main`, then waits for the signal that ends it.
fn agent() -> Outcome<()> {
    let mut stdout = std::io::stdout();
    stdout.write_all(b"up\n")?;
    stdout.flush()?;
    loop {
        std::thread::park();
    }
}

/// A restart by command against what the system needs for one: kill, wait, spawn, and the new process in `main`.
fn restart(stack: &Stack) -> Outcome<()> {
    let mut child = bare_agent()?;
    let mut floor = Vec::new();
    let mut ours = Vec::new();
    for _ in 0..RESTARTS {
        let begin = Instant::now();
        child.kill()?;
        child.wait()?;
        child = bare_agent()?;
        floor.push(begin.elapsed());

        let begin = Instant::now();
        stack.ctl(&["restart", NAME])?;
        ours.push(begin.elapsed());
    }
    child.kill()?;
    child.wait()?;
    let (floor, ours) = (median(&mut floor), median(&mut ours));
    let ratio = ours.as_secs_f64() / floor.as_secs_f64();
    println!("restart by command  {ours:?}, {ratio:.2} times the floor of {floor:?} (mark: at most 5)");
    Ok(())
}

/// The agent without any supervisor, from the moment on at which it is in `main`.
fn bare_agent() -> Outcome<Child> {
    let mut child = Command::new(std::env::current_exe()?).arg(AGENT).stdout(Stdio::piped()).spawn()?;
    if let Some(stdout) = &mut child.stdout {
        stdout.read_exact(&mut [0; 3])?;
    }
    Ok(child)
}

fn list(stack: &Stack) -> Outcome<()> {
    let mut times = Vec::new();
    for _ in 0..LISTS {
        let begin = Instant::now();
        stack.ctl(&["list"])?;
        times.push(begin.elapsed());
    }
    println!("list by command     {:?} (mark: under 5 ms)", median(&mut times));
    Ok(())
}

/// Daemon and bridge while nobody asks anything of them, with one agent that runs.
fn idle(stack: &Stack) -> Outcome<()> {
    let servers = stack.servers()?;
    std::thread::sleep(CALM);
    let before = proc::switches(&servers)?;
    std::thread::sleep(IDLE);
    let woken = proc::switches(&servers)? - before;
    let resident = proc::resident_kib(&servers)?;
    println!("idle, daemon+bridge {:.1} MiB resident (mark: under 12 MB)", resident as f64 / 1024.0);
    println!("                    {woken} wake-ups in {IDLE:?} (mark: 0)");
    Ok(())
}

/// What one more agent costs: its shim, without a terminal and with one of 50 rows and 200 columns.
fn shim_memory() -> Outcome<()> {
    for (tty, mark) in [(false, 1), (true, 2)] {
        let stack =
            Stack::up(&[json!({ "name": NAME, "command": "/bin/sh", "args": ["-c", FILL], "tty": tty })])?;
        let private = proc::private_kib(stack.shim()?)?;
        let what = if tty { "with terminal" } else { "memory" };
        println!("shim, {what:<13} {:.2} MiB private (mark: at most {mark} MB)", private as f64 / 1024.0);
    }
    Ok(())
}

fn median<T: PartialOrd + Copy + Default>(values: &mut [T]) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    values.get(values.len() / 2).copied().unwrap_or_default()
}
