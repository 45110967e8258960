//! The configuration file of mcp-restart: schema, loading, errors, editing.
