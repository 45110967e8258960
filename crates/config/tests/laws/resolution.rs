use crate::{environment, from_text};
use mcp_restart_config::{
    Agent, Config, Environment, Inject, KeepChildren, Kind, Resume, Rollback, Secret, edit, load,
    load_as_client, lookup, show,
};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn agent(fields: &str) -> Agent {
    let text = format!(r#"{{ "agents": [{{ "name": "a", "command": "x", {fields} }}] }}"#);
    let text = text.replace(", }", "}");
    from_text(&text).unwrap().agents.remove(0)
}

#[test]
fn paths_start_at_the_folder_of_the_file_and_at_home() {
    let config = from_text(r#"{ "stateDir": "state/../s", "agents": [] }"#).unwrap();
    assert_eq!(config.state_dir, Some("/project/s".into()));
    let paths = agent(r#""cwd": "~/src", "logFile": "./a.log""#);
    assert_eq!((paths.cwd, paths.log_file), ("/home/ada/src".into(), Some("/project/a.log".into())));
    assert_eq!(agent("").cwd, Path::new("/project"));
    assert_eq!(agent(r#""cwd": "/""#).cwd, Path::new("/"));
}

#[test]
fn a_command_is_a_name_or_a_path() {
    for (written, resolved) in [
        ("claude", "claude"),
        ("./run", "/project/run"),
        ("~/bin/x", "/home/ada/bin/x"),
        ("/bin/x", "/bin/x"),
    ] {
        let text = format!(r#"{{ "agents": [{{ "name": "a", "command": "{written}" }}] }}"#);
        assert_eq!(from_text(&text).unwrap().agents[0].command, resolved);
    }
}

#[test]
fn agents_of_the_users_own_file_start_at_home() {
    let cwd = |file: &str, environment: &Environment| {
        let text = r#"{ "agents": [{ "name": "a", "command": "x" }] }"#;
        mcp_restart_config::from_text(text, Path::new(file), environment).unwrap().agents.remove(0).cwd
    };
    assert_eq!(cwd("/home/ada/.config/mcp-restart/config.json", &environment()), Path::new("/home/ada"));
    let elsewhere = Environment { xdg_config_home: Some("/etc/ada".into()), ..environment() };
    assert_eq!(cwd("/etc/ada/mcp-restart/config.json", &elsewhere), Path::new("/home/ada"));
    assert_eq!(
        cwd("/home/ada/.config/mcp-restart/config.json", &elsewhere),
        Path::new("/home/ada/.config/mcp-restart")
    );
}

#[test]
fn the_kind_comes_from_the_command_and_brings_its_defaults() {
    for (command, kind) in [
        ("/usr/bin/claude-code", Kind::Claude),
        ("codex", Kind::Codex),
        ("qwen", Kind::Qwen),
        ("/opt/claude/run", Kind::Generic),
        ("my-claude", Kind::Generic),
    ] {
        assert_eq!(Kind::from_command(command), kind, "{command}");
    }
    let claude = agent(r#""kind": "claude""#);
    assert_eq!((claude.tty, claude.resume, claude.settle), (true, Resume::Same, Duration::from_secs(2)));
    let generic = agent("");
    assert_eq!(
        (generic.tty, generic.resume, generic.settle),
        (false, Resume::Fresh, Duration::from_millis(200))
    );
}

#[test]
fn signals_go_by_their_name_with_and_without_sig() {
    for name in ["SIGINT", "INT"] {
        let signal = agent(&format!(r#""stopSignal": "{name}""#)).stop_signal;
        assert_eq!((signal.name(), signal.number()), ("SIGINT", 2));
    }
}

#[test]
fn fields_with_two_forms_take_both() {
    let rollback = |text: &str| agent(&format!(r#""rollback": {text}"#)).rollback;
    assert_eq!(rollback("false"), Rollback::Never);
    assert_eq!(rollback("{}"), Rollback::SelfRestarts(Duration::from_secs(15)));
    assert_eq!(
        rollback(r#"{ "always": true, "withinMs": 9 }"#),
        Rollback::EveryRestart(Duration::from_millis(9))
    );
    let keep = |text: &str| agent(&format!(r#""keepChildren": {text}"#)).keep_children;
    assert_eq!(keep("true"), KeepChildren::All);
    assert_eq!(keep(r#"["tmux"]"#), KeepChildren::Named(vec!["tmux".to_owned()]));
    let inject = |text: &str| agent(&format!(r#""injectMcp": {text}"#)).inject_mcp;
    assert_eq!(
        [inject("true"), inject("false"), inject("\"project\"")],
        [Inject::Yes, Inject::No, Inject::Project]
    );
}

#[test]
fn two_agents_may_share_a_device_as_their_log() {
    let agents = r#"{ "name": "a", "command": "x", "logFile": "/dev/null" },
                    { "name": "b", "command": "x", "logFile": "/dev/null" }"#;
    assert!(from_text(&format!(r#"{{ "agents": [{agents}] }}"#)).is_ok());
}

#[test]
fn the_token_of_the_environment_wins_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    write("token", "from-file\n");
    let file = write("c.json", r#"{ "host": "0.0.0.0", "tokenFile": "token" }"#);
    assert_eq!(load(&file, &environment()).unwrap().token, Some(Secret::new("from-file")));
    let operator = Environment { token: Some(Secret::new("from-environment")), ..environment() };
    assert_eq!(load(&file, &operator).unwrap().token, Some(Secret::new("from-environment")));
}

#[test]
fn a_client_needs_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.json");
    std::fs::write(&file, r#"{ "host": "0.0.0.0", "agents": [{ "name": "a", "command": "x" }] }"#).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(load(&file, &environment()).is_err(), "the daemon would be open to the network");
    assert_eq!(load_as_client(&file, &environment()).unwrap().token, None);
    edit::remove(&file, &environment(), "a").unwrap();
}

#[test]
fn what_differs_is_named_by_its_field() {
    let before = agent(r#""args": ["a"], "env": { "A": "1", "B": "2" }, "settleMs": 1"#);
    let after = agent(r#""args": ["b"], "env": { "A": "1", "B": "3", "C": "" }, "settleMs": 1"#);
    assert_eq!(before.diff(&after), ["args", "env.B", "env.C"]);
    assert_eq!(before.diff(&before), Vec::<String>::new());
    assert!(!before.launches_like(&after));
    let quieter = Agent { log_keep: 9, graceful_timeout: Duration::ZERO, ..before.clone() };
    assert!(before.launches_like(&quieter));
    assert_eq!(before.diff(&quieter), ["gracefulTimeoutMs", "logKeep"]);
}

#[test]
fn settings_that_wait_for_the_next_start_are_named() {
    let before = from_text(r#"{ "port": 1, "token": "a", "agents": [] }"#).unwrap();
    let after =
        from_text(r#"{ "port": 2, "token": "b", "agents": [{ "name": "a", "command": "x" }] }"#).unwrap();
    assert_eq!(before.settings_diff(&after), ["port", "token"]);
}

#[test]
fn secrets_are_not_shown() {
    let text = r#"{ "token": "hunter2", "agents": [{ "name": "a", "command": "x", "args": ["--api-key", "hunter2"],
        "env": { "OPENAI_API_KEY": "hunter2", "DB": "pg://a:hunter2@h/", "PATH": "/bin" } }] }"#;
    let config = from_text(text).unwrap();
    let shown = show::config(&config).to_string();
    assert!(!shown.contains("hunter2") && shown.contains("/bin"), "{shown}");
    assert!(!format!("{:?}", config.token).contains("hunter2"));
}

#[test]
fn files_are_looked_up_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let cwd = folder.path().to_owned();
    let here = Environment { cwd: cwd.clone(), ..environment() };
    let named = Environment { config: Some("named.json".into()), ..here.clone() };
    assert_eq!(lookup::config_file(Some(Path::new("flag.json")), &named), cwd.join("flag.json"));
    assert_eq!(lookup::config_file(None, &named), cwd.join("named.json"));
    assert_eq!(lookup::config_file(None, &here), PathBuf::from("/home/ada/.config/mcp-restart/config.json"));
    std::fs::write(cwd.join(lookup::PROJECT_FILE), "{}").unwrap();
    assert_eq!(lookup::config_file(None, &here), cwd.join(lookup::PROJECT_FILE));
}

#[test]
fn a_path_that_leads_up_means_what_the_system_means_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    std::fs::create_dir_all(root.join("far/away")).unwrap();
    std::os::unix::fs::symlink(root.join("far/away"), root.join("link")).unwrap();
    let here = Environment { cwd: root.clone(), ..environment() };
    let file = |named: &str| lookup::config_file(Some(Path::new(named)), &here);
    assert_eq!(file("./c.json"), root.join("c.json"));
    assert_eq!(file("far/../c.json"), root.join("c.json"));
    assert_eq!(file("link/../c.json"), root.join("far/c.json"));
    assert_eq!(file("link"), root.join("link"), "a link may be switched to another file");
    assert_eq!(file("gone/../c.json"), root.join("gone/../c.json"));
    assert_eq!(lookup::state_dir(Some(Path::new("link/../s")), None, &here), Ok(root.join("far/s")));
}

#[test]
fn the_log_of_an_agent_is_none_of_the_daemons_files() {
    for (log, refused) in [
        ("s/state.json", true),
        ("s/logs/../run/x", true),
        ("s", true),
        ("s/logs/other.log", false),
        ("state.log", false),
    ] {
        let agent = format!(r#"{{ "name": "a", "command": "x", "logFile": "{log}" }}"#);
        let loaded = from_text(&format!(r#"{{ "stateDir": "s", "agents": [{agent}] }}"#));
        let faults = loaded.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(faults.contains("the daemon keeps its own files in"), refused, "{log}: {faults}");
    }
}

#[test]
fn the_state_dir_is_looked_up_in_order() {
    let config: Config = from_text(r#"{ "stateDir": "/from/config" }"#).unwrap();
    let variable = Environment { state_dir: Some("/from/variable".into()), ..environment() };
    let dir = |flag: Option<&str>, config, environment: &Environment| {
        lookup::state_dir(flag.map(Path::new), config, environment).unwrap()
    };
    assert_eq!(dir(Some("flag"), Some(&config), &variable), Path::new("/project/flag"));
    assert_eq!(dir(None, Some(&config), &variable), Path::new("/from/variable"));
    assert_eq!(dir(None, Some(&config), &environment()), Path::new("/from/config"));
    assert_eq!(dir(None, None, &environment()), Path::new("/home/ada/.local/state/mcp-restart"));
    let xdg = Environment { xdg_state_home: Some("/x".into()), ..environment() };
    assert_eq!(dir(None, None, &xdg), Path::new("/x/mcp-restart"));
    assert_eq!(lookup::state_dir(None, None, &Environment::default()), Err(lookup::NoStateDir));
}

#[test]
fn urls_put_brackets_around_ipv6() {
    assert_eq!(lookup::bridge_url("127.0.0.1".parse().unwrap(), 4310), "http://127.0.0.1:4310/mcp");
    assert_eq!(lookup::bridge_url("::1".parse().unwrap(), 1), "http://[::1]:1/mcp");
}

#[test]
fn a_config_that_an_agent_could_edit_to_free_itself_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.json");
    let warnings = |fields: &str| {
        let text = format!(r#"{{ "agents": [{{ "name": "a", "command": "x", {fields} }}] }}"#);
        mcp_restart_config::warnings(&mcp_restart_config::from_text(&text, &file, &environment()).unwrap())
    };
    assert_eq!(warnings(r#""control": "all""#), Vec::<String>::new());
    assert_eq!(warnings(r#""control": "self", "cwd": "/""#).len(), 1);
    assert!(warnings(r#""control": "self""#)[0].contains("lies inside"));
    assert!(warnings(r#""cwd": "none""#)[0].contains("No such file"));
}
