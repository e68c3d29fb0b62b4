"""Quote, Merkle trees, settlement amounts."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools

import pytest
from Crypto.Hash import keccak
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel_market.domain import merkle
from sentinel_market.domain.job_spec import JobSpec, parse_job, template
from sentinel_market.domain.quote import (
    QuoteParams,
    check_budget,
    expected_recomputes,
    fee_on,
    payable,
    quote,
    split_exactly,
    stage_flops,
    stage_prices,
    unit_pay,
)
from sentinel_market.domain.settlement import Receipt, SeatWork, newest_units, settle
from sentinel_market.errors import JobSpecError
from sentinel_market.models import config as models_config

PARAMS = QuoteParams(fee_bps=200, slash_bad_compute_bps=5000, evidence_tail=4, objection_window=2, gas_settlement=7)
SPEC = parse_job(template())


def keccak256(data: bytes) -> bytes:
    return keccak.new(digest_bits=256, data=data).digest()


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def address(number: int) -> str:
    return f"0x{number:040x}"


def with_market(spec: JobSpec, **changes: int) -> JobSpec:
    return dataclasses.replace(spec, market=dataclasses.replace(spec.market, **changes))


# --- quote


def test_stage_flops_are_those_of_the_models() -> None:
    for stages, layers in ((1, 1), (4, 4), (3, 8), (2, 5)):
        section = dataclasses.replace(SPEC.model, num_layers=layers)
        config = models_config.ModelConfig(
            dim=64, num_layers=layers, num_heads=4, num_kv_heads=2, ffn_dim=192, seq_len=128
        )
        theirs = [128 * models_config.flops_per_token(config, stage, stages) for stage in range(stages)]
        assert [3 * one for one in stage_flops(section, stages)] == theirs


@given(st.integers(0, 10**30), st.lists(st.integers(1, 10**15), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_parts_add_up_and_stay_within_one_of_their_share(total: int, weights: list[int]) -> None:
    parts = split_exactly(total, weights)
    assert sum(parts) == total
    assert all(
        0 <= part * sum(weights) - total * weight + sum(weights) <= 2 * sum(weights)
        for part, weight in zip(parts, weights, strict=True)
    )


@given(st.integers(1, 10**20))
@settings(max_examples=50, deadline=None)
def test_two_passes_over_all_stages_cost_the_price(price: int) -> None:
    spec = with_market(SPEC, price_per_microbatch=price)
    assert sum(unit_pay(one, 2) for one in stage_prices(spec)) == price


def test_the_terms_of_a_quote() -> None:
    result = quote(SPEC, PARAMS)
    assert [term.name for term in result.lines] == ["plan", "audits", "reserve", "recomputes", "gas repaid", "fee"]
    plan = 600 * 6 * (10**17 + 10**16)
    # 10 warm-up steps at (30 + 10 + 10 + 10) % forward and (10 + 10 + 10 + 60) % backward, 590 at a tenth of that
    audits = plan * (10 * 1_500_000 + 590 * 150_000) // (2 * 4 * 600 * 10**6)
    subtotal = plan + audits + plan // 10 + result.expected_recomputes * 10**16 + 12 * 7
    assert [term.amount for term in result.lines[:3]] == [plan, audits, plan // 10]
    assert result.minimum == subtotal + fee_on(subtotal, 200)
    assert sum(term.amount for term in result.lines) == result.minimum
    assert [term.name for term in result.terms()[-3:]] == ["minimum budget", "budget", "surplus"]
    assert all(check.holds for check in result.checks)
    assert result.roots_needed == -(-subtotal * 3600 // (2 * SPEC.market.budget * 2))


def test_expected_recomputes() -> None:
    shares = 10 * 1_500_000 + 590 * 150_000 + 600 * 8 * 5_000
    assert expected_recomputes(SPEC) == -(-shares * 6 * 250_000 // 10**12)
    pair = dataclasses.replace(SPEC, parallelism=dataclasses.replace(SPEC.parallelism, replicas=2))
    assert expected_recomputes(pair) == -(-shares * 6 // 10**6)
    assert expected_recomputes(SPEC.with_policy("none")) == 0


def test_a_budget_below_its_plan_names_each_term() -> None:
    result = quote(SPEC, PARAMS)
    check_budget(with_market(SPEC, budget=result.minimum), PARAMS)
    with pytest.raises(JobSpecError) as caught:
        check_budget(with_market(SPEC, budget=result.minimum - 1), PARAMS)
    (problem,) = caught.value.problems
    for term in result.lines:
        assert term.name in problem
    assert "raise market.budget by 0.000000000000000001" in problem


def test_stakes_that_do_not_deter_are_refused() -> None:
    params = dataclasses.replace(PARAMS, min_seat_stake=10**24, evidence_tail=3 * 86_400)
    with pytest.raises(JobSpecError) as caught:
        check_budget(with_market(SPEC, slot_stake=10**18), params)
    found = "\n".join(caught.value.problems)
    assert "raise market.seat_stake" in found
    assert "slash for BAD_COMPUTE" in found
    assert "pay within the evidence tail" in found


def test_the_slash_rule_is_checked_at_the_least_audited_stage() -> None:
    needed = next(check.needed for check in quote(SPEC, PARAMS).checks if check.name.startswith("slash"))
    prices = stage_prices(SPEC)
    assert needed == max(
        -(-4 * price * 10**6 // (2 * SPEC.least_audit_ppm(stage, 599))) for stage, price in enumerate(prices)
    )


@given(st.integers(0, 10**40), st.integers(0, 10_000))
@settings(max_examples=100, deadline=None)
def test_payable_is_the_largest_amount_whose_fee_fits(budget: int, fee_bps: int) -> None:
    most = payable(budget, fee_bps)
    assert most + fee_on(most, fee_bps) <= budget < most + 1 + fee_on(most + 1, fee_bps)


# --- Merkle trees


def test_a_known_root_of_the_standard_tree() -> None:
    """Worked out by hand for three leaves: nodes [r, a, l0, l1, l2] with the leaves in ascending order from the end."""
    amounts = {address(1): 5, address(2): 7, address(3): 9}
    hashed = sorted(merkle.pay_leaf(1, account, amount, keccak256) for account, amount in amounts.items())
    inner = keccak256(b"".join(sorted((hashed[1], hashed[0]))))
    assert merkle.pay_tree(1, amounts, keccak256).root == keccak256(b"".join(sorted((inner, hashed[2]))))


def test_the_leaf_is_abi_encoding_hashed_twice() -> None:
    encoded = (7).to_bytes(32, "big") + bytes(12) + bytes.fromhex("11" * 20) + (10**18).to_bytes(32, "big")
    assert merkle.pay_leaf(7, "0x" + "11" * 20, 10**18, keccak256) == keccak256(keccak256(encoded))


@given(st.dictionaries(st.integers(0, 2**160 - 1).map(address), st.integers(0, 2**128), max_size=20), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_every_proof_verifies_and_no_other_amount_does(amounts: dict[str, int], job_id: int) -> None:
    tree = merkle.pay_tree(job_id, amounts, sha)
    assert tree.total == sum(amounts.values())
    for leaf in tree.leaves:
        assert amounts[leaf.account] == leaf.cumulative
        node = merkle.pay_leaf(job_id, leaf.account, leaf.cumulative, sha)
        assert merkle.verify(tree.root, node, leaf.proof, sha)
        for other in ((job_id + 1, leaf.account, leaf.cumulative), (job_id, leaf.account, leaf.cumulative + 1)):
            assert not merkle.verify(tree.root, merkle.pay_leaf(*other, sha), leaf.proof, sha)
    shuffled = dict(reversed(amounts.items()))
    assert merkle.pay_tree(job_id, shuffled, sha) == tree


def test_small_trees() -> None:
    assert merkle.pay_tree(1, {}, sha).root == merkle.EMPTY_ROOT
    single = merkle.pay_tree(1, {address(1): 3}, sha)
    assert single.root == merkle.pay_leaf(1, address(1), 3, sha) and single.leaves[0].proof == ()
    assert single.leaf(address(1).upper().replace("0X", "0x")) is single.leaves[0]
    assert single.leaf(address(2)) is None
    with pytest.raises(ValueError, match="twice"):
        merkle.pay_tree(1, {"0x" + "ab" * 20: 1, "0x" + "AB" * 20: 2}, sha)
    for bad in ("0x12", "11" * 21, "0x" + "zz" * 20):
        with pytest.raises(ValueError, match="not an address"):
            merkle.pay_tree(1, {bad: 1}, sha)


@pytest.mark.parametrize("count", range(1, 18))
def test_commitment_roots_bind_position_and_content(count: int) -> None:
    leaves = [sha(bytes([index])) for index in range(count)]
    root = merkle.root(leaves, sha)
    for index, leaf in enumerate(leaves):
        path = merkle.proof(leaves, index, sha)
        assert merkle.verify(root, merkle.commitment_node(leaf, sha), path, sha)
        assert not merkle.verify(root, leaf, path, sha)
    assert merkle.root(leaves[:-1], sha) != root
    assert merkle.root([*leaves, leaves[-1]], sha) != root


def test_bad_commitments_are_refused() -> None:
    assert merkle.root([], sha) == merkle.EMPTY_ROOT
    with pytest.raises(ValueError, match="32 bytes"):
        merkle.root([bytes(31)], sha)
    with pytest.raises(IndexError):
        merkle.proof([bytes(32)], 1, sha)


# --- settlement


def receipt(account: int, slot: int, verifier: int, step: int, units: int, nonce: int = 0) -> Receipt:
    return Receipt(account=address(account), slot=slot, nonce=nonce, verifier=address(verifier), step=step, units=units)


def test_the_newest_receipt_of_each_verifier_counts_once() -> None:
    receipts = [receipt(1, 4, 90, 1, 10), receipt(1, 4, 90, 3, 30), receipt(1, 4, 90, 2, 20), receipt(1, 4, 91, 2, 7)]
    for order in itertools.permutations(receipts):
        assert newest_units([*order, order[0]], 3) == {(address(1), 1): 37}


def test_two_receipts_of_one_step_count_as_the_lesser() -> None:
    for order in ((5, 9), (9, 5)):
        assert newest_units([receipt(1, 0, 90, 1, units) for units in order], 3) == {(address(1), 0): 5}


def test_an_assignment_has_one_holder() -> None:
    with pytest.raises(ValueError, match="two accounts"):
        newest_units([receipt(1, 0, 90, 1, 1), receipt(2, 0, 91, 1, 1)], 3)
    assert newest_units([receipt(1, 0, 90, 1, 1), receipt(2, 0, 91, 1, 1, nonce=1)], 3) == {
        (address(1), 0): 1,
        (address(2), 0): 1,
    }


def test_a_terminated_slot_keeps_the_steps_before_the_offence() -> None:
    history = [receipt(1, 0, 90, step, 10 * (step + 1)) for step in range(6)]
    assert newest_units(history, 3, {(0, 0): 4}) == {(address(1), 0): 40}
    assert newest_units(history, 3, {(0, 0): 0}) == {}
    successor = receipt(2, 0, 90, 5, 8, nonce=1)
    assert newest_units([*history, successor], 3, {(0, 0): 4})[address(2), 0] == 8


def test_pay_by_stage_price_and_seat_work() -> None:
    prices = stage_prices(SPEC)
    result = settle(
        SPEC,
        PARAMS,
        [receipt(1, 0, 90, 5, 3), receipt(1, 9, 90, 5, 4), receipt(2, 3, 90, 5, 2)],
        [SeatWork(account=address(90), driven=2, recomputes=3, settlements=1)],
    )
    assert result.amounts == {
        address(1): prices[0] * 3 // 2 + prices[3] * 2,
        address(2): prices[1],
        address(90): 2 * 10**16 + 3 * 10**16 + 7,
    }
    assert result.total == sum(result.amounts.values()) and not result.capped
    assert result.tree(1, keccak256).total == result.total


def test_a_receipt_of_a_stage_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="stage 4"):
        settle(SPEC, PARAMS, [receipt(1, 12, 90, 0, 1)], [])
    with pytest.raises(ValueError, match="negative"):
        settle(SPEC, PARAMS, [receipt(1, 1, 90, 0, -1)], [])


receipts_strategy = st.lists(
    st.builds(
        lambda slot, nonce, *rest: receipt(1 + (slot + 5 * nonce) % 6, slot, *rest, nonce=nonce),
        st.integers(0, 11),
        st.integers(0, 1),
        st.integers(90, 92),
        st.integers(0, 9),
        st.integers(0, 10**7),
    ),
    max_size=30,
)


@given(receipts_strategy, receipts_strategy, st.integers(1, 10**21), st.integers(0, 10**21), st.integers(0, 1000))
@settings(max_examples=300, deadline=None)
def test_never_more_than_budget_and_allowance_and_never_less_than_before(
    first: list[Receipt], later: list[Receipt], budget: int, allowance: int, driven: int
) -> None:
    spec = with_market(SPEC, budget=budget)
    seats = [SeatWork(account=address(90), driven=driven)]
    one = settle(spec, PARAMS, first, seats, allowance=allowance)
    assert one.total == sum(one.amounts.values()) <= min(allowance, payable(budget, 200))
    assert one == settle(spec, PARAMS, reversed(first), seats, allowance=allowance)
    grown = [dataclasses.replace(item, step=item.step + 10, units=item.units + 5) for item in first]
    two = settle(
        spec, PARAMS, [*first, *grown, *later], seats, previous=one.amounts, previous_total=one.total, allowance=None
    )
    assert two.total <= payable(budget, 200) and two.total >= one.total
    assert two.total + fee_on(two.total, 200) <= budget
    raised = {account for account, amount in two.earned.items() if amount >= one.earned.get(account, 0)}
    assert all(two.amounts.get(account, 0) >= one.amounts.get(account, 0) for account in raised)


def test_what_the_cap_held_back_comes_with_the_next_root() -> None:
    receipts, seats = [receipt(1, 0, 90, 5, 400), receipt(2, 3, 90, 5, 100)], [SeatWork(account=address(90), driven=9)]
    full = settle(SPEC, PARAMS, receipts, seats)
    cut = settle(SPEC, PARAMS, receipts, seats, allowance=full.total // 3)
    assert cut.capped and full.total // 3 - 3 <= cut.total <= full.total // 3
    rest = settle(SPEC, PARAMS, receipts, seats, previous=cut.amounts, previous_total=cut.total)
    assert rest.amounts == full.amounts and not rest.capped


def test_a_conviction_voids_pay_but_not_what_was_drawn() -> None:
    history = [receipt(1, 0, 90, step, 100 * (step + 1)) for step in range(5)]
    before = settle(SPEC, PARAMS, history, [])
    price = stage_prices(SPEC)[0]
    after = settle(
        SPEC, PARAMS, history, [], offences={(0, 0): 2}, previous=before.amounts, previous_total=before.total
    )
    assert after.amounts == {address(1): price * 100}
    assert after.total == before.total  # a total never decreases on chain
    drawn = settle(
        SPEC,
        PARAMS,
        history,
        [],
        offences={(0, 0): 2},
        previous=before.amounts,
        previous_total=before.total,
        claimed=before.amounts,
    )
    assert drawn.amounts == before.amounts
