"""A seat with other data than the job's refuses before it takes a seat, and says what to do."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from sentinel_market.demo.run import with_data
from sentinel_market.domain.job_spec import parse_job
from sentinel_market.errors import ConfigError
from tests.support.mesh import job_toml
from verifier.agent import check_corpus


def test_the_posted_data_is_accepted_and_other_data_is_not(tmp_path: Path) -> None:
    text = tmp_path / "data.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    spec = with_data(parse_job(job_toml(path=str(text))))
    assert check_corpus(spec).train_digest == spec.data.train_digest
    text.write_text("the quick brown fox jumps over the lazy cat\n" * 200)
    with pytest.raises(ConfigError) as caught:
        check_corpus(spec)
    assert spec.data.train_digest[:16] in str(caught.value)
    assert platform.python_version() in str(caught.value)
    assert "use the same data" in str(caught.value)


def test_data_that_is_gone_is_named(tmp_path: Path) -> None:
    text = tmp_path / "data.txt"
    text.write_text("abc " * 2000)
    spec = with_data(parse_job(job_toml(path=str(text))))
    text.unlink()
    with pytest.raises(ConfigError, match=r"data\.txt"):
        check_corpus(spec)
