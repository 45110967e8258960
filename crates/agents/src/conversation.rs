//! What an agent CLI writes down of its conversations, and where.

use crate::opencode;
use mcp_restart_config::Kind;
use serde_json::Value;
use std::path::PathBuf;

/// Where a kind keeps what was said: somewhere in the folders of `folder`, if anything was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transcripts {
    /// The folder of folders.
    pub folder: PathBuf,
    /// The folder in each of them.
    pub below: &'static str,
    /// How the file's name ends.
    pub ending: String,
    /// What stands in the file if anything was said.
    pub sign: &'static str,
}

/// Whether this can be the id of a conversation of this kind. What cannot is never put on a command line.
pub fn is_session_id(kind: Kind, id: &str) -> bool {
    match kind {
        Kind::Claude | Kind::Codex | Kind::Gemini | Kind::Copilot | Kind::Qwen => is_uuid(id),
        Kind::Opencode => id.strip_prefix("ses_").is_some_and(|rest| {
            (1..=64).contains(&rest.len()) && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
        }),
        Kind::Generic => false,
    }
}

/// The file in which a process of this kind keeps the id of the conversation that it has at present; people change
/// it from inside. `variable` gives what the process has in its environment, `mcp_config_file` is that of its agent.
pub fn live_session_file(
    kind: Kind,
    variable: impl Fn(&str) -> Option<String>,
    pid: u32,
    mcp_config_file: &str,
) -> Option<PathBuf> {
    match kind {
        Kind::Claude => Some(claude_folder(variable)?.join("sessions").join(format!("{pid}.json"))),
        Kind::Opencode => Some(opencode::session_file(mcp_config_file).into()),
        _ => None,
    }
}

/// What such a file says of the process of this generation.
pub fn live_session(kind: Kind, text: &[u8], generation: u64) -> Option<String> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let of = value.get("generation").map_or(Some(generation), Value::as_u64);
    let id = value.get("sessionId")?.as_str()?;
    (of == Some(generation) && is_session_id(kind, id)).then(|| id.to_owned())
}

/// Where it can be looked up whether there is anything to resume of a conversation; none for a kind that
/// copes by itself.
pub fn transcripts(kind: Kind, variable: impl Fn(&str) -> Option<String>, id: &str) -> Option<Transcripts> {
    match kind {
        Kind::Claude => Some(Transcripts {
            folder: claude_folder(variable)?.join("projects"),
            below: "",
            ending: format!("{id}.jsonl"),
            sign: "",
        }),
        // The file is there from the start of the process on, and is taken away at its end if nothing was said.
        Kind::Gemini => Some(Transcripts {
            folder: home(variable, "GEMINI_CLI_HOME")?.join(".gemini/tmp"),
            below: "chats",
            ending: format!("-{}.jsonl", id.get(..8)?),
            sign: "\"type\":\"gemini\"",
        }),
        Kind::Qwen => Some(Transcripts {
            folder: home(variable, "QWEN_HOME")?.join(".qwen/projects"),
            below: "chats",
            ending: format!("{id}.jsonl"),
            sign: "",
        }),
        _ => None,
    }
}

/// The home folder, or what an agent is told to take for it.
fn home(variable: impl Fn(&str) -> Option<String>, instead: &str) -> Option<PathBuf> {
    let named = variable(instead).filter(|folder| !folder.is_empty());
    named.or_else(|| variable("HOME")).map(PathBuf::from)
}

fn claude_folder(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let named = variable("CLAUDE_CONFIG_DIR").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    named.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".claude")))
}

fn is_uuid(id: &str) -> bool {
    let groups: Vec<&str> = id.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.concat().bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_an_id_of_the_kind_passes_for_one() {
        let uuid = "0190c0de-1234-7abc-8def-0123456789ab";
        for kind in [Kind::Claude, Kind::Codex, Kind::Gemini, Kind::Copilot, Kind::Qwen] {
            assert!(is_session_id(kind, uuid));
            assert!(
                !is_session_id(kind, "--version") && !is_session_id(kind, "") && !is_session_id(kind, "7")
            );
        }
        assert!(is_session_id(Kind::Opencode, "ses_4f0a") && !is_session_id(Kind::Opencode, uuid));
    }

    #[test]
    fn claude_tells_its_conversation_in_the_folder_that_its_environment_names() {
        let home = |name: &str| (name == "HOME").then(|| "/home/ada".to_owned());
        let file = live_session_file(Kind::Claude, home, 7, "/s/a.mcp.json");
        assert_eq!(file, Some("/home/ada/.claude/sessions/7.json".into()));
        let named = |name: &str| (name == "CLAUDE_CONFIG_DIR").then(|| "/other".to_owned());
        assert_eq!(transcripts(Kind::Claude, named, "id").unwrap().folder, PathBuf::from("/other/projects"));
        let text = br#"{"pid":7,"sessionId":"0190c0de-1234-7abc-8def-0123456789ab","status":"idle"}"#;
        assert!(live_session(Kind::Claude, text, 1).is_some());
        assert_eq!(live_session(Kind::Claude, br#"{"sessionId":"--help"}"#, 1), None);
    }

    #[test]
    fn what_an_earlier_process_of_opencode_wrote_down_says_nothing_of_this_one() {
        let nothing = |_: &str| None;
        let file = live_session_file(Kind::Opencode, nothing, 7, "/s/a.mcp.json");
        assert_eq!(file, Some("/s/a.session.json".into()));
        let text = br#"{"sessionId":"ses_4f0a","generation":2}"#;
        assert_eq!(live_session(Kind::Opencode, text, 2).as_deref(), Some("ses_4f0a"));
        assert_eq!(live_session(Kind::Opencode, text, 3), None);
    }
}
