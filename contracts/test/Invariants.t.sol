// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {JobState, Slot, SlotState} from "../interfaces/IJobMarket.sol";
import {Lock, LockState} from "../interfaces/IStakeVault.sol";
import {Accusation, Case, CaseState, Vote} from "../interfaces/IViolationCourt.sol";
import {MarketFixture} from "./MarketFixture.sol";

/// @notice Acts on one market at random: workers come and go, seats report and settle, roots come in, time passes.
/// What may not be done is tried as well; a refusal is fine, a broken sum is not.
contract Actors is MarketFixture {
    uint256 internal constant WORKERS = 4;
    uint256 public jobId;
    uint256 public numLocks;
    uint64 public epoch;
    uint256[5] internal cumulative;
    bytes32[] public cases;
    mapping(bytes32 caseId => CaseState) internal finalState;
    mapping(address account => uint256) internal lastClaimed;
    mapping(uint32 slot => uint32) internal lastNonce;

    function start() external {
        if (jobId != 0) return;
        deploy();
        for (uint256 i = 101; i <= 103; ++i) join(i);
        for (uint256 i = 1; i <= WORKERS; ++i) join(i);
        jobId = post();
        for (uint256 i = 101; i <= 103; ++i) seat(jobId, i);
        claimSlot(jobId, 0, 1);
    }

    // --- acts

    function tick(uint8 secondsOn) external {
        vm.warp(block.timestamp + (secondsOn % 4));
    }

    function claims(uint8 who_, uint8 slot) external {
        uint256 id = 1 + (who_ % WORKERS);
        bool banned = vault.isBanned(cold(id));
        vm.prank(cold(id));
        try market.claimSlot(jobId, slot % 12) {
            if (banned) revert NotTrue("a banned account claimed");
        } catch {}
    }

    function exits(uint8 slot) external {
        Slot memory s = held(jobId, slot % 12);
        vm.prank(s.account);
        try market.exitSlot(jobId, slot % 12) {} catch {}
    }

    function releases(uint8 slot) external {
        try market.releaseSlot(jobId, slot % 12) {} catch {}
    }

    function unbonds(uint8 who_, uint96 amount) external {
        uint256 id = 1 + (who_ % WORKERS);
        vm.prank(cold(id));
        try vault.requestUnbond(amount % (STAKE + 1)) {} catch {}
    }

    function withdraws(uint8 who_, uint8 id) external {
        vm.prank(cold(1 + (who_ % WORKERS)));
        try vault.withdraw(id % 3) {} catch {}
    }

    function reports(uint8 slot, uint8 seatIndex, uint8 salt) external {
        slot = slot % 12;
        Accusation memory a = accuse(jobId, slot, held(jobId, slot).nonce, salt % 3);
        Vote memory v = vote(a, seatIndex % 3);
        bytes32 caseId = court.caseIdOf(a);
        bool known = court.getCase(caseId).state != CaseState.None;
        try court.report(a, v) {
            if (!known) cases.push(caseId);
        } catch {}
    }

    function executes(uint8 which) external {
        if (cases.length == 0) return;
        bytes32 caseId = cases[which % cases.length];
        Lock memory l = vault.getLock(court.getCase(caseId).lockId);
        try court.execute(caseId) {
            Case memory c = court.getCase(caseId);
            if (c.slashed > l.original / 2 || c.slashed > l.amount) revert NotTrue("slash <= min(severity, lock)");
            if (!vault.isBanned(c.accused)) revert NotTrue("convicted is banned");
        } catch {}
    }

    function expires(uint8 which) external {
        if (cases.length == 0) return;
        try court.expire(cases[which % cases.length]) {} catch {}
    }

    function settlesBonds(uint8 which, uint8 seatIndex) external {
        if (cases.length == 0) return;
        try court.settleBond(cases[which % cases.length], seatIndex % 3) {} catch {}
    }

    function roots(uint8 who_, uint64 amount) external {
        uint256 id = 1 + (who_ % 2);
        cumulative[id] += amount;
        uint128 total = uint128(cumulative[1] + cumulative[2]);
        uint8[] memory seats = seatPair(0, 1);
        bytes32 root = twoLeaves(jobId, cold(1), cumulative[1], cold(2), cumulative[2]);
        bytes[] memory signatures = seatSigns(escrow.settlementDigest(jobId, epoch + 1, root, total, 0), seats);
        try escrow.submitSettlement(jobId, epoch + 1, root, total, 0, seats, signatures) {
            epoch += 1;
        } catch {
            cumulative[id] -= amount;
        }
    }

    function paid(uint8 who_) external {
        (uint256 id, uint256 other) = who_ % 2 == 0 ? (uint256(1), uint256(2)) : (uint256(2), uint256(1));
        bytes32[] memory proof = proofOf(jobId, cold(other), cumulative[other]);
        try escrow.claim(jobId, epoch, cold(id), cumulative[id], proof) {} catch {}
    }

    function closes(uint8 dice) external {
        if (dice % 16 != 0) return;
        vm.prank(submitter);
        try market.closeJob(jobId) {} catch {}
    }

    function pushes() external {
        try market.pushTimeout(jobId) {} catch {}
    }

    function takesOut() external {
        try escrow.withdrawRefund(jobId) {} catch {}
        try escrow.withdrawFees(treasury) {} catch {}
        vm.prank(treasury);
        try vault.withdrawCredits() {} catch {}
    }

    // --- what must hold

    function accounts(uint256 i) internal view returns (address) {
        if (i < WORKERS) return cold(1 + i);
        if (i < WORKERS + 3) return cold(101 + i - WORKERS);
        return i == WORKERS + 3 ? treasury : i == WORKERS + 4 ? submitter : address(court);
    }

    function checkVault() external view {
        (uint256 bonded_, uint256 unbonding, uint256 credits_) = vault.totals();
        yes(token.balanceOf(address(vault)) >= bonded_ + unbonding + credits_, "the vault holds what it owes");
        uint256 sumBonded = 0;
        uint256 sumUnbonding = 0;
        uint256 sumCredits = 0;
        for (uint256 i = 0; i < WORKERS + 6; ++i) {
            (uint256 b, uint256 l, , uint256 u, uint256 c, ) = vault.stakeOf(accounts(i));
            yes(l <= b, "locked <= bonded");
            eq(liveLocks(accounts(i)), l, "locked = sum of live locks");
            sumBonded += b;
            sumUnbonding += u;
            sumCredits += c;
        }
        eq(sumBonded, bonded_, "bonded = sum");
        eq(sumUnbonding, unbonding, "unbonding = sum");
        eq(sumCredits, credits_, "credits = sum");
    }

    function liveLocks(address account) internal view returns (uint256 sum) {
        for (uint256 id = 1; vault.getLock(id).state != LockState.None; ++id) {
            Lock memory l = vault.getLock(id);
            yes(l.amount <= l.original, "a lock never grows");
            if (l.account == account) sum += l.amount;
        }
    }

    function checkEscrow() external view {
        (uint256 budget, uint256 total, uint256 claimed, uint256 fee, uint256 refund, , bool settled) = escrow.jobMoney(
            jobId
        );
        eq(token.balanceOf(address(escrow)), escrow.owed(), "the escrow holds what it owes");
        yes(claimed <= total, "claimed <= paid");
        yes(total + fee <= budget, "paid + fee <= budget");
        if (settled) eq(total + fee + refund, budget, "budget = paid + fee + refund");
        eq(escrow.claimed(jobId, cold(1)) + escrow.claimed(jobId, cold(2)), claimed, "claimed = sum");
        yes(escrow.claimed(jobId, cold(1)) <= cumulative[1] && escrow.claimed(jobId, cold(2)) <= cumulative[2], "<= leaf");
    }

    function checkSlots() external view {
        uint256 count = 0;
        for (uint32 i = 0; i < 12; ++i) {
            Slot memory s = held(jobId, i);
            if (s.state != SlotState.Claimed && s.state != SlotState.Exiting && s.state != SlotState.Cooling) continue;
            ++count;
            Lock memory l = vault.getLock(s.lockId);
            yes(l.state == LockState.Live && l.account == s.account, "a held slot has its holder's live lock");
            for (uint32 j = i + 1; j < (i / 3 + 1) * 3; ++j) {
                yes(held(jobId, j).state == SlotState.Vacant || held(jobId, j).account != s.account, "one replica a stage");
            }
        }
        eq(market.getJob(jobId).slotsClaimed, count, "slots held");
    }

    function checkCases() external view {
        uint256 open = 0;
        for (uint256 i = 0; i < cases.length; ++i) {
            Case memory c = court.getCase(cases[i]);
            if (c.state != CaseState.Executed && c.state != CaseState.Expired) {
                ++open;
                yes(vault.getLock(c.lockId).state == LockState.Live, "an open case keeps its lock");
                yes(vault.getLock(c.lockId).holds > 0, "and holds it");
            }
            if (c.appealUntil != 0) {
                yes(c.reporters >= c.quorum, "quorum of heads");
                yes(uint256(c.bond) * c.reporters >= c.slashAsk, "bonds >= slash asked");
            }
        }
        eq(market.getJob(jobId).openCases, open, "open cases of the job");
        if (market.getJob(jobId).state == JobState.Settled) eq(open, 0, "settled without an open case");
    }
}

contract InvariantsTest {
    Actors internal actors;

    function setUp() public {
        actors = new Actors();
        actors.start();
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(actors);
    }

    function invariant_VaultConserves() public view {
        actors.checkVault();
    }

    function invariant_EscrowConserves() public view {
        actors.checkEscrow();
    }

    function invariant_SlotsHoldLiveLocks() public view {
        actors.checkSlots();
    }

    function invariant_CasesHoldTheirLocks() public view {
        actors.checkCases();
    }
}
