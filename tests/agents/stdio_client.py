"""The real Claude Code as the client of a real stdio server. The server is upgraded on disk, found stale and ended; what the report
says of its client is what its client did, and the way that it names is the one that brings the new code."""

import json
import os
import shutil
from pathlib import Path

from proof import until

TURN_SECONDS = 60
# From the start of the server until Claude Code has its tools.
CONNECT_SECONDS = 4


def server_in(folder, packages):
    """Installs the server where an ordinary user reaches it, and gives its entry."""
    shutil.copytree(packages / "node_modules", folder / "node_modules", symlinks=True)
    script = script_in(folder)
    script.symlink_to("node_modules/@modelcontextprotocol/server-everything/dist/index.js")
    return {"name": "everything", "match": script.name}


def script_in(folder):
    """What the server runs, by a name that no other process has."""
    return folder / f"everything-{os.getpid()}"


def prove(stack, model, model_name):
    """`stack` has the server in its folder, and an agent `claude` that does not run yet, whose home is that of its entry and whose model is `model_name`."""
    script = script_in(stack.folder)
    use_server(stack, script)
    go_on = stack.folder / "project" / "go-on"
    calls = [
        # Claude Code tells nobody when it is connected.
        ("Bash", {"command": f"sleep {CONNECT_SECONDS}"}),
        ("everything__echo", {"message": "before"}),
        ("Bash", {"command": f"until test -e {go_on}; do sleep 0.1; done"}),
        ("everything__echo", {"message": "after"}),
    ]
    prompt = "Ask your server. " + " ".join(f"CALL {tool} {json.dumps(arguments)}" for tool, arguments in calls)
    stack.ctl("set", "claude", f"args={json.dumps(['--model', model_name, prompt])}")
    stack.ctl("start", "claude")
    until(TURN_SECONDS, "the server to run", lambda: servers(stack))
    model.wake(model_name)
    assert "Echo: before" in model.results(model_name, 2, TURN_SECONDS)[-1]
    [before], agent = servers(stack), stack.agent("claude")
    whose = {"program": "claude", "pid": agent["pid"], "agent": "claude"}
    assert before["client"] == whose and not before["stale"], before

    upgrade(script.resolve())
    [stale] = stack.json("servers", "list", "--stale")["servers"]
    assert stale["pid"] == before["pid"], stale
    report = stack.json("servers", "restart", "--stale")
    assert (report["status"], report["killed"], report["respawned"]) == ("success", [before["pid"]], []), report
    assert report["notRespawned"] == [{"pid": before["pid"], "client": whose}], report
    assert 'restart_agent with the name "claude"' in report["note"], report

    # It has told the truth: not even the next call starts the server again.
    go_on.touch()
    assert "has disconnected" in model.results(model_name, 4, TURN_SECONDS)[-1]
    assert servers(stack) == [] and stack.agent("claude")["pid"] == agent["pid"]

    stack.ctl("restart", "claude")
    [after] = until(TURN_SECONDS, "the server to run again", lambda: servers(stack))
    agent = stack.agent("claude")
    assert after["client"] == whose | {"pid": agent["pid"]} and not after["stale"], after
    print(f"the stdio server of claude, process {before['pid']}, is process {after['pid']} after a restart of claude, and not before")


def use_server(stack, script):
    """Adds the server to those of the agent's user, as `claude mcp add --scope user` does."""
    [entry] = json.loads(stack.config.read_text())["agents"]
    home = Path(entry["env"]["HOME"])
    server = {"type": "stdio", "command": "node", "args": [str(script)], "alwaysLoad": True}
    add_to(home / ".claude.json", {"mcpServers": {"everything": server}})
    add_to(home / ".claude" / "settings.json", {"permissions": {"allow": ["Bash", "mcp__everything"]}})


def add_to(file, more):
    file.write_text(json.dumps(json.loads(file.read_text()) | more))


def upgrade(file):
    """Puts another edition in its place, as installers do."""
    new = file.with_name("new")
    new.write_text(file.read_text() + "\n// The second edition.\n")
    shutil.copymode(file, new)
    new.replace(file)


def servers(stack):
    return stack.json("servers", "list")["servers"]
