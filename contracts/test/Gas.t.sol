// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Accusation, Vote} from "../interfaces/IViolationCourt.sol";
import {MarketFixture} from "./MarketFixture.sol";

/// @notice What a transaction costs: 21000, its calldata, and the call. The limits hold what is reached; the
/// design's targets stand in docs/contracts.md. Storage that the same test has touched is warm, so the later figures of a
/// test are low by some thousands. The figures are written by `hardhat test solidity --snapshot contracts/test/Gas.t.sol`.
contract GasTest is MarketFixture {
    uint256 internal jobId;
    Accusation internal a;

    function setUp() public {
        deploy();
        jobId = running();
        join(3);
        a = accuse(jobId, 0, 0, 1);
        vm.warp(T0 + 50);
    }

    function transact(address to, bytes memory data, uint256 limit, string memory name) internal {
        uint256 used = 21_000;
        for (uint256 i = 0; i < data.length; ++i) used += data[i] == 0 ? 4 : 16;
        uint256 before = gasleft();
        (bool ok, bytes memory result) = to.call(data);
        used += before - gasleft();
        if (!ok) {
            // solhint-disable-next-line no-inline-assembly
            assembly ("memory-safe") {
                revert(add(result, 32), mload(result))
            }
        }
        vm.snapshotValue("transactions", name, used);
        if (used > limit) revert NotEqual(name, used, limit);
    }

    function test_ClaimSlot() public {
        vm.startPrank(hot(3));
        transact(address(market), abi.encodeCall(market.claimSlot, (jobId, 6)), 200_000, "claim slot");
        vm.stopPrank();
    }

    function test_FirstReport() public {
        bytes memory data = abi.encodeCall(court.report, (a, vote(a, 0)));
        transact(address(court), data, 300_000, "first report of a case");
    }

    function test_LaterReport() public {
        court.report(a, vote(a, 0));
        bytes memory data = abi.encodeCall(court.report, (a, vote(a, 1)));
        transact(address(court), data, 200_000, "later report, with the quorum");
    }

    function test_ReportOfAQuorum() public {
        Vote[] memory votes = new Vote[](2);
        (votes[0], votes[1]) = (vote(a, 0), vote(a, 1));
        transact(address(court), abi.encodeCall(court.reportBatch, (a, votes)), 450_000, "report of two seats at once");
    }

    function test_ExecuteAndSettleBond() public {
        court.report(a, vote(a, 0));
        bytes32 caseId = court.report(a, vote(a, 1));
        vm.warp(T0 + 54);
        transact(address(court), abi.encodeCall(court.execute, (caseId)), 220_000, "execute verdict");
        transact(address(court), abi.encodeCall(court.settleBond, (caseId, 0)), 120_000, "settle bond");
    }

    function test_SettlementRoot() public {
        uint8[] memory seats = new uint8[](3);
        (seats[1], seats[2]) = (1, 2);
        bytes32 root = twoLeaves(jobId, cold(1), 6 ether, cold(2), 4 ether);
        bytes[] memory signatures = seatSigns(escrow.settlementDigest(jobId, 1, root, 10 ether, root), seats);
        bytes memory data = abi.encodeCall(
            escrow.submitSettlement,
            (jobId, 1, root, 10 ether, root, seats, signatures)
        );
        transact(address(escrow), data, 180_000, "settlement root, 3 signatures");
    }

    function test_ClaimPay() public {
        settlement(jobId, 1, twoLeaves(jobId, cold(1), 6 ether, cold(2), 4 ether), 10 ether);
        vm.warp(T0 + 52);
        bytes32[] memory proof = proofOf(jobId, cold(2), 4 ether);
        bytes memory data = abi.encodeCall(escrow.claim, (jobId, 1, cold(1), 6 ether, proof));
        transact(address(escrow), data, 150_000, "claim pay, first");
    }

    function test_ClaimPayAgain() public {
        settlement(jobId, 1, twoLeaves(jobId, cold(1), 6 ether, cold(2), 4 ether), 10 ether);
        vm.warp(T0 + 52);
        escrow.claim(jobId, 1, cold(1), 6 ether, proofOf(jobId, cold(2), 4 ether));
        settlement(jobId, 2, twoLeaves(jobId, cold(1), 8 ether, cold(2), 5 ether), 13 ether);
        vm.warp(T0 + 54);
        bytes32[] memory proof = proofOf(jobId, cold(2), 5 ether);
        bytes memory data = abi.encodeCall(escrow.claim, (jobId, 2, cold(1), 8 ether, proof));
        transact(address(escrow), data, 110_000, "claim pay, again");
    }
}
