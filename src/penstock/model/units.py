"""Durations (in milliseconds) and sizes (in bytes) as text: ``90``, ``90s``, ``1.5h``; ``64MB``."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\Z")


class Kind(NamedTuple):
    noun: str
    units: Mapping[str, int]  # value by unit; the first ``plain`` units are used by ``written``
    plain: int
    below: str  # what to say of a value below its minimum
    above: str


_TIMES = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BINARY = {unit: 1 << 10 * at for at, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}
_SHORT = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_DECIMAL = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
DURATION: Final = Kind("duration", _TIMES, 5, "too short", "too long")
SIZE: Final = Kind("size", {**_BINARY, **_SHORT, **_DECIMAL}, 5, "too small", "too large")


def parsed(text: str, kind: Kind, *, base: int = 1) -> float | None:
    """Return the value of a text like ``90s``, or None if invalid. ``base`` is the default unit."""
    match = _NUMBER.match(text.strip())
    if match is None:
        return None
    unit = base
    if match[2]:
        units = {name.lower(): value for name, value in kind.units.items()}
        if match[2].lower() not in units:
            return None
        unit = units[match[2].lower()]
    return float(match[1]) * unit


def written(value: int, kind: Kind) -> str:
    """Return a text with the largest unit that divides the value: 43,200,000 becomes 12h."""
    names = list(kind.units)[: kind.plain]
    name = max((n for n in names if value % kind.units[n] == 0), key=kind.units.__getitem__)
    return f"{value // kind.units[name]}{name}" if value else f"0{names[0]}"


def misfit(text: str, value: float, kind: Kind, low: int | None, high: int | None) -> str | None:
    if low is not None and value < low:
        return f"{text} is {kind.below}: at least {written(low, kind)}"
    if high is not None and value > high:
        return f"{text} is {kind.above}: at most {written(high, kind)}"
    return None


def size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1_024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1_024
    return f"{value:.1f} TiB"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
