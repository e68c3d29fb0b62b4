"""The file that a long measurement can be taken up from: a line a finished run, one JSON array at the end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from sentinel_market.errors import ConfigError
from sentinel_market.sim.cell import Cell, compared
from sentinel_market.sim.settings import RunSettings


def lines_path(path: Path) -> Path:
    """``FILE.jsonl`` beside ``FILE.json``."""
    return path.with_suffix(".jsonl") if path.suffix == ".json" else path.with_name(path.name + ".jsonl")


def array_path(path: Path) -> Path:
    """The inverse: ``FILE.json`` of ``FILE.jsonl``."""
    return path.with_suffix(".json") if path.suffix == ".jsonl" else path


def read_lines(path: Path) -> tuple[list[Cell], int]:
    """The cells of a file of lines, and the number of bytes that hold them.

    What stands after the last line break was being written when the process ended, and is left out unless it is
    whole. ConfigError names the line of anything else that is not a cell.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path and its permissions") from None
    *lines, rest = raw.split(b"\n")
    cells: list[Cell] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            cells.append(_line(path, number, line))
    if rest.strip():
        with contextlib.suppress(ConfigError):
            cells.append(_line(path, len(lines) + 1, rest))
            return cells, len(raw)
    return cells, len(raw) - len(rest)


def _line(path: Path, number: int, line: bytes) -> Cell:
    try:
        return Cell.from_json(json.loads(line))
    except (ValueError, RecursionError, ConfigError) as error:
        raise ConfigError(f"{path}, line {number}: {error}; remove the line, and its run is done again") from None


def read_cells(path: Path) -> list[Cell]:
    """The cells of FILE.json or FILE.jsonl, with their comparisons."""
    if path.suffix == ".jsonl":
        return compared(read_lines(path)[0])
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; `sentinel bench detect` makes it") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}); read {lines_path(path)} instead if it is there") from None
    if not isinstance(data, list):
        raise ConfigError(f"{path} holds no JSON array; `sentinel bench detect --json FILE` makes one")
    cells = []
    for number, one in enumerate(data, 1):
        try:
            cells.append(Cell.from_json(one))
        except ConfigError as error:
            raise ConfigError(f"{path}, entry {number}: {error}; read {lines_path(path)} instead") from None
    return compared(cells)


class Record:
    """Cells by the settings of their run; with a file, kept there a line at a time. Use as a context manager."""

    def __init__(self, path: Path | None) -> None:
        """``path``: FILE.json, whose lines are read and go on being written; None keeps everything in memory."""
        self.path = path
        self.cells: dict[RunSettings, Cell] = {}
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Record:
        if self.path is not None:
            self._open(lines_path(self.path), self.path)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self, path: Path, array: Path) -> None:
        try:
            # Both must be writable before hours are spent.
            with array.open("ab"):
                pass
            if array.stat().st_size == 0:
                array.unlink()
            file = path.open("ab")
        except OSError as error:
            raise ConfigError(
                f"cannot write {error.filename}: {error.strerror}; make its folder, or choose another --json FILE"
            ) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            cells, size = read_lines(path)
        except BlockingIOError:
            file.close()
            raise ConfigError(f"another process writes {path}; wait, or choose another --json FILE") from None
        except ConfigError:
            file.close()
            raise
        file.truncate(size)
        if size and path.read_bytes()[-1:] != b"\n":
            file.write(b"\n")
            file.flush()
        self._file = file
        self.cells = {cell.settings: cell for cell in cells}

    def add(self, cell: Cell) -> None:
        """Keep a cell; on disk before this returns."""
        self.cells[cell.settings] = cell
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(self.find(cell.settings).to_json()).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ConfigError(f"no space left for {self._file.name}; make room, then the same command") from None
            raise

    def find(self, settings: RunSettings) -> Cell:
        """A cell with its comparisons; KeyError when its run is not done."""
        return compared([self.cells[settings], *(c for c in self.cells.values() if c.policy == "unverified")])[0]

    def all(self) -> list[Cell]:
        """Every cell with its comparisons."""
        return compared(self.cells.values())

    def write_array(self) -> None:
        """FILE: everything as one JSON array, replaced in one go."""
        if self.path is not None:
            write_text(self.path, "[\n" + ",\n".join(_rows(self.all())) + "\n]\n")


def _rows(cells: Iterable[Cell]) -> Iterator[str]:
    order = sorted(cells, key=lambda c: (c.mesh, c.attack, c.direction, c.spec, c.settings.condition, c.policy, c.seed))
    return (json.dumps(cell.to_json()) for cell in order)


def write_text(path: Path, text: str) -> None:
    """Write a file in one go; ConfigError when that cannot be done."""
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; choose another place") from None
