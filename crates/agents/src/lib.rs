//! What mcp-restart knows of each agent command line: flags, injection, resume.
