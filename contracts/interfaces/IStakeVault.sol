// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @notice State of a lock.
enum LockState {
    None,
    Live,
    Released
}

/// @notice Stake of one account set aside for one duty. slashed + amount + released = original.
struct Lock {
    address account;
    uint40 releasableAt; // half-open: releasable from this second on, when there is no hold
    uint16 holds; // open cases on it
    uint8 controller; // number of the contract that made it; nobody else can change it
    LockState state;
    uint128 original;
    uint128 amount; // 0 once released
}

/// @title Stake vault
/// @notice Holds stakes and bonds in one ERC-20. Slashes only what is locked for a duty; what is locked cannot be unbonded;
/// each lock belongs to the controller that made it. Pull payments only.
interface IStakeVault {
    /// @notice `amount` was added to the free stake of `account`.
    event Deposited(address indexed account, uint256 amount);
    /// @notice `amount` of free stake left the bonded stake and matures at `maturesAt`.
    event UnbondRequested(address indexed account, uint256 indexed id, uint256 amount, uint64 maturesAt);
    /// @notice The request returned to free stake.
    event UnbondCancelled(address indexed account, uint256 indexed id, uint256 amount);
    /// @notice A matured request was paid out.
    event Withdrawn(address indexed account, uint256 indexed id, uint256 amount);
    /// @notice `account` was credited `amount` by `source` (a controller, or another credit holder).
    event CreditAdded(address indexed account, address indexed source, uint256 amount);
    /// @notice Credits were paid out.
    event CreditWithdrawn(address indexed account, uint256 amount);
    /// @notice `signer` is now the hot key of `account`.
    event SignerGranted(address indexed account, address indexed signer, uint256 nonce);
    /// @notice `account` has no hot key any more.
    event SignerRevoked(address indexed account, address indexed signer);
    /// @notice `controller` locked `amount` of `account`.
    event LockCreated(uint256 indexed lockId, address indexed account, address indexed controller, uint256 amount);
    /// @notice The lock may be released from `releasableAt` on.
    event LockScheduled(uint256 indexed lockId, uint64 releasableAt);
    /// @notice The number of holds of a lock changed.
    event LockHeld(uint256 indexed lockId, uint256 holds);
    /// @notice The rest of a lock returned to free stake.
    event LockReleased(uint256 indexed lockId, address indexed account, uint256 amount);
    /// @notice `amount` was slashed from a lock.
    event Slashed(uint256 indexed lockId, address indexed account, address indexed controller, uint256 amount);
    /// @notice The account can no longer lock, claim, report or register keys.
    event AccountBanned(address indexed account, address indexed controller);
    /// @notice `controller` may make locks from now on, under number `id`.
    event ControllerAdded(address indexed controller, uint8 id);

    /// @notice An amount of zero makes no sense here.
    error ZeroAmount();
    /// @notice The token moved another amount than asked (fee-on-transfer or rebasing tokens are refused).
    error InexactTransfer(uint256 expected, uint256 received);
    /// @notice Not enough free stake (bonded and not locked).
    error InsufficientFreeStake(address account, uint256 needed, uint256 had);
    /// @notice Not enough credit.
    error InsufficientCredit(address account, uint256 needed, uint256 had);
    /// @notice No such open unbonding request.
    error UnknownUnbond(address account, uint256 id);
    /// @notice The request matures later.
    error NotMatured(uint256 maturesAt, uint256 nowAt);
    /// @notice The account is banned.
    error Banned(address account);
    /// @notice The caller is no controller of this vault.
    error NotController(address caller);
    /// @notice The lock belongs to another controller.
    error NotLockController(uint256 lockId, address caller);
    /// @notice The lock is not live.
    error LockNotLive(uint256 lockId);
    /// @notice Open cases hold the lock.
    error LockOnHold(uint256 lockId, uint256 holds);
    /// @notice The lock is releasable later.
    error LockNotReleasable(uint256 lockId, uint256 releasableAt, uint256 nowAt);
    /// @notice There is no hold to take off.
    error NoHold(uint256 lockId);
    /// @notice More would be slashed than is locked.
    error SlashExceedsLock(uint256 lockId, uint256 asked, uint256 had);
    /// @notice Recipients and amounts differ in number.
    error LengthMismatch(uint256 left, uint256 right);
    /// @notice The key belongs (or belonged) to another account.
    error SignerTaken(address signer, address owner);
    /// @notice A hot key must differ from the cold account.
    error SignerIsAccount(address signer);
    /// @notice The grant is past its deadline.
    error GrantExpired(uint256 deadline, uint256 nowAt);
    /// @notice The grant was signed by somebody else.
    error BadGrantSignature(address expected, address recovered);
    /// @notice The controller is known already.
    error ControllerKnown(address controller);

    // --- stake
    /// @notice Adds `amount` of the token to the caller's free stake. Approve the vault first.
    function deposit(uint256 amount) external;
    /// @notice Starts to unbond `amount` of the caller's free stake.
    function requestUnbond(uint256 amount) external returns (uint256 id);
    /// @notice Returns an unbonding request to free stake.
    function cancelUnbond(uint256 id) external;
    /// @notice Pays out a matured request of the caller. Nothing else can stand in its way.
    function withdraw(uint256 id) external returns (uint256 amount);
    /// @notice Pays out all credits of the caller.
    function withdrawCredits() external returns (uint256 amount);
    /// @notice Moves the caller's credit to another account.
    function transferCredit(address to, uint256 amount) external;

    // --- keys
    /// @notice Registers `signer` as the caller's hot key. `signature` is the signer's own, over
    /// SignerGrant(account, signer, signerNonce(account), deadline): proof of possession.
    function registerSigner(address signer, uint64 deadline, bytes calldata signature) external;
    /// @notice Takes the caller's hot key off.
    function revokeSigner() external;

    // --- controllers
    /// @notice Locks `amount` of free stake of `account` under the calling controller.
    function lock(address account, uint256 amount) external returns (uint256 lockId);
    /// @notice Sets from when on a lock may be released.
    function scheduleRelease(uint256 lockId, uint64 releasableAt) external;
    /// @notice Adds a hold (a case opened).
    function hold(uint256 lockId) external;
    /// @notice Takes a hold off (a case ended).
    function unhold(uint256 lockId) external;
    /// @notice Returns the rest of a lock to free stake; needs its time to be over and no hold.
    function release(uint256 lockId) external returns (uint256 amount);
    /// @notice Slashes the sum of `amounts` from a lock and credits the recipients.
    function slash(uint256 lockId, address[] calldata recipients, uint256[] calldata amounts) external;
    /// @notice Bans an account.
    function ban(address account) external;
    /// @notice Admits a controller. Governor only.
    function addController(address controller) external;

    // --- views
    /// @notice The one token of this vault.
    function token() external view returns (address);
    /// @notice Everything about an account's money: bonded = locked + free.
    function stakeOf(
        address account
    )
        external
        view
        returns (uint256 bonded, uint256 locked, uint256 free, uint256 unbonding, uint256 credits, bool banned);
    /// @notice Whether the account is banned.
    function isBanned(address account) external view returns (bool);
    /// @notice The account whose current hot key is `signer`; zero when there is none.
    function accountOf(address signer) external view returns (address);
    /// @notice The current hot key of `account`; zero when there is none.
    function hotKeyOf(address account) external view returns (address);
    /// @notice The nonce that the next SignerGrant of `account` must carry.
    function signerNonce(address account) external view returns (uint256);
    /// @notice EIP-712 digest of a SignerGrant.
    function grantDigest(
        address account,
        address signer,
        uint256 nonce,
        uint64 deadline
    ) external view returns (bytes32);
    /// @notice A lock.
    function getLock(uint256 lockId) external view returns (Lock memory);
    /// @notice An unbonding request; amount 0 once paid or cancelled.
    function getUnbond(address account, uint256 id) external view returns (uint256 amount, uint64 maturesAt);
    /// @notice How many unbonding requests an account has made; ids run from 0.
    function unbondCount(address account) external view returns (uint256);
    /// @notice Sums over all accounts. The token balance is never below bonded + unbonding + credits.
    function totals() external view returns (uint256 bonded, uint256 unbonding, uint256 credits);
    /// @notice The number of a controller; 0 when it is none.
    function controllerId(address controller) external view returns (uint8);
}
