// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @notice A settlement root.
struct Root {
    bytes32 root;
    bytes32 stepRecordHash;
    uint128 totalCumulative;
    uint40 submittedAt;
    uint40 activeAt; // claims from this second on
    uint48 previousEpoch;
}

/// @title Job escrow
/// @notice Holds the budgets of jobs. Pay is cumulative: each root replaces the last, each account draws the difference.
interface IJobEscrow {
    /// @notice The budget of a job came in.
    event JobFunded(uint256 indexed jobId, address indexed submitter, uint256 budget);
    /// @notice A settlement root came in; claims from `activeAt` on.
    event SettlementSubmitted(
        uint256 indexed jobId,
        uint64 indexed epoch,
        bytes32 root,
        uint256 totalCumulative,
        bytes32 stepRecordHash,
        uint64 activeAt
    );
    /// @notice `account` was paid `amount`; `cumulative` is its total on this job.
    event PayClaimed(uint256 indexed jobId, address indexed account, uint256 amount, uint256 cumulative);
    /// @notice The job's money was divided for good: budget = paid + fee + refund.
    event JobMoneySettled(uint256 indexed jobId, uint256 paid, uint256 fee, uint256 refund);
    /// @notice `amount` was paid out to the submitter.
    event Refunded(uint256 indexed jobId, address indexed submitter, uint256 amount);
    /// @notice Fees were paid out to a treasury.
    event FeesWithdrawn(address indexed treasury, uint256 amount);

    /// @notice Only the market may.
    error NotMarket(address caller);
    /// @notice The token moved another amount than asked.
    error InexactTransfer(uint256 expected, uint256 received);
    /// @notice Funded already.
    error AlreadyFunded(uint256 jobId);
    /// @notice The job has no money here, or it was divided already.
    error NotOpen(uint256 jobId);
    /// @notice Epochs ascend: at least `needed`.
    error EpochTooLow(uint256 needed, uint256 had);
    /// @notice A total never decreases.
    error TotalDecreased(uint256 needed, uint256 had);
    /// @notice Total and fee exceed the budget.
    error BudgetExceeded(uint256 budget, uint256 needed);
    /// @notice The total is above what may be promised now; wait, or split it over more roots (see allowance).
    error RateExceeded(uint256 allowed, uint256 asked);
    /// @notice A root of zero promises nothing.
    error EmptyRoot();
    /// @notice The last root is not active yet: one root at a time stands in its objection window.
    error RootPending(uint256 activeAt, uint256 nowAt);
    /// @notice There is no root of that epoch.
    error UnknownRoot(uint256 jobId, uint64 epoch);
    /// @notice The root is active later.
    error RootNotActive(uint256 activeAt, uint256 nowAt);
    /// @notice The account has an open case on this job: claims wait for its end.
    error ClaimFrozen(uint256 jobId, address account, uint256 openCases);
    /// @notice After an upheld case only roots from epoch `needed` on count.
    error RootTainted(uint256 needed, uint256 had);
    /// @notice The proof does not lead to the root.
    error BadProof(uint256 jobId, address account, uint256 cumulative);
    /// @notice The root promised `total`, claims would exceed it.
    error TotalExceeded(uint256 total, uint256 asked);
    /// @notice Nothing to pay out.
    error NothingToPay();

    /// @notice Pulls the budget of a new job from the submitter and fixes its terms. Market only.
    /// @param cover stake of the fewest seats that can sign a root: what may be promised in one objection window
    function fund(
        uint256 jobId,
        address submitter,
        uint256 budget,
        uint256 cover,
        uint32 plannedSeconds,
        uint32 paramsVersion
    ) external;
    /// @notice Divides the money of a job for good. Market only.
    function settle(uint256 jobId) external;
    /// @notice Refunds the whole budget of a cancelled job. Market only.
    function cancel(uint256 jobId) external;

    /// @notice Submits the root of `epoch`, signed by `quorum` seats (Settlement, EIP-712). `seats` ascend.
    function submitSettlement(
        uint256 jobId,
        uint64 epoch,
        bytes32 root,
        uint128 totalCumulative,
        bytes32 stepRecordHash,
        uint8[] calldata seats,
        bytes[] calldata signatures
    ) external;
    /// @notice Pays `account` what is new in its leaf (jobId, account, cumulative) of an active root. Anyone may call; the
    /// money goes to the account. A repeated or older leaf pays 0 and does not revert.
    function claim(
        uint256 jobId,
        uint64 epoch,
        address account,
        uint256 cumulative,
        bytes32[] calldata proof
    ) external returns (uint256 amount);
    /// @notice Pays the refund of a settled or cancelled job to its submitter. Anyone may call.
    function withdrawRefund(uint256 jobId) external returns (uint256 amount);
    /// @notice Pays the collected fees to a treasury. Anyone may call.
    function withdrawFees(address treasury) external returns (uint256 amount);

    // --- views
    /// @notice The token.
    function token() external view returns (address);
    /// @notice A job's money: `paid` is the total of the last root (reserved and unclaimed included), `fee` what is due on it,
    /// `refund` what is due to the submitter once `settled`, `refunded` what it has drawn.
    /// budget = paid + fee + refund once settled.
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
        );
    /// @notice What an account has drawn from a job.
    function claimed(uint256 jobId, address account) external view returns (uint256);
    /// @notice The epoch of the newest root; 0 while there is none (epochs run from 1).
    function lastEpoch(uint256 jobId) external view returns (uint64);
    /// @notice The newest root that is active now; 0 while there is none.
    function activeEpoch(uint256 jobId) external view returns (uint64);
    /// @notice The root of an epoch.
    function getRoot(uint256 jobId, uint64 epoch) external view returns (Root memory);
    /// @notice The highest totalCumulative that a root may state in this second: the least of
    /// 2 x budget x (seconds since the first claim) / plannedSeconds, the last active total + cover, and what the budget
    /// can pay with its fee. While a root is pending, the last total.
    function allowance(uint256 jobId) external view returns (uint256);
    /// @notice Fees waiting for a treasury.
    function fees(address treasury) external view returns (uint256);
    /// @notice Sums over all jobs: what must be in the escrow.
    function owed() external view returns (uint256);
    /// @notice The leaf of an account: keccak256(bytes.concat(keccak256(abi.encode(jobId, account, cumulative)))).
    function leaf(uint256 jobId, address account, uint256 cumulative) external pure returns (bytes32);
    /// @notice EIP-712 digest of a Settlement.
    function settlementDigest(
        uint256 jobId,
        uint64 epoch,
        bytes32 root,
        uint128 totalCumulative,
        bytes32 stepRecordHash
    ) external view returns (bytes32);
}
