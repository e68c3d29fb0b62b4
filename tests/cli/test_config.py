"""Settings from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel_market.config import SETTINGS, load_settings
from sentinel_market.errors import ConfigError


def test_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings({})
    assert settings.home == tmp_path / ".sentinel"
    assert settings.network_file == settings.home / "network.json"
    assert settings.keys_dir == settings.home / "keys"
    assert (settings.rpc, settings.coordinator, settings.confirmations) == ((), None, None)
    assert settings.password.read() is None
    assert not settings.debug


def test_everything_set(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("secret words\nignored\n")
    settings = load_settings(
        {
            "SENTINEL_HOME": str(tmp_path),
            "SENTINEL_NETWORK": str(tmp_path / "n.json"),
            "SENTINEL_RPC": "http://a:1, https://b:2",
            "SENTINEL_COORDINATOR": "http://c",
            "SENTINEL_PASSWORD_FILE": str(tmp_path / "pw"),
            "SENTINEL_CONFIRMATIONS": "3",
            "SENTINEL_DEBUG": "1",
            "PATH": "/bin",
        }
    )
    assert settings.rpc == ("http://a:1", "https://b:2")
    assert settings.network_file == tmp_path / "n.json"
    assert settings.confirmations == 3
    assert settings.debug
    assert settings.password.read() == "secret words"


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        load_settings(
            {
                "SENTINEL_HOME": str(tmp_path / "file"),
                "SENTINEL_RPC": "a:1",
                "SENTINEL_COORDINATOR": "c",
                "SENTINEL_PASSWORD": "p",
                "SENTINEL_PASSWORD_FILE": "f",
                "SENTINEL_CONFIRMATIONS": "-1",
                "SENTINEL_DEBUG": "yes",
                "SENTINEL_HOMME": "x",
            }
        )
    text = str(caught.value)
    for name in [s.name for s in SETTINGS if s.name != "SENTINEL_NETWORK"] + ["SENTINEL_HOMME"]:
        assert name in text


@pytest.mark.parametrize("content", [None, "", "\nx"])
def test_a_bad_password_file_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "pw"
    if content is not None:
        file.write_text(content)
    settings = load_settings({"SENTINEL_PASSWORD_FILE": str(file)})
    with pytest.raises(ConfigError, match=str(file)):
        settings.password.read()


def test_the_password_is_not_shown() -> None:
    settings = load_settings({"SENTINEL_PASSWORD": "hunter2"})
    assert "hunter2" not in repr(settings)
    assert settings.password.read() == "hunter2"
