"""Reverts in words: a contract's custom error becomes a sentence with its numbers and a way out.

An error without a sentence of its own still shows its name and its named values, so that a new error of a
contract is never swallowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from sentinel_market.chain.abis import CONTRACTS, artifact, canonical_type, signature
from sentinel_market.chain.eip712 import keccak256
from sentinel_market.chain.signing import checksum_address
from sentinel_market.domain.job_spec import format_amount
from sentinel_market.errors import Rejected

Values = Mapping[str, Any]

JOB_STATES: Final = ("none", "open", "active", "closing", "settled", "cancelled")
SLOT_STATES: Final = (
    "vacant",
    "claimed",
    "active",
    "exiting",
    "cooling",
    "released",
    "evicted",
    "terminated",
)
SEAT_STATES: Final = ("none", "seated", "released")
CASE_STATES: Final = (
    "none",
    "collecting",
    "appealable",
    "arbitrating",
    "upheld",
    "overturned",
    "inconclusive",
    "executed",
    "expired",
)
KINDS: Final = (
    "none",
    "equivocation",
    "bad-compute",
    "bad-aggregate",
    "verifier-equivocation",
    "false-root",
)
_PANICS: Final = {
    0x01: "assertion failed",
    0x11: "overflow or underflow",
    0x12: "division by zero",
    0x32: "out of range",
}


def _t(amount: int) -> str:
    return f"{format_amount(amount)} tokens"


def _at(seconds: int) -> str:
    if seconds >= 2**40:
        return "a time that is not set yet"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _in(until: int, now: int) -> str:
    return f"{_at(until)}, in {until - now} s" if now < until < 2**40 else _at(until)


def _lacks_stake(v: Values) -> str:
    return (
        f"{v['account']} has {_t(v['had'])} of free stake and needs {_t(v['needed'])}: deposit "
        f"{_t(v['needed'] - v['had'])} more (`sentinel stake deposit`)"
    )


SENTENCES: Final[dict[str, Callable[[Values], str]]] = {
    # vault
    "InsufficientFreeStake": _lacks_stake,
    "BondReserveMissing": lambda v: f"a seat must be able to put up its bonds: {_lacks_stake(v)}",
    "InsufficientCredit": lambda v: f"{v['account']} has {_t(v['had'])} of credit, {_t(v['needed'])} were asked for",
    "UnknownUnbond": lambda v: f"{v['account']} has no open unbonding request {v['id']}; see `sentinel stake show`",
    "NotMatured": lambda v: f"the stake is unbonding until {_in(v['maturesAt'], v['nowAt'])}; withdraw it then",
    "Banned": lambda v: f"{v['account']} is banned: it can unbond and claim earned pay, but not work or report",
    "ZeroAmount": lambda _: "an amount of 0 makes no sense here; give a larger one",
    "SignerTaken": lambda v: f"the hot key {v['signer']} belongs or belonged to {v['owner']}; make a new one",
    "SignerIsAccount": lambda v: f"the hot key {v['signer']} must differ from the cold account",
    "GrantExpired": lambda v: f"the grant of the hot key ended at {_at(v['deadline'])}; sign a new one",
    "BadGrantSignature": lambda v: f"the grant must be signed by {v['expected']}, but {v['recovered']} signed it",
    "LockNotReleasable": lambda v: f"the stake is locked until {_in(v['releasableAt'], v['nowAt'])}",
    "LockOnHold": lambda v: f"{v['holds']} open case(s) hold this stake; it is free when they have ended",
    # market
    "BadTerm": lambda v: f"{v['name']} = {v['had']} is out of bounds: {v['low']} to {v['high']} (base units, seconds)",
    "UnknownJob": lambda v: f"there is no job {v['jobId']}; see `sentinel job list`",
    "WrongJobState": lambda v: f"job {v['jobId']} is {_state(JOB_STATES, v['had'])}, which does not allow this",
    "NotSubmitter": lambda v: f"job {v['jobId']} was posted by another account than {v['caller']}",
    "UnknownSlot": lambda v: f"job {v['jobId']} has slots 0 to {v['numSlots'] - 1}, not {v['slot']}",
    "UnknownSeat": lambda v: f"seat {v['seat']} of job {v['jobId']} is not held; {v['seatsTaken']} are taken",
    "SlotTaken": lambda v: (
        f"slot {v['slot']} of job {v['jobId']} is held by {v['holder']}; `sentinel slot list` shows vacant ones"
    ),
    "StageHeld": lambda v: f"{v['account']} holds a slot of stage {v['stage']} already; one replica of a stage each",
    "SeatHeld": lambda v: f"{v['account']} has a seat of job {v['jobId']} already",
    "WorkerOfJob": lambda v: f"{v['account']} works in job {v['jobId']} and cannot judge it; use another identity",
    "NoSeatLeft": lambda v: f"all {v['numSeats']} seats of job {v['jobId']} are taken",
    "NoHotKey": lambda v: f"{v['account']} has no hot key on chain; run `sentinel stake deposit`, which registers it",
    "NotHolder": lambda v: f"{v['caller']} does not hold slot {v['slot']} of job {v['jobId']}",
    "WrongSlotState": lambda v: f"slot {v['slot']} of job {v['jobId']} is {_state(SLOT_STATES, v['had'])}",
    "WrongNonce": lambda v: f"slot {v['slot']} of job {v['jobId']} is under nonce {v['had']}, not {v['asked']}",
    "TooLate": lambda v: f"the time for this ended at {_at(v['until'])}",
    "TooEarly": lambda v: f"this is possible from {_in(v['from'], v['nowAt'])} on",
    "CasesOpen": lambda v: f"{v['openCases']} case(s) of job {v['jobId']} are still open",
    "QuorumMissing": lambda v: f"{v['had']} signature(s) of seats are not enough, {v['needed']} are needed",
    "BadSeatSignature": lambda v: (
        f"the signature of seat {v['seat']} is of {v['recovered']}, not of its hot key {v['expected']}"
    ),
    "WrongEpoch": lambda v: f"the last settlement root is of epoch {v['expected']}, not {v['had']}",
    "NothingDue": lambda v: f"nothing is due on job {v['jobId']} now",
    # escrow
    "NotOpen": lambda v: f"job {v['jobId']} takes no settlement roots: it has no money in the escrow, or it is settled",
    "EpochTooLow": lambda v: f"the next settlement root is of epoch {v['needed']} or later, not {v['had']}",
    "TotalDecreased": lambda v: f"a total never decreases: it is {_t(v['needed'])}, the new root says {_t(v['had'])}",
    "BudgetExceeded": lambda v: f"pay and fee of {_t(v['needed'])} exceed the budget of {_t(v['budget'])}",
    "RateExceeded": lambda v: (
        f"{_t(v['asked'])} are above the {_t(v['allowed'])} that may be promised now; wait, or promise less"
    ),
    "RootPending": lambda v: (
        f"the last root can be objected to until {_in(v['activeAt'], v['nowAt'])}; send the next one then"
    ),
    "UnknownRoot": lambda v: f"job {v['jobId']} has no settlement root of epoch {v['epoch']}",
    "RootNotActive": lambda v: f"the settlement root pays from {_in(v['activeAt'], v['nowAt'])} on; claim then",
    "ClaimFrozen": lambda v: (
        f"{v['account']} has {v['openCases']} open case(s) on job {v['jobId']}; claim when they have ended"
    ),
    "RootTainted": lambda v: (
        f"after the case only roots of epoch {v['needed']} or later pay this account, not {v['had']}"
    ),
    "BadProof": lambda v: (
        f"the settlement root does not promise {_t(v['cumulative'])} to {v['account']} on job {v['jobId']}"
    ),
    "TotalExceeded": lambda v: f"the root promised {_t(v['total'])} in all, claims would reach {_t(v['asked'])}",
    "NothingToPay": lambda _: "there is nothing to pay out (any more)",
    # court
    "KindNotSupported": lambda v: f"violations of kind {_state(KINDS, v['kind'])} cannot be reported yet",
    "UnknownCase": lambda v: f"there is no case {_hex(v['caseId'])}",
    "WrongCaseState": lambda v: (
        f"case {_hex(v['caseId'])} is {_state(CASE_STATES, v['had'])}, which does not allow this"
    ),
    "NoNewVote": lambda v: f"these seats have voted in case {_hex(v['caseId'])} already",
    "OpenCaseOfSeat": lambda v: f"seat {v['seat']} has another open case on slot {v['slot']} of job {v['jobId']}",
    "ReportExpired": lambda v: f"the report was good until {_at(v['deadline'])}; sign a new one",
    "BadReportSignature": lambda v: (
        f"the report of seat {v['seat']} is signed by {v['recovered']}, not by its hot key {v['expected']}"
    ),
    "SeatCannotVote": lambda v: f"seat {v['seat']} ({v['account']}) cannot vote in this case",
    "NoBond": lambda v: f"seat {v['seat']} has no bond in case {_hex(v['caseId'])} (any more)",
    # params, token
    "UnknownVersion": lambda v: f"there is no parameter set {v['version']}; the newest is {v['latest']}",
    "FaucetLimit": lambda v: f"the faucet gives at most {_t(v['limit'])} at a time, not {_t(v['asked'])}",
    "ERC20InsufficientBalance": lambda v: (
        f"{v['sender']} holds {_t(v['balance'])}, {_t(v['needed'])} are needed (local network: `sentinel faucet`)"
    ),
    "ERC20InsufficientAllowance": lambda v: (
        f"{v['spender']} may take {_t(v['allowance'])}, {_t(v['needed'])} are needed: approve it first"
    ),
    "AccessManagedUnauthorized": lambda v: f"{v['caller']} has no role that allows this",
}


def _state(names: tuple[str, ...], index: int) -> str:
    return names[index] if index < len(names) else f"in state {index}"


def _hex(value: bytes) -> str:
    return "0x" + value.hex()


@cache
def _table() -> dict[bytes, dict[str, Any]]:
    """Selector -> ABI entry, over the errors of all contracts."""
    table: dict[bytes, dict[str, Any]] = {}
    for name in CONTRACTS:
        for item in artifact(name).items("error"):
            table[keccak256(signature(item).encode())[:4]] = item
    return table


def error_names() -> set[str]:
    """All custom errors of all contracts."""
    return {item["name"] for item in _table().values()}


def decode(data: bytes) -> tuple[str, dict[str, Any]] | None:
    """Name and values of a custom error; None when no contract of ours has it."""
    from eth_abi.abi import decode as abi_decode
    from eth_abi.exceptions import DecodingError

    item = _table().get(data[:4])
    if item is None:
        return None
    try:
        values = abi_decode([canonical_type(part) for part in item["inputs"]], data[4:])
    except DecodingError:
        return None
    names = [part["name"] or str(index) for index, part in enumerate(item["inputs"])]
    return item["name"], {
        name: checksum_address(bytes.fromhex(value[2:])) if part["type"] == "address" else value
        for name, value, part in zip(names, values, item["inputs"], strict=True)
    }


def rejected(data: bytes, *, intent: str = "", fallback: str = "") -> Rejected:
    """The error to raise for revert data. ``intent`` says what was tried; it leads the message."""
    name, text = "Reverted", fallback or "the contract gave no reason"
    values: dict[str, Any] = {}
    found = decode(data)
    if found is not None:
        name, values = found
        sentence = SENTENCES.get(name)
        shown = ", ".join(f"{key}={_hex(v) if isinstance(v, bytes) else v}" for key, v in values.items())
        text = sentence(values) if sentence else f"{name}({shown})"
    elif data[:4] == bytes.fromhex("08c379a0"):
        name, text = "Error", _string(data[4:]) or text
    elif data[:4] == bytes.fromhex("4e487b71") and len(data) >= 36:
        code = int.from_bytes(data[4:36], "big")
        name, text = "Panic", f"a bug in the contract: {_PANICS.get(code, f'panic {code:#x}')}"
    elif data:
        text = f"unknown error {_hex(data[:4])}"
    return Rejected(name, f"{intent}: {text}" if intent else text, values)


def _string(data: bytes) -> str:
    length = int.from_bytes(data[32:64], "big") if len(data) >= 64 else 0
    return data[64 : 64 + min(length, 1024)].decode("utf-8", "replace")
