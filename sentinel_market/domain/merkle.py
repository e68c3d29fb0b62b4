"""Merkle trees that OpenZeppelin's ``MerkleProof`` verifies. Pure: the hash is an argument.

Layout of OpenZeppelin's ``StandardMerkleTree``: a complete binary tree in an array, node ``i`` over nodes ``2i+1``
and ``2i+2``, leaves from the end; a pair is hashed in ascending order, so that a proof needs no directions.
Leaves are hashed twice over an encoding that is not 64 bytes, so that no inner node can pass for a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Hash = Callable[[bytes], bytes]
"""A hash from bytes to 32 bytes; keccak-256 wherever the chain reads the result."""

EMPTY_ROOT: Final = bytes(32)
"""Root over no leaves."""
_UINT256: Final = 2**256


def address_bytes(account: str) -> bytes:
    """The 20 bytes of a 0x address, in any case. ``ValueError`` when it is not one."""
    if len(account) != 42 or account[:2] != "0x":
        raise ValueError(f"{account[:60]!r} is not an address")
    try:
        return bytes.fromhex(account[2:])
    except ValueError:
        raise ValueError(f"{account!r} is not an address") from None


def pay_leaf(job_id: int, account: str, cumulative: int, hash_: Hash) -> bytes:
    """``keccak(keccak(abi.encode(uint256 jobId, address account, uint256 cumulative)))``: 32 bytes."""
    if not (0 <= job_id < _UINT256 and 0 <= cumulative < _UINT256):
        raise ValueError("job id and cumulative amount must fit 256 bits")
    encoded = job_id.to_bytes(32, "big") + bytes(12) + address_bytes(account) + cumulative.to_bytes(32, "big")
    return hash_(hash_(encoded))


def hash_pair(left: bytes, right: bytes, hash_: Hash) -> bytes:
    """Parent of two nodes, whatever their order."""
    return hash_(left + right if left <= right else right + left)


def _tree(nodes: Sequence[bytes], hash_: Hash) -> list[bytes]:
    """The whole array of a tree over at least one node; leaf ``k`` is at index ``-1 - k``."""
    if any(len(node) != 32 for node in nodes):
        raise ValueError("the nodes of a Merkle tree have 32 bytes")
    count = len(nodes)
    tree = [b""] * (count - 1) + list(reversed(nodes))
    for index in range(count - 2, -1, -1):
        tree[index] = hash_pair(tree[2 * index + 1], tree[2 * index + 2], hash_)
    return tree


def _path(tree: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    siblings = []
    while index > 0:
        siblings.append(tree[index + 1 if index % 2 else index - 1])
        index = (index - 1) // 2
    return tuple(siblings)


def verify(root: bytes, node: bytes, proof: Sequence[bytes], hash_: Hash) -> bool:
    """What ``MerkleProof.verify`` answers: whether ``proof`` leads from ``node`` to ``root``."""
    for sibling in proof:
        node = hash_pair(node, sibling, hash_)
    return node == root


def commitment_node(leaf: bytes, hash_: Hash) -> bytes:
    """Node of a 32-byte digest in a commitment tree: hashed twice, as any leaf."""
    if len(leaf) != 32:
        raise ValueError(f"a commitment has 32 bytes, not {len(leaf)}")
    return hash_(hash_(leaf))


def root(leaves: Sequence[bytes], hash_: Hash) -> bytes:
    """Root over 32-byte digests in the given order (``DriverRoot`` and its like); ``EMPTY_ROOT`` over none."""
    return _tree([commitment_node(leaf, hash_) for leaf in leaves], hash_)[0] if leaves else EMPTY_ROOT


def proof(leaves: Sequence[bytes], index: int, hash_: Hash) -> tuple[bytes, ...]:
    """Proof that ``leaves[index]`` is under ``root(leaves)``, for ``verify`` of its ``commitment_node``."""
    if not 0 <= index < len(leaves):
        raise IndexError(f"there is no leaf {index} among {len(leaves)}")
    tree = _tree([commitment_node(leaf, hash_) for leaf in leaves], hash_)
    return _path(tree, len(tree) - 1 - index)


@dataclass(frozen=True, slots=True)
class PayLeaf:
    """One account's line under a settlement root; amounts in base units."""

    account: str
    cumulative: int
    proof: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PayTree:
    """A settlement root with a proof for each account. Build with ``pay_tree``."""

    job_id: int
    root: bytes
    leaves: tuple[PayLeaf, ...]

    @property
    def total(self) -> int:
        """Sum of all leaves, in base units."""
        return sum(leaf.cumulative for leaf in self.leaves)

    def leaf(self, account: str) -> PayLeaf | None:
        """The line of one account, None when it has none."""
        wanted = address_bytes(account)
        return next((leaf for leaf in self.leaves if address_bytes(leaf.account) == wanted), None)


def pay_tree(job_id: int, amounts: Mapping[str, int], hash_: Hash) -> PayTree:
    """The tree over (job id, account, cumulative); the order of ``amounts`` does not matter.

    ``ValueError`` when an account is named twice in different spelling: one of the two could never claim.
    """
    accounts = sorted(amounts, key=address_bytes)
    if len({address_bytes(account) for account in accounts}) != len(accounts):
        raise ValueError("an account is named twice, in different spelling")
    hashed = sorted((pay_leaf(job_id, account, amounts[account], hash_), account) for account in accounts)
    if not hashed:
        return PayTree(job_id, EMPTY_ROOT, ())
    tree = _tree([node for node, _ in hashed], hash_)
    position = {account: len(tree) - 1 - index for index, (_, account) in enumerate(hashed)}
    lines = (PayLeaf(account, amounts[account], _path(tree, position[account])) for account in accounts)
    return PayTree(job_id, tree[0], tuple(lines))
