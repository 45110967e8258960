#!/usr/bin/env python3
"""The official Python and TypeScript SDK clients list and call every tool on the real stack, and restart an agent.

usage: run.py PROGRAMS   the folder with mcp-restartd, mcp-restart-http and mcp-restartctl
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from proof import Stack, node_packages, python_packages, run, scratch  # noqa: E402

CLIENT_SECONDS = 120
WORKER = {
    "name": "worker",
    "command": "sh",
    "args": ["-c", "echo generation $MCP_RESTART_GENERATION is ready; exec sleep 600"],
}


def main():
    clients = {
        "Python SDK": [python_packages(HERE), HERE / "client.py"],
        "TypeScript SDK": ["node", node_packages(HERE) / "client.mjs"],
    }
    for name, client in clients.items():
        with scratch() as folder, Stack(sys.argv[1], [WORKER], folder) as stack:
            where = {"MCP_URL": stack.url, "AGENT_TOKEN": stack.agent_token("worker")}
            run(client, seconds=CLIENT_SECONDS, env=os.environ | where)
        print(f"{name}: ok", flush=True)


main()
