"""A throwaway chain on this machine: a Hardhat node, our contracts, play money.

Nothing here is meant for a public network, and everything refuses one: ``is_local`` asks the node itself.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from sentinel_market.chain import guard
from sentinel_market.chain.abis import artifact, deployment_plan, function
from sentinel_market.chain.network import Network
from sentinel_market.chain.rpc import FallbackProvider
from sentinel_market.chain.signing import checksum_address
from sentinel_market.errors import ChainMismatch, ChainUnavailable, ConfigError

HOST: Final = "127.0.0.1"
CHAIN_ID: Final = 31337
DEFAULT_PORT: Final = 8545
READY_SECONDS: Final = 60.0
GAS_GIFT_WEI: Final = 10 * 10**18
_GOVERNOR, _TREASURY, _FAUCET = 0, 18, 19
"""Numbers of Hardhat's unlocked accounts."""


class Child:
    """A child process with its own group that ends with this process, its output in a log file."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_file: Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        self.log_file = log_file
        with log_file.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-I", guard.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=None if env is None else dict(env),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the guard; SIGTERM to it ends the command and all that it started."""
        return self.process.pid

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def tail(self, lines: int = 5) -> str:
        """The end of its output, for error messages."""
        text = self.log_file.read_text(encoding="utf-8", errors="replace").replace("\0", "")
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])

    def stop(self) -> None:
        """End it and its group; returns when it is gone."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(guard.GRACE_SECONDS + 5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def project_root() -> Path:
    """Where Node's packages are: the checkout that this package runs from."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "node_modules" / "hardhat").is_dir():
        raise ConfigError(
            f"there is no node_modules/hardhat in {root}; run `make setup` in a checkout: it installs the local chain"
        )
    return root


def require_free_port(port: int, what: str, option: str) -> None:
    """ConfigError naming the port when something listens there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as exc:
            raise ConfigError(
                f"port {port} on {HOST} is in use ({exc.strerror}), {what} needs it; stop the other program "
                f"(`sentinel net down`, if it is an earlier network), or choose another port with {option}"
            ) from None


def free_port() -> int:
    """A port that is free right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def start_node(port: int, log_file: Path) -> Child:
    """Start a Hardhat node and wait until it answers."""
    require_free_port(port, "the local chain", "--rpc-port")
    root = project_root()
    node = Path(sys.executable).with_name("node")
    if not node.exists():
        raise ConfigError(f"{node} is missing; run `make setup`, which installs Node into the virtual environment")
    environment = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    environment["HARDHAT_DISABLE_TELEMETRY"] = "true"
    child = Child(
        [
            str(node),
            str(root / "node_modules" / "hardhat" / "dist" / "src" / "cli.js"),
            "node",
            "--hostname",
            HOST,
            "--port",
            str(port),
        ],
        log_file=log_file,
        cwd=root,
        env=environment,
    )
    try:
        wait_until(lambda: _answers(port), child, f"the local chain on port {port}")
    except BaseException:
        child.stop()
        raise
    return child


def wait_until(ready: Callable[[], bool], child: Child, what: str, seconds: float = READY_SECONDS) -> None:
    """Wait for a child to be ready; ConfigError with the end of its output when it dies or stays silent."""
    deadline = time.monotonic() + seconds
    while not ready():
        if not child.alive():
            raise ConfigError(f"{what} did not start: {child.tail()}")
        if time.monotonic() > deadline:
            raise ConfigError(f"{what} was not ready in {seconds:.0f} s: {child.tail()}")
        time.sleep(0.05)


def _answers(port: int) -> bool:
    provider = FallbackProvider([f"http://{HOST}:{port}"], timeout=2, pauses=())
    try:
        return rpc(provider, "eth_chainId") is not None
    except ChainUnavailable:
        return False


def rpc(provider: FallbackProvider, method: str, *params: Any) -> Any:
    """One raw request."""
    return provider.make_request(method, list(params)).get("result")  # type: ignore[arg-type]


def is_local(provider: FallbackProvider) -> bool:
    """Whether the node is a Hardhat one: it has accounts that anybody may use."""
    return "hardhat" in str(rpc(provider, "web3_clientVersion")).lower()


def _require_local(provider: FallbackProvider) -> None:
    if not is_local(provider):
        raise ChainMismatch(
            f"{', '.join(provider.urls)} is no local test chain: play money and test contracts stay off public networks"
        )


class LocalChain:
    """The unlocked side of a local node: deploying, giving, and (in tests) moving time."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.provider = FallbackProvider(urls)
        _require_local(self.provider)
        raw = [bytes.fromhex(account[2:]) for account in rpc(self.provider, "eth_accounts")]
        self.accounts = [checksum_address(account) for account in raw]

    def rpc(self, method: str, *params: Any) -> Any:
        """One raw request."""
        return rpc(self.provider, method, *params)

    def send(self, sender: int, **fields: Any) -> str:
        """Send from an unlocked account; returns the hash."""
        return str(self.rpc("eth_sendTransaction", {"from": self.accounts[sender], **fields}))

    def receipts(self, hashes: Sequence[str], seconds: float = 30.0) -> list[dict[str, Any]]:
        """Receipts of transactions that must all succeed."""
        deadline = time.monotonic() + seconds
        found = []
        for tx_hash in hashes:
            while (receipt := self.rpc("eth_getTransactionReceipt", tx_hash)) is None:
                if time.monotonic() > deadline:
                    raise ChainUnavailable(f"transaction {tx_hash} was not mined in {seconds:.0f} s")
                time.sleep(0.02)
            if receipt["status"] != "0x1":
                raise ChainMismatch(f"transaction {tx_hash} failed on the local chain")
            found.append(receipt)
        return found

    def deploy(self, *, coordinator: str | None = None, params: Mapping[str, int | str] | None = None) -> Network:
        """Deploy all contracts with the local parameter set (``params`` overrides parts of it)."""
        from web3 import Web3

        w3 = Web3(self.provider, middleware=[])
        plan = deployment_plan()
        governor = self.accounts[_GOVERNOR]
        addresses: dict[str, str] = {}
        values: dict[str, Any] = {"$governor": governor}

        def resolve(argument: Any) -> Any:
            if isinstance(argument, str) and argument.startswith("@"):
                return addresses[argument[1:]]
            return values.get(argument, argument) if isinstance(argument, str) else argument

        start = int(w3.eth.block_number)
        for step in plan["deploy"]:
            item = artifact(step["name"])
            if not item.bytecode.removeprefix("0x"):
                raise ConfigError(f"{step['name']} is not compiled; run `make contracts` and `make abi`")
            contract = w3.eth.contract(abi=item.abi, bytecode=item.bytecode)
            data = contract.constructor(*[resolve(argument) for argument in step["args"]]).data_in_transaction
            receipt = self.receipts([self.send(_GOVERNOR, data=data)])[0]
            addresses[step["name"]] = Web3.to_checksum_address(receipt["contractAddress"])

        chosen = {**plan["localParams"], "treasury": self.accounts[_TREASURY], **(params or {})}
        chosen = {key: int(v) if isinstance(v, str) and v.isdigit() else v for key, v in chosen.items()}
        values["$params"] = _in_abi_order(chosen)
        hashes = []
        for step in plan["calls"]:
            arguments = [resolve(argument) for argument in step["args"]]
            data = function(step["contract"], step["function"], len(arguments)).encode(arguments)
            hashes.append(self.send(_GOVERNOR, to=addresses[step["contract"]], data="0x" + data.hex()))
        self.receipts(hashes)
        return Network(
            rpc=self.provider.urls,
            chain_id=int(w3.eth.chain_id),
            contracts=addresses,
            deployed_block=start,
            coordinator=coordinator,
            local=True,
        )

    def give(self, network: Network, *, gas: Sequence[str] = (), tokens: Mapping[str, int] | None = None) -> None:
        """Give gas coins to ``gas`` and mint test tokens; everything at once, then wait."""
        faucet = function("TestToken", "faucet", 2)
        hashes = [self.send(_FAUCET, to=address, value=hex(GAS_GIFT_WEI)) for address in gas]
        for account, amount in (tokens or {}).items():
            data = "0x" + faucet.encode([account, amount]).hex()
            hashes.append(self.send(_FAUCET, to=network.contracts["TestToken"], data=data))
        self.receipts(hashes)

    def warp(self, seconds: int) -> None:
        """Move the chain's clock. Tests only: live windows are waited out."""
        self.rpc("evm_increaseTime", seconds)
        self.rpc("evm_mine")


def _in_abi_order(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The parameter set as the Solidity struct wants it; ConfigError naming what is missing or unknown."""
    add = next(item for item in artifact("MarketParams").items("function") if item["name"] == "add")
    names = [part["name"] for part in add["inputs"][0]["components"]]
    wrong = sorted(set(names) ^ set(values))
    if wrong:
        raise ConfigError(f"the local parameter set and MarketParams.add differ in {', '.join(wrong)}")
    return tuple(values[name] for name in names)
