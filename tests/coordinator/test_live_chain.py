"""The coordinator over a real chain: its ledger is the vault's and the escrow's, its proofs are taken by the escrow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from sentinel_market.chain.eip712 import digest, keccak256
from sentinel_market.chain.job_market import JobTerms
from sentinel_market.chain.logs import EventFeed
from sentinel_market.chain.roster import ChainRoster
from sentinel_market.coordinator import CoordinatorSettings, create_app
from sentinel_market.domain.job_spec import parse_job, template
from sentinel_market.domain.merkle import pay_tree
from sentinel_market.domain.messages import Settlement, ViolationReport
from sentinel_market.ports import SignedReport
from sentinel_market.wire import dto
from tests.support.localnet import TOKEN, local_net

pytestmark = pytest.mark.chain
SPEC = parse_job(
    template(
        model__num_layers=2,
        parallelism__stages=2,
        parallelism__replicas=1,
        market__budget="100",
        market__slot_stake="40",
        market__seat_stake="50",
        market__planned_seconds=100,
    )
)


def test_the_ledger_is_that_of_the_chain(tmp_path: Path) -> None:
    with local_net(tmp_path) as net:
        submitter = net.actor(300, tokens=200 * TOKEN)
        workers = [net.actor(301 + index, stake=60 * TOKEN) for index in range(2)]
        seats = [net.actor(311 + index, stake=100 * TOKEN) for index in range(3)]
        client = submitter.cold
        _, job_id = client.market.post_job(JobTerms.of(SPEC, now=client.now(), params_version=1), "")
        assert job_id is not None
        rosters = [ChainRoster(seat.hot) for seat in seats]
        for roster in rosters:
            roster.take_seat(job_id)
        held = [ChainRoster(worker.hot).claim_slot(job_id) for worker in workers]

        app = create_app(
            CoordinatorSettings(
                database=tmp_path / "coordinator.db",
                blob_dir=tmp_path / "blobs",
                chain_id=net.network.chain_id,
                contracts=net.network.contracts,
                events=EventFeed(net.client()),
                first_block=net.network.deployed_block,
            )
        )
        with TestClient(app) as http:
            indexer = app.state.service.indexer
            assert http.post("/specs", content=SPEC.canonical_json()).status_code == 201
            amounts = {worker.account: (3 + index) * TOKEN + 7 for index, worker in enumerate(workers)}
            amounts |= {seat.account: TOKEN for seat in seats}
            tree = pay_tree(job_id, amounts, keccak256)
            net.chain.warp(60)
            message = Settlement(job_id, 1, tree.root, tree.total, bytes([7]) * 32)
            value = digest(net.network.domain("JobEscrow"), message)
            client.escrow.submit_settlement(message, [(seat, seats[seat].hot_key.sign(value)) for seat in (0, 1)])
            leaves = [{"account": account, "cumulative": str(amount)} for account, amount in amounts.items()]
            body = json.dumps(
                {
                    "job_id": job_id,
                    "epoch": 1,
                    "root": tree.root.hex(),
                    "total": str(tree.total),
                    "step_record_hash": "07" * 32,
                    "leaves": leaves,
                }
            ).encode()
            path = f"/jobs/{job_id}/settlements"
            signed = dto.request_digest(
                chain_id=net.network.chain_id,
                market=net.network.contracts["JobMarket"],
                method="POST",
                path=path,
                body=body,
            )
            header = {dto.SIGNATURE_HEADER: "0x" + seats[2].hot_key.sign(signed).hex()}
            assert http.post(path, content=body, headers=header).status_code == 201

            # the proof that the coordinator answers is what the escrow takes
            net.chain.warp(3)
            leaf = http.get(f"{path}/1?account={workers[0].account}").json()["leaves"][0]
            proof = [bytes.fromhex(one) for one in leaf["proof"]]
            client.escrow.claim(job_id, 1, workers[0].account, int(leaf["cumulative"]), proof)
            assert client.escrow.claimed(job_id, workers[0].account) == 3 * TOKEN + 7

            # a conviction
            commitment, evidence = bytes([1]) * 32, bytes([2]) * 32
            court = rosters[0]
            case_id = court.case_id(job_id, held[1].slot, held[1].nonce, 2, commitment)
            reports = []
            for index in (0, 1):
                deadline = court.now() + 60
                report = ViolationReport(case_id, seats[index].account, 2, commitment, evidence, deadline)
                signature = seats[index].hot_key.sign(digest(net.network.domain("ViolationCourt"), report))
                reports.append(SignedReport(seat=index, evidence_hash=evidence, deadline=deadline, signature=signature))
            court.report(job_id, held[1].slot, held[1].nonce, 2, commitment, reports)
            net.chain.warp(5)
            court.execute(case_id)
            for index in (0, 1):
                court.settle_bond(case_id, index)
            seats[0].cold.vault.withdraw_credits()
            workers[1].cold.vault.request_unbond(5 * TOKEN)

            indexer.tick()
            ledger = http.get(f"/jobs/{job_id}/ledger").json()
            assert ledger["problems"] == []
            rows = {row["account"]: row for row in ledger["rows"]}
            for actor in (*workers, *seats):
                stake = client.vault.stake_of(actor.account)
                row = rows[actor.account]
                assert int(row["bonded"]) + int(row["unbonding"]) == stake.total
                assert int(row["credits"]) == stake.credits
                assert row["banned"] == stake.banned
                assert int(row["claimed"]) == client.escrow.claimed(job_id, actor.account)
                assert int(row["earned"]) == amounts[actor.account]
            assert rows[workers[1].account]["banned"] and int(rows[workers[1].account]["slashed"]) == 20 * TOKEN
            book, _ = app.state.service.ledger()
            bonded, unbonding, credits_ = client.call("StakeVault", "totals")
            assert sum(one.bonded for one in book.accounts.values()) == bonded
            assert sum(one.unbonding for one in book.accounts.values()) == unbonding
            assert sum(one.credits for one in book.accounts.values()) == credits_
            lines = http.get(f"/jobs/{job_id}/workers").json()
            assert sorted(line["state"] for line in lines) == ["claimed", "terminated"]
            (case,) = http.get(f"/jobs/{job_id}/cases").json()
            assert (case["state"], case["slashed"], case["reporters"]) == ("Executed", str(20 * TOKEN), 2)

            # the chain goes away: what is known is still served, and health says so
            net.node.stop()
            for _ in range(2):
                indexer.tick()
            assert http.get("/healthz").status_code == 503
            assert http.get(f"/jobs/{job_id}").json()["state"] == "Active"
            assert not indexer.failed
