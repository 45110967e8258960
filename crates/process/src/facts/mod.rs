//! What the system tells about processes, and its own peculiarities: the same functions for each system.

mod linux;

pub(crate) use linux::*;
