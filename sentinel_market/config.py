"""Settings: the only module that reads the environment.

``SETTINGS`` is the documentation, the list of names and the parser's input at once, so that a setting cannot
exist without being documented (``docs/cli.md`` is checked against it). Problems are collected and reported
together: nobody likes to mend five settings in five runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sentinel_market.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One environment variable."""

    name: str
    default: str
    meaning: str


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(name="SENTINEL_HOME", default=".sentinel", meaning="folder of keys, journal and network file"),
    Setting(
        name="SENTINEL_NETWORK",
        default="<home>/network.json",
        meaning="network file: RPC, chain id, contract addresses, coordinator",
    ),
    Setting(
        name="SENTINEL_RPC",
        default="from the network file",
        meaning="RPC endpoints of the chain, separated by commas; the first that answers is used",
    ),
    Setting(name="SENTINEL_COORDINATOR", default="from the network file", meaning="URL of the coordinator"),
    Setting(name="SENTINEL_PASSWORD", default="asked for", meaning="password of the keystores"),
    Setting(name="SENTINEL_PASSWORD_FILE", default="none", meaning="file whose first line is the password"),
    Setting(
        name="SENTINEL_CONFIRMATIONS",
        default="from the network file",
        meaning="blocks a transaction must be deep before it counts (0: its own block is enough)",
    ),
    Setting(name="SENTINEL_DEBUG", default="0", meaning="1 shows the traceback of a user error"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PasswordSource:
    """Where the password comes from. Nothing is read before it is needed, and nothing is shown."""

    value: str | None = field(default=None, repr=False)
    file: Path | None = None

    def read(self) -> str | None:
        """The password, or None when neither the variable nor the file is set (then ask)."""
        if self.value is not None:
            return self.value
        if self.file is None:
            return None
        try:
            lines = self.file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(
                f"cannot read the password file {self.file}: {exc}; set SENTINEL_PASSWORD_FILE to a readable "
                "text file, or unset it to be asked"
            ) from None
        if not lines or not lines[0]:
            raise ConfigError(f"the password file {self.file} is empty; its first line must be the password")
        return lines[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Everything the environment says, checked."""

    home: Path
    network_file: Path
    rpc: tuple[str, ...] = ()
    coordinator: str | None = None
    confirmations: int | None = None
    password: PasswordSource = PasswordSource()
    debug: bool = False

    @property
    def keys_dir(self) -> Path:
        """Where the keystores are."""
        return self.home / "keys"

    @property
    def journal_dir(self) -> Path:
        """Where the nonce journals are."""
        return self.home / "journal"


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from ``environ`` (the process's own when None). Reports all problems at once."""
    env = os.environ if environ is None else environ
    problems: list[str] = []

    known = {setting.name for setting in SETTINGS}
    for name in sorted(env):
        if name.startswith("SENTINEL_") and name not in known:
            problems.append(f"{name} is not a setting; known: {', '.join(sorted(known))}")

    home = Path(env.get("SENTINEL_HOME") or ".sentinel").expanduser().absolute()
    if home.exists() and not home.is_dir():
        problems.append(f"SENTINEL_HOME={home} is not a folder")
    network = env.get("SENTINEL_NETWORK")

    rpc = tuple(part.strip() for part in env.get("SENTINEL_RPC", "").split(",") if part.strip())
    problems += [f"SENTINEL_RPC: {url!r} does not start with http:// or https://" for url in rpc if not _is_url(url)]

    coordinator = env.get("SENTINEL_COORDINATOR") or None
    if coordinator is not None and not _is_url(coordinator):
        problems.append(f"SENTINEL_COORDINATOR={coordinator!r} does not start with http:// or https://")

    confirmations = _confirmations(env.get("SENTINEL_CONFIRMATIONS", ""), problems)

    password_file = env.get("SENTINEL_PASSWORD_FILE") or None
    if password_file is not None and env.get("SENTINEL_PASSWORD") is not None:
        problems.append("SENTINEL_PASSWORD and SENTINEL_PASSWORD_FILE are both set; unset one")
    debug = env.get("SENTINEL_DEBUG", "0")
    if debug not in ("", "0", "1"):
        problems.append(f"SENTINEL_DEBUG={debug!r} must be 0 or 1")

    if problems:
        raise ConfigError("; ".join(problems))
    return Settings(
        home=home,
        network_file=Path(network).expanduser().absolute() if network else home / "network.json",
        rpc=rpc,
        coordinator=coordinator,
        confirmations=confirmations,
        password=PasswordSource(
            value=env.get("SENTINEL_PASSWORD"),
            file=Path(password_file).expanduser().absolute() if password_file else None,
        ),
        debug=debug == "1",
    )


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://")) and len(text.split("://", 1)[1]) > 0


def _confirmations(text: str, problems: list[str]) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) > 10_000:
        problems.append(f"SENTINEL_CONFIRMATIONS={text!r} must be a whole number from 0 to 10000")
        return None
    return int(text)
