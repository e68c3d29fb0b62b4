// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {JobEscrow} from "../JobEscrow.sol";
import {StakeVault} from "../StakeVault.sol";
import {IJobEscrow} from "../interfaces/IJobEscrow.sol";
import {IJobMarket} from "../interfaces/IJobMarket.sol";
import {IStakeVault} from "../interfaces/IStakeVault.sol";
import {MarketFixture} from "./MarketFixture.sol";

/// @dev Keeps a hundredth of every transfer.
contract FeeToken is ERC20 {
    constructor() ERC20("Fee", "FEE") {
        _mint(msg.sender, 1_000 ether);
    }

    function _update(address from, address to, uint256 value) internal override {
        if (from == address(0)) return super._update(from, to, value);
        super._update(from, address(0xFEE), value / 100);
        super._update(from, to, value - value / 100);
    }
}

/// @notice The whole money path once, until everybody has taken its money out and the contracts are empty.
contract MoneyPathTest is MarketFixture {
    function setUp() public {
        deploy();
    }

    function departs(address account) internal {
        uint256 all = bonded(account);
        vm.startPrank(account);
        uint256 id = vault.requestUnbond(all);
        if (credits(account) > 0) vault.withdrawCredits();
        vm.stopPrank();
        vm.warp(block.timestamp + 17);
        vm.prank(account);
        vault.withdraw(id);
    }

    function test_EverybodyGetsItsMoneyOutToTheBaseUnit() public {
        uint256 jobId = running();
        vm.warp(T0 + 50);
        bytes32 caseId = convicted(jobId, 0, 0, 1);
        join(3);
        claimSlot(jobId, 0, 3);
        vm.warp(T0 + 100);
        // Worker 1 was caught and is paid for its clean work; workers 2 and 3 for theirs; a seat's pay in odd units.
        bytes32 left = twoLeaves(jobId, cold(1), 11 ether + 1, cold(2), 77 ether + 3);
        bytes32 right = twoLeaves(jobId, cold(3), 30 ether, cold(101), 7 ether + 7);
        uint128 total = 125 ether + 11;
        settlement(jobId, 4, pair(left, right), total);
        finish(jobId, 4);
        vm.warp(T0 + 104);
        market.settleJob(jobId);
        for (uint32 i = 0; i < 12; i += 3) if (held(jobId, i).account != address(0)) market.releaseSlot(jobId, i);
        for (uint8 i = 0; i < 3; ++i) market.releaseSeat(jobId, i);
        court.settleBond(caseId, 0);
        court.settleBond(caseId, 1);
        draw(jobId, left, right);
        escrow.withdrawRefund(jobId);
        escrow.withdrawFees(treasury);
        uint256 fee = (uint256(total) * 200 + 9_999) / 10_000;
        eq(token.balanceOf(treasury), fee, "fee");
        eq(token.balanceOf(submitter), BUDGET - total - fee, "refund");
        eq(token.balanceOf(address(escrow)), 0, "escrow empty");
        for (uint256 i = 1; i <= 3; ++i) departs(cold(i));
        for (uint256 i = 101; i <= 103; ++i) departs(cold(i));
        vm.prank(treasury);
        vault.withdrawCredits();
        eq(token.balanceOf(address(vault)), 0, "vault empty");
        eq(token.balanceOf(cold(1)), STAKE - 50 ether + 11 ether + 1, "the offender lost its slash, kept clean pay");
        eq(token.balanceOf(cold(2)), STAKE + 77 ether + 3, "an honest worker");
        eq(token.balanceOf(cold(101)), STAKE + 7.5 ether + 7 ether + 7, "a seat");
        eq(token.balanceOf(treasury), fee + 35 ether, "the treasury");
    }

    function draw(uint256 jobId, bytes32 left, bytes32 right) internal {
        bytes32[] memory proof = new bytes32[](2);
        proof[1] = right;
        proof[0] = escrow.leaf(jobId, cold(2), 77 ether + 3);
        escrow.claim(jobId, 4, cold(1), 11 ether + 1, proof);
        proof[0] = escrow.leaf(jobId, cold(1), 11 ether + 1);
        escrow.claim(jobId, 4, cold(2), 77 ether + 3, proof);
        proof[1] = left;
        proof[0] = escrow.leaf(jobId, cold(101), 7 ether + 7);
        escrow.claim(jobId, 4, cold(3), 30 ether, proof);
        proof[0] = escrow.leaf(jobId, cold(3), 30 ether);
        escrow.claim(jobId, 4, cold(101), 7 ether + 7, proof);
    }

    function test_FeeOnTransferTokenIsRefused() public {
        FeeToken bad = new FeeToken();
        StakeVault v = new StakeVault(address(1), bad, params);
        bad.approve(address(v), 100 ether);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.InexactTransfer.selector, 100 ether, 99 ether));
        v.deposit(100 ether);
        JobEscrow e = new JobEscrow(bad, IJobMarket(address(this)), params);
        bad.approve(address(e), 100 ether);
        vm.expectRevert(abi.encodeWithSelector(IJobEscrow.InexactTransfer.selector, 100 ether, 99 ether));
        e.fund(1, address(this), 100 ether, 1 ether, 10, 1);
    }

    /// @dev A leaf is a double hash, so an inner node of the tree is no leaf of anything.
    function testFuzz_InnerNodeIsNoLeaf(uint96 a, uint96 b) public view {
        bytes32 node = twoLeaves(1, cold(1), a, cold(2), b);
        yes(node != escrow.leaf(1, cold(1), a), "not a leaf");
    }
}
