"""The project itself: what is tracked, what is pinned, what the build promises."""

from __future__ import annotations

import importlib.util
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import sentinel_market

ROOT = Path(__file__).parents[1]


def load_check_tree() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_tree", ROOT / "scripts" / "check_tree.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_tree = load_check_tree()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def names(text: str) -> set[str]:
    """Normalised package names of a requirements file."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return {re.sub(r"[-_.]+", "-", re.split(r"[=<>\[;]", line)[0]).lower() for line in lines if line}


def test_no_tracked_file_names_this_machine_or_a_registry() -> None:
    assert check_tree.problems() == []


@pytest.mark.parametrize(
    "line",
    [
        "see " + "/" + "home/alice/x",
        "'" + "/" + "root/.cache'",
        "PATH=" + "/" + "opt/tool/bin",
        "https:" + "//files.some" + "hosted.org/x.whl",
        "index = registry." + "npm.example",
        "https:" + "//somewhere.example.com/page",
    ],
)
def test_what_must_not_be_in_a_file_is_found(line: str) -> None:
    assert list(check_tree.problems_of_text("x.py", line))


@pytest.mark.parametrize(
    "line",
    [
        "http://127.0.0.1:8700/",
        "{folder}/home/keys",
        "https://a.test/x",
        "/jobs/{job_id}/work",
        "../work",
        "a/opt/b",
        "~/root",
    ],
)
def test_what_may_be_in_a_file_is_let_through(line: str) -> None:
    assert list(check_tree.problems_of_text("x.py", line)) == []


def test_lock_files_with_faults_are_found() -> None:
    assert list(check_tree.problems_of_pip_lock("x.lock", "a==1\nb>=2\n"))
    assert list(check_tree.problems_of_pip_lock("x.lock", "a_b==1\na-b==2\n"))
    assert not list(check_tree.problems_of_pip_lock("x.lock", "a==1\nb==2.0+cpu\n"))
    for marker, wrong in [('python_version < "3.14"', False), ('extra == "x" and a < "1"', False), ("anything", True)]:
        assert bool(list(check_tree.problems_of_pip_lock("x.lock", f"a==1; {marker}\n"))) == wrong
    lock = '{"packages": {"": {}, "node_modules/a": {"version": "1", "resolved": "https://r.example/a.tgz"}}}'
    assert len(list(check_tree.problems_of_npm_lock(lock))) == 2


def test_torch_is_pinned_without_a_suffix() -> None:
    lock = (ROOT / "requirements" / "runtime.lock").read_text(encoding="utf-8").splitlines()
    assert "torch==2.13.0" in lock


@pytest.mark.parametrize("kind", ["runtime", "dev"])
def test_what_is_required_is_locked(kind: str) -> None:
    wanted = names((ROOT / "requirements" / f"{kind}.in").read_text(encoding="utf-8"))
    assert wanted <= names((ROOT / "requirements" / f"{kind}.lock").read_text(encoding="utf-8"))


def test_the_runtime_lock_holds_no_test_tool() -> None:
    runtime = names((ROOT / "requirements" / "runtime.lock").read_text(encoding="utf-8"))
    assert not runtime & names((ROOT / "requirements" / "dev.in").read_text(encoding="utf-8"))


def test_one_version() -> None:
    assert PYPROJECT["project"]["version"] == sentinel_market.__version__


def test_the_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
    assert PYPROJECT["project"]["license"] == "Apache-2.0"


def test_the_changelog_has_an_unreleased_section_with_entries() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, "CHANGELOG.md has no section 'Unreleased'"
    assert re.search(r"^- \w", section.group(1), re.MULTILINE)


def test_every_package_of_the_tree_is_installed_with_it() -> None:
    """A folder without __init__.py, or a data file that is not listed, is missing from an installation."""
    for top in ("sentinel_market", "worker", "verifier"):
        for folder in {path.parent for path in (ROOT / top).rglob("*.py")}:
            assert (folder / "__init__.py").exists(), f"{folder.relative_to(ROOT)} has no __init__.py"
    listed = PYPROJECT["tool"]["setuptools"]["package-data"]["sentinel_market"]
    package = ROOT / "sentinel_market"
    data = {p for p in package.rglob("*") if p.is_file() and p.suffix not in {".py", ".pyi", ".pyc"}}
    covered = {p for pattern in listed for p in package.glob(pattern)}
    assert {p.relative_to(package).as_posix() for p in data - covered} == set()


def test_every_test_file_is_collected_once() -> None:
    """Two test files of one name need packages around them, else pytest refuses one."""
    seen: dict[str, Path] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        if not (path.parent / "__init__.py").exists():
            assert path.name not in seen, f"{path} and {seen[path.name]}: add an __init__.py"
            seen[path.name] = path


def test_continuous_integration_runs_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    text = script.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash") and "set -euo pipefail" in text
    assert text.index("make check") < text.rindex("make test"), "pytest's summary must come last"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_the_solidity_tests_come_before_pytest() -> None:
    recipe = MAKEFILE[MAKEFILE.index("\ntest: ") :].split("\n\n")[0]
    assert recipe.index("test-contracts") < recipe.index("test-python")


def test_stamps_are_written_last() -> None:
    """A step of the set-up that was interrupted must be done again."""
    rules = re.findall(r"^((?:\$\(VENV\)|node_modules|artifacts)/\.\w+):.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert len(rules) >= 6
    for target, recipe in rules:
        assert recipe.rstrip().splitlines()[-1].strip() in {"@touch $@", "@echo '$(CURDIR)' > $@"}, target


def test_this_python_is_admitted() -> None:
    assert sys.version_info >= (3, 11)
    assert PYPROJECT["project"]["requires-python"] == ">=3.11"
