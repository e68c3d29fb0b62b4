"""Hot-key signatures: 65 bytes ``r || s || v``, v in {27, 28}, low s (what OpenZeppelin's ECDSA accepts).

coincurve (libsecp256k1) is required, not preferred: the pure Python fallback of eth-keys is 100 times
slower and would turn a healthy relay into one that misses its deadlines. So its absence stops the
process at import.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sentinel_market.chain.eip712 import keccak256
from sentinel_market.errors import ConfigError, ProtocolError

try:
    from coincurve import PrivateKey, PublicKey
except ImportError as exc:  # pragma: no cover - the distribution requires it
    raise ConfigError("coincurve is not installed; run `pip install coincurve` (or `make setup`)") from exc

CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_HALF_ORDER = CURVE_ORDER // 2


@lru_cache(maxsize=4096)
def checksum_address(raw: bytes) -> str:
    """EIP-55 form of 20 bytes; cached, because a relay sees the same few signers all day."""
    text = raw.hex()
    nibbles = keccak256(text.encode()).hex()[:40]
    return "0x" + "".join(c.upper() if int(n, 16) >= 8 else c for c, n in zip(text, nibbles, strict=True))


class HotKey:
    """A secp256k1 key that signs digests. The secret never appears in repr, str or an error message."""

    __slots__ = ("_key", "address")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 32 or not 0 < int.from_bytes(secret, "big") < CURVE_ORDER:
            raise ValueError("a private key is 32 bytes between 1 and the curve order")
        self._key = PrivateKey(bytes(secret))
        self.address: str = checksum_address(_address_bytes(self._key.public_key))

    def sign(self, digest: bytes) -> bytes:
        """Sign 32 bytes; deterministic (RFC 6979), low s."""
        if len(digest) != 32:
            raise ValueError(f"a digest has 32 bytes, got {len(digest)}")
        raw = self._key.sign_recoverable(bytes(digest), hasher=None)
        return raw[:64] + (b"\x1c" if raw[64] else b"\x1b")

    def sign_transaction(self, transaction: dict[str, Any]) -> tuple[bytes, str]:
        """Sign an EIP-1559 transaction; returns the raw bytes and the hash."""
        from eth_account import Account  # heavy to import, and most processes only sign messages

        signed = Account.sign_transaction(transaction, self._key.secret)
        return bytes(signed.raw_transaction), "0x" + bytes(signed.hash).hex()

    def __repr__(self) -> str:
        return f"HotKey({self.address})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a HotKey is not pickled: open its keystore where it is needed")


def _address_bytes(public_key: PublicKey) -> bytes:
    return keccak256(public_key.format(compressed=False)[1:])[-20:]


def recover(digest: bytes, signature: bytes) -> str:
    """The checksummed address that signed ``digest``.

    Raises ProtocolError("signature") for every form but the canonical one, so that no message has two
    valid signatures by one key (malleability as a replay key).
    """
    if len(signature) != 65:
        raise ProtocolError("signature", f"a signature has 65 bytes, got {len(signature)}")
    if len(digest) != 32:
        raise ProtocolError("signature", f"a digest has 32 bytes, got {len(digest)}")
    v = signature[64]
    if v not in (27, 28):
        raise ProtocolError("signature", f"v must be 27 or 28, got {v}")
    if int.from_bytes(signature[32:64], "big") > _HALF_ORDER:
        raise ProtocolError("signature", "s is in the upper half of the curve order")
    try:
        key = PublicKey.from_signature_and_message(bytes(signature[:64]) + bytes([v - 27]), bytes(digest), hasher=None)
    except Exception as exc:  # coincurve raises bare Exception and ValueError alike
        raise ProtocolError("signature", "no key can have made this signature") from exc
    return checksum_address(_address_bytes(key))
