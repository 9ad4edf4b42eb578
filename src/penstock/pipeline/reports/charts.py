"""Draws plots as SVG text, for a page that may be light or dark: axes and text have the colour of
the page (``currentColor``), and fills are distinguishable on both backgrounds and for colour-blind
readers. Plots are small: a phone shows one, and wider screens show several side by side."""

import datetime
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from penstock.pipeline.reports import numbers

WIDTH_IN, HEIGHT_IN = 4.6, 2.9
RANKED_MAX: Final = 10
LINE_STEPS_MIN: Final = 3
AXIS_STEPS_MIN: Final = 6  # so that the bar of a single hour is not as wide as the plot
NAME_CHARS_MAX: Final = 26
COLOURS: Final = ("#4c86c6", "#e8833a", "#3f9f77", "#d1568a", "#8a72c9", "#b0913a")
OTHERS_COLOUR: Final = "#8d9199"
_DAY_S: Final = 86_400
_INK: Final = "#010203"  # placeholder for the colour of the page
_NUMBERS = re.compile(r'(?<=(?:width|eight)=")([\d.]+)pt(?=")')

Times = Sequence[datetime.datetime]


def stacked(times: Times, series: Mapping[str, Sequence[float]], *, step_s: float) -> str:
    figure, axes = _empty()
    bottom = [0.0] * len(times)
    width = datetime.timedelta(seconds=step_s * 0.86)
    middles = [at + datetime.timedelta(seconds=step_s / 2) for at in times]
    for name, values, colour in _coloured(series):
        axes.bar(middles, values, width, bottom=bottom, color=colour, label=name, linewidth=0)
        bottom = [below + value for below, value in zip(bottom, values, strict=True)]
    _finish(axes, times, step_s, numbers.short, is_named=len(series) > 1)
    return _svg(figure)


def lines(
    times: Times,
    series: Mapping[str, Sequence[float]],
    *,
    step_s: float,
    form: Callable[[float], str] = numbers.short,
) -> str:
    """Draw lines, or bars side by side if there are too few points for a line."""
    figure, axes = _empty()
    mark = "o" if len(times) < 40 else ""
    each_s = step_s * 0.86 / max(1, len(series))
    width = datetime.timedelta(seconds=each_s)
    is_line = len(times) >= LINE_STEPS_MIN
    for place, (name, values, colour) in enumerate(_coloured(series)):
        style: dict[str, Any] = {"color": colour, "label": name}
        if is_line:
            axes.plot(times, values, linewidth=1.6, marker=mark, markersize=2.5, **style)
        else:
            shift = datetime.timedelta(seconds=step_s * 0.07 + each_s * (place + 0.5))
            axes.bar([at + shift for at in times], values, width, linewidth=0, **style)
    if is_line:
        axes.set_ylim(bottom=0)
    _finish(axes, times, step_s, form, is_named=len(series) > 1)
    return _svg(figure)


def ranking(values: Mapping[str, float], *, form: Callable[[float], str] = numbers.short) -> str:
    """Draw the largest values as bars with their names, and the sum of the others as one bar."""
    ranked = sorted(values.items(), key=lambda each: (-each[1], each[0]))
    shown_max = RANKED_MAX if len(ranked) > RANKED_MAX + 1 else RANKED_MAX + 1
    shown, rest = ranked[:shown_max], ranked[shown_max:]
    bars = [(shortened(name), value, COLOURS[0]) for name, value in shown]
    if rest:
        bars.append((f"{len(rest)} others", sum(value for _, value in rest), OTHERS_COLOUR))
    figure, axes = _empty(height=max(1.2, 0.6 + 0.26 * len(bars)))
    places = range(len(bars))
    axes.barh(places, [value for _, value, _ in bars], color=[c for _, _, c in bars], height=0.7)
    axes.set_yticks(places, [name for name, _, _ in bars])
    axes.invert_yaxis()
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    top = max((value for _, value, _ in bars), default=0) or 1
    for place, (_, value, _) in enumerate(bars):
        axes.text(value + top * 0.02, place, form(value), va="center", fontsize=8.5)
    axes.set_xlim(0, top * 1.22)
    return _svg(figure)


def shortened(name: str) -> str:
    """Return a long name without its middle, because names differ mostly at their ends."""
    if len(name) <= NAME_CHARS_MAX:
        return name
    half = (NAME_CHARS_MAX - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def _coloured(
    series: Mapping[str, Sequence[float]],
) -> list[tuple[str, Sequence[float], str]]:
    assert len(series) <= len(COLOURS) + 1, "too many series: sum up the rest as others"
    coloured = zip(series.items(), (*COLOURS, OTHERS_COLOUR), strict=False)
    return [(shortened(name), values, colour) for (name, values), colour in coloured]


def _empty(*, height: float = HEIGHT_IN) -> tuple[Any, Any]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "penstock",  # the same rows give the same page
        "text.parse_math": False,  # a dollar sign in a name does not start a formula
        "font.family": "sans-serif",
        "font.size": 9,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK
        ),
    }
    mpl.rcParams.update(style)
    figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
    axes = figure.add_subplot()
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _time_axis(axes: Any, times: Times, step_s: float) -> None:
    from matplotlib import dates

    plain: Any = dates  # which has no types
    locator = plain.AutoDateLocator(tz=datetime.UTC, minticks=3, maxticks=6)
    formatter = plain.ConciseDateFormatter(locator, tz=datetime.UTC)
    if times:
        step = datetime.timedelta(seconds=step_s)
        first = times[0] - step * ((max(0, AXIS_STEPS_MIN - len(times)) + 1) // 2)
        last = times[-1] + step * (max(0, AXIS_STEPS_MIN - len(times)) // 2)
        axes.set_xlim(first - step * 0.2, last + step * 1.2)
        if len(times) < AXIS_STEPS_MIN:  # a tick at the start of each step
            count = round((last - first) / step) + 2
            ticks = [first + step * place for place in range(count)]
            axes.set_xticks(ticks, [_at(at, step_s) for at in ticks])
            axes.set_xlabel(f"{times[0]:%Y-%m-%d}" if step_s < _DAY_S else "")
            return
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(formatter)


def _at(at: datetime.datetime, step_s: float) -> str:
    is_midnight = (at.hour, at.minute) == (0, 0)
    return f"{at:%b-%d}" if step_s >= _DAY_S or is_midnight else f"{at:%H:%M}"


def _finish(
    axes: Any, times: Times, step_s: float, form: Callable[[float], str], *, is_named: bool
) -> None:
    _time_axis(axes, times, step_s)
    axes.yaxis.set_major_formatter(lambda value, _place: form(value))
    axes.yaxis.set_major_locator(_locator(axes, is_binary=form is numbers.size))
    axes.grid(axis="y", color=_INK, alpha=0.15, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.tick_params(axis="x", pad=8)  # below the 0 of the other axis
    if is_named:
        # Above the plot, not on it; two columns fit on a phone.
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, frameon=False, fontsize=8.5,
            handlelength=1.0, handleheight=0.8, borderpad=0.2, columnspacing=1.2,
        )  # fmt: skip


def _locator(axes: Any, *, is_binary: bool) -> Any:
    from matplotlib.ticker import MaxNLocator, MultipleLocator

    if not is_binary:
        return MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10])
    step = 1.0
    while axes.get_ylim()[1] > 4 * step:
        step *= 2
    return MultipleLocator(step)


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]  # without the XML declaration and doctype
    text = text.replace(_INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;\"]*; ", "", text)
    return _NUMBERS.sub(r"\1", text)
