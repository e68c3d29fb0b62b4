"""A hostile seat in the mesh: what it says is refused where it is false, and the honest ones train to the end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from sentinel_market.wire import relay_pb2 as pb
from tests.pipeline.test_catch import quarantined
from tests.pipeline.test_faults import equals_plain, small
from tests.support.mesh import Mesh

STEPS = 3


def lying(mesh: Mesh, at: int, seat: int) -> list[pb.SlotUnits]:
    """In step ``at``, ``seat`` signs a receipt and then writes another number into it. Returns it, once it is said."""
    start = mesh.start_seats
    said: list[pb.SlotUnits] = []

    async def starting() -> None:
        await start()
        payroll = mesh.seats[seat].payroll
        close = payroll.close_step

        def false(step: int, units: dict[int, int], barred: set[int]) -> list[pb.SlotUnits]:
            signed = close(step, units, barred)
            if step == at:
                signed[0].units += 1000
                said.append(signed[0])
            return signed

        payroll.close_step = false  # type: ignore[method-assign,assignment]

    mesh.start_seats = starting  # type: ignore[method-assign]
    return said


@pytest.mark.parametrize("at", [1, STEPS - 1], ids=["within", "at the end"])
def test_a_false_receipt_stops_no_honest_seat_and_costs_its_seat_the_vote(tmp_path: Path, at: int) -> None:
    mesh = small(tmp_path, steps=STEPS, replicas=2, policy="none")
    said = lying(mesh, at, seat=2)
    asyncio.run(mesh.train())
    assert quarantined(mesh) == {}
    equals_plain(mesh)
    (false,), liar = said, mesh.seats[2].context.account
    for events in mesh.events[:2]:
        (told,) = [v for v in events.verdicts if v["kind"] == "receipt refused"]
        assert (told["step"], told["verifier"], told["false"]) == (at, liar, True)
        assert (told["slot"], told["nonce"], told["units"]) == (false.slot, 1, false.units)
    for index in (0, 1):
        lines = [json.loads(line) for line in (tmp_path / f"seat-{index}" / "records.jsonl").read_text().splitlines()]
        signers = [
            {s.verifier for s in pb.SignedRecord.FromString(bytes.fromhex(line["record"])).signatures} for line in lines
        ]
        assert [liar in who for who in signers] == [step != at for step in range(STEPS)]
        assert all(len(who) >= mesh.spec.seats.quorum for who in signers)
        receipts = mesh.seats[index].payroll.receipts
        for (slot, nonce), units in mesh.seats[2].payroll.units.items():
            if slot != false.slot:
                assert receipts[liar, slot, nonce][-1].units == units, "its other receipts are the pay of others"
    assert mesh.escrow.finished
