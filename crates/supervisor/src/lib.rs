//! The life of one supervised agent, as decisions only: no clock, no sockets, no files, no await.
//!
//! ```text
//!              start, restart            Started
//!   Stopped ───────────────► Starting ───────────► Running ──── Exited ───► Exited
//!   Exited                      │                     │ stop, restart, shutdown
//!   Failed                      │ SpawnFailed         │ (its own: answered first, then a delay)
//!     ▲                         ▼                     ▼
//!     │                       Failed               Stopping { then }
//!     │                                               │ Exited
//!     └───────── then: Stay, Later ───────────────────┤
//!                            Starting ◄── then: Start ┘
//! ```
//!
//! [`Machine::handle`] takes an event and gives the effects to carry out, in their order. What happens after a stop is
//! data in the stopping state: a restart that comes during a stop only edits it, and one of which an earlier daemon
//! had carried out the first half gets its launch later. A launch may be on trial (drawn in `machine/trial.rs`): if
//! its process ends too soon, the last one that stayed up takes its place. Each request has a
//! [`Ticket`] and gets exactly one [`Outcome`].

mod after;
mod event;
mod machine;

pub use event::{Ask, Effect, Event, Mode, Outcome, Plan, StopAsk, StopPlan, Ticket, Trial, UnderWay};
pub use machine::Machine;

#[cfg(test)]
mod laws;
