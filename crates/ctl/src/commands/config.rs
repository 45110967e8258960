//! `config check`, `config schema` and `config show`.

use crate::arguments::ConfigCommand;
use crate::context::{Context, no_config_file};
use crate::problem::Problem;
use crate::talk::unknown_agent;
use mcp_restart_config::{LoadError, show, warnings};
use serde_json::{Value, json};

/// Checks or shows the config file.
pub(crate) fn run(context: &Context, command: ConfigCommand) -> Result<(), Problem> {
    match command {
        ConfigCommand::Check => check(context),
        ConfigCommand::Schema => context.screen.value(&mcp_restart_config::schema()),
        ConfigCommand::Show { name } => show(context, name.as_deref()),
    }
}

fn check(context: &Context) -> Result<(), Problem> {
    let screen = &context.screen;
    // What an agent inherits from its supervisor says nothing about a file that it checks.
    let environment = context.environment.clone().outside_agent();
    let file = context.config_file_in(&environment);
    if !file.exists() {
        return Err(no_config_file(&file));
    }
    match mcp_restart_config::load(&file, &environment) {
        Err(error) => {
            if screen.json {
                screen
                    .value(&json!({ "file": file, "ok": false, "faults": faults(&error), "warnings": [] }))?;
            }
            Err(error.into())
        }
        Ok(config) => {
            let warnings = warnings(&config);
            if screen.json {
                return screen
                    .value(&json!({ "file": file, "ok": true, "faults": [], "warnings": warnings }));
            }
            for warning in warnings {
                screen.warning(warning);
            }
            let count = config.agents.len();
            let agents = if count == 1 { "agent" } else { "agents" };
            screen.done(format_args!("{} is good: {count} {agents}", file.display()))
        }
    }
}

fn show(context: &Context, name: Option<&str>) -> Result<(), Problem> {
    let config = context.config()?;
    let Some(name) = name else { return context.screen.value(&show::config(&config)) };
    let names: Vec<_> = config.agents.iter().map(|agent| agent.name.clone()).collect();
    let agent = config.agents.iter().find(|agent| agent.name == name);
    context.screen.value(&show::agent(agent.ok_or_else(|| unknown_agent(name, &names))?))
}

fn faults(error: &LoadError) -> Vec<Value> {
    let fault = |fault: &mcp_restart_config::Fault| {
        json!({
            "line": fault.line,
            "column": fault.column,
            "field": fault.field,
            "message": fault.message,
            "suggestion": fault.suggestion,
        })
    };
    error.faults.iter().map(fault).collect()
}
