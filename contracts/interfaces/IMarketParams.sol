// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {JobTerms} from "./IJobMarket.sol";

/// @notice One set of market parameters. Times in seconds, shares in basis points, amounts in base units of the token.
struct Params {
    // --- time
    uint32 evidenceTail; // after duty ends, how long a lock still answers for it
    uint32 collect; // from the first report, how long a quorum may form
    uint32 appeal; // from the quorum, how long before the verdict can be executed
    uint32 arbitration; // reserved for appeals (issue number 3); counted in the time inequality already
    uint32 margin; // slack of the time inequality, at least the deployment's minimum
    uint32 unbonding; // >= evidenceTail + collect + appeal + arbitration + margin
    uint32 objectionWindow; // from submission to activity of a settlement root
    uint32 exitNotice; // from exitSlot, how long a worker still serves; its evidence tail starts then
    // --- shares
    uint16 feeBps; // of what is paid, to the treasury
    uint16 slashEquivocationBps; // of the lock
    uint16 slashBadComputeBps;
    uint16 slashBadAggregateBps;
    uint16 slashVerifierEquivocationBps;
    uint16 slashFalseRootBps;
    uint16 verifierShareBps; // of a slash, to the reporters
    uint16 submitterShareBps; // of a slash, at most, and at most what the accused was paid on that job
    uint16 treasuryFloorBps; // of a slash, at least
    uint16 quorumStakeBps; // stake weight of the reporting seats, of all seats of the job
    uint16 gammaBps; // capital parity: q bonds >= gamma x the slash asked for; at least 10000
    uint16 spamFeeBps; // of an expired report's bond, to the accused
    uint16 kappaBps; // slot stake >= kappa x what one slot can be paid in an evidence tail
    // --- amounts
    address treasury;
    uint128 minBond;
    uint128 minSlotStake;
    uint128 minSeatStake;
    // --- gas repaid to seats, a transaction of that kind (paid as seat pay in the settlement root)
    uint96 gasSettlement;
    uint96 gasReport;
    uint96 gasExecute;
    uint96 gasSettleBond;
}

/// @notice The part of a set that a case needs.
struct CaseTerms {
    uint32 collect;
    uint32 appeal;
    uint16 slashBadComputeBps;
    uint16 gammaBps;
    uint16 quorumStakeBps;
    uint128 minBond;
}

/// @notice The part of a set that the end of a case needs.
struct SplitTerms {
    uint16 verifierShareBps;
    uint16 submitterShareBps;
    uint16 spamFeeBps;
    address treasury;
}

/// @title Versioned market parameters
/// @notice Append-only: a version, once added, never changes, and a job keeps the version it was posted with.
interface IMarketParams {
    /// @notice Version `version` was added.
    event ParamsAdded(uint32 indexed version, Params params);

    /// @notice No such version; versions 1 to `latest` exist.
    error UnknownVersion(uint32 version, uint32 latest);
    /// @notice The unbonding time is shorter than all the windows in which stake may still be wanted.
    error UnbondingTooShort(uint256 needed, uint256 had);
    /// @notice A value is out of its bounds [low, high].
    error OutOfBounds(string name, uint256 low, uint256 high, uint256 had);

    /// @notice Adds a parameter set after checking its bounds and its time inequality. Governor only.
    /// @return version number of the new set, one more than the last.
    function add(Params calldata params) external returns (uint32 version);

    /// @notice The newest version number; 0 while there is none.
    function latest() external view returns (uint32);

    /// @notice The set of a version; reverts with UnknownVersion when there is none.
    function get(uint32 version) external view returns (Params memory);

    /// @notice Two times of a set that are read often.
    function exitWindows(uint32 version) external view returns (uint32 exitNotice, uint32 evidenceTail);

    /// @notice What a case needs of a set.
    function caseTerms(uint32 version) external view returns (CaseTerms memory);

    /// @notice What the end of a case needs of a set.
    function splitTerms(uint32 version) external view returns (SplitTerms memory);

    /// @notice Reverts with BadTerm unless the terms of a job are in bounds under the set that they name.
    function requireTerms(JobTerms calldata terms, uint64 nowAt) external view;

    /// @notice The least margin of the time inequality on this deployment (1 day in public, a second locally).
    function minMargin() external view returns (uint32);
}
