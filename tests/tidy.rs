//! The house rules that a program can check.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The arrows of ARCHITECTURE.md.
const ARROWS: [(&str, &[&str]); 12] = [
    ("agents", &["config"]),
    ("bridge", &["config", "paths", "protocol"]),
    ("config", &[]),
    ("ctl", &["agents", "config", "paths", "protocol"]),
    ("daemon", &["agents", "config", "paths", "process", "protocol", "shim", "stdio", "supervisor"]),
    ("paths", &[]),
    ("process", &["paths"]),
    ("protocol", &["paths"]),
    ("shim", &["paths", "process", "protocol"]),
    ("stdio", &["config", "paths", "process", "protocol"]),
    ("supervisor", &["protocol"]),
    ("mcp-restart", &["bridge", "ctl", "daemon"]),
];
const LINES_MAX: usize = 700;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every file of Rust in it.
pub(crate) fn sources() -> Vec<PathBuf> {
    let mut folders = vec![root().join("crates"), root().join("tests")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("node_modules") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn crates_depend_on_each_other_as_drawn_and_no_more() {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
        let siblings = dependencies.lines().filter_map(|line| line.strip_prefix("mcp-restart-"));
        let mut siblings: Vec<String> =
            siblings.map(|rest| rest.split(['.', ' ']).next().unwrap().to_owned()).collect();
        siblings.sort();
        found.insert(path.file_name().unwrap().to_str().unwrap().to_owned(), siblings);
    }
    let drawn =
        ARROWS.map(|(name, siblings)| (name.to_owned(), siblings.iter().map(|s| (*s).to_owned()).collect()));
    assert_eq!(found, BTreeMap::from(drawn));
}

#[test]
fn bincode_is_named_in_one_file() {
    let me = Path::new(file!()).file_name().unwrap();
    let codec = root().join("crates/protocol/src/codec.rs");
    let others = sources().into_iter().filter(|path| *path != codec && path.file_name() != Some(me));
    let naming: Vec<_> = others.filter(|path| uses(path, "bincode::")).collect();
    assert!(naming.is_empty(), "{naming:?}");
}

#[test]
fn unsafe_code_and_what_differs_between_systems_is_in_one_crate() {
    let process = root().join("crates/process");
    let me = Path::new(file!()).file_name().unwrap();
    let others =
        sources().into_iter().filter(|path| !path.starts_with(&process) && path.file_name() != Some(me));
    let naming: Vec<_> = others.filter(|path| uses(path, "unsafe {") || uses(path, "target_os")).collect();
    assert!(naming.is_empty(), "{naming:?}");
}

#[test]
fn no_file_is_longer_than_a_reader_can_bear() {
    let long: Vec<_> = sources()
        .into_iter()
        .map(|path| (fs::read_to_string(&path).unwrap().lines().count(), path))
        .filter(|(lines, _)| *lines > LINES_MAX)
        .collect();
    assert!(long.is_empty(), "{long:?}");
}

#[test]
fn every_file_beside_this_one_is_part_of_the_tests() {
    let main = fs::read_to_string(root().join("tests/main.rs")).unwrap();
    for entry in fs::read_dir(root().join("tests")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.extension().is_some_and(|extension| extension == "rs") && name != "main" {
            assert!(main.contains(&format!("\nmod {name};")), "tests/{name}.rs is in no binary");
        }
    }
}

fn uses(path: &Path, word: &str) -> bool {
    let text = fs::read_to_string(path).unwrap();
    text.lines().any(|line| !line.trim_start().starts_with("//") && line.contains(word))
}
