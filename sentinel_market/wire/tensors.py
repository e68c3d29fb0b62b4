"""Tensors to bytes and back: a fixed 64-byte header, then the raw little-endian elements.

Layout: ``b"SNT1"``, u8 dtype code, u8 number of dimensions, 2 zero bytes, seven u64 sizes (unused ones zero).
The header is a multiple of 16 bytes, so ``torch.frombuffer`` sees an aligned payload. The hash of a tensor is
BLAKE3 over exactly these bytes, so it covers version, dtype, shape and content (``protocol.md``). Never pickle.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import blake3
import torch

from sentinel_market.errors import ProtocolError

MAGIC = b"SNT1"
HEADER_BYTES = 64
MAX_DIMENSIONS = 7
_HEADER = struct.Struct("<4sBBH7Q")
_CODES: dict[torch.dtype, int] = {
    torch.float32: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
    torch.int64: 4,
    torch.int32: 5,
    torch.uint8: 6,
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def header(dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    """The 64 header bytes. Raises ProtocolError("dtype") for a dtype that has no code here."""
    code = _CODES.get(dtype)
    if code is None:
        raise ProtocolError("dtype", f"{dtype} cannot travel; use one of {sorted(map(str, _CODES))}")
    if len(shape) > MAX_DIMENSIONS:
        raise ProtocolError("shape", f"{len(shape)} dimensions, at most {MAX_DIMENSIONS}")
    sizes = [*shape, *([0] * (MAX_DIMENSIONS - len(shape)))]
    return _HEADER.pack(MAGIC, code, len(shape), 0, *sizes)


def encode(tensor: torch.Tensor) -> bytes:
    """Header and elements of a CPU or accelerator tensor, as one bytes object."""
    flat = tensor.detach().contiguous().cpu()
    if not flat.numel():
        return header(flat.dtype, flat.shape)
    return b"".join((header(flat.dtype, flat.shape), flat.reshape(-1).view(torch.uint8).numpy().data))


def decode(
    data: bytes,
    *,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    max_bytes: int = 1 << 30,
) -> torch.Tensor:
    """Parse bytes from a stranger. Raises ProtocolError with code size, header, dtype or shape; never anything else.

    ``shape`` and ``dtype``, where given, are what the receiver expects. The tensor owns its memory.
    """
    if len(data) > max_bytes:
        raise ProtocolError("size", f"a frame of {len(data)} bytes, at most {max_bytes} are expected here")
    if len(data) < HEADER_BYTES:
        raise ProtocolError("header", f"{len(data)} bytes are no frame: the header alone has {HEADER_BYTES}")
    magic, code, num_dims, reserved, *sizes = _HEADER.unpack_from(data)
    if magic != MAGIC or reserved != 0 or num_dims > MAX_DIMENSIONS or any(sizes[num_dims:]):
        raise ProtocolError("header", "not a version 1 tensor header")
    got_dtype = _DTYPES.get(code)
    if got_dtype is None:
        raise ProtocolError("dtype", f"unknown dtype code {code}")
    if dtype is not None and got_dtype is not dtype:
        raise ProtocolError("dtype", f"got {got_dtype}, expected {dtype}")
    got_shape = tuple(sizes[:num_dims])
    if shape is not None and got_shape != tuple(shape):
        raise ProtocolError("shape", f"got {list(got_shape)}, expected {list(shape)}")
    count = 1
    for size in got_shape:
        count *= size
    if HEADER_BYTES + count * got_dtype.itemsize != len(data):
        raise ProtocolError(
            "size", f"{len(data)} bytes do not hold {list(got_shape)} elements of {got_dtype.itemsize} bytes"
        )
    if count == 0:
        if math.prod(size for size in got_shape if size) > max_bytes:  # torch cannot hold such strides either
            raise ProtocolError("shape", f"{list(got_shape)} is no shape: empty, and larger than any frame")
        return torch.empty(got_shape, dtype=got_dtype)
    return torch.frombuffer(bytearray(data), dtype=got_dtype, offset=HEADER_BYTES).reshape(got_shape)


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether no element is NaN or Inf. A sum is ten times faster to make than a mask, and is not finite if an element
    is not; only where it overflows is the mask asked."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def tensor_hash(tensor: torch.Tensor) -> bytes:
    """BLAKE3 (32 bytes) over version, dtype, shape and elements."""
    return encoded_hash(encode(tensor))


def encoded_hash(data: bytes) -> bytes:
    """The same hash, of bytes that ``encode`` made: hash what travelled, without a second copy."""
    return blake3.blake3(data).digest()


def pair_hash(first: bytes, second: bytes) -> bytes:
    """H(a, b) of two 32-byte hashes, as used for backward frames."""
    return blake3.blake3(first + second).digest()
