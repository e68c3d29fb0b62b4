// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @notice Kinds of violations. Only BadCompute can be reported so far.
enum ViolationKind {
    None,
    Equivocation,
    BadCompute,
    BadAggregate,
    VerifierEquivocation,
    FalseRoot
}

/// @notice States of a case. Arbitrating, Overturned and Inconclusive are not entered yet (no appeal so far).
enum CaseState {
    None,
    Collecting,
    Appealable,
    Arbitrating,
    Upheld,
    Overturned,
    Inconclusive,
    Executed,
    Expired
}

/// @notice Who is accused of what: together with chain and court it makes the case id. The reporter is not part of it.
struct Accusation {
    uint256 jobId;
    uint32 slot;
    uint32 nonce;
    ViolationKind kind;
    bytes32 commitmentHash; // EIP-712 digest of the FrameCommitment or StageGradient that the worker signed
}

/// @notice A seat's signed ViolationReport(caseId, verifier, kind, commitmentHash, evidenceHash, deadline).
struct Vote {
    uint8 seat;
    bytes32 evidenceHash;
    uint64 deadline;
    bytes signature;
}

/// @notice A case as stored.
struct Case {
    address accused;
    uint64 jobId;
    uint32 slot;
    uint32 nonce;
    ViolationKind kind;
    CaseState state;
    uint40 openedAt;
    uint40 collectUntil;
    uint40 appealUntil; // 0 before the quorum
    uint8 reporters;
    uint8 quorum;
    uint8 numSeats; // taken when the case opened: the weight to compare with
    uint32 paramsVersion;
    uint32 voted; // bit mask of seats
    uint96 slashAsk;
    uint96 bond; // of each reporter
    uint48 lockId; // of the accused
    uint128 slashed; // set at execution
    uint128 rewardEach; // set at execution
}

/// @title Violation court
/// @notice The first report freezes, a quorum of bonded seats convicts, the appeal window passes, anyone executes.
interface IViolationCourt {
    /// @notice A seat reported; the first report opens the case.
    event ReportFiled(
        bytes32 indexed caseId,
        uint256 indexed jobId,
        address indexed verifier,
        address accused,
        uint32 slot,
        uint32 nonce,
        ViolationKind kind,
        bytes32 commitmentHash,
        bytes32 evidenceHash,
        uint256 bondLockId
    );
    /// @notice A case opened; a quorum may form before `collectUntil`.
    event CaseOpened(
        bytes32 indexed caseId,
        uint256 indexed jobId,
        address indexed accused,
        uint256 slashAsk,
        uint256 bond,
        uint64 collectUntil
    );
    /// @notice The quorum stands; without an appeal the verdict can be executed from `appealUntil` on.
    event CaseQuorum(bytes32 indexed caseId, uint256 indexed jobId, address indexed accused, uint8 reporters, uint64 appealUntil);
    /// @notice No appeal came.
    event CaseUpheld(bytes32 indexed caseId, uint256 indexed jobId, address indexed accused);
    /// @notice The verdict was executed.
    event CaseExecuted(
        bytes32 indexed caseId,
        uint256 indexed jobId,
        address indexed accused,
        uint256 slashed,
        uint256 toReporters,
        uint256 toSubmitter,
        uint256 toTreasury
    );
    /// @notice No quorum in time: the accused is free.
    event CaseExpired(bytes32 indexed caseId, uint256 indexed jobId, address indexed accused);
    /// @notice A reporter got its bond back, with `reward`, or less `fee`.
    event BondSettled(bytes32 indexed caseId, address indexed verifier, uint256 returned, uint256 reward, uint256 fee);

    /// @notice This kind cannot be reported yet.
    error KindNotSupported(ViolationKind kind);
    /// @notice No such case.
    error UnknownCase(bytes32 caseId);
    /// @notice The case's state does not allow this.
    error WrongCaseState(bytes32 caseId, CaseState had);
    /// @notice Every seat given has voted already.
    error NoNewVote(bytes32 caseId);
    /// @notice The seat has another case without a quorum on this slot.
    error OpenCaseOfSeat(uint8 seat, uint256 jobId, uint32 slot);
    /// @notice The report is past its own deadline.
    error ReportExpired(uint256 deadline, uint256 nowAt);
    /// @notice Not the signature of the seat's snapshotted hot key.
    error BadReportSignature(uint8 seat, address expected, address recovered);
    /// @notice The seat cannot vote: it is the accused's own, released, or banned.
    error SeatCannotVote(uint8 seat, address account);
    /// @notice The window is over.
    error TooLate(uint256 until, uint256 nowAt);
    /// @notice Possible only from `from` on.
    error TooEarly(uint256 from, uint256 nowAt);
    /// @notice This seat has no bond in this case (any more).
    error NoBond(bytes32 caseId, uint8 seat);

    /// @notice Files one seat's report: opens the case or joins it. Anyone may carry the signature.
    function report(Accusation calldata accusation, Vote calldata vote) external returns (bytes32 caseId);
    /// @notice Files several seats' reports in one transaction. Seats that have voted already are passed over.
    function reportBatch(Accusation calldata accusation, Vote[] calldata votes) external returns (bytes32 caseId);
    /// @notice Executes an upheld verdict: slash, split, ban, slot terminated. Anyone may.
    function execute(bytes32 caseId) external;
    /// @notice Ends a case that found no quorum in time. Anyone may.
    function expire(bytes32 caseId) external;
    /// @notice Gives a seat its bond back after the end of a case, with its reward or less the spam fee. Anyone may.
    function settleBond(bytes32 caseId, uint8 seat) external;

    // --- views
    /// @notice Case id = keccak256(abi.encode(chainid, court, jobId, slot, nonce, kind, commitmentHash)).
    function caseIdOf(Accusation calldata accusation) external view returns (bytes32);
    /// @notice A case, with the state that holds now (Appealable turns into Upheld by time).
    function getCase(bytes32 caseId) external view returns (Case memory);
    /// @notice The bond lock of a seat in a case; 0 when there is none (any more).
    function bondOf(bytes32 caseId, uint8 seat) external view returns (uint256 lockId);
    /// @notice Slash asked for and bond a reporter, for a kind on a job, before any case is open.
    function quoteBond(uint256 jobId, ViolationKind kind) external view returns (uint256 slashAsk, uint256 bond);
    /// @notice EIP-712 digest of a ViolationReport.
    function reportDigest(
        bytes32 caseId,
        address verifier,
        ViolationKind kind,
        bytes32 commitmentHash,
        bytes32 evidenceHash,
        uint64 deadline
    ) external view returns (bytes32);
}
