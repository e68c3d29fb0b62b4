"""Numbers without floats: the one text of a real number, and amounts of tokens in base units."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

TOKEN_DECIMALS: Final = 18
_MAX_DIGITS: Final = 24
_MAX_EXPONENT: Final = 30


def canonical_real(value: Decimal | int | str) -> str:
    """The one decimal string of a number: no exponent, no leading ``+``, no trailing zeros, no ``-0``.

    ``ValueError`` on what is not a finite number of at most 24 significant digits between 1e-30 and 1e30.
    """
    if isinstance(value, str) and len(value) > 64:
        raise ValueError("too long for a number")
    try:
        number = Decimal(value)
    except ArithmeticError:
        raise ValueError(f"{value!r} is not a number") from None
    if not number.is_finite():
        raise ValueError(f"{value} is not a finite number")
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    stripped = text.rstrip("0")
    exponent += len(text) - len(stripped)
    if not stripped:
        return "0"
    if len(stripped) > _MAX_DIGITS or not -_MAX_EXPONENT <= exponent <= _MAX_EXPONENT:
        raise ValueError(f"{value} has too many digits")
    if exponent >= 0:
        body = stripped + "0" * exponent
    else:
        padded = stripped.rjust(-exponent + 1, "0")
        body = f"{padded[:exponent]}.{padded[exponent:]}"
    return f"-{body}" if sign else body


def parse_amount(text: str, decimals: int = TOKEN_DECIMALS) -> int:
    """``"12.5"`` tokens to base units. ``ValueError`` when not plain decimal or finer than a base unit."""
    match = re.fullmatch(r"(\d{1,39})(?:\.(\d{1,39}))?", text, re.ASCII)
    if match is None:
        raise ValueError(f'{text!r} is not an amount such as "12.5"')
    whole, fraction = match[1], (match[2] or "").rstrip("0")
    if len(fraction) > decimals:
        raise ValueError(f"{text!r} is finer than one base unit (the token has {decimals} decimals)")
    return int(whole + fraction.ljust(decimals, "0"))


def format_amount(amount: int, decimals: int = TOKEN_DECIMALS) -> str:
    """Base units to a decimal string of whole tokens, exact, without trailing zeros."""
    sign, amount = ("-", -amount) if amount < 0 else ("", amount)
    whole, fraction = divmod(amount, 10**decimals)
    tail = f"{fraction:0{decimals}d}".rstrip("0") if fraction else ""
    return f"{sign}{whole}.{tail}" if tail else f"{sign}{whole}"
