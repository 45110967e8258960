//! A stack of the real programs in a folder of its own.

use mcp_restart_protocol::agent::AgentView;
use mcp_restart_protocol::answer::ServerBody;
use mcp_restart_protocol::client::Client;
use mcp_restart_protocol::request::{Credential, Request};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::{Value, json};
use std::fmt::Debug;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Nothing here takes as long on a machine that works.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A user to whom nothing belongs.
pub(crate) const NOBODY: u32 = 65_534;

/// A daemon with its endpoint, and everything of it gone at the end.
pub(crate) struct Stack {
    /// Holds config and state dir; the agents' working directory.
    pub(crate) dir: tempfile::TempDir,
    /// Whose programs they are, if not those of whoever runs the tests.
    user: Option<u32>,
}

/// What a run of `mcp-restartctl` gave.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Stack {
    /// A folder with this config; nothing runs yet.
    pub(crate) fn new(agents: &Value) -> Self {
        let stack = Self { dir: tempfile::tempdir().unwrap(), user: None };
        stack.write_config(agents);
        stack
    }

    /// The same with the daemon up and its endpoint listening.
    pub(crate) fn up(agents: &Value) -> Self {
        let stack = Self::new(agents);
        stack.ctl(&["up"]).ok();
        stack
    }

    /// The same with everything run by a user who is not root, and to whom much is refused; none if that cannot
    /// be.
    pub(crate) fn up_unprivileged(agents: &Value) -> Option<Self> {
        let user = rustix::process::geteuid().is_root().then_some(NOBODY);
        let stack = Self { dir: tempfile::tempdir().unwrap(), user };
        stack.write_config(agents);
        chown(stack.path(), user, user).ok()?;
        let run = stack.command(env!("CARGO_BIN_EXE_mcp-restartctl")).arg("up").output();
        // The programs may lie in a folder that others may not enter.
        run.is_ok_and(|run| run.status.success()).then_some(stack)
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.path().join("mcp-restart.config.json")
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.path().join("state")
    }

    pub(crate) fn write_config(&self, agents: &Value) {
        let text = format!("{:#}", json!({ "port": 0, "agents": agents }));
        fs::write(self.config(), text).unwrap();
        chown(self.config(), self.user, self.user).unwrap();
    }

    /// A program of ours, in this stack and in an environment that holds nothing of the machine's.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = self.as_user(program);
        command
            .current_dir(self.path())
            .env("HOME", self.path())
            .arg("--config")
            .arg(self.config())
            .arg("--state-dir")
            .arg(self.state_dir());
        command
    }

    /// Some other program, run by the same user.
    pub(crate) fn as_user(&self, program: &str) -> Command {
        let mut command = bare_command(program);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    pub(crate) fn ctl(&self, arguments: &[&str]) -> Run {
        let mut command = self.command(env!("CARGO_BIN_EXE_mcp-restartctl"));
        Run::of(command.args(arguments).output().unwrap())
    }

    /// The JSON that a command prints with `--json`.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let arguments = [&["--json"], arguments].concat();
        serde_json::from_str(&self.ctl(&arguments).ok().stdout).unwrap()
    }

    pub(crate) fn agent(&self, name: &str) -> AgentView {
        self.wait_for(name, |_| true)
    }

    /// Waits until the daemon publishes that an agent is so.
    pub(crate) fn wait_for(&self, name: &str, so: impl Fn(&AgentView) -> bool) -> AgentView {
        let socket = self.state_dir().join("mcp-restartd.sock");
        block_on(async {
            let mut client = Client::connect(&socket, Credential::Peer).await.unwrap();
            client.send(Request::Subscribe).await.unwrap();
            loop {
                match client.next().await.unwrap() {
                    ServerBody::Event(event) if event.agent.name == name && so(&event.agent) => {
                        return event.agent;
                    }
                    ServerBody::Event(_) => {}
                    other => panic!("{other:?} for an event"),
                }
            }
        })
    }

    /// A named pipe in the folder of the stack, by which agents tell the test what they have come to.
    pub(crate) fn mailbox(&self, name: &str) -> Mailbox {
        Mailbox { lines: lines_of(self.pipe(name)) }
    }

    /// A named pipe in the folder of the stack, from which agents read what the test writes.
    pub(crate) fn pipe(&self, name: &str) -> fs::File {
        let path = self.path().join(name);
        assert!(bare_command("mkfifo").arg(&path).status().unwrap().success());
        // Open both ways, so that it neither blocks nor ends with who is at its other end.
        fs::File::options().read(true).write(true).open(path).unwrap()
    }

    /// Kills the daemon and waits until it is gone; its agents run on.
    pub(crate) fn kill_daemon(&self) {
        let pid = self.daemon_pid();
        signal(pid, Signal::KILL);
        wait_until_gone(pid);
    }

    pub(crate) fn daemon_pid(&self) -> u32 {
        let status = self.json(&["status"]);
        u32::try_from(status["pid"].as_u64().unwrap()).unwrap()
    }

    /// The processes from which the daemon has its shims forked.
    pub(crate) fn fork_servers(&self) -> Vec<u32> {
        self.children("comm", |name| name == "mcp-shim-fork\n")
    }

    /// The shims of the daemon, those that wait for their launch included.
    pub(crate) fn shims(&self) -> Vec<u32> {
        self.children("cmdline", |line| line.contains("\0--id\0") && !line.contains("\0--id\0-"))
    }

    /// The children of the daemon of which the kernel tells this.
    fn children(&self, file: &str, so: impl Fn(&str) -> bool) -> Vec<u32> {
        let pid = self.daemon_pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let told = |pid: u32| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let children = children.split_whitespace().map(|pid| pid.parse().unwrap());
        children.filter(|pid| so(&told(*pid))).collect()
    }

    /// The token and the URL that an agent is wired in with.
    pub(crate) fn wiring(&self, name: &str) -> (String, String) {
        let config: Value = serde_json::from_str(&self.ctl(&["mcp-config", name]).ok().stdout).unwrap();
        let server = &config["mcpServers"]["restart"];
        let authorization = server["headers"]["Authorization"].as_str().unwrap();
        (authorization.trim_start_matches("Bearer ").to_owned(), server["url"].as_str().unwrap().to_owned())
    }

    /// Calls a tool as an agent does; gives the whole `result`.
    pub(crate) fn call(&self, token: Option<&str>, tool: &str, arguments: &Value) -> Value {
        let url = self.json(&["status"])["url"].as_str().unwrap().to_owned();
        let params = json!({ "name": tool, "arguments": arguments });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let (status, text) = post(&url, token, &body.to_string());
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        answer.get("result").unwrap_or_else(|| panic!("{answer}")).clone()
    }

    /// The code of a tool call that is refused.
    pub(crate) fn refusal(&self, token: Option<&str>, tool: &str, arguments: &Value) -> String {
        let result = self.call(token, tool, arguments);
        assert_eq!(result["isError"], true, "{result}");
        assert!(result.get("structuredContent").is_none(), "{result}");
        let error: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        error["error"]["code"].as_str().unwrap().to_owned()
    }
}

/// See [`Stack::mailbox`].
pub(crate) struct Mailbox {
    lines: mpsc::Receiver<String>,
}

impl Mailbox {
    /// The next line that somebody writes.
    pub(crate) fn next(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("nobody writes")
    }
}

/// A daemon in the foreground, as a service manager runs it.
pub(crate) struct Daemon {
    program: Child,
    lines: mpsc::Receiver<String>,
}

impl Daemon {
    /// The daemon of a stack. It may not serve yet.
    pub(crate) fn of(stack: &Stack) -> Self {
        Self::started(stack.command(env!("CARGO_BIN_EXE_mcp-restartd")))
    }

    /// The daemon that a command becomes.
    pub(crate) fn started(mut command: Command) -> Self {
        let mut program = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(program.stderr.take().unwrap());
        Self { program, lines }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.program.id()
    }

    /// Waits until it says these words; none when it ends without.
    pub(crate) fn line(&self, words: &str) -> Option<String> {
        loop {
            match self.lines.recv_timeout(LIMIT) {
                Ok(line) if line.contains(words) => return Some(line),
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("nobody says {words:?}"),
            }
        }
    }

    /// Waits until it has ended.
    pub(crate) fn end(mut self) -> ExitStatus {
        wait_until_gone(self.pid());
        self.program.wait().unwrap()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if self.state_dir().join("mcp-restartd.sock").exists() {
            let run = self.ctl(&["down"]);
            assert!(run.code == 0 || std::thread::panicking(), "down: {run:?}");
        }
    }
}

impl Run {
    pub(crate) fn of(output: Output) -> Self {
        let Output { status, stdout, stderr } = output;
        Self {
            code: status.code().unwrap_or(-1),
            stdout: String::from_utf8(stdout).unwrap(),
            stderr: String::from_utf8(stderr).unwrap(),
        }
    }

    /// The same, which must have succeeded.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// The same, which must have failed like this and have said so in one line each.
    pub(crate) fn failed(self, code: i32, message: &str) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.stderr.contains(message), "{message:?} is not in {self:?}");
        let errors = self.stderr.lines().filter(|line| line.starts_with("error: "));
        assert_eq!(errors.count(), 1, "{self:?}");
        self
    }
}

/// A program in an environment that holds nothing of the machine's.
#[expect(clippy::disallowed_methods, reason = "the tests start the programs as a user does")]
pub(crate) fn bare_command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").stdin(Stdio::null());
    command
}

/// Says that something could not be tested here, past whatever captures the output of tests that succeed.
pub(crate) fn skip(why: &str) {
    let test = std::thread::current();
    let _ = writeln!(std::io::stderr(), "SKIPPED {}: {why}", test.name().unwrap_or_default());
}

/// An entry that runs this `sh` script.
pub(crate) fn shell(name: &str, script: &str) -> Value {
    json!({ "name": name, "command": "sh", "args": ["-c", script], "settleMs": 0, "selfRestartDelayMs": 50 })
}

/// An agent that runs until it is told to end.
pub(crate) fn sleeper(name: &str) -> Value {
    shell(name, "exec sleep 1000")
}

/// An agent that tells `ready` when it has come up, and `asked` when it is asked to end; then it waits for a
/// line in `go`.
pub(crate) fn patient(name: &str) -> Value {
    let script =
        "trap 'echo > asked; read word < go; exit 0' TERM; echo > ready; while :; do sleep 0.01; done";
    let mut entry = shell(name, script);
    entry["gracefulTimeoutMs"] = json!(LIMIT.as_millis());
    entry
}

/// One HTTP POST of JSON; the status and the body.
pub(crate) fn post(url: &str, token: Option<&str>, body: &str) -> (u16, String) {
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let length = body.len();
    let headers = format!(
        "{authorization}Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
         MCP-Protocol-Version: 2025-06-18\r\nContent-Length: {length}\r\n"
    );
    request(url, "POST", &headers, body)
}

/// One HTTP request; the status and the body.
pub(crate) fn request(url: &str, method: &str, headers: &str, body: &str) -> (u16, String) {
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "{method} /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n{body}")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A word that no other test has, by which processes are found with [`marked`].
pub(crate) fn new_mark() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The processes, zombies aside, that have this assignment in their environment.
pub(crate) fn marked(assignment: &str) -> Vec<u32> {
    let has = |pid: &u32| {
        environment(*pid).split(|byte| *byte == 0).any(|variable| variable == assignment.as_bytes())
    };
    let pids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(has).collect()
}

/// What a process was started with, read by one call, since another may be about another program. In the middle of its exec
/// it shows none for a part of a millisecond; a zombie, which has no program, never does.
fn environment(pid: u32) -> Vec<u8> {
    let mut buffer = vec![0; 256 * 1024];
    for _ in 0..200 {
        let file = fs::File::open(format!("/proc/{pid}/environ"));
        let read = file.and_then(|mut file| file.read(&mut buffer)).unwrap_or(0);
        if read > 0 || fs::read_link(format!("/proc/{pid}/exe")).is_err() {
            buffer.truncate(read);
            return buffer;
        }
        thread::yield_now();
    }
    Vec::new()
}

/// Looks again until it is so, for what comes by itself and nobody tells of: a descriptor that is being closed, a
/// process that is being reaped.
pub(crate) fn look_until<T: Debug>(look: impl Fn() -> T, so: impl Fn(&T) -> bool) {
    let begin = Instant::now();
    loop {
        let seen = look();
        if so(&seen) {
            return;
        }
        assert!(begin.elapsed() < LIMIT, "it stays {seen:?}");
        thread::yield_now();
    }
}

/// How many descriptors a process has open.
pub(crate) fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Sends a signal to a process.
#[expect(clippy::disallowed_methods, reason = "the tests kill what they watch")]
pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(pid_of(pid), signal).unwrap();
}

/// Waits until a process has ended.
pub(crate) fn wait_until_gone(pid: u32) {
    let Ok(process) = pidfd_open(pid_of(pid), PidfdFlags::empty()) else { return };
    let limit = LIMIT.try_into().unwrap();
    let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(ended, 1, "process {pid} does not end");
}

fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

/// The lines that come from there.
pub(crate) fn lines_of(source: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(source).lines().map_while(Result::ok);
        // It ends too when nobody wants to know any more.
        lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
    });
    lines
}

/// The parent of a process.
pub(crate) fn parent_of(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    status.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Whether a process lives; a zombie does not.
pub(crate) fn lives(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Runs a future that ends in time.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LIMIT, future).await.expect("it takes too long") })
}
