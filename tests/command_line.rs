//! The command line: exit codes, output for people and for programs, and whom it talks to.

use crate::support::{Run, Stack, bare_command, lives, patient, shell, sleeper, wait_until_gone};
use mcp_restart_protocol::agent::AgentState;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

const CTL: &str = env!("CARGO_BIN_EXE_mcp-restartctl");

/// `mcp-restartctl` without flags, in a folder that is the home too.
fn bare_ctl(folder: &Path, arguments: &[&str]) -> Run {
    let mut command = bare_command(CTL);
    Run::of(command.args(arguments).current_dir(folder).env("HOME", folder).output().unwrap())
}

#[test]
fn the_exit_code_says_what_kind_of_failure_it_was() {
    let missing = json!({ "name": "missing", "command": "no-such-program" });
    let stack = Stack::new(&json!([sleeper("a"), missing, patient("slow")]));
    let (ready, mut go) = (stack.mailbox("ready"), stack.pipe("go"));
    for command in [&["status"][..], &["list"], &["start", "a"], &["handoff", "a"], &["attach", "a"]] {
        stack.ctl(command).failed(3, "hint: start it: mcp-restartctl ");
    }
    stack.ctl(&["up"]).ok();
    stack.ctl(&["start", "a", "slow"]).ok();
    ready.next();
    stack.ctl(&["start", "missing"]).failed(1, "was not found");
    for command in [
        &["start"][..],
        &["restart"],
        &["dance"],
        &["list", "--no-such-flag"],
        &["set", "a", "autostart=maybe"],
    ] {
        stack.ctl(command).failed(2, "");
    }
    for command in
        [&["start", "nobody"][..], &["logs", "nobody"], &["remove", "nobody"], &["mcp-config", "nobody"]]
    {
        stack.ctl(command).failed(4, "nobody");
    }
    stack.ctl(&["stop", "slow", "--timeout", "0.05"]).failed(7, "hint: the daemon goes on");
    writeln!(go).unwrap();
    stack.wait_for("slow", |view| view.state == AgentState::Stopped);
    fs::write(stack.config(), "{").unwrap();
    for command in
        [&["start", "slow"][..], &["config", "check"], &["config", "show"], &["add", "b", "--", "true"]]
    {
        stack.ctl(command).failed(6, "mcp-restart.config.json");
    }
}

#[test]
fn up_and_down_may_be_said_twice_and_at_once() {
    let stack = Stack::new(&json!([]));
    stack.ctl(&["down"]).ok();
    let started: Vec<Value> = std::thread::scope(|scope| {
        let ups = [(); 4].map(|()| scope.spawn(|| stack.json(&["up"])));
        ups.into_iter().map(|up| up.join().unwrap()).collect()
    });
    let pid = stack.daemon_pid();
    assert!(started.iter().all(|up| up["pid"] == pid), "{started:?}");
    assert_eq!(started.iter().filter(|up| up["started"] == true).count(), 1, "{started:?}");
    assert!(stack.ctl(&["up"]).ok().stdout.contains("already"));
    std::thread::scope(|scope| {
        let downs = [(); 4].map(|()| scope.spawn(|| stack.ctl(&["down"])));
        for down in downs {
            down.join().unwrap().ok();
        }
    });
    wait_until_gone(pid);
    assert_eq!(stack.json(&["down"])["stopped"], false);
}

#[test]
fn an_agent_neither_starts_nor_ends_its_daemon() {
    let stack = Stack::new(&json!([]));
    let flags =
        format!("--config '{}' --state-dir '{}'", stack.config().display(), stack.state_dir().display());
    // The second time as a stranger, as far as environment, session and parents go.
    let script = format!(
        "for command in up down; do '{CTL}' $command > $command 2>&1; echo $? >> codes; done
         (setsid env -i '{CTL}' {flags} down > stranger 2>&1; echo $? >> codes; echo > done) &
         exec sleep 1000"
    );
    stack.write_config(&json!([shell("a", &script)]));
    let done = stack.mailbox("done");
    stack.ctl(&["up"]).ok();
    let pid = stack.daemon_pid();
    stack.ctl(&["start", "a"]).ok();
    done.next();
    let read = |name: &str| fs::read_to_string(stack.path().join(name)).unwrap();
    assert_eq!(read("codes"), "5\n5\n5\n", "{}{}{}", read("up"), read("down"), read("stranger"));
    assert!(read("stranger").contains("agent a"), "{}", read("stranger"));
    assert_eq!(stack.daemon_pid(), pid);
    assert_eq!(stack.agent("a").state, AgentState::Running);
}

#[test]
fn json_is_all_that_is_on_standard_output() {
    let stack = Stack::new(&json!([sleeper("a")]));
    for (command, pointer) in [
        (&["up"][..], "/pid"),
        (&["status"], "/agents/0/name"),
        (&["list"], "/agents/0/state"),
        (&["start", "a"], "/agent/pid"),
        (&["start", "a"], "/agent/pid"),
        (&["restart", "a", "--note", "x"], "/generation"),
        (&["handoff", "a"], "/notes/0/text"),
        (&["mcp-config", "a"], "/file"),
        (&["stop", "a"], "/agent/lastExit/reason"),
        (&["stop", "a"], "/agent/lastExit/reason"),
        (&["add", "b", "--", "sleep", "1000"], "/file"),
        (&["set", "b", "settleMs=0"], "/file"),
        (&["start", "a", "b"], "/results/1/result/agent/pid"),
        (&["restart", "--all"], "/results/0/result/generation"),
        (&["remove", "b"], "/file"),
        (&["list", "--all"], "/agents/1/name"),
        (&["config", "check"], "/ok"),
        (&["config", "show"], "/agents/0/command"),
        (&["config", "show", "a"], "/command"),
        (&["config", "schema"], "/$schema"),
        (&["down"], "/stopped"),
    ] {
        let run = stack.ctl(&[&["--json"], command].concat()).ok();
        let value: Value =
            serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{command:?}: {run:?}"));
        assert!(value.pointer(pointer).is_some_and(|found| !found.is_null()), "{command:?}: {value}");
        assert_eq!(run.stderr, "", "{command:?}");
    }
}

#[test]
fn of_several_agents_each_gets_what_was_asked_for_and_the_worst_code_is_told() {
    let missing = json!({ "name": "missing", "command": "no-such-program" });
    let stack = Stack::up(&json!([sleeper("a"), missing, sleeper("b")]));
    let run = stack.ctl(&["start", "a", "missing", "nobody", "b"]);
    assert_eq!(run.code, 4, "{run:?}");
    assert_eq!(run.stderr.lines().filter(|line| line.starts_with("error: ")).count(), 2, "{run:?}");
    let before = ["a", "b"].map(|name| stack.agent(name).pid.unwrap());
    let results = stack.ctl(&["--json", "restart", "--all"]);
    assert_eq!(results.code, 1, "{results:?}");
    let results: Value = serde_json::from_str(&results.stdout).unwrap();
    let results = results["results"].as_array().unwrap();
    let of = |name: &str| results.iter().find(|result| result["name"] == name).unwrap();
    assert_eq!(of("missing")["error"]["code"], "spawn_failed");
    for (name, pid) in ["a", "b"].into_iter().zip(before) {
        assert_eq!(of(name)["result"]["previous"]["pid"], pid);
        assert_eq!(stack.agent(name).generation, 2);
    }
    stack.ctl(&["stop", "--all"]).ok();
    assert!(before.into_iter().all(|pid| !lives(pid)));
}

#[test]
fn without_waiting_it_returns_while_the_daemon_still_works() {
    let stack = Stack::up(&json!([patient("a")]));
    let (ready, asked, mut go) = (stack.mailbox("ready"), stack.mailbox("asked"), stack.pipe("go"));
    stack.ctl(&["start", "a", "--no-wait"]).ok();
    ready.next();
    stack.ctl(&["stop", "a", "--no-wait"]).ok();
    asked.next();
    assert_eq!(stack.agent("a").state, AgentState::Stopping);
    stack.ctl(&["start", "a", "--no-wait"]).ok();
    writeln!(go).unwrap();
    stack.wait_for("a", |view| view.state == AgentState::Running && view.generation == 2);
    ready.next();
    stack.ctl(&["stop", "a", "--no-wait"]).ok();
    writeln!(go).unwrap();
    stack.wait_for("a", |view| view.state == AgentState::Stopped);
}

#[test]
fn a_daemon_of_another_config_is_left_alone() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    let other = stack.path().join("other.json");
    fs::copy(stack.config(), &other).unwrap();
    for command in [&["up"][..], &["start", "a"], &["restart", "a"], &["stop", "a"], &["down"]] {
        let mut program = bare_command(CTL);
        program.arg("--config").arg(&other).arg("--state-dir").arg(stack.state_dir()).args(command);
        let run = Run::of(program.output().unwrap()).failed(6, &other.to_string_lossy());
        assert!(run.stderr.contains(&*stack.config().to_string_lossy()), "{run:?}");
    }
    assert_eq!((stack.agent("a").state, stack.agent("a").generation), (AgentState::Running, 1));
}

#[test]
fn a_config_is_written_changed_and_checked_by_command() {
    let folder = TempDir::new().unwrap();
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("codex"), "").unwrap();
    fs::set_permissions(bin.join("codex"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut init = bare_command(CTL);
    init.arg("init").current_dir(folder.path()).env("HOME", folder.path()).env("PATH", &bin);
    assert!(Run::of(init.output().unwrap()).ok().stdout.contains("codex"));
    let ctl = |arguments: &[&str]| bare_ctl(folder.path(), arguments);
    ctl(&["init"]).failed(1, "--force");
    ctl(&["config", "check"]).ok();
    ctl(&["add", "worker", "--", "./worker.py", "--queue", "a b"]).ok();
    ctl(&["add", "worker", "--", "true"]).failed(1, "worker");
    ctl(&["set", "worker", "autostart=true", "env.LEVEL=1", "rollback.withinMs=5", "stopSignal=INT"]).ok();
    ctl(&["set", "worker", "gracefulTimeoutMS=1"]).failed(2, "gracefulTimeoutMs");
    let shown: Value = serde_json::from_str(&ctl(&["config", "show", "worker"]).ok().stdout).unwrap();
    assert_eq!(shown["args"], json!(["--queue", "a b"]));
    assert_eq!((&shown["autostart"], &shown["env"]["LEVEL"]), (&json!(true), &json!("1")));
    ctl(&["set", "worker", "autostart=", "env.LEVEL="]).ok();
    let shown: Value = serde_json::from_str(&ctl(&["config", "show", "worker"]).ok().stdout).unwrap();
    assert_eq!((&shown["autostart"], &shown["env"]), (&json!(false), &json!({})));
    ctl(&["remove", "worker"]).ok();
    ctl(&["config", "show", "worker"]).failed(4, "worker");
    ctl(&["config", "check"]).ok();
}

#[test]
fn of_many_who_edit_at_once_nobody_loses_a_change() {
    let stack = Stack::new(&json!([]));
    std::thread::scope(|scope| {
        for index in 0..8 {
            let stack = &stack;
            scope.spawn(move || stack.ctl(&["add", &format!("a{index}"), "--", "true"]).ok());
        }
    });
    let shown: Value = serde_json::from_str(&stack.ctl(&["config", "show"]).ok().stdout).unwrap();
    let mut names: Vec<_> =
        shown["agents"].as_array().unwrap().iter().map(|agent| agent["name"].to_string()).collect();
    names.sort();
    assert_eq!(names, (0..8).map(|index| format!("\"a{index}\"")).collect::<Vec<_>>());
}

#[test]
fn without_flags_the_config_of_the_folder_and_the_state_dir_of_the_home_are_meant() {
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("mcp-restart.config.json");
    fs::write(&config, json!({ "port": 0, "agents": [sleeper("a")] }).to_string()).unwrap();
    let ctl = |arguments: &[&str]| bare_ctl(folder.path(), arguments);
    ctl(&["up"]).ok();
    ctl(&["start", "a"]).ok();
    let status: Value = serde_json::from_str(&ctl(&["--json", "status"]).ok().stdout).unwrap();
    assert_eq!(status["configFile"], json!(config));
    assert_eq!(status["stateDir"], json!(folder.path().join(".local/state/mcp-restart")));
    ctl(&["down"]).ok();
    ctl(&["status"]).failed(3, "no daemon runs in ");
}

#[test]
fn a_config_that_broke_later_is_shown_and_hides_nothing() {
    let stack = Stack::up(&json!([sleeper("a")]));
    stack.ctl(&["start", "a"]).ok();
    fs::write(stack.config(), "{ \"agents\": [ { \"name\": \"a\", } ] }").unwrap();
    let run = stack.ctl(&["status"]).ok();
    assert!(run.stderr.contains("warning: ") && run.stderr.contains("command"), "{run:?}");
    assert!(run.stdout.contains("running"), "{run:?}");
    stack.ctl(&["stop", "a"]).ok();
    assert_eq!(stack.agent("a").state, AgentState::Stopped);
}
