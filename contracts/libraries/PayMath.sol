// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";

/// @title PayMath
/// @notice Every division of money, and which way it rounds.
library PayMath {
    uint256 internal constant BPS = 10_000;

    /// @notice The fee on what is paid: rounded up, so dust goes to the treasury.
    function feeOf(uint256 paid, uint256 feeBps) internal pure returns (uint256) {
        return Math.mulDiv(paid, feeBps, BPS, Math.Rounding.Ceil);
    }

    /// @notice The most that can be paid out of a budget with the fee on top.
    function maxPaid(uint256 budget, uint256 feeBps) internal pure returns (uint256) {
        return Math.mulDiv(budget, BPS, BPS + feeBps);
    }

    /// @notice What may have been promised `elapsed` seconds after the first claim: twice the planned pace.
    function paceLimit(uint256 budget, uint256 elapsed, uint256 plannedSeconds) internal pure returns (uint256) {
        return Math.mulDiv(2 * budget, elapsed, plannedSeconds);
    }

    /// @notice Slash of a lock by severity.
    function slashAsk(uint256 lockAmount, uint256 severityBps) internal pure returns (uint256) {
        return Math.mulDiv(lockAmount, severityBps, BPS);
    }

    /// @notice Bond of a reporter: max(minBond, ceil(gamma x ask / quorum)), so that a quorum's bonds cover the ask.
    function bondOf(uint256 ask, uint256 gammaBps, uint256 quorum, uint256 minBond) internal pure returns (uint256) {
        return Math.max(minBond, Math.mulDiv(ask, gammaBps, BPS * quorum, Math.Rounding.Ceil));
    }

    /// @notice Divides a slash; the three parts add up to it exactly, the rest of every division goes to the treasury.
    function split(
        uint256 amount,
        uint256 reporters,
        uint256 verifierShareBps,
        uint256 submitterShareBps,
        uint256 submitterCap
    ) internal pure returns (uint256 rewardEach, uint256 toReporters, uint256 toSubmitter, uint256 toTreasury) {
        rewardEach = Math.mulDiv(amount, verifierShareBps, BPS) / reporters;
        toReporters = rewardEach * reporters;
        toSubmitter = Math.min(Math.mulDiv(amount, submitterShareBps, BPS), submitterCap);
        toTreasury = amount - toReporters - toSubmitter;
    }
}
