//! What holds for every config file.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "these are tests, helpers included: what they panic over is what they found"
)]

mod any_text;
mod editing;
mod faults;
mod reference;
mod resolution;

use any_text::{environment, from_text};
