// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {AccessManaged} from "@openzeppelin/contracts/access/manager/AccessManaged.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {ActiveClock} from "./ActiveClock.sol";
import {IJobEscrow} from "./interfaces/IJobEscrow.sol";
import {
    CaseSubject,
    IJobMarket,
    Job,
    JobState,
    JobTerms,
    Seat,
    SeatState,
    SlashSplit,
    Slot,
    SlotState
} from "./interfaces/IJobMarket.sol";
import {IMarketParams} from "./interfaces/IMarketParams.sol";
import {IStakeVault} from "./interfaces/IStakeVault.sol";
import {IViolationCourt, ViolationKind} from "./interfaces/IViolationCourt.sol";
import {JobLib} from "./libraries/JobLib.sol";

/// @title JobMarket
/// @notice See IJobMarket.
contract JobMarket is AccessManaged, EIP712, ReentrancyGuardTransient, ActiveClock, IJobMarket {
    using JobLib for Job;
    using JobLib for Slot;

    /// @dev EIP-712 type by which seats say that a job is finished.
    bytes32 private constant FINISH_TYPEHASH =
        keccak256("JobFinish(uint256 jobId,uint64 epoch,bytes32 stepRecordHash)");

    IStakeVault private immutable _vault;
    IMarketParams private immutable _params;
    IJobEscrow private _escrow;
    /// @inheritdoc IJobMarket
    address public court;

    /// @inheritdoc IJobMarket
    uint256 public jobCount;
    mapping(uint256 jobId => Job) private _jobs;
    mapping(uint256 jobId => mapping(uint32 slot => Slot)) private _slots;
    mapping(uint256 jobId => mapping(uint8 seat => Seat)) private _seats;
    mapping(uint256 jobId => mapping(address account => JobLib.Member)) private _members;
    /// @dev locks whose slot went on to another assignment while a second case still held them
    mapping(uint256 lockId => bool) private _orphans;

    modifier onlyCourt() {
        if (msg.sender != court) revert NotCourt(msg.sender);
        _;
    }

    constructor(address access, IStakeVault vault, IMarketParams params_) AccessManaged(access) EIP712("JobMarket", "1") {
        _vault = vault;
        _params = params_;
    }

    /// @inheritdoc IJobMarket
    function wire(address escrow_, address court_) external restricted {
        if (court != address(0)) revert AlreadyWired();
        _escrow = IJobEscrow(escrow_);
        court = court_;
    }

    // --- jobs

    /// @inheritdoc IJobMarket
    function postJob(JobTerms calldata terms, string calldata uri) external nonReentrant returns (uint256 jobId) {
        _params.requireTerms(terms, _now());
        jobId = ++jobCount;
        Job storage job = _jobs[jobId];
        job.submitter = msg.sender;
        job.stages = terms.stages;
        job.replicas = terms.replicas;
        job.numSeats = terms.numSeats;
        job.quorum = terms.quorum;
        job.paramsVersion = terms.paramsVersion;
        job.slotStake = terms.slotStake;
        job.seatStake = terms.seatStake;
        job.budget = terms.budget;
        job.plannedSeconds = terms.plannedSeconds;
        job.claimDeadline = uint40(terms.claimDeadline);
        job.deadline = uint40(terms.deadline);
        job.epochs = terms.epochs;
        job.specDigest = terms.specDigest;
        emit JobPosted(jobId, msg.sender, terms.specDigest, terms.budget, terms.paramsVersion, uri);
        job.enter(jobId, JobState.Open, _now());
        _escrow.fund(
            jobId,
            msg.sender,
            terms.budget,
            uint256(terms.quorum) * terms.seatStake,
            terms.plannedSeconds,
            terms.paramsVersion
        );
    }

    /// @inheritdoc IJobMarket
    function cancelJob(uint256 jobId) external {
        Job storage job = _requireState(jobId, JobState.Open);
        if (msg.sender != job.submitter) revert NotSubmitter(jobId, msg.sender);
        _cancel(jobId, job);
    }

    /// @inheritdoc IJobMarket
    function closeJob(uint256 jobId) external {
        Job storage job = _requireState(jobId, JobState.Active);
        if (msg.sender != job.submitter) revert NotSubmitter(jobId, msg.sender);
        job.enter(jobId, JobState.Closing, _now());
    }

    /// @inheritdoc IJobMarket
    function finishJob(
        uint256 jobId,
        uint64 epoch,
        bytes32 stepRecordHash,
        uint8[] calldata seats,
        bytes[] calldata signatures
    ) external {
        Job storage job = _requireState(jobId, JobState.Active);
        _requireQuorum(jobId, job.quorum, finishDigest(jobId, epoch, stepRecordHash), seats, signatures);
        uint64 last = _escrow.lastEpoch(jobId);
        if (last != epoch) revert WrongEpoch(epoch, last);
        job.enter(jobId, JobState.Closing, _now());
    }

    /// @inheritdoc IJobMarket
    function settleJob(uint256 jobId) public {
        Job storage job = _requireState(jobId, JobState.Closing);
        uint256 from = job.closingAt + _evidenceTail(job);
        if (_now() < from) revert TooEarly(from, _now());
        if (job.openCases != 0) revert CasesOpen(jobId, job.openCases);
        job.enter(jobId, JobState.Settled, _now());
        _escrow.settle(jobId);
    }

    /// @inheritdoc IJobMarket
    function pushTimeout(uint256 jobId) external {
        Job storage job = _job(jobId);
        if (job.state == JobState.Closing) settleJob(jobId);
        else if (job.isUnderstaffed(_now())) _cancel(jobId, job);
        else if (job.state == JobState.Active && _now() >= job.deadline) job.enter(jobId, JobState.Closing, _now());
        else revert NothingDue(jobId);
    }

    // --- slots

    /// @inheritdoc IJobMarket
    function claimSlot(uint256 jobId, uint32 slot) external {
        Job storage job = _job(jobId);
        job.requireClaimable(jobId, _now());
        Slot storage own = _slot(jobId, job, slot);
        if (own.state != SlotState.Vacant) revert SlotTaken(jobId, slot, own.account);
        (address account, address hotKey) = _caller();
        JobLib.Member storage member = _members[jobId][account];
        if (member.seatPlusOne != 0) revert SeatHeld(jobId, account);
        uint16 stage = uint16(slot / job.replicas);
        uint128 bit = uint128(1) << stage;
        if (member.stageMask & bit != 0) revert StageHeld(jobId, stage, account);
        member.stageMask |= bit;
        uint256 lockId = _vault.lock(account, job.slotStake);
        own.account = account;
        own.state = SlotState.Claimed;
        own.claimedAt = uint40(_now());
        own.hotKey = hotKey;
        own.lockId = uint48(lockId);
        job.slotsClaimed += 1;
        if (job.state == JobState.Open) job.enter(jobId, JobState.Active, _now());
        emit SlotClaimed(jobId, slot, account, own.nonce, hotKey, lockId);
    }

    /// @inheritdoc IJobMarket
    function exitSlot(uint256 jobId, uint32 slot) external {
        Job storage job = _requireState(jobId, JobState.Active);
        Slot storage own = _slot(jobId, job, slot);
        if (own.state != SlotState.Claimed) revert WrongSlotState(jobId, slot, own.stateAt(_now()));
        address account = own.account;
        if (msg.sender != account && _vault.accountOf(msg.sender) != account) {
            revert NotHolder(jobId, slot, msg.sender);
        }
        (uint32 exitNotice, uint32 evidenceTail) = _params.exitWindows(job.paramsVersion);
        own.state = SlotState.Exiting;
        own.exitAt = uint40(_now() + exitNotice);
        uint64 releasableAt = own.exitAt + evidenceTail;
        _vault.scheduleRelease(own.lockId, releasableAt);
        emit SlotExited(jobId, slot, account, own.nonce, own.exitAt, releasableAt);
    }

    /// @inheritdoc IJobMarket
    function releaseSlot(uint256 jobId, uint32 slot) external {
        Job storage job = _job(jobId);
        Slot storage own = _slot(jobId, job, slot);
        if (own.state != SlotState.Claimed && own.state != SlotState.Exiting) {
            revert WrongSlotState(jobId, slot, own.state);
        }
        uint64 end = own.dutyEnd(job, _evidenceTail(job));
        if (_now() < end) revert TooEarly(end, _now());
        (address account, uint32 nonce, uint256 lockId) = (own.account, own.nonce, own.lockId);
        _leave(jobId, job, slot, account);
        bool vacant = own.vacate(job, SlotState.Released);
        emit SlotReleased(jobId, slot, account, nonce, vacant);
        _vault.scheduleRelease(lockId, end);
        _vault.release(lockId);
    }

    // --- seats

    /// @inheritdoc IJobMarket
    function applySeat(uint256 jobId) external returns (uint8 seat) {
        Job storage job = _job(jobId);
        if (job.state != JobState.Open && job.state != JobState.Active) revert WrongJobState(jobId, job.state);
        if (_now() >= job.claimDeadline) revert TooLate(job.claimDeadline, _now());
        seat = job.seatsTaken;
        if (seat >= job.numSeats) revert NoSeatLeft(jobId, job.numSeats);
        (address account, address hotKey) = _caller();
        JobLib.Member storage member = _members[jobId][account];
        if (member.seatPlusOne != 0) revert SeatHeld(jobId, account);
        if (member.stageMask != 0) revert WorkerOfJob(jobId, account);
        member.seatPlusOne = seat + 1;
        job.seatsTaken = seat + 1;
        uint256 lockId = _vault.lock(account, job.seatStake);
        (, , uint256 free, , , ) = _vault.stakeOf(account);
        uint256 needed = seatBondReserve(jobId);
        if (free < needed) revert BondReserveMissing(account, needed, free);
        _seats[jobId][seat] = Seat(account, SeatState.Seated, uint40(_now()), hotKey, uint48(lockId));
        emit SeatTaken(jobId, seat, account, hotKey, lockId);
    }

    /// @inheritdoc IJobMarket
    function releaseSeat(uint256 jobId, uint8 seat) external {
        Job storage job = _job(jobId);
        if (job.state != JobState.Settled && job.state != JobState.Cancelled) revert WrongJobState(jobId, job.state);
        Seat storage own = _seats[jobId][seat];
        if (own.state != SeatState.Seated) revert UnknownSeat(jobId, seat, job.seatsTaken);
        own.state = SeatState.Released;
        emit SeatReleased(jobId, seat, own.account);
        _vault.scheduleRelease(own.lockId, job.endedAt);
        _vault.release(own.lockId);
    }

    // --- court only

    /// @inheritdoc IJobMarket
    function openCase(
        uint256 jobId,
        uint32 slot,
        uint32 nonce
    ) external onlyCourt returns (CaseSubject memory subject) {
        Job storage job = _job(jobId);
        if (job.state != JobState.Active && job.state != JobState.Closing) revert WrongJobState(jobId, job.state);
        Slot storage own = _slot(jobId, job, slot);
        if (own.nonce != nonce) revert WrongNonce(jobId, slot, nonce, own.nonce);
        if (own.state != SlotState.Claimed && own.state != SlotState.Exiting) {
            revert WrongSlotState(jobId, slot, own.state);
        }
        uint64 end = own.dutyEnd(job, _evidenceTail(job));
        if (_now() >= end) revert TooLate(end, _now());
        subject = CaseSubject(
            own.account,
            own.lockId,
            job.quorum,
            job.seatsTaken,
            job.paramsVersion,
            job.slotStake
        );
        job.openCases += 1;
        _members[jobId][subject.account].openCases += 1;
        _vault.hold(subject.lockId);
    }

    /// @inheritdoc IJobMarket
    function markQuorum(uint256 jobId, address account) external onlyCourt {
        _members[jobId][account].minEpoch = _escrow.lastEpoch(jobId) + 1;
    }

    /// @inheritdoc IJobMarket
    function closeCase(uint256 jobId, address account, uint256 lockId) external onlyCourt {
        _dropCase(jobId, account, lockId);
        if (_orphans[lockId] && _vault.getLock(lockId).holds == 0) _vault.release(lockId);
    }

    /// @inheritdoc IJobMarket
    function convict(
        uint256 jobId,
        uint32 slot,
        uint32 nonce,
        address account,
        uint256 lockId,
        SlashSplit calldata split
    ) external onlyCourt {
        _dropCase(jobId, account, lockId);
        _slash(jobId, lockId, split);
        _vault.ban(account);
        Slot storage own = _slots[jobId][slot];
        if (own.nonce == nonce && own.account == account && own.state != SlotState.Terminated) {
            Job storage job = _jobs[jobId];
            _leave(jobId, job, slot, account);
            own.vacate(job, SlotState.Terminated);
            _vault.scheduleRelease(lockId, _now());
            emit SlotTerminated(jobId, slot, account, nonce);
        }
        // What the severity leaves of the lock is free, unless another case still holds it.
        if (_vault.getLock(lockId).holds == 0) _vault.release(lockId);
        else _orphans[lockId] = true;
    }

    // --- views

    /// @inheritdoc IJobMarket
    function escrow() external view returns (address) {
        return address(_escrow);
    }

    /// @inheritdoc IJobMarket
    function getJob(uint256 jobId) external view returns (Job memory) {
        return _jobs[jobId];
    }

    /// @inheritdoc IJobMarket
    function getSlot(uint256 jobId, uint32 slot) public view returns (Slot memory found) {
        Slot storage own = _slots[jobId][slot];
        found = own;
        found.state = own.stateAt(_now());
    }

    /// @inheritdoc IJobMarket
    function getSlots(uint256 jobId) external view returns (Slot[] memory found) {
        uint32 count = uint32(_jobs[jobId].stages) * _jobs[jobId].replicas;
        found = new Slot[](count);
        for (uint32 i = 0; i < count; ++i) found[i] = getSlot(jobId, i);
    }

    /// @inheritdoc IJobMarket
    function getSeat(uint256 jobId, uint8 seat) external view returns (Seat memory) {
        return _seats[jobId][seat];
    }

    /// @inheritdoc IJobMarket
    function getSeats(uint256 jobId) external view returns (Seat[] memory found) {
        uint8 count = _jobs[jobId].seatsTaken;
        found = new Seat[](count);
        for (uint8 i = 0; i < count; ++i) found[i] = _seats[jobId][i];
    }

    /// @inheritdoc IJobMarket
    function accountInJob(
        uint256 jobId,
        address account
    ) external view returns (uint128 stageMask, uint32 openCases, uint64 minEpoch, uint8 seatPlusOne) {
        JobLib.Member storage member = _members[jobId][account];
        return (member.stageMask, member.openCases, member.minEpoch, member.seatPlusOne);
    }

    /// @inheritdoc IJobMarket
    function seatBondReserve(uint256 jobId) public view returns (uint256) {
        Job storage job = _job(jobId);
        (, uint256 bond) = IViolationCourt(court).quoteBond(jobId, ViolationKind.BadCompute);
        return bond * ((uint256(job.stages) * job.replicas + 3) / 4);
    }

    /// @inheritdoc IJobMarket
    function slotDutyEnd(uint256 jobId, uint32 slot) external view returns (uint64) {
        Job storage job = _job(jobId);
        return _slot(jobId, job, slot).dutyEnd(job, _evidenceTail(job));
    }

    /// @inheritdoc IJobMarket
    function requireQuorum(
        uint256 jobId,
        bytes32 digest,
        uint8[] calldata seats,
        bytes[] calldata signatures
    ) external view {
        _requireQuorum(jobId, _job(jobId).quorum, digest, seats, signatures);
    }

    /// @inheritdoc IJobMarket
    function requireRoot(
        uint256 jobId,
        bytes32 digest,
        uint8[] calldata seats,
        bytes[] calldata signatures
    ) external view returns (uint64 activeAt) {
        Job storage job = _job(jobId);
        if (job.state == JobState.Closing) {
            uint256 until = job.closingAt + _evidenceTail(job);
            if (_now() >= until) revert TooLate(until, _now());
        } else if (job.state != JobState.Active) {
            revert WrongJobState(jobId, job.state);
        }
        _requireQuorum(jobId, job.quorum, digest, seats, signatures);
        return job.activeAt;
    }

    /// @inheritdoc IJobMarket
    function finishDigest(uint256 jobId, uint64 epoch, bytes32 stepRecordHash) public view returns (bytes32) {
        return _hashTypedDataV4(keccak256(abi.encode(FINISH_TYPEHASH, jobId, epoch, stepRecordHash)));
    }

    /// @inheritdoc IJobMarket
    function domainSeparator() external view returns (bytes32) {
        return _domainSeparatorV4();
    }

    // --- inside

    function _cancel(uint256 jobId, Job storage job) private {
        if (job.openCases != 0) revert CasesOpen(jobId, job.openCases);
        job.enter(jobId, JobState.Cancelled, _now());
        _escrow.cancel(jobId);
    }

    function _leave(uint256 jobId, Job storage job, uint32 slot, address account) private {
        _members[jobId][account].stageMask &= ~(uint128(1) << uint16(slot / job.replicas));
    }

    function _dropCase(uint256 jobId, address account, uint256 lockId) private {
        _jobs[jobId].openCases -= 1;
        _members[jobId][account].openCases -= 1;
        _vault.unhold(lockId);
    }

    function _slash(uint256 jobId, uint256 lockId, SlashSplit calldata split) private {
        if (split.toReporters + split.toSubmitter + split.toTreasury == 0) return;
        address[] memory recipients = new address[](3);
        uint256[] memory amounts = new uint256[](3);
        (recipients[0], amounts[0]) = (msg.sender, split.toReporters);
        (recipients[1], amounts[1]) = (_jobs[jobId].submitter, split.toSubmitter);
        (recipients[2], amounts[2]) = (split.treasury, split.toTreasury);
        _vault.slash(lockId, recipients, amounts);
    }

    function _requireQuorum(
        uint256 jobId,
        uint256 quorum,
        bytes32 digest,
        uint8[] calldata seats,
        bytes[] calldata signatures
    ) private view {
        if (seats.length != signatures.length) revert LengthMismatch(seats.length, signatures.length);
        if (seats.length < quorum) revert QuorumMissing(quorum, seats.length);
        for (uint256 i = 0; i < seats.length; ++i) {
            if (i > 0 && seats[i] <= seats[i - 1]) revert SeatsNotAscending(seats[i - 1], seats[i]);
            Seat storage seat = _seats[jobId][seats[i]];
            if (seat.state != SeatState.Seated) revert UnknownSeat(jobId, seats[i], _jobs[jobId].seatsTaken);
            address recovered = ECDSA.recover(digest, signatures[i]);
            if (recovered != seat.hotKey) revert BadSeatSignature(seats[i], seat.hotKey, recovered);
        }
    }

    /// @dev The account that the caller acts for: its owner when the caller is a hot key, else itself.
    function _caller() private view returns (address account, address hotKey) {
        account = _vault.accountOf(msg.sender);
        if (account != address(0)) return (account, msg.sender);
        hotKey = _vault.hotKeyOf(msg.sender);
        if (hotKey == address(0)) revert NoHotKey(msg.sender);
        return (msg.sender, hotKey);
    }

    function _evidenceTail(Job storage job) private view returns (uint256) {
        (, uint32 evidenceTail) = _params.exitWindows(job.paramsVersion);
        return evidenceTail;
    }

    function _job(uint256 jobId) private view returns (Job storage job) {
        job = _jobs[jobId];
        if (job.state == JobState.None) revert UnknownJob(jobId);
    }

    function _requireState(uint256 jobId, JobState needed) private view returns (Job storage job) {
        job = _job(jobId);
        if (job.state != needed) revert WrongJobState(jobId, job.state);
    }

    function _slot(uint256 jobId, Job storage job, uint32 slot) private view returns (Slot storage) {
        uint256 count = uint256(job.stages) * job.replicas;
        if (slot >= count) revert UnknownSlot(jobId, slot, count);
        return _slots[jobId][slot];
    }
}
