//! The command line as a whole, against a daemon that says what it is told.

use crate::problem::Exit;
use crate::testing::{World, status, view};
use mcp_restart_protocol::agent::AgentState;
use mcp_restart_protocol::answer::{AgentAnswer, Answer, Caller, ErrorCode, Failure, ServerStatus};
use mcp_restart_protocol::hello::{Hello, PROTOCOL, Verb};
use mcp_restart_protocol::request::{Credential, Request};
use serde_json::Value;
use std::path::PathBuf;

const CONFIG: &str =
    r#"{ "agents": [{ "name": "a", "command": "true" }, { "name": "b", "command": "true" }] }"#;

/// A world with a config of two agents.
fn world() -> (World, PathBuf) {
    let world = World::new();
    let config = world.write("mcp-restart.config.json", CONFIG);
    (world, config)
}

fn done(name: &str, state: AgentState) -> Answer {
    Answer::Agent(Box::new(AgentAnswer { agent: view(name, state, 1), delivery: None }))
}

fn served(status: &ServerStatus) -> Answer {
    Answer::Status(Box::new(status.clone()))
}

#[test]
fn without_a_daemon_every_command_that_needs_one_exits_3_and_says_how_to_start_it() {
    let (world, _) = world();
    for command in [
        &["status"][..],
        &["list"],
        &["start", "a"],
        &["stop", "a"],
        &["restart", "a"],
        &["attach", "a"],
        &["handoff", "a"],
        &["mcp-config", "a"],
    ] {
        let (exit, output, errors) = world.run(command);
        assert_eq!((exit, output.as_str()), (Exit::NotRunning, ""), "{command:?}");
        assert!(errors.starts_with("error: no daemon runs in "), "{errors}");
        assert!(errors.ends_with("hint: start it: mcp-restartctl up\n"), "{errors}");
    }
}

#[test]
fn a_daemon_of_another_protocol_is_named_with_the_remedy() {
    for (protocol, hint) in
        [(PROTOCOL + 1, "hint: this program is older"), (PROTOCOL - 1, "hint: upgrade the daemon")]
    {
        let hello = Hello { protocol, version: "9.9.9".into(), verb: Verb::Talk };
        let (world, _) = world();
        world.daemon_of_another_version(hello);
        for command in [&["list"][..], &["status"], &["logs", "a"]] {
            let (exit, _, errors) = world.run(command);
            assert_eq!(exit, Exit::Failed);
            assert!(errors.contains("version 9.9.9"), "{errors}");
            assert!(errors.contains(hint), "{errors}");
        }
    }
}

#[test]
fn a_daemon_that_says_nothing_is_waited_for_no_longer_than_it_needs() {
    let (world, _) = world();
    let _listener = world.stopped_daemon();
    for command in [
        &["status"][..],
        &["list"],
        &["start", "a"],
        &["stop", "a"],
        &["restart", "a"],
        &["handoff", "a"],
        &["up"],
        &["down"],
    ] {
        let (exit, output, errors) = world.run_without_waiting(command);
        assert_eq!((exit, output.as_str()), (Exit::TimedOut, ""), "{command:?}: {errors}");
        let own = std::process::id();
        assert!(errors.contains(&format!("the daemon (pid {own}) does not answer")), "{errors}");
        assert!(errors.contains(&format!("\nhint: `ps -o stat= -p {own}`")), "{errors}");
    }
}

#[test]
fn a_log_is_shown_although_the_daemon_says_nothing() {
    let (world, _) = world();
    let _listener = world.stopped_daemon();
    let logs = world.path(".local/state/mcp-restart/logs");
    std::fs::create_dir_all(&logs).unwrap();
    for name in ["a", "removed"] {
        std::fs::write(logs.join(format!("{name}.log")), "one\n").unwrap();
        let (exit, output, errors) = world.run_without_waiting(&["logs", name]);
        assert_eq!((exit, output.as_str()), (Exit::Done, "one\n"));
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.starts_with("warning: the daemon does not answer"), "{errors}");
    }
    assert_eq!(world.run_without_waiting(&["logs", "nobody"]).0, Exit::UnknownAgent);
}

#[test]
fn down_without_a_daemon_is_done_already() {
    let (world, _) = world();
    let (exit, output, errors) = world.run(&["down"]);
    assert_eq!((exit, errors.as_str()), (Exit::Done, ""));
    assert!(output.starts_with("no daemon runs in "), "{output}");
}

#[test]
fn agents_that_run_on_without_a_daemon_are_told_whatever_is_asked() {
    let (world, _) = world();
    let state_dir = mcp_restart_config::lookup::state_dir(None, None, &world.environment).unwrap();
    let run = state_dir.join("run");
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(run.join("1.json"), r#"{"name":"q","agent":{"pid":7}}"#).unwrap();
    let _shim = std::os::unix::net::UnixListener::bind(run.join("1.sock")).unwrap();
    let asked =
        [(&["down"][..], Exit::Failed), (&["status"], Exit::NotRunning), (&["stop", "q"], Exit::NotRunning)];
    for (command, expected) in asked {
        let (exit, output, errors) = world.run(command);
        assert_eq!((exit, output.as_str()), (expected, ""), "{command:?}");
        assert!(errors.contains("but agents do: q (pid 7)\nhint: "), "{command:?}: {errors}");
    }
}

#[test]
fn a_daemon_of_another_config_is_left_alone_and_both_configs_are_named() {
    let (world, config) = world();
    let other = status(&PathBuf::from("/other.json"), vec![]);
    let asked = world.daemon(move |_| Ok(served(&other)));
    let (exit, _, errors) = world.run(&["stop", "a"]);
    assert_eq!(exit, Exit::ConfigInvalid);
    assert!(errors.contains(&config.display().to_string()) && errors.contains("/other.json"), "{errors}");
    assert!(asked.try_iter().all(|frame| frame.request == Request::Status));
}

#[test]
fn starting_what_runs_and_stopping_what_does_not_is_done_already() {
    let (world, config) = world();
    let own = status(&config, vec![]);
    let _asked = world.daemon(move |request| match request {
        Request::Status => Ok(served(&own)),
        Request::List { .. } => Ok(Answer::Agents(vec![view("a", AgentState::Running, 1)])),
        Request::Start { .. } => Err(Failure::new(ErrorCode::AlreadyRunning, "a runs")),
        _ => Err(Failure::new(ErrorCode::NotRunning, "a does not run")),
    });
    assert_eq!(world.run(&["start", "a"]), (Exit::Done, "a is already running\n".into(), String::new()));
    assert_eq!(world.run(&["stop", "a"]), (Exit::Done, "a is not running\n".into(), String::new()));
    let (exit, output, _) = world.run(&["--json", "start", "a"]);
    let value: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((exit, &value["agent"]["pid"]), (Exit::Done, &4242.into()));
    let (exit, _, errors) = world.run(&["restart", "a"]);
    assert_eq!((exit, errors.as_str()), (Exit::Failed, "error: a does not run\n"));
}

#[test]
fn of_several_names_each_is_attempted_and_the_worst_exit_code_stays() {
    let (world, config) = world();
    let own = status(&config, vec![]);
    let asked = world.daemon(move |request| match request {
        Request::Status => Ok(served(&own)),
        Request::Stop { name, .. } if name == "x" => Err(Failure::new(ErrorCode::UnknownAgent, "no agent x")),
        Request::Stop { name, .. } => Ok(done(name, AgentState::Stopped)),
        other => Err(Failure::new(ErrorCode::Internal, format!("{other:?}"))),
    });
    let (exit, output, errors) = world.run(&["stop", "x", "a", "b"]);
    assert_eq!(exit, Exit::UnknownAgent);
    assert_eq!(output, "a is stopped\nb is stopped\n");
    assert_eq!(errors, "error: no agent x\n");
    assert_eq!(asked.try_iter().count(), 4);
    let (_, output, _) = world.run(&["--json", "stop", "x", "a"]);
    let value: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(value["results"][0]["error"]["code"], "unknown_agent");
    assert_eq!(value["results"][1]["result"]["agent"]["name"], "a");
}

#[test]
fn with_all_the_callers_own_agent_comes_last() {
    let (world, config) = world();
    let agents = ["me", "a", "b"].map(|name| view(name, AgentState::Running, 1)).to_vec();
    let own = ServerStatus { caller: Caller::Agent { name: "me".into() }, ..status(&config, agents) };
    let asked = world.daemon(move |request| match request {
        Request::Status => Ok(served(&own)),
        Request::Stop { name, .. } => Ok(done(name, AgentState::Stopped)),
        other => Err(Failure::new(ErrorCode::Internal, format!("{other:?}"))),
    });
    assert_eq!(world.run(&["stop", "--all"]).0, Exit::Done);
    let stopped: Vec<String> = asked
        .try_iter()
        .filter_map(|frame| match frame.request {
            Request::Stop { name, path, wait: true } if path == "ctl_stop" => Some(name),
            _ => None,
        })
        .collect();
    assert_eq!(stopped, ["a", "b", "me"]);
}

#[test]
fn inside_an_agent_the_daemon_is_neither_started_nor_ended_and_restart_means_itself() {
    let (mut world, config) = world();
    world.environment.agent = Some("a".into());
    world.agent_token = Some("mra_1".into());
    for command in [&["up"][..], &["down"], &["run", "a"]] {
        let (exit, _, errors) = world.run(command);
        assert_eq!(exit, Exit::NotAllowed, "{errors}");
    }
    let own = status(&config, vec![]);
    let asked = world.daemon(move |request| match request {
        Request::Status => Ok(served(&own)),
        _ => Err(Failure::new(ErrorCode::TooManyRestarts, "too often").hint("wait")),
    });
    let (exit, _, errors) = world.run(&["restart", "--note", "go on"]);
    assert_eq!((exit, errors.as_str()), (Exit::NotAllowed, "error: too often\nhint: wait\n"));
    let last = asked.try_iter().last().unwrap();
    assert_eq!(last.credential, Credential::Token("mra_1".into()));
    let Request::Restart(request) = last.request else { panic!("{:?}", last.request) };
    assert_eq!((request.name, request.note.as_deref()), (None, Some("go on")));
}

#[test]
fn a_start_or_stop_of_nobody_is_a_usage_error() {
    let (world, _) = world();
    assert_eq!(world.run(&["start"]).0, Exit::Usage);
    assert_eq!(world.run(&["stop"]).0, Exit::Usage);
}

#[test]
fn a_timeout_exits_7_and_says_that_the_daemon_goes_on() {
    let (world, config) = world();
    let own = status(&config, vec![]);
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let _asked = world.daemon(move |request| {
        if *request != Request::Status {
            // The end of the test releases it.
            let _ = held.lock().unwrap().recv();
        }
        Ok(served(&own))
    });
    let (exit, _, errors) = world.run(&["stop", "a", "--timeout", "0.01"]);
    drop(release);
    assert_eq!(exit, Exit::TimedOut);
    assert!(errors.starts_with("error: no answer for a after 0.01 s\nhint: the daemon goes on"), "{errors}");
}

#[test]
fn an_agent_without_a_terminal_cannot_be_attached_to_and_the_remedy_is_named() {
    let (world, _) = world();
    let _asked = world.daemon(|_| Ok(Answer::Agents(vec![view("a", AgentState::Running, 1)])));
    let (exit, _, errors) = world.run(&["attach", "a"]);
    assert_eq!(exit, Exit::Failed);
    assert!(errors.contains("hint: mcp-restartctl set a tty=true"), "{errors}");
    let (exit, _, errors) = world.run(&["attach", "nobody"]);
    assert_eq!(
        (exit, errors.as_str()),
        (Exit::UnknownAgent, "error: there is no agent \"nobody\"\nhint: the agents are: a\n")
    );
}

#[test]
fn json_is_on_standard_output_alone() {
    let (world, config) = world();
    let own = status(&config, vec![view("a", AgentState::Running, 1)]);
    let _asked = world.daemon(move |request| match request {
        Request::Status => Ok(served(&own)),
        _ => Ok(Answer::Agents(own.agents.clone())),
    });
    for command in [&["--json", "status"][..], &["list", "--json"], &["ls", "--all", "--json"]] {
        let (exit, output, errors) = world.run(command);
        let value: Value = serde_json::from_str(&output).unwrap();
        assert_eq!((exit, errors.as_str()), (Exit::Done, ""));
        assert_eq!(value["agents"][0]["state"], "running");
    }
}

#[test]
fn what_fails_is_json_on_standard_output_with_json() {
    let (world, _) = world();
    for (command, exit, code) in [
        (&["status"][..], Exit::NotRunning, "daemon_unavailable"),
        (&["logs", "nobody"], Exit::UnknownAgent, "unknown_agent"),
        (&["start"], Exit::Usage, "invalid_argument"),
        (&["--config", "none.json", "list"], Exit::ConfigInvalid, "config_invalid"),
    ] {
        let (was, output, errors) = world.run(&[&["--json"], command].concat());
        let value: Value = serde_json::from_str(&output).unwrap();
        assert_eq!((was, &value["error"]["code"]), (exit, &code.into()), "{command:?}");
        assert!(errors.starts_with("error: "), "{errors}");
    }
    let _asked = world.daemon(|_| Err(Failure::new(ErrorCode::SpawnFailed, "no such file").hint("mend it")));
    let (exit, output, _) = world.run(&["--json", "mcp-config", "a"]);
    let value: Value = serde_json::from_str(&output).unwrap();
    let error = serde_json::json!({ "code": "spawn_failed", "message": "no such file", "hint": "mend it" });
    assert_eq!((exit, &value["error"]), (Exit::Failed, &error));
}

#[test]
fn a_list_tells_that_the_config_is_broken() {
    let (world, config) = world();
    let broken = ServerStatus {
        config_error: Some("line 3: a comma is missing".into()),
        ..status(&config, vec![view("a", AgentState::Running, 1)])
    };
    let _asked = world.daemon(move |_| Ok(served(&broken)));
    let (exit, output, errors) = world.run(&["list"]);
    assert_eq!(exit, Exit::Done);
    assert!(output.contains("running"), "{output}");
    assert!(errors.starts_with("warning: ") && errors.contains("a comma is missing"), "{errors}");
    let (_, output, _) = world.run(&["list", "--json"]);
    let value: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(value["configError"], "line 3: a comma is missing");
}

#[test]
fn a_status_tells_why_the_endpoint_is_not_served() {
    let (world, config) = world();
    let broken = ServerStatus {
        url: None,
        endpoint_error: Some("the bridge ended 5 times in a row".into()),
        ..status(&config, vec![])
    };
    let _asked = world.daemon(move |_| Ok(served(&broken)));
    let (exit, output, errors) = world.run(&["status"]);
    assert_eq!(exit, Exit::Done);
    assert!(output.contains("does not listen"), "{output}");
    let why = "warning: the MCP endpoint is not served: the bridge ended 5 times in a row\n         remedy: see mcp-restart.log";
    assert!(errors.starts_with(why), "{errors}");
}

#[test]
fn a_note_that_is_not_there_is_an_answer_and_no_usage_error() {
    let (world, _) = world();
    let _asked = world.daemon(|_| Err(Failure::new(ErrorCode::InvalidArgument, "there is no note")));
    let (exit, _, errors) = world.run(&["handoff", "a"]);
    assert_eq!((exit, errors.as_str()), (Exit::Failed, "error: there is no note\n"));
    assert_eq!(world.run(&["handoff"]).0, Exit::Usage);
}

#[test]
fn a_socket_path_that_is_too_long_is_told_with_its_limit() {
    let (world, _) = world();
    let (exit, _, errors) = world.run(&["--state-dir", &"x".repeat(200), "list"]);
    assert_eq!(exit, Exit::Failed);
    assert!(errors.contains("bytes, this system allows 1"), "{errors}");
    assert!(errors.contains("hint: use a shorter state dir"), "{errors}");
}

#[test]
fn a_hint_to_start_the_daemon_repeats_the_options() {
    let (mut world, _) = world();
    let (_, _, errors) = world.run(&["--state-dir", "d", "list"]);
    assert!(errors.ends_with("hint: start it: mcp-restartctl --state-dir d up\n"), "{errors}");
    world.environment.socket = Some("/nowhere/mcp-restartd.sock".into());
    let (exit, _, errors) = world.run(&["list"]);
    assert_eq!(exit, Exit::NotRunning);
    assert!(errors.contains("/nowhere/mcp-restartd.sock, which MCP_RESTART_SOCKET names"), "{errors}");
}

#[test]
fn a_removed_agent_is_said_to_run_on_only_if_it_does() {
    let (world, config) = world();
    assert_eq!(world.run(&["remove", "b"]), (Exit::Done, "removed b\n".into(), String::new()));
    let running = ServerStatus {
        unlisted: vec![view("a", AgentState::Running, 1)],
        ..status(&config, vec![view("b", AgentState::Stopped, 1)])
    };
    let _asked = world.daemon(move |_| Ok(served(&running)));
    let text = "removed a; its process 4242 runs on: mcp-restartctl stop a ends it\n";
    assert_eq!(world.run(&["remove", "a"]), (Exit::Done, text.into(), String::new()));
}

#[test]
fn a_bad_argument_of_an_edit_is_a_usage_error_about_the_argument() {
    let (world, _) = world();
    for (command, error) in [
        (&["add", "bad name", "--", "x"][..], "error: nothing was changed: name: a name has 1 to 64 letters"),
        (&["set", "a", "command="], "error: nothing was changed: command: missing"),
        (
            &["set", "a", "name=c"],
            "error: nothing was changed: the name of an agent cannot be changed\nhint: ",
        ),
    ] {
        let (exit, _, errors) = world.run(command);
        assert_eq!(exit, Exit::Usage, "{errors}");
        assert!(errors.starts_with(error), "{errors}");
    }
    let (exit, _, errors) = world.run(&["add", "A", "--", "x"]);
    assert_eq!(exit, Exit::Failed);
    assert!(errors.starts_with("error: there is an agent a already (case is ignored)\nhint: "), "{errors}");
}

#[test]
fn a_log_is_json_with_json() {
    let (world, _) = world();
    let logs = world.path(".local/state/mcp-restart/logs");
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("a.log"), "one\n\u{1b}[31mtwo\u{1b}[0m\nthree").unwrap();
    let (exit, output, _) = world.run(&["logs", "a", "-n", "2", "--json"]);
    let value: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((exit, value), (Exit::Done, serde_json::json!({ "lines": ["two", "three"] })));
}

#[test]
fn the_log_is_found_without_a_daemon_and_safe_to_show() {
    let (world, _) = world();
    let logs = world.path(".local/state/mcp-restart/logs");
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("a.log"), "one\n\u{1b}[31mtwo\u{1b}[0m\nthree").unwrap();
    assert_eq!(world.run(&["logs", "a", "-n", "2"]), (Exit::Done, "two\nthree".into(), String::new()));
    assert_eq!(world.run(&["logs", "a", "-n", "2", "--raw"]).1, "\u{1b}[31mtwo\u{1b}[0m\nthree");
    assert_eq!(world.run(&["logs", "b"]), (Exit::Done, String::new(), String::new()));
    assert_eq!(world.run(&["logs", "c"]).0, Exit::UnknownAgent);
}

#[test]
fn a_config_that_is_edited_keeps_its_comments_and_a_bad_edit_changes_nothing() {
    let world = World::new();
    let text = "{\n  // mine\n  \"agents\": [\n    { \"name\": \"a\", \"command\": \"true\" }\n  ]\n}\n";
    let file = world.write("mcp-restart.config.json", text);
    let read = || std::fs::read_to_string(&file).unwrap();
    assert_eq!(world.run(&["set", "a", "autostart=yes"]).0, Exit::Usage);
    assert_eq!(read(), text);
    assert_eq!(world.run(&["set", "a", "autostart=true", "env.MODEL=x"]).0, Exit::Done);
    assert_eq!(world.run(&["add", "b", "--", "sleep", "60"]).0, Exit::Done);
    assert_eq!(world.run(&["add", "b", "--", "sleep"]).0, Exit::Failed);
    assert_eq!(world.run(&["remove", "c"]).0, Exit::UnknownAgent);
    assert!(read().contains("// mine") && read().contains("\"sleep\""), "{}", read());
    let (exit, output, _) = world.run(&["config", "show", "a"]);
    let value: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((exit, &value["autostart"], &value["env"]["MODEL"]), (Exit::Done, &true.into(), &"x".into()));
    assert_eq!(world.run(&["remove", "a"]).0, Exit::Done);
    assert_eq!(world.run(&["config", "show", "a"]).0, Exit::UnknownAgent);
}

#[test]
fn the_launch_that_is_shown_has_what_the_kind_adds() {
    let world = World::new();
    world.write("mcp-restart.config.json", r#"{ "agents": [{ "name": "a", "command": "gemini" }] }"#);
    let launch = |output: &str| serde_json::from_str::<Value>(output).unwrap()["launch"].take();
    let shown = launch(&world.run(&["config", "show", "a"]).1);
    assert_eq!(shown["argv"], serde_json::json!(["gemini", "--session-id=NEW-ID"]));
    assert_eq!(shown["env"], serde_json::json!({ "GEMINI_CLI_NO_RELAUNCH": "true" }));
}

#[test]
fn a_config_check_names_every_fault_and_exits_6() {
    let world = World::new();
    assert_eq!(world.run(&["config", "check"]).0, Exit::ConfigInvalid);
    world.write("mcp-restart.config.json", r#"{ "prot": 1, "agents": [{ "name": "a" }] }"#);
    let (exit, output, errors) = world.run(&["config", "check"]);
    assert_eq!((exit, output.as_str()), (Exit::ConfigInvalid, ""));
    assert!(errors.contains("did you mean port?") && errors.contains("command"), "{errors}");
    let (exit, output, _) = world.run(&["--json", "config", "check"]);
    let value: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((exit, value["faults"].as_array().unwrap().len()), (Exit::ConfigInvalid, 2));
}

#[test]
fn init_writes_a_config_that_is_good_and_never_over_another() {
    let world = World::new();
    assert_eq!(world.run(&["init"]).0, Exit::Done);
    assert_eq!(world.run(&["config", "check"]).0, Exit::Done);
    let (exit, _, errors) = world.run(&["init"]);
    assert_eq!(exit, Exit::Failed);
    assert!(errors.ends_with("hint: --force replaces it\n"), "{errors}");
    assert_eq!(world.run(&["init", "--force"]).0, Exit::Done);
}
