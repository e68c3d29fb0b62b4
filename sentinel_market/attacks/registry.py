"""Attacks by name: ``NAME``, ``NAME:key=value,...``, or a user's own ``module:object[:key=value,...]``.

Two parameters belong to the schedule, whatever the attack: ``duty`` (it acts in one step of so many) and ``share_seed``
(accomplices with the same number draw the same noise).
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Final, cast

from torch import Tensor

from sentinel_market.attacks import adaptive, lazy, library, parallel
from sentinel_market.attacks.base import Attack, AttackContext, ScheduledAttack
from sentinel_market.attacks.library import FrameAttack

_Parameter = int | float | str
_ATTACKS: Final[dict[str, Callable[..., Attack]]] = {
    "alie": parallel.Alie,
    "bias": library.Bias,
    "delay": library.Delay,
    "delta_mimic": adaptive.DeltaMimic,
    "drift": adaptive.Drift,
    "ema_mimic": adaptive.EmaMimic,
    "grad_scale": parallel.GradScale,
    "grad_sign_flip": parallel.GradSignFlip,
    "identity": lazy.Identity,
    "invisible_noise": adaptive.InvisibleNoise,
    "ipm": parallel.Ipm,
    "low_precision": lazy.LowPrecision,
    "noise": library.Noise,
    "ones": functools.partial(library.Constant, "ones", 1.0),
    "random_sign": library.RandomSign,
    "random_value": library.RandomValue,
    "scale": library.Scale,
    "sign_flip": library.SignFlip,
    "skip_layers": lazy.SkipLayers,
    "stale_weights": lazy.StaleWeights,
    "surrogate": lazy.Surrogate,
    "threshold": adaptive.Threshold,
    "zeros": functools.partial(library.Constant, "zeros", 0.0),
}
_BLEND: Final = ("0.125", "0.25", "0.5", "1")
_LADDERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "alie": ("z", ("0.5", "1", "2", "4", "8", "16")),
    "bias": ("strength", ("0.125", "0.25", "0.5", "1", "2", "4")),
    "delay": ("num_steps", ("3", "6", "12", "24", "48")),
    "delta_mimic": ("strength", _BLEND),
    "drift": ("rate", ("0.0025", "0.005", "0.01", "0.02", "0.04", "0.08")),
    "ema_mimic": ("strength", _BLEND),
    "grad_scale": ("factor", ("2", "4", "8", "16", "32", "64")),
    "grad_sign_flip": ("strength", ("0.25", "0.5", "1", "2", "4", "8")),
    "invisible_noise": ("strength", ("0.5", "1", "2", "4")),
    "ipm": ("epsilon", ("0.5", "1", "2", "4", "8", "16")),
    "low_precision": ("bits", ("6", "5", "4", "3", "2", "1")),
    "noise": ("strength", ("0.125", "0.25", "0.5", "1", "2", "4")),
    "ones": ("strength", _BLEND),
    "random_sign": ("fraction", ("0.0125", "0.025", "0.05", "0.1", "0.2", "0.4")),
    "random_value": ("strength", _BLEND),
    "scale": ("factor", ("2", "4", "8", "16", "32")),
    "sign_flip": ("strength", _BLEND),
    "skip_layers": ("share", ("0.5", "1")),
    "stale_weights": ("age", ("3", "6", "12", "24", "48")),
    "surrogate": ("shrink", ("1", "2", "4", "8")),
    "zeros": ("strength", _BLEND),
}
"""Parameter and values, each twice as strong as the one before (one bit less is an error twice as large)."""


def names() -> tuple[str, ...]:
    """Names of the shipped attacks."""
    return tuple(sorted(_ATTACKS))


def directions(name: str) -> tuple[str, ...]:
    """``forward`` and ``backward`` for attacks on frames, ``both`` for workers that compute otherwise, ``gradient`` for
    the data-parallel axis. ValueError for an unknown name."""
    found = _shipped(name)()
    if isinstance(found, parallel.ParallelAttack):
        return ("gradient",)
    return ("forward", "backward") if isinstance(found, FrameAttack) else ("both",)


def ladder(name: str, direction: str) -> tuple[str, ...]:
    """Specifications of a shipped attack in the order of strength; one where it has no degrees. ValueError for a
    direction in which it does not act."""
    ways = directions(name)
    frame = ways == ("forward", "backward")
    if direction not in ways and not (frame and direction == "both"):
        raise ValueError(f"attack {name!r} has no direction {direction!r}; use one of {', '.join(ways)}")
    key, values = _LADDERS.get(name, ("", ("",)))
    found = []
    for value in values:
        parts = [f"{key}={value}"] if key else []
        parts += [f"direction={direction}"] if frame else []
        found.append(name + (":" + ",".join(parts) if parts else ""))
    return tuple(found)


def _shipped(name: str) -> Callable[..., Attack]:
    if name not in _ATTACKS:
        raise ValueError(f"attack {name!r} is unknown; use one of {', '.join(names())}, or module:object")
    return _ATTACKS[name]


class FunctionAttack(FrameAttack):
    """A user's callable ``(tensor, context) -> tensor``."""

    def __init__(
        self, function: Callable[[Tensor, AttackContext], Tensor], name: str, direction: str = "forward"
    ) -> None:
        super().__init__(direction)
        self.name = name
        self._function = function

    def __call__(self, tensor: Tensor, context: AttackContext) -> Tensor:
        """Whatever the function gives; it works on a copy."""
        return self._function(tensor.clone(), context)


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
    except (ImportError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        # The last two: what a module name such as "" or ".mine" gives.
        raise ValueError(
            f"attack {spec!r}: cannot load {name!r} of module {module!r} ({error}); "
            f"give module:object, or one of {', '.join(names())}"
        ) from error
    return found


def _takes_a_tensor(found: object) -> bool:
    """Whether this is a plain ``(tensor, context)`` callable and not a class or factory of attacks."""
    if isinstance(found, type) or not callable(found):
        return False
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 2


def _build(spec: str, found: object, name: str, parameters: dict[str, _Parameter]) -> Attack:
    if isinstance(found, Attack) and not isinstance(found, type):
        if parameters:
            raise ValueError(f"attack {spec!r}: an object takes no parameters; name a class or function instead")
        return found
    if not callable(found):
        raise ValueError(f"attack {spec!r}: {found!r} is neither an attack nor a callable that makes one")
    try:
        if _takes_a_tensor(found):
            function = cast("Callable[[Tensor, AttackContext], Tensor]", found)
            return FunctionAttack(function, name, **parameters)  # type: ignore[arg-type]
        made = found(**parameters)
    except TypeError as error:
        raise ValueError(
            f"attack {spec!r}: {error}; give parameters that it has, and as your own a callable (tensor, context), "
            "or a class or function whose parameters all have defaults"
        ) from error
    if not isinstance(made, Attack):
        raise ValueError(
            f"attack {spec!r} gave {type(made).__name__}, which lacks one of name, directions, stages, __call__"
        )
    return made


def get_attack(
    spec: str, *, seed: int, onset: int, duty: int = 1, accomplices: tuple[int, ...] = ()
) -> ScheduledAttack:
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
        name = attribute
    else:
        found, text = _shipped(name), rest
    parameters = _parameters(spec, text) if text else {}
    duty = _whole(spec, "duty", parameters.pop("duty", duty))
    share = parameters.pop("share_seed", None)
    return ScheduledAttack(
        _build(spec, found, name, parameters),
        seed,
        onset,
        duty=duty,
        share_seed=None if share is None else _whole(spec, "share_seed", share),
        accomplices=accomplices,
    )


def _whole(spec: str, key: str, value: _Parameter) -> int:
    if not isinstance(value, int):
        raise ValueError(f"attack {spec!r}: {key} is {value!r}; it must be a whole number")
    return value
