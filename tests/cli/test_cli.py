"""The command line: help, exit codes, errors; then a whole local network by its verbs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from sentinel_market.chain.client import ChainClient
from sentinel_market.chain.eip712 import digest, keccak256
from sentinel_market.chain.local import LocalChain, free_port
from sentinel_market.chain.network import load_network
from sentinel_market.chain.roster import ChainRoster
from sentinel_market.cli.common import EXIT_CODES, plain, table
from sentinel_market.cli.main import NOUNS, cli
from sentinel_market.cli.reference import commands, render
from sentinel_market.config import SETTINGS
from sentinel_market.domain.job_spec import template
from sentinel_market.domain.merkle import pay_tree
from sentinel_market.domain.messages import Settlement, ViolationReport
from sentinel_market.errors import Fatal
from sentinel_market.keys import Keystore
from sentinel_market.ports import SignedReport
from sentinel_market.wire.dto import SettlementLeaf, SettlementProposal
from sentinel_market.wire.http_client import CoordinatorClient, Refused

TOKEN = 10**18
ROOT = Path(__file__).parents[2]


def clean_env(home: Path, **extra: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SENTINEL_")}
    return {**kept, "SENTINEL_HOME": str(home), "SENTINEL_PASSWORD": "pw", **extra}


class Cli:
    """Runs verbs in this process, as a person with one home would."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
        self.home = home

    def __call__(self, *args: object, code: int = 0, env: Mapping[str, str | None] | None = None) -> Result:
        values: dict[str, str | None] = {"SENTINEL_HOME": str(self.home), "SENTINEL_PASSWORD": "pw", **(env or {})}
        result = CliRunner().invoke(cli, [str(arg) for arg in args], env=values)
        assert result.exit_code == code, result.output
        return result

    def json(self, *args: object, code: int = 0) -> Any:
        return json.loads(self(*args, "--json", code=code).stdout)


@pytest.fixture
def home(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "home")


# --- frame


def test_every_verb_has_help_an_example_and_json() -> None:
    found = dict(commands())
    assert len(found) >= 30
    for name, command in found.items():
        assert command.help, name
        assert "Example:" in (command.epilog or ""), name
        assert name in (command.epilog or ""), name
        options = [opt for param in command.params if isinstance(param, click.Option) for opt in param.opts]
        assert "--json" in options, name


def test_the_reference_is_up_to_date() -> None:
    written = (ROOT / "docs" / "cli.md").read_text()
    assert written == render(), "run: python -m sentinel_market.cli.reference > docs/cli.md"


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from sentinel_market.cli.main import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "bad = [m for m in ('torch', 'web3', 'grpc', 'sqlalchemy', 'fastapi', 'eth_account') if m in sys.modules]\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 5  # 0.1 s when idle
    for word in (*NOUNS, *(s.name for s in SETTINGS), *(str(c) for c in EXIT_CODES)):
        assert word in done.stdout


def test_no_verb_loads_torch_before_it_computes() -> None:
    names = [n for n in NOUNS if n != "demo"]
    code = (
        "import sys; from sentinel_market.cli.main import cli\n"
        f"[cli.get_command(None, noun) for noun in {names!r}]\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["nonsense"], "No such command"),
        (["key", "new"], "Missing argument"),
        (["key", "new", "Bad/Name"], "is not a key name"),
        (["key", "show", "bob"], "there is no key 'bob'"),
        (["net", "status"], "sentinel net up"),
        (["net", "down"], "no local network"),
        (["job", "quote", "missing.toml"], "cannot read the job file missing.toml"),
        (["stake", "show", "0x12"], "is not an address"),
        (["worker", "start", "bob"], "there is no key 'bob'"),
    ],
)
def test_user_errors_have_code_2_and_no_traceback(home: Cli, args: list[str], part: str) -> None:
    result = home(*args, code=2)
    assert part in result.output
    assert "Traceback" not in result.output
    error = home.json(*args, code=2)["error"]
    assert part in error["message"]
    assert error["exit_code"] == 2


def test_settings_problems_are_a_user_error(home: Cli) -> None:
    result = home("key", "list", code=2, env={"SENTINEL_RPC": "nonsense", "SENTINEL_CONFIRMATIONS": "x"})
    assert "SENTINEL_RPC" in result.output
    assert "SENTINEL_CONFIRMATIONS" in result.output


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = Cli(tmp_path / "file" / "home")("key", "new", "alice", "--light", code=2)
    assert f"{tmp_path}/file/home/keys" in result.output
    assert "Not a directory" in result.output


def test_other_exit_codes(home: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: BaseException) -> None:
        def identities(self: Keystore) -> None:
            raise error

        monkeypatch.setattr(Keystore, "identities", identities)

    fail(RuntimeError("a bug"))
    result = home("key", "list", code=1)
    assert "unexpected RuntimeError: a bug" in result.output
    assert "SENTINEL_DEBUG=1" in result.output
    assert "Traceback" not in result.output
    assert "Traceback" in home("key", "list", code=1, env={"SENTINEL_DEBUG": "1"}).output
    fail(Fatal("a verifier is gone"))
    assert "a verifier is gone" in home("key", "list", code=4).output
    fail(KeyboardInterrupt())
    assert home.json("key", "list", code=130)["error"]["type"] == "Interrupted"


def test_no_password_and_no_terminal(home: Cli) -> None:
    result = home("key", "new", "alice", code=2, env={"SENTINEL_PASSWORD": None})
    assert "SENTINEL_PASSWORD" in result.output


def test_plain_and_table() -> None:
    assert plain({"a": 10**20, "b": 3, "c": b"\x01", "d": (True, None, 1.5)}) == {
        "a": "100000000000000000000",
        "b": 3,
        "c": "0x01",
        "d": [True, None, 1.5],
    }
    assert table(("A", "BB"), [("xxx", 1)]) == "A    BB\nxxx  1"


# --- keys and job files, without a network


def test_keys(home: Cli) -> None:
    made = home.json("key", "new", "alice", "--light")
    assert home.json("key", "list") == [{"name": "alice", "account": made["account"], "hot": made["hot"]}]
    assert made["account"] in home("key", "show", "alice").output
    text = home("key", "new", "bob", "--light").output
    assert "needs the stake" in text
    assert "losing the cold key loses the stake" in text
    assert "exists already" in home("key", "new", "alice", code=2).output


def test_job_file(home: Cli, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    home("job", "init", file)
    assert "exists already" in home("job", "init", file, code=2).output
    home("job", "init", file, "--force")
    file.write_text(file.read_text().replace("steps = 600", "stepps = 600").replace("num_heads = 4", "num_heads = 5"))
    error = home.json("job", "quote", file, code=2)["error"]
    assert len(error["problems"]) >= 2
    assert "did you mean" in error["message"]
    file.write_bytes(b"\xff\xfe")
    assert "UTF-8" in home("job", "quote", file, code=2).output


# --- a network


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A real local network, started and stopped as a person would."""
    home = tmp_path_factory.mktemp("net") / "home"
    run = [sys.executable, "-m", "sentinel_market.cli.main", "net"]
    ports = ["--rpc-port", str(free_port()), "--port", str(free_port())]
    done = subprocess.run([*run, "up", "--detach", *ports], env=clean_env(home), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the network is up" in done.stdout
    yield Cli(home)
    done = subprocess.run([*run, "down"], env=clean_env(home), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (home / "network.json").exists()


def warp(up: Cli, seconds: int) -> None:
    LocalChain(load_network(up.home / "network.json").rpc).warp(seconds)


@pytest.mark.chain
def test_net(up: Cli) -> None:
    status = up.json("net", "status")
    assert status["chain_id"] == 31337
    assert status["coordinator"]["ok"]
    assert status["head_age_seconds"] < 30
    again = up("net", "up", code=2).output
    assert "running already" in again
    assert str(status["pid"]) in again
    dead = f"http://127.0.0.1:{free_port()}"
    refused = up("stake", "show", "0x" + "11" * 20, code=2, env={"SENTINEL_RPC": dead}).output
    assert dead in refused
    assert "connection refused" in refused
    assert up("net", "status", env={"SENTINEL_RPC": f"{dead},{status['rpc'][0]}"}).exit_code == 0
    port = status["rpc"][0].rsplit(":", 1)[1]
    other = Cli(up.home.parent / "other")
    assert f"port {port}" in other("net", "up", "--rpc-port", port, code=2).output
    assert not (other.home / "network.json").exists()


@pytest.mark.chain
def test_doctor_names_a_fix_for_each_failure(up: Cli) -> None:
    up("key", "new", "dora")
    bad = up.json("doctor", "dora", code=2)
    failed = {check["name"]: check["fix"] for check in bad["checks"] if check["state"] == "FAIL"}
    assert set(failed) == {"gas of the hot key", "gas of the cold key", "stake", "hot key on chain"}
    assert all("dora" in fix for fix in failed.values())
    up("faucet", "dora")
    up("stake", "deposit", "dora", "100")
    assert up.json("doctor", "dora")["ok"]
    file = up.home / "keys" / "dora.hot.json"
    file.chmod(0o644)
    try:
        assert "chmod go-rwx" in up("doctor", code=2).output
    finally:
        file.chmod(0o600)
    with Keystore(up.home / "keys").lock("dora"):
        assert "in use" in up("doctor", "dora", code=2).output


@pytest.mark.chain
def test_stake(up: Cli) -> None:
    made = up.json("key", "new", "alice")
    assert made["light"]
    error = up.json("stake", "deposit", "alice", "100", code=3)["error"]
    assert error["contract_error"] == "ERC20InsufficientBalance" or "gas" in error["message"]
    up("faucet", "alice", "--tokens", "500")
    assert "wrong password" in up("stake", "deposit", "alice", "1", code=2, env={"SENTINEL_PASSWORD": "no"}).output
    assert up.json("stake", "deposit", "alice", "100")["free"] == str(100 * TOKEN)
    assert "is not an amount" in up("stake", "deposit", "alice", "ten", code=2).output
    shown = up.json("stake", "show", "alice")
    assert (shown["hot"], shown["wallet"]) == (made["hot"], str(400 * TOKEN))
    assert up.json("stake", "show", made["account"].lower()) == shown
    assert "say how much" in up("stake", "unbond", "alice", code=2).output
    up("stake", "unbond", "alice", "30.5")
    assert "in " in up("stake", "withdraw", "alice", code=3).output
    warp(up, 20)
    done = up.json("stake", "withdraw", "alice")
    assert (done["withdrawn"], done["balance"]) == (str(30 * TOKEN + TOKEN // 2), str(430 * TOKEN + TOKEN // 2))
    assert "nothing is unbonding" in up("stake", "withdraw", "alice").output
    assert "behind the chain" in up("doctor", code=2).output  # the warp put the chain ahead of this machine


@pytest.mark.chain
def test_job(up: Cli, tmp_path: Path) -> None:
    up("key", "new", "sam")
    up("faucet", "sam", "--tokens", "900")
    data, file = tmp_path / "data.txt", tmp_path / "job.toml"
    data.write_text("the quick brown fox jumps over the lazy dog\n" * 2000)
    up("job", "init", file)
    text = file.read_text().replace('kind = "stdlib"', 'kind = "text"').replace('path = ""', f'path = "{data}"')
    file.write_text(text)
    quote = up.json("job", "quote", file)
    assert quote["enough"]
    assert sum(int(line["amount"]) for line in quote["lines"][:6]) == int(quote["minimum"])
    posted = up.json("job", "post", "sam", file)
    job_id = posted["job_id"]
    assert posted["budget"] == str(500 * TOKEN)
    shown = up.json("job", "show", job_id)
    assert (shown["state"], shown["spec_digest"]) == ("open", posted["spec_digest"])
    assert f"{job_id} " in up("job", "list").output
    assert len(up.json("slot", "list", job_id)) == 12
    assert up.json("seat", "list", job_id) == []
    assert "is open" in up("job", "watch", job_id, "--once").output
    assert up("ledger", job_id).exit_code == 0
    assert "no checkpoint" in up("job", "pull", job_id, tmp_path / "model", code=2).output
    up("key", "new", "eve")
    up("faucet", "eve")
    assert "another account" in up("job", "cancel", "eve", job_id, code=3).output
    cancelled = up.json("job", "cancel", "sam", job_id)
    assert (cancelled["state"], cancelled["refunded"]) == ("cancelled", str(500 * TOKEN))
    assert up.json("stake", "show", "sam")["wallet"] == str(900 * TOKEN)
    assert up.json("ledger", job_id)["problems"] == []
    assert "there is no job 99" in up("job", "show", 99, code=2).output
    assert "nothing is due" in up("pay", "claim", "sam").output

    poor = text.replace('budget = "500"', 'budget = "400"')
    file.write_text(poor)
    refused = up("job", "post", "sam", file, code=2).output
    for term in ("plan", "audits", "reserve", "recomputes", "gas repaid", "fee"):
        assert term in refused
    file.write_text(text.replace(str(data), str(tmp_path / "nothing.txt")))
    assert "nothing.txt" in up("job", "post", "sam", file, code=2).output


@pytest.mark.chain
def test_everybody_takes_the_money_out_by_the_verbs(up: Cli, tmp_path: Path) -> None:
    network = load_network(up.home / "network.json")
    store, chain = Keystore(up.home / "keys"), LocalChain(network.rpc)
    given = {"sue": 600, "wanda": 150, "wilma": 150, "vera": 700}
    for name, tokens in given.items():
        up("key", "new", name)
        up("faucet", name, "--tokens", tokens)
    for name, tokens in (("wanda", 100), ("wilma", 100), ("vera", 600)):
        up("stake", "deposit", name, tokens)
    data, file = tmp_path / "data.txt", tmp_path / "job.toml"
    data.write_text("the quick brown fox jumps over the lazy dog\n" * 2000)
    file.write_text(
        template(
            data__kind="text",
            data__path=str(data),
            parallelism__stages=1,
            parallelism__replicas=2,
            seats__num=1,
            seats__quorum=1,
            market__planned_seconds=60,
        )
    )
    job_id = up.json("job", "post", "sue", file)["job_id"]
    roster = {name: ChainRoster(ChainClient.connect(network, key=store.open_hot(name, "pw"))) for name in given}
    vera = store.open_hot("vera", "pw")
    assert roster["vera"].take_seat(job_id).index == 0
    assert [roster[name].claim_slot(job_id).slot for name in ("wanda", "wilma")] == [0, 1]
    assert [slot["state"] for slot in up.json("slot", "list", job_id)] == ["claimed", "claimed"]
    assert "possible from" in up("slot", "release", "wanda", job_id, code=3).output

    chain.warp(30)
    accounts = {name: store.get(name).account for name in given}
    amounts = {accounts["wanda"]: 10 * TOKEN, accounts["vera"]: 2 * TOKEN + 1}
    tree = pay_tree(job_id, amounts, keccak256)
    message = Settlement(job_id, 1, tree.root, tree.total, b"\x01" * 32)
    signature = vera.sign(digest(network.domain("JobEscrow"), message))
    roster["vera"].submit_root(job_id, 1, tree.root, tree.total, b"\x01" * 32, [(0, signature)])
    assert network.coordinator is not None
    market = network.contracts["JobMarket"]
    with CoordinatorClient(network.coordinator, signer=vera.sign, chain_id=31337, market=market) as coordinator:
        proposal = SettlementProposal(
            job_id=job_id,
            epoch=1,
            root=tree.root.hex(),
            total=str(tree.total),
            step_record_hash="01" * 32,
            leaves=[SettlementLeaf(account=a, cumulative=str(v)) for a, v in amounts.items()],
        )
        until(lambda: coordinator.post_settlement(proposal))
    chain.warp(3)
    assert up.json("pay", "claim", "wanda", "--job", job_id)["received"] == str(10 * TOKEN)
    assert up.json("pay", "claim", "wanda")["received"] == "0"

    case_id = roster["vera"].case_id(job_id, 0, 0, 2, b"\x02" * 32)
    deadline = roster["vera"].now() + 60
    report = ViolationReport(case_id, accounts["vera"], 2, b"\x02" * 32, b"\x03" * 32, deadline)
    signature = vera.sign(digest(network.domain("ViolationCourt"), report))
    signed = SignedReport(seat=0, evidence_hash=b"\x03" * 32, deadline=deadline, signature=signature)
    roster["vera"].report(job_id, 0, 0, 2, b"\x02" * 32, [signed])
    chain.warp(5)
    roster["wilma"].execute(case_id)
    assert up.json("stake", "show", "wanda")["banned"]
    left = up.json("slot", "exit", "wilma", job_id)
    assert left["releasable_at"] > left["exit_at"]
    assert up.json("job", "cancel", "sue", job_id)["state"] == "closing"
    chain.warp(10)
    assert up.json("job", "settle", "sue", job_id)["state"] == "settled"

    assert "slot 1" in str(up.json("stake", "unbond", "wilma", "--all")["released"])
    released = up.json("stake", "unbond", "vera", "--all")["released"]
    assert len(released) == 2, released  # the bond and the seat
    up("stake", "unbond", "wanda", "--all")
    chain.warp(20)
    wallets = {}
    for name in given:
        up("pay", "claim", name)
        if name != "sue":
            up("stake", "withdraw", name)
        shown = up.json("stake", "show", name)
        assert {shown[key] for key in ("bonded", "unbonding", "credits")} == {"0"}, name
        wallets[name] = int(shown["wallet"])
    ledger = up.json("ledger", job_id)
    money = {key: int(value) for key, value in ledger["money"].items() if key != "settled"}
    assert ledger["problems"] == []
    assert money["budget"] == money["paid"] + money["refunded"] + money["fee"]
    assert money["paid"] == money["claimed"] == tree.total
    assert wallets["wanda"] == (150 + 10 - 50) * TOKEN
    assert wallets["wilma"] == 150 * TOKEN
    assert wallets["vera"] == 700 * TOKEN + 2 * TOKEN + 1 + 15 * TOKEN  # its pay, and 30 % of the slash of 50
    assert wallets["sue"] == 600 * TOKEN - tree.total - money["fee"] + 10 * TOKEN  # what the offender had been paid


def until(action: Callable[[], object], seconds: float = 15.0) -> None:
    """Repeat what the coordinator refuses until it has indexed the chain."""
    end = time.monotonic() + seconds
    while True:
        try:
            action()
        except Refused:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


@pytest.mark.chain
def test_a_second_worker_with_one_hot_key_refuses_to_start(up: Cli) -> None:
    up("key", "new", "twin")
    command = [sys.executable, "-m", "sentinel_market.cli.main", "worker", "start", "twin", "--json"]
    with Keystore(up.home / "keys").lock("twin"):
        done = subprocess.run(command, env=clean_env(up.home), capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "in use by another process" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.chain
def test_ctrl_c_stops_a_network_and_everything_it_started(tmp_path: Path) -> None:
    home, port = tmp_path / "home", free_port()
    command = [sys.executable, "-m", "sentinel_market.cli.main", "net", "up", "--chain-only", "--rpc-port", str(port)]
    with subprocess.Popen(command, env=clean_env(home), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert "the network is up" in running.stdout.readline()
        running.send_signal(2)
        assert running.wait(20) == 0
    assert not (home / "network.json").exists()
    result = Cli(home)("net", "status", code=2)
    assert "sentinel net up" in result.output
