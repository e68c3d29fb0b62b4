"""What every seat keeps of every step: the signed record, the driver roots, the revealed secrets, the receipts.

Nobody judges roots and secrets yet (that is number 2); they are signed and stored so that they can be. One line of JSON
a step; bytes are hex.
"""

from __future__ import annotations

import json
from pathlib import Path

from sentinel_market.wire import relay_pb2 as pb
from verifier.step import StepState


class Archive:
    """An append-only file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, line: dict[str, object]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as out:
            print(json.dumps(line, separators=(",", ":")), file=out)


def line(signed: pb.SignedRecord, dones: dict[str, pb.Done], state: StepState) -> dict[str, object]:
    """Everything of one step that somebody signed or revealed."""
    return {
        "step": signed.step,
        "record": signed.SerializeToString(deterministic=True).hex(),
        "roots": [
            {
                "verifier": account,
                "root": done.root.hex(),
                "leaves": done.leaves,
                "next_secret_hash": done.next_secret_hash.hex(),
                "signature": done.root_signature.hex(),
            }
            for account, done in dones.items()
        ],
        "secrets": {account: s.secret.hex() for account, s in sorted(state.record_signatures.items())},
        "receipts": [
            {
                "verifier": account,
                "slot": entry.slot,
                "nonce": entry.nonce,
                "units": entry.units,
                "signature": entry.signature.hex(),
            }
            for account, s in sorted(state.record_signatures.items())
            for entry in s.units
        ],
        "aggregates": [
            {
                "stage": stage,
                "signature": aggregate.signature.hex(),
                "sums": [
                    {
                        "slot": s.slot,
                        "count": s.count,
                        "microbatches": list(s.microbatches),
                        "signature": s.signature.hex(),
                    }
                    for s in aggregate.sums
                ],
            }
            for stage, aggregate in sorted(state.aggregates.items())
        ],
    }
