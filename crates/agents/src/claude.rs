//! Claude Code; checked against 2.1.332.

use crate::{Endpoint, SERVER_NAME};
use serde_json::{Value, json};

/// The flags take any number of values, so they come first and with `=`: behind them a prompt would be
/// taken for one more file.
pub(crate) fn injected_arguments(endpoint: Endpoint<'_>) -> Vec<String> {
    vec![
        format!("--mcp-config={}", endpoint.mcp_config_file),
        format!("--allowedTools=mcp__{SERVER_NAME}__*"),
    ]
}

/// The server's entry. Without `alwaysLoad` the tools hide behind a search; the variable is expanded by
/// claude itself.
pub(crate) fn server(endpoint: Endpoint<'_>) -> Value {
    let mut entry = crate::server(endpoint.url, "Bearer ${MCP_RESTART_TOKEN}");
    if let Some(fields) = entry.as_object_mut() {
        fields.insert("alwaysLoad".to_owned(), json!(true));
    }
    entry
}
