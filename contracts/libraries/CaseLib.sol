// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Case, CaseState, IViolationCourt, ViolationKind} from "../interfaces/IViolationCourt.sol";
import {CaseTerms} from "../interfaces/IMarketParams.sol";
import {PayMath} from "./PayMath.sol";

/// @title CaseLib
/// @notice The state machine of a case: None -> Collecting -> Appealable -> Upheld (by time) -> Executed, or
/// Collecting -> Expired.
library CaseLib {
    /// @notice The state that holds now: Appealable turns into Upheld when the appeal window is over.
    function stateAt(Case storage self, uint256 nowAt) internal view returns (CaseState) {
        return self.state == CaseState.Appealable && nowAt >= self.appealUntil ? CaseState.Upheld : self.state;
    }

    /// @notice Whether the votes are a quorum: heads, and weight. All seats of a job lock the same stake, so the weight of
    /// votes is their number over the seats taken when the case opened.
    function hasQuorum(Case storage self, uint256 quorumStakeBps) internal view returns (bool) {
        return
            self.reporters >= self.quorum &&
            uint256(self.reporters) * PayMath.BPS >= uint256(self.numSeats) * quorumStakeBps;
    }

    /// @notice Reverts unless the case is open to votes: half-open window [openedAt, collectUntil).
    function requireCollecting(Case storage self, bytes32 caseId, uint256 nowAt) internal view {
        if (self.state != CaseState.Collecting) revert IViolationCourt.WrongCaseState(caseId, stateAt(self, nowAt));
        if (nowAt >= self.collectUntil) revert IViolationCourt.TooLate(self.collectUntil, nowAt);
    }

    /// @notice The share of a lock that a kind of violation costs.
    function severity(CaseTerms memory terms, ViolationKind kind) internal pure returns (uint256) {
        if (kind == ViolationKind.BadCompute) return terms.slashBadComputeBps;
        revert IViolationCourt.KindNotSupported(kind);
    }
}
