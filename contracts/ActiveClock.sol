// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @title ActiveClock
/// @notice The one place where contracts read the time. It is the block's time until pausing exists (issue number 3); then
/// it stops while paused, and nothing else has to change.
abstract contract ActiveClock {
    function _now() internal view virtual returns (uint64) {
        return uint64(block.timestamp);
    }
}
