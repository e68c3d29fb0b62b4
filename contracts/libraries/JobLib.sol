// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {IJobMarket, Job, JobState, Slot, SlotState} from "../interfaces/IJobMarket.sol";

/// @title JobLib
/// @notice The state machines of a job and of a slot.
/// Job: Open -> Active -> Closing -> Settled; Open or Active -> Cancelled.
/// Slot: Vacant -> Claimed -> Exiting -> Cooling -> Vacant (nonce + 1) or Released; Claimed, Exiting, Cooling -> Terminated,
/// which is Vacant (nonce + 1) at once while the job runs.
library JobLib {
    /// @notice What is known about an account in a job.
    struct Member {
        uint128 stageMask;
        uint32 openCases;
        uint64 minEpoch;
        uint8 seatPlusOne;
    }

    // --- job

    /// @notice Moves a job, and notes when.
    function enter(Job storage self, uint256 jobId, JobState next, uint64 nowAt) internal {
        self.state = next;
        if (next == JobState.Open) self.postedAt = uint40(nowAt);
        else if (next == JobState.Active) self.activeAt = uint40(nowAt);
        else if (next == JobState.Closing) self.closingAt = uint40(nowAt);
        else self.endedAt = uint40(nowAt);
        emit IJobMarket.JobStateChanged(jobId, next, nowAt);
    }

    /// @notice Whether a slot may be claimed now: before the claim deadline, or until the deadline once the job runs.
    function requireClaimable(Job storage self, uint256 jobId, uint256 nowAt) internal view {
        uint256 until;
        if (self.state == JobState.Open) until = self.claimDeadline;
        else if (self.state == JobState.Active) until = self.deadline;
        else revert IJobMarket.WrongJobState(jobId, self.state);
        if (nowAt >= until) revert IJobMarket.TooLate(until, nowAt);
    }

    /// @notice Open past the claim deadline, or Active without a quorum of seats then.
    function isUnderstaffed(Job storage self, uint256 nowAt) internal view returns (bool) {
        if (nowAt < self.claimDeadline) return false;
        return self.state == JobState.Open || (self.state == JobState.Active && self.seatsTaken < self.quorum);
    }

    // --- slot

    /// @notice Exiting turns into Cooling by time alone.
    function stateAt(Slot storage self, uint256 nowAt) internal view returns (SlotState) {
        return self.state == SlotState.Exiting && nowAt >= self.exitAt ? SlotState.Cooling : self.state;
    }

    /// @notice From when on the lock of a held slot is free; type(uint64).max while the duty goes on.
    function dutyEnd(Slot storage self, Job storage job, uint256 evidenceTail) internal view returns (uint64) {
        if (job.state == JobState.Cancelled) return job.endedAt;
        uint256 end = type(uint64).max;
        if (job.closingAt != 0) end = job.closingAt + evidenceTail;
        if (self.state == SlotState.Exiting) end = Math.min(end, self.exitAt + evidenceTail);
        return uint64(end);
    }

    /// @notice Ends an assignment: nonce + 1 and Vacant while the job takes claims, else `last` for good.
    /// @return vacant whether the slot can be claimed again
    function vacate(Slot storage self, Job storage job, SlotState last) internal returns (bool vacant) {
        vacant = job.state == JobState.Active;
        if (vacant) {
            self.account = address(0);
            self.hotKey = address(0);
            self.nonce += 1;
            self.state = SlotState.Vacant;
            self.claimedAt = 0;
            self.exitAt = 0;
            self.lockId = 0;
        } else {
            self.state = last;
        }
        job.slotsClaimed -= 1;
    }
}
