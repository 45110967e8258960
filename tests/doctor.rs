//! What `doctor` finds.

use crate::support::{Stack, sleeper};
use serde_json::json;

#[test]
fn doctor_finds_nothing_where_all_is_well_and_a_remedy_for_what_is_not() {
    let stack = Stack::up(&json!([sleeper("a")]));
    let report = stack.json(&["doctor"]);
    assert_eq!(report["ok"], true, "{report}");
    stack.write_config(&json!([sleeper("a"), { "name": "b", "command": "no-such-program" }]));
    let run = stack.ctl(&["doctor"]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stdout.contains("wrong program: b: no-such-program"), "{run:?}");
    assert!(run.stdout.contains("remedy: install it"), "{run:?}");
    stack.ctl(&["start", "b"]).failed(1, "no-such-program was not found");
    let refused = stack.ctl(&["start", "b"]).stderr;
    assert!(refused.contains("agents[1].command"), "the line to mend is named: {refused}");
}
