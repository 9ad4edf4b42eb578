"""Writes samples in the Prometheus text format (version 0.0.4), a hundred times as fast as the
client library, which would block the event loop."""

import math
from collections.abc import Iterable, Sequence

from penstock.telemetry.families import BUCKETS_SECONDS, Family, MetricKind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# One value of a family: its label values in the order of the family's labels, and the number.
Sample = tuple[Sequence[str], float]

_LABEL_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})


def number_text(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


_BOUNDS = tuple(number_text(bound) for bound in (*BUCKETS_SECONDS, math.inf))


def labels_text(names: Sequence[str], values: Sequence[str]) -> str:
    assert len(names) == len(values), "one value per label"
    if not names:
        return ""
    pairs = (
        f'{name}="{value.translate(_LABEL_ESCAPES)}"'
        for name, value in zip(names, values, strict=True)
    )
    return "{" + ",".join(pairs) + "}"


def head_lines(family: Family) -> list[str]:
    help_text = family.help.translate(_HELP_ESCAPES)
    return [f"# HELP {family.name} {help_text}", f"# TYPE {family.name} {family.kind}"]


def sample_lines(family: Family, samples: Iterable[Sample]) -> list[str]:
    assert family.kind is not MetricKind.HISTOGRAM
    name, names = family.name, family.labels
    lines = [
        f"{name}{labels_text(names, values)} {number_text(value)}" for values, value in samples
    ]
    return head_lines(family) + lines if lines else []


def histogram_lines(
    family: Family, series: Iterable[tuple[Sequence[str], Sequence[int], float]]
) -> list[str]:
    """Return the lines of a histogram, given label values, counts per bucket and sum."""
    assert family.kind is MetricKind.HISTOGRAM
    lines: list[str] = []
    for values, counts, total in series:
        assert len(counts) == len(_BOUNDS)
        labels = labels_text(family.labels, values)
        # The bound is the last label; the others are escaped once per series.
        opening = f"{family.name}_bucket" + (labels[:-1] + "," if labels else "{")
        seen = 0
        for bound, count in zip(_BOUNDS, counts, strict=True):
            seen += count
            lines.append(f'{opening}le="{bound}"}} {seen}')
        lines.append(f"{family.name}_sum{labels} {number_text(total)}")
        lines.append(f"{family.name}_count{labels} {seen}")
    return head_lines(family) + lines if lines else []
