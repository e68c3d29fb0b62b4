// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {AccessManager} from "@openzeppelin/contracts/access/manager/AccessManager.sol";

/// @title MarketAccess
/// @notice Who may wire contracts, admit controllers and add parameter sets: OpenZeppelin's AccessManager as it is.
contract MarketAccess is AccessManager {
    constructor(address governor) AccessManager(governor) {}
}
