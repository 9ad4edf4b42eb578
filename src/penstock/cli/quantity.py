"""Durations and sizes as people type them: ``90``, ``90s``, ``15m``, ``4d``; ``256KiB``."""

import re

import click

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\Z")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_BYTES = {
    "": 1,
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


class Quantity(click.ParamType[int]):
    """A whole number of seconds or bytes, with a unit or without."""

    def __init__(self, name: str, units: dict[str, int], *, low: int, high: int) -> None:
        self.name = name
        self._units = units
        self._low = low
        self._high = high

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        text = str(value).strip()
        match = _NUMBER.match(text)
        unit = self._units.get(match[2].lower()) if match else None
        if match is None or unit is None:
            units = ", ".join(unit for unit in self._units if unit)
            self.fail(f"'{text}' is not a {self.name}: a number, then one of {units}", param, ctx)
        whole = round(float(match[1]) * unit)
        if not self._low <= whole <= self._high:
            self.fail(f"'{text}' is not between {self._low} and {self._high}", param, ctx)
        return whole


def seconds(low: int, high: int) -> Quantity:
    return Quantity("duration", _SECONDS, low=low, high=high)


def bytes_of(low: int, high: int) -> Quantity:
    return Quantity("size", _BYTES, low=low, high=high)
