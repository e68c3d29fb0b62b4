"""A corpus as token ids with a digest, its held-out split, and batches as a pure function of (seed, step, microbatch).

torch is imported only where batches are made, so that a quote or a digest needs no torch.
"""

from __future__ import annotations

import json
import os
import platform
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blake3
import numpy as np
from numpy.typing import NDArray

from sentinel_market.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("stdlib", "text", "jsonl", "parquet", "tokens")
STDLIB_SKIPPED = frozenset({"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"})
BLOCK_TOKENS = 1 << 16
"""A corpus of one document is held out in blocks of at most this many tokens."""
_PPM = 1_000_000

Tokens = NDArray[np.integer[Any]]
"""Token ids: uint8 for a vocabulary of up to 256, else int32."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Token ids of both splits, their digests (BLAKE3 hex over little-endian ids) and what they were made of."""

    train: Tokens
    validation: Tokens
    train_digest: str
    validation_digest: str
    vocab_size: int
    description: str


def load_corpus(
    kind: str,
    path: str | Path | None = None,
    tokenizer: str = "bytes",
    *,
    validation_fraction_ppm: int = 50_000,
    max_bytes: int | None = None,
    vocab_size: int = 256,
    seq_len: int = 1,
) -> Corpus:
    """Read, tokenize and split a corpus. ConfigError names the path, what is wrong and the way out.

    ``kind``: stdlib (the running Python's own sources), text (file or directory), jsonl (field "text"), parquet (column
    "text"), tokens (.npy of ids, without a tokenizer). ``tokenizer``: "bytes" or the path of a ``tokenizers`` JSON.
    ``max_bytes`` stops after so many bytes of text (an id counts 4). A split must hold ``seq_len`` + 1 tokens or more.
    """
    if kind not in KINDS:
        raise ConfigError(f"corpus kind {kind!r} is unknown; use one of {', '.join(KINDS)}")
    if kind == "stdlib":
        if path is not None:
            raise ConfigError(f"corpus kind stdlib takes no path, got {path}; use kind text for your own files")
        where = Path(sysconfig.get_paths()["stdlib"])
    elif path is None:
        raise ConfigError(f"corpus kind {kind} needs a path")
    else:
        where = Path(path)
    if not 0 < validation_fraction_ppm < _PPM:
        raise ConfigError(f"validation_fraction_ppm is {validation_fraction_ppm}; it must lie between 1 and {_PPM - 1}")
    if max_bytes is not None and max_bytes < 1:
        raise ConfigError(f"max_bytes is {max_bytes}; it must be at least 1")

    if kind == "tokens":
        limit = None if max_bytes is None else max(1, max_bytes // 4)
        pieces = [_load_ids(where, vocab_size, limit)]
        made_of = f"{pieces[0].size} token ids"
    else:
        encode = _Encoder(tokenizer, vocab_size)
        documents = list(_limited(_documents(kind, where), max_bytes))
        num_bytes = sum(len(document) for document in documents)
        if num_bytes == 0:
            raise ConfigError(f"corpus {where} is empty; point it at files with text")
        pieces = [encode(document, where) for document in documents]
        made_of = f"{len(documents)} documents, {num_bytes} bytes, tokenizer {encode.description}"
    if kind == "stdlib":
        made_of += f", Python {platform.python_version()}"

    train, validation = _split(pieces, validation_fraction_ppm, vocab_size)
    for name, ids in (("training", train), ("validation", validation)):
        if ids.size < seq_len + 1:
            raise ConfigError(
                f"the {name} split of corpus {where} has {ids.size} tokens, but one sequence needs {seq_len + 1}; "
                f"use more text, a shorter seq_len or another validation_fraction_ppm (now {validation_fraction_ppm})"
            )
    return Corpus(
        train=train,
        validation=validation,
        train_digest=digest(train),
        validation_digest=digest(validation),
        vocab_size=vocab_size,
        description=f"{kind}: {made_of}",
    )


def digest(ids: Tokens) -> str:
    """BLAKE3 hex over the element size and the little-endian ids."""
    hasher = blake3.blake3(f"sentinel-market/corpus/v1/{ids.itemsize}/".encode())
    hasher.update(np.ascontiguousarray(ids, dtype=ids.dtype.newbyteorder("<")).tobytes())
    return hasher.hexdigest()


# --- reading -------------------------------------------------------------------------------------------------------


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; check that the path exists and may be read"
        ) from error


def _documents(kind: str, where: Path) -> Iterator[bytes]:
    """The corpus' documents in a fixed order."""
    if kind == "stdlib":
        for path in _stdlib_files(where):
            yield _read(path)
    elif kind == "text":
        yield from _text_files(where)
    elif kind == "jsonl":
        yield from _jsonl(where)
    else:
        yield from _parquet(where)


def _stdlib_files(root: Path) -> list[Path]:
    """Sorted by their path below the library, so that the order is the same whatever the prefix."""
    kept: list[Path] = []
    # Pruned while walking: the skipped folders hold far more files than the kept ones.
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in STDLIB_SKIPPED]
        kept += [Path(folder, name).relative_to(root) for name in files if name.endswith(".py")]
    kept.sort(key=lambda relative: relative.as_posix())
    return [root / relative for relative in kept]


def _text_files(where: Path) -> Iterator[bytes]:
    if not where.is_dir():
        yield _read(where)
        return
    relatives = (path.relative_to(where) for path in where.rglob("*") if path.is_file())
    shown = [relative for relative in relatives if not any(part.startswith(".") for part in relative.parts)]
    for relative in sorted(shown, key=lambda relative: relative.as_posix()):
        yield _read(where / relative)


def _jsonl(where: Path) -> Iterator[bytes]:
    for number, line in enumerate(_read(where).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ConfigError(
                f"{where} line {number} is not JSON ({error}); one JSON object a line is needed"
            ) from error
        text = record.get("text") if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise ConfigError(f'{where} line {number} has no string field "text"; rename the field or convert the file')
        yield text.encode("utf-8", errors="surrogatepass")


def _parquet(where: Path) -> Iterator[bytes]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(
            f"reading {where} needs the package pyarrow; install it or convert the file to jsonl"
        ) from error
    if not where.is_file():
        raise ConfigError(f"cannot read {where}: no such file; check the path")
    try:
        column = parquet.read_table(where, columns=["text"]).column("text")
    except Exception as error:
        raise ConfigError(f'cannot read column "text" of {where}: {error}') from error
    for value in column:
        text = value.as_py()
        if isinstance(text, str):
            yield text.encode()


def _limited(documents: Iterator[bytes], max_bytes: int | None) -> Iterator[bytes]:
    """Documents that are not empty, the last one cut at ``max_bytes`` in total."""
    left = max_bytes
    for document in documents:
        kept = document if left is None else document[:left]
        if kept:
            yield kept
        if left is not None:
            left -= len(kept)
            if left <= 0:
                return


def _load_ids(where: Path, vocab_size: int, limit: int | None) -> Tokens:
    _read(where)  # the same message for a path that cannot be read
    try:
        ids = np.load(where, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ConfigError(f"{where} is not a .npy array ({error}); write it with numpy.save") from error
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ConfigError(f"{where} must hold one 1-D array of integers; write it with numpy.save")
    if ids.size == 0:
        raise ConfigError(f"{where} is empty; write at least one sequence of token ids")
    return _checked(ids[:limit], where, vocab_size)


# --- tokens --------------------------------------------------------------------------------------------------------


def _checked(ids: NDArray[np.integer[Any]], where: Path, vocab_size: int) -> Tokens:
    """The ids in their storage type, or ConfigError when one lies beyond the vocabulary."""
    if ids.size:
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= vocab_size:
            wrong = low if low < 0 else high
            raise ConfigError(
                f"corpus {where} has token id {wrong}, outside the vocabulary 0..{vocab_size - 1}; "
                f"set vocab_size to at least {high + 1} or use another tokenizer"
                if low >= 0
                else f"corpus {where} has the negative token id {wrong}; ids run from 0 to vocab_size - 1"
            )
    return ids.astype(np.uint8) if vocab_size <= 256 else ids.astype(np.int32)


class _Encoder:
    """Bytes of a document to ids."""

    def __init__(self, tokenizer: str, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._tokenizer = None
        self.description = "bytes"
        if tokenizer == "bytes":
            return
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ConfigError(
                f'tokenizer {tokenizer} needs the package tokenizers; install it or set tokenizer = "bytes"'
            ) from error
        raw = _read(Path(tokenizer))
        try:
            self._tokenizer = Tokenizer.from_str(raw.decode())
        except Exception as error:
            raise ConfigError(f"{tokenizer} is not a tokenizers JSON file: {error}") from error
        self.description = f"tokenizers:{blake3.blake3(raw).hexdigest()[:16]}"

    def __call__(self, document: bytes, where: Path) -> Tokens:
        if self._tokenizer is None:
            return _checked(np.frombuffer(document, dtype=np.uint8), where, self._vocab_size)
        ids = self._tokenizer.encode(document.decode("utf-8", errors="replace"), add_special_tokens=False).ids
        return _checked(np.asarray(ids, dtype=np.int64), where, self._vocab_size)


def _split(pieces: Sequence[Tokens], fraction_ppm: int, vocab_size: int) -> tuple[Tokens, Tokens]:
    """Hold out whole documents, spread over the corpus, so that the share of tokens held out is the wanted one.

    The rule walks the documents in order and holds one out when, counting half of it, the held-out share of what was
    seen so far does not pass the wanted share: integers only. Where that leaves a split empty (one document, or a few
    large ones), contiguous blocks of at most the wanted share of the corpus take the documents' place.
    """
    train, held = _held_out(pieces, fraction_ppm)
    if not held or not train:
        whole = np.concatenate(pieces)
        block = max(1, min(BLOCK_TOKENS, whole.size * fraction_ppm // _PPM))
        blocks = [whole[start : start + block] for start in range(0, whole.size, block)]
        train, held = _held_out(blocks, fraction_ppm)
    empty: Tokens = np.empty(0, dtype=np.uint8 if vocab_size <= 256 else np.int32)
    return np.concatenate([empty, *train]), np.concatenate([empty, *held])


def _held_out(pieces: Sequence[Tokens], fraction_ppm: int) -> tuple[list[Tokens], list[Tokens]]:
    train: list[Tokens] = []
    held: list[Tokens] = []
    seen = held_tokens = 0
    for piece in pieces:
        seen += piece.size
        if (2 * held_tokens + piece.size) * _PPM <= 2 * seen * fraction_ppm:
            held.append(piece)
            held_tokens += piece.size
        else:
            train.append(piece)
    return train, held


# --- batches -------------------------------------------------------------------------------------------------------


def offsets(num_positions: int, count: int, *key: int | str) -> list[int]:
    """``count`` start positions in 0..num_positions-1 from a BLAKE3 stream of ``key``: integers only, no state."""
    label = "/".join(("sentinel-market/batch/v1", *map(str, key)))
    stream = blake3.blake3(label.encode()).digest(length=8 * count)
    return [int.from_bytes(stream[8 * i : 8 * i + 8], "little") % num_positions for i in range(count)]


def _gather(ids: Tokens, starts: Sequence[int], seq_len: int) -> tuple[Tensor, Tensor]:
    import torch

    rows = torch.from_numpy(np.stack([ids[start : start + seq_len + 1] for start in starts]).astype(np.int64))
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def batch(
    tokens_array: Tokens, *, seed: int, step: int, microbatch: int, batch_size: int, seq_len: int
) -> tuple[Tensor, Tensor]:
    """Inputs and targets, int64 [B, T] each, targets one position on. A pure function of its arguments."""
    num_positions = tokens_array.size - seq_len
    if num_positions < 1:
        raise ConfigError(f"{tokens_array.size} tokens do not hold one sequence of {seq_len + 1}; use more text")
    return _gather(tokens_array, offsets(num_positions, batch_size, seed, step, microbatch), seq_len)


def validation_batches(
    corpus: Corpus, seq_len: int, num_sequences: int, seed: int, *, batch_size: int = 4
) -> list[tuple[Tensor, Tensor]]:
    """A fixed sample of the held-out split: ``num_sequences`` sequences in batches of at most ``batch_size``."""
    num_positions = corpus.validation.size - seq_len
    if num_positions < 1:
        raise ConfigError(
            f"{corpus.validation.size} validation tokens do not hold one sequence of {seq_len + 1}; use more text"
        )
    starts = offsets(num_positions, num_sequences, seed, "validation")
    return [
        _gather(corpus.validation, starts[first : first + batch_size], seq_len)
        for first in range(0, num_sequences, batch_size)
    ]
