"""A client of the Python SDK that starts its stdio server again when that has ended, as Cursor and its like do.

usage: respawning.py COMMAND…   the server; each one that answers is told on standard output as `edition pid`
"""

import asyncio
import os
import sys

from mcp import Client, StdioServerParameters

CALL_SECONDS = 5


async def main():
    server = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:])
    while True:
        try:
            async with Client(server, read_timeout_seconds=CALL_SECONDS) as client:
                answer = (await client.call_tool("about", {})).content[0].text
                print(answer, flush=True)
                await end_of(int(answer.split()[1]))
                await client.call_tool("about", {})
        except Exception as error:
            print(f"again after {error!r}", file=sys.stderr)


async def end_of(pid):
    """Waits until the process has ended."""
    process = os.pidfd_open(pid)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(process, ended.set)
    await ended.wait()
    asyncio.get_running_loop().remove_reader(process)
    os.close(process)


asyncio.run(main())
