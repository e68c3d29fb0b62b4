"""Bytes of a stranger to a tensor: whatever they are, a tensor that holds together or a ProtocolError."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sentinel_market.errors import ProtocolError
from sentinel_market.wire.tensors import HEADER_BYTES, MAGIC, decode, encode, encoded_hash, header, tensor_hash

HEADER = struct.Struct("<4sBBH7Q")
CODES = {"size", "header", "dtype", "shape"}
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8]


def raw(
    *, magic: bytes = MAGIC, code: int = 1, dims: int = 1, reserved: int = 0, sizes: tuple[int, ...] = (1,), body=b""
) -> bytes:
    return HEADER.pack(magic, code, dims, reserved, *sizes, *[0] * (7 - len(sizes))) + body


def refused(data: bytes, **expected: object) -> str:
    with pytest.raises(ProtocolError) as caught:
        decode(data, **expected)  # type: ignore[arg-type]
    return caught.value.code


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_tensor_or_a_protocol_error(data: bytes) -> None:
    try:
        found = decode(data)
    except ProtocolError as error:
        assert error.code in CODES
    else:
        assert encode(found) == data


@settings(max_examples=300, deadline=None)
@given(
    code=st.integers(0, 255),
    dims=st.integers(0, 9),
    reserved=st.sampled_from([0, 0, 0, 1]),
    sizes=st.lists(st.one_of(st.integers(0, 4), st.integers(0, 2**64 - 1)), min_size=7, max_size=7),
    body=st.binary(max_size=64),
)
@example(code=1, dims=2, reserved=0, sizes=[2**32, 2**32, 0, 0, 0, 0, 0], body=b"")
def test_any_header_is_a_tensor_or_a_protocol_error(
    code: int, dims: int, reserved: int, sizes: list[int], body: bytes
) -> None:
    data = HEADER.pack(MAGIC, code, dims, reserved, *sizes) + body
    try:
        found = decode(data)
    except ProtocolError as error:
        assert error.code in CODES
    else:
        assert encode(found) == data


@settings(max_examples=60, deadline=None)
@given(dtype=st.sampled_from(DTYPES), shape=st.lists(st.integers(0, 4), max_size=4))
def test_what_was_encoded_comes_back_with_its_hash(dtype: torch.dtype, shape: list[int]) -> None:
    tensor = (torch.randn(shape) * 100).to(dtype)
    data = encode(tensor)
    found = decode(data, shape=shape, dtype=dtype)
    assert torch.equal(found, tensor)
    assert encoded_hash(data) == tensor_hash(tensor) == tensor_hash(found)


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(1, 120), extra=st.integers(1, 64))
def test_a_frame_that_is_cut_or_padded_is_refused(cut: int, extra: int) -> None:
    data = encode(torch.ones(2, 7))
    assert refused(data[:-cut]) == ("header" if len(data) - cut < HEADER_BYTES else "size")
    assert refused(data + bytes(extra)) == "size"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b"", "header", id="empty"),
        pytest.param(bytes(HEADER_BYTES - 1), "header", id="short"),
        pytest.param(raw(magic=b"SNT2", body=bytes(4)), "header", id="magic"),
        pytest.param(raw(reserved=1, body=bytes(4)), "header", id="reserved"),
        pytest.param(raw(dims=8, body=bytes(4)), "header", id="dimensions"),
        pytest.param(raw(dims=1, sizes=(1, 1), body=bytes(4)), "header", id="sizes beyond the dimensions"),
        pytest.param(raw(code=0, body=bytes(4)), "dtype", id="dtype 0"),
        pytest.param(raw(code=7, body=bytes(4)), "dtype", id="dtype 7"),
        pytest.param(raw(sizes=(2,), body=bytes(4)), "size", id="too few elements"),
        pytest.param(raw(dims=2, sizes=(2**63, 2**63), body=bytes(4)), "size", id="2**126 elements"),
        pytest.param(raw(dims=2, sizes=(2**32, 2**32)), "size", id="2**64 elements, none in 64 bits"),
        pytest.param(raw(dims=2, sizes=(0, 2**63)), "shape", id="0 x 2**63"),
        pytest.param(raw(dims=3, sizes=(0, 2**62, 4)), "shape", id="0 x 2**62 x 4"),
        pytest.param(raw(dims=4, sizes=(0, 2**29, 2**29, 2**29)), "shape", id="0 x 2**29 thrice"),
    ],
)
def test_a_malformed_header_is_refused_with_its_code(data: bytes, code: str) -> None:
    assert refused(data) == code


def test_another_shape_or_dtype_than_the_expected_is_refused() -> None:
    data = encode(torch.ones(2, 3))
    assert refused(data, shape=(3, 2)) == "shape"
    assert refused(data, shape=(6,)) == "shape"
    assert refused(data, shape=(2, 3, 1)) == "shape"
    assert refused(data, dtype=torch.int32) == "dtype"
    assert refused(encode(torch.ones(2, 3, dtype=torch.int32)), dtype=torch.float32) == "dtype"


def test_an_oversize_frame_is_refused_before_it_is_looked_at() -> None:
    data = encode(torch.ones(100))
    assert refused(data, max_bytes=len(data) - 1) == "size"
    assert decode(data, max_bytes=len(data)).shape == (100,)
    assert refused(b"\xff" * 65, max_bytes=64) == "size"


def test_a_decoded_tensor_owns_its_memory() -> None:
    data = encode(torch.zeros(4))
    found = decode(data)
    found += 1
    assert torch.equal(decode(data), torch.zeros(4))


def test_version_dtype_and_shape_are_under_the_hash() -> None:
    hashes = {
        tensor_hash(t)
        for t in (
            torch.zeros(4),
            torch.zeros(2, 2),
            torch.zeros(1, 4),
            torch.zeros(4, dtype=torch.int32),
            torch.zeros(16, dtype=torch.uint8),
            torch.zeros(0),
            torch.zeros(0, 1),
        )
    }
    assert len(hashes) == 7


def test_a_dtype_without_a_code_and_too_many_dimensions_cannot_be_encoded() -> None:
    with pytest.raises(ProtocolError, match="dtype"):
        encode(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(ProtocolError, match="shape"):
        header(torch.float32, (1,) * 8)


def test_non_contiguous_tensors_travel_by_value() -> None:
    tensor = torch.arange(12.0).reshape(3, 4).t()
    assert torch.equal(decode(encode(tensor)), tensor)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_numbers_travel_unchanged(value: float) -> None:
    """The codec judges form only; what the numbers mean is for the check."""
    found = decode(encode(torch.tensor([value, 1.0])))
    assert str(float(found[0])) == str(value)
