// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IStakeVault, Lock, LockState} from "../interfaces/IStakeVault.sol";

/// @title LockLib
/// @notice The state machine of a lock: None -> Live -> Released, with holds and a time from which it may be released.
library LockLib {
    /// @notice Reverts unless the lock is live and belongs to `controller`.
    function requireOwn(Lock storage self, uint256 lockId, uint8 controller) internal view {
        if (self.state != LockState.Live) revert IStakeVault.LockNotLive(lockId);
        if (self.controller != controller) revert IStakeVault.NotLockController(lockId, msg.sender);
    }

    /// @notice None -> Live; not releasable until it is scheduled.
    function open(Lock storage self, address account, uint8 controller, uint128 amount) internal {
        self.account = account;
        self.releasableAt = type(uint40).max;
        self.controller = controller;
        self.state = LockState.Live;
        self.original = amount;
        self.amount = amount;
    }

    /// @notice Takes a hold off.
    function unhold(Lock storage self, uint256 lockId) internal {
        if (self.holds == 0) revert IStakeVault.NoHold(lockId);
        self.holds -= 1;
    }

    /// @notice Takes `amount` out of a live lock.
    function slash(Lock storage self, uint256 lockId, uint256 amount) internal {
        uint128 had = self.amount;
        if (amount > had) revert IStakeVault.SlashExceedsLock(lockId, amount, had);
        self.amount = had - uint128(amount);
    }

    /// @notice Live -> Released, when its time is over and nothing holds it.
    function close(Lock storage self, uint256 lockId, uint256 nowAt) internal returns (uint256 amount) {
        if (self.holds != 0) revert IStakeVault.LockOnHold(lockId, self.holds);
        if (nowAt < self.releasableAt) revert IStakeVault.LockNotReleasable(lockId, self.releasableAt, nowAt);
        amount = self.amount;
        self.amount = 0;
        self.state = LockState.Released;
    }
}
