// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {MerkleProof} from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {ActiveClock} from "./ActiveClock.sol";
import {IJobEscrow, Root} from "./interfaces/IJobEscrow.sol";
import {IJobMarket} from "./interfaces/IJobMarket.sol";
import {IMarketParams, Params} from "./interfaces/IMarketParams.sol";
import {PayMath} from "./libraries/PayMath.sol";

/// @title JobEscrow
/// @notice See IJobEscrow.
contract JobEscrow is EIP712, ReentrancyGuardTransient, ActiveClock, IJobEscrow {
    using SafeERC20 for IERC20;
    using SafeCast for uint256;

    enum Status {
        None,
        Funded,
        Divided
    }

    struct Money {
        uint128 budget;
        uint128 paid;
        uint128 claimedTotal;
        uint48 lastEpoch;
        uint32 plannedSeconds;
        uint32 objectionWindow;
        uint16 feeBps;
        bool refundDrawn;
        Status status;
        uint128 cover;
        uint128 refund;
        address submitter;
        address treasury;
    }

    /// @dev EIP-712 type of a settlement root.
    bytes32 private constant SETTLEMENT_TYPEHASH =
        keccak256(
            "Settlement(uint256 jobId,uint64 epoch,bytes32 root,uint128 totalCumulative,bytes32 stepRecordHash)"
        );

    IERC20 private immutable _token;
    IJobMarket private immutable _market;
    IMarketParams private immutable _params;

    mapping(uint256 jobId => Money) private _money;
    mapping(uint256 jobId => mapping(uint64 epoch => Root)) private _roots;
    /// @inheritdoc IJobEscrow
    mapping(uint256 jobId => mapping(address account => uint256)) public claimed;
    /// @inheritdoc IJobEscrow
    mapping(address treasury => uint256) public fees;
    /// @inheritdoc IJobEscrow
    uint256 public owed;

    modifier onlyMarket() {
        if (msg.sender != address(_market)) revert NotMarket(msg.sender);
        _;
    }

    constructor(IERC20 token_, IJobMarket market, IMarketParams params_) EIP712("JobEscrow", "1") {
        _token = token_;
        _market = market;
        _params = params_;
    }

    // --- market only

    /// @inheritdoc IJobEscrow
    function fund(
        uint256 jobId,
        address submitter,
        uint256 budget,
        uint256 cover,
        uint32 plannedSeconds,
        uint32 paramsVersion
    ) external onlyMarket nonReentrant {
        Money storage money = _money[jobId];
        if (money.status != Status.None) revert AlreadyFunded(jobId);
        Params memory params = _params.get(paramsVersion);
        money.status = Status.Funded;
        money.budget = budget.toUint128();
        money.cover = cover.toUint128();
        money.plannedSeconds = plannedSeconds;
        money.objectionWindow = params.objectionWindow;
        money.feeBps = params.feeBps;
        money.submitter = submitter;
        money.treasury = params.treasury;
        owed += budget;
        uint256 before = _token.balanceOf(address(this));
        _token.safeTransferFrom(submitter, address(this), budget);
        uint256 received = _token.balanceOf(address(this)) - before;
        if (received != budget) revert InexactTransfer(budget, received);
        emit JobFunded(jobId, submitter, budget);
    }

    /// @inheritdoc IJobEscrow
    function settle(uint256 jobId) external onlyMarket {
        Money storage money = _open(jobId);
        _requireLastActive(jobId, money.lastEpoch);
        uint256 fee = PayMath.feeOf(money.paid, money.feeBps);
        uint256 refund = money.budget - money.paid - fee;
        money.status = Status.Divided;
        money.refund = uint128(refund);
        fees[money.treasury] += fee;
        emit JobMoneySettled(jobId, money.paid, fee, refund);
    }

    /// @inheritdoc IJobEscrow
    function cancel(uint256 jobId) external onlyMarket {
        Money storage money = _open(jobId);
        money.status = Status.Divided;
        money.refund = money.budget;
        emit JobMoneySettled(jobId, 0, 0, money.budget);
    }

    // --- pay

    /// @inheritdoc IJobEscrow
    function submitSettlement(
        uint256 jobId,
        uint64 epoch,
        bytes32 root,
        uint128 totalCumulative,
        bytes32 stepRecordHash,
        uint8[] calldata seats,
        bytes[] calldata signatures
    ) external {
        Money storage money = _open(jobId);
        uint64 last = money.lastEpoch;
        if (root == bytes32(0)) revert EmptyRoot();
        if (epoch <= last || epoch > type(uint48).max) revert EpochTooLow(uint256(last) + 1, epoch);
        _requireLastActive(jobId, last);
        uint64 activeAt = _market.requireRoot(
            jobId,
            settlementDigest(jobId, epoch, root, totalCumulative, stepRecordHash),
            seats,
            signatures
        );
        _checkTotal(money, totalCumulative, activeAt);
        _store(jobId, epoch, Root(root, stepRecordHash, totalCumulative, 0, 0, uint48(last)));
    }

    /// @inheritdoc IJobEscrow
    function claim(
        uint256 jobId,
        uint64 epoch,
        address account,
        uint256 cumulative,
        bytes32[] calldata proof
    ) external nonReentrant returns (uint256 amount) {
        Root storage root = _roots[jobId][epoch];
        if (root.activeAt == 0) revert UnknownRoot(jobId, epoch);
        if (_now() < root.activeAt) revert RootNotActive(root.activeAt, _now());
        (, uint32 openCases, uint64 minEpoch, ) = _market.accountInJob(jobId, account);
        if (openCases != 0) revert ClaimFrozen(jobId, account, openCases);
        if (epoch < minEpoch) revert RootTainted(minEpoch, epoch);
        if (!MerkleProof.verifyCalldata(proof, root.root, leaf(jobId, account, cumulative))) {
            revert BadProof(jobId, account, cumulative);
        }
        uint256 had = claimed[jobId][account];
        if (cumulative <= had) return 0;
        amount = cumulative - had;
        claimed[jobId][account] = cumulative;
        Money storage money = _money[jobId];
        uint256 total = money.claimedTotal + amount;
        if (total > money.paid) revert TotalExceeded(money.paid, total);
        money.claimedTotal = uint128(total);
        owed -= amount;
        emit PayClaimed(jobId, account, amount, cumulative);
        _token.safeTransfer(account, amount);
    }

    /// @inheritdoc IJobEscrow
    function withdrawRefund(uint256 jobId) external nonReentrant returns (uint256 amount) {
        Money storage money = _money[jobId];
        amount = money.refund;
        if (amount == 0 || money.refundDrawn) revert NothingToPay();
        money.refundDrawn = true;
        owed -= amount;
        emit Refunded(jobId, money.submitter, amount);
        _token.safeTransfer(money.submitter, amount);
    }

    /// @inheritdoc IJobEscrow
    function withdrawFees(address treasury) external nonReentrant returns (uint256 amount) {
        amount = fees[treasury];
        if (amount == 0) revert NothingToPay();
        fees[treasury] = 0;
        owed -= amount;
        emit FeesWithdrawn(treasury, amount);
        _token.safeTransfer(treasury, amount);
    }

    // --- views

    /// @inheritdoc IJobEscrow
    function token() external view returns (address) {
        return address(_token);
    }

    /// @inheritdoc IJobEscrow
    function jobMoney(
        uint256 jobId
    )
        external
        view
        returns (
            uint256 budget,
            uint256 paid,
            uint256 claimedTotal,
            uint256 fee,
            uint256 refund,
            uint256 refunded,
            bool settled
        )
    {
        Money storage money = _money[jobId];
        return (
            money.budget,
            money.paid,
            money.claimedTotal,
            PayMath.feeOf(money.paid, money.feeBps),
            money.refund,
            money.refundDrawn ? money.refund : 0,
            money.status == Status.Divided
        );
    }

    /// @inheritdoc IJobEscrow
    function lastEpoch(uint256 jobId) external view returns (uint64) {
        return _money[jobId].lastEpoch;
    }

    /// @inheritdoc IJobEscrow
    function activeEpoch(uint256 jobId) external view returns (uint64) {
        uint64 last = _money[jobId].lastEpoch;
        Root storage root = _roots[jobId][last];
        // One root at a time stands in its window, so the one before it is active.
        return _now() < root.activeAt ? root.previousEpoch : last;
    }

    /// @inheritdoc IJobEscrow
    function getRoot(uint256 jobId, uint64 epoch) external view returns (Root memory) {
        return _roots[jobId][epoch];
    }

    /// @inheritdoc IJobEscrow
    function allowance(uint256 jobId) external view returns (uint256) {
        Money storage money = _money[jobId];
        if (money.status != Status.Funded || _now() < _roots[jobId][money.lastEpoch].activeAt) return money.paid;
        return Math.min(_limit(money, _market.getJob(jobId).activeAt), PayMath.maxPaid(money.budget, money.feeBps));
    }

    /// @inheritdoc IJobEscrow
    function leaf(uint256 jobId, address account, uint256 cumulative) public pure returns (bytes32) {
        return keccak256(bytes.concat(keccak256(abi.encode(jobId, account, cumulative))));
    }

    /// @inheritdoc IJobEscrow
    function settlementDigest(
        uint256 jobId,
        uint64 epoch,
        bytes32 root,
        uint128 totalCumulative,
        bytes32 stepRecordHash
    ) public view returns (bytes32) {
        return
            _hashTypedDataV4(
                keccak256(abi.encode(SETTLEMENT_TYPEHASH, jobId, epoch, root, totalCumulative, stepRecordHash))
            );
    }

    // --- inside

    function _checkTotal(Money storage money, uint256 total, uint256 activeAt) private view {
        if (total < money.paid) revert TotalDecreased(money.paid, total);
        uint256 needed = total + PayMath.feeOf(total, money.feeBps);
        if (needed > money.budget) revert BudgetExceeded(money.budget, needed);
        uint256 limit = _limit(money, activeAt);
        if (total > limit) revert RateExceeded(limit, total);
    }

    /// @dev Twice the planned pace since the first claim, and no more new than the signers' locks cover.
    function _limit(Money storage money, uint256 activeAt) private view returns (uint256) {
        if (activeAt == 0) return money.paid;
        uint256 pace = PayMath.paceLimit(money.budget, _now() - activeAt, money.plannedSeconds);
        return Math.max(money.paid, Math.min(pace, uint256(money.paid) + money.cover));
    }

    function _store(uint256 jobId, uint64 epoch, Root memory root) private {
        Money storage money = _money[jobId];
        money.paid = root.totalCumulative;
        money.lastEpoch = uint48(epoch);
        root.submittedAt = uint40(_now());
        root.activeAt = uint40(_now() + money.objectionWindow);
        _roots[jobId][epoch] = root;
        emit SettlementSubmitted(
            jobId,
            epoch,
            root.root,
            root.totalCumulative,
            root.stepRecordHash,
            root.activeAt
        );
    }

    function _requireLastActive(uint256 jobId, uint64 last) private view {
        uint256 activeAt = _roots[jobId][last].activeAt;
        if (_now() < activeAt) revert RootPending(activeAt, _now());
    }

    function _open(uint256 jobId) private view returns (Money storage money) {
        money = _money[jobId];
        if (money.status != Status.Funded) revert NotOpen(jobId);
    }
}
