"""Blobs as files, addressed by BLAKE3. A blob appears under its name only when it is whole and checked."""

from __future__ import annotations

import os
import re
import secrets
import threading
from pathlib import Path
from typing import Final

from blake3 import blake3

from sentinel_market.errors import UserError

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class BlobTooLarge(UserError):  # noqa: N818
    """A blob is over the size limit."""


class StoreFull(UserError):  # noqa: N818
    """All blobs together are over their limit, or the disk is."""


class WrongDigest(UserError):  # noqa: N818
    """The content is not what its name says."""


class BlobWriter:
    """Receives one blob. Feed it, then ``commit`` or ``abort``; nothing is visible before ``commit``."""

    def __init__(self, store: BlobStore, digest: str) -> None:
        self._store = store
        self._digest = digest
        self._hash = blake3()
        self.size = 0
        self._temporary = store.folder / f".{digest[:16]}.{secrets.token_hex(8)}.part"
        self._file = self._temporary.open("xb")

    def write(self, chunk: bytes) -> None:
        """Append; BlobTooLarge or StoreFull as soon as a limit is crossed."""
        if self.size + len(chunk) > self._store.max_bytes:
            raise BlobTooLarge(f"a blob may have {self._store.max_bytes} bytes, this one has more")
        self._store.reserve(len(chunk))
        self.size += len(chunk)
        self._hash.update(chunk)
        try:
            self._file.write(chunk)
        except OSError as error:
            raise StoreFull(f"cannot write to the blob folder: {error.strerror}") from error

    def commit(self) -> int:
        """Check the digest, sync, rename. Returns the size in bytes."""
        actual = self._hash.hexdigest()
        if actual != self._digest:
            raise WrongDigest(f"the content has BLAKE3 {actual}, not {self._digest}")
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StoreFull(f"cannot write to the blob folder: {error.strerror}") from error
        self._file.close()
        with self._store.lock:
            target = self._store.path(self._digest)
            known = target.exists()
            self._temporary.replace(target)
            if known:
                self._store.release(self.size)
        return self.size

    def abort(self) -> None:
        """Forget what was received; harmless after ``commit``."""
        self._file.close()
        if self._temporary.exists():
            self._temporary.unlink()
            self._store.release(self.size)


class BlobStore:
    """A folder of blobs with a limit a blob and a limit over all, in bytes."""

    def __init__(self, folder: Path, *, max_bytes: int, max_total_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.max_total_bytes = max_total_bytes
        self.lock = threading.RLock()
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".*.part"):
            leftover.unlink()
        self._total = sum(path.stat().st_size for path in folder.iterdir() if _DIGEST.fullmatch(path.name))

    @property
    def total_bytes(self) -> int:
        """Bytes of all blobs, those in reception included."""
        return self._total

    def path(self, digest: str) -> Path:
        """Where a blob lies or would lie. ``ValueError`` when ``digest`` is not 64 lower-case hex digits."""
        if not _DIGEST.fullmatch(digest):
            raise ValueError("a blob is named by 64 lower-case hex digits")
        return self.folder / digest

    def has(self, digest: str) -> bool:
        """Whether the blob is here."""
        return self.path(digest).is_file()

    def writer(self, digest: str) -> BlobWriter:
        """Begin to receive a blob."""
        self.path(digest)
        return BlobWriter(self, digest)

    def put(self, content: bytes) -> str:
        """Store bytes that are at hand; returns their digest."""
        digest = blake3(content).hexdigest()
        if self.has(digest):
            return digest
        writer = self.writer(digest)
        try:
            writer.write(content)
            writer.commit()
        finally:
            writer.abort()
        return digest

    def reserve(self, num_bytes: int) -> None:
        """Count bytes against the total; StoreFull when they do not fit."""
        with self.lock:
            if self._total + num_bytes > self.max_total_bytes:
                raise StoreFull(f"the blob store is full: {self.max_total_bytes} bytes over all blobs")
            self._total += num_bytes

    def release(self, num_bytes: int) -> None:
        """Give reserved bytes back."""
        with self.lock:
            self._total -= num_bytes
