// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @notice The cheat codes that our tests use; Hardhat answers them at this address.
interface Vm {
    function addr(uint256 key) external pure returns (address);
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function warp(uint256 timestamp) external;
    function chainId(uint256 id) external;
    function prank(address sender) external;
    function startPrank(address sender) external;
    function stopPrank() external;
    function expectRevert(bytes calldata data) external;
    function expectPartialRevert(bytes4 selector) external;
    function etch(address where, bytes calldata code) external;
    function readFile(string calldata path) external view returns (string memory);
    function parseJsonUint(string calldata json, string calldata key) external pure returns (uint256);
    function parseJsonAddress(string calldata json, string calldata key) external pure returns (address);
    function parseJsonBytes32(string calldata json, string calldata key) external pure returns (bytes32);
    function parseJsonBytes(string calldata json, string calldata key) external pure returns (bytes memory);
    function parseJsonString(string calldata json, string calldata key) external pure returns (string memory);
    function snapshotValue(string calldata group, string calldata name, uint256 value) external;
}

/// @notice A few assertions; each failure names what was compared.
abstract contract Check {
    Vm internal constant vm = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));

    error NotEqual(string what, uint256 got, uint256 wanted);
    error NotTrue(string what);

    function eq(uint256 got, uint256 wanted, string memory what) internal pure {
        if (got != wanted) revert NotEqual(what, got, wanted);
    }

    function eq(address got, address wanted, string memory what) internal pure {
        eq(uint160(got), uint160(wanted), what);
    }

    function eq(bytes32 got, bytes32 wanted, string memory what) internal pure {
        eq(uint256(got), uint256(wanted), what);
    }

    function yes(bool got, string memory what) internal pure {
        if (!got) revert NotTrue(what);
    }
}
