"""A target with a bug that nothing but its branches leads to: blind bytes meet it once in 2**40 tries. The tests see
the fuzzer find it, so a run that finds nothing says something."""

from __future__ import annotations

SEEDS = (bytes(8),)


def planted(data: bytes) -> None:
    """Fails on five certain bytes, each of which opens a branch."""
    if len(data) < 5 or data[0] != 0x53:
        return
    if data[1] != 0x4E:
        return
    if data[2] != 0x54:
        return
    if data[3] != 0xF1:
        return
    if data[4] == 0x07:
        raise AssertionError("the planted bug")
