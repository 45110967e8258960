"""A client of the Python SDK that starts its stdio server again when that has ended, as Cursor and its like do.

usage: respawning.py COMMAND…   the server; each one that answers is told on standard output as `edition pid`
"""

import asyncio
import sys

from mcp import Client, StdioServerParameters

LOOK_AGAIN_SECONDS = 0.1
CALL_SECONDS = 5


async def main():
    server = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:])
    while True:
        try:
            async with Client(server, read_timeout_seconds=CALL_SECONDS) as client:
                print((await client.call_tool("about", {})).content[0].text, flush=True)
                while True:
                    await client.call_tool("about", {})
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
        except Exception as error:
            print(f"again after {error!r}", file=sys.stderr)


asyncio.run(main())
