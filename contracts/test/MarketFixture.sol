// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {JobEscrow} from "../JobEscrow.sol";
import {JobMarket} from "../JobMarket.sol";
import {MarketAccess} from "../MarketAccess.sol";
import {MarketParams} from "../MarketParams.sol";
import {StakeVault} from "../StakeVault.sol";
import {TestToken} from "../TestToken.sol";
import {ViolationCourt} from "../ViolationCourt.sol";
import {JobTerms, Slot} from "../interfaces/IJobMarket.sol";
import {Params} from "../interfaces/IMarketParams.sol";
import {Accusation, ViolationKind, Vote} from "../interfaces/IViolationCourt.sol";
import {Check} from "./Vm.sol";

/// @notice A deployed market with the local parameters, and people who use it.
abstract contract MarketFixture is Check {
    uint256 internal constant T0 = 1_800_000_000;
    uint256 internal constant STAKE = 1_000 ether;
    uint128 internal constant SLOT_STAKE = 100 ether;
    uint128 internal constant SEAT_STAKE = 200 ether;
    uint128 internal constant BUDGET = 1_000 ether;

    TestToken internal token;
    MarketParams internal params;
    StakeVault internal vault;
    JobMarket internal market;
    JobEscrow internal escrow;
    ViolationCourt internal court;
    address internal treasury = address(0x7EA5);
    address internal submitter = address(0x5AB);

    function deploy() internal {
        vm.warp(T0);
        MarketAccess access = new MarketAccess(address(this));
        token = new TestToken();
        params = new MarketParams(address(access), 1);
        vault = new StakeVault(address(access), token, params);
        market = new JobMarket(address(access), vault, params);
        escrow = new JobEscrow(token, market, params);
        court = new ViolationCourt(vault, market, escrow, params);
        market.wire(address(escrow), address(court));
        vault.addController(address(market));
        vault.addController(address(court));
        params.add(localParams());
    }

    function localParams() internal view returns (Params memory p) {
        (p.evidenceTail, p.collect, p.appeal, p.arbitration, p.margin, p.unbonding) = (4, 6, 4, 2, 1, 17);
        (p.objectionWindow, p.exitNotice, p.feeBps, p.slashBadComputeBps) = (2, 1, 200, 5_000);
        (p.slashEquivocationBps, p.slashBadAggregateBps) = (10_000, 5_000);
        (p.slashVerifierEquivocationBps, p.slashFalseRootBps) = (10_000, 10_000);
        (p.verifierShareBps, p.submitterShareBps, p.treasuryFloorBps) = (3_000, 4_000, 3_000);
        (p.quorumStakeBps, p.gammaBps, p.spamFeeBps, p.kappaBps) = (5_000, 10_000, 100, 10_000);
        (p.treasury, p.minBond, p.minSlotStake, p.minSeatStake) = (treasury, 1 ether, 10 ether, 10 ether);
    }

    // --- people

    function cold(uint256 id) internal pure returns (address) {
        return address(uint160(0xC01D0000 + id));
    }

    function hotKey(uint256 id) internal pure returns (uint256) {
        return 0xA11CE + id;
    }

    function hot(uint256 id) internal pure returns (address) {
        return vm.addr(hotKey(id));
    }

    /// @dev An account with stake and a hot key.
    function join(uint256 id) internal {
        stake(cold(id), STAKE);
        grant(id);
    }

    function stake(address account, uint256 amount) internal {
        token.faucet(account, amount);
        vm.startPrank(account);
        token.approve(address(vault), amount);
        vault.deposit(amount);
        vm.stopPrank();
    }

    function grant(uint256 id) internal {
        uint64 deadline = uint64(block.timestamp + 100);
        bytes32 digest = vault.grantDigest(cold(id), hot(id), vault.signerNonce(cold(id)), deadline);
        bytes memory signature = signed(hotKey(id), digest);
        address signer = hot(id);
        vm.prank(cold(id));
        vault.registerSigner(signer, deadline, signature);
    }

    function signed(uint256 key, bytes32 digest) internal pure returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digest);
        return abi.encodePacked(r, s, v);
    }

    // --- jobs: workers are people 1.., verifiers 101..103

    function terms() internal view returns (JobTerms memory t) {
        (t.specDigest, t.stages, t.replicas, t.numSeats, t.quorum) = (keccak256("spec"), 4, 3, 3, 2);
        (t.slotStake, t.seatStake, t.budget, t.plannedSeconds) = (SLOT_STAKE, SEAT_STAKE, BUDGET, 200);
        (t.epochs, t.paramsVersion) = (5, 1);
        (t.claimDeadline, t.deadline) = (uint64(block.timestamp + 20), uint64(block.timestamp + 1_000));
    }

    function post() internal returns (uint256) {
        return post(terms());
    }

    function post(JobTerms memory t) internal returns (uint256 jobId) {
        token.faucet(submitter, t.budget);
        vm.startPrank(submitter);
        token.approve(address(escrow), t.budget);
        jobId = market.postJob(t, "file:job.toml");
        vm.stopPrank();
    }

    function claimSlot(uint256 jobId, uint32 slot, uint256 id) internal {
        address signer = hot(id);
        vm.prank(signer);
        market.claimSlot(jobId, slot);
    }

    function seat(uint256 jobId, uint256 id) internal {
        address signer = hot(id);
        vm.prank(signer);
        market.applySeat(jobId);
    }

    /// @dev A running job: three seats (101..103), workers 1 and 2 on slots 0 and 3.
    function running() internal returns (uint256 jobId) {
        for (uint256 i = 101; i <= 103; ++i) join(i);
        join(1);
        join(2);
        jobId = post();
        for (uint256 i = 101; i <= 103; ++i) seat(jobId, i);
        claimSlot(jobId, 0, 1);
        claimSlot(jobId, 3, 2);
    }

    // --- signatures of seats

    function seatPair(uint8 a, uint8 b) internal pure returns (uint8[] memory seats) {
        seats = new uint8[](2);
        (seats[0], seats[1]) = (a, b);
    }

    function seatSigns(bytes32 digest, uint8[] memory seats) internal pure returns (bytes[] memory signatures) {
        signatures = new bytes[](seats.length);
        for (uint256 i = 0; i < seats.length; ++i) signatures[i] = signed(hotKey(101 + seats[i]), digest);
    }

    function settlement(uint256 jobId, uint64 epoch, bytes32 root, uint128 total) internal {
        uint8[] memory seats = seatPair(0, 1);
        bytes[] memory signatures = seatSigns(
            escrow.settlementDigest(jobId, epoch, root, total, bytes32(uint256(7))),
            seats
        );
        escrow.submitSettlement(jobId, epoch, root, total, bytes32(uint256(7)), seats, signatures);
    }

    function finish(uint256 jobId, uint64 epoch) internal {
        uint8[] memory seats = seatPair(0, 2);
        bytes[] memory signatures = seatSigns(market.finishDigest(jobId, epoch, bytes32(uint256(9))), seats);
        market.finishJob(jobId, epoch, bytes32(uint256(9)), seats, signatures);
    }

    function accuse(uint256 jobId, uint32 slot, uint32 nonce, uint256 salt) internal pure returns (Accusation memory) {
        return Accusation(jobId, slot, nonce, ViolationKind.BadCompute, keccak256(abi.encode("commitment", salt)));
    }

    function vote(Accusation memory a, uint8 seatIndex) internal view returns (Vote memory v) {
        v.seat = seatIndex;
        v.evidenceHash = keccak256(abi.encode("evidence", seatIndex));
        v.deadline = uint64(block.timestamp + 60);
        bytes32 digest = court.reportDigest(
            court.caseIdOf(a),
            cold(101 + seatIndex),
            a.kind,
            a.commitmentHash,
            v.evidenceHash,
            v.deadline
        );
        v.signature = signed(hotKey(101 + seatIndex), digest);
    }

    function convicted(uint256 jobId, uint32 slot, uint32 nonce, uint256 salt) internal returns (bytes32 caseId) {
        Accusation memory a = accuse(jobId, slot, nonce, salt);
        Vote[] memory votes = new Vote[](2);
        (votes[0], votes[1]) = (vote(a, 0), vote(a, 1));
        caseId = court.reportBatch(a, votes);
        vm.warp(block.timestamp + 4);
        court.execute(caseId);
    }

    // --- Merkle trees of two leaves

    function pair(bytes32 a, bytes32 b) internal pure returns (bytes32) {
        return a < b ? keccak256(abi.encode(a, b)) : keccak256(abi.encode(b, a));
    }

    function twoLeaves(uint256 jobId, address a, uint256 ca, address b, uint256 cb) internal view returns (bytes32) {
        return pair(escrow.leaf(jobId, a, ca), escrow.leaf(jobId, b, cb));
    }

    function proofOf(uint256 jobId, address other, uint256 cumulative) internal view returns (bytes32[] memory proof) {
        proof = new bytes32[](1);
        proof[0] = escrow.leaf(jobId, other, cumulative);
    }

    function bonded(address account) internal view returns (uint256 amount) {
        (amount, , , , , ) = vault.stakeOf(account);
    }

    function credits(address account) internal view returns (uint256 amount) {
        (, , , , amount, ) = vault.stakeOf(account);
    }

    function locked(address account) internal view returns (uint256 amount) {
        (, amount, , , , ) = vault.stakeOf(account);
    }

    function held(uint256 jobId, uint32 slot) internal view returns (Slot memory) {
        return market.getSlot(jobId, slot);
    }
}
