use crate::from_text;
use mcp_restart_config::{schema, show};
use serde_json::{Map, Value, json};

const REFERENCE: &str = include_str!("../../../../docs/config.md");

/// The fields of an object type of the schema.
fn fields(of: &str) -> Map<String, Value> {
    let schema = schema();
    let object = if of.is_empty() { &schema } else { &schema["$defs"][of] };
    object["properties"].as_object().unwrap().clone()
}

#[test]
fn the_fields_are_those_of_the_contract() {
    let names = |of| fields(of).keys().cloned().collect::<Vec<_>>();
    let top = "$schema agents contamination host port staleDaemon stateDir stdioServers token tokenFile";
    let agent = "args autostart command control cwd env gracefulTimeoutMs injectMcp keepChildren kind logFile \
                 logKeep logMaxBytes name restartArgs resume rollback selfRestartDelayMs selfRestartLimit \
                 settleMs stopSignal tty";
    assert_eq!(names("").join(" "), top);
    assert_eq!(names("Agent").join(" "), agent);
    assert_eq!(names("StdioServer").join(" "), "graceMs match name");
}

/// Whether `shown` says all that `default` says.
fn holds(default: &Value, shown: &Value) -> bool {
    match (default, shown) {
        (Value::Object(default), Value::Object(shown)) => {
            default.iter().all(|(name, value)| shown.get(name).is_some_and(|shown| holds(value, shown)))
        }
        _ => default == shown,
    }
}

#[test]
fn schema_and_loader_agree_on_every_default() {
    let minimal = r#"{ "agents": [{ "name": "a", "command": "x" }],
                       "stdioServers": [{ "name": "s", "match": "s" }] }"#;
    let config = from_text(minimal).unwrap();
    let shown = show::config(&config);
    for (of, shown) in [("Agent", &shown["agents"][0]), ("StdioServer", &shown["stdioServers"][0])] {
        for (name, field) in fields(of) {
            let shown = shown.get(&name).unwrap_or_else(|| panic!("{name} is not shown"));
            assert!(field.get("default").is_none_or(|default| holds(default, shown)), "{name}: {shown}");
        }
    }
    let empty = show::config(&from_text("{}").unwrap());
    for (name, field) in fields("") {
        assert!(field.get("default").is_none_or(|default| holds(default, &empty[&name])), "{name}");
    }
}

#[test]
fn no_field_takes_a_value_that_its_type_does_not_allow() {
    let refused = |text: Value, field: &str| {
        let error = from_text(&text.to_string()).unwrap_err();
        let is_told = error.faults.iter().any(|fault| fault.field.as_deref() == Some(field));
        assert!(is_told, "{field}: {error}");
    };
    for name in fields("").keys() {
        refused(json!({ name: null }), name);
    }
    for name in fields("Agent").keys() {
        refused(json!({ "agents": [{ name: null }] }), &format!("agents[0].{name}"));
    }
    for name in fields("StdioServer").keys() {
        refused(json!({ "stdioServers": [{ name: null }] }), &format!("stdioServers[0].{name}"));
    }
}

#[test]
fn the_schema_has_no_formats_that_validators_stumble_over() {
    assert!(!schema().to_string().contains("\"format\""));
}

/// The rows of the reference: a field's name and its default.
fn rows() -> Vec<(String, String)> {
    let rows = REFERENCE.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| {
        let mut cells = line.split('|').skip(1);
        let name = cells.next().unwrap().trim().trim_matches('`').to_owned();
        (name, cells.next().unwrap().trim().to_owned())
    })
    .collect()
}

#[test]
fn the_reference_has_every_field_with_its_default_and_no_other() {
    let rows = rows();
    let known: Vec<_> = ["", "Agent", "StdioServer"].into_iter().flat_map(fields).collect();
    for (name, field) in &known {
        let documented: Vec<_> =
            rows.iter().filter(|(row, _)| row == name).map(|(_, default)| default).collect();
        assert!(!documented.is_empty(), "{name} is not in the reference");
        let Some(default) = field.get("default") else { continue };
        let spaced =
            default.to_string().replace(':', ": ").replace(',', ", ").replace('{', "{ ").replace('}', " }");
        let default = format!("`{}`", spaced.replace("{  }", "{}"));
        assert!(documented.contains(&&default), "{name}: {documented:?} lacks {default}");
    }
    for (row, _) in &rows {
        assert!(known.iter().any(|(name, _)| name == row), "{row} is no field");
    }
}

#[test]
fn the_examples_of_the_reference_load() {
    let examples: Vec<_> =
        REFERENCE.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        assert!(from_text(example).is_ok(), "{}", from_text(example).unwrap_err());
    }
}
