//! The words by which an agent that goes on learns why it was interrupted.

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
    prompt + &noted(notes)
}

/// The prompt of a process whose predecessor ended with the machine. Notes are those that it had not read.
pub fn reboot_prompt(generation: u64, notes: &[&str]) -> String {
    format!(
        "You were started again by mcp-restart: your last process ended with the machine, or the container, that it ran on; \
         this is launch {generation}. What you were doing may have been cut off: look before you go on.{}",
        noted(notes)
    )
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
    prompt + &noted(notes)
}

fn noted(notes: &[&str]) -> String {
    notes.iter().flat_map(|note| ["\n\nNote: ", note]).collect()
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

    #[test]
    fn who_ended_with_the_machine_is_told_of_that() {
        let prompt = reboot_prompt(4, &["go on"]);
        insta::assert_snapshot!(prompt, @r"
        You were started again by mcp-restart: your last process ended with the machine, or the container, that it ran on; this is launch 4. What you were doing may have been cut off: look before you go on.

        Note: go on
        ");
    }
}
