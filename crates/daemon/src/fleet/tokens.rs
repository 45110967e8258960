//! Whom a token belongs to.

use super::store::Store;
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
}
