// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {AccessManaged} from "@openzeppelin/contracts/access/manager/AccessManaged.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {ActiveClock} from "./ActiveClock.sol";
import {IMarketParams} from "./interfaces/IMarketParams.sol";
import {IStakeVault, Lock} from "./interfaces/IStakeVault.sol";
import {LockLib} from "./libraries/LockLib.sol";

/// @title StakeVault
/// @notice See IStakeVault.
contract StakeVault is AccessManaged, EIP712, ReentrancyGuardTransient, ActiveClock, IStakeVault {
    using SafeERC20 for IERC20;
    using SafeCast for uint256;
    using LockLib for Lock;

    struct Account {
        uint112 bonded;
        uint112 locked;
        bool banned;
    }

    struct Unbond {
        uint128 amount;
        uint64 maturesAt;
    }

    struct Totals {
        uint128 bonded;
        uint128 unbonding;
        uint128 credits;
        uint48 lockCount;
        uint8 controllerCount;
    }

    /// @dev EIP-712 type of the proof that the hot key's holder consents.
    bytes32 private constant GRANT_TYPEHASH =
        keccak256("SignerGrant(address account,address signer,uint256 nonce,uint64 deadline)");

    IERC20 private immutable _token;
    IMarketParams private immutable _params;

    Totals private _totals;
    mapping(address account => Account) private _accounts;
    mapping(address account => uint256) private _unbonding;
    mapping(address account => uint256) private _credits;
    mapping(address account => Unbond[]) private _unbonds;
    mapping(uint256 lockId => Lock) private _locks;
    mapping(address signer => address) private _signerOwner;
    /// @inheritdoc IStakeVault
    mapping(address account => address) public hotKeyOf;
    /// @inheritdoc IStakeVault
    mapping(address account => uint256) public signerNonce;
    /// @inheritdoc IStakeVault
    mapping(address controller => uint8) public controllerId;

    constructor(
        address access,
        IERC20 token_,
        IMarketParams params_
    ) AccessManaged(access) EIP712("StakeVault", "1") {
        _token = token_;
        _params = params_;
    }

    // --- stake

    /// @inheritdoc IStakeVault
    function deposit(uint256 amount) external nonReentrant {
        if (amount == 0) revert ZeroAmount();
        uint256 before = _token.balanceOf(address(this));
        _token.safeTransferFrom(msg.sender, address(this), amount);
        uint256 received = _token.balanceOf(address(this)) - before;
        if (received != amount) revert InexactTransfer(amount, received);
        _accounts[msg.sender].bonded += amount.toUint112();
        _totals.bonded += amount.toUint128();
        emit Deposited(msg.sender, amount);
    }

    /// @inheritdoc IStakeVault
    function requestUnbond(uint256 amount) external returns (uint256 id) {
        if (amount == 0) revert ZeroAmount();
        Account storage account = _accounts[msg.sender];
        _requireFree(msg.sender, account, amount);
        account.bonded -= uint112(amount);
        _unbonding[msg.sender] += amount;
        _totals.bonded -= uint128(amount);
        _totals.unbonding += uint128(amount);
        uint64 maturesAt = _now() + _params.get(_params.latest()).unbonding;
        id = _unbonds[msg.sender].length;
        _unbonds[msg.sender].push(Unbond(uint128(amount), maturesAt));
        emit UnbondRequested(msg.sender, id, amount, maturesAt);
    }

    /// @inheritdoc IStakeVault
    function cancelUnbond(uint256 id) external {
        uint256 amount = _takeUnbond(id);
        _accounts[msg.sender].bonded += uint112(amount);
        _totals.bonded += uint128(amount);
        emit UnbondCancelled(msg.sender, id, amount);
    }

    /// @inheritdoc IStakeVault
    function withdraw(uint256 id) external nonReentrant returns (uint256 amount) {
        (, uint64 maturesAt) = getUnbond(msg.sender, id);
        if (_now() < maturesAt) revert NotMatured(maturesAt, _now());
        amount = _takeUnbond(id);
        emit Withdrawn(msg.sender, id, amount);
        _token.safeTransfer(msg.sender, amount);
    }

    /// @inheritdoc IStakeVault
    function withdrawCredits() external nonReentrant returns (uint256 amount) {
        amount = _credits[msg.sender];
        if (amount == 0) revert ZeroAmount();
        _credits[msg.sender] = 0;
        _totals.credits -= uint128(amount);
        emit CreditWithdrawn(msg.sender, amount);
        _token.safeTransfer(msg.sender, amount);
    }

    /// @inheritdoc IStakeVault
    function transferCredit(address to, uint256 amount) external {
        uint256 had = _credits[msg.sender];
        if (amount > had) revert InsufficientCredit(msg.sender, amount, had);
        _credits[msg.sender] = had - amount;
        _credits[to] += amount;
        emit CreditAdded(to, msg.sender, amount);
    }

    // --- keys

    /// @inheritdoc IStakeVault
    function registerSigner(address signer, uint64 deadline, bytes calldata signature) external {
        if (_accounts[msg.sender].banned) revert Banned(msg.sender);
        if (signer == msg.sender) revert SignerIsAccount(signer);
        if (_now() >= deadline) revert GrantExpired(deadline, _now());
        address owner = _signerOwner[signer];
        if (owner != address(0) && owner != msg.sender) revert SignerTaken(signer, owner);
        uint256 nonce = signerNonce[msg.sender]++;
        address recovered = ECDSA.recover(grantDigest(msg.sender, signer, nonce, deadline), signature);
        if (recovered != signer) revert BadGrantSignature(signer, recovered);
        _signerOwner[signer] = msg.sender;
        hotKeyOf[msg.sender] = signer;
        emit SignerGranted(msg.sender, signer, nonce);
    }

    /// @inheritdoc IStakeVault
    function revokeSigner() external {
        address signer = hotKeyOf[msg.sender];
        hotKeyOf[msg.sender] = address(0);
        emit SignerRevoked(msg.sender, signer);
    }

    // --- controllers

    /// @inheritdoc IStakeVault
    function lock(address account, uint256 amount) external returns (uint256 lockId) {
        uint8 controller = _requireController();
        if (amount == 0) revert ZeroAmount();
        Account storage stored = _accounts[account];
        if (stored.banned) revert Banned(account);
        _requireFree(account, stored, amount);
        stored.locked += uint112(amount);
        lockId = ++_totals.lockCount;
        _locks[lockId].open(account, controller, uint128(amount));
        emit LockCreated(lockId, account, msg.sender, amount);
    }

    /// @inheritdoc IStakeVault
    function scheduleRelease(uint256 lockId, uint64 releasableAt) external {
        Lock storage own = _own(lockId);
        own.releasableAt = uint256(releasableAt).toUint40();
        emit LockScheduled(lockId, releasableAt);
    }

    /// @inheritdoc IStakeVault
    function hold(uint256 lockId) external {
        Lock storage own = _own(lockId);
        own.holds += 1;
        emit LockHeld(lockId, own.holds);
    }

    /// @inheritdoc IStakeVault
    function unhold(uint256 lockId) external {
        Lock storage own = _own(lockId);
        own.unhold(lockId);
        emit LockHeld(lockId, own.holds);
    }

    /// @inheritdoc IStakeVault
    function release(uint256 lockId) external returns (uint256 amount) {
        Lock storage own = _own(lockId);
        amount = own.close(lockId, _now());
        _accounts[own.account].locked -= uint112(amount);
        emit LockReleased(lockId, own.account, amount);
    }

    /// @inheritdoc IStakeVault
    function slash(uint256 lockId, address[] calldata recipients, uint256[] calldata amounts) external {
        if (recipients.length != amounts.length) revert LengthMismatch(recipients.length, amounts.length);
        Lock storage own = _own(lockId);
        uint256 total = 0;
        // As many as the waterfall of a slash has parts (three), never one a user.
        for (uint256 i = 0; i < recipients.length; ++i) {
            if (amounts[i] == 0) continue;
            total += amounts[i];
            _credits[recipients[i]] += amounts[i];
            emit CreditAdded(recipients[i], msg.sender, amounts[i]);
        }
        own.slash(lockId, total);
        Account storage account = _accounts[own.account];
        account.bonded -= uint112(total);
        account.locked -= uint112(total);
        _totals.bonded -= uint128(total);
        _totals.credits += uint128(total);
        emit Slashed(lockId, own.account, msg.sender, total);
    }

    /// @inheritdoc IStakeVault
    function ban(address account) external {
        _requireController();
        if (_accounts[account].banned) return;
        _accounts[account].banned = true;
        emit AccountBanned(account, msg.sender);
    }

    /// @inheritdoc IStakeVault
    function addController(address controller) external restricted {
        if (controllerId[controller] != 0) revert ControllerKnown(controller);
        uint8 id = ++_totals.controllerCount;
        controllerId[controller] = id;
        emit ControllerAdded(controller, id);
    }

    // --- views

    /// @inheritdoc IStakeVault
    function token() external view returns (address) {
        return address(_token);
    }

    /// @inheritdoc IStakeVault
    function stakeOf(
        address account
    )
        external
        view
        returns (uint256 bonded, uint256 locked, uint256 free, uint256 unbonding, uint256 credits, bool banned)
    {
        Account memory stored = _accounts[account];
        return (
            stored.bonded,
            stored.locked,
            stored.bonded - stored.locked,
            _unbonding[account],
            _credits[account],
            stored.banned
        );
    }

    /// @inheritdoc IStakeVault
    function isBanned(address account) external view returns (bool) {
        return _accounts[account].banned;
    }

    /// @inheritdoc IStakeVault
    function accountOf(address signer) external view returns (address) {
        address owner = _signerOwner[signer];
        return owner != address(0) && hotKeyOf[owner] == signer ? owner : address(0);
    }

    /// @inheritdoc IStakeVault
    function grantDigest(
        address account,
        address signer,
        uint256 nonce,
        uint64 deadline
    ) public view returns (bytes32) {
        return _hashTypedDataV4(keccak256(abi.encode(GRANT_TYPEHASH, account, signer, nonce, deadline)));
    }

    /// @inheritdoc IStakeVault
    function getLock(uint256 lockId) external view returns (Lock memory) {
        return _locks[lockId];
    }

    /// @inheritdoc IStakeVault
    function getUnbond(address account, uint256 id) public view returns (uint256 amount, uint64 maturesAt) {
        if (id >= _unbonds[account].length) return (0, 0);
        Unbond memory unbond = _unbonds[account][id];
        return (unbond.amount, unbond.maturesAt);
    }

    /// @inheritdoc IStakeVault
    function unbondCount(address account) external view returns (uint256) {
        return _unbonds[account].length;
    }

    /// @inheritdoc IStakeVault
    function totals() external view returns (uint256 bonded, uint256 unbonding, uint256 credits) {
        return (_totals.bonded, _totals.unbonding, _totals.credits);
    }

    // --- inside

    function _takeUnbond(uint256 id) private returns (uint256 amount) {
        (amount, ) = getUnbond(msg.sender, id);
        if (amount == 0) revert UnknownUnbond(msg.sender, id);
        _unbonds[msg.sender][id].amount = 0;
        _unbonding[msg.sender] -= amount;
        _totals.unbonding -= uint128(amount);
    }

    function _requireFree(address owner, Account storage account, uint256 amount) private view {
        uint256 free = account.bonded - account.locked;
        if (free < amount) revert InsufficientFreeStake(owner, amount, free);
    }

    function _requireController() private view returns (uint8 id) {
        id = controllerId[msg.sender];
        if (id == 0) revert NotController(msg.sender);
    }

    function _own(uint256 lockId) private view returns (Lock storage own) {
        own = _locks[lockId];
        own.requireOwn(lockId, _requireController());
    }
}
