#!/usr/bin/env bash
# units.sh FOLDER: systemd-analyze verify of the user units in FOLDER, and of the daemon's with its drop-in.
# verify exits 0 for an unknown key or a value that it ignores, so any word about our files is a failure here.
set -euo pipefail
folder=$(cd "$1" && pwd)

if ! command -v systemd-analyze >/dev/null; then
    apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends systemd >/dev/null
fi

home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
mkdir -p "$home/.cargo/bin" "$home/run" "$home/units"
# verify wants to see the programs that a unit starts.
for program in mcp-restartd mcp-restart-http mcp-restartctl; do
    install -m 755 /dev/null "$home/.cargo/bin/$program"
done

verify() {
    local what=$1 said
    shift
    if ! said=$(HOME=$home XDG_RUNTIME_DIR=$home/run SYSTEMD_UNIT_PATH=$home/units: \
        systemd-analyze --user verify --man=no --recursive-errors=one "$@" 2>&1) || grep -q mcp-restart <<<"$said"; then
        printf 'unit %s:\n%s\n' "$what" "$said" >&2
        exit 1
    fi
    echo "unit $what: ok"
}

cp "$folder"/*.service "$home/units/"
for unit in "$home"/units/*.service; do
    verify "$(basename "$unit")" "$unit"
done
install -D -m 644 "$folder/no-bridge.conf" "$home/units/mcp-restartd.service.d/no-bridge.conf"
verify 'mcp-restartd.service with no-bridge.conf' "$home/units/mcp-restartd.service"

# The same check must find a fault where there is one, or it proves nothing.
printf '[Service]\nKillModus=process\n' >"$home/units/mcp-restartd.service.d/fault.conf"
if (verify 'with a deliberate fault' "$home/units/mcp-restartd.service") >/dev/null 2>&1; then
    echo 'units.sh does not notice an unknown key' >&2
    exit 1
fi
