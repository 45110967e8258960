#!/usr/bin/env python3
"""The real agent CLIs, as an ordinary user and with a stand-in for their models, restart themselves with a changed entry.

The daemon starts each in a pseudo-terminal with injection. It reaches the endpoint and calls restart_agent on itself
with a note; its entry has another model by then. Its second incarnation is in the same conversation, was told the
note by its prompt, has the changed argument, and reads the note with get_handoff. And one whose entry has a flag that it does not
know, or names a file that is not there, comes back with the launch that it had. Claude Code shows further what hook.py and stdio_client.py tell of.

usage: run.py PROGRAMS [KIND…]   the folder with mcp-restartd, mcp-restart-http and mcp-restartctl; without a kind claude and
                                 codex, and all others too if MCP_RESTART_PROVE_AGENTS is set
"""

import json
import os
import platform
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import hook  # noqa: E402
import stdio_client  # noqa: E402
from model import StandInModel  # noqa: E402
from proof import Stack, node_packages, scratch, until  # noqa: E402

PROGRAMS = ("mcp-restartd", "mcp-restart-http", "mcp-restartctl")
# Claude Code takes some of its ways only as root, so it has to be another user.
ORDINARY_USER = "nobody" if os.geteuid() == 0 else None
BOOT_SECONDS = 90
TURN_SECONDS = 60

FIRST_MODEL, SECOND_MODEL = "stand-in-first", "stand-in-second"


class Agent:
    """What differs between the CLIs."""

    # The folder whose package.json names its package.
    packages = HERE / "others"
    # Its program in node_modules, for the names that npm's packages and compilers have for this machine.
    program = "node_modules/.bin/{kind}"
    # What it does first, where it has the tools of its servers no sooner.
    before = ""
    # Further fields of its entry.
    fields = {}
    # Arguments with which it cannot work, each for an entry of its own.
    bad_arguments = ("--no-such-flag",)

    @staticmethod
    def arguments(model, prompt):
        return ["--model", model, "-i", prompt]


class Claude(Agent):

    kind = "claude"
    packages = HERE
    program = "node_modules/@anthropic-ai/claude-code-linux-{npm}/claude"
    before = 'CALL Bash {"command": "true"} '
    bad_arguments = ("--no-such-flag", "--settings=no-such-file.json")

    @staticmethod
    def arguments(model, prompt):
        return ["--model", model, prompt]

    @staticmethod
    def settle_in(home, project, model):
        """A home in which nothing is asked any more; gives the variables that go with it."""
        settings = {"permissions": {"defaultMode": "default", "allow": ["Bash"]}}
        onboarded = {"hasCompletedOnboarding": True, "projects": {str(project): {"hasTrustDialogAccepted": True}}}
        write_json(home / ".claude" / "settings.json", settings)
        write_json(home / ".claude.json", onboarded)
        return {
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_AUTH_TOKEN": "stand-in",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }


class Codex(Agent):
    kind = "codex"
    packages = HERE
    program = "node_modules/@openai/codex-linux-{npm}/vendor/{machine}-unknown-linux-musl/bin/codex"
    arguments = Claude.arguments

    @staticmethod
    def settle_in(home, project, model):
        (home / ".codex").mkdir(parents=True)
        (home / ".codex" / "config.toml").write_text(f"""
model_provider = "stand-in"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.stand-in]
name = "stand-in"
base_url = "{model.url}/v1"
wire_api = "responses"
env_key = "STAND_IN_KEY"
[projects."{project}"]
trust_level = "trusted"
""")
        return {"STAND_IN_KEY": "stand-in"}


class Gemini(Agent):
    kind = "gemini"
    fields = {"injectMcp": "project"}

    @staticmethod
    def settle_in(home, project, model):
        auth = {"auth": {"selectedType": "gemini-api-key"}}
        write_json(home / ".gemini" / "settings.json", {"security": auth, "general": {"enableAutoUpdate": False}})
        return {"GEMINI_API_KEY": "stand-in", "GOOGLE_GEMINI_BASE_URL": model.url}


class Opencode(Agent):
    kind = "opencode"
    program = "node_modules/opencode-linux-{npm}/bin/opencode"

    @staticmethod
    def arguments(model, prompt):
        return ["--model", f"stand-in/{model}", "--prompt", prompt]

    @staticmethod
    def settle_in(home, project, model):
        provider = {
            "npm": "@ai-sdk/anthropic",
            "options": {"baseURL": f"{model.url}/v1", "apiKey": "stand-in"},
            "models": {FIRST_MODEL: {}, SECOND_MODEL: {}},
        }
        config = {"autoupdate": False, "provider": {"stand-in": provider}}
        write_json(home / ".config" / "opencode" / "opencode.json", config)
        return {"OPENCODE_DISABLE_MODELS_FETCH": "1"}


class Copilot(Agent):
    kind = "copilot"
    program = "node_modules/@github/copilot-linux-{npm}/copilot"

    @staticmethod
    def settle_in(home, project, model):
        write_json(home / ".copilot" / "config.json", {"trusted_folders": [str(project)]})
        return {
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_TYPE": "anthropic",
            "COPILOT_PROVIDER_BASE_URL": model.url,
            "COPILOT_PROVIDER_API_KEY": "stand-in",
        }


class Qwen(Agent):
    kind = "qwen"

    @staticmethod
    def settle_in(home, project, model):
        auth = {"auth": {"selectedType": "anthropic"}}
        write_json(home / ".qwen" / "settings.json", {"security": auth, "general": {"enableAutoUpdate": False}})
        return {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "stand-in"}


IN_CI = (Claude, Codex)
OTHERS = (Gemini, Opencode, Copilot, Qwen)
AGENTS = {agent.kind: agent for agent in (*IN_CI, *OTHERS)}


def main():
    by_itself = (*IN_CI, *OTHERS) if os.environ.get("MCP_RESTART_PROVE_AGENTS") else IN_CI
    kinds = sys.argv[2:] or [agent.kind for agent in by_itself]
    for agent in (AGENTS[kind] for kind in kinds):
        with started(agent) as (stack, model):
            restart_by_itself(agent, stack, model)
        for argument in agent.bad_arguments:
            with started(agent) as (stack, model):
                come_back_from_a_bad_launch(agent, argument, stack, model)
    if Claude.kind in kinds:
        with started(Claude) as (stack, model):
            hook.prove(stack, model, FIRST_MODEL)
        packages = node_packages(HERE.parent / "clients")
        with started(Claude, lambda folder: [stdio_client.server_in(folder, packages)]) as (stack, model):
            stdio_client.prove(stack, model, FIRST_MODEL)


@contextmanager
def started(agent, stdio_servers_in=lambda folder: ()):
    """A daemon with this agent in its config, which is not started yet, and the model that the agent will ask.

    `stdio_servers_in` installs stdio servers in a folder and gives their entries.
    """
    with scratch() as folder, StandInModel() as model:
        folder = Path(folder)
        programs = installed(Path(sys.argv[1]), folder, agent)
        entries, servers = [entry(agent, folder, model)], stdio_servers_in(folder)
        with Stack(programs, entries, folder, user=ORDINARY_USER, stdio_servers=servers) as stack:
            yield stack, model


def note(agent):
    """What it leaves to itself. It is part of the prompt, so it is the script of the second incarnation."""
    return f"The second model is the better one. {agent.before}CALL get_handoff {{}}"


def first_prompt(agent):
    return f"Give yourself another model. {agent.before}CALL restart_agent {json.dumps({'note': note(agent)})}"


def restart_by_itself(agent, stack, model):
    stack.ctl("start", agent.kind)
    started = until(BOOT_SECONDS, "the endpoint to be reached", lambda: connected(stack, agent, 1))
    stack.ctl("set", agent.kind, f"args={json.dumps(agent.arguments(SECOND_MODEL, first_prompt(agent)))}")
    model.wake(FIRST_MODEL)
    second = until(TURN_SECONDS, "a second incarnation", lambda: connected(stack, agent, 2))
    model.wake(SECOND_MODEL)
    turns = turns_until(model, "get_handoff")
    check(agent, started, second, turns)
    print(f"{agent.kind} restarted itself in {second['sessionId']}: process {started['pid']} became {second['pid']}")


def come_back_from_a_bad_launch(agent, argument, stack, model):
    """Its new entry cannot work: the launch that stayed up is started again, and told so."""
    stack.ctl("start", agent.kind)
    first = until(BOOT_SECONDS, "the endpoint to be reached", lambda: connected(stack, agent, 1))
    stack.ctl("set", agent.kind, f"args={json.dumps([argument, first_prompt(agent)])}")
    model.wake(FIRST_MODEL)
    third = until(TURN_SECONDS, "the launch that stayed up", lambda: connected(stack, agent, 3))
    turns = turns_until(model, "get_handoff")
    assert handoff_in(turns[-1].results[-1])["rolledBack"], turns[-1]
    assert third["sessionId"] and first["sessionId"] in (None, third["sessionId"]), (first, third)
    command_line = Path(f"/proc/{third['pid']}/cmdline").read_text()
    assert FIRST_MODEL in command_line and argument not in command_line, command_line
    print(f"{agent.kind} was brought back from {argument} in {third['sessionId']}: process {first['pid']} became {third['pid']}")


def check(agent, first, second, turns):
    assert first["kind"] == agent.kind and first["tty"], first
    assert second["pid"] != first["pid"] and second["lastExit"]["reason"] == "restart", second
    assert second["logFile"] == first["logFile"] and not second["configChanged"], second
    assert second["sessionId"] and first["sessionId"] in (None, second["sessionId"]), (first, second)
    called = [(turn.model, turn.called) for turn in turns if turn.called]
    assert [name for of, name in called if of == FIRST_MODEL][-1].endswith("restart_agent"), called
    assert [name for of, name in called if of == SECOND_MODEL][-1].endswith("get_handoff"), called
    assert sum(name.endswith("restart_agent") for _, name in called) == 1, called
    assert "You were restarted by mcp-restart on behalf of yourself" in turns[-1].prompt, turns[-1]
    [left] = handoff_in(turns[-1].results[-1])["notes"]
    assert left == {"from": {"type": "agent", "name": agent.kind}, "text": note(agent)}, left
    command_line = Path(f"/proc/{second['pid']}/cmdline").read_text()
    assert SECOND_MODEL in command_line and FIRST_MODEL not in command_line, command_line
    assert second["sessionId"] in command_line, command_line


def handoff_in(result):
    """The JSON of a tool's result, without what a client writes around it."""
    return json.JSONDecoder().raw_decode(result, result.index("{"))[0]


def turns_until(model, tool):
    """Every turn up to the one that has the result of `tool`."""
    turns = []
    while not (turns and turns[-1].results and any((turn.called or "").endswith(tool) for turn in turns[:-1])):
        turns.append(model.turns.get(timeout=TURN_SECONDS))
    return turns


def connected(stack, agent, generation):
    """The agent, once this generation of it has reached the endpoint."""
    seen = stack.agent(agent.kind)
    return seen if seen["generation"] == generation and seen["connectedAt"] else None


def entry(agent, folder, model):
    """The agent's entry in the config."""
    home, project = folder / "home", folder / "project"
    project.mkdir()
    environment = {"HOME": str(home), **agent.settle_in(home, project, model)}
    arguments = agent.arguments(FIRST_MODEL, first_prompt(agent))
    placed = {"cwd": str(project), "env": environment}
    return {"name": agent.kind, "command": agent.kind, "args": arguments, **placed, **agent.fields}


def installed(programs, folder, agent):
    """Everything that is run, in a folder that an ordinary user reaches."""
    where = folder / "bin"
    where.mkdir()
    for program in PROGRAMS:
        shutil.copy(programs / program, where)
    machine = platform.machine()
    names = {"kind": agent.kind, "machine": machine, "npm": {"x86_64": "x64", "aarch64": "arm64"}[machine]}
    program = node_packages(agent.packages) / agent.program.format(**names)
    if program.is_symlink():
        # A script, with the packages that it needs; one of them is Node.
        shutil.copytree(program.parent.parent, folder / "node_modules", symlinks=True, copy_function=place)
        (where / agent.kind).symlink_to(f"../node_modules/.bin/{agent.kind}")
        (where / "node").symlink_to("../node_modules/node/bin/node")
    else:
        place(program, where / agent.kind)
    return where


def write_json(file, value):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value))


def place(program, where):
    """Its hundreds of megabytes are linked where they can be, and copied where not."""
    try:
        os.link(program, where)
    except OSError:
        shutil.copy(program, where)


main()
