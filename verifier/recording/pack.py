"""A recording's two files: ``index.jsonl``, one line a happening, and ``tensors.pack``, each tensor once by its digest.

Lines are JSON objects of strings and integers. A line ``{"tensor": digest, "at": offset, "size": bytes}`` stands before
the first one that names the digest (BLAKE3, hex); the bytes in the pack are those of ``wire.tensors``. The last line is
``{"in": "end", ...}``: without it a recording is cut short. Never pickle.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

from sentinel_market.errors import ConfigError, ProtocolError
from sentinel_market.wire.tensors import decode, encode, encoded_hash
from verifier.evidence.files import parse_json

VERSION = 1
INDEX, PACK = "index.jsonl", "tensors.pack"
MAX_LINE_BYTES = 1 << 20
MAX_INDEX_BYTES = 256 << 20
MAX_TENSOR_BYTES = 1 << 30
END_BYTES = 256
"""Kept free for the last line."""


class PackFull(Exception):  # noqa: N818
    """A limit of bytes is reached: the caller's, or one that a reader holds a recording to."""


class PackWriter:
    """Appends to a new recording. Raises OSError, and ``PackFull`` before it would exceed ``max_bytes``."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        """ConfigError where ``directory`` cannot be made, or holds something."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if any(directory.iterdir()):
                raise ConfigError(f"--record {directory} is not empty; name a new folder")
            directory.chmod(0o700)  # secrets of steps that are not revealed yet are in it
            # No buffers: after a failure both files are cut back to what is whole, and nothing may come late.
            self._files = tuple((directory / name).open("xb", buffering=0) for name in (INDEX, PACK))
        except OSError as error:
            raise ConfigError(f"--record {directory} cannot be written: {error.strerror or error}") from None
        self._directory = directory
        self._max_bytes = max_bytes
        self._known: set[str] = set()
        self._sizes = [0, 0]
        self._kept = [0, 0]

    @property
    def nbytes(self) -> int:
        """Bytes of both files."""
        return sum(self._sizes)

    def tensor(self, tensor: torch.Tensor | bytes) -> str:
        """Keep a tensor, or one that is encoded already; its digest."""
        data = tensor if isinstance(tensor, bytes) else encode(tensor)
        digest = encoded_hash(data).hex()
        if digest not in self._known:
            at = self._sizes[1]
            self._write(1, data)
            self.line({"tensor": digest, "at": at, "size": len(data)})
            self._known.add(digest)
        return digest

    def line(self, data: dict[str, object]) -> None:
        """One line of the index."""
        self._write(0, _line(data))

    def _write(self, which: int, data: bytes) -> None:
        largest = (MAX_LINE_BYTES, MAX_TENSOR_BYTES)[which]
        index_bytes = self._sizes[0] + (len(data) if which == 0 else 0)
        room = min(self._max_bytes - self.nbytes - len(data), MAX_INDEX_BYTES - index_bytes)
        if room < END_BYTES or len(data) > largest:
            raise PackFull
        if self._files[which].write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._sizes[which] += len(data)

    def keep(self) -> None:
        """What is written by now is whole: ``cut`` goes back to here."""
        self._kept = list(self._sizes)

    def cut(self) -> None:
        """Drop what came after the last ``keep``, which also makes room for the last line. Only ``end`` may follow."""
        for file, size in zip(self._files, self._kept, strict=True):
            file.truncate(size)
            file.seek(size)
        self._sizes = list(self._kept)

    def end(self, data: dict[str, object]) -> None:
        """The last line; it has room below the limit."""
        self._sizes[0] += self._files[0].write(_line(data))

    def close(self) -> None:
        for file in self._files:
            file.close()

    def discard(self) -> None:
        """Nothing was written: leave the folder as it was found."""
        self.close()
        for name in (INDEX, PACK):
            (self._directory / name).unlink()


def _line(data: dict[str, object]) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


class PackReader:
    """A stranger's recording. Whatever is wrong with it is ConfigError, which names the line."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.number = 0
        """Of the line read last, from 1."""
        self._tensors: dict[str, tuple[int, int]] = {}
        sizes = []
        for name, largest in ((INDEX, MAX_INDEX_BYTES), (PACK, None)):
            path = directory / name
            if path.is_symlink() or not path.is_file():
                raise ConfigError(f"{directory} is no recording: it has no file {name}")
            sizes.append(path.stat().st_size)
            if largest is not None and sizes[-1] > largest:
                raise ConfigError(f"{path} has {sizes[-1]} bytes; at most {largest} are taken")
        self.nbytes = sum(sizes)
        self._pack_bytes = sizes[1]
        self._pack: BinaryIO = (directory / PACK).open("rb")

    def close(self) -> None:
        self._pack.close()

    def broken(self, problem: str) -> ConfigError:
        """An error about the line read last."""
        return ConfigError(f"{self.directory / INDEX}, line {self.number}: {problem}; ask for the whole recording")

    def lines(self) -> Iterator[dict[str, Any]]:
        """Every line but those of tensors, up to the end line, which is the last."""
        with (self.directory / INDEX).open("rb") as index:
            while text := index.readline(MAX_LINE_BYTES + 1):
                self.number += 1
                if not text.endswith(b"\n"):
                    raise self.broken("the line is cut short, or longer than any")
                data = self._parsed(text)
                if "tensor" in data:
                    self._note(data)
                    continue
                yield data
                if data.get("in") == "end":
                    if index.read(1):
                        raise self.broken("something follows the last line")
                    return
        raise self.broken(
            "the recording stops without its last line, so it is cut short: the seat was killed, or the disk was full"
        )

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            data = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise self.broken(f"not JSON ({error})"[:200]) from None
        if not isinstance(data, dict):
            raise self.broken("not a JSON object")
        return data

    def _note(self, data: dict[str, Any]) -> None:
        digest, at, size = data["tensor"], data.get("at"), data.get("size")
        if not isinstance(digest, str) or type(at) is not int or type(size) is not int:
            raise self.broken("a tensor has a digest, an offset and a size")
        if at < 0 or not 0 <= size <= MAX_TENSOR_BYTES or at + size > self._pack_bytes:
            raise self.broken(f"tensor {digest[:16]} lies at {at} .. {at + size}, {PACK} has {self._pack_bytes} bytes")
        self._tensors[digest] = (at, size)

    def tensor(self, digest: object, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor by its digest, held against it; of this shape and type."""
        found = self._tensors.get(digest) if isinstance(digest, str) else None
        if found is None:
            raise self.broken(f"no tensor {digest!r:.24} was recorded")
        self._pack.seek(found[0])
        data = self._pack.read(found[1])
        if encoded_hash(data).hex() != digest:
            raise self.broken(f"tensor {digest!r:.24} is not what its digest says")
        try:
            return decode(data, shape=shape, dtype=dtype, max_bytes=MAX_TENSOR_BYTES)
        except ProtocolError as error:
            raise self.broken(f"tensor {digest!r:.24}: {error}") from None
