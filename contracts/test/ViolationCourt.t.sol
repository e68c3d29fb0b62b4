// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IJobEscrow} from "../interfaces/IJobEscrow.sol";
import {IJobMarket, JobState, SlotState} from "../interfaces/IJobMarket.sol";
import {IStakeVault, Lock} from "../interfaces/IStakeVault.sol";
import {Accusation, Case, CaseState, IViolationCourt, ViolationKind, Vote} from "../interfaces/IViolationCourt.sol";
import {MarketFixture} from "./MarketFixture.sol";

contract ViolationCourtTest is MarketFixture {
    uint256 internal jobId;
    Accusation internal a;

    function setUp() public {
        deploy();
        jobId = running();
        a = accuse(jobId, 0, 0, 1);
    }

    function isState(bytes32 caseId, CaseState wanted) internal view {
        eq(uint8(court.getCase(caseId).state), uint8(wanted), "case state");
    }

    function test_FirstReportFreezesSecondConvicts() public {
        bytes32 caseId = court.report(a, vote(a, 0));
        eq(caseId, court.caseIdOf(a), "id");
        isState(caseId, CaseState.Collecting);
        eq(vault.getLock(held(jobId, 0).lockId).holds, 1, "held");
        eq(locked(cold(101)), SEAT_STAKE + 25 ether, "bond");
        court.report(a, vote(a, 2));
        isState(caseId, CaseState.Appealable);
        vm.warp(T0 + 3);
        vm.expectRevert(abi.encodeWithSelector(IViolationCourt.TooEarly.selector, T0 + 4, T0 + 3));
        court.execute(caseId);
        vm.warp(T0 + 4);
        isState(caseId, CaseState.Upheld);
        court.execute(caseId);
        isState(caseId, CaseState.Executed);
        vm.expectRevert(abi.encodeWithSelector(IViolationCourt.WrongCaseState.selector, caseId, CaseState.Executed));
        court.execute(caseId);
        // Half of 100: 30 % to the reporters, nothing to the submitter (the worker was not paid), the rest to the treasury.
        eq(bonded(cold(1)), STAKE - 50 ether, "slashed");
        eq(locked(cold(1)), 0, "the rest of the lock is free");
        eq(credits(treasury), 35 ether, "treasury");
        yes(vault.isBanned(cold(1)), "banned");
        court.settleBond(caseId, 0);
        court.settleBond(caseId, 2);
        eq(credits(cold(101)), 7.5 ether, "reward");
        eq(credits(cold(103)), 7.5 ether, "reward");
        eq(credits(address(court)), 0, "nothing stays");
        eq(locked(cold(101)), SEAT_STAKE, "bond back");
        vm.expectRevert(abi.encodeWithSelector(IViolationCourt.NoBond.selector, caseId, 0));
        court.settleBond(caseId, 0);
        vm.expectRevert(abi.encodeWithSelector(IViolationCourt.NoBond.selector, caseId, 1));
        court.settleBond(caseId, 1);
    }

    function test_TerminatedSlotIsForSomebodyElse() public {
        convicted(jobId, 0, 0, 1);
        eq(held(jobId, 0).nonce, 1, "next nonce");
        eq(uint8(held(jobId, 0).state), uint8(SlotState.Vacant), "vacant");
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.Banned.selector, cold(1)));
        vm.prank(cold(1));
        market.claimSlot(jobId, 0);
        join(3);
        claimSlot(jobId, 0, 3);
        eq(held(jobId, 0).account, cold(3), "new holder");
        // The old evidence does not touch the new holder.
        Accusation memory old = accuse(jobId, 0, 0, 5);
        Vote memory v = vote(old, 0);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.WrongNonce.selector, jobId, 0, 0, 1));
        court.report(old, v);
        vm.prank(cold(1));
        vault.requestUnbond(STAKE - 50 ether); // a banned account may leave with the rest
    }

    function test_SubmitterGetsNoMoreThanTheSlotWasPaid() public {
        vm.warp(T0 + 50);
        settlement(jobId, 1, twoLeaves(jobId, cold(1), 5 ether, cold(2), 7 ether), 12 ether);
        vm.warp(T0 + 52);
        escrow.claim(jobId, 1, cold(1), 5 ether, proofOf(jobId, cold(2), 7 ether));
        convicted(jobId, 0, 0, 1);
        eq(credits(submitter), 5 ether, "submitter");
        eq(credits(treasury), 30 ether, "treasury");
    }

    function test_ExpiredAtTheEdgeCostsTheAccusedNothing() public {
        bytes32 caseId = court.report(a, vote(a, 0));
        vm.warp(T0 + 5);
        vm.expectRevert(abi.encodeWithSelector(IViolationCourt.TooEarly.selector, T0 + 6, T0 + 5));
        court.expire(caseId);
        vm.warp(T0 + 6);
        Vote memory late = vote(a, 1);
        vm.expectRevert(abi.encodeWithSelector(IViolationCourt.TooLate.selector, T0 + 6, T0 + 6));
        court.report(a, late);
        court.expire(caseId);
        isState(caseId, CaseState.Expired);
        court.settleBond(caseId, 0);
        eq(credits(cold(1)), 0.25 ether, "spam fee to the accused");
        eq(bonded(cold(101)), STAKE - 0.25 ether, "paid by the reporter");
        eq(locked(cold(101)), SEAT_STAKE, "bond back");
        eq(vault.getLock(held(jobId, 0).lockId).holds, 0, "thawed");
        eq(bonded(cold(1)), STAKE, "stake whole");
        vm.expectRevert(abi.encodeWithSelector(IViolationCourt.WrongCaseState.selector, caseId, CaseState.Expired));
        court.report(a, late);
    }

    function test_LastSecondOfCollecting() public {
        bytes32 caseId = court.report(a, vote(a, 0));
        vm.warp(T0 + 5);
        court.report(a, vote(a, 1));
        isState(caseId, CaseState.Appealable);
    }

    function test_ASeatCountsOnceACase() public {
        court.report(a, vote(a, 0));
        Vote memory again = vote(a, 0);
        vm.expectRevert(abi.encodeWithSelector(IViolationCourt.NoNewVote.selector, court.caseIdOf(a)));
        court.report(a, again);
        Vote[] memory votes = new Vote[](3);
        (votes[0], votes[1], votes[2]) = (vote(a, 0), vote(a, 1), vote(a, 1));
        bytes32 caseId = court.reportBatch(a, votes); // a front-run vote does not spoil the batch
        eq(court.getCase(caseId).reporters, 2, "two heads");
    }

    function test_OneCaseWithoutAQuorumASlotASeat() public {
        court.report(a, vote(a, 0));
        Accusation memory b = accuse(jobId, 0, 0, 2);
        Vote memory v = vote(b, 0);
        vm.expectRevert(abi.encodeWithSelector(IViolationCourt.OpenCaseOfSeat.selector, 0, jobId, 0));
        court.report(b, v);
        court.report(a, vote(a, 1)); // quorum: free to report again
        court.report(b, vote(b, 0));
    }

    function test_ForgedAndStaleReportsAreRefused() public {
        Vote memory v = vote(a, 0);
        v.seat = 1;
        vm.expectPartialRevert(IViolationCourt.BadReportSignature.selector);
        court.report(a, v);
        v = vote(a, 0);
        v.evidenceHash = 0;
        vm.expectPartialRevert(IViolationCourt.BadReportSignature.selector);
        court.report(a, v);
        v = vote(a, 0);
        vm.warp(v.deadline);
        vm.expectRevert(abi.encodeWithSelector(IViolationCourt.ReportExpired.selector, v.deadline, v.deadline));
        court.report(a, v);
        v.seat = 9;
        vm.expectRevert(abi.encodeWithSelector(IViolationCourt.SeatCannotVote.selector, 9, address(0)));
        court.report(a, v);
        Accusation memory b = a;
        b.kind = ViolationKind.Equivocation;
        vm.expectRevert(
            abi.encodeWithSelector(IViolationCourt.KindNotSupported.selector, ViolationKind.Equivocation)
        );
        court.report(b, v);
    }

    function test_ExitCannotOutrunAReport() public {
        vm.prank(cold(1));
        market.exitSlot(jobId, 0);
        vm.warp(T0 + 4);
        bytes32 caseId = court.report(a, vote(a, 0)); // the last second of the evidence tail
        vm.warp(T0 + 5);
        vm.expectPartialRevert(IStakeVault.LockOnHold.selector);
        market.releaseSlot(jobId, 0);
        Accusation memory b = accuse(jobId, 0, 0, 2);
        Vote memory v = vote(b, 1);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.TooLate.selector, T0 + 5, T0 + 5));
        court.report(b, v);
        court.report(a, vote(a, 1));
        vm.warp(T0 + 9);
        court.execute(caseId);
        eq(bonded(cold(1)), STAKE - 50 ether, "slashed all the same");
    }

    function test_ExpiredCaseLetsAnExitFinish() public {
        vm.prank(cold(1));
        market.exitSlot(jobId, 0);
        bytes32 caseId = court.report(a, vote(a, 0));
        vm.warp(T0 + 6);
        court.expire(caseId);
        market.releaseSlot(jobId, 0);
        eq(locked(cold(1)), 0, "free");
    }

    function test_OpenCaseBlocksSettlingAndFreezesClaims() public {
        vm.warp(T0 + 50);
        settlement(jobId, 1, twoLeaves(jobId, cold(1), 5 ether, cold(2), 7 ether), 12 ether);
        finish(jobId, 1);
        bytes32 caseId = court.report(a, vote(a, 0));
        court.report(a, vote(a, 1));
        vm.warp(T0 + 54);
        vm.expectRevert(abi.encodeWithSelector(IJobMarket.CasesOpen.selector, jobId, 1));
        market.settleJob(jobId);
        bytes32[] memory proof = proofOf(jobId, cold(2), 7 ether);
        vm.expectRevert(abi.encodeWithSelector(IJobEscrow.ClaimFrozen.selector, jobId, cold(1), 1));
        escrow.claim(jobId, 1, cold(1), 5 ether, proof);
        escrow.claim(jobId, 1, cold(2), 7 ether, proofOf(jobId, cold(1), 5 ether)); // nobody else is touched
        court.execute(caseId);
        vm.expectRevert(abi.encodeWithSelector(IJobEscrow.RootTainted.selector, 2, 1));
        escrow.claim(jobId, 1, cold(1), 5 ether, proof);
        market.settleJob(jobId);
        eq(uint8(market.getJob(jobId).state), uint8(JobState.Settled), "settled");
        eq(uint8(held(jobId, 0).state), uint8(SlotState.Terminated), "terminated for good");
    }

    function test_RootAfterTheQuorumPaysCleanWork() public {
        court.report(a, vote(a, 0));
        bytes32 caseId = court.report(a, vote(a, 1));
        vm.warp(T0 + 3);
        settlement(jobId, 1, twoLeaves(jobId, cold(1), 5 ether, cold(2), 7 ether), 12 ether);
        vm.warp(T0 + 5);
        court.execute(caseId);
        eq(escrow.claim(jobId, 1, cold(1), 5 ether, proofOf(jobId, cold(2), 7 ether)), 5 ether, "banned, but paid");
    }

    function test_TwoCasesOnOneLock() public {
        Accusation memory b = accuse(jobId, 0, 0, 2);
        court.report(a, vote(a, 0));
        bytes32 first = court.report(a, vote(a, 1));
        court.report(b, vote(b, 0));
        bytes32 second = court.report(b, vote(b, 2));
        Accusation memory c = accuse(jobId, 0, 0, 3);
        bytes32 third = court.report(c, vote(c, 1));
        uint256 lockId = held(jobId, 0).lockId;
        vm.warp(T0 + 4);
        court.execute(first);
        join(3);
        claimSlot(jobId, 0, 3); // the slot goes on
        eq(locked(cold(1)), 50 ether, "the other cases still hold the rest");
        court.execute(second);
        eq(bonded(cold(1)), STAKE - SLOT_STAKE, "never more than the lock");
        vm.warp(T0 + 6);
        court.expire(third);
        Lock memory l = vault.getLock(lockId);
        eq(l.holds, 0, "no hold left");
        eq(locked(cold(1)), 0, "nothing locked");
        eq(held(jobId, 0).account, cold(3), "the successor is untouched");
        eq(market.getJob(jobId).openCases, 0, "no open case");
    }

    function test_ReporterWithoutStakeCannotReport() public {
        vm.startPrank(cold(101));
        vault.requestUnbond(STAKE - SEAT_STAKE);
        vm.stopPrank();
        Vote memory v = vote(a, 0);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.InsufficientFreeStake.selector, cold(101), 25 ether, 0));
        court.report(a, v);
    }

    function test_RotationCannotDisownASeatsKey() public {
        Vote memory v = vote(a, 0);
        vm.prank(cold(101));
        vault.revokeSigner();
        court.report(a, v);
    }

    function testFuzz_SplitAddsUp(uint64 claimed, bool three) public {
        vm.warp(T0 + 150);
        uint256 paid = uint256(claimed) + 1;
        settlement(jobId, 1, twoLeaves(jobId, cold(1), paid, cold(2), 1), uint128(paid + 1));
        vm.warp(T0 + 152);
        escrow.claim(jobId, 1, cold(1), paid, proofOf(jobId, cold(2), 1));
        Vote[] memory votes = new Vote[](three ? 3 : 2);
        for (uint8 i = 0; i < votes.length; ++i) votes[i] = vote(a, i);
        bytes32 caseId = court.reportBatch(a, votes);
        vm.warp(T0 + 156);
        court.execute(caseId);
        Case memory c = court.getCase(caseId);
        uint256 toReporters = uint256(c.rewardEach) * votes.length;
        eq(credits(address(court)), toReporters, "reporters");
        eq(credits(treasury) + credits(submitter) + toReporters, c.slashed, "sum");
        yes(credits(submitter) <= paid && credits(submitter) <= (uint256(c.slashed) * 4) / 10, "submitter");
        yes(credits(treasury) * 10 >= uint256(c.slashed) * 3, "treasury floor");
    }
}
