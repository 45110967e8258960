//! What a file that cannot be used says all the same.
//!
//! The daemon of such a file has to be found while somebody mends it. Its state dir is read past the fault, word by
//! word: a comma too few or a field that is none does not hide it.

use crate::environment::Environment;
use crate::read;
use crate::resolve;
use jsonc_parser::tokens::Token;
use jsonc_parser::{Scanner, ScannerOptions};
use std::path::{Path, PathBuf};

/// The state dir that a config file names, however broken the rest of it is. None where it names none, or where
/// others could have written it.
pub(crate) fn state_dir(file: &Path, environment: &Environment) -> Option<PathBuf> {
    let named = named_state_dir(&read::trusted(file).ok()?)?;
    resolve::absolute(&named, file.parent()?, environment).ok()
}

/// The value of the first `stateDir` that has one. What is no word ends a scan of the whole; a line of its own may be
/// whole all the same.
fn named_state_dir(text: &str) -> Option<String> {
    std::iter::once(text).chain(text.lines()).find_map(|part| {
        let mut scanner = Scanner::new(part, &ScannerOptions::default());
        let tokens = std::iter::from_fn(|| scanner.scan().ok().flatten());
        let words: Vec<_> =
            tokens.filter(|token| !matches!(token, Token::CommentLine(_) | Token::CommentBlock(_))).collect();
        words.windows(3).find_map(|three| match three {
            [Token::String(name), Token::Colon, Token::String(value)]
                if name == "stateDir" && !value.is_empty() =>
            {
                Some(value.clone().into_owned())
            }
            _ => None,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_state_dir_is_found_past_faults_of_every_kind() {
        for text in [
            r#"{ "stateDir": "s", "agent": [] }"#,
            r#"{ "port": 1 "stateDir": "s" }"#,
            r#"{ "port": , "stateDir" : /* here */ "s", "agents": ["#,
            "{ \"port: 1,\n  \"stateDir\": \"s\"\n}",
            "{ \"port\": §1,\n  \"stateDir\": \"s\"\n}",
            "<<<<<<< HEAD\n{ \"stateDir\": \"s\" }",
            r#"{ "stateDir": { "stateDir": "s" } }"#,
        ] {
            assert_eq!(named_state_dir(text).as_deref(), Some("s"), "{text}");
        }
    }

    #[test]
    fn what_names_no_state_dir_gives_none() {
        for text in [
            "",
            "{",
            r#"{ "stateDir": "" }"#,
            r#"{ "stateDir": 1 }"#,
            r#"// "stateDir": "s""#,
            r#"["stateDir", "s"]"#,
        ] {
            assert_eq!(named_state_dir(text), None, "{text}");
        }
    }

    #[test]
    fn it_is_relative_to_the_file_and_nobody_elses_word() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        fs::write(&file, r#"{ "stateDir": "./s""#).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(state_dir(&file, &Environment::default()), Some(folder.path().join("s")));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(state_dir(&file, &Environment::default()), None);
    }
}
