#!/usr/bin/env python3
"""The real Claude Code, as an ordinary user and with a stand-in for its model, restarts itself with a changed entry.

The daemon starts it in a pseudo-terminal with injection. It reaches the endpoint, changes its own arguments with
mcp-restartctl, calls restart_agent on itself, and its second incarnation reads the note of the first.

usage: run.py PROGRAMS   the folder with mcp-restartd, mcp-restart-http and mcp-restartctl
"""

import json
import os
import platform
import shutil
import sys
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
BOOT_SECONDS = 60
TURN_SECONDS = 60

FIRST_MODEL, SECOND_MODEL = "stand-in-first", "stand-in-second"
# Claude Code's first request comes before it has the tools of its servers, so each script begins with one of its own.
SECOND_PROMPT = 'Read what you left to yourself. CALL Bash {"command": "true"} CALL get_handoff {}'
NEW_ARGUMENTS = json.dumps(["--model", SECOND_MODEL, SECOND_PROMPT])
NOTE = "the second model is the better one"
PROMPT = f"""Give yourself another model.
CALL Bash {json.dumps({"command": f"mcp-restartctl set claude 'args={NEW_ARGUMENTS}'"})}
CALL restart_agent {json.dumps({"note": NOTE})}"""


def main():
    with scratch() as folder, StandInModel() as model:
        programs = installed(Path(sys.argv[1]), Path(folder))
        with Stack(programs, [entry(Path(folder), model)], folder, user=ORDINARY_USER) as stack:
            restart_by_itself(stack, model)
    with scratch() as folder, StandInModel() as model:
        programs = installed(Path(sys.argv[1]), Path(folder))
        with Stack(programs, [entry(Path(folder), model)], folder, user=ORDINARY_USER) as stack:
            hook.prove(stack, model, FIRST_MODEL)
    with scratch() as folder, StandInModel() as model:
        programs = installed(Path(sys.argv[1]), Path(folder))
        script, server = stdio_client.server_in(Path(folder), node_packages(HERE.parent / "clients"))
        with Stack(programs, [entry(Path(folder), model)], folder, user=ORDINARY_USER, stdio_servers=[server]) as stack:
            stdio_client.prove(stack, model, FIRST_MODEL, script)


def restart_by_itself(stack, model):
    stack.ctl("start", "claude")
    first = until(BOOT_SECONDS, "the endpoint to be reached", lambda: connected(stack, 1))
    model.wake(FIRST_MODEL)
    second = until(TURN_SECONDS, "a second incarnation", lambda: connected(stack, 2))
    model.wake(SECOND_MODEL)
    check(first, second, turns_until(model, "get_handoff"))
    print(f"Claude Code restarted itself: process {first['pid']} became {second['pid']}")


def check(first, second, turns):
    assert first["kind"] == "claude" and first["tty"], first
    assert second["pid"] != first["pid"] and second["lastExit"]["reason"] == "restart", second
    assert second["logFile"] == first["logFile"] and not second["configChanged"], second
    called = [(turn.model, turn.called.removeprefix("mcp__restart__")) for turn in turns if turn.called]
    first_calls = [(FIRST_MODEL, "Bash"), (FIRST_MODEL, "restart_agent")]
    assert called == [*first_calls, (SECOND_MODEL, "Bash"), (SECOND_MODEL, "get_handoff")], turns
    [note] = json.loads(turns[-1].results[-1])["notes"]
    assert note == {"from": {"type": "agent", "name": "claude"}, "text": NOTE}, note
    command_line = Path(f"/proc/{second['pid']}/cmdline").read_text().split("\0")
    assert SECOND_MODEL in command_line and FIRST_MODEL not in command_line, command_line


def turns_until(model, tool):
    """Every turn up to the one that has the result of `tool`."""
    turns = []
    while not (turns and turns[-1].results and any((turn.called or "").endswith(tool) for turn in turns[:-1])):
        turns.append(model.turns.get(timeout=TURN_SECONDS))
    return turns


def connected(stack, generation):
    """The agent, once this generation of it has reached the endpoint."""
    agent = stack.agent("claude")
    return agent if agent["generation"] == generation and agent["connectedAt"] else None


def entry(folder, model):
    """The agent's entry in the config, with a home of its own in which nothing is asked any more."""
    home, project = folder / "home", folder / "project"
    settings = {"permissions": {"defaultMode": "default", "allow": ["Bash"]}}
    onboarded = {"hasCompletedOnboarding": True, "projects": {str(project): {"hasTrustDialogAccepted": True}}}
    (home / ".claude").mkdir(parents=True)
    project.mkdir()
    (home / ".claude" / "settings.json").write_text(json.dumps(settings))
    (home / ".claude.json").write_text(json.dumps(onboarded))
    environment = {
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_AUTH_TOKEN": "stand-in",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    arguments = ["--model", FIRST_MODEL, PROMPT]
    return {"name": "claude", "command": "claude", "args": arguments, "cwd": str(project), "env": environment}


def installed(programs, folder):
    """Everything that is run, in a folder that an ordinary user reaches."""
    where = folder / "bin"
    where.mkdir()
    for program in PROGRAMS:
        shutil.copy(programs / program, where)
    place(native_claude(), where / "claude")
    return where


def native_claude():
    """The program itself, which npm installs as a package per platform."""
    architecture = {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]
    return node_packages(HERE) / f"node_modules/@anthropic-ai/claude-code-linux-{architecture}/claude"


def place(program, where):
    """Its 400 MB are linked where they can be, and copied where not."""
    try:
        os.link(program, where)
    except OSError:
        shutil.copy(program, where)


main()
