use crate::environment;
use mcp_restart_config::edit::{self, EditError, FoundAgent};
use mcp_restart_config::{Config, Kind, Rollback};
use proptest::prelude::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// A config file in a folder of its own.
struct Fixture {
    folder: TempDir,
    file: PathBuf,
}

impl Fixture {
    fn with(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.json");
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        Self { folder, file }
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.file).unwrap()
    }

    fn add(&self, name: &str, command: &[&str]) -> Result<Config, EditError> {
        let command: Vec<_> = command.iter().map(ToString::to_string).collect();
        edit::add(&self.file, &environment(), name, &command)
    }

    fn remove(&self, name: &str) -> Result<Config, EditError> {
        edit::remove(&self.file, &environment(), name)
    }

    fn set(&self, name: &str, assignments: &[(&str, &str)]) -> Result<Config, EditError> {
        let assignments: Vec<_> =
            assignments.iter().map(|(field, value)| (field.to_string(), value.to_string())).collect();
        edit::set(&self.file, &environment(), name, &assignments)
    }
}

const COMMENTED: &str = r#"{
  // Mine.
  "agents": [
    { "name": "a", "command": "x" }, // first
    {
      "name": "b",
      "command": "y" /* second */
    }
  ]
}
"#;

#[test]
fn init_writes_a_file_that_loads_and_never_over_one_that_exists() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.json");
    edit::init(&file, &[], false).unwrap();
    let config = mcp_restart_config::load(&file, &environment()).unwrap();
    assert_eq!((config.agents[0].kind, config.agents[0].autostart), (Kind::Claude, true));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let codex = FoundAgent { name: "codex".to_owned(), command: "codex".to_owned() };
    let refused = edit::init(&file, std::slice::from_ref(&codex), false);
    assert!(matches!(refused, Err(EditError::Exists(_))), "{refused:?}");
    edit::init(&file, &[codex], true).unwrap();
    assert_eq!(mcp_restart_config::load(&file, &environment()).unwrap().agents[0].name, "codex");
}

#[test]
fn adding_and_removing_keeps_comments_and_format() {
    let fixture = Fixture::with(COMMENTED);
    let config = fixture.add("c", &["z", "-v"]).unwrap();
    assert_eq!(config.agents[2].args, ["-v"]);
    insta::assert_snapshot!(fixture.text(), @r#"
{
  // Mine.
  "agents": [
    { "name": "a", "command": "x" }, // first
    {
      "name": "b",
      "command": "y" /* second */
    },
    {
      "name": "c",
      "command": "z",
      "args": ["-v"]
    }
  ]
}
"#);
    fixture.remove("c").unwrap();
    assert_eq!(fixture.text(), COMMENTED);
}

#[test]
fn set_takes_json_of_the_fields_type_and_else_a_string() {
    let fixture = Fixture::with(COMMENTED);
    let assignments = [
        ("args", r#"["-v", "--name=x"]"#),
        ("autostart", "true"),
        ("env.DEBUG", "1"),
        ("env.A.B", "\"quoted\""),
        ("env.EMPTY", "\"\""),
        ("rollback.withinMs", "5000"),
        ("cwd", "~/src"),
        ("command", "7"),
        ("keepChildren", "true"),
    ];
    let config = fixture.set("a", &assignments).unwrap();
    let agent = &config.agents[0];
    assert_eq!((agent.autostart, agent.args.len()), (true, 2));
    assert_eq!(agent.env["DEBUG"], "1");
    assert_eq!(agent.env["A.B"], "quoted");
    assert_eq!(agent.env["EMPTY"], "");
    assert_eq!(agent.rollback, Rollback::SelfRestarts(Duration::from_secs(5)));
    insta::assert_snapshot!(fixture.text(), @r#"
{
  // Mine.
  "agents": [
    {
      "name": "a",
      "command": "7",
      "args": ["-v", "--name=x"],
      "autostart": true,
      "env": {
        "DEBUG": "1",
        "A.B": "quoted",
        "EMPTY": ""
      },
      "rollback": {
        "withinMs": 5000
      },
      "cwd": "~/src",
      "keepChildren": true
    }, // first
    {
      "name": "b",
      "command": "y" /* second */
    }
  ]
}
"#);
}

#[test]
fn an_empty_value_takes_the_field_out() {
    let fixture = Fixture::with(COMMENTED);
    fixture.set("b", &[("env.X", "1"), ("env.Y", "2"), ("settleMs", "0")]).unwrap();
    fixture.set("b", &[("env.X", ""), ("env.Y", ""), ("settleMs", ""), ("tty", "")]).unwrap();
    assert_eq!(fixture.text(), COMMENTED);
}

#[test]
fn what_cannot_be_changed_is_named_and_leaves_the_file_as_it_was() {
    let fixture = Fixture::with(COMMENTED);
    let told = [
        fixture.add("A", &["x"]).unwrap_err().to_string(),
        fixture.add("-", &["x"]).unwrap_err().to_string(),
        fixture.add("c", &[]).unwrap_err().to_string(),
        fixture.remove("agent").unwrap_err().to_string(),
        fixture.set("aa", &[]).unwrap_err().to_string(),
        fixture.set("a", &[("settlems", "1")]).unwrap_err().to_string(),
        fixture.set("a", &[("settlems", "")]).unwrap_err().to_string(),
        fixture.set("a", &[("rollback.within", "1")]).unwrap_err().to_string(),
        fixture.set("a", &[("settleMs", "soon")]).unwrap_err().to_string(),
        fixture.set("a", &[("logKeep", "1000")]).unwrap_err().to_string(),
        fixture.set("a", &[("args", "-v")]).unwrap_err().to_string(),
        fixture.set("a", &[("autostart", "true"), ("command", "")]).unwrap_err().to_string(),
        fixture.set("a", &[("name", "b")]).unwrap_err().to_string(),
    ];
    let told = told.join("\n").replace(&format!("{}:", fixture.file.display()), "");
    insta::assert_snapshot!(told, @r#"
there is an agent "a" already (case is ignored)
name: a name has 1 to 64 letters, digits, '.', '_' or '-', and starts with neither '.' nor '-'
command: missing
there is no agent "agent"
there is no agent "aa"; did you mean a?
settlems: unknown field; did you mean settleMs?
settlems: unknown field; did you mean settleMs?
rollback.within: unknown field; did you mean withinMs?
settleMs: expected a whole number from 0 to 86400000, found a string
logKeep: expected a whole number from 0 to 100, found 1000
args: expected an array, found a string
command: missing
the name of an agent cannot be changed
"#);
    assert_eq!(fixture.text(), COMMENTED);
    assert_eq!(fs::read_dir(fixture.folder.path()).unwrap().count(), 1, "nothing is left beside the file");
}

#[test]
fn set_can_mend_a_faulty_file() {
    let fixture =
        Fixture::with(r#"{ "agents": [{ "name": "a", "command": "x", "settleMs": "soon", "colour": 1 }] }"#);
    assert!(matches!(fixture.set("a", &[("settleMs", "5")]), Err(EditError::Invalid(_))));
    fixture.set("a", &[("settleMs", "5"), ("colour", "")]).unwrap();
}

#[test]
fn a_file_that_is_no_config_is_left_alone() {
    for text in ["", "{", "[]", "{ \"agents\": 5 }", "{\n<<<<<<< HEAD\n}"] {
        let fixture = Fixture::with(text);
        assert!(matches!(fixture.add("a", &["x"]), Err(EditError::Invalid(_))), "{text}");
        assert_eq!(fixture.text(), text);
    }
    let folder = tempfile::tempdir().unwrap();
    let missing = edit::remove(&folder.path().join("none.json"), &environment(), "a").unwrap_err();
    assert!(missing.to_string().ends_with("none.json: there is no such file"), "{missing}");
}

#[test]
fn mode_and_symlink_stay() {
    let fixture = Fixture::with(COMMENTED);
    let link = fixture.folder.path().join("link.json");
    symlink("c.json", &link).unwrap();
    edit::remove(&link, &environment(), "b").unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&fixture.file).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(!fixture.text().contains("second"));
}

#[test]
fn of_many_who_edit_at_once_nobody_loses_a_change() {
    let fixture = Fixture::with("{}\n");
    thread::scope(|scope| {
        for editor in 0..8 {
            let fixture = &fixture;
            scope.spawn(move || {
                for change in 0..8 {
                    fixture.add(&format!("agent-{editor}-{change}"), &["x"]).unwrap();
                }
            });
        }
    });
    let config = mcp_restart_config::load(&fixture.file, &environment()).unwrap();
    assert_eq!(config.agents.len(), 64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn add_then_remove_gives_back_the_same_text(
        before in prop::collection::btree_set("[a-y][a-z0-9._-]{0,8}", 0..4),
        arguments in prop::collection::vec("[^\u{0}]{0,12}", 0..4),
    ) {
        let found: Vec<_> = before
            .iter()
            .map(|name| FoundAgent { name: name.clone(), command: name.clone() })
            .collect();
        let fixture = Fixture::with(&edit::template(&found));
        let text = fixture.text();
        let command: Vec<_> = std::iter::once("x").chain(arguments.iter().map(String::as_str)).collect();
        let config = fixture.add("zed", &command).unwrap();
        prop_assert_eq!(&config.agents.last().unwrap().args, &arguments);
        fixture.remove("zed").unwrap();
        prop_assert_eq!(fixture.text(), text);
    }

    #[test]
    fn what_is_set_is_what_is_loaded(value in "[^\u{0}]{1,20}", name in "[A-Z.é ]{1,8}") {
        let fixture = Fixture::with(COMMENTED);
        let quoted = serde_json::Value::from(value.as_str()).to_string();
        let config = fixture.set("b", &[(&format!("env.{name}"), &quoted)]).unwrap();
        prop_assert_eq!(&config.agents[1].env[&name], &value);
        fixture.set("b", &[(&format!("env.{name}"), "")]).unwrap();
        prop_assert_eq!(fixture.text(), COMMENTED);
    }
}
