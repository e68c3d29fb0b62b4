"""Hostile workers in the mesh: caught, convicted by recompute and quorum, and the run goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.mesh import JOB_ID, Mesh, job_toml
from verifier.check.confirm import Event
from verifier.evidence import read_bundle, replay_bundle


def quarantined(mesh: Mesh) -> dict[int, int]:
    """slot -> step of its quarantine, as every seat has it."""
    views = [{slot: q.step for (slot, _), q in seat.docket.quarantined.items()} for seat in mesh.seats]
    assert all(view == views[0] for view in views), f"the seats disagree: {views}"
    return views[0]


@pytest.mark.parametrize(
    ("attacks"),
    [
        {4: ("sign_flip", 0), 8: ("noise:direction=backward", 12), 0: ("identity", 20)},
        {1: ("sign_flip", 15), 9: ("noise:direction=backward", 0), 7: ("identity", 8)},
    ],
)
def test_the_three_attacks_are_caught_within_three_steps(tmp_path: Path, attacks: dict[int, tuple[str, int]]) -> None:
    mesh = Mesh(job_toml(steps=28, dim=64, seq_len=64), tmp_path, attacks)
    asyncio.run(mesh.train())
    found = quarantined(mesh)
    assert set(found) == set(attacks)
    for slot, (_, onset) in attacks.items():
        assert onset <= found[slot] <= onset + 3
    assert len(mesh.events[0].losses) == 28, "the run went on to its end"
    assert sorted(slot for slot, _ in mesh.court.reports) == sorted(attacks), "one report a worker"
    assert all(count >= mesh.spec.seats.quorum for _, count in mesh.court.reports)
    amounts = next(s["amounts"] for s in reversed(mesh.events[0].settlements) if "amounts" in s)
    for slot in attacks:
        assert "quarantined" in mesh.worker_errors[slot], "the worker is told why it is turned away"
        account = mesh.roster.slots(JOB_ID)[slot].account
        assert int(amounts.get(account, 0)) < max(int(v) for v in amounts.values())  # type: ignore[attr-defined]


def test_an_audit_convicts_what_the_screen_cannot_see_and_the_bundle_replays(tmp_path: Path) -> None:
    """Noise of a thousandth of the activation crosses no fence; an audit of every frame finds it."""
    mesh = Mesh(
        job_toml(steps=4, audit_ppm=1_000_000, warmup_audit_ppm=1_000_000), tmp_path, {5: ("noise:strength=0.004", 1)}
    )
    asyncio.run(mesh.train())
    assert set(quarantined(mesh)) == {5}
    bundles = [p.parent for p in tmp_path.glob("seat-*/evidence/*/manifest.json")]
    assert bundles, "no evidence was written"
    told = [v for events in mesh.events for v in events.verdicts if v["kind"] == "confirmed"]
    for bundle in bundles:
        result = replay_bundle(bundle)
        assert result.verdict.kind.value.upper() == "VIOLATION" and result.as_stated
        assert all(check.ok for check in result.checks), result.lines()
        history = [one.event for one in read_bundle(bundle).history]
        names = {check.name for check in result.checks}
        assert history[0] is Event.AUDIT
        if history[-1] is Event.REPLAY_REFUTED:  # the cheat was asked to replay somebody else's frame
            assert not {"screening", "replay 0"} & names
        else:
            assert Event.RECOMPUTE_DISAGREES in history
            assert "screening" in names, "with the baseline before the frame"
            assert (Event.REPLAY_UPHELD in history) == ("replay 0" in names)
        assert [one.to_json() for one in read_bundle(bundle).history] in [v["history"] for v in told]
    assert {v["verdict"] for v in told} == {"ACCEPT", "VIOLATION"}, "what an audit cleared is told as well"


def test_without_confirmation_nothing_is_caught(tmp_path: Path) -> None:
    """Policy none relays the same attack untouched: what catches above is the verification."""
    mesh = Mesh(job_toml(steps=6, policy="none"), tmp_path, {4: ("sign_flip", 0)})
    asyncio.run(mesh.train())
    assert quarantined(mesh) == {}
    assert mesh.court.reports == []


def test_honest_workers_stay(tmp_path: Path) -> None:
    mesh = Mesh(job_toml(steps=30, dim=64, seq_len=64), tmp_path)
    asyncio.run(mesh.train())
    assert quarantined(mesh) == {}
    assert mesh.worker_errors == {}
