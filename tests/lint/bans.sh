#!/usr/bin/env bash
# Plants each call that clippy.toml bans in a crate of their own and sees clippy refuse every one of them, and nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
# The versions are those of the project.
cp Cargo.lock "$folder"
cat >"$folder/Cargo.toml" <<'TOML'
[package]
name = "planted"
version = "0.0.0"
edition = "2024"
[workspace]
[dependencies]
nix = { version = "*", features = ["process", "signal"] }
rustix = { version = "*", features = ["process"] }
tokio = { version = "*", features = ["process"] }
TOML

# spelt CALL: how the function is named without being called.
spelt() {
    local text="&std::ffi::CStr" descriptor="std::os::fd::BorrowedFd<'static>"
    case $1 in
        std::process::Command::new | tokio::process::Command::new) echo "$1::<&str>" ;;
        std::os::unix::process::CommandExt::exec) echo '<std::process::Command as std::os::unix::process::CommandExt>::exec' ;;
        nix::sys::signal::kill | nix::sys::signal::killpg) echo "$1::<nix::sys::signal::Signal>" ;;
        rustix::process::pidfd_send_signal) echo "$1::<$descriptor>" ;;
        nix::unistd::execv | nix::unistd::execvp) echo "$1::<$text>" ;;
        nix::unistd::execve | nix::unistd::execvpe) echo "$1::<$text, $text>" ;;
        nix::unistd::execveat | nix::unistd::fexecve) echo "$1::<$descriptor, $text, $text>" ;;
        *) echo "$1" ;;
    esac
}

mapfile -t banned < <(grep --only-matching --perl-regexp 'path = "\K[^"]+' clippy.toml)
{
    echo 'pub fn planted() {'
    for call in "${banned[@]}"; do
        # A line each, by which it is known which of them are refused.
        echo "    let _ = $(spelt "$call");"
    done
    echo '    let _ = std::process::id();'
    echo '}'
} >"$folder/src/lib.rs"
CLIPPY_CONF_DIR=$root CARGO_TARGET_DIR=$root/target/bans cargo clippy --quiet --offline --message-format short \
    --manifest-path "$folder/Cargo.toml" -- --deny clippy::disallowed_methods 2>"$folder/said" && {
    echo 'clippy refuses nothing' >&2
    exit 1
}

mapfile -t refused < <(grep --only-matching --perl-regexp 'use of a disallowed method `\K[^`]+' "$folder/said")
if [[ ${#banned[@]} -eq 0 || ${refused[*]} != "${banned[*]}" ]]; then
    printf 'banned:\n%s\nrefused:\n%s\n' "${banned[*]}" "${refused[*]}" >&2
    cat "$folder/said" >&2
    exit 1
fi
printf 'refused, as it has to be: %s\n' "${refused[@]}"
