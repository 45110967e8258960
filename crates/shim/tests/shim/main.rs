//! Real shims with real agents: the laws of the process that stands between the daemon and an agent.
//!
//! A test waits for what it expects to happen, in a pipe or over a socket; it never sleeps.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what is unexpected fails the test, in its helpers too"
)]

mod adoption;
mod containment;
mod forking;
mod harness;
mod launching;
mod output;
mod stopping;
mod viewing;
