//! Every system call of mcp-restart that acts, and all of its unsafe code.
