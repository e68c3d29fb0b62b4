"""From what a person names on the command line to rows of a plan: attacks, their parameters, directions, ladders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sentinel_market import attacks
from sentinel_market.errors import ConfigError
from sentinel_market.sim.plan import Level, Row

LADDER: Final = "ladder"
OWN_LADDER: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Strengths that a user's own attack is tried with if it takes a parameter ``strength``."""


def split_names(given: Iterable[str]) -> list[str]:
    """Attack specifications of ``--attack A,B:key=value,key=value,...``, in order, each once.

    A comma ends a specification unless ``key=value`` follows, which belongs to what stands before it.
    """
    found: list[str] = []
    for text in given:
        first = True
        for piece in text.split(","):
            part = piece.strip()
            if not part:
                raise ConfigError(f"--attack {text!r} names nothing between two commas; give NAME,NAME")
            if "=" in part and ":" not in part.partition("=")[0] and not first:
                found[-1] += ("," if "=" in found[-1] else ":") + part
            else:
                found.append(part)
            first = False
    return list(dict.fromkeys(found))


def parse(spec: str) -> tuple[str, dict[str, str]]:
    """Name and parameters of a specification; the name of a user's own is ``module:object``."""
    name, _, rest = spec.partition(":")
    if name not in attacks.names():
        attribute, _, rest = rest.partition(":")
        name = f"{name}:{attribute}" if attribute else name
    parameters = dict(pair.partition("=")[::2] for pair in rest.split(",")) if rest else {}
    return name, {key.strip(): value.strip() for key, value in parameters.items()}


def written(name: str, parameters: dict[str, str]) -> str:
    """The inverse of ``parse``."""
    return ":".join([name, ",".join(f"{key}={value}" for key, value in parameters.items())]) if parameters else name


def check(spec: str) -> str:
    """``spec``; ConfigError when no attack can be made of it."""
    try:
        attacks.get_attack(spec, seed=0, onset=0)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return spec


def _works(spec: str) -> bool:
    try:
        check(spec)
    except ConfigError:
        return False
    return True


def moved(specs: Sequence[str]) -> str | None:
    """The parameter that a ladder moves; None for a ladder of one step."""
    found = [parse(spec)[1] for spec in specs]
    keys = [key for key in found[0] if len({one.get(key) for one in found}) > 1]
    return keys[0] if keys else None


def levels_of(specs: Sequence[str]) -> tuple[Level, ...]:
    """A ladder's specifications with the number that it moves; 1 where it moves nothing."""
    key = moved(specs)
    return tuple(Level(spec=spec, strength=_number(parse(spec)[1][key]) if key else 1.0) for spec in specs)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def rows_of(specs: Iterable[str], *, strength: str = "", direction: str = "both") -> list[Row]:
    """Rows for ``--attack``, ``--strength`` (empty: as the specification says; a number; ``ladder``) and
    ``--direction``. ConfigError names what cannot be."""
    rows: list[Row] = []
    for spec in specs:
        name, parameters = parse(spec)
        check(spec)
        wanted = parameters.pop("direction", direction)
        shipped = name in attacks.names()
        for way in _ways(name, wanted, shipped, spec):
            rows.append(Row(attack=name, direction=way, levels=_levels(name, parameters, way, strength, shipped)))
    if not rows:
        raise ConfigError(f"none of the attacks acts in the direction {direction!r}; give --direction both")
    return rows


def _ways(name: str, wanted: str, shipped: bool, spec: str) -> list[str]:
    if not shipped:
        takes = _works(written(name, parse(spec)[1] | {"direction": "backward"}))
        return (["forward", "backward"] if wanted == "both" else [wanted]) if takes else ["both"]
    found = attacks.directions(name)
    framed = [way for way in found if way in ("forward", "backward")]
    if not framed:
        return list(found)
    if wanted != "both" and wanted not in framed:
        raise ConfigError(f"attack {name!r} acts {' and '.join(framed)} only; it has no direction {wanted!r}")
    return [way for way in framed if wanted in ("both", way)]


def _levels(name: str, parameters: dict[str, str], way: str, strength: str, shipped: bool) -> tuple[Level, ...]:
    turned = {"direction": way} if way in ("forward", "backward") else {}
    if strength == LADDER:
        if parameters:
            raise ConfigError(
                f"attack {written(name, parameters)!r} has parameters and a ladder would change them; name it without, "
                "or leave --strength ladder out"
            )
        if shipped:
            return levels_of(attacks.ladder(name, way))
        own = [written(name, {"strength": f"{value:g}", **turned}) for value in OWN_LADDER]
        return levels_of(own) if _works(own[0]) else (Level(spec=check(written(name, turned)), strength=1.0),)
    key = moved(attacks.ladder(name, way)) if shipped else "strength"
    if strength:
        if key is None:
            raise ConfigError(f"attack {name!r} has no strength to set; leave --strength out")
        parameters = {**parameters, key: strength}
    value = _number(parameters[key]) if key in parameters else (1.0 if key is None else None)
    return (Level(spec=check(written(name, {**parameters, **turned})), strength=value),)


def all_rows(names: Iterable[str] = ()) -> list[Row]:
    """The ladders of all shipped attacks, or of those named, in each of their directions."""
    wanted = tuple(names)
    return [
        Row(attack=name, direction=way, levels=levels_of(attacks.ladder(name, way)))
        for name in attacks.names()
        if not wanted or name in wanted
        for way in attacks.directions(name)
    ]
