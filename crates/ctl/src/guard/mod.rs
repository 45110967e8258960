//! Which shell commands would hit the supervisor or its agents by name, pattern or number.
//!
//! ```text
//!  text ─► shell (commands, words) ─► judge ─┬─ words that kill   ─► targets ─┐
//!                 ▲                     │    └─ words that look up ─► targets ─┴─► Protected ─► hits
//!                 │                     ├─ wrappers: sudo, xargs, sh -c, …
//!                 │                     ├─ printed: echo, here-documents, base64 -d, …
//!                 │                     └─ code: python -c, awk, …
//!                 └── scripts ◄──────────────┘
//! ```
//!
//! It prevents accidents and no attacks: whoever wants to hide a kill from it can. What it cannot know, such as the value of a
//! variable that was set elsewhere, passes.

mod code;
mod judge;
mod printed;
mod protected;
mod shell;
mod targets;
#[cfg(test)]
mod tests;
mod wrappers;

pub(crate) use judge::{Refusal, judge};
pub(crate) use protected::{Process, Protected};
