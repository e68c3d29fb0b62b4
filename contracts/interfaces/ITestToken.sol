// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

/// @title Test token: stake and pay on local networks only
/// @notice A plain ERC-20 with 18 decimals that anyone may mint a bounded amount of. Never deploy it to a public network.
interface ITestToken is IERC20 {
    /// @notice `amount` base units were minted to `account` by the faucet.
    event FaucetUsed(address indexed account, uint256 amount);

    /// @notice More was asked of the faucet than one call may mint.
    error FaucetLimit(uint256 limit, uint256 asked);

    /// @notice Mints `amount` base units to `account`; at most `FAUCET_LIMIT` a call.
    function faucet(address account, uint256 amount) external;

    /// @notice The most that one faucet call mints.
    // solhint-disable-next-line func-name-mixedcase
    function FAUCET_LIMIT() external view returns (uint256);
}
