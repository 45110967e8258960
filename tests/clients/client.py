"""The Python SDK as a client: every tool is listed and called, under each way of agreeing on a protocol version.

The SDK checks each structured result against the tool's output schema, so a result that breaks it fails here.
"""

import asyncio
import json
import os

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


TOOLS = {
    "list_agents", "server_status", "start_agent", "stop_agent", "restart_agent", "get_handoff", "agent_logs",
    "list_stdio_servers", "restart_stdio_servers",
}  # fmt: skip
CHANGING = {"start_agent", "stop_agent", "restart_agent", "restart_stdio_servers"}
CALL_SECONDS = 30
NOTE = "carry on with the second chapter"


async def main():
    for mode in ("auto", "legacy"):
        async with Client(os.environ["MCP_URL"], mode=mode) as user, as_agent(mode) as agent:
            await every_tool(user, agent)
            print(f"  protocol {user.protocol_version}")


def as_agent(mode):
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {os.environ['AGENT_TOKEN']}"}, timeout=CALL_SECONDS)
    return Client(streamable_http_client(os.environ["MCP_URL"], http_client=http), mode=mode)


async def every_tool(user, agent):
    tools = (await user.list_tools()).tools
    assert {tool.name for tool in tools} == TOOLS, tools
    for tool in tools:
        assert tool.title and tool.description and tool.output_schema and tool.annotations, tool
        assert tool.annotations.read_only_hint is (tool.name not in CHANGING), tool
    [restart] = [tool for tool in tools if tool.name == "restart_agent"]
    assert restart.annotations.idempotent_hint is False and restart.annotations.destructive_hint is True, restart

    [listed] = (await call(user, "list_agents"))["agents"]
    assert (listed["name"], listed["state"], listed["pid"]) == ("worker", "stopped", None), listed
    status = await call(user, "server_status")
    assert status["url"] == os.environ["MCP_URL"] and status["caller"]["type"] == "localUser", status

    started = (await call(user, "start_agent", name="worker"))["agent"]
    assert started["state"] == "running" and started["pid"], started
    assert (await refusal(user, "start_agent", name="worker")) == "already_running"

    restarted = await call(user, "restart_agent", name="worker", note=NOTE)
    assert restarted["accepted"] is True and restarted["agent"]["state"] == "running", restarted
    assert restarted["previous"]["pid"] == started["pid"] != restarted["agent"]["pid"], restarted
    assert restarted["previous"]["exit"]["reason"] == "restart", restarted
    assert restarted["agent"]["generation"] == started["generation"] + 1, restarted

    handoff = await call(agent, "get_handoff")
    assert [note["text"] for note in handoff["notes"]] == [NOTE], handoff
    assert handoff["generation"] == restarted["agent"]["generation"], handoff
    logs = await call(user, "agent_logs", name="worker", lines=100)
    assert f"generation {handoff['generation']} is ready" in logs["lines"], logs

    stopped = (await call(user, "stop_agent", name="worker"))["agent"]
    assert (stopped["state"], stopped["lastExit"]["reason"]) == ("stopped", "stop"), stopped
    assert (await refusal(user, "stop_agent", name="worker")) == "not_running"
    assert (await refusal(user, "restart_agent", name="nobody")) == "unknown_agent"
    assert (await refusal(user, "start_agent", name="")) == "invalid_argument"

    assert (await call(user, "list_stdio_servers"))["servers"] == []
    none = await call(user, "restart_stdio_servers", dryRun=True)
    assert (none["status"], none["killed"], none["selfExitScheduled"]) == ("dry_run", [], False), none


async def call(client, tool, **arguments):
    """The structured result of a call that succeeds; its text is the same JSON."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    assert json.loads(result.content[0].text) == result.structured_content, result
    return result.structured_content


async def refusal(client, tool, **arguments):
    """The code of a call that is refused: JSON text, without a structured result."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error and result.structured_content is None, result
    error = json.loads(result.content[0].text)["error"]
    assert error["message"] and "hint" in error, error
    return error["code"]


asyncio.run(main())
