"""The guard as a PreToolUse hook of the real Claude Code: what would hit the supervisor or an agent is not run, and its model is
told why; what only looks like it is run."""

import json
from pathlib import Path

TURN_SECONDS = 60
HOOK = {"matcher": "Bash", "hooks": [{"type": "command", "command": "mcp-restartctl guard --hook claude"}]}


def prove(stack, model, model_name):
    """`stack` has an agent `claude` that does not run yet, whose home is that of its entry and whose model is `model_name`."""
    state = stack.folder / "state"
    # Each is refused by the hook. The patterns fit nobody else's processes, whatever comes of them.
    forbidden = {
        f"pkill -f mcp-restartd.*{stack.config}": "the supervisor",
        f"kill $(pgrep -f {state}/mcp-config)": "agent claude",
        f"sh -c 'kill -9 $(cat {state}/mcp-restartd.lock)'": "the supervisor",
        "kill -9 $PPID": "agent claude",
        f"for name in {state}/mcp-config; do pkill -f \"$name\"; done": "agent claude",
    }
    harmless = {
        f"echo 'pkill -f mcp-restartd.*{stack.config}'": "pkill",
        "sleep 60 & kill $! && echo ended": "ended",
        f"pgrep -f {state}/mcp-config > /dev/null && echo found": "found",
    }
    hook_in(stack)
    script = " ".join(f"CALL Bash {json.dumps({'command': command})}" for command in [*forbidden, *harmless])
    stack.ctl("set", "claude", f"args={json.dumps(['--model', model_name, f'Try these. {script}'])}")
    stack.ctl("start", "claude")
    daemon, agent = stack.json("status")["pid"], stack.agent("claude")
    model.wake(model_name)
    results = model.results(model_name, len(forbidden) + len(harmless), TURN_SECONDS)

    for (command, hit), result in zip(forbidden.items(), results):
        assert f"refused: this would hit {hit}" in result and "Instead: `mcp-restartctl" in result, (command, result)
    for (command, printed), result in zip(harmless.items(), results[len(forbidden) :]):
        assert printed in result and "refused" not in result, (command, result)
    status = stack.json("status")
    assert (status["pid"], stack.agent("claude")["pid"]) == (daemon, agent["pid"]), status
    [first, *_] = forbidden
    assert "by agent claude" in status["contaminated"] and first in status["contaminated"], status
    stack.ctl("clear")
    assert not stack.json("status")["contaminated"]
    print(f"the hook of claude refused {len(forbidden)} commands and let {len(harmless)} be run")


def hook_in(stack):
    """Adds the hook to the settings of the agent's home, as docs/cli.md tells."""
    [entry] = json.loads(stack.config.read_text())["agents"]
    file = Path(entry["env"]["HOME"]) / ".claude" / "settings.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"hooks": {"PreToolUse": [HOOK]}}))
