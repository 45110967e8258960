//! Any bytes: as the body of every frame, and as a stream of frames.
#![no_main]

#[path = "../../crates/protocol/tests/laws/mod.rs"]
mod laws;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    laws::are_values_or_errors(bytes);
    laws::readers_agree(bytes);
});
