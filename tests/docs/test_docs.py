"""The documentation is tested: what it names exists, and what exists is named."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from fastapi import FastAPI

from sentinel_market.cli.main import cli
from sentinel_market.cli.reference import commands
from sentinel_market.config import SETTINGS
from sentinel_market.coordinator import CoordinatorSettings, create_app
from sentinel_market.domain import messages
from sentinel_market.domain.job_spec import parse_job, template
from tests.coordinator.conftest import CHAIN_ID, CONTRACTS, FakeChain

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def outside_fences(text: str) -> str:
    return FENCE.sub("", text)


def anchors(page: Path) -> set[str]:
    """The anchors that a renderer makes of a page's headings."""
    found = re.findall(r"^#+ (.*)$", outside_fences(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in found}


def sentinel_lines(text: str) -> Iterator[str]:
    """Every `sentinel ...` call of the shell blocks: loops, redirections and `make` lines around it are taken off."""
    for language, block in FENCE.findall(text):
        if language not in {"sh", "bash", "shell", "console"}:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r";|&&|\|\||\||(?<!>)&(?!>)", line.split(" #")[0]):
                words = re.sub(r"^\s*(?:(?:do|then|else|time)\s+|\w+=\S*\s+|\.venv/bin/)*", "", part).strip()
                if words.startswith("sentinel "):
                    yield re.sub(r"\s*\d?>.*$", "", words)


def resolve(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that a line means, with what is left of its words."""
    command: click.Command = cli
    context = click.Context(cli, info_name="sentinel", **cli.context_settings)
    rest = words
    while isinstance(command, click.Group):
        if command.invoke_without_command and (not rest or rest[0].startswith("-")):
            break
        found = command.get_command(context, rest[0]) if rest else None
        assert found is not None, f"there is no verb in {' '.join(words)!r}"
        context = click.Context(found, info_name=rest[0], parent=context)
        command, rest = found, rest[1:]
    return command, context, rest


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(outside_fences(page.read_text(encoding="utf-8"))):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name_of(page)} links to {target}"
        assert ROOT in (there, *there.parents), f"{name_of(page)} links out of the tree: {target}"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{name_of(page)} links to {target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_placeholder_is_left(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# ") and text.endswith("\n")
    assert not re.search(r"@@\w+@@|\bTODO\b|\bTBD\b|\bFIXME\b", text)
    assert text.count("\n```") % 2 == 0 or text.startswith("```"), "a block of code is not closed"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_shell_line_exists(page: Path) -> None:
    for line in sentinel_lines(page.read_text(encoding="utf-8")):
        words = [re.sub(r"^\$\w+$", "1", word) for word in shlex.split(line)[1:]]
        command, context, rest = resolve(words)
        if "--help" in rest:
            continue
        try:
            command.make_context(context.info_name, rest, parent=context.parent, resilient_parsing=False)
        except click.ClickException as error:
            pytest.fail(f"{name_of(page)}: {line!r}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_verbs_named_in_the_text_exist(page: Path) -> None:
    for quoted in re.findall(r"`sentinel ([a-z][^`]*)`", outside_fences(page.read_text(encoding="utf-8"))):
        for word in quoted.split("|")[:1]:
            resolve_names([w for w in word.split() if re.fullmatch(r"[a-z]+", w)])


def resolve_names(words: list[str]) -> None:
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None, f"`sentinel {' '.join(words)}` does not exist"
    if isinstance(command, click.Group) and len(words) > 1:
        assert command.get_command(click.Context(command), words[1]) is not None, f"no verb `{' '.join(words)}`"


def test_every_verb_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    missing = [name for name, _ in commands() if f"### `{name}`" not in text]
    assert not missing
    named = re.findall(r"^### `(sentinel [^`]+)`$", text, re.MULTILINE)
    assert sorted(named) == sorted(name for name, _ in commands())


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_every_setting_is_documented(setting: object) -> None:
    name = setting.name  # type: ignore[attr-defined]
    assert f"| `{name}` |" in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert name in CliRunner().invoke(cli, ["--help"]).output


def test_no_page_names_a_setting_that_does_not_exist() -> None:
    known = {setting.name for setting in SETTINGS}
    for page in PAGES:
        named = set(re.findall(r"\bSENTINEL_[A-Z_]+\b", page.read_text(encoding="utf-8")))
        assert named <= known, name_of(page)


def test_every_route_is_documented_and_every_documented_one_exists(coordinator: FastAPI) -> None:
    paths = coordinator.openapi()["paths"]
    existing = {f"{method.upper()} {path}" for path, operations in paths.items() for method in operations}
    documented = set(
        re.findall(
            r"^\| `((?:GET|POST|PUT|DELETE|PATCH) [^`]+)` \|", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE
        )
    )
    assert documented == existing


def test_every_job_setting_is_documented() -> None:
    page = (ROOT / "docs" / "job-file.md").read_text(encoding="utf-8")
    for name in re.findall(r"^(\w+) = ", template(), re.MULTILINE):
        assert f"| `{name}` |" in page


def test_the_readme_edits_the_job_file_as_it_says() -> None:
    """The `sed` line of the walk-through meets the template, and what comes out can be run."""
    (line,) = [
        line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("sed ")
    ]
    text = template()
    edits = re.findall(r"s/([^/]*)/([^/]*)/", line)
    assert len(edits) == 4
    for old, new in edits:
        text, count = re.subn(old, new, text, flags=re.MULTILINE)
        assert count == 1, old
    spec = parse_job(text)
    assert (spec.training.steps, spec.parallelism.stages, spec.parallelism.replicas) == (120, 2, 2)
    assert spec.market.planned_seconds == 120


def test_every_signed_message_is_in_the_protocol() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    typed = [
        name
        for name, value in vars(messages).items()
        if isinstance(value, type) and issubclass(value, messages.Typed) and value is not messages.Typed
    ]
    assert len(typed) >= 13
    for name in typed:
        assert f"| `{name}` |" in page


def test_the_glossary_is_sorted() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [line.split("|")[1].strip().lower() for line in page.splitlines() if line.startswith("| ")][1:]
    assert terms == sorted(terms)
    assert len(terms) == len(set(terms))


def test_the_readme_reaches_every_page() -> None:
    seen: set[Path] = set()
    queue = [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        for target in LINK.findall(outside_fences(page.read_text(encoding="utf-8"))):
            if "://" not in target and target.partition("#")[0]:
                queue.append((page.parent / target.partition("#")[0]).resolve())
    assert not [name_of(page) for page in PAGES if page not in seen]


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    for page in folder.glob("[0-9]*.md"):
        number = page.name[:4]
        title = page.read_text(encoding="utf-8").splitlines()[0]
        assert title.startswith(f"# {number} ")
        assert f"| [{number}]({page.name}) | {title.removeprefix(f'# {number} ')} |" in index


@pytest.mark.parametrize("target", ["help", "setup", "demo", "test", "test-fast", "check"])
def test_make_targets_that_are_written_about_exist(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE)


def test_no_page_names_a_make_target_that_does_not_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8")))
        assert named <= targets, name_of(page)


def test_the_reference_is_what_the_module_prints() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sentinel_market.cli.reference"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.fixture
def coordinator(tmp_path: Path) -> FastAPI:
    """The application, never started: it is only asked for its routes."""
    return create_app(
        CoordinatorSettings(
            database=tmp_path / "coordinator.db",
            blob_dir=tmp_path / "blobs",
            chain_id=CHAIN_ID,
            contracts=CONTRACTS,
            events=FakeChain(),
        )
    )
