"""The chain as the rest of the program sees it: connect, read, simulate, send, wait, decode.

``ChainClient.connect`` refuses a chain that is not ours before anything is written. Sending simulates first
(a refusal costs no gas and no nonce), journals the signed transaction, sends it, waits for the receipt and
checks it. Without a key the client is dry: it simulates and stops there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from web3 import Web3
from web3.exceptions import TransactionNotFound, Web3Exception
from web3.types import RPCEndpoint

from sentinel_market.chain.abis import CONTRACTS
from sentinel_market.chain.abis import function as function_codec
from sentinel_market.chain.journal import Entry, Journal
from sentinel_market.chain.logs import ChainEvent, LogReader
from sentinel_market.chain.network import Network
from sentinel_market.chain.reverts import rejected
from sentinel_market.chain.rpc import FallbackProvider, RevertError, RpcError
from sentinel_market.chain.signing import HotKey
from sentinel_market.errors import ChainMismatch, ChainUnavailable, Rejected

if TYPE_CHECKING:
    from sentinel_market.chain.job_escrow import JobEscrow
    from sentinel_market.chain.job_market import JobMarket
    from sentinel_market.chain.market_params import MarketParams
    from sentinel_market.chain.stake_vault import StakeVault
    from sentinel_market.chain.token import Token
    from sentinel_market.chain.violation_court import ViolationCourt

log = logging.getLogger(__name__)

Block = int | str
"""A block number, or "latest", "safe", "finalized"."""

GAS_MARGIN_PERCENT: Final = 130
"""Gas limit over the estimate: state may change between simulation and block."""
GAS_EXTRA: Final = 20_000
RECEIPT_TIMEOUT_SECONDS: Final = 60.0
_ZERO: Final = "0x" + "0" * 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """What became of a transaction. In dry mode ``hash`` is empty and ``block`` is 0."""

    hash: str
    block: int
    gas_used: int
    events: tuple[ChainEvent, ...] = ()

    @property
    def dry(self) -> bool:
        """Whether nothing was sent."""
        return not self.hash

    def event(self, name: str) -> ChainEvent:
        """The first event of a name. Its absence is a bug of ours: the call succeeded."""
        return next(event for event in self.events if event.name == name)


class ChainClient:
    """One account's (or a reader's) view of one deployment. Usable from several threads."""

    def __init__(
        self,
        network: Network,
        *,
        key: HotKey | None = None,
        account: str | None = None,
        journal: Journal | None = None,
        provider: FallbackProvider | None = None,
        confirmations: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
        receipt_timeout: float = RECEIPT_TIMEOUT_SECONDS,
    ) -> None:
        self.network = network
        self.key = key
        self.address = key.address if key is not None else (account or _ZERO)
        self.confirmations = network.confirmations if confirmations is None else confirmations
        self.journal = journal
        self.provider = provider or FallbackProvider(network.rpc)
        self.w3 = Web3(self.provider, middleware=[])
        self._sleep = sleep
        self._receipt_timeout = receipt_timeout
        self._send_lock = threading.RLock()
        self._addresses = {name: Web3.to_checksum_address(network.contracts[name]) for name in CONTRACTS}
        self._logs = LogReader(self._addresses)

    @classmethod
    def connect(
        cls,
        network: Network,
        *,
        key: HotKey | None = None,
        account: str | None = None,
        journal_dir: Path | None = None,
        rpc: Sequence[str] = (),
        confirmations: int | None = None,
    ) -> ChainClient:
        """A checked client: RPC up, chain id right, code at every address. Journals when it has a key and a folder.

        ChainMismatch names the value that is wrong and what to change; nothing is written before that.
        """
        provider = FallbackProvider(rpc or network.rpc)
        client = cls(network, key=key, account=account, provider=provider, confirmations=confirmations)
        client.check()
        if key is not None and journal_dir is not None:
            client.journal = Journal.open(journal_dir, network.chain_id, client.genesis(), key.address)
            client.reconcile()
        return client

    def check(self) -> None:
        """Raise ChainMismatch unless this is the chain of the network file, with our contracts on it."""
        urls = ", ".join(self.provider.urls)
        try:
            found = self.w3.eth.chain_id
            missing = [
                f"{name} ({address})" for name, address in self._addresses.items() if not self.w3.eth.get_code(address)
            ]
        except RpcError as exc:
            raise ChainMismatch(f"{urls} is no Ethereum RPC endpoint: {exc}; set SENTINEL_RPC") from None
        except ChainUnavailable as exc:
            raise ChainMismatch(
                f"{exc}. Is the node running? Start a local network with `sentinel net up`, or set SENTINEL_RPC"
            ) from None
        if found != self.network.chain_id:
            raise ChainMismatch(
                f"{urls} is chain {found}, the network file says {self.network.chain_id}; set SENTINEL_RPC to a node "
                f"of chain {self.network.chain_id}, or SENTINEL_NETWORK to the file of chain {found}"
            )
        if missing:
            raise ChainMismatch(
                f"chain {found} at {urls} holds no code of {', '.join(missing)}; the network file is of another or "
                "older chain: start it again (`sentinel net up`), or set SENTINEL_NETWORK"
            )

    def close(self) -> None:
        """Close the journal."""
        if self.journal is not None:
            self.journal.close()

    # --- the contracts, one class each

    @cached_property
    def vault(self) -> StakeVault:
        """Stakes, locks, hot keys."""
        from sentinel_market.chain.stake_vault import StakeVault

        return StakeVault(self)

    @cached_property
    def market(self) -> JobMarket:
        """Jobs, slots, seats."""
        from sentinel_market.chain.job_market import JobMarket

        return JobMarket(self)

    @cached_property
    def escrow(self) -> JobEscrow:
        """Budgets, settlement roots, pay."""
        from sentinel_market.chain.job_escrow import JobEscrow

        return JobEscrow(self)

    @cached_property
    def court(self) -> ViolationCourt:
        """Reports and cases."""
        from sentinel_market.chain.violation_court import ViolationCourt

        return ViolationCourt(self)

    @cached_property
    def params(self) -> MarketParams:
        """Versioned parameters."""
        from sentinel_market.chain.market_params import MarketParams

        return MarketParams(self)

    @cached_property
    def token(self) -> Token:
        """The token of stake and pay."""
        from sentinel_market.chain.token import Token

        return Token(self)

    # --- reading

    def genesis(self) -> bytes:
        """Hash of block 0: tells a local chain from the one before it, which had the same chain id."""
        return bytes(self.w3.eth.get_block(0)["hash"])

    def block_number(self) -> int:
        """Height of the chain."""
        return int(self.w3.eth.block_number)

    def confirmed_block(self) -> int:
        """Height up to which blocks are deep enough to count; -1 while there is none."""
        return self.block_number() - self.confirmations

    def now(self) -> int:
        """Time of the newest block, in seconds: the contracts' clock."""
        return int(self.w3.eth.get_block("latest")["timestamp"])

    def gas_balance(self, address: str | None = None) -> int:
        """Native balance in wei."""
        return int(self.w3.eth.get_balance(Web3.to_checksum_address(address or self.address)))

    def gas_price(self) -> int:
        """Wei a unit of gas that a transaction would offer now."""
        base = int(self.w3.eth.get_block("latest").get("baseFeePerGas", 0))
        return 2 * base + self._tip()

    def call(self, contract: str, function: str, *args: Any, block: Block = "latest") -> Any:
        """Read a view. Rejected when it reverts."""
        codec = function_codec(contract, function, len(args))
        request = {
            "from": self.address,
            "to": self._addresses[contract],
            "data": "0x" + codec.encode(args).hex(),
        }
        try:
            answer = self.provider.make_request(
                RPCEndpoint("eth_call"), [request, block if isinstance(block, str) else hex(block)]
            )
        except RevertError as exc:
            raise rejected(exc.data, intent=f"{contract}.{function}", fallback=str(exc)) from None
        data = bytes.fromhex(str(answer["result"])[2:])
        if not data and codec.outputs:
            raise ChainMismatch(f"{contract} at {request['to']} does not answer {function}: it is no contract of ours")
        return codec.decode(data)

    def fetch_events(self, from_block: int, to_block: int) -> list[ChainEvent]:
        """All events of our contracts in the blocks [from_block, to_block], in chain order."""
        if to_block < from_block:
            return []
        return self._logs.fetch(self.w3, from_block, to_block)

    # --- writing

    def simulate(self, contract: str, function: str, *args: Any, intent: str = "") -> int:
        """Gas that a call would take; Rejected with the decoded reason when it would revert."""
        data = self._data(contract, function, args)
        return self._estimate(self._addresses[contract], data, intent or f"{contract}.{function}")

    def send(self, contract: str, function: str, *args: Any, intent: str = "") -> Receipt:
        """Simulate, journal, send, wait, check. Rejected when the contract refuses.

        An unfinished transaction with the same call (left by a crash or a dead RPC) is carried on with instead of being
        sent twice; so repeating a call that ended in ChainUnavailable is safe.
        """
        intent = intent or f"{contract}.{function}"
        target, data = self._addresses[contract], self._data(contract, function, args)
        if self.key is None:
            return Receipt(hash="", block=0, gas_used=self._estimate(target, data, intent))
        with self._send_lock, self.journal.exclusive() if self.journal else nullcontext():
            entry = self._unfinished_twin(target, data)
            if entry is None:
                self._push_unfinished()
                entry = self._sign(self.key, target, data, intent)
            self._broadcast(entry)
        return self._await(entry)

    def reconcile(self) -> list[Entry]:
        """Settle what an earlier process left unfinished: find its receipts, or send it again.

        Returns what is still open. Transactions whose nonce the chain has spent on something else are marked dropped.
        """
        if self.journal is None or self.key is None:
            return []
        with self._send_lock, self.journal.exclusive():
            spent = self._nonce("latest")
            for entry in self.journal.unfinished():
                found = self._find_receipt(entry.hash)
                if found is not None:
                    self._finish(entry, found)
                elif entry.nonce < spent:
                    self.journal.finish(entry.hash, "dropped")
                    log.warning("transaction %s (%s) was replaced by another", entry.hash, entry.intent)
                else:
                    log.info("sending %s (%s) again after a restart", entry.hash, entry.intent)
                    self._broadcast(entry)
            return self.journal.unfinished()

    def wait(self, tx_hash: str, intent: str = "") -> Receipt:
        """Wait for a transaction and check its receipt, its confirmations included."""
        return self._await(Entry(tx_hash, 0, intent or tx_hash, "", b"", b""))

    # --- inside

    def _data(self, contract: str, function: str, args: Sequence[Any]) -> bytes:
        return function_codec(contract, function, len(args)).encode(args)

    def _estimate(self, target: str, data: bytes, intent: str) -> int:
        try:
            return int(self.w3.eth.estimate_gas({"from": self._from(), "to": target, "data": data}))
        except RevertError as exc:
            raise rejected(exc.data, intent=intent, fallback=str(exc)) from None
        except RpcError as exc:
            raise _refused(exc, intent, self.address) from None

    def _from(self) -> Any:
        return Web3.to_checksum_address(self.address)

    def _tip(self) -> int:
        return int(self.w3.eth.max_priority_fee)

    def _nonce(self, block: str) -> int:
        return int(self.w3.eth.get_transaction_count(self._from(), block))  # type: ignore[arg-type]

    def _unfinished_twin(self, target: str, data: bytes) -> Entry | None:
        if self.journal is None:
            return None
        for entry in self.journal.unfinished():
            if (entry.target, entry.data) == (target, data) and entry.nonce >= self._nonce("latest"):
                return entry
        return None

    def _push_unfinished(self) -> None:
        """Send again what may never have reached the node: a later nonce would wait behind it for ever."""
        entries = self.journal.unfinished() if self.journal else []
        spent = self._nonce("latest") if entries else 0
        for entry in entries:
            if entry.nonce >= spent:
                try:
                    self._broadcast(entry)
                except Rejected as exc:
                    log.warning("%s was refused when it was sent again: %s", entry.hash, exc)

    def _sign(self, key: HotKey, target: str, data: bytes, intent: str) -> Entry:
        gas = self._estimate(target, data, intent)
        nonce = self._nonce("pending")
        if self.journal is not None:
            nonce = self.journal.next_nonce(nonce)
        tip = self._tip()
        price = self.gas_price()
        raw, tx_hash = key.sign_transaction(
            {
                "type": 2,
                "chainId": self.network.chain_id,
                "nonce": nonce,
                "to": target,
                "value": 0,
                "data": data,
                "gas": gas * GAS_MARGIN_PERCENT // 100 + GAS_EXTRA,
                "maxFeePerGas": price,
                "maxPriorityFeePerGas": tip,
            }
        )
        entry = Entry(tx_hash, nonce, intent, target, data, raw)
        if self.journal is not None:
            self.journal.prepare(entry)
        return entry

    def _broadcast(self, entry: Entry) -> None:
        try:
            self.w3.eth.send_raw_transaction(entry.raw)
        except RevertError:
            return  # mined at once and reverted: the receipt tells
        except RpcError as exc:
            text = str(exc).lower()
            known = "already known" in text or "known transaction" in text
            if known or self._find_receipt(entry.hash) is not None:
                return  # the node has it: that is what we wanted
            if self.journal is not None:
                self.journal.finish(entry.hash, "dropped")
            raise _refused(exc, entry.intent, self.address) from None

    def _find_receipt(self, tx_hash: str) -> Any | None:
        try:
            return self.w3.eth.get_transaction_receipt(tx_hash)  # type: ignore[arg-type]
        except TransactionNotFound:
            return None

    def _await(self, entry: Entry) -> Receipt:
        deadline = time.monotonic() + self._receipt_timeout
        pause = 0.02
        while True:
            found = self._find_receipt(entry.hash)
            if found is not None and self.block_number() - int(found["blockNumber"]) >= self.confirmations:
                return self._finish(entry, found, check=True)
            if time.monotonic() > deadline:
                raise ChainUnavailable(
                    f"{entry.intent}: transaction {entry.hash} was not mined in {self._receipt_timeout:.0f} s; it is "
                    "in the journal and will be looked up at the next start"
                )
            self._sleep(pause)
            pause = min(0.25, pause * 1.5)

    def _finish(self, entry: Entry, found: Any, *, check: bool = False) -> Receipt:
        block, good = int(found["blockNumber"]), found["status"] == 1
        if self.journal is not None:
            self.journal.finish(entry.hash, "mined" if good else "reverted", block)
        if not good and check:
            log.error("transaction %s (%s) was mined and failed", entry.hash, entry.intent)
            raise self._why(entry, block)
        return Receipt(
            hash=entry.hash,
            block=block,
            gas_used=int(found["gasUsed"]),
            events=tuple(self._logs.decode(found["logs"])),
        )

    def _why(self, entry: Entry, block: int) -> Rejected:
        """Run a failed transaction again to learn its reason: on the state before its block, then after it (where
        another transaction of that block was the cause)."""
        for state in (block - 1, block):
            try:
                self.w3.eth.call({"from": self._from(), "to": entry.target, "data": entry.data}, state)
            except RevertError as exc:
                return rejected(exc.data, intent=entry.intent, fallback=str(exc))
            except (RpcError, Web3Exception, ValueError):
                break
        return rejected(b"", intent=entry.intent, fallback=f"transaction {entry.hash} failed in block {block}")


def _refused(exc: RpcError, intent: str, address: str) -> Rejected | ChainUnavailable:
    text = str(exc)
    low = text.lower()
    if "insufficient funds" in low or "enough funds" in low or "enough balance" in low:
        return Rejected(
            "InsufficientGas",
            f"{intent}: {address} cannot pay for gas; send it some of the chain's coin (local network: "
            "`sentinel faucet`)",
        )
    return ChainUnavailable(f"{intent}: the node refused: {text}")
