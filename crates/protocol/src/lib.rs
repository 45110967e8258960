//! The words that the programs of mcp-restart speak.
//!
//! ```text
//!  client                                daemon                               shim
//!    │ hello (64 fixed bytes: verb talk)   │                                    │
//!    │ ──────────────────────────────────► │                                    │
//!    │ hello ◄──────────────────────────── │  shim hello (16 fixed bytes) ────► │
//!    │ ClientFrame{id, request} ─────────► │  ToShim ─────────────────────────► │
//!    │ ServerFrame{id, answer} ◄────────── │  FromShim ◄─────────────────────── │
//! ```
//!
//! After the hello each message is a frame: its length as a little-endian `u32`, then bincode ([`codec`]).
//! bincode is positional, so every change of a type bumps [`hello::PROTOCOL`] or
//! [`shim::SHIM_PROTOCOL`]; the golden bytes in the tests pin each variant.

pub mod agent;
pub mod answer;
pub mod client;
pub mod codec;
pub mod contamination;
pub mod halves;
pub mod hello;
pub mod journal;
pub mod plain;
pub mod request;
pub mod shim;
pub mod stdio;
pub mod timestamp;
pub mod upgrade;

pub use mcp_restart_paths as paths;

#[cfg(test)]
mod golden;
