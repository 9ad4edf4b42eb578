"""Formats numbers for the tables and plots of reports."""

import datetime
from typing import Final

_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MILLION: Final = 1_000_000


def count(value: float) -> str:
    return f"{value:,.0f}"


def short(value: float) -> str:
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def size(value: float) -> str:
    unit = 0
    while abs(value) >= 1_024 and unit + 1 < len(_SIZES):
        value /= 1_024
        unit += 1
    return f"{value:,.0f} B" if unit == 0 else f"{value:,.1f} {_SIZES[unit]}"


def money(micros: int, currency: str) -> str:
    """Format millionths of a currency with two digits, or with six for less than a cent."""
    digits = 2 if abs(micros) >= 10_000 or not micros else 6
    return f"{micros / _MILLION:,.{digits}f} {currency}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h"


def percent(share: float) -> str:
    return f"{share:.1%}"


def moment(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M")
