#!/usr/bin/env python3
"""Fuzzes the codec, the config loader and the guard with inputs that coverage guides: libFuzzer, and a compiler that counts.

    python3 tests/fuzz/run.py                  a short search, the same one each time
    python3 tests/fuzz/run.py --seconds 600    another search of so long for each target

What was found to cover more is kept in target/fuzz/corpus, and the next search begins with it, the short one aside. An input
that breaks a law is kept in target/fuzz/faults and printed.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TARGET = ROOT / "target/fuzz"
# What cargo-fuzz asks of the compiler, less the address sanitizer: no unsafe code of ours is searched here, and every
# compiler knows the rest.
COUNTING = [
    "--cfg=fuzzing",
    "-Ccodegen-units=1",
    "-Cpasses=sancov-module",
    *(f"-Cllvm-args=-sanitizer-coverage-{what}" for what in ["level=4", "inline-8bit-counters", "pc-table", "trace-compares"]),
]
# How many inputs are tried in some seconds; the fault that is planted is found by then many times over.
BRIEFLY = {"planted": 10_000_000, "codec": 300_000, "config": 300_000, "guard": 20_000}
# Allocating what a lying length says ends the target.
MEMORY = 2 << 30


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=int, help="how long each target is searched; without it, briefly")
    seconds = arguments.parse_args().seconds
    programs = build()
    with tempfile.TemporaryDirectory() as scratch:
        if search(programs / "planted", [], None, Path(scratch)).returncode == 0:
            print("no search finds the fault that was planted", file=sys.stderr)
            return 1
    seeds = {"codec": codec_seeds(), "config": config_seeds(), "guard": guard_seeds()}
    held = [told(search(programs / name, seeds[name], seconds, TARGET / "faults" / name)) for name in seeds]
    return 0 if all(held) else 1


def build() -> Path:
    """Builds the targets and gives the folder in which they are."""
    host = re.search(r"^host: (.*)$", subprocess.check_output(["rustc", "-vV"], text=True), re.MULTILINE)[1]
    environment = os.environ | {"CARGO_TARGET_DIR": str(TARGET), "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(COUNTING)}
    # With a target that is named, build scripts and macros do not count.
    subprocess.run(["cargo", "build", "--release", "--locked", "--target", host], cwd=HERE, env=environment, check=True)
    return TARGET / host / "release"


def codec_seeds() -> list[bytes]:
    """The bytes that the golden tests pin, each as it is and as a frame."""
    texts = [path.read_text() for path in sorted((ROOT / "crates/protocol/src/snapshots").iterdir())]
    bodies = [bytes.fromhex(digits) for text in texts for digits in re.findall(r"^\S+ ((?:[0-9a-f]{2})+)$", text, re.MULTILINE)]
    assert len(bodies) > 50, "the golden bytes are elsewhere"
    return bodies + [len(body).to_bytes(4, "little") + body for body in bodies]


def config_seeds() -> list[bytes]:
    """The config files that the documents show."""
    texts = [path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]]
    blocks = [block for text in texts for block in re.findall(r"```jsonc?\n(.*?)```", text, re.DOTALL)]
    assert len(blocks) > 5, "the documents show no config files"
    return [block.encode() for block in blocks]


def guard_seeds() -> list[bytes]:
    """The commands that the guard's own tests are about."""
    strings = re.findall(r'"((?:[^"\\\n]|\\.)+)"', (ROOT / "crates/ctl/src/guard/tests.rs").read_text())
    assert len(strings) > 100, "the guard's tests are elsewhere"
    return [string.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\").encode() for string in strings]


def dictionary(seeds: list[bytes]) -> str:
    """The words of the seeds that are text. Without the address sanitizer nobody tells libFuzzer what strings are compared with."""
    texts = [seed for seed in seeds if all(byte >= 32 or byte == 10 for byte in seed)]
    words = sorted({word for text in texts for word in re.findall(rb'"[\w./~{}-]{2,30}"|[\w.-]{2,30}', text)})
    escaped = ["".join(f"\\x{byte:02x}" for byte in word) for word in words]
    return "".join(f'"{word}"\n' for word in escaped)


def search(program: Path, seeds: list[bytes], seconds: int | None, faults: Path) -> subprocess.CompletedProcess:
    """Looks for inputs that break the law; they are put into `faults`."""
    with tempfile.TemporaryDirectory() as scratch:
        corpus = TARGET / "corpus" / program.name if seconds else Path(scratch) / "corpus"
        given = Path(scratch) / "seeds"
        for folder in [faults, corpus, given]:
            folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds):
            (given / f"{number:04}").write_bytes(seed)
        words = Path(scratch) / "words"
        words.write_text(dictionary(seeds) or "# none\n")
        # The same compiler and the same code search the same when it is brief.
        extent = [f"-max_total_time={seconds}"] if seconds else ["-seed=2026", f"-runs={BRIEFLY[program.name]}"]
        options = ["-timeout=10", "-rss_limit_mb=0", f"-artifact_prefix={faults}/", f"-dict={words}"]
        return subprocess.run(
            [program, *extent, *options, corpus, given],
            stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE,
            preexec_fn=limit_memory,
            text=True,
            errors="replace",
        )


def told(search: subprocess.CompletedProcess) -> bool:
    """Says what became of a search, and gives whether the law holds."""
    lines = search.stdout.splitlines()
    holds = search.returncode == 0
    print(f"{search.args[0].name}:", *([line for line in lines if "\tDONE " in line] if holds else lines[-50:]), sep="\n  ", flush=True)
    return holds


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


if __name__ == "__main__":
    sys.exit(main())
