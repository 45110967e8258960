//! The end-to-end tests: the real programs, real processes, waits on events.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect has failed"
)]

mod support;

mod command_line;
mod conversations;
mod crash;
mod daemon;
mod demo;
mod doctor;
mod exec_failures;
mod governance;
mod guards;
mod inheritance;
mod lifecycle;
mod limits;
mod logs;
mod mcp;
mod mcp_under_load;
mod rollback;
mod self_restart;
mod servers;
mod terminal;
mod tidy;
mod trees;
mod unclean;
mod upgrade;
