"""Numbers as people write and read them: ``90s``, ``15m``, ``256KiB``."""

import re
from collections.abc import Mapping
from typing import Final

_NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\Z")

SECONDS: Final[Mapping[str, int]] = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MILLISECONDS: Final[Mapping[str, int]] = {"ms": 1} | {u: 1_000 * s for u, s in SECONDS.items()}
BYTES: Final[Mapping[str, int]] = {
    "b": 1,
    "k": 1_024,
    "kib": 1_024,
    "kb": 1_000,
    "m": 1_048_576,
    "mib": 1_048_576,
    "mb": 1_000_000,
    "g": 1_073_741_824,
    "gib": 1_073_741_824,
    "gb": 1_000_000_000,
    "tib": 1_099_511_627_776,
}


def parse(text: str, units: Mapping[str, int]) -> int | None:
    """Return a number with a unit, or without one, in the smallest unit; None: not a number."""
    match = _NUMBER.match(text.strip())
    unit = units.get(match[2].lower(), 1 if not match[2] else None) if match else None
    return None if match is None or unit is None else round(float(match[1]) * unit)


def short_duration(seconds: int) -> str:
    """Return the text that ``parse`` would read, in the largest unit that fits."""
    for unit, count in reversed(tuple(SECONDS.items())):
        if seconds and seconds % count == 0:
            return f"{seconds // count}{unit}"
    return f"{seconds}s"


def size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1_024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1_024
    return f"{value:.1f} TiB"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
