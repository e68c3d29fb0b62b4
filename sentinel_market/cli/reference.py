"""``docs/cli.md``, written from the commands themselves: ``python -m sentinel_market.cli.reference > docs/cli.md``."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator

import click

from sentinel_market.cli.common import EXIT_CODES
from sentinel_market.cli.main import NOUNS, cli
from sentinel_market.config import SETTINGS

_HEAD = """# The command `sentinel`

Written by `python -m sentinel_market.cli.reference > docs/cli.md`; a test fails when it is out of date.

Every verb takes `--json` (one JSON document on the standard output; errors as `{"error": ...}`; what runs for long
prints an object a line) and `--help`. Amounts are whole tokens on the command line and decimal strings of base units in
JSON. `JOB` is the number of a job, `NAME` the name of an identity (`sentinel key new NAME`).
"""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every verb with its full name, in the order of the nouns. A noun whose module is missing is left out."""
    root = click.Context(cli, info_name="sentinel")
    for noun, (where, _) in NOUNS.items():
        if importlib.util.find_spec(where.split(":")[0]) is None:
            continue
        command = cli.get_command(root, noun)
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield f"sentinel {noun}", command
            context = click.Context(command, info_name=noun, parent=root)
            for verb in command.list_commands(context):
                found = command.get_command(context, verb)
                if found is not None and not found.hidden:
                    yield f"sentinel {noun} {verb}", found
        elif command is not None:
            yield f"sentinel {noun}", command


def render() -> str:
    """The whole page."""
    parts = [_HEAD, "## Exit codes\n", "| code | meaning |", "|---|---|"]
    parts += [f"| {code} | {text} |" for code, text in EXIT_CODES.items()]
    parts += ["\n## Settings\n", "| variable | default | meaning |", "|---|---|---|"]
    parts += [f"| `{s.name}` | {s.default} | {s.meaning} |" for s in SETTINGS]
    parts.append("\n## Verbs")
    for name, command in commands():
        # A command keeps the help option that it is first asked for, so ask as the command line does.
        settings = {"help_option_names": cli.context_settings["help_option_names"]}
        context = click.Context(command, info_name=name, max_content_width=100, terminal_width=100, **settings)
        parts.append(f"\n### `{name}`\n\n```\n{command.get_help(context)}\n```")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
