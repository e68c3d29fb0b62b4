"""Keystores on disk and the lock of a hot key."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from eth_account import Account

from sentinel_market.chain.signing import recover
from sentinel_market.errors import KeystoreError
from sentinel_market.keys import Keystore

PASSWORD = "correct horse"


@pytest.fixture
def keys(tmp_path: Path) -> Keystore:
    store = Keystore(tmp_path / "keys")
    store.create("alice", PASSWORD, light=True)
    return store


def test_round_trip(keys: Keystore) -> None:
    identity = keys.get("alice")
    hot, cold = keys.open_hot("alice", PASSWORD), keys.open_cold("alice", PASSWORD)
    assert (identity.account, identity.hot) == (cold.address, hot.address)
    assert identity.account != identity.hot
    assert recover(bytes(32), hot.sign(bytes(32))) == identity.hot
    assert keys.identities() == [identity]


def test_files_are_private_and_standard(keys: Keystore) -> None:
    for kind in ("hot", "cold"):
        file = keys.path("alice", kind)  # type: ignore[arg-type]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        content = json.loads(file.read_text())
        assert content["crypto"]["kdf"] == "scrypt"
        address = Account.from_key(Account.decrypt(content, PASSWORD)).address
        assert address in (keys.get("alice").account, keys.get("alice").hot)
    assert stat.S_IMODE(keys.directory.stat().st_mode) == 0o700
    assert keys.loose_permissions() == []
    keys.path("alice", "hot").chmod(0o644)
    assert keys.loose_permissions() == [keys.path("alice", "hot")]


def test_wrong_password_names_the_file_and_the_way_out(keys: Keystore) -> None:
    for open_key, kind in ((keys.open_hot, "hot"), (keys.open_cold, "cold")):
        with pytest.raises(KeystoreError) as caught:
            open_key("alice", "battery staple")
        assert str(keys.path("alice", kind)) in str(caught.value)  # type: ignore[arg-type]
        assert "SENTINEL_PASSWORD" in str(caught.value)
        assert "battery" not in str(caught.value)


def test_nothing_is_overwritten(keys: Keystore) -> None:
    before = keys.path("alice", "cold").read_bytes()
    with pytest.raises(KeystoreError, match="exists already"):
        keys.create("alice", PASSWORD, light=True)
    assert keys.path("alice", "cold").read_bytes() == before


@pytest.mark.parametrize("name", ["", "..", "../x", "A", "a/b", "a" * 33, "a.b"])
def test_names_cannot_leave_the_folder(keys: Keystore, name: str) -> None:
    with pytest.raises(KeystoreError, match="not a key name"):
        keys.create(name, PASSWORD, light=True)


def test_missing_empty_and_damaged_files(keys: Keystore) -> None:
    with pytest.raises(KeystoreError, match=r"no key 'bob'.*known here: alice.*sentinel key new bob"):
        keys.open_hot("bob", PASSWORD)
    with pytest.raises(KeystoreError, match="password is empty"):
        keys.create("bob", "")
    file = keys.path("alice", "hot")
    for text in ("", "[]", "{}", '{"address": 5}', '{"address": "0xzz"}', '{"address": "%s"}' % ("0" * 40)):
        file.write_text(text)
        with pytest.raises(KeystoreError, match="backup"):
            keys.open_hot("alice", PASSWORD)


def test_a_swapped_address_is_noticed(keys: Keystore) -> None:
    file = keys.path("alice", "hot")
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "address": keys.get("alice").account[2:]}))
    with pytest.raises(KeystoreError, match="another address"):
        keys.open_hot("alice", PASSWORD)


HOLDER = """
import sys, time
from pathlib import Path
from sentinel_market.keys import Keystore
with Keystore(Path(sys.argv[1])).use_hot("alice", sys.argv[2]):
    print("ready", flush=True)
    time.sleep(30)
"""


def test_a_second_process_with_one_hot_key_refuses(keys: Keystore) -> None:
    command = [sys.executable, "-c", HOLDER, str(keys.directory), PASSWORD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            with pytest.raises(KeystoreError, match=f"in use by another process \\(pid {other.pid}\\)"):
                keys.lock("alice").acquire()
            # a copy of the files under another name is the same key
            for kind in ("hot", "cold"):
                copy = keys.path("copy", kind)  # type: ignore[arg-type]
                copy.write_bytes(keys.path("alice", kind).read_bytes())  # type: ignore[arg-type]
            with pytest.raises(KeystoreError, match="in use"), keys.use_hot("copy", PASSWORD):
                pass
        finally:
            other.kill()
        other.wait(20)
    with keys.use_hot("alice", PASSWORD) as hot:  # the system drops the lock, however the process ends
        assert hot.address == keys.get("alice").hot


def test_the_lock_is_free_again_after_a_block(keys: Keystore) -> None:
    for _ in range(2):
        with keys.lock("alice") as lock:
            assert lock.held
            with pytest.raises(KeystoreError):
                keys.lock("alice").acquire()
        assert not lock.held
