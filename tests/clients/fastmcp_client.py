"""fastmcp as a client: every tool is listed, and the agents are read in each way that there is."""

import asyncio
import json
import os

from fastmcp import Client


async def main():
    async with Client(os.environ["MCP_URL"]) as client:
        tools = {tool.name for tool in await client.list_tools()}
        assert {"list_agents", "restart_agent", "server_status"} <= tools, tools
        result = await client.call_tool("list_agents", {})
        [worker] = result.structured_content["agents"]
        assert (worker["name"], worker["state"]) == ("worker", "stopped"), worker
        [content] = await client.read_resource("mcp-restart://agents/worker")
        assert json.loads(content.text)["name"] == "worker", content
        refused = await client.call_tool("stop_agent", {"name": "worker"}, raise_on_error=False)
        assert refused.is_error, refused


asyncio.run(main())
