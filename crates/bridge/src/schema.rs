//! JSON schemas in the form that MCP clients get along with.

use crate::tools::NAME_MAX;
use mcp_restart_protocol::agent::Resume;
use rmcp::model::JsonObject;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, json_schema};
use serde_json::{Value, json};
use std::sync::Arc;

/// The schema of a tool's arguments. Without references: some clients pass it on to models that know none.
pub(crate) fn input<T: JsonSchema>() -> Arc<JsonObject> {
    of::<T>(SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true))
}

/// The schema of a tool's structured content.
pub(crate) fn output<T: JsonSchema>() -> Arc<JsonObject> {
    of::<T>(SchemaSettings::draft2020_12().for_serialize())
}

/// The name of an agent. As a pattern too, so that a client can see what will be refused.
pub(crate) fn name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": NAME_MAX,
        "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]*$",
    })
}

/// Names of servers, which are written as those of agents are.
pub(crate) fn names(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": name(generator) })
}

/// What a restart does with the conversation, in the one form of choice that every client knows.
pub(crate) fn resume(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": [Resume::Same, Resume::Fresh] })
}

fn of<T: JsonSchema>(settings: SchemaSettings) -> Arc<JsonObject> {
    // Validators warn about the formats that schemars has for Rust's numbers.
    let plain = RecursiveTransform(|schema: &mut Schema| {
        schema.remove("format");
        if schema.get("default").is_some_and(Value::is_null) {
            schema.remove("default");
        }
    });
    let schema = settings
        .with(|settings| settings.meta_schema = None)
        .with_transform(plain)
        .into_generator()
        .into_root_schema_for::<T>();
    match schema.to_value() {
        Value::Object(mut object) => {
            // The names of our types, and what we say about them, tell a model nothing.
            object.remove("title");
            object.remove("description");
            // Some models refuse a function whose object has no properties listed.
            object.entry("properties").or_insert_with(|| json!({}));
            Arc::new(object)
        }
        _ => Arc::default(),
    }
}
