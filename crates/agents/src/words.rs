//! What an entry's own arguments say, as far as it matters for what may be added to them.

/// How a command line tells options, their values and other words apart.
pub(crate) struct Grammar {
    /// Options that take the next word as their value.
    pub(crate) with_value: &'static [&'static str],
    /// Options that take every word up to the next option.
    pub(crate) with_values: &'static [&'static str],
}

impl Grammar {
    /// Where the first word stands that is neither an option nor the value of one: a prompt, or a
    /// subcommand. `--` counts, since what follows it is one. A value of an option that is not known counts too:
    /// then less is added to the arguments, never more.
    pub(crate) fn first_word(&self, arguments: &[String]) -> Option<usize> {
        let (mut value_follows, mut values_follow) = (false, false);
        arguments.iter().position(|argument| {
            if std::mem::take(&mut value_follows) {
                return false;
            }
            if !argument.starts_with('-') || argument == "-" {
                return !values_follow;
            }
            value_follows = self.with_value.contains(&argument.as_str());
            values_follow = self.with_values.contains(&argument.as_str());
            argument == "--"
        })
    }
}

/// Where `--` stands; behind it there are no options.
pub(crate) fn end_of_options(arguments: &[String]) -> Option<usize> {
    arguments.iter().position(|argument| argument == "--")
}

/// The arguments before `--`.
pub(crate) fn before_end_of_options(arguments: &[String]) -> &[String] {
    arguments.get(..end_of_options(arguments).unwrap_or(arguments.len())).unwrap_or_default()
}

/// Whether one of these options is given, as `--option`, `--option value` or `--option=value`.
pub(crate) fn has_option(arguments: &[String], options: &[&str]) -> bool {
    before_end_of_options(arguments).iter().any(|argument| {
        let name = argument.split_once('=').map_or(argument.as_str(), |(name, _)| name);
        options.contains(&name)
    })
}

/// The value of the first of these options that is given, as `--option value` or `--option=value`.
pub(crate) fn option_value<'a>(arguments: &'a [String], options: &[&str]) -> Option<&'a str> {
    let arguments = before_end_of_options(arguments);
    arguments.iter().enumerate().find_map(|(at, argument)| match argument.split_once('=') {
        Some((name, value)) => options.contains(&name).then_some(value),
        None => options.contains(&argument.as_str()).then(|| arguments.get(at + 1).map(String::as_str))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAMMAR: Grammar = Grammar { with_value: &["--model"], with_values: &["--add-dir"] };

    fn first_word(arguments: &[&str]) -> Option<usize> {
        GRAMMAR.first_word(&arguments.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn a_prompt_is_told_from_the_values_of_options() {
        assert_eq!(first_word(&["--model", "opus", "--verbose"]), None);
        assert_eq!(first_word(&["--model", "opus", "do it"]), Some(2));
        assert_eq!(first_word(&["--add-dir", "a", "b", "--model=opus"]), None);
        assert_eq!(first_word(&["--add-dir", "a", "--verbose", "do it"]), Some(3));
        assert_eq!(first_word(&["--verbose", "--", "-x"]), Some(1));
        assert_eq!(first_word(&["--of-tomorrow", "value"]), Some(1), "rather a word too many");
    }

    #[test]
    fn an_option_is_found_in_each_of_its_forms_and_not_behind_the_end_of_options() {
        let has = |argument: &str| has_option(&[argument.to_owned()], &["-r", "--resume"]);
        assert!(has("--resume") && has("--resume=7") && has("-r"));
        assert!(!has("--resumed"));
        assert!(!has_option(&["--".to_owned(), "--resume".to_owned()], &["--resume"]));
    }
}
