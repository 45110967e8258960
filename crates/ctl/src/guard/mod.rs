//! Which shell commands would hit the supervisor or its agents by name, pattern or number.
//!
//! ```text
//!  text ─► shell (commands, words) ─► judge ─┬─ words that kill   ─► targets ─┐
//!                 ▲                          └─ words that look up ─► targets ─┴─► Protected ─► hits
//!                 └──── sh -c, eval, xargs, here-documents ◄┘
//! ```
//!
//! It prevents accidents and no attacks: whoever wants to hide a kill from it can. What it cannot know, such as the value of a
//! variable that was set elsewhere, passes.

mod judge;
mod protected;
mod shell;
mod targets;
mod wrappers;

pub(crate) use judge::{Refusal, judge};
pub(crate) use protected::{Process, Protected};
