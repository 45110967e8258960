//! Where a field stands in a file that is good, for whoever has to mend it all the same.

use crate::decode;
use crate::fault::{Faults, Path, position};
use jsonc_parser::ast::Value;
use jsonc_parser::common::Ranged;

/// Where a field of an agent stands in the text of a file: `LINE:COLUMN: agents[0].cwd`. Of a field that the entry
/// leaves to its default, the line of the entry. None if the text has no such agent.
pub fn place_of(text: &str, agent: &str, field: &str) -> Option<String> {
    let root = decode::parse(text, &Faults::of(text))?;
    let listed = root.as_object()?.get_array("agents")?;
    let is_meant = |entry: &Value<'_>| {
        let name = entry.as_object().and_then(|entry| entry.get_string("name"));
        name.is_some_and(|name| name.value == agent)
    };
    let index = listed.elements.iter().position(is_meant)?;
    let agents = Path::Root.field("agents");
    let entry = agents.element(index);
    let field = entry.field(field);
    let (line, column) = position(text, field.locate(&root).start());
    Some(format!("{line}:{column}: {field}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_agent_and_one_that_is_not_given_by_the_entry() {
        let text = "{ \"agents\": [\n  { \"name\": \"a\", \"command\": \"x\" },\n  { \"name\": \"b\",\n    \"command\": \"y\" }\n] }";
        assert_eq!(place_of(text, "b", "command").as_deref(), Some("4:16: agents[1].command"));
        assert_eq!(place_of(text, "a", "cwd").as_deref(), Some("2:3: agents[0].cwd"));
        assert_eq!(place_of(text, "c", "cwd"), None);
        assert_eq!(place_of("{ half", "a", "cwd"), None);
    }
}
