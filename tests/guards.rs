//! The registry of restart paths, its page in the docs and the source say the same; and what the registry forbids is not there.

use crate::tidy::{root, sources};
use mcp_restart_paths::{RestartPath, registry};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What must not be in the source: the path that it belongs to, the word, and the files that may have it all the same.
const BANNED: [(&str, &str, &[&str]); 16] = [
    ("daemon_self_replacement", ".exec()", &["crates/ctl/src/daemon_process.rs"]),
    ("daemon_self_replacement", "execv", &["crates/process/src/launch.rs"]),
    ("daemon_self_replacement", "process::exit", &[]),
    ("daemon_self_replacement", "process::abort", &[]),
    ("daemon_self_replacement", "::abort()", &[]),
    (
        "daemon_self_replacement",
        "libc::_exit",
        &["crates/process/src/linux/launch.rs", "crates/process/src/portable/launch.rs"],
    ),
    ("crash_restart", "auto_restart", &[]),
    ("crash_restart", "restart_on_exit", &[]),
    ("crash_restart", "restart_on_crash", &[]),
    ("config_touch_reload", "set_modified", &[]),
    ("config_touch_reload", "set_times", &[]),
    ("config_touch_reload", "utime", &[]),
    ("shell_kill", "Command::new(\"", &[]),
    ("shell_kill", "/bin/sh", &[]),
    ("shell_kill", "\"pkill", &["crates/ctl/src/guard/targets.rs"]),
    ("shell_kill", "\"killall", &["crates/ctl/src/guard/targets.rs"]),
];

/// The ids of the inventory that this one continues.
const CONTINUED: [&str; 10] = [
    "cli_venv_bootstrap_execv",
    "daemon_self_replacement",
    "legacy_auto_restart_helper",
    "config_touch_reload",
    "manual_daemon_kill",
    "master_advance_auto_restart",
    "stale_runtime_resolver_reconnect",
    "conflict_marker_infra_stop",
    "ide_client_reconnect",
    "profile_switch_runtime",
];

#[test]
fn the_page_of_the_docs_is_that_of_the_registry() {
    let page = fs::read_to_string(root().join("docs/restart-paths.md")).unwrap();
    let rows: Vec<_> = page
        .lines()
        .skip_while(|line| !line.starts_with("| path |"))
        .filter(|line| line.starts_with("| `"))
        .collect();
    let expected: Vec<_> = registry().map(|entry| entry.markdown()).collect();
    assert_eq!(rows, expected, "`mcp-restartctl paths --markdown` prints the rows");
}

#[test]
fn every_way_of_the_inventory_before_this_one_has_its_counterpart() {
    let found: BTreeSet<_> = registry().filter_map(|entry| entry.stands_for).collect();
    assert_eq!(found, BTreeSet::from(CONTINUED));
}

#[test]
fn every_reference_is_there() {
    for entry in registry() {
        for reference in entry.references {
            assert!(root().join(reference).exists(), "{}: {reference}", entry.path_id);
        }
    }
}

#[test]
fn a_path_is_taken_in_the_files_that_the_registry_names_and_in_no_other() {
    let amiss = out_of_step(&programs().collect::<Vec<_>>());
    assert!(amiss.is_empty(), "{amiss:#?}");
}

#[test]
fn a_file_that_takes_a_path_unregistered_is_found_and_so_is_one_that_no_longer_does() {
    let mut files: Vec<_> = programs().collect();
    files.push((
        "crates/daemon/src/planted.rs".to_owned(),
        "fn planted() { kill(RestartPath::Rollback) }".to_owned(),
    ));
    assert_eq!(out_of_step(&files), ["rollback: crates/daemon/src/planted.rs"]);
    let files: Vec<_> = programs().filter(|(file, _)| file != "crates/daemon/src/fleet/trials.rs").collect();
    assert_eq!(out_of_step(&files), ["rollback: crates/daemon/src/fleet/trials.rs"]);
}

#[test]
fn what_the_registry_forbids_is_not_in_the_source() {
    let found: Vec<_> = programs().flat_map(|(file, text)| banned(&file, &text)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn each_ban_finds_what_is_planted() {
    for (path_id, word, _) in BANNED {
        let planted = format!("fn harmless() {{}}\n\nfn planted() {{ {word} }}\n");
        let found = banned("crates/daemon/src/run.rs", &planted);
        assert!(
            found.iter().any(|fault| fault.contains(path_id) && fault.contains(":3:")),
            "{word}: {found:?}"
        );
        assert!(registry().any(|entry| entry.path_id == path_id), "{path_id}");
    }
    assert_eq!(banned("crates/daemon/src/run.rs", "// process::exit\n    /// pkill\n"), [""; 0]);
}

/// The paths that a file takes which their entries do not name, or does not take though they do.
fn out_of_step(files: &[(String, String)]) -> Vec<String> {
    let mut amiss = Vec::new();
    for path in RestartPath::ALL {
        let word = format!("RestartPath::{path:?}");
        let taking: BTreeSet<_> =
            files.iter().filter(|(_, text)| names(text, &word)).map(|(file, _)| file.as_str()).collect();
        let referred: BTreeSet<_> = path.entry().references.iter().copied().collect();
        amiss.extend(taking.symmetric_difference(&referred).map(|file| format!("{path}: {file}")));
    }
    amiss
}

/// The bans that a file breaks, each with its line.
fn banned(file: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
        for (path_id, word, allowed) in BANNED {
            if line.contains(word) && !allowed.contains(&file) {
                faults.push(format!("{file}:{}: {word} is {path_id}", number + 1));
            }
        }
    }
    faults
}

/// The source of the programs, without their tests and without the registry itself: the file from the root of the repository, and its text.
fn programs() -> impl Iterator<Item = (String, String)> {
    let root = root();
    let is_test = |path: &Path| {
        path.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "benches" | "laws")))
            || path
                .file_name()
                .is_some_and(|name| name == "tests.rs" || name == "laws.rs" || name == "testing.rs")
    };
    let own = sources().into_iter().map(move |path| path.strip_prefix(&root).unwrap().to_owned());
    let own = own.filter(move |path| {
        path.starts_with("crates") && !path.starts_with("crates/paths") && !is_test(path)
    });
    own.map(|path| {
        let text = fs::read_to_string(crate::tidy::root().join(&path)).unwrap();
        let program = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
        (path.to_str().unwrap().to_owned(), program)
    })
}

/// Whether a text has a word that does not go on.
fn names(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        !text[at + word.len()..].starts_with(|next: char| next.is_alphanumeric() || next == '_')
    })
}
