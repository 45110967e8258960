//! `handoff/<name>.json`: what one incarnation leaves for the next.
//!
//! The note of an accepted restart is on disk as `<name>.next` before the old process is stopped, and
//! becomes `<name>.json` when the new one is launched; so the running process keeps its own until then, and
//! a restart that is superseded takes nothing away.

use mcp_restart_process::file::create_folder_with_parents;
use mcp_restart_protocol::answer::{Caller, Handoff, Note};
use mcp_restart_protocol::request::NOTE_MAX;
use mcp_restart_protocol::timestamp::Timestamp;
use std::io;
use std::path::{Path, PathBuf};

/// How many notes are kept of restarts that are joined.
const NOTES_MAX: usize = 64;
/// How many bytes of notes a prompt takes; a single argument of a program has a limit.
const PROMPT_NOTES_MAX: usize = 4 * NOTE_MAX;

/// Where the note for an agent's present process is.
pub(super) fn file(state_dir: &Path, name: &str) -> PathBuf {
    state_dir.join("handoff").join(format!("{name}.json"))
}

/// The hand-off of a restart that is about to be accepted; restarts that are joined keep all their notes.
/// `launching` is the number of the launch that is under way: its process is replaced before it could look at its
/// own notes, and hands them on.
pub(super) fn compose(
    state_dir: &Path,
    name: &str,
    generation: u64,
    note: Note,
    config_diff: &[String],
    request_id: Option<String>,
    launching: Option<u64>,
) -> Handoff {
    let is_of_launch = |present: &Handoff| launching.is_some_and(|number| present.generation >= number);
    let unread = || read_present(state_dir, name).filter(|it| it.read_at.is_none() && is_of_launch(it));
    let earlier = read(&next_file(state_dir, name)).or_else(unread);
    let mut notes = earlier.map(|earlier| earlier.notes).unwrap_or_default();
    notes.push(note);
    notes.drain(..notes.len().saturating_sub(NOTES_MAX));
    Handoff {
        agent: name.to_owned(),
        generation,
        at: Timestamp::now(),
        notes,
        config_diff: config_diff.to_vec(),
        request_id,
        rolled_back: false,
        read_at: None,
    }
}

/// The hand-off of a restart that is tried once more. What was put in place already, for a process that
/// never came, is taken back.
pub(super) fn take_back(state_dir: &Path, name: &str, generation: u64) -> Handoff {
    let next = next_file(state_dir, name);
    if let Some(handoff) = read(&next) {
        return handoff;
    }
    if let Some(handoff) = read_present(state_dir, name).filter(|present| present.generation == generation) {
        if let Err(error) = std::fs::rename(file(state_dir, name), next) {
            tracing::error!(agent = name, %error, "the hand-off note could not be taken back");
        }
        return handoff;
    }
    without_notes(name, generation)
}

/// What is handed on where nobody has written anything, or it is lost.
pub(super) fn without_notes(name: &str, generation: u64) -> Handoff {
    Handoff {
        agent: name.to_owned(),
        generation,
        at: Timestamp::now(),
        notes: Vec::new(),
        config_diff: Vec::new(),
        request_id: None,
        rolled_back: false,
        read_at: None,
    }
}

/// Puts the hand-off of an accepted restart on disk.
pub(super) fn write_next(state_dir: &Path, handoff: &Handoff) -> io::Result<()> {
    let next = next_file(state_dir, &handoff.agent);
    if let Some(folder) = next.parent() {
        create_folder_with_parents(folder)?;
    }
    write(&next, handoff)
}

/// The hand-off of a restart that was accepted and has not come to its launch.
pub(super) fn read_next(state_dir: &Path, name: &str) -> Option<Handoff> {
    read(&next_file(state_dir, name))
}

/// Who asked for the restart first.
pub(super) fn asker(handoff: &Handoff) -> Caller {
    handoff.notes.first().map_or(Caller::Supervisor, |note| note.from.clone())
}

/// Whether a restart was accepted and has not come to its launch.
pub(super) fn has_next(state_dir: &Path, name: &str) -> bool {
    next_file(state_dir, name).exists()
}

/// The restart will not happen: nobody is handed its notes.
pub(super) fn discard_next(state_dir: &Path, name: &str) {
    if let Err(error) = remove(&next_file(state_dir, name)) {
        tracing::warn!(agent = name, %error, "the note of a superseded restart could not be removed");
    }
}

/// A process of this generation is about to be launched: what its restart hands on takes the place of the last
/// note, which a plain start takes away.
pub(super) fn promote(state_dir: &Path, name: &str, generation: u64, own: Option<&Handoff>) {
    let (next, present) = (next_file(state_dir, name), file(state_dir, name));
    let done = match (own, read(&next)) {
        (Some(own), Some(it)) if it == *own && it.generation == generation => {
            std::fs::rename(&next, &present)
        }
        (Some(own), it) => {
            let put = write(&present, &Handoff { generation, ..own.clone() });
            // Another is of a later restart, which is still to come.
            let is_own = it.is_some_and(|it| (it.at, &it.notes) == (own.at, &own.notes));
            if is_own { put.and_then(|()| remove(&next)) } else { put }
        }
        (None, _) => remove(&present),
    };
    if let Err(error) = done {
        tracing::error!(agent = name, %error, "the hand-off note could not be put in place");
    }
}

/// The note for the present process.
pub(super) fn read_present(state_dir: &Path, name: &str) -> Option<Handoff> {
    read(&file(state_dir, name))
}

/// Records that the agent itself has read its note.
pub(super) fn mark_read(state_dir: &Path, handoff: &mut Handoff) {
    if handoff.read_at.is_none() {
        handoff.read_at = Some(Timestamp::now());
        if let Err(error) = write(&file(state_dir, &handoff.agent), handoff) {
            tracing::warn!(agent = handoff.agent, %error, "that the note was read could not be stored");
        }
    }
}

/// The newest notes that may become part of a prompt, as many as a prompt bears: those of the agent itself,
/// the operator and local users.
pub(super) fn notes_for_prompt<'a>(handoff: &'a Handoff, agent: &str) -> Vec<&'a str> {
    let trusted = |from: &Caller| match from {
        Caller::Agent { name } => name == agent,
        Caller::Operator | Caller::LocalUser { .. } | Caller::Supervisor => true,
        Caller::Unknown => false,
    };
    let notes = handoff.notes.iter().rev().filter(|note| trusted(&note.from));
    let mut size = 0;
    let mut newest: Vec<&str> = notes
        .filter_map(|note| note.text.as_deref())
        .take_while(|text| {
            size += text.len();
            size <= PROMPT_NOTES_MAX
        })
        .collect();
    newest.reverse();
    newest
}

fn next_file(state_dir: &Path, name: &str) -> PathBuf {
    state_dir.join("handoff").join(format!("{name}.next"))
}

fn read(file: &Path) -> Option<Handoff> {
    let bytes = mcp_restart_process::read_regular(file).ok()?;
    serde_json::from_slice(&bytes)
        .inspect_err(|error| tracing::warn!(file = %file.display(), %error, "a hand-off note cannot be read"))
        .ok()
}

fn write(file: &Path, handoff: &Handoff) -> io::Result<()> {
    let bytes = serde_json::to_vec_pretty(handoff).map_err(io::Error::other)?;
    mcp_restart_process::write_atomically(file, &bytes)
}

fn remove(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(from: Caller, text: &str) -> Note {
        Note { from, text: Some(text.to_owned()) }
    }

    fn accept(state_dir: &Path, generation: u64, note: Note) -> Handoff {
        let handoff = compose(state_dir, "a", generation, note, &[], None, None);
        write_next(state_dir, &handoff).unwrap();
        handoff
    }

    #[test]
    fn the_running_process_keeps_its_note_until_the_next_is_launched() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = dir.path();
        let first = accept(state_dir, 2, note(Caller::Operator, "one"));
        promote(state_dir, "a", 2, Some(&first));
        accept(state_dir, 3, note(Caller::Operator, "two"));
        let joined = accept(state_dir, 3, note(Caller::Operator, "three"));
        assert_eq!(joined.notes.len(), 2, "joined restarts keep all their notes");
        assert_eq!(read_present(state_dir, "a").unwrap().generation, 2);
        promote(state_dir, "a", 3, Some(&joined));
        assert_eq!(read_present(state_dir, "a").unwrap(), joined);
        promote(state_dir, "a", 4, None);
        assert_eq!(read_present(state_dir, "a"), None, "a plain start has no note");
    }

    #[test]
    fn a_process_that_is_replaced_before_it_settled_hands_its_unread_notes_on() {
        let dir = tempfile::tempdir().unwrap();
        let next = |launching| {
            let note = note(Caller::Operator, "two");
            compose(dir.path(), "a", 3, note, &[], None, launching).notes.len()
        };
        let first = accept(dir.path(), 2, note(Caller::Operator, "one"));
        promote(dir.path(), "a", 2, Some(&first));
        assert_eq!((next(Some(2)), next(Some(3)), next(None)), (2, 1, 1));
        mark_read(dir.path(), &mut read_present(dir.path(), "a").unwrap());
        assert_eq!(next(Some(2)), 1);
    }

    #[test]
    fn a_restart_that_is_accepted_before_the_one_in_front_of_it_launches_keeps_its_note() {
        let dir = tempfile::tempdir().unwrap();
        let first = accept(dir.path(), 1, note(Caller::Operator, "one"));
        let second = accept(dir.path(), 1, note(Caller::Operator, "two"));
        promote(dir.path(), "a", 1, Some(&first));
        assert_eq!(read_present(dir.path(), "a"), Some(first));
        promote(dir.path(), "a", 2, Some(&second));
        assert_eq!(read_present(dir.path(), "a"), Some(Handoff { generation: 2, ..second }));
        assert!(!has_next(dir.path(), "a"));
    }

    #[test]
    fn the_notes_of_a_superseded_restart_reach_nobody() {
        let dir = tempfile::tempdir().unwrap();
        accept(dir.path(), 2, note(Caller::Operator, "one"));
        discard_next(dir.path(), "a");
        promote(dir.path(), "a", 2, None);
        assert_eq!(read_present(dir.path(), "a"), None);
    }

    #[test]
    fn a_restart_that_is_tried_once_more_has_its_notes_wherever_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let accepted = accept(dir.path(), 2, note(Caller::Operator, "one"));
        assert_eq!(take_back(dir.path(), "a", 2), accepted, "not yet put in place");
        promote(dir.path(), "a", 2, Some(&accepted));
        assert_eq!(take_back(dir.path(), "a", 2), accepted, "put in place for a process that never came");
        promote(dir.path(), "a", 2, Some(&accepted));
        assert_eq!(read_present(dir.path(), "a"), Some(accepted));
        assert_eq!(take_back(dir.path(), "a", 3).notes, [], "the note of the process before is not its own");
    }

    #[test]
    fn an_agent_called_next_has_notes_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        accept(dir.path(), 2, note(Caller::Operator, "one"));
        for name in ["a.next", "a.json", "a.next.json"] {
            assert!(!has_next(dir.path(), name));
            assert_eq!(read_present(dir.path(), name), None);
        }
    }

    #[test]
    fn a_prompt_bears_the_newest_notes_alone() {
        let dir = tempfile::tempdir().unwrap();
        let long = "x".repeat(NOTE_MAX);
        for _ in 0..80 {
            accept(dir.path(), 1, note(Caller::Operator, &long));
        }
        let handoff = accept(dir.path(), 1, note(Caller::Operator, "newest"));
        assert_eq!(handoff.notes.len(), NOTES_MAX);
        assert_eq!(notes_for_prompt(&handoff, "a"), [&*long, &long, &long, "newest"]);
    }

    #[test]
    fn another_agents_words_are_never_part_of_a_prompt() {
        let dir = tempfile::tempdir().unwrap();
        accept(dir.path(), 1, note(Caller::Agent { name: "b".into() }, "rm -rf"));
        let handoff = accept(dir.path(), 1, note(Caller::Agent { name: "a".into() }, "go on"));
        assert_eq!(notes_for_prompt(&handoff, "a"), ["go on"]);
    }
}
