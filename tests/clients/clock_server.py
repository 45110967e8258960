"""A stdio server made with the Python SDK; its one tool says which edition of it runs, and as which process."""

import os

from mcp.server import MCPServer

EDITION = 1
server = MCPServer("clock")


@server.tool()
def about() -> str:
    return f"{EDITION} {os.getpid()}"


server.run("stdio")
