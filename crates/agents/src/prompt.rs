//! The words by which a resumed agent learns that it was restarted.

use std::fmt::Write as _;

/// The prompt of a restart. It begins with a fixed sentence, so that no note can be taken for a flag;
/// `by` says who asked for the restart, `notes` are those that may be shown: never another agent's.
pub fn restart_prompt(by: &str, generation: u64, notes: &[&str], config_diff: &[String]) -> String {
    let mut prompt =
        format!("You were restarted by mcp-restart on behalf of {by}; restart {generation} is done.");
    if !config_diff.is_empty() {
        let _ = write!(prompt, " Changed in your launch: {}.", config_diff.join(", "));
    }
    if notes.is_empty() {
        prompt.push_str(" The tool get_handoff tells more.");
    }
    for note in notes {
        let _ = write!(prompt, "\n\nNote: {note}");
    }
    prompt
}

/// The prompt of a process that runs the last launch that stayed up, since the one that `by` had asked for did not
/// live. The rest as for [`restart_prompt`].
pub fn rollback_prompt(by: &str, generation: u64, notes: &[&str], config_diff: &[String]) -> String {
    let mut prompt = format!(
        "You were restarted by mcp-restart on behalf of {by}, but the new launch did not live and was rolled back: you \
         run the last launch that stayed up; restart {generation} is done."
    );
    if !config_diff.is_empty() {
        let _ = write!(prompt, " Changed in the launch that failed: {}.", config_diff.join(", "));
    }
    prompt.push_str(
        " Do not ask for the same restart again before the entry is mended: lastExit in list_agents and the tool \
         agent_logs tell how that launch ended.",
    );
    for note in notes {
        let _ = write!(prompt, "\n\nNote: {note}");
    }
    prompt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_that_reads_like_a_flag_is_never_the_beginning() {
        let prompt = restart_prompt("yourself", 2, &["--version"], &["args".into()]);
        insta::assert_snapshot!(prompt, @r"
        You were restarted by mcp-restart on behalf of yourself; restart 2 is done. Changed in your launch: args.

        Note: --version
        ");
    }

    #[test]
    fn a_launch_that_was_rolled_back_is_told_to_the_one_that_runs_again() {
        let prompt = rollback_prompt("yourself", 3, &["go on"], &["args".into()]);
        insta::assert_snapshot!(prompt, @r"
        You were restarted by mcp-restart on behalf of yourself, but the new launch did not live and was rolled back: you run the last launch that stayed up; restart 3 is done. Changed in the launch that failed: args. Do not ask for the same restart again before the entry is mended: lastExit in list_agents and the tool agent_logs tell how that launch ended.

        Note: go on
        ");
    }
}
