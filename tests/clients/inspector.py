"""The command line of the official inspector against the endpoint, as a person or a script would use it."""

import json
import subprocess

CALL_SECONDS = 60
# Its exit codes.
AUTHORIZATION_NEEDED = 3
TOOL_ERROR = 5


def prove(node, packages, stack):
    """List, read, restart, and be refused; `node` is one that the inspector runs on."""
    program = packages / "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
    # It keeps a catalog of servers in the home folder.
    environment = {"HOME": str(stack.folder), "PATH": str(node.parent)}

    def ask(*words, token=stack.agent_token("worker"), expected=0):
        command = [node, program, "--cli", stack.url, "--header", f"Authorization: Bearer {token}", "--method", *words]
        done = subprocess.run([str(word) for word in command], env=environment, timeout=CALL_SECONDS, capture_output=True, text=True)
        assert done.returncode == expected, f"{words}: {done}"
        return json.loads(done.stdout) if done.stdout else None

    # Exit code 6 if a schema is one that some client could not use.
    tools = ask("tools/list", "--strict")["tools"]
    assert {"list_agents", "restart_agent"} <= {tool["name"] for tool in tools}
    [resource] = ask("resources/list")["resources"]
    [contents] = ask("resources/read", "--uri", resource["uri"])["contents"]
    [worker] = json.loads(contents["text"])["agents"]
    before = worker["generation"]
    ask("tools/call", "--tool-name", "start_agent", "--tool-arg", "name=worker")
    restarted = ask("tools/call", "--tool-name", "restart_agent", "--tool-arg", "note=from the inspector")["structuredContent"]
    assert restarted["accepted"] and restarted["generation"] > before, restarted
    refused = ask("tools/call", "--tool-name", "stop_agent", "--tool-arg", "name=nobody", expected=TOOL_ERROR)
    assert json.loads(refused["content"][0]["text"])["error"]["code"] == "unknown_agent"
    ask("tools/list", token="wrong", expected=AUTHORIZATION_NEEDED)
