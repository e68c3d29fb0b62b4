"""What all verbs share: the ``verb`` decorator, settings, keys, clients, output, errors and exit codes."""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from sentinel_market.config import Settings, load_settings
from sentinel_market.errors import ConfigError, KeystoreError, SentinelError, UserError

if TYPE_CHECKING:  # all of these are slow to import; verbs that need them do it when they run
    from sentinel_market.chain.client import ChainClient
    from sentinel_market.chain.job_market import Job
    from sentinel_market.chain.network import Network
    from sentinel_market.chain.signing import HotKey
    from sentinel_market.keys import Identity, Keystore
    from sentinel_market.wire.http_client import CoordinatorClient

EXIT_CODES: Final[Mapping[int, str]] = {
    0: "done",
    1: "unexpected trouble, or something that another try may mend",
    2: "a mistake in the command, a file, a setting or a key",
    3: "a contract refused the transaction",
    4: "the run cannot go on; money and finished work are safe",
    5: "the evidence gives another verdict than the one that it states",
    6: "the evidence proves nothing: it is no bundle, or something in it does not hold",
    130: "interrupted (Ctrl-C)",
}
_F = TypeVar("_F", bound=Callable[..., Any])


class App:
    """What a verb works with. Everything is made when first asked for."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    @cached_property
    def settings(self) -> Settings:
        """The environment, checked."""
        return load_settings()

    @cached_property
    def network(self) -> Network:
        """The network file, with the overrides of the environment."""
        from sentinel_market.chain.network import load_network

        network = load_network(self.settings.network_file)
        changes: dict[str, Any] = {}
        if self.settings.rpc:
            changes["rpc"] = self.settings.rpc
        if self.settings.coordinator:
            changes["coordinator"] = self.settings.coordinator
        if self.settings.confirmations is not None:
            changes["confirmations"] = self.settings.confirmations
        return dataclasses.replace(network, **changes)

    @cached_property
    def keystore(self) -> Keystore:
        """The keystores of this home."""
        from sentinel_market.keys import Keystore

        return Keystore(self.settings.keys_dir)

    @cached_property
    def reader(self) -> ChainClient:
        """A client that can only read."""
        from sentinel_market.chain.client import ChainClient

        return ChainClient.connect(self.network)

    def client(self, key: HotKey) -> ChainClient:
        """A client that sends as ``key``, with its journal."""
        from sentinel_market.chain.client import ChainClient

        return ChainClient.connect(self.network, key=key, journal_dir=self.settings.journal_dir)

    def cold(self, name: str) -> ChainClient:
        """A client that sends as the cold account of an identity. Checks the chain before it asks for a password."""
        self.keystore.get(name)
        _ = self.reader
        return self.client(self.keystore.open_cold(name, self.password(name)))

    def hot(self, name: str) -> ChainClient:
        """A client that sends as the hot key of an identity."""
        self.keystore.get(name)
        _ = self.reader
        return self.client(self.keystore.open_hot(name, self.password(name)))

    def account(self, name_or_address: str) -> str:
        """An account: an address as it is, or that of an identity."""
        if name_or_address.startswith("0x"):
            return address(name_or_address)
        return self.keystore.get(name_or_address).account

    def identity(self, name: str) -> Identity:
        """An identity by name."""
        return self.keystore.get(name)

    @cached_property
    def coordinator(self) -> CoordinatorClient:
        """The coordinator of the network."""
        from sentinel_market.wire.http_client import CoordinatorClient

        if self.network.coordinator is None:
            raise ConfigError(
                f"the network file {self.settings.network_file} names no coordinator; set SENTINEL_COORDINATOR"
            )
        return CoordinatorClient(self.network.coordinator)

    def password(self, name: str, *, new: bool = False) -> str:
        """The keystore password: SENTINEL_PASSWORD, its file, or asked for on a terminal."""
        found = self.settings.password.read()
        if found is not None:
            return found
        if not sys.stdin.isatty():
            raise KeystoreError(
                f"the password of {name} is needed and there is no terminal to ask on; set SENTINEL_PASSWORD or "
                "SENTINEL_PASSWORD_FILE"
            )
        answer: str = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=new, err=True)
        return answer

    def emit(self, data: Mapping[str, Any] | Sequence[Any], text: str) -> None:
        """Print a result: ``data`` with --json, else ``text``."""
        click.echo(json.dumps(plain(data), indent=2) if self.as_json else text)

    def say(self, text: str) -> None:
        """One line of a verb that runs for long; with --json one object a line."""
        click.echo(json.dumps({"say": text}) if self.as_json else text)

    def note(self, text: str) -> None:
        """Say something on the way, for people only."""
        if not self.as_json:
            click.echo(text, err=True)


def job_or_fail(app: App, job_id: int) -> Job:
    """A job; ConfigError when it was never posted."""
    found = app.reader.market.job(job_id)
    if found.state == "none":
        raise ConfigError(f"there is no job {job_id} on this chain; see `sentinel job list`")
    return found


def address(text: str) -> str:
    """A checksummed address; ConfigError when it is none."""
    from sentinel_market.chain.signing import checksum_address

    try:
        raw = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raw = b""
    if len(raw) != 20:
        raise ConfigError(f"{text!r} is not an address: 0x and 40 hex digits")
    return checksum_address(raw)


def amount(text: str) -> int:
    """Whole tokens as typed by a person, in base units; ConfigError when it is no amount."""
    from sentinel_market.domain.job_spec import parse_amount

    try:
        return parse_amount(text)
    except ValueError as exc:
        raise ConfigError(f"{exc}; give whole tokens, such as 100 or 12.5") from None


def tokens(base_units: int) -> str:
    """Base units for people."""
    from sentinel_market.domain.job_spec import format_amount

    return format_amount(base_units)


def plain(value: Any) -> Any:
    """As JSON: big integers (amounts) as decimal strings, bytes as hex, dataclasses as objects."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if -(2**53) < value < 2**53 else str(value)
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if isinstance(value, float) else str(value)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns for people."""
    lines = [[str(cell) for cell in header], *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def verb(group: click.Group, name: str, *, example: str, json_flag: bool = True) -> Callable[[_F], click.Command]:
    """A command of a group: adds ``--json`` and an example, and passes an ``App`` as the first argument.

    ``json_flag=False`` for a verb whose own ``--json`` names a file.
    """

    def wrap(function: _F) -> click.Command:
        def run(*args: Any, as_json: bool = False, **kwargs: Any) -> Any:
            return function(App(as_json=as_json), *args, **kwargs)

        run.__doc__ = function.__doc__
        run.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        if json_flag:
            run = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(run)
        return group.command(name, epilog=epilog(example))(run)

    return wrap


def epilog(example: str) -> str:
    """What stands below the options of a verb."""
    lines = [line.strip() for line in example.strip().splitlines()]
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def wants_json(root: click.Group, given: Sequence[str]) -> bool:
    """Whether a command line asks for JSON on the standard output: its verb's ``--json`` is a flag, or names ``-``."""
    if "--json" not in given:
        return False
    command: click.Command = root
    for word in given:
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), word) or command
    named = [one for one in command.params if isinstance(one, click.Option) and "--json" in one.opts]
    if not named or named[0].is_flag:
        return True
    return given[given.index("--json") + 1 :][:1] == ["-"]


def run_cli(root: click.Group, args: Sequence[str] | None, prog_name: str | None) -> NoReturn:
    """Run a command line and end the process with the documented exit code."""
    given = list(sys.argv[1:] if args is None else args)
    as_json = "--json" in given
    code = 1
    try:
        as_json = wants_json(root, given)
        result = click.Group.main(root, args=given, prog_name=prog_name or "sentinel", standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except click.ClickException as exc:
        code = exc.exit_code
        _report(as_json, "UsageError", exc.format_message(), code, exc.show)
    except (click.Abort, KeyboardInterrupt):
        code = 130
        _report(as_json, "Interrupted", "interrupted", code)
    except SentinelError as exc:
        code = exc.exit_code
        _trace()
        _report(as_json, type(exc).__name__, _listed(exc), code, extra=_details(exc))
    except BrokenPipeError:
        sys.stderr.close()  # nobody reads any more: no complaint about it either
        code = 1
    except OSError as exc:
        code = 2 if exc.filename else 1
        _trace()
        text = f"{exc.filename}: {exc.strerror}; check the path and its permissions" if exc.filename else str(exc)
        _report(as_json, type(exc).__name__, text, code)
    except Exception as exc:  # noqa: BLE001 - the last place where a bug can be turned into a message
        _trace()
        text = f"unexpected {type(exc).__name__}: {exc}; run again with SENTINEL_DEBUG=1 and report what it prints"
        _report(as_json, type(exc).__name__, text, code)
    sys.exit(code)


def _listed(exc: SentinelError) -> str:
    problems: list[str] = getattr(exc, "problems", [])
    if len(problems) < 2:
        return str(exc)
    return "several problems:\n" + "\n".join(f"  - {problem}" for problem in problems)


def _details(exc: SentinelError) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if hasattr(exc, "name"):
        found = {"contract_error": exc.name, "values": getattr(exc, "values", {})}
    if hasattr(exc, "problems"):
        found["problems"] = exc.problems
    return found


def _trace() -> None:
    try:
        debug = load_settings().debug
    except UserError:
        debug = False
    if debug:
        traceback.print_exc()


def _report(
    as_json: bool,
    kind: str,
    message: str,
    code: int,
    show: Callable[[], None] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    if as_json:
        error = {"type": kind, "message": message, "exit_code": code, **plain(extra or {})}
        click.echo(json.dumps({"error": error}, indent=2))
    elif show is not None:
        show()
    else:
        click.echo(f"Error: {message}", err=True)
