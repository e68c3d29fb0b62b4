// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @notice States of a job.
enum JobState {
    None,
    Open,
    Active,
    Closing,
    Settled,
    Cancelled
}

/// @notice States of a slot. Active and Evicted are not entered yet (no activation deadline, no eviction so far).
enum SlotState {
    Vacant,
    Claimed,
    Active,
    Exiting,
    Cooling,
    Released,
    Evicted,
    Terminated
}

/// @notice States of a verifier seat.
enum SeatState {
    None,
    Seated,
    Released
}

/// @notice What a submitter posts.
struct JobTerms {
    bytes32 specDigest; // digest of the canonical job file
    uint16 stages;
    uint16 replicas;
    uint8 numSeats;
    uint8 quorum;
    uint128 slotStake;
    uint128 seatStake;
    uint128 budget; // pulled into the escrow: approve the escrow first
    uint32 plannedSeconds;
    uint32 epochs; // planned number of settlement roots; informative
    uint64 claimDeadline; // seats may be taken until then; without a quorum the job is cancelled after it
    uint64 deadline; // after it anyone may close the job
    uint32 paramsVersion; // of MarketParams
}

/// @notice A job as stored.
struct Job {
    address submitter;
    uint16 stages;
    uint16 replicas;
    uint8 numSeats;
    uint8 quorum;
    JobState state;
    uint8 seatsTaken;
    uint32 paramsVersion;
    uint128 slotStake;
    uint128 seatStake;
    uint128 budget;
    uint32 plannedSeconds;
    uint40 claimDeadline;
    uint40 deadline;
    uint16 openCases;
    uint40 postedAt;
    uint40 activeAt;
    uint40 closingAt;
    uint40 endedAt;
    uint32 epochs;
    uint32 slotsClaimed; // held right now
    bytes32 specDigest;
}

/// @notice A slot. index = stage * replicas + replica.
struct Slot {
    address account;
    uint32 nonce; // grows by one with each assignment that ended
    SlotState state;
    uint40 claimedAt;
    address hotKey; // snapshot: rotation cannot disown old work
    uint48 lockId;
    uint40 exitAt; // from exitSlot on: when the duty ends and the evidence tail starts
}

/// @notice A verifier seat.
struct Seat {
    address account;
    SeatState state;
    uint40 takenAt;
    address hotKey; // snapshot
    uint48 lockId;
}

/// @notice What the court learns when it opens a case.
struct CaseSubject {
    address account; // the accused
    uint48 lockId; // the lock that answers
    uint8 quorum;
    uint8 seatsTaken;
    uint32 paramsVersion;
    uint128 slotStake;
}

/// @notice How a slash is divided.
struct SlashSplit {
    uint256 toReporters; // credited to the court, which hands it to the reporters
    uint256 toSubmitter;
    uint256 toTreasury;
    address treasury;
}

/// @title Job market
/// @notice Jobs, the slots that workers claim and the seats that verifiers take. Holds no money.
interface IJobMarket {
    /// @notice A job was posted and its budget is in the escrow.
    event JobPosted(
        uint256 indexed jobId,
        address indexed submitter,
        bytes32 specDigest,
        uint256 budget,
        uint32 paramsVersion,
        string uri
    );
    /// @notice The job entered `state`.
    event JobStateChanged(uint256 indexed jobId, JobState state, uint64 timestamp);
    /// @notice `account` holds the slot under `nonce`, with `hotKey` as the signer of its frames.
    event SlotClaimed(
        uint256 indexed jobId,
        uint32 indexed slot,
        address indexed account,
        uint32 nonce,
        address hotKey,
        uint256 lockId
    );
    /// @notice The worker leaves; its duty ends at `exitAt`, its lock is releasable at `releasableAt`.
    event SlotExited(
        uint256 indexed jobId,
        uint32 indexed slot,
        address indexed account,
        uint32 nonce,
        uint64 exitAt,
        uint64 releasableAt
    );
    /// @notice The slot's lock was given back. `vacant`: it can be claimed again, under nonce + 1.
    event SlotReleased(uint256 indexed jobId, uint32 indexed slot, address indexed account, uint32 nonce, bool vacant);
    /// @notice An upheld case ended the assignment; the slot is vacant again under nonce + 1.
    event SlotTerminated(uint256 indexed jobId, uint32 indexed slot, address indexed account, uint32 nonce);
    /// @notice `account` sits on `seat`.
    event SeatTaken(
        uint256 indexed jobId,
        uint8 indexed seat,
        address indexed account,
        address hotKey,
        uint256 lockId
    );
    /// @notice The seat's lock was given back.
    event SeatReleased(uint256 indexed jobId, uint8 indexed seat, address indexed account);

    /// @notice A term of a job is out of its bounds [low, high].
    error BadTerm(string name, uint256 low, uint256 high, uint256 had);
    /// @notice No such job.
    error UnknownJob(uint256 jobId);
    /// @notice The job's state does not allow this.
    error WrongJobState(uint256 jobId, JobState had);
    /// @notice Only the submitter may.
    error NotSubmitter(uint256 jobId, address caller);
    /// @notice No such slot: there are `numSlots`.
    error UnknownSlot(uint256 jobId, uint32 slot, uint256 numSlots);
    /// @notice No such seat: `seatsTaken` are taken.
    error UnknownSeat(uint256 jobId, uint8 seat, uint256 seatsTaken);
    /// @notice Somebody holds the slot.
    error SlotTaken(uint256 jobId, uint32 slot, address holder);
    /// @notice The account holds a replica of this stage already.
    error StageHeld(uint256 jobId, uint16 stage, address account);
    /// @notice The account holds a seat of this job already.
    error SeatHeld(uint256 jobId, address account);
    /// @notice The account works in this job and cannot judge it.
    error WorkerOfJob(uint256 jobId, address account);
    /// @notice All seats are taken.
    error NoSeatLeft(uint256 jobId, uint256 numSeats);
    /// @notice The account has no hot key registered.
    error NoHotKey(address account);
    /// @notice The caller does not hold this slot.
    error NotHolder(uint256 jobId, uint32 slot, address caller);
    /// @notice The slot's state does not allow this.
    error WrongSlotState(uint256 jobId, uint32 slot, SlotState had);
    /// @notice The slot is under another nonce.
    error WrongNonce(uint256 jobId, uint32 slot, uint32 asked, uint32 had);
    /// @notice The window [.., until) is over.
    error TooLate(uint256 until, uint256 nowAt);
    /// @notice Possible only from `from` on.
    error TooEarly(uint256 from, uint256 nowAt);
    /// @notice Cases are still open.
    error CasesOpen(uint256 jobId, uint256 openCases);
    /// @notice Too few signatures.
    error QuorumMissing(uint256 needed, uint256 had);
    /// @notice The seats of the signatures must ascend, so that each counts once.
    error SeatsNotAscending(uint8 previous, uint8 next);
    /// @notice A signature is not of the seat's snapshotted hot key.
    error BadSeatSignature(uint8 seat, address expected, address recovered);
    /// @notice The last settlement root has another epoch.
    error WrongEpoch(uint256 expected, uint256 had);
    /// @notice Seats and signatures differ in number.
    error LengthMismatch(uint256 left, uint256 right);
    /// @notice Not enough free stake for the bonds a seat may have to put up.
    error BondReserveMissing(address account, uint256 needed, uint256 had);
    /// @notice Only the court may.
    error NotCourt(address caller);
    /// @notice Wired already.
    error AlreadyWired();
    /// @notice Nothing is due on this job now.
    error NothingDue(uint256 jobId);

    // --- jobs
    /// @notice Posts a job and pulls its budget into the escrow.
    function postJob(JobTerms calldata terms, string calldata uri) external returns (uint256 jobId);
    /// @notice Cancels a job of which no slot was claimed; full refund. Submitter only.
    function cancelJob(uint256 jobId) external;
    /// @notice Stops an active job early: no new claims, last roots within the evidence tail. Submitter only.
    function closeJob(uint256 jobId) external;
    /// @notice Closes a finished job: `quorum` seats sign JobFinish(jobId, epoch, stepRecordHash) and the root of `epoch` is
    /// the last one in the escrow. `seats` ascend.
    function finishJob(
        uint256 jobId,
        uint64 epoch,
        bytes32 stepRecordHash,
        uint8[] calldata seats,
        bytes[] calldata signatures
    ) external;
    /// @notice Settles a closing job when its evidence tail is over and no case is open; credits refund and fee.
    function settleJob(uint256 jobId) external;
    /// @notice Pushes what time has decided: no claim or no quorum of seats by the claim deadline -> Cancelled; past the
    /// deadline -> Closing; evidence tail over -> Settled.
    function pushTimeout(uint256 jobId) external;

    // --- slots and seats
    /// @notice Claims a vacant slot for the caller's account (caller: its hot key or the account itself).
    function claimSlot(uint256 jobId, uint32 slot) external;
    /// @notice Leaves a slot after the notice; the lock is free after the evidence tail.
    function exitSlot(uint256 jobId, uint32 slot) external;
    /// @notice Gives the lock of a slot back when its time is over. Anyone may.
    function releaseSlot(uint256 jobId, uint32 slot) external;
    /// @notice Takes the next free seat for the caller's account (caller: its hot key or the account itself).
    function applySeat(uint256 jobId) external returns (uint8 seat);
    /// @notice Gives the lock of a seat back when the job is over. Anyone may.
    function releaseSeat(uint256 jobId, uint8 seat) external;

    // --- court only
    /// @notice A case opens: holds the slot's lock, freezes the account's claims on that job.
    function openCase(uint256 jobId, uint32 slot, uint32 nonce) external returns (CaseSubject memory subject);
    /// @notice A quorum stands: roots up to now are dead for the account, whatever the end.
    function markQuorum(uint256 jobId, address account) external;
    /// @notice A case ended without a conviction.
    function closeCase(uint256 jobId, address account, uint256 lockId) external;
    /// @notice A case was upheld: slashes, bans, terminates the slot if the nonce is still current.
    function convict(
        uint256 jobId,
        uint32 slot,
        uint32 nonce,
        address account,
        uint256 lockId,
        SlashSplit calldata split
    ) external;

    /// @notice Names escrow and court, once. Governor only.
    function wire(address escrow, address court) external;

    // --- views
    /// @notice The escrow of this market.
    function escrow() external view returns (address);
    /// @notice The court of this market.
    function court() external view returns (address);
    /// @notice How many jobs were posted; ids run from 1.
    function jobCount() external view returns (uint256);
    /// @notice A job.
    function getJob(uint256 jobId) external view returns (Job memory);
    /// @notice A slot, with the state that holds now (Exiting turns into Cooling by time).
    function getSlot(uint256 jobId, uint32 slot) external view returns (Slot memory);
    /// @notice All slots of a job; for reading off chain.
    function getSlots(uint256 jobId) external view returns (Slot[] memory);
    /// @notice One seat.
    function getSeat(uint256 jobId, uint8 seat) external view returns (Seat memory);
    /// @notice All taken seats of a job.
    function getSeats(uint256 jobId) external view returns (Seat[] memory);
    /// @notice What is known about an account in a job: stages it holds (bit mask), open cases, the least epoch whose root
    /// it may claim from, its seat + 1 (0: none).
    function accountInJob(
        uint256 jobId,
        address account
    ) external view returns (uint128 stageMask, uint32 openCases, uint64 minEpoch, uint8 seatPlusOne);
    /// @notice The free stake (beyond the seat's lock) that a seat of this job must have for its bonds.
    function seatBondReserve(uint256 jobId) external view returns (uint256);
    /// @notice From when on the slot's lock can be released; type(uint64).max while the duty goes on.
    function slotDutyEnd(uint256 jobId, uint32 slot) external view returns (uint64);
    /// @notice Reverts unless `signatures` are of at least `quorum` distinct seats over `digest`. `seats` ascend.
    function requireQuorum(
        uint256 jobId,
        bytes32 digest,
        uint8[] calldata seats,
        bytes[] calldata signatures
    ) external view;
    /// @notice The same, and that the job takes settlement roots now: Active, or Closing within the evidence tail.
    /// @return activeAt when the first slot was claimed
    function requireRoot(
        uint256 jobId,
        bytes32 digest,
        uint8[] calldata seats,
        bytes[] calldata signatures
    ) external view returns (uint64 activeAt);
    /// @notice EIP-712 digest of JobFinish.
    function finishDigest(uint256 jobId, uint64 epoch, bytes32 stepRecordHash) external view returns (bytes32);
    /// @notice EIP-712 domain separator: the domain of the off-chain messages too.
    function domainSeparator() external view returns (bytes32);
}
