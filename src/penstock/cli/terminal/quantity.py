"""Options that take a duration or a size: ``90``, ``90s``, ``15m``, ``4d``; ``256KiB``."""

import click

from penstock.model.units import DURATION, SIZE, Kind, misfit, parsed

_SECOND_MS = 1_000


class Quantity(click.ParamType[float]):
    """A number of seconds or bytes, with or without a unit. ``is_whole``: rounded to an integer."""

    def __init__(self, kind: Kind, *, base: int, low: float, high: float, is_whole: bool) -> None:
        self.name = kind.noun
        self._kind = kind
        self._base = base
        self._low = round(low * base)
        self._high = round(high * base)
        self._is_whole = is_whole

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        found = parsed(text, self._kind, base=self._base)
        if found is None:
            units = ", ".join(self._kind.units)
            self.fail(
                f"'{text}' is not a {self.name}: write a number and a unit: {units}", param, ctx
            )
        why = misfit(text, found, self._kind, self._low, self._high)
        if why is not None:
            self.fail(why, param, ctx)
        return round(found / self._base) if self._is_whole else found / self._base


def seconds(low: int, high: int) -> Quantity:
    return Quantity(DURATION, base=_SECOND_MS, low=low, high=high, is_whole=True)


def some_seconds(low: float, high: float) -> Quantity:
    """Return a duration that may have fractions of a second."""
    return Quantity(DURATION, base=_SECOND_MS, low=low, high=high, is_whole=False)


def bytes_of(low: int, high: int) -> Quantity:
    return Quantity(SIZE, base=1, low=low, high=high, is_whole=True)
