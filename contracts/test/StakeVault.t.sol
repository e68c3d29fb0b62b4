// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IStakeVault, LockState} from "../interfaces/IStakeVault.sol";
import {MarketFixture} from "./MarketFixture.sol";

contract StakeVaultTest is MarketFixture {
    address internal controller = address(0xC0);
    address internal other = address(0xC1);

    function setUp() public {
        deploy();
        vault.addController(controller);
        vault.addController(other);
        join(1);
    }

    function lockOf(uint256 amount) internal returns (uint256 lockId) {
        vm.prank(controller);
        return vault.lock(cold(1), amount);
    }

    function test_DepositIsFree() public view {
        (uint256 all, uint256 locked_, uint256 free, , , ) = vault.stakeOf(cold(1));
        eq(all, STAKE, "bonded");
        eq(locked_, 0, "locked");
        eq(free, STAKE, "free");
    }

    function test_LockedStakeCannotBeUnbonded() public {
        lockOf(900 ether);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.InsufficientFreeStake.selector, cold(1), 101 ether, 100 ether));
        vm.prank(cold(1));
        vault.requestUnbond(101 ether);
    }

    function test_UnbondMaturesAtTheEdge() public {
        vm.prank(cold(1));
        uint256 id = vault.requestUnbond(400 ether);
        vm.warp(T0 + 16);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.NotMatured.selector, T0 + 17, T0 + 16));
        vm.prank(cold(1));
        vault.withdraw(id);
        vm.warp(T0 + 17);
        vm.prank(cold(1));
        eq(vault.withdraw(id), 400 ether, "paid");
        eq(token.balanceOf(cold(1)), 400 ether, "in the wallet");
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.UnknownUnbond.selector, cold(1), id));
        vm.prank(cold(1));
        vault.withdraw(id);
    }

    function test_UnbondCanBeCancelledOnce() public {
        vm.startPrank(cold(1));
        uint256 id = vault.requestUnbond(400 ether);
        vault.cancelUnbond(id);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.UnknownUnbond.selector, cold(1), id));
        vault.cancelUnbond(id);
        vm.stopPrank();
        eq(bonded(cold(1)), STAKE, "back");
    }

    function test_OnlyTheOwnControllerTouchesALock() public {
        uint256 lockId = lockOf(10 ether);
        bytes memory refused = abi.encodeWithSelector(IStakeVault.NotLockController.selector, lockId, other);
        vm.startPrank(other);
        vm.expectRevert(refused);
        vault.hold(lockId);
        vm.expectRevert(refused);
        vault.scheduleRelease(lockId, 1);
        vm.expectRevert(refused);
        vault.release(lockId);
        vm.expectRevert(refused);
        vault.slash(lockId, new address[](0), new uint256[](0));
        vm.stopPrank();
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.NotController.selector, cold(1)));
        vm.prank(cold(1));
        vault.lock(cold(1), 1);
    }

    function test_ReleaseNeedsTimeAndNoHold() public {
        uint256 lockId = lockOf(10 ether);
        vm.startPrank(controller);
        vault.scheduleRelease(lockId, uint64(T0 + 5));
        vault.hold(lockId);
        vm.warp(T0 + 5);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.LockOnHold.selector, lockId, 1));
        vault.release(lockId);
        vault.unhold(lockId);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.NoHold.selector, lockId));
        vault.unhold(lockId);
        vm.warp(T0 + 4);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.LockNotReleasable.selector, lockId, T0 + 5, T0 + 4));
        vault.release(lockId);
        vm.warp(T0 + 5);
        eq(vault.release(lockId), 10 ether, "released");
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.LockNotLive.selector, lockId));
        vault.release(lockId);
        vm.stopPrank();
        eq(locked(cold(1)), 0, "nothing locked");
    }

    function testFuzz_SlashIsWithinTheLockAndConserves(uint96 lockAmount, uint96 a, uint96 b) public {
        uint256 amount = 1 + (uint256(lockAmount) % STAKE);
        uint256 lockId = lockOf(amount);
        address[] memory to = new address[](2);
        uint256[] memory parts = new uint256[](2);
        (to[0], to[1], parts[0], parts[1]) = (treasury, submitter, a, b);
        uint256 sum = uint256(a) + b;
        vm.startPrank(controller);
        if (sum > amount) {
            vm.expectRevert(abi.encodeWithSelector(IStakeVault.SlashExceedsLock.selector, lockId, sum, amount));
            vault.slash(lockId, to, parts);
        } else {
            vault.slash(lockId, to, parts);
            eq(credits(treasury) + credits(submitter), sum, "credited");
            eq(bonded(cold(1)), STAKE - sum, "bonded");
            eq(locked(cold(1)), amount - sum, "locked");
            vault.scheduleRelease(lockId, 0);
            eq(vault.release(lockId), amount - sum, "rest released");
        }
        vm.stopPrank();
        eq(uint8(vault.getLock(lockId).state), uint8(sum > amount ? LockState.Live : LockState.Released), "state");
    }

    function test_BannedCannotLockNorRegisterButCanLeave() public {
        vm.prank(controller);
        vault.ban(cold(1));
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.Banned.selector, cold(1)));
        vm.prank(controller);
        vault.lock(cold(1), 1 ether);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.Banned.selector, cold(1)));
        vm.prank(cold(1));
        vault.registerSigner(address(5), uint64(T0 + 1), "");
        vm.prank(cold(1));
        uint256 id = vault.requestUnbond(STAKE);
        vm.warp(T0 + 17);
        vm.prank(cold(1));
        eq(vault.withdraw(id), STAKE, "left");
    }

    function test_HotKeyNeedsProofOfPossession() public {
        uint64 deadline = uint64(T0 + 10);
        address signer = hot(2);
        bytes memory forged = signed(hotKey(3), vault.grantDigest(cold(1), signer, 1, deadline));
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.BadGrantSignature.selector, signer, hot(3)));
        vm.prank(cold(1));
        vault.registerSigner(signer, deadline, forged);
        bytes memory good = signed(hotKey(2), vault.grantDigest(cold(1), signer, 1, deadline));
        vm.warp(T0 + 10);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.GrantExpired.selector, T0 + 10, T0 + 10));
        vm.prank(cold(1));
        vault.registerSigner(signer, deadline, good);
        vm.warp(T0 + 9);
        vm.prank(cold(1));
        vault.registerSigner(signer, deadline, good);
        eq(vault.accountOf(signer), cold(1), "new key");
        eq(vault.accountOf(hot(1)), address(0), "old key");
        // The old key stays the account's own: nobody else can take it.
        bytes memory stolen = signed(hotKey(1), vault.grantDigest(cold(2), hot(1), 0, deadline));
        address old = hot(1);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.SignerTaken.selector, old, cold(1)));
        vm.prank(cold(2));
        vault.registerSigner(old, deadline, stolen);
        // Nor does an old grant work twice.
        vm.expectPartialRevert(IStakeVault.BadGrantSignature.selector);
        vm.prank(cold(1));
        vault.registerSigner(signer, deadline, good);
    }

    function test_RevokedKeyActsForNobody() public {
        vm.prank(cold(1));
        vault.revokeSigner();
        eq(vault.accountOf(hot(1)), address(0), "revoked");
        eq(vault.hotKeyOf(cold(1)), address(0), "none");
    }

    function test_OnlyTheGovernorAddsControllers() public {
        vm.expectPartialRevert(bytes4(keccak256("AccessManagedUnauthorized(address)")));
        vm.prank(cold(1));
        vault.addController(address(9));
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.ControllerKnown.selector, controller));
        vault.addController(controller);
    }
}
