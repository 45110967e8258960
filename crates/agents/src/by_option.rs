//! The agents that take a prompt as the value of an option.

use crate::words::{Grammar, before_end_of_options, has_option};
use crate::{Circumstances, CommandLine, Conversation, from_template};
use mcp_restart_config::Agent;

/// What such an agent's command line looks like.
pub(crate) struct Cli {
    /// How options are told from words.
    pub(crate) grammar: Grammar,
    /// The options whose value is a prompt. The first one opens an interactive session with it.
    pub(crate) prompt_options: &'static [&'static str],
    /// Whether a word that is no option is a prompt too.
    pub(crate) words_are_prompts: bool,
    /// Options by which an entry chooses the conversation itself, or does something else than converse.
    pub(crate) choosing_options: &'static [&'static str],
    /// Subcommands, by which an entry says itself what is to be done.
    pub(crate) subcommands: &'static [&'static str],
    /// What makes it begin a conversation with an id, where it can be given one, and resume one.
    pub(crate) conversation: fn(Conversation<'_>) -> Option<String>,
}

impl Cli {
    /// The command line, with these arguments before all others unless the entry's own are a subcommand's.
    pub(crate) fn compose(
        &self,
        agent: &Agent,
        injected: Vec<String>,
        circumstances: Circumstances<'_>,
    ) -> CommandLine {
        let mut own = agent.args.clone();
        let mut arguments = if self.has_subcommand(&own) { Vec::new() } else { injected };
        if let Some(template) = from_template(agent, circumstances) {
            arguments.extend(own.into_iter().chain(template));
            return CommandLine { arguments, ..CommandLine::default() };
        }
        let chosen = (!self.chooses(&own)).then_some(circumstances.conversation);
        let option = chosen.and_then(self.conversation);
        let session_id = chosen.filter(|_| option.is_some()).map(|conversation| conversation.id().to_owned());
        let appended = circumstances.restart.and_then(|restart| restart.prompt).and_then(|prompt| {
            match self.prompt_in(&own) {
                // A conversation that is resumed has heard the entry's own prompt.
                Some(place) if matches!(chosen, Some(Conversation::Resumed(_))) => {
                    place.fill(&mut own, prompt);
                    None
                }
                None if !self.has_own_purpose(&own) => {
                    self.prompt_options.first().map(|option| format!("{option}={prompt}"))
                }
                _ => None,
            }
        });
        arguments.extend(option);
        arguments.extend(own);
        arguments.extend(appended);
        CommandLine { arguments, session_id, ..CommandLine::default() }
    }

    /// Whether these arguments choose the conversation themselves.
    pub(crate) fn chooses(&self, own: &[String]) -> bool {
        has_option(own, self.choosing_options) || self.has_subcommand(own)
    }

    fn has_subcommand(&self, own: &[String]) -> bool {
        let word = self.grammar.first_word(own).and_then(|at| own.get(at));
        word.is_some_and(|word| self.subcommands.contains(&word.as_str()))
    }

    /// Whether a prompt that is added could be taken for something else.
    fn has_own_purpose(&self, own: &[String]) -> bool {
        let word = self.grammar.first_word(own).and_then(|at| own.get(at));
        word.is_some_and(|word| self.words_are_prompts || word == "--") || self.has_subcommand(own)
    }

    /// Where the entry's own prompt stands, if it can be told for certain.
    fn prompt_in(&self, own: &[String]) -> Option<PromptPlace> {
        for (at, argument) in before_end_of_options(own).iter().enumerate() {
            let (name, joined) = match argument.split_once('=') {
                Some((name, _)) => (name, true),
                None => (argument.as_str(), false),
            };
            if self.prompt_options.contains(&name) {
                let joined_to = joined.then(|| name.to_owned());
                return Some(PromptPlace { at: if joined { at } else { at + 1 }, joined_to });
            }
        }
        // The value of an option that is not known would look the same but behind a word or a known value.
        let at = self.grammar.first_word(own)?;
        let is_last = at + 1 == own.len();
        let follows_option = at
            .checked_sub(1)
            .and_then(|before| own.get(before))
            .is_some_and(|before| before.starts_with('-') && !before.contains('='));
        (self.words_are_prompts && is_last && !follows_option).then_some(PromptPlace { at, joined_to: None })
    }
}

/// The argument that has a prompt in it.
struct PromptPlace {
    at: usize,
    /// The option that it is joined to by `=`.
    joined_to: Option<String>,
}

impl PromptPlace {
    fn fill(&self, own: &mut [String], prompt: &str) {
        if let Some(argument) = own.get_mut(self.at) {
            *argument = match &self.joined_to {
                Some(option) => format!("{option}={prompt}"),
                None => prompt.to_owned(),
            };
        }
    }
}
