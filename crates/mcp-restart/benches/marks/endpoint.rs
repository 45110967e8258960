//! The marks of the MCP endpoint: how fast `list_agents` is, what the bridge holds, how soon it is there.

use crate::http::{self, Client};
use crate::stack::{Other, Stack};
use crate::{NAME, Outcome, bare, median, proc};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

/// As many callers at the same time; one alone waits for each answer's whole way.
const CONNECTIONS: [usize; 2] = [1, 8];
const ROUNDS: usize = 5;
const REQUESTS: u32 = 2000;
/// After as many calls the bridge may not have grown.
const MANY: u32 = 100_000;
const STARTS: usize = 30;
/// How long a bridge may take to be there before the bench gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// All of them, against the bridge of `stack` and bridges beside it.
pub(crate) fn measure(stack: &Stack) -> Outcome<()> {
    memory(stack)?;
    start(stack)?;
    latency(stack)?;
    rate(stack)
}

/// The bridge before its first request, and after many.
fn memory(stack: &Stack) -> Outcome<()> {
    let [_, bridge] = stack.servers()?;
    let idle = proc::resident_kib(&[bridge])?;
    http::rate(&mut clients(stack, 8)?, MANY)?;
    let used = proc::resident_kib(&[bridge])?;
    println!("bridge, idle        {:.1} MB resident (mark: under 6)", megabytes(idle));
    println!("                    {:.1} MB after {MANY} calls (mark: under 8)", megabytes(used));
    Ok(())
}

/// From the start of the program to its first `list_agents`, a running daemon behind it.
fn start(stack: &Stack) -> Outcome<()> {
    let token = stack.agent_token(NAME)?;
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let url = format!("http://127.0.0.1:{port}/mcp");
        let config = stack.config_with_port(port)?;
        let begin = Instant::now();
        let bridge = stack.another_bridge(&config)?;
        while let Err(error) = Client::connect(&url, Some(&token)) {
            if begin.elapsed() > PATIENCE {
                return Err(error);
            }
        }
        times.push(begin.elapsed());
        drop(bridge);
    }
    println!("bridge, start       {:?} to its first answer (mark: under 10 ms)", median(&mut times));
    Ok(())
}

/// One caller that waits for each answer: the whole way, and a server of rmcp that has the answer at hand.
fn latency(stack: &Stack) -> Outcome<()> {
    let mut bridge = Client::connect(&stack.url()?, Some(&stack.agent_token(NAME)?))?;
    let other =
        Other::start(&std::env::current_exe()?, &[bare::SERVER.as_ref(), bridge.structured()?.as_ref()])?;
    let mut bare = Client::connect(&other.url, None)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bridge.times(REQUESTS, &mut ours)?;
        bare.times(REQUESTS, &mut theirs)?;
    }
    let (ours, theirs) = (median(&mut ours), median(&mut theirs));
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    println!(
        "list_agents by MCP  {ours:?}, {ratio:.1} times a bare server of rmcp, {theirs:?} (mark: at most 3)"
    );
    Ok(())
}

/// Over connections that are kept alive: the bridge, and the TypeScript SDK's stateless server.
fn rate(stack: &Stack) -> Outcome<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/proofs/clients/stateless.mjs");
    if !script.exists() {
        println!(
            "                    no comparison with the TypeScript SDK before tests/clients/run.py has run"
        );
        return Ok(());
    }
    let other = Other::start("node".as_ref(), &[script.as_os_str()])?;
    for connections in CONNECTIONS {
        let mut bridge = clients(stack, connections)?;
        let mut typescript: Vec<Client> =
            (0..connections).map(|_| Client::connect(&other.url, None)).collect::<Outcome<_>>()?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(http::rate(&mut bridge, REQUESTS)?);
            theirs.push(http::rate(&mut typescript, REQUESTS)?);
        }
        let (ours, theirs) = (median(&mut ours), median(&mut theirs));
        let ratio = ours / theirs;
        println!(
            "                    {ours:.0} requests/s over {connections} connections, {ratio:.1} times the TypeScript \
             SDK's {theirs:.0} (mark: at least 10)"
        );
    }
    Ok(())
}

fn clients(stack: &Stack, connections: usize) -> Outcome<Vec<Client>> {
    let (url, token) = (stack.url()?, stack.agent_token(NAME)?);
    (0..connections).map(|_| Client::connect(&url, Some(&token))).collect()
}

fn megabytes(kib: u64) -> f64 {
    kib as f64 * 1024.0 / 1e6
}
