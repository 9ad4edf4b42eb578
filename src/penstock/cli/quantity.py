"""Durations and sizes as people type them: ``90``, ``90s``, ``15m``, ``4d``; ``256KiB``."""

from collections.abc import Mapping

import click

from penstock.model import units


class Quantity(click.ParamType[int]):
    """A whole number of seconds or bytes, with a unit or without."""

    def __init__(self, name: str, *, low: int, high: int) -> None:
        self.name = name
        self._is_duration = name == "duration"
        self._units: Mapping[str, int] = units.SECONDS if self._is_duration else units.BYTES
        self._low = low
        self._high = high

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        text = str(value).strip()
        whole = units.parse(text, self._units)
        if whole is None:
            known = ", ".join(self._units)
            self.fail(f"'{text}' is not a {self.name}: a number, then one of {known}", param, ctx)
        if whole > self._high:
            word = "long" if self._is_duration else "large"
            self.fail(f"{text} is too {word}: at most {self._shown(self._high)}", param, ctx)
        if whole < self._low:
            word = "short" if self._is_duration else "small"
            self.fail(f"{text} is too {word}: at least {self._shown(self._low)}", param, ctx)
        return whole

    def _shown(self, number: int) -> str:
        if self._is_duration:
            return units.short_duration(number)
        return f"{units.size(number)} ({number:,} bytes)"


def seconds(low: int, high: int) -> Quantity:
    return Quantity("duration", low=low, high=high)


def bytes_of(low: int, high: int) -> Quantity:
    return Quantity("size", low=low, high=high)
