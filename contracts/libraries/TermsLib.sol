// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {IJobMarket, JobTerms} from "../interfaces/IJobMarket.sol";
import {Params} from "../interfaces/IMarketParams.sol";
import {PayMath} from "./PayMath.sol";

/// @title TermsLib
/// @notice The bounds of a job's terms under a parameter set.
library TermsLib {
    uint256 internal constant MAX_STAGES = 128; // a bit each in JobLib.Member.stageMask
    uint256 internal constant MAX_REPLICAS = 256;
    uint256 internal constant MAX_SEATS = 32; // a bit each in Case.voted

    /// @notice Checks the terms of a new job against the parameters it names.
    function check(JobTerms calldata t, Params memory p, uint256 nowAt) internal pure {
        _bound("stages", t.stages, 1, MAX_STAGES);
        _bound("replicas", t.replicas, 1, MAX_REPLICAS);
        _bound("numSeats", t.numSeats, 1, MAX_SEATS);
        // A majority, so that two quorums always share a seat.
        _bound("quorum", t.quorum, uint256(t.numSeats) / 2 + 1, t.numSeats);
        _bound("budget", t.budget, 1, type(uint96).max);
        _bound("plannedSeconds", t.plannedSeconds, 1, type(uint32).max);
        _bound("claimDeadline", t.claimDeadline, nowAt + 1, type(uint40).max);
        _bound("deadline", t.deadline, uint256(t.claimDeadline), type(uint40).max);
        _bound("slotStake", t.slotStake, Math.max(p.minSlotStake, minSlotStake(t, p)), type(uint96).max);
        _bound("seatStake", t.seatStake, Math.max(p.minSeatStake, minSeatStake(t, p)), type(uint96).max);
    }

    /// @notice kappa x what one slot can be paid within an evidence tail.
    function minSlotStake(JobTerms calldata t, Params memory p) internal pure returns (uint256) {
        uint256 reach = Math.min(t.budget, PayMath.paceLimit(t.budget, p.evidenceTail, t.plannedSeconds));
        uint256 slots = uint256(t.stages) * t.replicas;
        return Math.mulDiv(reach, p.kappaBps, PayMath.BPS * slots, Math.Rounding.Ceil);
    }

    /// @notice The locks of a quorum cover what it can promise within one objection window.
    function minSeatStake(JobTerms calldata t, Params memory p) internal pure returns (uint256) {
        uint256 reach = Math.min(t.budget, PayMath.paceLimit(t.budget, p.objectionWindow, t.plannedSeconds));
        return Math.ceilDiv(reach, t.quorum);
    }

    function _bound(string memory name, uint256 had, uint256 low, uint256 high) private pure {
        if (had < low || had > high) revert IJobMarket.BadTerm(name, low, high, had);
    }
}
