"""Connecting, sending, journalling and failing, against a real node."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from sentinel_market.chain.client import ChainClient
from sentinel_market.chain.journal import Entry, Journal
from sentinel_market.chain.local import HOST, free_port
from sentinel_market.chain.logs import EventCursor, EventFeed
from sentinel_market.chain.network import Network, load_network
from sentinel_market.chain.rpc import FallbackProvider
from sentinel_market.chain.signing import HotKey
from sentinel_market.errors import ChainMismatch, ChainUnavailable, ConfigError, Rejected
from tests.support.localnet import TOKEN, LocalNet

pytestmark = pytest.mark.chain


class Killed(BaseException):
    """Stands for a process that dies at this very place."""


# --- connecting: every refusal comes before any write


def test_rpc_down_is_named(net: LocalNet, tmp_path: Path) -> None:
    port = free_port()
    dead = dataclasses.replace(net.network, rpc=(f"http://{HOST}:{port}",))
    with pytest.raises(ChainMismatch, match=rf"{port}: connection refused.*SENTINEL_RPC"):
        ChainClient.connect(dead, key=HotKey(b"\x01" * 32), journal_dir=tmp_path / "journal")
    assert not (tmp_path / "journal").exists()


def test_wrong_chain_id_is_named(net: LocalNet, tmp_path: Path) -> None:
    other = dataclasses.replace(net.network, chain_id=1)
    with pytest.raises(ChainMismatch, match="is chain 31337, the network file says 1"):
        ChainClient.connect(other, key=HotKey(b"\x01" * 32), journal_dir=tmp_path / "journal")
    assert not (tmp_path / "journal").exists()


def test_contracts_that_are_not_deployed_are_named(net: LocalNet) -> None:
    nowhere = {**net.network.contracts, "JobEscrow": "0x" + "12" * 20}
    with pytest.raises(ChainMismatch, match="holds no code of JobEscrow"):
        ChainClient.connect(dataclasses.replace(net.network, contracts=nowhere))


def test_the_next_endpoint_is_used_when_one_is_dead(net: LocalNet) -> None:
    dead = f"http://{HOST}:{free_port()}"
    client = ChainClient.connect(net.network, rpc=[dead, *net.network.rpc])
    assert client.block_number() > 0
    assert client.provider.urls[0] == dead


def test_retries_then_gives_up() -> None:
    slept: list[float] = []
    provider = FallbackProvider([f"http://{HOST}:{free_port()}"], pauses=(0.1, 0.2), sleep=slept.append)
    with pytest.raises(ChainUnavailable, match="connection refused"):
        provider.make_request("eth_chainId", [])  # type: ignore[arg-type]
    assert slept == [0.1, 0.2]


def test_network_file_round_trip_and_problems(net: LocalNet, tmp_path: Path) -> None:
    path = tmp_path / "sub" / "network.json"
    net.network.save(path)
    assert load_network(path) == net.network
    path.write_text('{"rpc": [], "chain_id": "1", "contracts": {}}')
    with pytest.raises(ConfigError) as caught:
        load_network(path)
    for part in ("rpc must", "chain_id must", "contracts.JobMarket must", str(path)):
        assert part in str(caught.value)
    with pytest.raises(ConfigError, match="sentinel net up"):
        load_network(tmp_path / "none.json")


# --- dry mode


def test_without_a_key_nothing_is_sent(net: LocalNet) -> None:
    actor = net.actor(200, tokens=5 * TOKEN)
    dry = ChainClient.connect(net.network, account=actor.account)
    receipt = dry.token.transfer("0x" + "22" * 20, TOKEN)
    assert receipt.dry
    assert receipt.gas_used > 21_000
    assert dry.token.balance_of(actor.account) == 5 * TOKEN
    with pytest.raises(Rejected, match="holds 5 tokens, 6 tokens are needed"):
        dry.token.transfer("0x" + "22" * 20, 6 * TOKEN)


def test_no_gas_is_said_with_the_way_out(net: LocalNet) -> None:
    poor = net.client(HotKey(b"\x07" * 32))
    with pytest.raises(Rejected, match=r"cannot pay for gas.*sentinel faucet") as caught:
        poor.token.approve(poor.vault.address, 1)
    assert caught.value.name == "InsufficientGas"


def test_a_transaction_that_fails_on_chain_is_decoded_too(net: LocalNet, tmp_path: Path) -> None:
    client, _, _ = make(net, tmp_path, 202)
    client._estimate = lambda *_: 200_000  # type: ignore[method-assign]  # as if the state changed after simulation
    with pytest.raises(Rejected, match=r"holds 100 tokens, 101 tokens are needed") as caught:
        client.token.transfer("0x" + "77" * 20, 101 * TOKEN)
    assert caught.value.name == "ERC20InsufficientBalance"
    assert client.journal is not None
    assert [entry.state for entry in client.journal.entries()] == ["reverted"]


def test_another_transaction_of_the_same_block_as_the_cause(net: LocalNet, tmp_path: Path) -> None:
    client, key, _ = make(net, tmp_path, 203)
    net.chain.rpc("evm_setAutomine", False)
    net.chain.rpc("evm_setIntervalMining", 0)
    try:
        results: list[object] = []
        other = net.client(key)
        other._nonce = lambda block: 1  # type: ignore[method-assign]
        other._estimate = client._estimate = lambda *_: 200_000  # type: ignore[method-assign]

        def send(who: ChainClient) -> None:
            try:
                results.append(who.token.transfer("0x" + "78" * 20, 60 * TOKEN))
            except Rejected as exc:
                results.append(exc)

        threads = [threading.Thread(target=send, args=(who,)) for who in (client, other)]
        for thread in threads:
            thread.start()
        while int(client.w3.eth.get_transaction_count(client._from(), "pending")) < 2:
            pass
        net.chain.rpc("evm_mine")
        for thread in threads:
            thread.join(20)
    finally:
        net.chain.rpc("evm_setAutomine", True)
        net.chain.rpc("evm_setIntervalMining", 1000)
    (error,) = [result for result in results if isinstance(result, Rejected)]
    assert "holds 40 tokens, 60 tokens are needed" in str(error)
    assert len(results) == 2


# --- the journal


def make(net: LocalNet, tmp_path: Path, seed: int) -> tuple[ChainClient, HotKey, Any]:
    actor = net.actor(seed, tokens=100 * TOKEN)
    again = lambda: net.client(actor.cold_key, tmp_path / "journal")  # noqa: E731
    return again(), actor.cold_key, again


def test_journal_records_what_was_sent(net: LocalNet, tmp_path: Path) -> None:
    client, key, _ = make(net, tmp_path, 210)
    receipt = client.token.approve(client.vault.address, 5)
    with pytest.raises(Rejected):
        client.token.transfer(client.vault.address, 1000 * TOKEN)
    assert client.journal is not None
    (entry,) = client.journal.entries()
    assert (entry.hash, entry.state, entry.block) == (receipt.hash, "mined", receipt.block)
    assert entry.intent == "approve 0.000000000000000005 tokens"
    assert key.address.lower() in client.journal.path.name
    assert str(net.network.chain_id) in client.journal.path.name


@pytest.mark.parametrize("moment", ["before sending", "after sending"])
def test_a_crash_neither_loses_nor_repeats_a_transaction(net: LocalNet, tmp_path: Path, moment: str) -> None:
    client, key, again = make(net, tmp_path, 211 + (moment == "after sending"))
    target = "0x" + "33" * 19 + ("01" if moment == "before sending" else "02")

    def die(entry: Entry) -> None:
        if moment == "after sending":
            ChainClient._broadcast(client, entry)
        raise Killed

    client._broadcast = die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        client.token.transfer(target, 7 * TOKEN)
    assert client.journal is not None
    (entry,) = client.journal.unfinished()

    restarted = again()  # looks the transaction up, or sends it again byte for byte
    assert restarted.token.balance_of(target) == 7 * TOKEN
    done = restarted.wait(entry.hash)
    assert restarted.gas_balance() < 10 * 10**18
    assert int(restarted.w3.eth.get_transaction_count(key.address)) == 1
    assert restarted.reconcile() == []
    assert [e.state for e in restarted.journal.entries()] == ["mined"]
    assert done.block > 0
    restarted.token.transfer(target, TOKEN)  # the next nonce is the next one
    assert restarted.token.balance_of(target) == 8 * TOKEN


def test_a_call_that_ended_in_trouble_may_be_repeated(net: LocalNet, tmp_path: Path) -> None:
    client, key, _ = make(net, tmp_path, 214)
    target = "0x" + "44" * 20
    real = client._broadcast

    def unreachable(entry: Entry) -> None:
        raise ChainUnavailable("no RPC endpoint answers")

    client._broadcast = unreachable  # type: ignore[method-assign]
    with pytest.raises(ChainUnavailable):
        client.token.transfer(target, TOKEN)
    client._broadcast = real  # type: ignore[method-assign]
    client.token.transfer(target, TOKEN)  # the same intent is carried on with, not signed anew
    assert client.token.balance_of(target) == TOKEN
    assert int(client.w3.eth.get_transaction_count(key.address)) == 1


def test_a_later_transaction_does_not_wait_behind_a_lost_one(net: LocalNet, tmp_path: Path) -> None:
    client, key, _ = make(net, tmp_path, 217)
    real = client._broadcast

    def unreachable(entry: Entry) -> None:
        raise ChainUnavailable("no RPC endpoint answers")

    client._broadcast = unreachable  # type: ignore[method-assign]
    with pytest.raises(ChainUnavailable):
        client.token.transfer("0x" + "66" * 20, TOKEN)
    client._broadcast = real  # type: ignore[method-assign]
    client.token.approve(client.vault.address, 1)
    assert client.token.balance_of("0x" + "66" * 20) == TOKEN
    assert int(client.w3.eth.get_transaction_count(key.address)) == 2
    assert client.reconcile() == []


def test_trouble_of_the_node_is_recoverable(net: LocalNet) -> None:
    client = net.client()
    with pytest.raises(ChainUnavailable):
        client.provider.make_request("eth_noSuchMethod", [])  # type: ignore[arg-type]
    with pytest.raises(ChainUnavailable):
        client.token.balance_of("0x" + "66" * 20, block=10**9)


def test_a_nonce_spent_elsewhere_is_noticed(net: LocalNet, tmp_path: Path) -> None:
    client, key, again = make(net, tmp_path, 215)

    def die(entry: Entry) -> None:
        raise Killed

    client._broadcast = die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        client.token.transfer("0x" + "55" * 20, TOKEN)
    net.client(key).token.approve(client.vault.address, 1)  # the same nonce, from a machine without our journal
    restarted = again()
    assert [entry.state for entry in restarted.journal.entries()] == ["dropped"]
    restarted.token.transfer("0x" + "55" * 20, TOKEN)
    assert restarted.token.balance_of("0x" + "55" * 20) == TOKEN


def test_threads_share_one_key(net: LocalNet, tmp_path: Path) -> None:
    client, key, again = make(net, tmp_path, 216)
    clients = [client, again()]  # two processes would look like this
    failures: list[Exception] = []

    def work(index: int) -> None:
        try:
            clients[index % 2].token.transfer("0x" + f"{index + 1:02x}" * 20, TOKEN)
        except Exception as exc:  # noqa: BLE001
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert client.token.balance_of(key.address) == 94 * TOKEN
    assert int(client.w3.eth.get_transaction_count(key.address)) == 6


def test_journals_of_two_chains_are_apart(tmp_path: Path) -> None:
    one = Journal.open(tmp_path, 31337, b"\x01" * 32, "0xAB")
    one.prepare(Entry("0x01", 4, "i", "t", b"", b""))
    assert one.next_nonce(2) == 5
    assert one.next_nonce(9) == 9
    assert Journal.open(tmp_path, 31337, b"\x02" * 32, "0xAB").next_nonce(0) == 0
    assert Journal.open(tmp_path, 31337, b"\x01" * 32, "0xab").next_nonce(0) == 5


# --- events


def test_cursor_waits_for_depth_and_returns_each_event_once(net: LocalNet) -> None:
    actor = net.actor(220, stake=3 * TOKEN)
    reader = ChainClient(net.network, confirmations=3)
    cursor = EventCursor(reader, actor.cold.block_number() + 1, max_blocks=2)
    receipt = actor.cold.token.approve(actor.account, 1)
    while reader.confirmed_block() < receipt.block - 1:
        net.chain.rpc("evm_mine")
    seen = cursor.poll()
    while reader.confirmed_block() < receipt.block + 2:
        assert all(event.block <= reader.confirmed_block() for event in seen)
        net.chain.rpc("evm_mine")
        seen += cursor.poll()
    mine = [event for event in seen if event.tx_hash == receipt.hash]
    assert [(event.name, event.contract) for event in mine] == [("Approval", "TestToken")]
    assert mine[0].args["owner"] == actor.account
    assert mine[0].block_hash.startswith("0x")
    feed = EventFeed(reader)
    row = feed.fetch_events(receipt.block, receipt.block)[0]
    assert set(row) == {"contract", "name", "args", "block", "log_index", "tx"}
    assert feed.head() >= receipt.block
    assert reader.fetch_events(5, 4) == []


def test_addresses_in_lower_case_are_taken(net: LocalNet) -> None:
    actor = net.actor(221, stake=2 * TOKEN)
    lower = net.network.contracts | {"StakeVault": net.network.contracts["StakeVault"].lower()}
    client = ChainClient.connect(Network(rpc=net.network.rpc, chain_id=31337, contracts=lower))
    assert client.vault.stake_of(actor.account.lower()).free == 2 * TOKEN
    assert client.vault.account_of(actor.hot_key.address.lower()) == actor.account
    assert client.vault.account_of("0x" + "99" * 20) is None
