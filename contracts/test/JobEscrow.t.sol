// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IJobEscrow} from "../interfaces/IJobEscrow.sol";
import {IJobMarket, JobState} from "../interfaces/IJobMarket.sol";
import {MarketFixture} from "./MarketFixture.sol";

contract JobEscrowTest is MarketFixture {
    uint256 internal jobId;

    function setUp() public {
        deploy();
        jobId = running();
        vm.warp(T0 + 50); // half the budget may have been promised by then
    }

    function rootOf(uint256 a, uint256 b) internal view returns (bytes32) {
        return twoLeaves(jobId, cold(1), a, cold(2), b);
    }

    function claim(uint64 epoch, uint256 id, uint256 own, uint256 otherId, uint256 other) internal returns (uint256) {
        return escrow.claim(jobId, epoch, cold(id), own, proofOf(jobId, cold(otherId), other));
    }

    function test_ClaimPaysTheDifferenceOnce() public {
        settlement(jobId, 1, rootOf(60 ether, 40 ether), 100 ether);
        vm.warp(T0 + 52);
        eq(claim(1, 1, 60 ether, 2, 40 ether), 60 ether, "first");
        eq(claim(1, 1, 60 ether, 2, 40 ether), 0, "repeat pays nothing");
        settlement(jobId, 2, rootOf(75 ether, 40 ether), 115 ether);
        vm.warp(T0 + 54);
        eq(claim(2, 1, 75 ether, 2, 40 ether), 15 ether, "the rest");
        eq(claim(1, 2, 40 ether, 1, 60 ether), 40 ether, "an older root still pays");
        eq(claim(2, 2, 40 ether, 1, 75 ether), 0, "but not twice");
        eq(token.balanceOf(cold(1)), 75 ether, "worker 1");
        eq(token.balanceOf(cold(2)), 40 ether, "worker 2");
    }

    function test_RootIsActiveAtTheEdge() public {
        settlement(jobId, 1, rootOf(1, 2), 3);
        vm.warp(T0 + 51);
        eq(escrow.activeEpoch(jobId), 0, "not yet");
        vm.expectRevert(abi.encodeWithSelector(IJobEscrow.RootNotActive.selector, T0 + 52, T0 + 51));
        escrow.claim(jobId, 1, cold(1), 1, new bytes32[](0));
        vm.warp(T0 + 52);
        eq(escrow.activeEpoch(jobId), 1, "now");
        eq(claim(1, 1, 1, 2, 2), 1, "paid");
    }

    function test_WrongLeavesAreRefused() public {
        settlement(jobId, 1, rootOf(60 ether, 40 ether), 100 ether);
        vm.warp(T0 + 52);
        bytes32[] memory proof = proofOf(jobId, cold(2), 40 ether);
        vm.expectRevert(abi.encodeWithSelector(IJobEscrow.BadProof.selector, jobId, cold(1), 61 ether));
        escrow.claim(jobId, 1, cold(1), 61 ether, proof);
        vm.expectRevert(abi.encodeWithSelector(IJobEscrow.BadProof.selector, jobId, cold(3), 60 ether));
        escrow.claim(jobId, 1, cold(3), 60 ether, proof);
        vm.expectRevert(abi.encodeWithSelector(IJobEscrow.UnknownRoot.selector, jobId, 2));
        escrow.claim(jobId, 2, cold(1), 60 ether, proof);
        vm.expectRevert(abi.encodeWithSelector(IJobEscrow.UnknownRoot.selector, jobId + 1, 1));
        escrow.claim(jobId + 1, 1, cold(1), 60 ether, proof);
    }

    function test_LeavesBeyondTheTotalAreNotPaid() public {
        settlement(jobId, 1, rootOf(60 ether, 50 ether), 100 ether); // an underfunded root
        vm.warp(T0 + 52);
        claim(1, 1, 60 ether, 2, 50 ether);
        bytes32[] memory proof = proofOf(jobId, cold(1), 60 ether);
        vm.expectRevert(abi.encodeWithSelector(IJobEscrow.TotalExceeded.selector, 100 ether, 110 ether));
        escrow.claim(jobId, 1, cold(2), 50 ether, proof);
    }

    function submit(uint64 epoch, uint128 total, bytes memory expected) internal {
        uint8[] memory seats = seatPair(1, 2);
        bytes32 root = bytes32(uint256(5));
        bytes[] memory signatures = seatSigns(escrow.settlementDigest(jobId, epoch, root, total, 0), seats);
        if (expected.length > 0) vm.expectRevert(expected);
        escrow.submitSettlement(jobId, epoch, root, total, 0, seats, signatures);
    }

    function test_OneRootAtATimeAndEpochsAscend() public {
        submit(3, 10 ether, "");
        submit(4, 10 ether, abi.encodeWithSelector(IJobEscrow.RootPending.selector, T0 + 52, T0 + 50));
        vm.warp(T0 + 52);
        submit(3, 10 ether, abi.encodeWithSelector(IJobEscrow.EpochTooLow.selector, 4, 3));
        submit(4, 9 ether, abi.encodeWithSelector(IJobEscrow.TotalDecreased.selector, 10 ether, 9 ether));
        submit(9, 10 ether, "");
    }

    function test_TotalIsBoundByPaceCoverAndBudget() public {
        // 10 s after the first claim: 2 x 1000 x 10 / 200 = 100.
        vm.warp(T0 + 10);
        eq(escrow.allowance(jobId), 100 ether, "pace");
        submit(1, 100 ether + 1, abi.encodeWithSelector(IJobEscrow.RateExceeded.selector, 100 ether, 100 ether + 1));
        submit(1, 100 ether, "");
        eq(escrow.allowance(jobId), 100 ether, "nothing more while it is pending");
        // Later: no more new than two seats' locks cover.
        vm.warp(T0 + 90);
        eq(escrow.allowance(jobId), 500 ether, "cover");
        submit(2, 501 ether, abi.encodeWithSelector(IJobEscrow.RateExceeded.selector, 500 ether, 501 ether));
        submit(2, 500 ether, "");
        vm.warp(T0 + 100);
        submit(3, 900 ether, "");
        vm.warp(T0 + 102);
        uint256 most = (uint256(BUDGET) * 10_000) / 10_200;
        eq(escrow.allowance(jobId), most, "budget less fee");
        submit(
            4,
            uint128(most + 1),
            abi.encodeWithSelector(IJobEscrow.BudgetExceeded.selector, BUDGET, BUDGET + 1)
        );
        submit(4, uint128(most), "");
    }

    function test_RootNeedsSeatsOfThisJobOnThisContract() public {
        uint8[] memory seats = seatPair(0, 1);
        bytes32 root = bytes32(uint256(5));
        bytes[] memory signatures = seatSigns(escrow.settlementDigest(jobId + 1, 1, root, 1, 0), seats);
        vm.expectPartialRevert(IJobMarket.BadSeatSignature.selector);
        escrow.submitSettlement(jobId, 1, root, 1, 0, seats, signatures);
        seats[1] = 7;
        vm.expectPartialRevert(IJobMarket.BadSeatSignature.selector);
        escrow.submitSettlement(jobId, 1, root, 1, 0, seats, signatures);
    }

    function test_RootsEndWithTheEvidenceTail() public {
        vm.prank(submitter);
        market.closeJob(jobId);
        vm.warp(T0 + 53);
        submit(1, 10 ether, "");
        vm.warp(T0 + 55);
        submit(2, 10 ether, abi.encodeWithSelector(IJobMarket.TooLate.selector, T0 + 54, T0 + 55));
        market.settleJob(jobId);
        submit(2, 10 ether, abi.encodeWithSelector(IJobEscrow.NotOpen.selector, jobId));
    }

    function test_SettleWaitsForTheLastRoot() public {
        vm.prank(submitter);
        market.closeJob(jobId);
        vm.warp(T0 + 53);
        submit(1, 10 ether, "");
        vm.warp(T0 + 54);
        vm.expectRevert(abi.encodeWithSelector(IJobEscrow.RootPending.selector, T0 + 55, T0 + 54));
        market.settleJob(jobId);
    }

    function testFuzz_BudgetIsPaidPlusFeePlusRefund(uint128 total, uint128 share) public {
        vm.warp(T0 + 200);
        uint256 limit = escrow.allowance(jobId);
        total = uint128(total % (limit + 1));
        uint256 a = total == 0 ? 0 : share % total;
        uint256 b = total - a;
        settlement(jobId, 1, rootOf(a, b), total);
        finish(jobId, 1);
        vm.warp(T0 + 204);
        market.settleJob(jobId);
        (uint256 budget, uint256 paid, , uint256 fee, uint256 refund, , bool settled) = escrow.jobMoney(jobId);
        yes(settled, "settled");
        eq(budget, paid + fee + refund, "to the base unit");
        eq(budget, BUDGET, "the whole budget");
        eq(fee, (uint256(total) * 200 + 9_999) / 10_000, "fee, rounded up");
        claim(1, 1, a, 2, b);
        claim(1, 2, b, 1, a);
        if (refund > 0) escrow.withdrawRefund(jobId);
        if (fee > 0) escrow.withdrawFees(treasury);
        eq(token.balanceOf(address(escrow)), 0, "nothing stays");
        eq(escrow.owed(), 0, "nothing owed");
        vm.expectRevert(abi.encodeWithSelector(IJobEscrow.NothingToPay.selector));
        escrow.withdrawRefund(jobId);
    }

    function test_OnlyTheMarketMovesBudgets() public {
        bytes memory refused = abi.encodeWithSelector(IJobEscrow.NotMarket.selector, address(this));
        vm.expectRevert(refused);
        escrow.fund(9, submitter, 1, 1, 1, 1);
        vm.expectRevert(refused);
        escrow.settle(jobId);
        vm.expectRevert(refused);
        escrow.cancel(jobId);
        eq(uint8(market.getJob(jobId).state), uint8(JobState.Active), "untouched");
    }
}
