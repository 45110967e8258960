#!/usr/bin/env bash
# Type-checks the workspace for macOS: the code that only that system compiles, with every lint. Nothing is linked, and
# nothing runs. The target's standard library comes from rustup or, where rustup reaches nothing, from its sources in
# Debian's packages, which are then checked along.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=aarch64-apple-darwin
sysroot=$(rustc --print sysroot)
version=$(rustc --version | cut -d' ' -f2)

library() { ls "$sysroot/lib/rustlib/$target/lib/"libstd-*.rlib >/dev/null 2>&1; }

add_target() {
    local pause
    for pause in 0 5 20; do
        sleep "$pause"
        if timeout 120 rustup target add "$target"; then return; fi
    done
    return 1
}

# sources FOLDER: puts the sources of this compiler's standard library there, from Debian's backports.
sources() {
    local apt=$PWD/target/macos/apt package
    mkdir -p "$1" "$apt"/etc/apt/{sources.list.d,preferences.d,apt.conf.d} "$apt"/var/lib/apt/lists/partial \
        "$apt"/var/cache/apt/archives/partial "$apt"/var/lib/dpkg
    : >"$apt/var/lib/dpkg/status"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie-backports main\n' \
        "$(apt-get indextargets --format '$(SITE)' | head -n 1)" >"$apt/etc/apt/sources.list"
    printf 'Dir "%s";\nDir::Etc::Parts "/etc/apt/apt.conf.d";\nDir::State::status "%s/var/lib/dpkg/status";\nAcquire::Languages "none";\n' \
        "$apt" "$apt" >"$apt/apt.conf"
    (
        export APT_CONFIG=$apt/apt.conf
        cd "$apt"
        apt-get update -q
        package=$(apt-cache madison rust-src | awk -v version="$version" '{ split($3, parts, "+"); if (parts[1] == version) { print $3; exit } }')
        apt-get download -q "rust-src=$package"
    )
    dpkg-deb --fsys-tarfile "$apt"/rust-src_*.deb | tar -x -C "$1" --strip-components=4 "./usr/src/rustc-$version/library"
}

# Its own folder: the lock of the other one is held by whoever builds there meanwhile.
check=(clippy --workspace --locked --target "$target" --target-dir target/macos)
if library || { add_target && library; }; then
    exec cargo "${check[@]}" -- --deny warnings
fi

echo "rustup has no standard library for $target: checking with its sources from Debian" >&2
toolchain=$PWD/target/macos/toolchain
if [[ ! -e $toolchain/lib/rustlib/src/rust/library ]]; then
    mkdir -p "$toolchain"
    cp -a "$sysroot/." "$toolchain/"
    sources "$toolchain/lib/rustlib/src/rust"
fi
# The compiler is the stable one; only cargo's way to build its own standard library is not.
PATH=$toolchain/bin:$PATH LD_LIBRARY_PATH=$toolchain/lib RUSTC_BOOTSTRAP=1 \
    exec cargo "${check[@]}" -Zbuild-std=std,panic_abort -- --deny warnings
