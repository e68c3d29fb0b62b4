// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {ActiveClock} from "./ActiveClock.sol";
import {IJobEscrow} from "./interfaces/IJobEscrow.sol";
import {CaseSubject, IJobMarket, Job, Seat, SeatState, SlashSplit} from "./interfaces/IJobMarket.sol";
import {CaseTerms, IMarketParams, SplitTerms} from "./interfaces/IMarketParams.sol";
import {IStakeVault} from "./interfaces/IStakeVault.sol";
import {Accusation, Case, CaseState, IViolationCourt, ViolationKind, Vote} from "./interfaces/IViolationCourt.sol";
import {CaseLib} from "./libraries/CaseLib.sol";
import {PayMath} from "./libraries/PayMath.sol";

/// @title ViolationCourt
/// @notice See IViolationCourt.
contract ViolationCourt is EIP712, ActiveClock, IViolationCourt {
    using CaseLib for Case;
    using SafeCast for uint256;

    /// @dev EIP-712 type of a report.
    bytes32 private constant REPORT_TYPEHASH =
        keccak256(
            "ViolationReport(bytes32 caseId,address verifier,uint8 kind,bytes32 commitmentHash,bytes32 evidenceHash,uint64 deadline)"
        );

    IStakeVault private immutable _vault;
    IJobMarket private immutable _market;
    IJobEscrow private immutable _escrow;
    IMarketParams private immutable _params;

    mapping(bytes32 caseId => Case) private _cases;
    mapping(bytes32 caseId => mapping(uint8 seat => uint256)) private _bonds;
    /// @dev seats that have a case without a quorum on a slot, a bit each
    mapping(uint256 jobId => mapping(uint32 slot => uint256)) private _openSeats;

    constructor(IStakeVault vault, IJobMarket market, IJobEscrow escrow, IMarketParams params_) EIP712("ViolationCourt", "1") {
        _vault = vault;
        _market = market;
        _escrow = escrow;
        _params = params_;
    }

    /// @inheritdoc IViolationCourt
    function report(Accusation calldata accusation, Vote calldata vote) external returns (bytes32 caseId) {
        CaseTerms memory terms;
        (caseId, terms) = _join(accusation);
        if (!_vote(caseId, accusation, vote)) revert NoNewVote(caseId);
        _count(caseId, accusation, terms);
    }

    /// @inheritdoc IViolationCourt
    function reportBatch(Accusation calldata accusation, Vote[] calldata votes) external returns (bytes32 caseId) {
        CaseTerms memory terms;
        (caseId, terms) = _join(accusation);
        uint256 counted = 0;
        // At most as many as the job has seats: a seat that has voted is passed over.
        for (uint256 i = 0; i < votes.length; ++i) {
            if (_vote(caseId, accusation, votes[i])) ++counted;
        }
        if (counted == 0) revert NoNewVote(caseId);
        _count(caseId, accusation, terms);
    }

    /// @inheritdoc IViolationCourt
    function execute(bytes32 caseId) external {
        Case storage own = _case(caseId);
        if (own.state != CaseState.Appealable) revert WrongCaseState(caseId, own.state);
        if (_now() < own.appealUntil) revert TooEarly(own.appealUntil, _now());
        own.state = CaseState.Executed;
        (uint256 jobId, address accused) = (own.jobId, own.accused);
        emit CaseUpheld(caseId, jobId, accused);
        uint256 amount = Math.min(own.slashAsk, _vault.getLock(own.lockId).amount);
        SlashSplit memory split = _split(own, amount);
        own.slashed = uint128(amount);
        own.rewardEach = uint128(split.toReporters / own.reporters);
        _market.convict(jobId, own.slot, own.nonce, accused, own.lockId, split);
        emit CaseExecuted(caseId, jobId, accused, amount, split.toReporters, split.toSubmitter, split.toTreasury);
    }

    /// @inheritdoc IViolationCourt
    function expire(bytes32 caseId) external {
        Case storage own = _case(caseId);
        if (own.state != CaseState.Collecting) revert WrongCaseState(caseId, own.stateAt(_now()));
        if (_now() < own.collectUntil) revert TooEarly(own.collectUntil, _now());
        own.state = CaseState.Expired;
        _openSeats[own.jobId][own.slot] &= ~uint256(own.voted);
        emit CaseExpired(caseId, own.jobId, own.accused);
        _market.closeCase(own.jobId, own.accused, own.lockId);
    }

    /// @inheritdoc IViolationCourt
    function settleBond(bytes32 caseId, uint8 seat) external {
        Case storage own = _case(caseId);
        bool expired = own.state == CaseState.Expired;
        if (!expired && own.state != CaseState.Executed) revert WrongCaseState(caseId, own.stateAt(_now()));
        uint256 lockId = _bonds[caseId][seat];
        if (lockId == 0) revert NoBond(caseId, seat);
        _bonds[caseId][seat] = 0;
        address verifier = _market.getSeat(own.jobId, seat).account;
        uint256 fee = 0;
        if (expired) fee = _payFee(lockId, own);
        else if (own.rewardEach != 0) _vault.transferCredit(verifier, own.rewardEach);
        _vault.scheduleRelease(lockId, _now());
        uint256 returned = _vault.release(lockId);
        emit BondSettled(caseId, verifier, returned, expired ? 0 : own.rewardEach, fee);
    }

    // --- views

    /// @inheritdoc IViolationCourt
    function caseIdOf(Accusation calldata a) public view returns (bytes32) {
        return keccak256(abi.encode(block.chainid, address(this), a.jobId, a.slot, a.nonce, a.kind, a.commitmentHash));
    }

    /// @inheritdoc IViolationCourt
    function getCase(bytes32 caseId) external view returns (Case memory found) {
        found = _cases[caseId];
        found.state = _cases[caseId].stateAt(_now());
    }

    /// @inheritdoc IViolationCourt
    function bondOf(bytes32 caseId, uint8 seat) external view returns (uint256 lockId) {
        return _bonds[caseId][seat];
    }

    /// @inheritdoc IViolationCourt
    function quoteBond(uint256 jobId, ViolationKind kind) external view returns (uint256 slashAsk, uint256 bond) {
        Job memory job = _market.getJob(jobId);
        return _quote(job.slotStake, job.quorum, _params.caseTerms(job.paramsVersion), kind);
    }

    /// @inheritdoc IViolationCourt
    function reportDigest(
        bytes32 caseId,
        address verifier,
        ViolationKind kind,
        bytes32 commitmentHash,
        bytes32 evidenceHash,
        uint64 deadline
    ) public view returns (bytes32) {
        return
            _hashTypedDataV4(
                keccak256(
                    abi.encode(REPORT_TYPEHASH, caseId, verifier, kind, commitmentHash, evidenceHash, deadline)
                )
            );
    }

    // --- inside

    /// @dev The case of an accusation, opened when it is new.
    function _join(Accusation calldata a) private returns (bytes32 caseId, CaseTerms memory terms) {
        caseId = caseIdOf(a);
        Case storage own = _cases[caseId];
        if (own.state != CaseState.None) {
            own.requireCollecting(caseId, _now());
            return (caseId, _params.caseTerms(own.paramsVersion));
        }
        if (a.kind != ViolationKind.BadCompute) revert KindNotSupported(a.kind);
        CaseSubject memory subject = _market.openCase(a.jobId, a.slot, a.nonce);
        terms = _params.caseTerms(subject.paramsVersion);
        (uint256 ask, uint256 bond) = _quote(subject.slotStake, subject.quorum, terms, a.kind);
        own.accused = subject.account;
        own.jobId = a.jobId.toUint64();
        own.slot = a.slot;
        own.nonce = a.nonce;
        own.kind = a.kind;
        own.state = CaseState.Collecting;
        own.openedAt = uint40(_now());
        own.collectUntil = uint40(_now() + terms.collect);
        own.quorum = subject.quorum;
        own.numSeats = subject.seatsTaken;
        own.paramsVersion = subject.paramsVersion;
        own.slashAsk = ask.toUint96();
        own.bond = bond.toUint96();
        own.lockId = subject.lockId;
        emit CaseOpened(caseId, a.jobId, subject.account, ask, bond, own.collectUntil);
    }

    /// @dev One seat's vote. Returns false, and changes nothing, when it has voted already.
    function _vote(bytes32 caseId, Accusation calldata a, Vote calldata vote) private returns (bool) {
        Case storage own = _cases[caseId];
        Seat memory seat = _market.getSeat(a.jobId, vote.seat);
        if (seat.state != SeatState.Seated || seat.account == own.accused) {
            revert SeatCannotVote(vote.seat, seat.account);
        }
        uint32 bit = uint32(1) << vote.seat;
        if (own.voted & bit != 0) return false;
        if (_openSeats[a.jobId][a.slot] & bit != 0) revert OpenCaseOfSeat(vote.seat, a.jobId, a.slot);
        _checkSignature(caseId, a, vote, seat);
        own.voted |= bit;
        own.reporters += 1;
        _openSeats[a.jobId][a.slot] |= bit;
        uint256 bondLockId = _vault.lock(seat.account, own.bond);
        _bonds[caseId][vote.seat] = bondLockId;
        emit ReportFiled(
            caseId,
            a.jobId,
            seat.account,
            own.accused,
            a.slot,
            a.nonce,
            a.kind,
            a.commitmentHash,
            vote.evidenceHash,
            bondLockId
        );
        return true;
    }

    function _checkSignature(
        bytes32 caseId,
        Accusation calldata a,
        Vote calldata vote,
        Seat memory seat
    ) private view {
        if (_now() >= vote.deadline) revert ReportExpired(vote.deadline, _now());
        bytes32 digest = reportDigest(
            caseId,
            seat.account,
            a.kind,
            a.commitmentHash,
            vote.evidenceHash,
            vote.deadline
        );
        address recovered = ECDSA.recover(digest, vote.signature);
        if (recovered != seat.hotKey) revert BadReportSignature(vote.seat, seat.hotKey, recovered);
    }

    /// @dev Collecting -> Appealable when the votes are a quorum.
    function _count(bytes32 caseId, Accusation calldata a, CaseTerms memory terms) private {
        Case storage own = _cases[caseId];
        if (!own.hasQuorum(terms.quorumStakeBps)) return;
        own.state = CaseState.Appealable;
        own.appealUntil = uint40(_now() + terms.appeal);
        _openSeats[a.jobId][a.slot] &= ~uint256(own.voted);
        emit CaseQuorum(caseId, a.jobId, own.accused, own.reporters, own.appealUntil);
        _market.markQuorum(a.jobId, own.accused);
    }

    function _quote(
        uint256 slotStake,
        uint256 quorum,
        CaseTerms memory terms,
        ViolationKind kind
    ) private pure returns (uint256 ask, uint256 bond) {
        ask = PayMath.slashAsk(slotStake, CaseLib.severity(terms, kind));
        bond = PayMath.bondOf(ask, terms.gammaBps, quorum, terms.minBond);
    }

    function _split(Case storage own, uint256 amount) private view returns (SlashSplit memory split) {
        SplitTerms memory terms = _params.splitTerms(own.paramsVersion);
        split.treasury = terms.treasury;
        (, split.toReporters, split.toSubmitter, split.toTreasury) = PayMath.split(
            amount,
            own.reporters,
            terms.verifierShareBps,
            terms.submitterShareBps,
            _escrow.claimed(own.jobId, own.accused)
        );
    }

    function _payFee(uint256 lockId, Case storage own) private returns (uint256 fee) {
        fee = Math.mulDiv(own.bond, _params.splitTerms(own.paramsVersion).spamFeeBps, PayMath.BPS, Math.Rounding.Ceil);
        address[] memory recipients = new address[](1);
        uint256[] memory amounts = new uint256[](1);
        (recipients[0], amounts[0]) = (own.accused, fee);
        _vault.slash(lockId, recipients, amounts);
    }

    function _case(bytes32 caseId) private view returns (Case storage own) {
        own = _cases[caseId];
        if (own.state == CaseState.None) revert UnknownCase(caseId);
    }
}
