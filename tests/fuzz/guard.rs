//! Any text, as a shell command that the guard is asked about: it has an answer, in time.
#![no_main]
#![expect(unused_imports, reason = "the command that asks the guard uses more of it")]

#[path = "../../crates/ctl/src/guard/mod.rs"]
mod guard;

use guard::{Process, Protected, judge};
use mcp_restart_protocol::answer::Owner;
use std::sync::LazyLock;

/// Those that the seeds are about.
static PROTECTED: LazyLock<Protected> = LazyLock::new(|| Protected {
    processes: vec![
        process(4100, "mcp-restartd", Owner::Daemon),
        process(4101, "mcp-restart-http", Owner::Bridge),
        process(4201, "claude", Owner::Agent("claude".into())),
        process(4301, "node", Owner::Agent("gemini".into())),
    ],
    port: Some(4310),
    own: Some("claude".into()),
});

fn process(pid: u32, name: &str, owner: Owner) -> Process {
    Process {
        pid: Some(pid),
        parent: Some(pid - 1),
        group: Some(pid),
        names: vec![name.into()],
        command: format!("/usr/bin/{name} --config c.json"),
        owner,
    }
}

libfuzzer_sys::fuzz_target!(|text: &str| drop(judge(text, &PROTECTED)));
