//! Changes to a config file by program: what people and agents use instead of editing one file by hand at
//! the same time.
//!
//! ```text
//!  lock ─► read ─► change the text ─► check the result as a whole ─► replace the file ─► unlock
//!                  (format.rs)         (a fault: nothing happened)    (rename)
//! ```

mod format;
mod replace;

use crate::config::Config;
use crate::environment::Environment;
use crate::fault::{Fault, LoadError, nearest};
use crate::read::read;
use crate::resolve::Reader;
use crate::resolve_text;
use format::Document;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub use format::template;

/// An agent CLI that `init` found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundAgent {
    /// The name that the agent gets.
    pub name: String,
    /// Its command.
    pub command: String,
}

/// Why a file was not changed.
#[derive(Debug)]
pub enum EditError {
    /// The file is faulty as it is.
    Invalid(LoadError),
    /// The change would make it faulty; its fields are those of the agent.
    Change(Vec<Fault>),
    /// `init` does not write over a file.
    Exists(PathBuf),
    /// The file has no agent of this name.
    UnknownAgent {
        /// The name.
        name: String,
        /// The name that was probably meant.
        suggestion: Option<String>,
    },
    /// The file has an agent of this name already, in this spelling.
    NameTaken(String),
    /// Another name would make another agent: its log, its notes and what it did last belong to the name.
    Renamed,
    /// A field cannot have this value, or does not exist.
    Field(Fault),
    /// The file could not be locked or written.
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Writes a first config file with the agents that were found; over an existing one only with `force`.
pub fn init(file: &Path, found: &[FoundAgent], force: bool) -> Result<(), EditError> {
    let written =
        if force { replace::write(file, &template(found)) } else { replace::create(file, &template(found)) };
    written.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => EditError::Exists(file.to_owned()),
        _ => EditError::Io { path: file.to_owned(), source },
    })
}

/// Adds an agent with the given command line, program first. Returns the configuration as it is then.
pub fn add(
    file: &Path,
    environment: &Environment,
    name: &str,
    command: &[String],
) -> Result<Config, EditError> {
    edit(file, environment, |document| {
        if let Some(taken) = document.agent_names().find(|taken| taken.eq_ignore_ascii_case(name)) {
            return Err(EditError::NameTaken(taken));
        }
        document.add_agent(name, command);
        Ok(())
    })
}

/// Removes an agent. Returns the configuration as it is then.
pub fn remove(file: &Path, environment: &Environment, name: &str) -> Result<Config, EditError> {
    edit(file, environment, |document| {
        document.agent(name).ok_or_else(|| unknown_agent(document, name))?.remove();
        Ok(())
    })
}

/// Sets fields of an agent, each given by its name and the text of its value.
///
/// The name may be dotted (`env.PATH`, `rollback.withinMs`). The text is taken as JSON if it is JSON of the
/// field's type, else as a string (`args=["-v"]`, `autostart=true`, `cwd=~/src`). An empty text removes the
/// field, so that its default holds; `""` sets an empty string. Returns the configuration as it is then.
pub fn set(
    file: &Path,
    environment: &Environment,
    name: &str,
    assignments: &[(String, String)],
) -> Result<Config, EditError> {
    edit(file, environment, |document| {
        let agent = document.agent(name).ok_or_else(|| unknown_agent(document, name))?;
        for (field, value) in assignments {
            if field == "name" && value.trim_matches('"') != name {
                return Err(EditError::Renamed);
            }
            format::assign(&agent, field, value).map_err(EditError::Field)?;
        }
        Ok(())
    })
}

fn edit(
    file: &Path,
    environment: &Environment,
    change: impl FnOnce(&Document) -> Result<(), EditError>,
) -> Result<Config, EditError> {
    let failed = |source| EditError::Io { path: file.to_owned(), source };
    let check = |text: &str| resolve_text(text, file, environment, Reader::Client);
    // Looked at before it is opened for its lock: a pipe would keep that waiting.
    read(file).map_err(EditError::Invalid)?;
    let locked = replace::lock(file).map_err(failed)?;
    let text = read(file).map_err(EditError::Invalid)?;
    let Some(document) = Document::parse(&text) else {
        // What is no document is no configuration: this tells why.
        return check(&text).map_err(EditError::Invalid);
    };
    change(&document)?;
    let changed = document.to_string();
    let config = check(&changed).map_err(|error| match check(&text) {
        Ok(_) => EditError::Change(faults_of_change(error)),
        Err(_) => EditError::Invalid(error),
    })?;
    locked.replace(&changed).map_err(failed)?;
    Ok(config)
}

/// The faults that a change would bring stand in no file that one could look into: without lines, and with the
/// fields of the agent that was changed.
fn faults_of_change(error: LoadError) -> Vec<Fault> {
    let of_agent = |field: String| match field.strip_prefix("agents[").and_then(|rest| rest.split_once("]."))
    {
        Some((_, field)) => field.to_owned(),
        None => field,
    };
    let fault = |fault: Fault| Fault { line: None, column: None, field: fault.field.map(of_agent), ..fault };
    error.faults.into_iter().map(fault).collect()
}

fn unknown_agent(document: &Document, name: &str) -> EditError {
    let names: Vec<_> = document.agent_names().collect();
    let suggestion = nearest(name, names.iter().map(String::as_str)).map(str::to_owned);
    EditError::UnknownAgent { name: name.to_owned(), suggestion }
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => error.fmt(f),
            Self::Change(faults) => {
                let faults: Vec<_> = faults.iter().map(Fault::to_string).collect();
                f.write_str(&faults.join("; "))
            }
            Self::Exists(file) => write!(f, "{} exists already", file.display()),
            Self::UnknownAgent { name, suggestion } => {
                write!(f, "there is no agent {name:?}")?;
                suggestion.as_ref().map_or(Ok(()), |suggestion| write!(f, "; did you mean {suggestion}?"))
            }
            Self::NameTaken(name) => write!(f, "there is an agent {name:?} already (case is ignored)"),
            Self::Renamed => f.write_str("the name of an agent cannot be changed"),
            Self::Field(fault) => fault.fmt(f),
            Self::Io { path, .. } => write!(f, "{} could not be changed", path.display()),
        }
    }
}

impl std::error::Error for EditError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
