"""Reading, splitting, digesting and batching; and what is said about data that cannot be used."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sentinel_market.data.corpus import Corpus, batch, digest, load_corpus, offsets, validation_batches
from sentinel_market.errors import ConfigError


def text_files(root: Path, num_files: int = 40, size: int = 50) -> Path:
    folder = root / "text"
    (folder / "deep").mkdir(parents=True)
    for i in range(num_files):
        where = folder / "deep" if i % 2 else folder
        (where / f"{i:03}.txt").write_bytes(bytes([i + 1]) * size)
    (folder / ".hidden").write_bytes(b"\xff" * 1000)
    return folder


def test_stdlib_is_the_same_twice_and_named() -> None:
    first, second = load_corpus("stdlib", max_bytes=300_000), load_corpus("stdlib", max_bytes=300_000)
    assert first.train_digest == second.train_digest
    assert first.train.size + first.validation.size == 300_000
    assert sys.version.split()[0] in first.description
    assert "300000 bytes" in first.description
    assert b"import" in first.train.tobytes()


def test_stdlib_leaves_out_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.py", "a.py", "z/c.py", "test/no.py", "x/tests/no.py", "site-packages/no.py", "idlelib/no.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<{name}>" * 30)
    (tmp_path / "no.txt").write_text("<no>")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    corpus = load_corpus("stdlib", validation_fraction_ppm=200_000)
    text = corpus.train.tobytes() + corpus.validation.tobytes()
    assert "no.py" not in text.decode()
    assert "3 documents" in corpus.description
    assert text.count(b"<a.py>") == 30


def test_whole_files_are_held_out_in_path_order(tmp_path: Path) -> None:
    corpus = load_corpus("text", text_files(tmp_path), validation_fraction_ppm=100_000)
    assert corpus.train.size + corpus.validation.size == 40 * 50
    assert corpus.validation.size == pytest.approx(200, abs=50)
    held, kept = set(corpus.validation.tolist()), set(corpus.train.tolist())
    assert held.isdisjoint(kept)
    assert held | kept == set(range(1, 41))
    # Sorted by path: top level first ("000.txt" < "deep/001.txt"), the hidden file nowhere.
    assert corpus.train[0] == 1
    assert corpus.train.dtype == np.uint8


@pytest.mark.parametrize("fraction_ppm", [20_000, 100_000, 500_000])
def test_one_file_is_held_out_in_blocks(tmp_path: Path, fraction_ppm: int) -> None:
    path = tmp_path / "one.txt"
    path.write_bytes(bytes(range(256)) * 40)
    corpus = load_corpus("text", path, validation_fraction_ppm=fraction_ppm)
    assert corpus.train.size + corpus.validation.size == 10_240
    assert corpus.validation.size == pytest.approx(10_240 * fraction_ppm / 1e6, rel=0.2)


def test_digests_tell_the_splits_and_the_data_apart(tmp_path: Path) -> None:
    folder = text_files(tmp_path)
    before = load_corpus("text", folder)
    assert before.train_digest != before.validation_digest
    assert before.train_digest == digest(before.train)
    (folder / "000.txt").write_bytes(b"\x02" * 50)
    after = load_corpus("text", folder)
    assert before.train_digest != after.train_digest
    # The element size is part of it: the same bytes as wider ids are other data.
    assert digest(np.arange(4, dtype=np.int32)) != digest(np.arange(4, dtype=np.int32).view(np.uint8))


def test_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"line {i} ü"}) for i in range(50)) + "\n\n")
    corpus = load_corpus("jsonl", path)
    assert "line 7 ü".encode() in corpus.train.tobytes() + corpus.validation.tobytes()
    assert "50 documents" in corpus.description


def test_token_ids(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(1000, dtype=np.uint16))
    corpus = load_corpus("tokens", path, "none", vocab_size=1000)
    assert corpus.train.dtype == np.int32
    assert corpus.vocab_size == 1000
    assert sorted([*corpus.train, *corpus.validation]) == list(range(1000))
    assert load_corpus("tokens", path, vocab_size=1000, max_bytes=400).train.max() < 100


def save_tokens(path: Path, values: object) -> Path:
    np.save(path, np.asarray(values))
    return path


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("kind", "make", "message"),
    [
        ("text", lambda d: d / "gone.txt", "cannot read .*gone.txt.*check"),
        ("tokens", lambda d: d / "gone.npy", "cannot read .*gone.npy.*check"),
        ("parquet", lambda d: d / "gone.parquet", "gone.parquet.*(check|pyarrow)"),
        ("text", lambda d: write(d / "empty.txt", b""), r"empty\.txt is empty"),
        ("text", lambda d: d, "is empty; point it at files"),
        ("text", lambda d: write(d / "short.txt", b"x" * 60), "one sequence needs 65; use more text"),
        ("jsonl", lambda d: write(d / "a.jsonl", b'{"text": "x"}\n{'), "line 2 is not JSON"),
        ("jsonl", lambda d: write(d / "a.jsonl", b'{"body": "x"}'), 'line 1 has no string field "text"'),
        ("jsonl", lambda d: write(d / "a.jsonl", b"[1]"), 'line 1 has no string field "text"'),
        ("tokens", lambda d: write(d / "a.npy", b"not numpy"), "is not a .npy array"),
        ("tokens", lambda d: save_tokens(d / "a.npy", []), "1-D array of integers|is empty"),
        ("tokens", lambda d: save_tokens(d / "a.npy", [[1, 2]]), "1-D array of integers"),
        ("tokens", lambda d: save_tokens(d / "a.npy", [0.5]), "1-D array of integers"),
        ("tokens", lambda d: save_tokens(d / "a.npy", [1, 256] * 99), "token id 256, outside the vocabulary 0..255"),
        ("tokens", lambda d: save_tokens(d / "a.npy", [1, -2] * 99), "negative token id -2"),
    ],
)
def test_data_that_cannot_be_used(kind: str, make, message: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=message):
        load_corpus(kind, make(tmp_path), seq_len=64)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigError, match="is not a"):
        load_corpus("tokens", path)


def test_bytes_beyond_a_small_vocabulary_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"ab\xc8" * 50)
    with pytest.raises(ConfigError, match=r"token id 200, .* vocabulary 0\.\.127; set vocab_size to at least 201"):
        load_corpus("text", path, vocab_size=128)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "csv"}, "kind 'csv' is unknown; use one of stdlib, text"),
        ({"kind": "text"}, "needs a path"),
        ({"kind": "stdlib", "path": "x"}, "takes no path"),
        ({"kind": "stdlib", "validation_fraction_ppm": 0}, "validation_fraction_ppm is 0"),
        ({"kind": "stdlib", "max_bytes": 0}, "max_bytes is 0"),
        ({"kind": "stdlib", "tokenizer": "bpe.json"}, "bpe.json"),
    ],
)
def test_settings_that_cannot_be_used(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_corpus(**arguments)  # type: ignore[arg-type]


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match="needs the package pyarrow; install it"):
        load_corpus("parquet", write(tmp_path / "a.parquet", b"x"))
    with pytest.raises(ConfigError, match='needs the package tokenizers; install it or set tokenizer = "bytes"'):
        load_corpus("text", text_files(tmp_path), "bpe.json")


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    folder = text_files(tmp_path)
    (folder / "loop.txt").symlink_to(folder / "gone.txt")  # a broken link is no file and is left out
    assert "40 documents" in load_corpus("text", folder).description
    with pytest.raises(ConfigError, match=r"loop\.txt"):
        load_corpus("text", folder / "loop.txt")


@given(
    size=st.integers(2, 400),
    seq_len=st.integers(1, 50),
    batch_size=st.integers(1, 5),
    seed=st.integers(0, 2**64),
    step=st.integers(0, 10**6),
    microbatch=st.integers(0, 100),
)
def test_batches_are_pure_and_within_the_data(
    size: int, seq_len: int, batch_size: int, seed: int, step: int, microbatch: int
) -> None:
    ids = np.arange(size, dtype=np.int32)
    asked = {"seed": seed, "step": step, "microbatch": microbatch, "batch_size": batch_size, "seq_len": seq_len}
    if size < seq_len + 1:
        with pytest.raises(ConfigError, match="do not hold one sequence"):
            batch(ids, **asked)
        return
    inputs, targets = batch(ids, **asked)
    assert inputs.shape == targets.shape == (batch_size, seq_len)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, inputs + 1)  # ids count up, so this is "one position on"
    assert inputs.min() >= 0
    assert targets.max() < size
    again, _ = batch(ids, **asked)
    assert torch.equal(inputs, again)


def test_every_position_is_reached_and_every_argument_matters() -> None:
    assert set(offsets(7, 500, 1, 2, 3)) == set(range(7))
    ids = np.arange(100_000, dtype=np.int32)
    base = {"seed": 1, "step": 2, "microbatch": 3}
    found = [batch(ids, **key, batch_size=4, seq_len=8)[0] for key in (base, *({**base, k: 9} for k in base))]
    assert len({tuple(inputs[:, 0].tolist()) for inputs in found}) == 4
    # (1, 23) and (12, 3) are different keys.
    assert offsets(10**9, 1, 1, 23) != offsets(10**9, 1, 12, 3)


def test_batches_are_pinned() -> None:
    """Workers, seats and evidence draw the same rows on any machine: a change is a change of the protocol."""
    assert offsets(10_000_000, 3, 1, 2, 3) == [7090116, 3696186, 8713345]


def test_validation_batches_are_fixed() -> None:
    ids = np.arange(3000, dtype=np.int32)
    corpus = Corpus(train=ids, validation=ids, train_digest="", validation_digest="", vocab_size=3000, description="")
    batches = validation_batches(corpus, 16, 10, seed=5)
    assert [len(inputs) for inputs, _ in batches] == [4, 4, 2]
    again = validation_batches(corpus, 16, 10, seed=5, batch_size=10)
    assert torch.equal(torch.cat([inputs for inputs, _ in batches]), again[0][0])
    assert torch.equal(batches[0][1], batches[0][0] + 1)
    with pytest.raises(ConfigError, match="3000 validation tokens"):
        validation_batches(corpus, 3000, 1, seed=5)
