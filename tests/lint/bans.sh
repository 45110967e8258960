#!/usr/bin/env bash
# Plants calls that clippy.toml bans in a crate of their own and sees clippy refuse each of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
printf '[package]\nname = "planted"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n' >"$folder/Cargo.toml"

# refused CALL: whether clippy, with this project's list of bans, refuses a function that makes the call.
refused() {
    printf 'pub fn planted() {\n    let _ = %s;\n}\n' "$1" >"$folder/src/lib.rs"
    CLIPPY_CONF_DIR=$PWD cargo clippy --quiet --offline --manifest-path "$folder/Cargo.toml" -- --deny clippy::disallowed_methods 2>"$folder/said" && return 1
    grep -q 'use of a disallowed method' "$folder/said"
}

if refused 'std::process::id()'; then
    echo 'clippy refuses what is not banned' >&2
    exit 1
fi
for call in 'std::process::Command::new("true")' 'std::process::exit(1)' 'std::process::abort()'; do
    if ! refused "$call"; then
        echo "clippy lets $call through:" >&2
        cat "$folder/said" >&2
        exit 1
    fi
    echo "refused, as it has to be: $call"
done
