// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IJobMarket, JobState, JobTerms, Slot, SlotState} from "../interfaces/IJobMarket.sol";
import {IMarketParams, Params} from "../interfaces/IMarketParams.sol";
import {IStakeVault} from "../interfaces/IStakeVault.sol";
import {MarketFixture} from "./MarketFixture.sol";

contract JobMarketTest is MarketFixture {
    function setUp() public {
        deploy();
    }

    function stateOf(uint256 jobId) internal view returns (JobState) {
        return market.getJob(jobId).state;
    }

    function isState(uint256 jobId, JobState wanted) internal view {
        eq(uint8(stateOf(jobId)), uint8(wanted), "job state");
    }

    // --- posting

    function test_PostPullsTheBudget() public {
        uint256 jobId = post();
        eq(jobId, 1, "ids run from 1");
        isState(jobId, JobState.Open);
        eq(token.balanceOf(address(escrow)), BUDGET, "in the escrow");
        eq(token.balanceOf(submitter), 0, "not with the submitter");
    }

    function expectTerm(JobTerms memory t, string memory name, uint256 low, uint256 high, uint256 had) internal {
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.BadTerm.selector, name, low, high, had));
        vm.prank(submitter);
        market.postJob(t, "");
    }

    function test_PostRefusesBadTermsWithTheNumbers() public {
        JobTerms memory t = terms();
        t.stages = 129;
        expectTerm(t, "stages", 1, 128, 129);
        t = terms();
        t.quorum = 1;
        expectTerm(t, "quorum", 2, 3, 1);
        t = terms();
        t.slotStake = 9 ether;
        expectTerm(t, "slotStake", 10 ether, type(uint96).max, 9 ether);
        t = terms();
        t.claimDeadline = uint64(T0);
        expectTerm(t, "claimDeadline", T0 + 1, type(uint40).max, T0);
        t = terms();
        // In one objection window (2 s of 20, at twice the pace) a fifth of the budget: 100 a seat of a quorum of two.
        (t.plannedSeconds, t.seatStake) = (20, 99 ether);
        expectTerm(t, "seatStake", 100 ether, type(uint96).max, 99 ether);
        t = terms();
        t.paramsVersion = 2;
        vm.expectRevert(abi.encodeWithSelector(IMarketParams.UnknownVersion.selector, 2, 1));
        market.postJob(t, "");
    }

    // --- cancelling

    function test_OpenJobIsCancelledAtOnce() public {
        uint256 jobId = post();
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.NotSubmitter.selector, jobId, address(this)));
        market.cancelJob(jobId);
        vm.prank(submitter);
        market.cancelJob(jobId);
        isState(jobId, JobState.Cancelled);
        escrow.withdrawRefund(jobId);
        eq(token.balanceOf(submitter), BUDGET, "all of it back");
    }

    function test_ClaimedJobIsNotCancelled() public {
        uint256 jobId = running();
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.WrongJobState.selector, jobId, JobState.Active));
        vm.prank(submitter);
        market.cancelJob(jobId);
    }

    function test_UnderstaffedJobIsCancelledByAnyoneFromTheClaimDeadlineOn() public {
        join(1);
        join(101);
        uint256 jobId = post();
        claimSlot(jobId, 0, 1);
        seat(jobId, 101);
        vm.warp(T0 + 19);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.NothingDue.selector, jobId));
        market.pushTimeout(jobId);
        vm.warp(T0 + 20);
        market.pushTimeout(jobId);
        isState(jobId, JobState.Cancelled);
        market.releaseSlot(jobId, 0);
        market.releaseSeat(jobId, 0);
        eq(locked(cold(1)) + locked(cold(101)), 0, "all locks back at once");
        eq(escrow.withdrawRefund(jobId), BUDGET, "full refund");
    }

    function test_StaffedJobIsNotCancelledByTime() public {
        uint256 jobId = running();
        vm.warp(T0 + 21);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.NothingDue.selector, jobId));
        market.pushTimeout(jobId);
        vm.warp(T0 + 1_000);
        market.pushTimeout(jobId);
        isState(jobId, JobState.Closing);
    }

    // --- slots

    function test_ClaimLocksAndSnapshotsTheHotKey() public {
        uint256 jobId = running();
        Slot memory s = held(jobId, 0);
        eq(s.account, cold(1), "account");
        eq(s.hotKey, hot(1), "hot key");
        eq(locked(cold(1)), SLOT_STAKE, "locked");
        vm.prank(cold(1));
        vault.revokeSigner();
        eq(held(jobId, 0).hotKey, hot(1), "rotation cannot disown it");
        isState(jobId, JobState.Active);
    }

    function test_ColdAccountMayClaimItself() public {
        join(1);
        uint256 jobId = post();
        vm.prank(cold(1));
        market.claimSlot(jobId, 2);
        eq(held(jobId, 2).hotKey, hot(1), "its hot key");
    }

    function test_TakenSlotIsRefused() public {
        uint256 jobId = running();
        join(3);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.SlotTaken.selector, jobId, 0, cold(1)));
        vm.prank(cold(3));
        market.claimSlot(jobId, 0);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.UnknownSlot.selector, jobId, 12, 12));
        vm.prank(cold(3));
        market.claimSlot(jobId, 12);
    }

    function test_OneReplicaOfAStageAWorker() public {
        uint256 jobId = running();
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.StageHeld.selector, jobId, 0, cold(1)));
        vm.prank(cold(1));
        market.claimSlot(jobId, 1);
        vm.prank(cold(1));
        market.claimSlot(jobId, 4); // another stage is fine
        eq(locked(cold(1)), 2 * SLOT_STAKE, "a lock each");
    }

    function test_ClaimNeedsStakeAndKey() public {
        uint256 jobId = post();
        stake(cold(7), 99 ether);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.NoHotKey.selector, cold(7)));
        vm.prank(cold(7));
        market.claimSlot(jobId, 0);
        grant(7);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.InsufficientFreeStake.selector, cold(7), 100 ether, 99 ether));
        vm.prank(cold(7));
        market.claimSlot(jobId, 0);
    }

    function test_ClaimWindowEdges() public {
        join(1);
        uint256 jobId = post();
        vm.warp(T0 + 20);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.TooLate.selector, T0 + 20, T0 + 20));
        vm.prank(cold(1));
        market.claimSlot(jobId, 0);
        vm.warp(T0 + 19);
        vm.prank(cold(1));
        market.claimSlot(jobId, 0);
    }

    function test_ExitCoolsAndFreesTheSlotUnderTheNextNonce() public {
        uint256 jobId = running();
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.NotHolder.selector, jobId, 0, cold(2)));
        vm.prank(cold(2));
        market.exitSlot(jobId, 0);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.TooEarly.selector, type(uint64).max, T0));
        market.releaseSlot(jobId, 0);
        address signer = hot(1);
        vm.prank(signer);
        market.exitSlot(jobId, 0);
        eq(uint8(held(jobId, 0).state), uint8(SlotState.Exiting), "still serves");
        vm.warp(T0 + 1);
        eq(uint8(held(jobId, 0).state), uint8(SlotState.Cooling), "cools");
        vm.warp(T0 + 4);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.TooEarly.selector, T0 + 5, T0 + 4));
        market.releaseSlot(jobId, 0);
        vm.warp(T0 + 5);
        market.releaseSlot(jobId, 0);
        eq(locked(cold(1)), 0, "free");
        Slot memory s = held(jobId, 0);
        eq(s.nonce, 1, "nonce grew");
        eq(uint8(s.state), uint8(SlotState.Vacant), "vacant");
        claimSlot(jobId, 0, 1); // may come back
        eq(held(jobId, 0).nonce, 1, "under the new nonce");
    }

    // --- seats

    function test_SeatsAreFirstComeAndApart() public {
        uint256 jobId = running();
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.NoSeatLeft.selector, jobId, 3));
        vm.prank(cold(1));
        market.applySeat(jobId);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.SeatHeld.selector, jobId, cold(101)));
        vm.prank(cold(101));
        market.claimSlot(jobId, 7);
        JobTerms memory t = terms();
        jobId = post(t);
        claimSlot(jobId, 0, 1);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.WorkerOfJob.selector, jobId, cold(1)));
        vm.prank(cold(1));
        market.applySeat(jobId);
    }

    function test_SeatNeedsFreeStakeForItsBonds() public {
        uint256 jobId = post();
        // Slash 50, half of it a reporter, for a quarter of 12 slots.
        eq(market.seatBondReserve(jobId), 75 ether, "reserve");
        stake(cold(104), SEAT_STAKE + 74 ether);
        grant(104);
        vm.expectRevert(
            abi.encodeWithSelector(IJobMarket.BondReserveMissing.selector, cold(104), 75 ether, 74 ether)
        );
        vm.prank(cold(104));
        market.applySeat(jobId);
        stake(cold(104), 1 ether);
        vm.prank(cold(104));
        eq(market.applySeat(jobId), 0, "seat");
    }

    // --- the end

    function test_FinishNeedsAQuorumOfDistinctSeats() public {
        uint256 jobId = running();
        bytes32 digest = market.finishDigest(jobId, 0, bytes32(uint256(9)));
        uint8[] memory seats = seatPair(1, 1);
        bytes[] memory signatures = seatSigns(digest, seats);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.SeatsNotAscending.selector, 1, 1));
        market.finishJob(jobId, 0, bytes32(uint256(9)), seats, signatures);
        seats = seatPair(0, 1);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.BadSeatSignature.selector, 0, hot(101), hot(102)));
        market.finishJob(jobId, 0, bytes32(uint256(9)), seats, signatures);
        seats = new uint8[](1);
        signatures = seatSigns(digest, seats);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.QuorumMissing.selector, 2, 1));
        market.finishJob(jobId, 0, bytes32(uint256(9)), seats, signatures);
        finish(jobId, 0);
        isState(jobId, JobState.Closing);
    }

    function test_FinishNeedsTheLastRoot() public {
        uint256 jobId = running();
        uint8[] memory seats = seatPair(0, 1);
        bytes[] memory signatures = seatSigns(market.finishDigest(jobId, 3, bytes32(0)), seats);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.WrongEpoch.selector, 3, 0));
        market.finishJob(jobId, 3, bytes32(0), seats, signatures);
    }

    function test_SettleAtTheEdgeOfTheEvidenceTail() public {
        uint256 jobId = running();
        finish(jobId, 0);
        vm.warp(T0 + 3);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.TooEarly.selector, T0 + 4, T0 + 3));
        market.settleJob(jobId);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.TooEarly.selector, T0 + 4, T0 + 3));
        market.releaseSlot(jobId, 0);
        vm.warp(T0 + 4);
        market.releaseSlot(jobId, 0);
        market.pushTimeout(jobId);
        isState(jobId, JobState.Settled);
        for (uint8 i = 0; i < 3; ++i) market.releaseSeat(jobId, i);
        market.releaseSlot(jobId, 3);
        for (uint256 i = 101; i <= 103; ++i) eq(locked(cold(i)), 0, "seat free");
        eq(locked(cold(1)) + locked(cold(2)), 0, "slots free");
        eq(uint8(held(jobId, 0).state), uint8(SlotState.Released), "for good");
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.WrongSlotState.selector, jobId, 0, SlotState.Released));
        market.releaseSlot(jobId, 0);
    }

    function test_SubmitterStopsEarly() public {
        uint256 jobId = running();
        vm.prank(submitter);
        market.closeJob(jobId);
        isState(jobId, JobState.Closing);
        join(3);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.WrongJobState.selector, jobId, JobState.Closing));
        vm.prank(cold(3));
        market.claimSlot(jobId, 5);
    }

    // --- wiring and parameters

    function test_WiredOnceAndCourtOnly() public {
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.AlreadyWired.selector));
        market.wire(address(1), address(2));
        bytes memory refused = abi.encodeWithSelector(IJobMarket.NotCourt.selector, address(this));
        vm.expectRevert(refused);
        market.openCase(1, 0, 0);
        vm.expectRevert(refused);
        market.closeCase(1, cold(1), 1);
        vm.expectRevert(refused);
        market.markQuorum(1, cold(1));
    }

    function test_ParamsKeepTheTimeInequality() public {
        Params memory p = localParams();
        p.unbonding = 16;
        vm.expectRevert(abi.encodeWithSelector(IMarketParams.UnbondingTooShort.selector, 17, 16));
        params.add(p);
        p = localParams();
        p.treasuryFloorBps = 2_999;
        vm.expectRevert(
            abi.encodeWithSelector(IMarketParams.OutOfBounds.selector, "treasuryFloorBps", 3_000, 10_000, 2_999)
        );
        params.add(p);
        p = localParams();
        p.feeBps = 300;
        eq(params.add(p), 2, "version");
        eq(params.get(1).feeBps, 200, "the old one stays");
        vm.expectPartialRevert(bytes4(keccak256("AccessManagedUnauthorized(address)")));
        vm.prank(cold(1));
        params.add(p);
    }
}
