//! What is asked about a lifecycle request beside whether it can be done, and what is written down about it.
//!
//! ```text
//!  request ─► gate: stale? contaminated? ─► fleet ─► outcome ─┐
//!                          └─ refused ────────────────────────┼─► journal ─► events.jsonl
//!  what changes about agents ─────────────────────────────────┘
//! ```

pub(crate) mod gate;
mod journal;
mod protected;

pub(crate) use gate::Gate;
pub(crate) use journal::{Journal, Note};
pub(crate) use protected::protected;
