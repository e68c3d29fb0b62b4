"""Reads every tracked file for what must not be in it; standard library only: ``python scripts/check_tree.py``.

- no absolute path of somebody's machine,
- no host of a package registry, and no URL outside a short list of hosts,
- the npm lock file names no host and has a digest for every package,
- every requirement of the lock files is pinned, and nothing else is in them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MACHINE_PATH = re.compile(r"(?<![\w.$}~/-])/(?:home|root|Users|work|workspace|opt|mnt|media|srv)/[\w.-]*")
REGISTRY = re.compile(r"\b(?:registry\.[a-z0-9-]+\.[a-z]+|pypi\.[a-z]{2,}|files\.[a-z]+hosted\.[a-z]+)", re.IGNORECASE)
URL = re.compile(r"https?://(?:[^\s/@]*@)?([A-Za-z0-9.-]+)")
HOSTS = {
    "127.0.0.1",
    "localhost",
    "www.apache.org",  # the licence
    "www.w3.org",  # the name of the SVG namespace
}
MARKER = r"""[a-z_]+ (?:==|<) "[A-Za-z0-9._]+\""""
PIN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.+!]+(?:; {MARKER}(?: and {MARKER})*)?")


def tracked(root: Path = ROOT) -> list[Path]:
    """Files that git knows, relative to ``root``; those that are not committed yet but not ignored, too."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout.decode()
    return sorted(Path(name) for name in listing.split("\0") if name and (root / name).is_file())


def problems_of_text(name: str, text: str) -> Iterator[str]:
    """What is wrong with one text file. ``name`` is its path in the tree."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in MACHINE_PATH.finditer(line):
            yield f"{name}:{number}: {found.group()} is a path of one machine"
        for found in REGISTRY.finditer(line):
            yield f"{name}:{number}: {found.group()} is the host of a package registry"
        if name == "package-lock.json":
            continue  # read as JSON below
        for found in URL.finditer(line):
            host = found.group(1).lower()
            made_up = "." not in host or host.endswith((".test", ".example", ".invalid"))
            if host not in HOSTS and not made_up:
                yield f"{name}:{number}: the host {host} is not on the list in scripts/check_tree.py"


def problems_of_npm_lock(text: str) -> Iterator[str]:
    """What is wrong with package-lock.json."""
    lock = json.loads(text)
    for name, package in lock["packages"].items():
        if not name:
            continue
        if "integrity" not in package:
            yield f"package-lock.json: {name} has no integrity digest"
        for key, value in package.items():
            if key != "funding" and "://" in json.dumps(value):
                yield f"package-lock.json: {name} names a host in {key!r}; .npmrc keeps them out: run npm with it"


def problems_of_pip_lock(name: str, text: str) -> Iterator[str]:
    """What is wrong with a requirements/*.lock: exact versions only, each once; some for certain machines only."""
    lines = text.split("\n")[:-1]
    yield from (f"{name}: {line!r} is not NAME==VERSION" for line in lines if not PIN.fullmatch(line))
    names = [re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in lines]
    yield from (f"{name}: {twice} is in it twice" for twice in sorted({n for n in names if names.count(n) > 1}))


def problems(root: Path = ROOT) -> list[str]:
    """Everything that is wrong."""
    found: list[str] = []
    for path in tracked(root):
        data = (root / path).read_bytes()
        if b"\0" in data[:8192]:
            continue  # not text
        text = data.decode("utf-8", errors="replace")
        found += problems_of_text(path.as_posix(), text)
        if path.as_posix() == "package-lock.json":
            found += problems_of_npm_lock(text)
        if path.parent.as_posix() == "requirements" and path.suffix == ".lock":
            found += problems_of_pip_lock(path.as_posix(), text)
    return found


if __name__ == "__main__":
    wrong = problems()
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(bool(wrong))
