"""Attacks by name: ``NAME``, ``NAME:key=value,...``, or a user's own ``module:object[:key=value,...]``."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from sentinel_market.attacks import library
from sentinel_market.attacks.base import Attack, ScheduledAttack

_Parameter = int | float | str


def _constant(name: str, value: float) -> Callable[..., Attack]:
    def make(direction: str = "forward") -> Attack:
        return library.Constant(name, value, direction)

    return make


def _scale(name: str, default: float, default_direction: str) -> Callable[..., Attack]:
    def make(factor: float = default, direction: str = default_direction) -> Attack:
        return library.Scale(name, factor, direction)

    return make


def _noise(name: str, default_direction: str) -> Callable[..., Attack]:
    def make(strength: float = 1.0, direction: str = default_direction) -> Attack:
        return library.Noise(name, strength, direction)

    return make


_ATTACKS: dict[str, Callable[..., Attack]] = {
    "bias": library.Bias,
    "delay": library.Delay,
    "grad_noise": _noise("grad_noise", "backward"),
    "grad_scale": _scale("grad_scale", 10.0, "backward"),
    "grad_sign_flip": _scale("grad_sign_flip", -1.0, "backward"),
    "identity": library.Identity,
    "noise": _noise("noise", "forward"),
    "ones": _constant("ones", 1.0),
    "random_sign": library.RandomSign,
    "random_value": library.RandomValue,
    "scale": _scale("scale", 10.0, "forward"),
    "sign_flip": _scale("sign_flip", -1.0, "forward"),
    "zeros": _constant("zeros", 0.0),
}


def names() -> tuple[str, ...]:
    """Names of the shipped attacks."""
    return tuple(sorted(_ATTACKS))


def _value(text: str) -> _Parameter:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _parameters(spec: str, text: str) -> dict[str, _Parameter]:
    parameters: dict[str, _Parameter] = {}
    for pair in text.split(","):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"attack {spec!r}: {pair!r} is not key=value")
        parameters[key.strip()] = _value(value.strip())
    return parameters


def _load(spec: str, module: str, name: str) -> object:
    try:
        found: object = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"attack {spec!r}: cannot load {name!r} of module {module!r} ({error}); "
            f"give module:object, or one of {', '.join(names())}"
        ) from error
    return found


def get_attack(spec: str, *, seed: int, onset: int) -> ScheduledAttack:
    """The attack that ``spec`` names, from step ``onset`` on. ValueError says what is wrong and lists the names."""
    if onset < 0:
        raise ValueError(f"onset is {onset}; it must be at least 0")
    name, _, rest = spec.partition(":")
    found: object
    if name in _ATTACKS:
        found, text = _ATTACKS[name], rest
    elif rest and not rest.startswith(":") and "=" not in rest.partition(":")[0]:
        attribute, _, text = rest.partition(":")
        found = _load(spec, name, attribute)
    else:
        raise ValueError(f"attack {name!r} is unknown; use one of {', '.join(names())}, or module:object")
    parameters = _parameters(spec, text) if text else {}
    # A class or a factory is called with the parameters; an object that already is an attack is taken as it is.
    if isinstance(found, type) or not isinstance(found, Attack):
        if not callable(found):
            raise ValueError(f"attack {spec!r}: {found!r} is neither an attack nor a callable that makes one")
        try:
            found = found(**parameters)
        except TypeError as error:
            raise ValueError(f"attack {spec!r}: {error}") from error
    elif parameters:
        raise ValueError(f"attack {spec!r}: an object takes no parameters; name a class or function instead")
    if not isinstance(found, Attack):
        raise ValueError(
            f"attack {spec!r} gave {type(found).__name__}, which lacks one of "
            "name, directions, skips_compute, stages, __call__"
        )
    return ScheduledAttack(found, seed, onset)
