"""Plots as SVG text: lanes, lines and bars over one common time axis. No script, no font, no file
beside it, so a page with them can be mailed and opened in ten years."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 1_080
LEFT = 92  # for the names of lanes and the numbers of axes
RIGHT = 16
TOP = 10
AXIS = 24  # below a plot, for seconds


@dataclass(frozen=True)
class Band:
    """A stretch of time that is marked in every plot."""

    start: float
    end: float
    label: str
    number: int


@dataclass(frozen=True)
class Line:
    name: str
    style: str  # a class of the page's style sheet
    points: Mapping[int, float | None]  # second → value; None and gaps are not drawn


@dataclass(frozen=True)
class Axis:
    """Seconds of the run, as places on the page."""

    seconds: float

    def x(self, second: float) -> float:
        inside = min(max(second, 0.0), self.seconds)
        return LEFT + (WIDTH - LEFT - RIGHT) * inside / max(self.seconds, 1e-9)

    def ticks(self) -> list[int]:
        step = next(
            (step for step in (1, 2, 5, 10, 20, 30, 60, 120) if self.seconds / step <= 14), 300
        )
        return list(range(0, int(self.seconds) + 1, step))


def lines_plot(
    axis: Axis, bands: Sequence[Band], lines: Sequence[Line], *, unit: str, is_log: bool = False
) -> str:
    height = 200
    values = [value for line in lines for value in line.points.values() if value is not None]
    top = max(values, default=1.0)
    y, marks = _log_scale(values, height) if is_log else _scale(top, height)
    parts = [*_background(axis, bands, height), *_marks(marks, y, unit)]
    for line in lines:
        for stretch in _stretches(line.points):
            points = " ".join(
                f"{axis.x(second + 0.5):.1f},{y(value):.1f}" for second, value in stretch
            )
            if len(stretch) == 1:
                x, _, at = points.partition(",")
                parts.append(f'<circle class="{line.style} dot" cx="{x}" cy="{at}" r="1.6"/>')
            else:
                parts.append(f'<polyline class="{line.style}" points="{points}"/>')
    return _framed(parts, height, _legend(lines))


def lanes_plot(axis: Axis, lanes: Mapping[str, Iterable[tuple[float, float, str, str]]]) -> str:
    """Rows of bars: name → (start, end, style, what it is). The number that a text begins with
    (``3. …``) is written into its bar, where there is room."""
    height = TOP + 22 * len(lanes) + 4
    parts = _background(axis, (), height)
    for row, (name, bars) in enumerate(lanes.items()):
        y = TOP + 22 * row
        parts.append(f'<text class="lane" x="{LEFT - 8}" y="{y + 14}">{escape(name)}</text>')
        for start, end, style, label in bars:
            x, right = axis.x(start), axis.x(end)
            parts.append(
                f'<rect class="{style}" x="{x:.1f}" y="{y + 2}" width="{max(2.0, right - x):.1f}"'
                f' height="16" rx="2"><title>{escape(label)}</title></rect>'
            )
            number, dot, _ = label.partition(". ")
            if dot and right - x >= 7 * len(number) + 4:
                parts.append(
                    f'<text class="bar-number" x="{(x + right) / 2:.1f}" y="{y + 14}">'
                    f"{escape(number)}</text>"
                )
    return _framed(parts, height, "")


def bars_plot(axis: Axis, bands: Sequence[Band], series: Sequence[Line], *, unit: str) -> str:
    """Counts per second, one kind beside the other."""
    height = 110
    values = [value for line in series for value in line.points.values() if value is not None]
    y, marks = _scale(max(values, default=1.0), height)
    parts = [*_background(axis, bands, height), *_marks(marks, y, unit)]
    for place, line in enumerate(series):
        for second, value in line.points.items():
            if value:
                x = axis.x(second + (place + 0.5) / (len(series) + 1))
                parts.append(
                    f'<line class="{line.style} bar" x1="{x:.1f}" x2="{x:.1f}"'
                    f' y1="{y(0):.1f}" y2="{y(value):.1f}"/>'
                )
    return _framed(parts, height, _legend(series))


# ── Pieces ───────────────────────────────────────────────────────────────────────────────────


def _framed(parts: Sequence[str], height: float, legend: str) -> str:
    body = "\n".join(parts)
    return f'{legend}<svg viewBox="0 0 {WIDTH} {height + AXIS}" role="img">\n{body}\n</svg>'


def _background(axis: Axis, bands: Sequence[Band], height: float) -> list[str]:
    parts = []
    for band in bands:
        x, right = axis.x(band.start), axis.x(band.end)
        parts.append(
            f'<rect class="band" x="{x:.1f}" y="{TOP}" width="{max(1.0, right - x):.1f}"'
            f' height="{height - TOP}"><title>{escape(band.label)}</title></rect>'
            f'<text class="band-number" x="{x + 3:.1f}" y="{TOP + 11}">{band.number}</text>'
        )
    for second in axis.ticks():
        x = axis.x(second)
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height}"/>'
            f'<text class="tick" x="{x:.1f}" y="{height + 15}">{second} s</text>'
        )
    return parts


def _marks(marks: Sequence[float], y: Callable[[float], float], unit: str) -> list[str]:
    return [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(mark):.1f}"'
        f' y2="{y(mark):.1f}"/>'
        f'<text class="lane" x="{LEFT - 8}" y="{y(mark) + 4:.1f}">'
        f"{escape(shown(mark, unit))}</text>"
        for mark in marks
    ]


def shown(value: float, unit: str) -> str:
    """A number of an axis: times in the unit that needs the fewest digits."""
    if unit == "ms" and value >= 1_000:
        value, unit = value / 1_000, "s"
    text = f"{value:,.0f}" if value >= 1_000 else f"{value:g}"
    return f"{text} {unit}" if unit.isalpha() else f"{text}{unit}"


def _scale(top: float, height: float) -> tuple[Callable[[float], float], list[float]]:
    """From zero to a round number above the highest value."""
    power = 10.0 ** math.floor(math.log10(max(top, 1.0)))
    limit = next(power * step for step in (1, 2, 3, 5, 10) if power * step >= top)

    def y(value: float) -> float:
        return height - (height - TOP) * value / limit

    return y, [0, limit / 2, limit]


def _log_scale(
    values: Sequence[float], height: float
) -> tuple[Callable[[float], float], list[float]]:
    low = math.floor(math.log10(max(min(values, default=1.0), 0.1)))
    high = max(low + 1, math.ceil(math.log10(max(values, default=10.0))))

    def y(value: float) -> float:
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return height - (height - TOP) * share

    return y, [10.0**power for power in range(low, high + 1)]


def _stretches(points: Mapping[int, float | None]) -> list[list[tuple[int, float]]]:
    """Runs of seconds that follow each other and have a value."""
    runs: list[list[tuple[int, float]]] = []
    for second in sorted(points):
        value = points[second]
        if value is None:
            continue
        if runs and runs[-1][-1][0] == second - 1:
            runs[-1].append((second, value))
        else:
            runs.append([(second, value)])
    return runs


def _legend(lines: Sequence[Line]) -> str:
    keys = "".join(
        f'<span class="key"><svg width="22" height="10"><line class="{line.style}" x1="1" x2="21"'
        f' y1="5" y2="5"/></svg>{escape(line.name)}</span>'
        for line in lines
    )
    return f'<div class="legend">{keys}</div>'
