// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {AccessManaged} from "@openzeppelin/contracts/access/manager/AccessManaged.sol";
import {JobTerms} from "./interfaces/IJobMarket.sol";
import {CaseTerms, IMarketParams, Params, SplitTerms} from "./interfaces/IMarketParams.sol";
import {TermsLib} from "./libraries/TermsLib.sol";

/// @title MarketParams
/// @notice See IMarketParams.
contract MarketParams is AccessManaged, IMarketParams {
    /// @inheritdoc IMarketParams
    uint32 public immutable minMargin;
    /// @inheritdoc IMarketParams
    uint32 public latest;
    mapping(uint32 version => Params) private _sets;

    constructor(address access, uint32 minMargin_) AccessManaged(access) {
        minMargin = minMargin_;
    }

    /// @inheritdoc IMarketParams
    function add(Params calldata params) external restricted returns (uint32 version) {
        _checkTimes(params);
        _checkShares(params);
        if (params.treasury == address(0)) revert OutOfBounds("treasury", 1, type(uint160).max, 0);
        _bound("minBond", params.minBond, 1, type(uint96).max);
        _bound("minSlotStake", params.minSlotStake, 1, type(uint96).max);
        _bound("minSeatStake", params.minSeatStake, 1, type(uint96).max);
        version = ++latest;
        _sets[version] = params;
        emit ParamsAdded(version, params);
    }

    /// @inheritdoc IMarketParams
    function get(uint32 version) external view returns (Params memory) {
        return _set(version);
    }

    /// @inheritdoc IMarketParams
    function exitWindows(uint32 version) external view returns (uint32 exitNotice, uint32 evidenceTail) {
        Params storage params = _set(version);
        return (params.exitNotice, params.evidenceTail);
    }

    /// @inheritdoc IMarketParams
    function caseTerms(uint32 version) external view returns (CaseTerms memory) {
        Params storage p = _set(version);
        return CaseTerms(p.collect, p.appeal, p.slashBadComputeBps, p.gammaBps, p.quorumStakeBps, p.minBond);
    }

    /// @inheritdoc IMarketParams
    function splitTerms(uint32 version) external view returns (SplitTerms memory) {
        Params storage p = _set(version);
        return SplitTerms(p.verifierShareBps, p.submitterShareBps, p.spamFeeBps, p.treasury);
    }

    /// @inheritdoc IMarketParams
    function requireTerms(JobTerms calldata terms, uint64 nowAt) external view {
        TermsLib.check(terms, _set(terms.paramsVersion), nowAt);
    }

    function _set(uint32 version) private view returns (Params storage) {
        if (version == 0 || version > latest) revert UnknownVersion(version, latest);
        return _sets[version];
    }

    function _checkTimes(Params calldata p) private view {
        _bound("evidenceTail", p.evidenceTail, 1, 365 days);
        _bound("collect", p.collect, 1, 365 days);
        _bound("appeal", p.appeal, 1, 365 days);
        _bound("arbitration", p.arbitration, 1, 365 days);
        _bound("margin", p.margin, minMargin, 365 days);
        _bound("objectionWindow", p.objectionWindow, 1, 365 days);
        _bound("exitNotice", p.exitNotice, 0, 365 days);
        uint256 needed = uint256(p.evidenceTail) + p.collect + p.appeal + p.arbitration + p.margin;
        if (p.unbonding < needed) revert UnbondingTooShort(needed, p.unbonding);
    }

    function _checkShares(Params calldata p) private pure {
        _bound("feeBps", p.feeBps, 0, 2_000);
        _bound("slashEquivocationBps", p.slashEquivocationBps, 1, 10_000);
        _bound("slashBadComputeBps", p.slashBadComputeBps, 1, 10_000);
        _bound("slashBadAggregateBps", p.slashBadAggregateBps, 1, 10_000);
        _bound("slashVerifierEquivocationBps", p.slashVerifierEquivocationBps, 1, 10_000);
        _bound("slashFalseRootBps", p.slashFalseRootBps, 1, 10_000);
        _bound("submitterShareBps", p.submitterShareBps, 0, 4_000);
        _bound("treasuryFloorBps", p.treasuryFloorBps, 3_000, 10_000);
        uint256 left = 10_000 - p.treasuryFloorBps;
        _bound("verifierShareBps", p.verifierShareBps, 0, left);
        _bound("verifierShareBps + submitterShareBps", uint256(p.verifierShareBps) + p.submitterShareBps, 0, left);
        _bound("quorumStakeBps", p.quorumStakeBps, 1, 10_000);
        _bound("gammaBps", p.gammaBps, 10_000, 50_000);
        _bound("spamFeeBps", p.spamFeeBps, 1, 5_000);
        _bound("kappaBps", p.kappaBps, 0, 50_000);
    }

    function _bound(string memory name, uint256 had, uint256 low, uint256 high) private pure {
        if (had < low || had > high) revert OutOfBounds(name, low, high, had);
    }
}
