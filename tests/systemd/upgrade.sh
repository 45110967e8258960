#!/usr/bin/env bash
# upgrade.sh FOLDER: a real systemd user manager runs the project's own unit with the programs in FOLDER. A reload puts
# another daemon in the place of the one that runs, and so does `mcp-restartctl upgrade`, also from inside an agent; a
# crash and a restart of the unit are seen too. As root, where the control groups may be written; nothing of it is left.
set -euo pipefail
programs=$(cd "$1" && pwd)
units=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../systemd" && pwd)

if [[ -z ${MCP_RESTART_PROOF_HOME:-} ]]; then
    home=$(mktemp -d)
    group=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts)/mcp-restart-proof-$$
    mkdir "$group"
    end() {
        echo 1 >"$group/cgroup.kill"
        while grep -q 'populated 1' "$group/cgroup.events"; do sleep 0.05; done
        find "$group" -depth -type d -exec rmdir {} +
        rm -rf "$home"
    }
    trap end EXIT
    # A user manager wants to see a system that was booted with systemd: in a mount namespace it does.
    (
        echo "$BASHPID" >"$group/cgroup.procs"
        exec env MCP_RESTART_PROOF_HOME="$home" unshare --mount --cgroup --propagation private \
            timeout 120 bash "${BASH_SOURCE[0]}" "$programs"
    )
    exit
fi

home=$MCP_RESTART_PROOF_HOME
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system "$home/run" "$home/.cargo/bin" "$home/.config/systemd/user" "$home/.config/mcp-restart"
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for program in mcp-restartd mcp-restart-http mcp-restartctl; do
    install "$programs/$program" "$home/.cargo/bin/"
done
cp "$units/mcp-restartd.service" "$home/.config/systemd/user/"
cat >"$home/.config/mcp-restart/config.json" <<JSON
{ "port": 0, "agents": [
  { "name": "a", "command": "sleep", "args": ["1000"], "settleMs": 0 },
  { "name": "b", "command": "sh", "settleMs": 0, "cwd": "$home",
    "args": ["-c", "read word < go; $home/.cargo/bin/mcp-restartctl upgrade; echo \$? > code; exec sleep 1000"] } ] }
JSON
mkfifo "$home/go" "$home/code"
exec env -i HOME="$home" XDG_RUNTIME_DIR="$home/run" PATH="$home/.cargo/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    bash -euo pipefail -c '
    said() { printf "%s\n" "$*"; }
    manager=/usr/lib/systemd/systemd
    $manager --user --log-target=console >"$HOME/manager.log" 2>&1 &
    until [[ -S $XDG_RUNTIME_DIR/systemd/private ]] && systemctl --user is-active -q basic.target; do
        kill -0 $! 2>/dev/null || { cat "$HOME/manager.log"; exit 1; }
        sleep 0.05
    done
    pid() { systemctl --user show -P MainPID mcp-restartd; }
    serves() { until mcp-restartctl status >/dev/null 2>&1 && [[ $(pid) != "$1" && $(pid) != 0 ]]; do sleep 0.05; done; }
    agent() { mcp-restartctl --json list | sed -n "s/^ *\"pid\": \([0-9]*\),*$/\1/p" | head -n 1; }

    systemctl --user start mcp-restartd
    serves 0
    mcp-restartctl start a b
    first=$(agent)
    [[ -n $first ]]
    same() { [[ $(agent) == "$first" ]] || { said "$1: the agent is $(agent), not $first"; exit 1; }; said "$1: daemon $(pid), agent $first runs on"; }

    old=$(pid); systemctl --user reload mcp-restartd; serves "$old"; same "reload"
    old=$(pid); mcp-restartctl upgrade; serves "$old"; same "upgrade"
    old=$(pid); echo now >"$HOME/go"; read -r code <"$HOME/code"; [[ $code == 0 ]]; serves "$old"; same "upgrade inside an agent"
    old=$(pid); kill -KILL "$old"; serves "$old"; same "crash"
    systemctl --user stop mcp-restartd
    ! kill -0 "$first" 2>/dev/null || { said "the agent outlives the unit"; exit 1; }
    [[ $(systemctl --user show -P Result mcp-restartd) == success ]]
    said "stop: every agent is gone; $($manager --version | head -n 1)"
    '
