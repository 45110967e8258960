//! Who may do what: decisions only.

use mcp_restart_config::Control;
use mcp_restart_protocol::answer::{Caller, ErrorCode, Failure};
use mcp_restart_stdio::Reach;

/// Whether the caller may start, stop or restart `target`; `control` is what the config grants the
/// calling agent, or somebody who may be any of them.
pub(super) fn may_control(caller: &Caller, control: Control, target: &str) -> Result<(), Failure> {
    let name = match caller {
        Caller::Agent { name } => name,
        Caller::Unknown => return as_unknown(control),
        Caller::Operator | Caller::LocalUser { .. } | Caller::Supervisor => return Ok(()),
    };
    match control {
        Control::All => Ok(()),
        Control::SelfOnly if name == target => Ok(()),
        Control::SelfOnly => Err(refused(name, "self", "stop or restart itself only")),
        Control::None => Err(refused(name, "none", "read only")),
    }
}

/// Whether the caller may read what `target` wrote or was given.
pub(super) fn may_read(caller: &Caller, control: Control, target: &str) -> Result<(), Failure> {
    match caller {
        Caller::Agent { name } if name != target && control != Control::All => {
            let value = if control == Control::None { "none" } else { "self" };
            Err(refused(name, value, "read only what is its own"))
        }
        _ => Ok(()),
    }
}

/// Whether the caller may have the token of `target`, with which it can do all that this one may.
pub(super) fn may_have_token(caller: &Caller, control: Control, target: &str) -> Result<(), Failure> {
    match caller {
        Caller::Unknown => as_unknown(control),
        _ => may_read(caller, control, target),
    }
}

/// Which stdio MCP servers the caller may restart.
pub(super) fn stdio_reach(caller: &Caller, control: Control) -> Result<Reach, Failure> {
    let name = match caller {
        Caller::Agent { name } => name,
        Caller::Unknown => return as_unknown(control).map(|()| Reach::Everything),
        Caller::Operator | Caller::LocalUser { .. } | Caller::Supervisor => return Ok(Reach::Everything),
    };
    match control {
        Control::All => Ok(Reach::Everything),
        Control::SelfOnly => Ok(Reach::Below(name.clone())),
        Control::None => Err(refused(name, "none", "read only")),
    }
}

/// Whether the caller may have the daemon make way; `managed`: a service manager starts its successor.
pub(super) fn may_upgrade(caller: &Caller, control: Control, managed: bool) -> Result<(), Failure> {
    let name = match caller {
        Caller::Agent { name } => name,
        Caller::Unknown => return as_unknown(control),
        Caller::Operator | Caller::LocalUser { .. } | Caller::Supervisor => return Ok(()),
    };
    if !managed {
        let message = format!(
            "agent {name} may not upgrade the daemon: what it starts is part of its tree and ends with it"
        );
        return Err(Failure::new(ErrorCode::NotAllowed, message)
            .hint("run mcp-restartctl upgrade outside of any agent, or the daemon under a service manager"));
    }
    match control {
        Control::All => Ok(()),
        Control::SelfOnly => Err(refused(name, "self", "stop or restart itself only")),
        Control::None => Err(refused(name, "none", "read only")),
    }
}

/// Whoever this is may be the agent that may do least.
fn as_unknown(control: Control) -> Result<(), Failure> {
    if control == Control::All {
        return Ok(());
    }
    let message =
        "without a token it is not known here who asks, and not every agent may do everything: read only";
    Err(Failure::new(ErrorCode::NotAllowed, message)
        .hint("send the header `Authorization: Bearer TOKEN`, an agent's or the operator's"))
}

fn refused(name: &str, control: &str, what: &str) -> Failure {
    Failure::new(ErrorCode::NotAllowed, format!("agent {name} has control {control:?}: it may {what}"))
        .hint(format!("the operator can change agents[].control of {name} in the config"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_upgrades_only_a_daemon_that_a_service_manager_starts_again() {
        let agent = Caller::Agent { name: "a".into() };
        assert!(may_upgrade(&agent, Control::All, true).is_ok());
        for (control, managed) in [(Control::All, false), (Control::SelfOnly, true), (Control::None, true)] {
            let refusal = may_upgrade(&agent, control, managed).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::NotAllowed);
            assert!(may_upgrade(&Caller::LocalUser { pid: None }, control, managed).is_ok());
        }
    }

    #[test]
    fn an_agent_restarts_the_servers_that_its_control_reaches() {
        let agent = Caller::Agent { name: "a".into() };
        assert_eq!(stdio_reach(&agent, Control::All), Ok(Reach::Everything));
        assert_eq!(stdio_reach(&agent, Control::SelfOnly), Ok(Reach::Below("a".into())));
        assert_eq!(stdio_reach(&agent, Control::None).unwrap_err().code, ErrorCode::NotAllowed);
        assert_eq!(stdio_reach(&Caller::Operator, Control::None), Ok(Reach::Everything));
        assert!(stdio_reach(&Caller::Unknown, Control::None).is_err());
    }

    #[test]
    fn control_binds_agents_and_nobody_else() {
        let agent = Caller::Agent { name: "a".into() };
        let table =
            [(Control::All, true, true), (Control::SelfOnly, true, false), (Control::None, false, false)];
        for (control, itself, other) in table {
            assert_eq!(may_control(&agent, control, "a").is_ok(), itself, "{control:?}");
            assert_eq!(may_control(&agent, control, "b").is_ok(), other, "{control:?}");
            assert!(may_read(&agent, control, "a").is_ok());
            assert_eq!(may_read(&agent, control, "b").is_ok(), control == Control::All);
            for caller in [Caller::Operator, Caller::LocalUser { pid: None }, Caller::Supervisor] {
                assert!(may_control(&caller, control, "b").is_ok());
            }
        }
    }

    #[test]
    fn who_may_be_any_agent_only_reads_where_one_of_them_may_not_do_everything() {
        let unknown = Caller::Unknown;
        assert!(may_control(&unknown, Control::All, "a").is_ok());
        assert!(may_read(&unknown, Control::None, "a").is_ok());
        assert!(may_control(&unknown, Control::None, "a").is_err());
        assert!(may_have_token(&unknown, Control::None, "a").is_err());
        assert!(may_upgrade(&unknown, Control::None, true).is_err());
    }
}
