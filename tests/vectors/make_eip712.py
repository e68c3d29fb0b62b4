"""Write ``eip712.json`` with eth_account's own typed-data code (never with ours).

Run by hand when a message changes: ``python tests/vectors/make_eip712.py``. The Solidity tests read
the same file.
"""

from __future__ import annotations

import json
import random
from dataclasses import fields
from pathlib import Path

from eth_account import Account
from eth_account._utils.encode_typed_data.encoding_and_hashing import hash_domain
from eth_account.messages import encode_typed_data
from eth_utils import keccak, to_checksum_address

from sentinel_market.domain import messages

KEY = "0x" + "11" * 32  # a test key: everybody knows it
DOMAIN_FIELDS = [
    {"name": "name", "type": "string"},
    {"name": "version", "type": "string"},
    {"name": "chainId", "type": "uint256"},
    {"name": "verifyingContract", "type": "address"},
]
CONTRACTS = {
    "JobMarket": "0x5FbDB2315678afecb367f032d93F642f64180aa3",
    "JobEscrow": "0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512",
    "ViolationCourt": "0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0",
    "StakeVault": "0xCf7Ed3AccA5a467e9e704C703E8D87F634fB0Fc9",
}


def classes() -> list[type[messages.Typed]]:
    return sorted(messages.Typed.__subclasses__(), key=lambda cls: cls.__name__)


def value(kind: str, which: str, rng: random.Random) -> str:
    """One member: smallest, largest or random; numbers as decimal strings (JSON has no uint256)."""
    if kind == "string":
        return {"zero": "", "max": "ü" * 70}.get(which, f"verifier-{rng.randrange(99)}.test:7{rng.randrange(999)}")
    if kind.startswith("uint"):
        bits = int(kind[4:])
        return str({"zero": 0, "max": 2**bits - 1}.get(which, rng.randrange(2**bits)))
    size = {"bytes32": 32, "address": 20}[kind]
    raw = {"zero": bytes(size), "max": b"\xff" * size}.get(which, rng.randbytes(size))
    return to_checksum_address(raw) if kind == "address" else "0x" + raw.hex()


def typed(domain: dict[str, object], cls: type[messages.Typed], message: dict[str, str]) -> dict[str, object]:
    plain = {name: int(message[name]) if kind.startswith("uint") else message[name] for kind, name in cls.MEMBERS}
    return {
        "types": {
            "EIP712Domain": DOMAIN_FIELDS,
            cls.__name__: [{"name": name, "type": kind} for kind, name in cls.MEMBERS],
        },
        "primaryType": cls.__name__,
        "domain": domain,
        "message": plain,
    }


def main() -> None:
    rng = random.Random(20)
    domains = {
        name: {"name": name, "version": "1", "chainId": 31337, "verifyingContract": address}
        for name, address in CONTRACTS.items()
    }
    out: dict[str, object] = {
        "signer": Account.from_key(KEY).address,
        "domains": {
            name: {**domain, "separator": "0x" + hash_domain(domain).hex()} for name, domain in domains.items()
        },
    }
    vectors: dict[str, object] = {}
    for cls in classes():
        encode_type = f"{cls.__name__}({','.join(f'{kind} {name}' for kind, name in cls.MEMBERS)})"
        cases = []
        for which in ("zero", "max", "a", "b"):
            message = {name: value(kind, which, rng) for kind, name in cls.MEMBERS}
            signable = encode_typed_data(full_message=typed(domains[cls.CONTRACT], cls, message))
            signed = Account.sign_message(signable, KEY)
            digest = keccak(b"\x19" + signable.version + signable.header + signable.body)
            cases.append(
                {
                    "message": message,
                    "structHash": "0x" + signable.body.hex(),
                    "digest": "0x" + digest.hex(),
                    "signature": "0x" + signed.signature.hex().removeprefix("0x"),
                }
            )
        vectors[cls.__name__] = {
            "domain": cls.CONTRACT,
            "encodeType": encode_type,
            "typeHash": "0x" + keccak(text=encode_type).hex(),
            "fields": [field.name for field in fields(cls)],  # type: ignore[arg-type]
            "members": [{"type": kind, "name": name} for kind, name in cls.MEMBERS],
            "cases": cases,
        }
    out["vectors"] = vectors
    Path(__file__).with_name("eip712.json").write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
