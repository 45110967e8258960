"""Real stdio servers, started by clients of the official SDKs, are upgraded on disk, found stale and restarted; and
what is reported of that is what happened."""

import os
import shutil
import subprocess
from pathlib import Path

from proof import Stack, until

SECONDS = 30


def prove(programs, folder, here, python, packages):
    """`python` and `packages` have what the clients and servers here are made of."""
    names = [f"{name}-{os.getpid()}" for name in ("clock", "everything")]
    clock, everything = folder / names[0], packages / "node_modules" / ".bin" / names[1]
    shutil.copy(here / "clock_server.py", clock)
    everything.symlink_to("mcp-server-everything")
    servers = [{"name": name.split("-")[0], "match": name} for name in names]
    respawning = start([python, here / "respawning.py", python, clock], folder)
    staying = start(["node", packages / "staying.mjs", "npx", "--no-install", names[1]], packages)
    try:
        with Stack(programs, [], folder, stdio_servers=servers) as stack:
            assert respawning.stdout.readline().split()[0] == "1"
            assert staying.stdout.readline() == "ready\n"
            restart_what_is_stale(stack, clock, everything, respawning, staying)
    finally:
        everything.unlink()
        for client in (respawning, staying):
            client.kill()
            client.wait()


def restart_what_is_stale(stack, clock, everything, respawning, staying):
    before = listed(stack)
    clients = {name: (server["client"]["program"], server["client"]["pid"]) for name, server in before.items()}
    wanted = {"clock": ("respawning.py", respawning.pid), "everything": ("staying.mjs", staying.pid)}
    assert clients == wanted, before
    assert not any(server["stale"] or server["orphaned"] for server in before.values()), before

    upgrade(clock, clock.read_text().replace("EDITION = 1", "EDITION = 2"))
    script = everything.resolve()
    upgrade(script, script.read_text())
    assert all(server["stale"] for server in listed(stack).values()), listed(stack)

    report = stack.json("servers", "restart", "--stale")
    old = {name: server["pid"] for name, server in before.items()}
    assert report["status"] == "success" and sorted(report["killed"]) == sorted(old.values()), report
    [back] = report["respawned"]
    edition, pid = respawning.stdout.readline().split()
    assert (edition, back["oldPid"], back["newPid"]) == ("2", old["clock"], int(pid)), (report, edition, pid)
    [missing] = report["notRespawned"]
    assert (missing["pid"], missing["client"]["pid"]) == (old["everything"], staying.pid), report
    assert staying.stdout.readline() == "closed\n"
    assert "staying.mjs" in report["note"], report

    after = listed(stack)
    assert list(after) == ["clock"] and not after["clock"]["stale"], after
    # npx, the shell that it starts, and the server itself: nothing of it is left.
    until(SECONDS, "every process to be gone", lambda: not running(everything.name))


def start(command, folder):
    command = [str(word) for word in command]
    return subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def upgrade(file, text):
    """Puts a new file in the place of the old one, as installers do."""
    new = file.with_name("new")
    new.write_text(text)
    shutil.copymode(file, new)
    new.replace(file)


def listed(stack):
    return {server["name"]: server for server in stack.json("servers", "list")["servers"]}


def running(name):
    """Whether a process mentions this name, other than the client that does."""
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return any(name.encode() in line and b"staying.mjs" not in line for line in lines)
