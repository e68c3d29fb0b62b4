"""The watermark: no sequence is admitted twice, whatever happens to the process or the file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel_market.errors import ProtocolError
from worker.protection import BLOCK, Watermark


def refused(watermark: Watermark, sequence: int, count: int = 1) -> None:
    with pytest.raises(ProtocolError) as caught:
        watermark.admit(sequence, count)
    assert caught.value.code == "sequence"


def test_each_sequence_is_admitted_once_and_in_rising_order(tmp_path: Path) -> None:
    watermark = Watermark(tmp_path / "w.json")
    assert watermark.next_sequence == 1
    watermark.admit(1)
    refused(watermark, 1)
    watermark.admit(2, 2)
    refused(watermark, 2)
    refused(watermark, 3)
    watermark.admit(10)
    refused(watermark, 4)
    assert watermark.next_sequence == 11
    refused(watermark, 0)


def test_a_restart_never_reuses_a_sequence(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    used: set[int] = set()
    for _ in range(5):
        watermark = Watermark(path)
        for _ in range(3):
            sequence = watermark.next_sequence
            assert sequence not in used
            watermark.admit(sequence, 2)
            used |= {sequence, sequence + 1}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 3 * BLOCK), st.just("restart")), max_size=30))
def test_whatever_is_asked_nothing_is_admitted_twice(tmp_path_factory: pytest.TempPathFactory, plan: list) -> None:
    path = tmp_path_factory.mktemp("w") / "w.json"
    watermark, used, highest = Watermark(path), set(), 0
    for item in plan:
        if item == "restart":
            watermark = Watermark(path)
            continue
        before = watermark.next_sequence
        try:
            watermark.admit(item)
        except ProtocolError:
            assert watermark.next_sequence == before
            assert item < before or item > before + BLOCK
        else:
            assert item not in used
            assert item > highest
            used.add(item)
            highest = item


def test_a_jump_of_more_than_a_block_is_refused_and_moves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    watermark = Watermark(path)
    watermark.admit(5)
    kept = path.read_bytes()
    for far in (6 + BLOCK + 1, 2**63, 2**64 - 1):
        refused(watermark, far)
        assert watermark.next_sequence == 6
        assert path.read_bytes() == kept
    watermark.admit(6)
    watermark.admit(7 + BLOCK)


def test_the_reservation_is_on_disk_before_a_sequence_is_given_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "w.json"
    watermark = Watermark(path)
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), real(descriptor)))
    for sequence in (1, 2, 1 + BLOCK, 2 + BLOCK, 2 + 2 * BLOCK):
        watermark.admit(sequence)
        assert json.loads(path.read_text())["reserved"] > sequence
    assert len(synced) >= 4, "each reservation syncs the file and its directory"


def test_a_sequence_is_not_given_out_when_its_reservation_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.json"
    watermark = Watermark(path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        watermark.admit(1)
    assert watermark.next_sequence == 1
    monkeypatch.undo()
    watermark.admit(1)


def test_most_sequences_cost_no_write(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    watermark = Watermark(path)
    watermark.admit(1)
    written = path.stat().st_mtime_ns, path.stat().st_ino
    for sequence in range(2, 500):
        watermark.admit(sequence)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == written


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b"3", b"{}", b"\xff\xfe"),
        *(b'{"reserved": %s}' % value for value in (b'"9"', b"0", b"-5", b"1.5", b"null", b"true")),
    ],
)
def test_a_damaged_file_stops_the_worker_with_the_way_out(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.json"
    path.write_bytes(content)
    with pytest.raises(ProtocolError) as caught:
        Watermark(path)
    assert caught.value.code == "watermark"
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content, "nothing is overwritten"


def test_a_torn_write_leaves_the_old_reservation(tmp_path: Path) -> None:
    """A crash between the new file and its rename."""
    path = tmp_path / "w.json"
    Watermark(path).admit(1)
    path.with_suffix(".new").write_text('{"rese')
    again = Watermark(path)
    assert again.next_sequence > 1
    again.admit(again.next_sequence)
