//! stdio MCP servers: found by what they run, restarted by their clients, and nobody else touched.

use crate::support::{LIMIT, Stack, bare_command, lines_of, lives, shell, signal, skip, wait_until_gone};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::{Write as _, pipe};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

/// Starts the server that its arguments name, and again each time that it ends, or only once.
const CLIENT: &str = "
import signal, subprocess, sys
again, *server = sys.argv[1:]
while True:
    subprocess.Popen(server, stdin=subprocess.PIPE).wait()
    if again != 'again':
        signal.pause()
";
/// Tells its process id when it has come up, and reads what its client says.
const SERVER: &str = "#!/bin/sh\necho $$ > started\nwhile read line; do :; done\n";
/// The same, but it stays when its client is gone.
const CLINGING: &str = "#!/bin/sh\necho $$ > started\nsleep 1000 &\nwait\n";

/// A stack that declares one server, which has a name of its own: the tests beside this one have theirs.
struct World {
    stack: Stack,
    name: String,
}

/// A program that the test runs beside the stack; it is gone at the end.
struct Beside(Child);

impl World {
    fn up(server: &str, agents: impl Fn(&World) -> Value) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tuiml-mcp-{}-{number}", std::process::id());
        let world = Self { stack: Stack::new(&json!([])), name };
        world.install(server);
        fs::write(world.stack.path().join("client.py"), CLIENT).unwrap();
        let servers = json!([{ "name": "tuiml", "match": world.name, "graceMs": 2000 }]);
        let config = json!({ "port": 0, "agents": agents(&world), "stdioServers": servers });
        fs::write(world.stack.config(), config.to_string()).unwrap();
        world.stack.ctl(&["up"]).ok();
        world
    }

    fn program(&self) -> PathBuf {
        self.stack.path().join(&self.name)
    }

    /// Puts the server on disk as an installer does: a new file in the place of the old one.
    fn install(&self, server: &str) {
        let new = self.stack.path().join("new");
        fs::write(&new, server).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(new, self.program()).unwrap();
    }

    /// What a client is started with.
    fn client(&self, again: &str) -> Vec<String> {
        vec!["client.py".to_owned(), again.to_owned(), self.program().to_str().unwrap().to_owned()]
    }

    /// The server itself, for a test that is its client.
    fn server(&self) -> Command {
        let mut command = bare_command(self.program().to_str().unwrap());
        command.current_dir(self.stack.path()).env("HOME", self.stack.path());
        command
    }

    fn client_beside(&self, again: &str) -> Beside {
        let mut command = bare_command("python3");
        Beside::start(command.args(self.client(again)).current_dir(self.stack.path()))
    }

    fn agent(&self, name: &str, control: &str) -> Value {
        let agent = json!({ "name": name, "command": "python3", "args": self.client("once"), "settleMs": 0 });
        let mut agent = agent.as_object().unwrap().clone();
        agent.insert("control".to_owned(), json!(control));
        Value::Object(agent)
    }

    fn servers(&self, filter: &[&str]) -> Vec<Value> {
        let listed = self.stack.json(&[&["servers", "list"], filter].concat());
        listed["servers"].as_array().unwrap().clone()
    }

    fn restart(&self, options: &[&str]) -> Value {
        self.stack.json(&[&["servers", "restart"], options].concat())
    }
}

impl Beside {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }
}

impl Drop for Beside {
    #[expect(clippy::disallowed_methods, reason = "it knows whether its child has been waited for")]
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn number(text: &str) -> u32 {
    text.trim().parse().unwrap()
}

#[test]
fn a_server_that_was_upgraded_is_found_stale_and_started_again_by_its_client() {
    let world = World::up(SERVER, |_| json!([]));
    let started = world.stack.mailbox("started");
    let client = world.client_beside("again");
    let old = number(&started.next());
    let [server] = &world.servers(&[])[..] else { panic!("one server") };
    assert_eq!(
        (&server["name"], &server["pid"], &server["ppid"]),
        (&json!("tuiml"), &json!(old), &json!(client.0.id()))
    );
    assert_eq!(server["client"], json!({ "program": "client.py", "pid": client.0.id(), "agent": null }));
    assert_eq!((&server["stale"], &server["orphaned"]), (&json!(false), &json!(false)));
    assert_eq!(world.servers(&["--stale"]), [Value::Null; 0]);
    // Installed from a package: the file is older than the process, its place on disk is not.
    world.install(SERVER);
    let file = fs::File::options().write(true).open(world.program()).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    // A file that is open to be written cannot be executed.
    drop(file);
    assert_eq!(world.servers(&["--stale"])[0]["pid"], old);
    let restarted = world.restart(&["--stale"]);
    let new = number(&started.next());
    assert_eq!(
        (&restarted["status"], &restarted["killedOther"]),
        (&json!("success"), &json!(1)),
        "{restarted}"
    );
    assert_eq!(
        (&restarted["killed"], &restarted["notRespawned"]),
        (&json!([old]), &json!([])),
        "{restarted}"
    );
    let respawned = &restarted["respawned"][0];
    assert_eq!((&respawned["oldPid"], &respawned["newPid"]), (&json!(old), &json!(new)), "{restarted}");
    assert_eq!(respawned["client"]["pid"], client.0.id());
    assert!(!lives(old) && lives(new));
    assert_eq!(world.servers(&["--stale"]), [Value::Null; 0]);
    let events = world.stack.json(&["events"]);
    let ended = events["events"].as_array().unwrap().iter().find(|event| event["event"] == "server_ended");
    let ended = ended.unwrap();
    assert_eq!((&ended["oldPid"], &ended["pathId"]), (&json!(old), &json!("ctl_restart_servers")));
}

#[test]
fn an_agent_that_does_not_start_its_server_again_is_named_with_the_way_that_helps() {
    let world = World::up(SERVER, |world| json!([world.agent("reviewer", "all")]));
    let started = world.stack.mailbox("started");
    world.stack.ctl(&["start", "reviewer"]).ok();
    let server = number(&started.next());
    let restarted = world.restart(&["tuiml", "--wait", "0.2"]);
    let agent = world.stack.agent("reviewer");
    assert_eq!(restarted["notRespawned"][0]["pid"], server, "{restarted}");
    assert_eq!(
        restarted["notRespawned"][0]["client"],
        json!({ "program": "client.py", "pid": agent.pid, "agent": "reviewer" })
    );
    let note = restarted["note"].as_str().unwrap();
    assert!(note.contains("`mcp-restartctl restart reviewer`") && note.contains("restart_agent"), "{note}");
    // Which is true.
    world.stack.ctl(&["restart", "reviewer"]).ok();
    assert!(lives(number(&started.next())));
}

#[test]
fn what_was_left_behind_by_its_client_is_an_orphan_and_ended_as_such() {
    let world = World::up(CLINGING, |world| {
        // The agent starts the client and lives on without it; its shim takes in what the client leaves.
        let client = world.client("once").join(" ");
        let script = format!("python3 {client} & echo $! > client; exec sleep 1000");
        json!([shell("keeper", &script)])
    });
    let (started, clients) = (world.stack.mailbox("started"), world.stack.mailbox("client"));
    world.stack.ctl(&["start", "keeper"]).ok();
    let (client, server) = (number(&clients.next()), number(&started.next()));
    assert_eq!(world.servers(&["--orphaned"]), [Value::Null; 0]);
    signal(client, Signal::KILL);
    wait_until_gone(client);
    let orphans = world.servers(&["--orphaned"]);
    assert_eq!((&orphans[0]["pid"], &orphans[0]["client"]), (&json!(server), &Value::Null), "{orphans:?}");
    let restarted = world.restart(&["--orphaned"]);
    assert_eq!(
        (&restarted["killed"], &restarted["notRespawned"]),
        (&json!([server]), &json!([])),
        "{restarted}"
    );
    assert!(!lives(server));
    assert_eq!(world.servers(&[]), [Value::Null; 0]);
}

#[test]
fn nothing_that_only_mentions_a_server_is_one() {
    let world = World::up(SERVER, |_| json!([]));
    let program = world.program();
    let program = program.to_str().unwrap();
    let (name, folder) = (&*world.name, world.stack.path());
    let editor = format!("print('ready', flush=True); input() # {name}");
    fs::write(folder.join("editor.py"), &editor).unwrap();
    fs::write(folder.join("text"), format!("{name}\n")).unwrap();
    let command_line = format!("echo ready; read line; {program}");
    let pager = format!("less {program}");
    let mut beside = Vec::new();
    for (command, arguments) in [
        ("tail", vec!["-f", program]),
        ("grep", vec!["--line-buffered", "-h", name, "text", "-"]),
        ("sh", vec!["-c", &command_line]),
        ("bash", vec!["-c", "echo ready; read line; true", name]),
        ("python3", vec!["editor.py", program]),
        ("python3", vec!["-c", &editor, name]),
        ("vim", vec!["-e", "-s", "-u", "NONE", "-c", "set verbose=1 | echo 'ready'", program]),
        ("script", vec!["-q", "-c", &pager, "/dev/null"]),
    ] {
        let (reader, writer) = pipe().unwrap();
        let mut program = bare_command(command);
        program.args(&arguments).current_dir(folder).env("TERM", "xterm").stdin(Stdio::piped());
        let Ok(child) = program.stdout(writer.try_clone().unwrap()).stderr(writer).spawn() else {
            skip(&format!("there is no {command}"));
            continue;
        };
        let lines = lines_of(reader);
        assert!(lines.recv_timeout(LIMIT).is_ok(), "{command} says nothing");
        beside.push((Beside(child), lines));
    }
    assert_eq!(world.servers(&[]), [Value::Null; 0]);
    let restarted = world.restart(&["--all", "--wait", "0"]);
    assert_eq!((&restarted["killed"], &restarted["failed"]), (&json!([]), &json!([])));
    for (Beside(child), _) in &beside {
        assert!(lives(child.id()), "{child:?}");
    }
}

#[test]
fn an_agent_reaches_the_servers_that_its_control_allows() {
    let world =
        World::up(SERVER, |world| json!([world.agent("narrow", "self"), world.agent("reader", "none")]));
    let started = world.stack.mailbox("started");
    world.stack.ctl(&["start", "narrow"]).ok();
    let own = number(&started.next());
    world.stack.ctl(&["start", "reader"]).ok();
    let other = number(&started.next());
    let call = |agent: &str, tool: &str, arguments: Value| {
        let (token, _) = world.stack.wiring(agent);
        world.stack.call(Some(&token), tool, &arguments)
    };
    // Reading is for everybody.
    let listed = call("reader", "list_stdio_servers", json!({}));
    assert_eq!(listed["structuredContent"]["servers"].as_array().unwrap().len(), 2, "{listed}");
    let (token, _) = world.stack.wiring("reader");
    assert_eq!(world.stack.refusal(Some(&token), "restart_stdio_servers", &json!({})), "not_allowed");
    let restarted = call("narrow", "restart_stdio_servers", json!({ "respawnWaitMs": 0 }));
    let restarted = &restarted["structuredContent"];
    assert_eq!(restarted["killed"], json!([own]), "{restarted}");
    assert!(restarted["note"].as_str().unwrap().contains("Left alone: 1 server"), "{restarted}");
    assert!(!lives(own) && lives(other));
}

#[test]
fn a_dry_run_touches_nothing_and_a_name_that_is_not_declared_is_refused() {
    let world = World::up(SERVER, |_| json!([]));
    let started = world.stack.mailbox("started");
    let _client = world.client_beside("once");
    let server = number(&started.next());
    let told = world.restart(&["--all", "--dry-run"]);
    assert_eq!((&told["status"], &told["killed"]), (&json!("dry_run"), &json!([])));
    assert!(told["note"].as_str().unwrap().contains(&format!("tuiml (pid {server})")), "{told}");
    assert!(lives(server));
    let refused = world.stack.ctl(&["servers", "restart", "nobody"]).failed(2, "has no \"nobody\"");
    assert!(refused.stderr.contains("the names there are: tuiml"), "{refused:?}");
    world.stack.ctl(&["servers", "restart"]).failed(2, "restart which servers?");
    let arguments = json!({ "names": ["nobody"] });
    assert_eq!(world.stack.refusal(None, "restart_stdio_servers", &arguments), "invalid_argument");
}

#[test]
fn a_server_is_left_out_of_its_own_request_unless_it_says_otherwise() {
    let ctl = env!("CARGO_BIN_EXE_mcp-restartctl");
    let server = |options: &str| {
        format!(
            "#!/bin/sh\n\
             read line\n\
             '{ctl}' --config mcp-restart.config.json --state-dir state --json servers restart --all --wait 0 {options} > answer\n\
             echo $$ > started\n\
             while read line; do :; done\n"
        )
    };
    let world = World::up(&server(""), |_| json!([]));
    let started = world.stack.mailbox("started");
    let ask = || {
        let mut server = Beside::start(&mut world.server());
        server.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        assert_eq!(number(&started.next()), server.0.id());
        let answer = fs::read_to_string(world.stack.path().join("answer")).unwrap();
        (server, serde_json::from_str::<Value>(&answer).unwrap())
    };
    let (left_out, answer) = ask();
    assert_eq!((&answer["selfExitScheduled"], &answer["killed"]), (&json!(false), &json!([])), "{answer}");
    assert!(answer["note"].as_str().unwrap().contains("left out"), "{answer}");
    assert!(lives(left_out.0.id()));
    drop(left_out);
    world.install(&server("--include-self"));
    let (ended, answer) = ask();
    assert_eq!((&answer["selfExitScheduled"], &answer["killed"]), (&json!(true), &json!([])), "{answer}");
    wait_until_gone(ended.0.id());
}

#[test]
fn a_server_that_ends_itself_over_http_gets_its_answer_first() {
    let server = "#!/usr/bin/python3
import os, signal, sys, urllib.request
body = b'{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"restart_stdio_servers\",\
\"arguments\":{\"includeSelf\":true,\"respawnWaitMs\":0,\"selfDelayMs\":1000}}}'
headers = {'Content-Type': 'application/json', 'Accept': 'application/json, text/event-stream'}
answer = urllib.request.urlopen(urllib.request.Request(sys.argv[1], body, headers)).read()
with open('answer', 'wb') as file:
    file.write(answer)
with open('started', 'w') as file:
    print(os.getpid(), file=file)
signal.pause()
";
    let world = World::up(server, |_| json!([]));
    let started = world.stack.mailbox("started");
    let url = world.stack.json(&["status"])["url"].as_str().unwrap().to_owned();
    let server = Beside::start(world.server().arg(url));
    assert_eq!(number(&started.next()), server.0.id());
    let answer: Value =
        serde_json::from_slice(&fs::read(world.stack.path().join("answer")).unwrap()).unwrap();
    let answer = &answer["result"]["structuredContent"];
    assert_eq!((&answer["selfExitScheduled"], &answer["killed"]), (&json!(true), &json!([])), "{answer}");
    wait_until_gone(server.0.id());
}
