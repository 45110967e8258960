//! `config check`, `config schema` and `config show`.

use crate::arguments::ConfigCommand;
use crate::context::{Context, no_config_file};
use crate::problem::Problem;
use crate::talk::unknown_agent;
use mcp_restart_agents::{Circumstances, Conversation, Endpoint};
use mcp_restart_config::{Agent, Config, Inject, LoadError, lookup, show, warnings};
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
    let agent = agent.ok_or_else(|| unknown_agent(name, &names))?;
    let mut shown = show::agent(agent);
    if let Some(fields) = shown.as_object_mut() {
        fields.insert("launch".to_owned(), launch(context, &config, agent)?);
    }
    context.screen.value(&shown)
}

/// What a start would execute. The variables are those that the kind of agent needs, over the entry's.
fn launch(context: &Context, config: &Config, agent: &Agent) -> Result<Value, Problem> {
    let state_dir = context.place()?.state_dir;
    let file = lookup::mcp_config_file(&state_dir, &agent.name).display().to_string();
    let url = lookup::bridge_url(config.host, config.port);
    let endpoint = Endpoint { url: &url, token: "", mcp_config_file: &file };
    let circumstances = Circumstances {
        endpoint: (agent.inject_mcp != Inject::No).then_some(endpoint),
        conversation: Conversation::New("NEW-ID"),
        restart: None,
        system_settings: mcp_restart_agents::takes_system_settings(&state_dir),
    };
    let line = mcp_restart_agents::command_line(agent, circumstances);
    let argv: Vec<String> = std::iter::once(agent.command.clone()).chain(line.arguments).collect();
    let variables = line.variables.iter().map(|(name, value)| (name, value));
    Ok(json!({
        "argv": show::arguments(&argv),
        "cwd": agent.cwd.display().to_string(),
        "env": show::variables(variables),
    }))
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
