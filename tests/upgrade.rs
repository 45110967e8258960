//! Another program in the daemon's place: agents, endpoint and exit statuses stay, and whatever goes wrong is
//! recoverable.

use crate::support::{
    Daemon, LIMIT, Run, Stack, lives, patient, post, shell, signal, sleeper, wait_until_gone,
};
use mcp_restart_protocol::agent::{AgentState, AgentView};
use mcp_restart_protocol::hello::{HELLO_LEN, Hello, PROTOCOL, Verb};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;

const PROGRAMS: [&str; 3] = [
    env!("CARGO_BIN_EXE_mcp-restartd"),
    env!("CARGO_BIN_EXE_mcp-restart-http"),
    env!("CARGO_BIN_EXE_mcp-restartctl"),
];

/// A stack whose programs are installed in a folder of its own, where they can be replaced.
struct House {
    stack: Stack,
}

impl House {
    fn up(agents: &Value) -> Self {
        let house = Self { stack: Stack::new(agents) };
        fs::create_dir(house.bin("")).unwrap();
        for program in PROGRAMS {
            house.install(Path::new(program));
        }
        house.ctl(&["up"]).ok();
        house
    }

    fn bin(&self, name: &str) -> PathBuf {
        self.stack.path().join("bin").join(name)
    }

    fn daemon_program(&self) -> PathBuf {
        self.bin("mcp-restartd")
    }

    fn install(&self, program: &Path) {
        let new = self.bin("new");
        // Not across file systems.
        if fs::hard_link(program, &new).is_err() {
            fs::copy(program, &new).unwrap();
        }
        fs::rename(new, self.bin(program.file_name().unwrap().to_str().unwrap())).unwrap();
    }

    /// A script in the place of the daemon's program; `$check` says whether it is only asked, and `accept` answers
    /// that as a daemon's program does.
    fn install_script(&self, script: &str) {
        let head = "case \"$*\" in *--check*) check=yes;; esac\n\
                    accept() { echo 'mcp-restartd 9.9.9 accepts /c and /s'; exit; }\n";
        self.write_program("mcp-restartd", &format!("{head}{script}"));
    }

    fn write_program(&self, name: &str, script: &str) {
        let new = self.bin("new");
        fs::write(&new, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&new, Permissions::from_mode(0o755)).unwrap();
        fs::rename(new, self.bin(name)).unwrap();
    }

    fn ctl(&self, arguments: &[&str]) -> Run {
        let mut command = self.stack.command(self.bin("mcp-restartctl").to_str().unwrap());
        Run::of(command.args(arguments).output().unwrap())
    }

    fn socket(&self) -> PathBuf {
        self.stack.state_dir().join("mcp-restartd.sock")
    }

    /// The agents' processes, and nothing that may change while they run.
    fn agents(&self, names: &[&str]) -> Vec<(AgentState, Option<u32>, u64)> {
        let views = names.iter().map(|name| self.stack.agent(name));
        views.map(|AgentView { state, pid, generation, .. }| (state, pid, generation)).collect()
    }
}

/// Whoever asks for an upgrade, word by word.
struct Asker {
    stream: UnixStream,
}

impl Asker {
    fn of(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let hello = Hello { protocol: PROTOCOL + 7, verb: Verb::Upgrade, version: "9.9.9".into() };
        stream.write_all(&hello.to_bytes()).unwrap();
        stream.read_exact(&mut [0; HELLO_LEN]).unwrap();
        let mut asker = Self { stream };
        let offer = asker.say(&json!({ "path": "ctl_upgrade" }));
        assert!(offer["program"].is_string(), "{offer}");
        asker
    }

    fn say(&mut self, text: &Value) -> Value {
        write_text(&mut self.stream, text);
        read_text(&mut self.stream)
    }

    fn have_it_leave(&mut self) {
        assert_eq!(self.say(&json!({ "leave": true })), json!({ "leaving": true }));
    }

    fn wait_until_gone(mut self) {
        assert_eq!(self.stream.read(&mut [0]).unwrap(), 0);
    }
}

fn write_text(stream: &mut UnixStream, text: &Value) {
    let text = text.to_string();
    stream.write_all(&u32::try_from(text.len()).unwrap().to_le_bytes()).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
}

fn read_text(stream: &mut UnixStream) -> Value {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut text = vec![0; usize::try_from(u32::from_le_bytes(length)).unwrap()];
    stream.read_exact(&mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// The codes of tool calls that are made one after the other until `enough` is heard; `ok` for those that succeed.
fn call_until(url: &str, enough: &mpsc::Receiver<()>) -> Vec<String> {
    let params = json!({ "name": "list_agents", "arguments": {} });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
    let mut codes = Vec::new();
    while enough.try_recv().is_err() {
        let (status, text) = post(url, None, &body);
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        let content: Value = serde_json::from_str(text).unwrap();
        codes.push(content["error"]["code"].as_str().unwrap_or("ok").to_owned());
    }
    codes
}

#[test]
fn an_upgrade_changes_the_daemon_and_nothing_else() {
    let mut terminal = shell("terminal", "exec sleep 1000");
    terminal["tty"] = json!(true);
    let talker = shell("talker", "read word < go; echo heard $word; echo > said; exec sleep 1000");
    let house = House::up(&json!([sleeper("a"), terminal, talker, sleeper("b")]));
    let (stack, names) = (&house.stack, ["a", "terminal", "talker", "b"]);
    let (said, mut go) = (stack.mailbox("said"), stack.pipe("go"));
    house.ctl(&["start", "a", "terminal", "talker"]).ok();
    let (before, old) = (house.agents(&names), stack.daemon_pid());
    let url = stack.json(&["status"])["url"].as_str().unwrap().to_owned();

    let (stop, enough) = mpsc::channel();
    let calls = {
        let url = url.clone();
        std::thread::spawn(move || call_until(&url, &enough))
    };
    assert_eq!(stack.json(&["status"])["staleShims"], json!([]));
    // A link to the same file would be no other program.
    fs::copy(PROGRAMS[0], house.bin("new")).unwrap();
    fs::rename(house.bin("new"), house.bin("mcp-restartd")).unwrap();
    let run = house.ctl(&["--json", "upgrade"]).ok();
    let upgraded: Value = serde_json::from_str(&run.stdout).unwrap();
    stop.send(()).unwrap();
    let codes = calls.join().unwrap();

    assert_eq!(house.agents(&names), before);
    assert_ne!(stack.daemon_pid(), old);
    assert!(!lives(old));
    assert_eq!(upgraded["previous"]["pid"], old);
    assert_eq!(upgraded["daemon"]["pid"], stack.daemon_pid());
    assert_eq!(upgraded["adopted"], json!(["a", "terminal", "talker"]));
    assert_eq!(upgraded["needRestart"], json!([]));
    // Nobody was refused a connection, and it went on: at the same place.
    assert!(codes.iter().all(|code| ["ok", "daemon_unavailable"].contains(&&**code)), "{codes:?}");
    assert_eq!(stack.json(&["status"])["url"], url);
    assert_eq!(stack.call(None, "list_agents", &json!({}))["isError"], false);
    let events = stack.json(&["events"]);
    let told = |event: &str| events["events"].as_array().unwrap().iter().find(|line| line["event"] == event);
    assert_eq!(told("requested").unwrap()["pathId"], "ctl_start");
    let asked =
        events["events"].as_array().unwrap().iter().find(|line| line["pathId"] == "ctl_upgrade").unwrap();
    assert_eq!((&asked["event"], &asked["outcome"]), (&json!("requested"), &json!("accepted")));
    assert_eq!(told("daemon_made_way").unwrap()["oldPid"], old);
    // Their shims are of the daemon before, until each is restarted.
    assert_eq!(stack.json(&["status"])["staleShims"], json!(["a", "talker", "terminal"]));
    house.ctl(&["restart", "a"]).ok();
    assert_eq!(stack.json(&["status"])["staleShims"], json!(["talker", "terminal"]));

    writeln!(go, "on").unwrap();
    said.next();
    assert!(house.ctl(&["logs", "talker"]).ok().stdout.contains("heard on"));
    house.ctl(&["stop", "--all"]).ok();
    house.ctl(&["start", "b"]).ok();
}

#[test]
fn a_bridge_whose_program_was_replaced_is_replaced_on_its_socket() {
    let house = House::up(&json!([]));
    let bridge = || -> Value {
        serde_json::from_slice(&fs::read(house.stack.state_dir().join("bridge.json")).unwrap()).unwrap()
    };
    let before = bridge();
    let (path, new) = (house.bin("mcp-restart-http"), house.bin("new"));
    fs::copy(&path, &new).unwrap();
    fs::rename(new, path).unwrap();
    let stale = house.stack.json(&["status"])["stale"].as_str().unwrap().to_owned();
    assert!(stale.contains("mcp-restart-http was replaced"), "{stale}");
    house.ctl(&["upgrade"]).ok();
    assert_eq!(house.stack.call(None, "list_agents", &json!({}))["isError"], false);
    let after = bridge();
    assert_ne!(after["pid"], before["pid"]);
    assert_eq!(after["address"], before["address"]);
    assert_eq!(house.stack.json(&["status"])["stale"], Value::Null);
}

#[test]
fn a_program_that_is_not_fit_leaves_the_old_daemon_serving() {
    let house = House::up(&json!([sleeper("a")]));
    house.ctl(&["start", "a"]).ok();
    let before = (house.stack.daemon_pid(), house.agents(&["a"]));
    let unchanged = || assert_eq!((house.stack.daemon_pid(), house.agents(&["a"])), before);

    house.install_script("echo 'error: the field agents is gone' >&2; echo 'hint: weep' >&2; exit 6");
    let run = house.ctl(&["upgrade"]).failed(6, "refuses: the field agents is gone");
    assert!(run.stderr.contains("goes on as before: "), "{run:?}");
    assert!(run.stderr.contains("hint: weep"), "{run:?}");
    unchanged();
    house.install_script("echo 'libx.so.1: not found' >&2; exit 3");
    let run = house.ctl(&["upgrade"]).failed(1, "goes on as before");
    assert!(run.stderr.contains("fails: `--check` ended with exit status: 3"), "{run:?}");
    assert!(run.stderr.contains("\n  libx.so.1: not found\n"), "{run:?}");
    unchanged();
    fs::set_permissions(house.daemon_program(), Permissions::from_mode(0o644)).unwrap();
    house.ctl(&["upgrade"]).failed(1, "Permission denied");
    unchanged();
    fs::remove_file(house.daemon_program()).unwrap();
    house.ctl(&["upgrade"]).failed(1, "there is no program");
    let stale = house.stack.json(&["status"])["stale"].as_str().unwrap().to_owned();
    assert!(stale.contains("is not there any more; put it there again"), "{stale}");
    unchanged();
    house.install(Path::new(PROGRAMS[0]));
    fs::write(house.stack.config(), "{ half").unwrap();
    house.ctl(&["upgrade"]).failed(6, "goes on as before");
    unchanged();
    house.stack.write_config(&json!([sleeper("a")]));
    house.ctl(&["upgrade"]).ok();
    assert_eq!(house.agents(&["a"]), before.1);
}

#[test]
fn a_program_that_succeeds_at_anything_else_than_being_a_daemon_is_refused() {
    let house = House::up(&json!([sleeper("a")]));
    house.ctl(&["start", "a"]).ok();
    let before = (house.stack.daemon_pid(), house.agents(&["a"]));
    for script in ["exit 0", "echo yes", "yes", "echo mcp-restart-http 9.9.9"] {
        house.install_script(&format!("{script} | head -c 1000000"));
        let run = house.ctl(&["upgrade"]).failed(1, "is no mcp-restartd");
        assert!(run.stderr.contains("goes on as before"), "{run:?}");
        assert_eq!((house.stack.daemon_pid(), house.agents(&["a"])), before, "{script}");
    }
}

#[test]
fn a_program_that_does_not_answer_is_ended_with_all_that_it_has_started() {
    let house = House::up(&json!([]));
    let before = house.stack.daemon_pid();
    let hung = house.stack.mailbox("hung");
    let script = format!("sleep 1000 & echo $! > {}/hung; wait", house.stack.path().display());
    house.install_script(&script);
    let run = house.ctl(&["upgrade", "--timeout", "0.5"]).failed(7, "not done after 0.5 s: ");
    assert!(run.stderr.contains("the old daemon goes on as before"), "{run:?}");
    wait_until_gone(hung.next().parse().unwrap());
    house.install_script(&script.replace("wait", "exit 3"));
    house.ctl(&["upgrade"]).failed(1, "ended with exit status: 3");
    wait_until_gone(hung.next().parse().unwrap());
    assert_eq!(house.stack.daemon_pid(), before);
}

#[test]
fn a_bridge_that_is_not_fit_leaves_the_old_daemon_and_its_endpoint_serving() {
    let house = House::up(&json!([]));
    let before = house.stack.daemon_pid();
    let table = [
        (
            "echo 'libx.so.1: not found' >&2; exit 127",
            "it ended with exit code 127 and said \"libx.so.1: not found\"",
        ),
        ("echo mcp-restart-http 99.0.0", "is version 99.0.0, and mcp-restartd is version "),
        ("exit 0", "is no mcp-restart-http"),
    ];
    for (script, why) in table {
        house.write_program("mcp-restart-http", script);
        let run = house.ctl(&["upgrade"]).failed(1, "refuses: the bridge ");
        assert!(run.stderr.contains(why), "{run:?}");
        assert_eq!(house.stack.daemon_pid(), before);
        assert_eq!(house.stack.call(None, "list_agents", &json!({}))["isError"], false);
    }
}

#[test]
fn a_program_that_does_not_come_up_leaves_every_agent_to_the_next_that_does() {
    let house = House::up(&json!([sleeper("a")]));
    house.ctl(&["start", "a"]).ok();
    let before = house.agents(&["a"]);
    house.install_script("[ $check ] && accept; echo 'error: out of luck' >&2; exit 1");
    let run = house.ctl(&["upgrade"]).failed(1, "the new one does not serve: out of luck");
    assert!(run.stderr.contains("up takes them on"), "{run:?}");
    house.ctl(&["status"]).failed(3, "no daemon runs");
    house.ctl(&["up"]).failed(1, "out of luck");
    house.install(Path::new(PROGRAMS[0]));
    house.ctl(&["up"]).ok();
    assert_eq!(house.agents(&["a"]), before);
}

#[test]
fn between_two_daemons_nothing_is_lost() {
    let house = House::up(&json!([shell("a", "read word < go; exit 7"), sleeper("b")]));
    let mut go = house.stack.pipe("go");
    house.ctl(&["start", "--all"]).ok();
    let before = house.agents(&["a", "b"]);
    // Its asker dies before it starts the next one.
    let mut asker = Asker::of(&house.socket());
    asker.have_it_leave();
    asker.wait_until_gone();
    writeln!(go, "now").unwrap();
    wait_until_gone(before[0].1.unwrap());
    house.ctl(&["up"]).ok();
    let ended = house.stack.wait_for("a", |agent| agent.state == AgentState::Exited);
    assert_eq!(ended.last_exit.unwrap().code, Some(7));
    assert_eq!(house.agents(&["b"]), before[1..]);
}

#[test]
fn what_is_under_way_ends_before_the_daemon_leaves_and_nothing_new_begins() {
    let house = House::up(&json!([patient("a"), sleeper("b")]));
    let stack = &house.stack;
    let (ready, told, mut go) = (stack.mailbox("ready"), stack.mailbox("asked"), stack.pipe("go"));
    house.ctl(&["start", "a"]).ok();
    ready.next();
    let old = stack.daemon_pid();
    let start = |arguments: &[&str]| {
        let mut command = stack.command(house.bin("mcp-restartctl").to_str().unwrap());
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let restart = start(&["restart", "a"]);
    told.next();

    // Whoever asked is gone while it is busy: then it stays.
    let mut asker = Asker::of(&house.socket());
    asker.have_it_leave();
    house.ctl(&["start", "b"]).failed(3, "makes way");
    drop(asker);
    while house.ctl(&["start", "b"]).code != 0 {}
    assert_eq!(stack.daemon_pid(), old);

    let mut asker = Asker::of(&house.socket());
    asker.have_it_leave();
    house.ctl(&["restart", "b"]).failed(3, "makes way");
    writeln!(go, "now").unwrap();
    assert_eq!(Run::of(restart.wait_with_output().unwrap()).ok().code, 0);
    asker.wait_until_gone();
    wait_until_gone(old);
    house.ctl(&["up"]).ok();
    assert_eq!(house.agents(&["a", "b"]).iter().map(|agent| agent.2).collect::<Vec<_>>(), [2, 1]);
    ready.next();
    writeln!(go, "end").unwrap();
    house.ctl(&["stop", "a"]).ok();
}

#[test]
fn of_two_upgrades_one_is_refused_and_an_end_of_the_daemon_ends_the_other() {
    let house = House::up(&json!([patient("a")]));
    let stack = &house.stack;
    let (ready, told, mut go) = (stack.mailbox("ready"), stack.mailbox("asked"), stack.pipe("go"));
    house.ctl(&["start", "a"]).ok();
    ready.next();
    let start = |arguments: &[&str]| {
        let mut command = stack.command(house.bin("mcp-restartctl").to_str().unwrap());
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let end = |program: std::process::Child| Run::of(program.wait_with_output().unwrap());
    let mut other = Asker::of(&house.socket());
    let stop = start(&["stop", "a"]);
    told.next();
    let upgrade = start(&["upgrade"]);
    while !house.ctl(&["stop", "a", "--no-wait"]).stderr.contains("makes way") {}

    house.ctl(&["upgrade"]).failed(1, "another upgrade is under way");
    assert_eq!(other.say(&json!({ "leave": true }))["error"]["message"], "another upgrade is under way");
    let down = start(&["down"]);
    let upgrade = end(upgrade).failed(1, "was ended meanwhile");
    assert!(upgrade.stderr.contains("hint: start the new one once it is gone: "), "{upgrade:?}");
    writeln!(go, "now").unwrap();
    assert_eq!((end(down).ok().code, end(stop).code), (0, 0));
    house.ctl(&["status"]).failed(3, "no daemon runs");
}

#[test]
fn an_agent_upgrades_only_a_daemon_that_a_service_manager_starts_again() {
    let ctl = PROGRAMS[2];
    let script = format!("read word < go; {ctl} upgrade; echo $? > code; exec sleep 1000");
    let stack = Stack::new(&json!([shell("a", &script)]));
    let (mut go, code) = (stack.pipe("go"), stack.mailbox("code"));
    let first = Daemon::of(&stack);
    first.line(": serving ").unwrap();
    stack.ctl(&["start", "a"]).ok();
    writeln!(go, "alone").unwrap();
    assert_eq!(code.next(), "5");
    assert_eq!(stack.daemon_pid(), first.pid());
    signal(first.pid(), Signal::TERM);
    assert_eq!(first.end().code(), Some(0));

    let managed = || {
        let mut command = crate::support::bare_command("sh");
        let script = "SYSTEMD_EXEC_PID=$$ exec \"$@\"";
        command.args(["-c", script, "sh", PROGRAMS[0]]).env("HOME", stack.path());
        command.arg("--config").arg(stack.config()).arg("--state-dir").arg(stack.state_dir());
        let daemon = Daemon::started(command);
        daemon.line(": serving ").unwrap();
        daemon
    };
    let first = managed();
    stack.ctl(&["start", "a"]).ok();
    let before = stack.agent("a").pid;
    writeln!(go, "managed").unwrap();
    assert_eq!(first.end().code(), Some(75));
    let second = managed();
    assert_eq!(code.next(), "0");
    assert_eq!((stack.agent("a").pid, stack.daemon_pid()), (before, second.pid()));
    // What a service manager runs to have it reloaded waits for nothing.
    let run = stack.ctl(&["upgrade", "--no-wait"]).ok();
    assert!(run.stdout.contains("makes way; systemd starts "), "{run:?}");
    assert_eq!(second.end().code(), Some(75));
    let third = managed();
    assert_eq!((stack.agent("a").pid, stack.daemon_pid()), (before, third.pid()));
}

#[test]
fn an_older_daemon_is_upgraded_to_this_one_across_protocol_numbers() {
    let house = House::up(&json!([sleeper("a")]));
    house.ctl(&["start", "a"]).ok();
    let before = house.agents(&["a"]);
    house.stack.kill_daemon();
    let offer = json!({
        "version": "0.0.9",
        "pid": 1,
        "program": house.daemon_program(),
        "configFile": house.stack.config(),
        "stateDir": house.stack.state_dir(),
        "manager": null,
        "launch": {
            "arguments": ["--config", house.stack.config(), "--state-dir", house.stack.state_dir()],
            "cwd": house.stack.path(),
            "environment": [["HOME", house.stack.path()], ["PATH", "/usr/bin:/bin"]],
        },
    });
    let socket = house.socket();
    stand_in(&socket.clone(), move |verb, stream| {
        if verb == Verb::Upgrade {
            assert_eq!(read_text(stream)["path"], "ctl_upgrade");
            write_text(stream, &offer);
            assert_eq!(read_text(stream)["leave"], true);
            fs::remove_file(&socket).unwrap();
            write_text(stream, &json!({ "leaving": true, "since": "another age" }));
        }
    });
    let run = house.ctl(&["list"]).failed(1, "version 9.9.9 and speaks protocol");
    assert!(run.stderr.contains("this program is older than the daemon"), "{run:?}");
    let run = house.ctl(&["upgrade"]).ok();
    assert!(run.stdout.starts_with("upgraded: mcp-restartd 0.0.9 (pid 1) → 0.1.0 (pid "), "{run:?}");
    assert!(run.stdout.ends_with("; a runs on\n"), "{run:?}");
    assert_eq!(house.agents(&["a"]), before);
}

#[test]
fn this_daemon_is_upgraded_to_a_newer_one_across_protocol_numbers() {
    let house = House::up(&json!([sleeper("a")]));
    house.ctl(&["start", "a"]).ok();
    let (before, came) = (house.agents(&["a"]), house.stack.mailbox("came"));
    house.install_script(&format!(
        "[ $check ] && accept; echo $$ > {}/came; exec sleep 1000",
        house.stack.path().display()
    ));
    let upgrade = {
        let mut command = house.stack.command(house.bin("mcp-restartctl").to_str().unwrap());
        command.arg("upgrade").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let newer: u32 = came.next().parse().unwrap();
    let status = json!({
        "version": "9.9.9",
        "pid": newer,
        "protocol": PROTOCOL + 7,
        "configFile": house.stack.config(),
        "stateDir": house.stack.state_dir(),
        "url": "http://127.0.0.1:1/mcp",
    });
    stand_in(&house.socket(), move |verb, stream| {
        if verb == Verb::Status {
            write_text(stream, &status);
        }
    });
    let run = Run::of(upgrade.wait_with_output().unwrap()).ok();
    assert!(run.stdout.contains(&format!("→ 9.9.9 (pid {newer})")), "{run:?}");
    signal(newer, Signal::KILL);
    house.install(Path::new(PROGRAMS[0]));
    fs::remove_file(house.socket()).unwrap();
    house.ctl(&["up"]).ok();
    assert_eq!(house.agents(&["a"]), before);
}

#[test]
fn an_agent_whose_shim_is_of_another_version_runs_on_and_is_shown_stopped_and_restarted() {
    let agents = [sleeper("restarted"), sleeper("stopped"), shell("ends", "read word < go; exit 5")];
    let house = House::up(&json!(agents));
    let (stack, names) = (&house.stack, ["restarted", "stopped", "ends"]);
    let mut go = stack.pipe("go");
    house.ctl(&["start", "--all"]).ok();
    let before = house.agents(&names);
    // What a shim has written down is how its version is known.
    for file in fs::read_dir(stack.state_dir().join("run")).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "json") {
            let facts = fs::read_to_string(&file).unwrap();
            fs::write(&file, facts.replace("\"protocol\":1", "\"protocol\":99")).unwrap();
        }
    }
    let mut check = stack.command(PROGRAMS[0]);
    let checked = Run::of(check.arg("--check").output().unwrap()).ok();
    assert!(checked.stdout.contains("warning: agent ends runs under shim protocol 99"), "{checked:?}");
    let run = house.ctl(&["upgrade"]).ok();
    assert!(run.stderr.contains("warning: stopped needs a restart: its shim speaks protocol 99"), "{run:?}");
    assert_eq!(house.agents(&names), before);
    let needy = || -> Vec<Value> {
        let status = stack.call(None, "server_status", &json!({}));
        let needs = status["structuredContent"]["needRestart"].as_array().unwrap().clone();
        needs.into_iter().map(|need| need["name"].clone()).collect()
    };
    assert_eq!(needy().len(), 3);

    writeln!(go, "now").unwrap();
    let ended = stack.wait_for("ends", |agent| agent.state == AgentState::Exited);
    assert_eq!(ended.last_exit.unwrap().code, Some(5));
    house.ctl(&["stop", "stopped"]).ok();
    let restarted = stack.json(&["restart", "restarted"]);
    assert_eq!(restarted["previous"]["exit"]["signal"], "SIGTERM");
    assert_eq!(restarted["agent"]["generation"], 2);
    assert!(before[..2].iter().all(|agent| !lives(agent.1.unwrap())));
    assert_eq!(needy(), [Value::Null; 0]);

    let after = house.agents(&names);
    assert_eq!(
        after.iter().map(|agent| agent.0).collect::<Vec<_>>(),
        [AgentState::Running, AgentState::Stopped, AgentState::Exited]
    );
    stack.kill_daemon();
    house.ctl(&["up"]).ok();
    assert_eq!(house.agents(&names), after);
    house.ctl(&["start", "stopped", "ends"]).ok();
}

/// A daemon of another version and protocol number, which says what `serve` has it say after its hello.
fn stand_in(socket: &Path, serve: impl Fn(Verb, &mut UnixStream) + Clone + Send + 'static) {
    let _ = fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let serve = serve.clone();
            std::thread::spawn(move || {
                let mut bytes = [0; HELLO_LEN];
                // Who only looks whether somebody is there says nothing.
                if stream.read_exact(&mut bytes).is_ok() {
                    let verb = Hello::from_bytes(&bytes).unwrap().verb;
                    let hello = Hello { protocol: PROTOCOL + 7, verb, version: "9.9.9".into() };
                    stream.write_all(&hello.to_bytes()).unwrap();
                    serve(verb, &mut stream);
                }
            });
        }
    });
}

#[test]
fn a_daemon_that_is_no_longer_the_program_on_disk_acts_only_with_the_consent_of_the_operator() {
    let agents = json!([sleeper("a")]);
    let house = House { stack: Stack::new(&agents) };
    let config = json!({ "port": 0, "staleDaemon": "refuse", "agents": agents });
    fs::write(house.stack.config(), config.to_string()).unwrap();
    fs::create_dir(house.bin("")).unwrap();
    for program in PROGRAMS {
        house.install(Path::new(program));
    }
    house.ctl(&["up"]).ok();
    house.ctl(&["start", "a"]).ok();
    let before = house.agents(&["a"]);

    fs::copy(PROGRAMS[0], house.bin("new")).unwrap();
    fs::rename(house.bin("new"), house.daemon_program()).unwrap();
    for command in [["restart", "a"], ["stop", "a"], ["start", "a"]] {
        house.ctl(&command).failed(5, "was replaced since it was started");
    }
    assert_eq!(house.stack.refusal(None, "restart_agent", &json!({ "name": "a" })), "stale_daemon");
    assert_eq!(house.agents(&["a"]), before);
    let consenting = |token: Option<&str>| {
        let mut command = house.stack.command(house.bin("mcp-restartctl").to_str().unwrap());
        command.env("MCP_RESTART_ALLOW_STALE", "1").args(["restart", "a"]);
        if let Some(token) = token {
            command.env("MCP_RESTART_TOKEN", token);
        }
        Run::of(command.output().unwrap())
    };
    let (token, _) = house.stack.wiring("a");
    consenting(Some(&token)).failed(5, "was replaced");
    consenting(None).ok();
    house.ctl(&["upgrade"]).ok();
    house.ctl(&["restart", "a"]).ok();
}
