"""CPU time by category in a process of ``sentinel bench cost``, and the switch that leaves hashing and signing out.

Both replace functions in this process's loaded modules. Neither is an option of a worker or a seat: ``leave_out`` is
refused in a process that holds what serves a chain, and what it signs no ordinary seat accepts.
"""

from __future__ import annotations

import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable
from functools import wraps
from typing import Any

from sentinel_market.chain import eip712, signing
from sentinel_market.domain.messages import FrameCommitment, Typed
from sentinel_market.errors import ConfigError
from sentinel_market.models.sketch import Sketch
from sentinel_market.wire import tensors
from worker.compute import StageRunner

SERVING = ("worker.agent", "verifier.agent", "sentinel_market.chain.client")
"""Modules of a process that works for a market: there, nothing is ever left out."""
_USERS = ("verifier", "worker", "sentinel_market.wire")
_UNHASHED = b"not hashed: sentinel bench cost.".ljust(32, b"\0")


class Clock:
    """CPU seconds of this process's threads by category. What runs inside another category counts once, as its own."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()
        self._local = threading.local()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, its CPU time counted under ``name``."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            stack = self._local.__dict__.setdefault("stack", [])
            stack.append(0.0)
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.thread_time() - began
                inner = stack.pop()
                if stack:
                    stack[-1] += spent
                with self._lock:
                    self.seconds[name] = self.seconds.get(name, 0.0) + spent - inner

        return run

    def count(self, *, hashing: bool) -> None:
        """From now on count compute and sketches, and with ``hashing`` also hashes and signatures, in this process."""
        for owner, names in ((StageRunner, ("forward", "backward", "loss")), (Sketch, ("sketch",))):
            for name in names:
                category = "compute" if owner is StageRunner else "sketch"
                setattr(owner, name, self.timed(category, getattr(owner, name)))
        if not hashing:
            return
        hashes: tuple[Callable[..., Any], ...] = (tensors.encoded_hash, tensors.pair_hash, eip712.keccak256)
        signatures: tuple[Callable[..., Any], ...] = (eip712.digest, signing.recover)
        for name, functions in (("hash", hashes), ("sign", signatures)):
            for function in functions:
                replace_everywhere(function, self.timed(name, function))
        signing.HotKey.sign = self.timed("sign", signing.HotKey.sign)  # type: ignore[method-assign]


def replace_everywhere(old: Callable[..., Any], new: Callable[..., Any]) -> int:
    """Put ``new`` where modules of worker, verifier and wire hold ``old``; returns in how many places."""
    found = 0
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in _USERS or name.startswith(_USERS[-1]):
            for attribute, value in list(vars(module).items()):
                if value is old:
                    setattr(module, attribute, new)
                    found += 1
    return found


def leave_out() -> None:
    """No hashing and no signing in this process from now on: the *unverified* side of the comparison.

    ConfigError in a process that could serve a market.
    """
    present = [name for name in SERVING if name in sys.modules]
    if present:
        raise ConfigError(
            f"hashing and signing can be left out by `sentinel bench cost` only; this process serves ({present[0]})"
        )
    replace_everywhere(tensors.tensor_hash, lambda _tensor: _UNHASHED)
    replace_everywhere(tensors.encoded_hash, lambda _data: _UNHASHED)
    replace_everywhere(tensors.pair_hash, lambda _first, _second: _UNHASHED)
    replace_everywhere(eip712.keccak256, lambda data: bytes(data[:32]).ljust(32, b"\0"))
    replace_everywhere(eip712.digest, _number)
    replace_everywhere(signing.recover, lambda _digest, signature: signing.checksum_address(bytes(signature[:20])))
    signing.HotKey.sign = _address_as_signature  # type: ignore[assignment, method-assign]


def _address_as_signature(key: signing.HotKey, _digest: bytes) -> bytes:
    return bytes.fromhex(key.address[2:]).ljust(65, b"\0")


def _number(_domain: eip712.Domain, message: Typed) -> bytes:
    """32 bytes that tell commitments apart, as a digest would, at next to no cost."""
    if isinstance(message, FrameCommitment):
        whom = int(message.verifier[2:18], 16)
        return struct.pack("<QQQQ", message.slot << 48 | message.sequence, message.session, whom, message.direction)
    text = repr(message).encode()
    return struct.pack("<II", zlib.crc32(text), zlib.adler32(text)).ljust(32, b"\0")
