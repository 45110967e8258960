//! Whom a token belongs to.

use super::launch;
use super::store::Store;
use mcp_restart_config::{AGENT_TOKEN_PREFIX, lookup};
use mcp_restart_process::Lost;
use mcp_restart_protocol::shim::ShimFacts;
use std::path::Path;
use subtle::ConstantTimeEq;

/// The agent whose token this is. Every token is compared, in constant time each, so that the time tells
/// nothing about any of them.
pub(super) fn owner(store: &Store, token: &str) -> Option<String> {
    let mut found = None;
    for (name, record) in store.agents() {
        let same: bool = record.token.as_bytes().ct_eq(token.as_bytes()).into();
        if same && !record.token.is_empty() {
            found = Some(name.to_owned());
        }
    }
    found
}

/// The token that a living process was given: it is asked for when the stored one is lost, since the process
/// goes on showing it. Its environment says it, or the file by which it was wired in.
pub(super) fn of_process(state_dir: &Path, facts: &ShimFacts) -> Option<String> {
    let socket = lookup::socket(state_dir);
    let marks = Lost { socket: &socket.to_string_lossy(), agent: &facts.name, generation: facts.generation };
    let inherited = marks.variable(facts.pid, "MCP_RESTART_TOKEN");
    inherited.filter(|token| is_token(token)).or_else(|| {
        let file = std::fs::read_to_string(launch::mcp_config_file(state_dir, &facts.name)).ok()?;
        let written = file.split(['"', ' ']).find(|word| is_token(word));
        written.map(str::to_owned)
    })
}

fn is_token(word: &str) -> bool {
    let random = word.strip_prefix(AGENT_TOKEN_PREFIX);
    random.is_some_and(|random| !random.is_empty() && random.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_agent_and_an_empty_one_names_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(dir.path(), "boot");
        let token = store.token("a").unwrap();
        store.agent_mut("b").generation = 1;
        assert_eq!(owner(&store, &token).as_deref(), Some("a"));
        assert_eq!(owner(&store, ""), None);
        assert_eq!(owner(&store, &token[..token.len() - 1]), None);
    }

    #[test]
    fn what_is_no_token_is_not_taken_for_one() {
        assert!(is_token("mra_0a1b2c"));
        for other in ["mra_", "${MCP_RESTART_TOKEN}", "mra_secret", "operator", ""] {
            assert!(!is_token(other), "{other:?}");
        }
    }
}
