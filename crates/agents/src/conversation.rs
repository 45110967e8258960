//! What an agent CLI writes down of its conversations, and where.

use mcp_restart_config::Kind;
use serde_json::Value;
use std::path::PathBuf;

/// Where a kind keeps what was said: in a folder of `folder` there is a file of this name, if anything was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transcripts {
    /// The folder of folders.
    pub folder: PathBuf,
    /// The file's name.
    pub file: String,
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
/// it from inside. `variable` gives what the process has in its environment.
pub fn live_session_file(kind: Kind, variable: impl Fn(&str) -> Option<String>, pid: u32) -> Option<PathBuf> {
    match kind {
        Kind::Claude => Some(claude_folder(variable)?.join("sessions").join(format!("{pid}.json"))),
        _ => None,
    }
}

/// What such a file says.
pub fn live_session(kind: Kind, text: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let id = value.get("sessionId")?.as_str()?;
    is_session_id(kind, id).then(|| id.to_owned())
}

/// Where it can be looked up whether there is anything to resume of a conversation; none for a kind that
/// copes by itself.
pub fn transcripts(kind: Kind, variable: impl Fn(&str) -> Option<String>, id: &str) -> Option<Transcripts> {
    match kind {
        Kind::Claude => Some(Transcripts {
            folder: claude_folder(variable)?.join("projects"),
            file: format!("{id}.jsonl"),
        }),
        _ => None,
    }
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
        let file = live_session_file(Kind::Claude, home, 7);
        assert_eq!(file, Some("/home/ada/.claude/sessions/7.json".into()));
        let named = |name: &str| (name == "CLAUDE_CONFIG_DIR").then(|| "/other".to_owned());
        assert_eq!(transcripts(Kind::Claude, named, "id").unwrap().folder, PathBuf::from("/other/projects"));
        let text = br#"{"pid":7,"sessionId":"0190c0de-1234-7abc-8def-0123456789ab","status":"idle"}"#;
        assert!(live_session(Kind::Claude, text).is_some());
        assert_eq!(live_session(Kind::Claude, br#"{"sessionId":"--help"}"#), None);
    }
}
