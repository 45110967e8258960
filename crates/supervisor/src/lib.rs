//! The state machine of one supervised agent: decisions only, no sockets, no files.
