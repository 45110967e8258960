"""What the proofs with other people's programs share: their installation, and the real stack."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "target" / "proofs"
INSTALL_SECONDS = 600
COMMAND_SECONDS = 60
LOOK_AGAIN_SECONDS = 0.1


def node_packages(source):
    """A copy of `source` under target/, with the packages of its package-lock.json installed, else those of its package.json."""
    folder = CACHE / source.name
    shutil.copytree(source, folder, dirs_exist_ok=True)
    lock = source / "package-lock.json"
    wanted, how = (lock, ["ci"]) if lock.exists() else (source / "package.json", ["install", "--no-package-lock"])
    install(folder / "node.lock", wanted.read_text(), ["npm", *how, "--no-audit", "--no-fund"], folder)
    return folder


def python_packages(source):
    """A Python whose packages are those of `source`'s requirements.txt."""
    folder = CACHE / source.name
    folder.mkdir(parents=True, exist_ok=True)
    requirements = source / "requirements.txt"
    python = folder / "python" / "bin" / "python"
    if not python.exists():
        run([sys.executable, "-m", "venv", folder / "python"], seconds=COMMAND_SECONDS)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
    install(folder / "python.lock", requirements.read_text(), command, folder)
    return python


def install(stamp, wanted, command, folder):
    """Run `command`, unless it succeeded before for what is `wanted`; registries get three tries."""
    if stamp.exists() and stamp.read_text() == wanted:
        return
    for tries_left in (2, 1, 0):
        try:
            run(command, cwd=folder, seconds=INSTALL_SECONDS)
            break
        except subprocess.SubprocessError as error:
            if not tries_left:
                raise
            print(f"again: {error}", file=sys.stderr)
    stamp.write_text(wanted)


def run(command, *, seconds, **options):
    """Run a command to its end, which has to be a success."""
    return subprocess.run([str(word) for word in command], check=True, timeout=seconds, **options)


def until(seconds, what, look):
    """The first thing that `look` finds, which it does within these seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(LOOK_AGAIN_SECONDS)
    raise TimeoutError(f"waited {seconds} s for {what}")


def scratch():
    """A folder for one stack, removed at the end of the `with` block."""
    return tempfile.TemporaryDirectory(prefix="mcp-restart-proof-")


class Stack:
    """The real daemon with its real bridge, with all that it keeps in `folder`, while the `with` block runs.

    `programs` is the folder of the three programs, `agents` and `stdio_servers` the config's entries; `user` is the name of the user
    that all of it runs as, where that is not our own.
    """

    def __init__(self, programs, agents, folder, *, user=None, stdio_servers=()):
        self.folder = Path(folder)
        self.user = user
        self.program = Path(programs).resolve() / "mcp-restartctl"
        self.config = self.folder / "mcp-restart.config.json"
        config = {"port": 0, "agents": agents, "stdioServers": list(stdio_servers)}
        self.config.write_text(json.dumps(config, indent=2))
        self.environment = {"HOME": str(self.folder), "PATH": f"{self.program.parent}:{os.environ['PATH']}"}
        if user:
            run(["chown", "-R", f"{user}:", self.folder], seconds=COMMAND_SECONDS)

    def __enter__(self):
        try:
            self.ctl("up")
            self.url = self.json("status")["url"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        subprocess.run(self.command("down"), env=self.environment, cwd=self.folder, timeout=COMMAND_SECONDS)

    def command(self, *words):
        lookups = ["--config", str(self.config), "--state-dir", str(self.folder / "state")]
        return [*as_user(self.user), str(self.program), *lookups, *words]

    def ctl(self, *words):
        """What this mcp-restartctl command prints."""
        command = self.command(*words)
        return run(command, env=self.environment, cwd=self.folder, seconds=COMMAND_SECONDS, stdout=subprocess.PIPE, text=True).stdout

    def json(self, *words):
        """What it prints with --json."""
        return json.loads(self.ctl("--json", *words))

    def agent(self, name):
        """The JSON of one agent."""
        [agent] = [agent for agent in self.json("list")["agents"] if agent["name"] == name]
        return agent

    def agent_token(self, name):
        """The token by which this agent's requests are known."""
        server = self.json("mcp-config", name)["content"]["mcpServers"]["restart"]
        return server["headers"]["Authorization"].removeprefix("Bearer ")


def as_user(user):
    """The words before a command that make it run as `user`."""
    return ["setpriv", "--reuid", user, "--regid", str(pwd.getpwnam(user).pw_gid), "--clear-groups"] if user else []
