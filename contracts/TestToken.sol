// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {ITestToken} from "./interfaces/ITestToken.sol";

/// @title TestToken
/// @notice See ITestToken.
contract TestToken is ERC20, ITestToken {
    /// @inheritdoc ITestToken
    uint256 public constant FAUCET_LIMIT = 1_000_000 ether;

    constructor() ERC20("Sentinel Test Token", "SNTL") {}

    /// @inheritdoc ITestToken
    function faucet(address account, uint256 amount) external {
        if (amount > FAUCET_LIMIT) revert FaucetLimit(FAUCET_LIMIT, amount);
        _mint(account, amount);
        emit FaucetUsed(account, amount);
    }
}
