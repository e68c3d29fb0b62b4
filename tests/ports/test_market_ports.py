"""Roster, Court and Escrow: one suite for the fakes of the mesh and for the chain."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol

import pytest

from sentinel_market.chain.eip712 import Domain, digest, keccak256
from sentinel_market.chain.roster import ChainRoster
from sentinel_market.chain.signing import HotKey
from sentinel_market.domain.merkle import pay_tree
from sentinel_market.domain.messages import Settlement, ViolationReport
from sentinel_market.errors import SentinelError
from sentinel_market.ports import Court, Escrow, Roster, SignedReport, SlotState
from tests.chain.test_money_path import terms
from tests.support.localnet import TOKEN, LocalNet
from tests.support.mesh import JOB_ID, FixedRoster, MemoryCourt, MemoryEscrow
from tests.worker.rig import small_spec

BAD_COMPUTE = 2
RECORD = b"\x07" * 32
STATES = {"none", "collecting", "appealable", "upheld", "executed", "expired", "overturned", "inconclusive"}


class World(Protocol):
    """A job of 2 stages x 2 replicas with all slots claimed and 3 seats taken."""

    roster: Roster
    court: Court
    escrow: Escrow
    job_id: int
    seat_keys: list[HotKey]

    def wait(self, seconds: int) -> None: ...


class Memory:
    def __init__(self) -> None:
        self.roster = FixedRoster(small_spec())
        self.court, self.escrow, self.job_id = MemoryCourt(), MemoryEscrow(), JOB_ID
        self.seat_keys = list(self.roster.seat_keys.values())

    def wait(self, seconds: int) -> None:
        """Its windows are over at once."""


class Chain:
    _seed = itertools.count(700)

    def __init__(self, net: LocalNet) -> None:
        self._net = net
        seed = self._seed
        submitter = net.actor(next(seed), tokens=200 * TOKEN)
        workers = [net.actor(next(seed), stake=60 * TOKEN) for _ in range(4)]
        verifiers = [net.actor(next(seed), stake=100 * TOKEN) for _ in range(3)]
        _, job_id = submitter.cold.market.post_job(terms(net, submitter.cold.now()))
        assert job_id is not None
        self.job_id = job_id
        for verifier in verifiers:
            ChainRoster(verifier.hot).take_seat(job_id)
        for worker in workers:
            ChainRoster(worker.hot).claim_slot(job_id)
        self.roster = self.court = self.escrow = ChainRoster(verifiers[0].hot)
        self.seat_keys = [v.hot_key for v in verifiers]

    def wait(self, seconds: int) -> None:
        self._net.chain.warp(seconds)


@pytest.fixture(scope="module")
def chain_world(request: pytest.FixtureRequest) -> Callable[[], World]:
    made: list[World] = []

    def make() -> World:
        if not made:
            made.append(Chain(request.getfixturevalue("net")))
        return made[0]

    return make


@pytest.fixture(params=["memory", pytest.param("chain", marks=pytest.mark.chain)])
def world(request: pytest.FixtureRequest, chain_world: Callable[[], World]) -> World:
    return Memory() if request.param == "memory" else chain_world()


def domain(world: World, name: str) -> Domain:
    deployment = world.roster.deployment()
    return Domain(name, "1", deployment.chain_id, deployment.contracts[name])


# ---- roster


def test_a_deployment_names_the_chain_and_every_contract_that_signs(world: World) -> None:
    deployment = world.roster.deployment()
    assert deployment.chain_id > 0
    addresses = [deployment.contracts[name] for name in ("JobMarket", "ViolationCourt", "JobEscrow")]
    assert len(set(addresses)) == 3
    assert all(len(a) == 42 and int(a, 16) for a in addresses)


def test_a_job_is_what_was_posted(world: World) -> None:
    job = world.roster.job(world.job_id)
    assert (job.job_id, job.stages, job.replicas, job.num_seats, job.quorum) == (world.job_id, 2, 2, 3, 2)
    assert job.state == "active"
    assert len(job.spec_digest) == 32
    assert job.budget > 0


def test_seats_come_in_seat_order_with_the_keys_that_sign(world: World) -> None:
    seats = world.roster.seats(world.job_id)
    assert [seat.index for seat in seats] == [0, 1, 2]
    assert [seat.hot_key for seat in seats] == [key.address for key in world.seat_keys]
    assert len({seat.account for seat in seats}) == 3
    assert not {seat.account for seat in seats} & {seat.hot_key for seat in seats}


def test_slots_come_in_slot_order_one_holder_each(world: World) -> None:
    slots = world.roster.slots(world.job_id)
    assert [slot.slot for slot in slots] == [0, 1, 2, 3]
    assert {slot.state for slot in slots} == {SlotState.CLAIMED}
    assert len({slot.hot_key for slot in slots}) == len({slot.account for slot in slots}) == 4
    assert all(int(slot.hot_key, 16) for slot in slots)


def test_reading_twice_reads_the_same(world: World) -> None:
    assert world.roster.slots(world.job_id) == world.roster.slots(world.job_id)
    assert world.roster.seats(world.job_id) == world.roster.seats(world.job_id)


# ---- escrow


def settle(world: World, epoch: int, amounts: dict[str, int]) -> str:
    tree, total = pay_tree(world.job_id, amounts, keccak256), sum(amounts.values())
    value = digest(domain(world, "JobEscrow"), Settlement(world.job_id, epoch, tree.root, total, RECORD))
    signed = [(seat, world.seat_keys[seat].sign(value)) for seat in (0, 2)]
    return world.escrow.submit_root(world.job_id, epoch, tree.root, total, RECORD, signed)


def test_roots_follow_each_other_and_their_total_is_promised(world: World) -> None:
    before = world.escrow.money(world.job_id)
    assert (before.last_epoch, before.total) == (0, 0)
    world.wait(60)
    assert world.escrow.money(world.job_id).allowance >= 4 * TOKEN
    account = world.roster.slots(world.job_id)[0].account
    for epoch, amount in ((1, TOKEN), (2, 2 * TOKEN)):
        assert settle(world, epoch, {account: amount}).startswith("0x")
        money = world.escrow.money(world.job_id)
        assert (money.last_epoch, money.total) == (epoch, amount)
        world.wait(20)
    assert world.escrow.claimed(world.job_id, account) == 0
    assert world.escrow.claimed(world.job_id, "0x" + "99" * 20) == 0


# ---- court


def report(world: World, slot: int, commitment: bytes) -> bytes:
    nonce = world.roster.slots(world.job_id)[slot].nonce
    case_id = world.court.case_id(world.job_id, slot, nonce, BAD_COMPUTE, commitment)
    reports = []
    for seat in (0, 1):
        deadline = world.court.now() + 60
        account = world.roster.seats(world.job_id)[seat].account
        message = ViolationReport(case_id, account, BAD_COMPUTE, commitment, b"\x32" * 32, deadline)
        signature = world.seat_keys[seat].sign(digest(domain(world, "ViolationCourt"), message))
        reports.append(SignedReport(seat=seat, evidence_hash=b"\x32" * 32, deadline=deadline, signature=signature))
    transaction = world.court.report(world.job_id, slot, nonce, BAD_COMPUTE, commitment, reports)
    assert transaction.startswith("0x")
    return case_id


def test_a_case_has_an_id_of_its_own(world: World) -> None:
    base = (world.job_id, 3, 1, BAD_COMPUTE, b"\x31" * 32)
    others = [
        (world.job_id + 1, *base[1:]),
        (world.job_id, 2, *base[2:]),
        (*base[:2], 2, *base[3:]),
        (*base[:3], 1, base[4]),
        (*base[:4], b"\x30" * 32),
    ]
    ids = [world.court.case_id(*base), *(world.court.case_id(*other) for other in others)]
    assert len(set(ids)) == 6
    assert all(len(case_id) == 32 for case_id in ids)
    assert world.court.case_id(*base) == ids[0]


def test_time_does_not_run_backwards(world: World) -> None:
    before = world.court.now()
    world.wait(2)
    assert world.court.now() >= before


def test_a_reported_case_ends_executed_after_its_window_and_pays_its_reporters(world: World) -> None:
    case_id = report(world, 3, b"\x31" * 32)
    case = world.court.case(case_id)
    assert (case.case_id, case.slot) == (case_id, 3)
    assert case.state in STATES - {"none"}
    for _ in range(10):
        if world.court.case(case_id).state == "executed":
            break
        world.wait(5)
        try:
            assert world.court.execute(case_id).startswith("0x")
        except SentinelError:
            continue
    assert world.court.case(case_id).state == "executed"
    for seat in (0, 1):
        assert world.court.settle_bond(case_id, seat).startswith("0x")
