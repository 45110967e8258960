//! JSON schemas in the form that MCP clients get along with.

use rmcp::model::JsonObject;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
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

fn of<T: JsonSchema>(settings: SchemaSettings) -> Arc<JsonObject> {
    // Validators warn about the formats that schemars has for Rust's numbers.
    let without_formats = RecursiveTransform(|schema: &mut Schema| {
        schema.remove("format");
    });
    let schema = settings
        .with(|settings| settings.meta_schema = None)
        .with_transform(without_formats)
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
