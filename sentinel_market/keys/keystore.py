"""Encrypted keystores on disk: ``<dir>/<name>.hot.json`` and ``<name>.cold.json``, mode 0600.

The files are standard (Web3 Secret Storage version 3, scrypt), so every wallet can import them. ``light=True``
lowers scrypt's n from 262144 to 4096 (0.02 s instead of 0.7 s and 256 MiB a key): for local networks, where
the keys guard play money and a demonstration opens thirty of them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from sentinel_market.chain.signing import CURVE_ORDER, HotKey, checksum_address
from sentinel_market.errors import KeystoreError
from sentinel_market.keys.keylock import KeyLock

Kind = Literal["hot", "cold"]
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
SCRYPT_N: Final = 262_144
SCRYPT_N_LIGHT: Final = 4_096
_MAX_FILE_BYTES: Final = 64 * 1024


class ColdKey(HotKey):
    """The key of an account that owns stake. A type of its own, so that it is never passed where a hot one is meant."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"ColdKey({self.address})"


@dataclass(frozen=True, slots=True)
class Identity:
    """A name with its two addresses; holds no secret."""

    name: str
    account: str
    """Cold account: owns the stake, receives the pay."""
    hot: str
    """Hot key: signs frames, reports and their transactions; can never move money."""


class Keystore:
    """The keystores of one folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, name: str, kind: Kind) -> Path:
        """The file of a key."""
        return self.directory / f"{_valid(name)}.{kind}.json"

    def create(self, name: str, password: str, *, light: bool = False) -> Identity:
        """Make both keys of a new identity. Never overwrites: a lost key is lost stake."""
        if not password:
            raise KeystoreError("the password is empty; choose one, it guards your stake")
        for kind in ("hot", "cold"):
            file = self.path(name, kind)
            if file.exists():
                raise KeystoreError(f"{file} exists already; choose another name than {name!r}")
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for kind in ("cold", "hot"):
            self._write(self.path(name, kind), _new_secret(), password, light)  # type: ignore[arg-type]
        return self.get(name)

    def identities(self) -> list[Identity]:
        """All complete identities, by name."""
        names = sorted(file.name.removesuffix(".hot.json") for file in self.directory.glob("*.hot.json"))
        return [self.get(name) for name in names if NAME.fullmatch(name) and self.path(name, "cold").exists()]

    def get(self, name: str) -> Identity:
        """The addresses of an identity; needs no password."""
        return Identity(name, self._address(self.path(name, "cold"), name), self._address(self.path(name, "hot"), name))

    def open_hot(self, name: str, password: str) -> HotKey:
        """Decrypt the hot key. Does not lock it: see ``lock``."""
        return HotKey(self._open(name, "hot", password))

    def open_cold(self, name: str, password: str) -> ColdKey:
        """Decrypt the cold key; for deposits, withdrawals and grants only."""
        return ColdKey(self._open(name, "cold", password))

    def lock(self, name: str) -> KeyLock:
        """The lock of a hot key (not yet taken). By address, so that a copy under another name counts too."""
        identity = self.get(name)
        return KeyLock(self.directory / "locks" / f"{identity.hot.lower()}.lock", label=f"{name} ({identity.hot})")

    @contextmanager
    def use_hot(self, name: str, password: str) -> Iterator[HotKey]:
        """Lock and decrypt a hot key for the length of a block: what a worker or verifier runs in."""
        with self.lock(name):
            yield self.open_hot(name, password)

    def loose_permissions(self) -> list[Path]:
        """Files and folders that others than their owner can read."""
        found = [self.directory] if self.directory.exists() else []
        found += sorted(self.directory.glob("*.json"))
        return [path for path in found if path.stat().st_mode & 0o077]

    def _write(self, file: Path, secret: bytes, password: str, light: bool) -> None:
        from eth_keyfile.keyfile import create_keyfile_json

        content = create_keyfile_json(
            secret,
            password.encode("utf-8"),
            kdf="scrypt",
            iterations=SCRYPT_N_LIGHT if light else SCRYPT_N,
        )
        partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as out:
            json.dump(content, out)
            out.flush()
            os.fsync(out.fileno())
        partial.rename(file)

    def _read(self, file: Path, name: str) -> dict[str, Any]:
        try:
            if file.stat().st_size > _MAX_FILE_BYTES:
                raise KeystoreError(f"{file} is too large for a keystore; restore it from a backup")
            content = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            known = ", ".join(sorted(f.name.removesuffix(".hot.json") for f in self.directory.glob("*.hot.json")))
            raise KeystoreError(
                f"there is no key {name!r}: {file} is missing; known here: {known or 'none'}. "
                f"Make one with `sentinel key new {name}`, or set SENTINEL_HOME to where it is"
            ) from None
        except (OSError, ValueError) as exc:
            raise KeystoreError(f"cannot read the keystore {file}: {exc}; restore it from a backup") from None
        if not isinstance(content, dict) or not isinstance(content.get("address"), str):
            raise KeystoreError(f"{file} is not a keystore; restore it from a backup")
        return content

    def _address(self, file: Path, name: str) -> str:
        text = self._read(file, name)["address"].lower().removeprefix("0x")
        if not re.fullmatch(r"[0-9a-f]{40}", text):
            raise KeystoreError(f"{file} holds no address; restore it from a backup")
        return checksum_address(bytes.fromhex(text))

    def _open(self, name: str, kind: Kind, password: str) -> bytes:
        from eth_keyfile.keyfile import decode_keyfile_json

        file = self.path(name, kind)
        content = self._read(file, name)
        try:
            secret = bytes(decode_keyfile_json(content, password.encode("utf-8")))
        except ValueError:  # "MAC mismatch"
            raise KeystoreError(
                f"wrong password for {file}; set SENTINEL_PASSWORD (or SENTINEL_PASSWORD_FILE) to the one it was "
                "made with, or unset both to be asked"
            ) from None
        except (KeyError, TypeError, NotImplementedError) as exc:
            raise KeystoreError(f"{file} is damaged ({exc}); restore it from a backup") from None
        if HotKey(secret).address != self._address(file, name):
            raise KeystoreError(f"{file} holds the key of another address than it says; restore it from a backup")
        return secret


def _valid(name: str) -> str:
    if not NAME.fullmatch(name):
        raise KeystoreError(f"{name!r} is not a key name: 1 to 32 lower-case letters, digits, dashes or underscores")
    return name


def _new_secret() -> bytes:
    while True:
        secret = secrets.token_bytes(32)
        if 0 < int.from_bytes(secret, "big") < CURVE_ORDER:
            return secret
