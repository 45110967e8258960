//! Changes to the text of a config file that keep its formatting and its comments.

use super::FoundAgent;
use crate::decode::{SYNTAX, UNKNOWN_FIELD, decode, parse};
use crate::entry::{AgentEntry, default};
use crate::fault::{Fault, Faults};
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use serde_json::{Value, json};
use std::fmt;

/// The text of a first config file. Its first agent is started with the daemon. Without any agent that was
/// found it names `claude`, so that there is something to start from.
pub fn template(found: &[FoundAgent]) -> String {
    let claude = [FoundAgent { name: "claude".to_owned(), command: "claude".to_owned() }];
    let agents = if found.is_empty() { &claude } else { found };
    let agents: Vec<_> = agents
        .iter()
        .enumerate()
        .map(|(index, agent)| {
            let (name, command) = (Value::from(agent.name.as_str()), Value::from(agent.command.as_str()));
            let autostart = index == 0;
            format!(
                r#"    {{
      "name": {name},
      "command": {command},
      "cwd": ".",
      "autostart": {autostart}
    }}"#
            )
        })
        .collect();
    format!(
        r#"{{
  "host": "{}",
  "port": {},
  "agents": [
{}
  ]
}}
"#,
        default::HOST,
        default::PORT,
        agents.join(",\n")
    )
}

/// A config file's text, with places to change.
pub(super) struct Document {
    root: CstRootNode,
    fields: CstObject,
}

impl Document {
    /// None if the text is no JSON object whose `agents`, if there are any, are an array.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let root = CstRootNode::parse(text, &SYNTAX).ok()?;
        let fields = root.object_value()?;
        let is_usable = fields.get("agents").is_none_or(|agents| agents.array_value().is_some());
        is_usable.then_some(Self { root, fields })
    }

    /// The names of the agents that have one, in the order of the file.
    pub(super) fn agent_names(&self) -> impl Iterator<Item = String> {
        self.agents().filter_map(|agent| name_of(&agent))
    }

    /// The first agent of this name.
    pub(super) fn agent(&self, name: &str) -> Option<CstObject> {
        self.agents().find(|agent| name_of(agent).as_deref() == Some(name))
    }

    /// Appends an agent.
    pub(super) fn add_agent(&self, name: &str, command: &[String]) {
        let mut fields = vec![("name".to_owned(), name.into())];
        if let Some((program, args)) = command.split_first() {
            fields.push(("command".to_owned(), program.as_str().into()));
            if !args.is_empty() {
                fields.push(("args".to_owned(), args.to_vec().into()));
            }
        }
        self.fields.array_value_or_set("agents").append(CstInputValue::Object(fields));
    }

    fn agents(&self) -> impl Iterator<Item = CstObject> {
        let elements = self.fields.array_value("agents").map(|agents| agents.elements()).unwrap_or_default();
        elements.into_iter().filter_map(|element| element.as_object())
    }
}

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.fmt(f)
    }
}

fn name_of(agent: &CstObject) -> Option<String> {
    agent.get("name")?.value()?.as_string_lit()?.decoded_value().ok()
}

/// Sets one field of an agent, or removes it if the text is empty.
pub(super) fn assign(agent: &CstObject, field: &str, text: &str) -> Result<(), Fault> {
    let place = Place::named(field);
    if text.is_empty() {
        return if place.remove(agent) { Ok(()) } else { place.check_known() };
    }
    place.set(agent, place.value_of(text)?);
    Ok(())
}

/// Where a field stands: in the entry, or in an object in the entry.
struct Place<'a> {
    field: &'a str,
    member: Option<&'a str>,
}

impl<'a> Place<'a> {
    /// Only the first dot counts: names of variables may have dots of their own.
    fn named(name: &'a str) -> Self {
        match name.split_once('.') {
            Some((field, member)) => Self { field, member: Some(member) },
            None => Self { field: name, member: None },
        }
    }

    /// What a text means here: JSON of the field's type, or a string.
    fn value_of(&self, text: &str) -> Result<Value, Fault> {
        let as_string = Value::from(text);
        let Ok(as_json) = serde_json::from_str::<Value>(text) else {
            return self.fault_of(&as_string).map_or(Ok(as_string), Err);
        };
        match self.fault_of(&as_json) {
            None => Ok(as_json),
            Some(fault) => self.fault_of(&as_string).map_or(Ok(as_string), |_| Err(fault)),
        }
    }

    fn check_known(&self) -> Result<(), Fault> {
        match self.fault_of(&Value::Null) {
            Some(fault) if fault.message == UNKNOWN_FIELD => Err(fault),
            _ => Ok(()),
        }
    }

    /// What would be wrong with an entry that had this value here and nothing else.
    fn fault_of(&self, value: &Value) -> Option<Fault> {
        let value = match self.member {
            Some(member) => json!({ member: value }),
            None => value.clone(),
        };
        let entry = json!({ self.field: value }).to_string();
        let faults = Faults::of(&entry);
        parse(&entry, &faults).and_then(|root| decode::<AgentEntry>(&root, &faults));
        let fault = faults.into_sorted().into_iter().next()?;
        Some(Fault { line: None, column: None, ..fault })
    }

    fn set(&self, agent: &CstObject, value: Value) {
        match self.member {
            Some(member) => set_property(&agent.object_value_or_set(self.field), member, value),
            None => set_property(agent, self.field, value),
        }
    }

    /// Whether there was anything to remove. An object goes with its last member.
    fn remove(&self, agent: &CstObject) -> bool {
        let Some(field) = agent.get(self.field) else { return false };
        let Some(member) = self.member else {
            field.remove();
            return true;
        };
        let Some(object) = field.object_value() else { return false };
        let Some(property) = object.get(member) else { return false };
        property.remove();
        if object.properties().is_empty() {
            field.remove();
        }
        true
    }
}

fn set_property(object: &CstObject, name: &str, value: Value) {
    let value = input(value);
    match object.get(name) {
        Some(property) => property.set_value(value),
        None => {
            object.append(name, value);
        }
    }
}

fn input(value: Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(value),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text),
        Value::Array(elements) => CstInputValue::Array(elements.into_iter().map(input).collect()),
        Value::Object(members) => {
            CstInputValue::Object(members.into_iter().map(|(name, value)| (name, input(value))).collect())
        }
    }
}
