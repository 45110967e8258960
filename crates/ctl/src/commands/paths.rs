//! `paths`: the registry of restart paths.

use crate::context::Context;
use crate::problem::Problem;
use crate::screen::Style;
use mcp_restart_paths::{Entry, registry};
use serde::Serialize;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    path_id: &'static str,
    classification: &'static str,
    mechanism: &'static str,
    guard: &'static str,
    references: &'static [&'static str],
    stands_for: Option<&'static str>,
}

/// Prints every entry.
pub(crate) fn paths(context: &Context, markdown: bool) -> Result<(), Problem> {
    let screen = &context.screen;
    if screen.json {
        return screen.value(&registry().map(Shown::of).collect::<Vec<_>>());
    }
    if markdown {
        return registry().try_for_each(|entry| screen.line(entry.markdown()));
    }
    registry().try_for_each(|Entry { path_id, classification, mechanism, guard, .. }| {
        screen.line(format_args!(
            "{}  {}\n    {mechanism}\n    {} {guard}",
            screen.paint(Style::Bold, path_id),
            screen.paint(Style::Dim, classification),
            screen.paint(Style::Dim, "guard:"),
        ))
    })
}

impl Shown {
    const fn of(entry: Entry) -> Self {
        let Entry { path_id, classification, mechanism, guard, references, stands_for } = entry;
        Self { path_id, classification: classification.id(), mechanism, guard, references, stands_for }
    }
}
