//! The small per-agent parent process that owns the agent, its output and its exit status.
