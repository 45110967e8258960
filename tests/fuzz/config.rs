//! Any text, as a config file.
#![no_main]

#[path = "../../crates/config/tests/laws/any_text.rs"]
mod any_text;

libfuzzer_sys::fuzz_target!(|text: &str| any_text::is_a_config_or_has_faults(text));
