#!/usr/bin/env bash
# Type-checks the workspace for macOS: the code that only that system compiles, with every lint. Nothing is linked, and
# nothing runs. Needs rustup, and the network where the target's standard library is not there yet.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=aarch64-apple-darwin

library() { ls "$(rustc --print sysroot)/lib/rustlib/$target/lib/"libstd-*.rlib >/dev/null 2>&1; }

if ! library; then
    for pause in 0 5 20; do
        sleep "$pause"
        rustup target add "$target" && break
    done
    library || { echo "there is no standard library for $target: rustup target add $target has failed" >&2; exit 1; }
fi
# Its own folder: the lock of the other one is held by whoever builds there meanwhile.
exec cargo clippy --workspace --locked --target "$target" --target-dir target/macos -- --deny warnings
