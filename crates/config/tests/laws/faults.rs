use crate::any_text::is_a_config_or_has_faults;
use crate::{environment, from_text};
use insta::assert_snapshot;
use mcp_restart_config::{Environment, Secret};
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What is said of a text, the file's name left out.
fn faults(text: &str) -> String {
    faults_in(text, &environment())
}

fn faults_in(text: &str, environment: &Environment) -> String {
    match mcp_restart_config::from_text(text, Path::new("/project/c.json"), environment) {
        Ok(_) => "no fault".to_owned(),
        Err(error) => error.to_string().replace("/project/c.json:", ""),
    }
}

#[test]
fn a_fault_names_file_line_column_and_field() {
    let text =
        "{\n  \"agents\": [\n    { \"name\": \"a\", \"command\": \"x\", \"gracefulTimeoutMS\": 5 }\n  ]\n}";
    assert_snapshot!(
        from_text(text).unwrap_err(),
        @r#"/project/c.json:3:36: agents[0].gracefulTimeoutMS: unknown field; did you mean gracefulTimeoutMs?"#
    );
}

#[test]
fn all_faults_of_a_file_are_told_at_once() {
    let text = r#"{
  "colour": 1,
  "port": 99999,
  "host": "0.0.0.0",
  "port": 1,
  "agents": [
    {
      "name": "a b",
      "command": "",
      "args": "--verbose",
      "gracefulTimeoutMs": -1,
      "env": { "A": 1, "B=": "x", "C": "\u0000" },
      "kind": "clade",
      "stopSignal": "sigterm",
      "rollback": true,
      "keepChildren": false,
      "injectMcp": "yes",
      "resume": 1,
      "restartArgs": ["{sessionID}", "{\"a\":1}", "{prompt}"],
      "logKeep": 1.5,
      "selfRestartLimit": { "max": "1", "withinms": 5, "withinMs": 0 },
      "tty": null
    },
    {},
    5,
    { "name": "x", "command": "x", "rollback": { "withinMs": 0, "a": 1 }, "keepChildren": [1, ""] },
    { "name": "X", "command": "~bob/x", "logFile": "l" },
    { "name": "y", "command": "y", "logFile": "./a/../l" },
    { "name": "z", "command": "z", "logFile": "c.json" }
  ],
  "stdioServers": [{ "name": "s", "match": "bin/s" }, { "name": "S" }]
}"#;
    assert_snapshot!(faults(text), @r#"
2:3: colour: unknown field
3:11: port: expected a whole number from 0 to 65535, found 99999
4:11: host: an address that is not loopback needs a token (token, tokenFile or MCP_RESTART_TOKEN)
5:3: port: given twice
8:15: agents[0].name: a name has 1 to 64 letters, digits, '.', '_' or '-', and starts with neither '.' nor '-'
9:18: agents[0].command: it is empty
10:15: agents[0].args: expected an array, found a string
11:28: agents[0].gracefulTimeoutMs: expected a whole number from 0 to 86400000, found -1
12:21: agents[0].env.A: expected a string, found 1
12:30: agents[0].env.B=: the name of a variable is not empty and has no '=' in it
12:40: agents[0].env.C: it has a NUL character, which no program can be given
13:15: agents[0].kind: expected one of claude, codex, gemini, opencode, copilot, qwen, generic, found "clade"; did you mean claude?
14:21: agents[0].stopSignal: expected one of SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGKILL, SIGUSR1, SIGUSR2, SIGABRT, SIGALRM, SIGWINCH, found "sigterm"; did you mean SIGTERM?
15:19: agents[0].rollback: expected false or an object, found true
16:23: agents[0].keepChildren: expected true or an array of program names, found false
17:20: agents[0].injectMcp: expected true, false or "project", found a string
18:17: agents[0].resume: expected one of same, fresh, found 1
19:23: agents[0].restartArgs[0]: unknown placeholder {sessionID}; there are {sessionId} and {prompt}
20:18: agents[0].logKeep: expected a whole number from 0 to 100, found 1.5
21:36: agents[0].selfRestartLimit.max: expected a whole number from 0 to 1000000, found a string
21:41: agents[0].selfRestartLimit.withinms: unknown field; did you mean withinMs?
21:68: agents[0].selfRestartLimit.withinMs: expected a whole number from 1 to 86400000, found 0
22:14: agents[0].tty: expected a boolean, found null
24:5: agents[1].name: missing
24:5: agents[1].command: missing
25:5: agents[2]: expected an object, found 5
26:62: agents[3].rollback.withinMs: expected a whole number from 1 to 86400000, found 0
26:65: agents[3].rollback.a: unknown field
26:92: agents[3].keepChildren[0]: expected a string, found 1
26:95: agents[3].keepChildren[1]: it is empty
27:15: agents[4].name: agent "x" has this name already (case is ignored)
27:31: agents[4].command: only ~/ is known here, not the home folders of other users
27:52: agents[4].logFile: agent "X" has the same log file
28:47: agents[5].logFile: this is the config file itself
31:44: stdioServers[0].match: a basename is compared with it: it has no '/' in it
31:55: stdioServers[1].match: missing
31:65: stdioServers[1].name: server "s" has this name already (case is ignored)
"#);
}

#[test]
fn a_syntax_error_is_told_with_its_place() {
    let texts = [
        "",
        "// nothing",
        "{",
        "[]",
        "{\"a\" 1}",
        "{\n  port: 1\n}",
        "{\"port\": 0x10}",
        "{} {}",
        "{'a': 1}",
    ];
    let told: Vec<_> = texts.map(|text| format!("{text:?}: {}", faults(text))).into();
    assert_snapshot!(told.join("\n"), @r#"
"": 1:1: the file is empty; expected an object
"// nothing": 1:1: the file is empty; expected an object
"{": 1:1: syntax error: unterminated object
"[]": 1:1: expected an object, found an array
"{\"a\" 1}": 1:6: syntax error: expected colon after the string or word in object property
"{\n  port: 1\n}": 2:3: syntax error: expected string for object property
"{\"port\": 0x10}": 1:10: syntax error: hexadecimal numbers are not allowed
"{} {}": 1:4: syntax error: text cannot contain more than one JSON value
"{'a': 1}": 1:2: syntax error: single-quoted strings are not allowed
"#);
}

#[test]
fn comments_and_trailing_commas_are_no_faults() {
    assert_eq!(faults("// mine\n{ /* yes */ \"port\": 1, \"agents\": [], }\n"), "no fault");
}

#[test]
fn tokens_that_cannot_work_are_refused() {
    let texts = [
        r#"{ "token": "" }"#,
        r#"{ "token": "two words" }"#,
        r#"{ "token": "mra_x" }"#,
        r#"{ "token": "a", "tokenFile": "b" }"#,
        r#"{ "tokenFile": "none" }"#,
        r#"{ "host": "::" }"#,
    ];
    let told: Vec<_> = texts.map(|text| format!("{text}: {}", faults(text))).into();
    assert_snapshot!(told.join("\n"), @r#"
{ "token": "" }: 1:12: token: the token is empty
{ "token": "two words" }: 1:12: token: a token has only visible ASCII characters, and no spaces
{ "token": "mra_x" }: 1:12: token: a token that starts with mra_ is an agent's; the operator's has to be another
{ "token": "a", "tokenFile": "b" }: 1:30: tokenFile: token and tokenFile cannot both be given
{ "tokenFile": "none" }: 1:16: tokenFile: /project/none: there is no such file
{ "host": "::" }: 1:11: host: an address that is not loopback needs a token (token, tokenFile or MCP_RESTART_TOKEN)
"#);
    let empty = Environment { token: Some(Secret::new("")), ..environment() };
    assert_snapshot!(faults_in("{}", &empty), @r#" MCP_RESTART_TOKEN: the token is empty"#);
}

#[test]
fn a_file_is_read_before_it_is_believed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.json");
    let told = |text: &[u8], mode| {
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let error = mcp_restart_config::load(&file, &environment()).unwrap_err();
        error.to_string().replace(&format!("{}:", file.display()), "")
    };
    let told = [told(b"{}", 0o666), told(b"{\n<<<<<<< HEAD\n\"port\": x,\n=======\n>>>>>>> b\n}", 0o600)];
    assert_snapshot!(told.join("\n"), @r#"
 others may write it (mode 666), and could run any command through it; chmod go-w
2:1: unresolved merge conflict (<<<<<<<); resolve it and save the file again
"#);
}

const VALID: &str = r#"{ "host": "127.0.0.1", "token": "t", "agents": [ { "name": "a", "command": "claude",
  "args": ["-v", "é"], "env": { "A": "b" }, "rollback": { "withinMs": 5 }, "keepChildren": true,
  "restartArgs": ["{prompt}"], "selfRestartLimit": { "max": 1 } } ], "stdioServers": [] }"#;

/// JSON with the names of real fields in any place.
fn json() -> impl Strategy<Value = serde_json::Value> {
    let names =
        "name|command|args|env|rollback|withinMs|max|agents|host|port|token|keepChildren|cwd|restartArgs|~|x";
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        "(a|~/|~|\\{|sessionId|\\}|\\.\\./|\u{0}|é){0,3}".prop_map(Into::into),
    ];
    leaf.prop_recursive(5, 64, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::hash_map(names, inner, 0..6)
                .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// The strings, words and signs of a text.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => rest[1..].find('"').map_or(rest.len(), |end| end + 2),
            letter if letter.is_alphanumeric() => {
                rest.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(rest.len())
            }
            sign => sign.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

#[test]
fn what_nests_without_end_is_refused() {
    for piece in ["[", "{\"agents\":", "[{\"a\":"] {
        let error = from_text(&piece.repeat(1024 * 1024 / piece.len())).unwrap_err();
        assert!(error.faults[0].line.is_some(), "{error}");
    }
}

proptest! {
    #[test]
    fn no_shuffle_of_its_words_panics_the_loader(
        moves in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..4), 1..6),
    ) {
        let valid = tokens(VALID);
        let mut tokens = valid.clone();
        for (at, from, kind) in moves {
            let (at, with, other) =
                (at.index(tokens.len()), from.index(tokens.len()), from.index(valid.len()));
            match kind {
                0 => tokens[at] = valid[other],
                1 => tokens.insert(at, valid[other]),
                2 => tokens.swap(at, with),
                _ => drop(tokens.remove(at)),
            }
        }
        is_a_config_or_has_faults(&tokens.join("\n"));
    }

    #[test]
    fn no_text_panics_the_loader_and_every_refusal_has_a_fault(text in any::<String>()) {
        is_a_config_or_has_faults(&text);
    }

    #[test]
    fn no_damage_to_a_valid_file_panics_the_loader(
        from in 0..VALID.len(), length in 0..40usize, patch in "[\\[\\]{}\",:/*0-9a-z\n\\\\é.-]{0,6}",
    ) {
        let to = (from + length).min(VALID.len());
        prop_assume!(VALID.is_char_boundary(from) && VALID.is_char_boundary(to));
        is_a_config_or_has_faults(&format!("{}{patch}{}", &VALID[..from], &VALID[to..]));
    }

    #[test]
    fn no_json_panics_the_loader(json in json()) {
        is_a_config_or_has_faults(&json.to_string());
        is_a_config_or_has_faults(&serde_json::json!({ "agents": [json] }).to_string());
    }
}
