"""The metrics of a node. Counting happens for every request and message, so it only adds to an
attribute or a list element. Labels, text and gauges, which cost more, are computed at each scrape.

Use a ``Meter`` only in the event loop's thread, because additions are not atomic. Gauges are not
stored: their owner registers a collector, which must return their values without waiting.

Samples are written in the Prometheus text format (version 0.0.4) without the Prometheus client
library, which takes a hundred times as long and would block the event loop."""

import math
import platform
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from penstock import __version__
from penstock.telemetry import families
from penstock.telemetry.families import BUCKETS_SECONDS, Family, MetricKind, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Maximum series of one labelled family. API names and codes are few; if a client invents action
# names, those beyond the maximum count as the series "other".
SERIES_MAX = 1_000
OTHER = "other"
RENDERED_SAMPLES = 1_000  # rendered at a time, in about 2 ms

Collector = Callable[[], Iterable[tuple[Family, Sample]]]


class Histogram:
    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_SECONDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(slots=True)
class _Requests:
    durations: Histogram
    count: int = 0


class Meter:
    def __init__(self) -> None:
        # Per request:
        self._requests: dict[tuple[str, str, str], _Requests] = {}
        self._request_durations: dict[tuple[str, str], Histogram] = {}
        # Per message:
        self.messages_sent = self.messages_received = self.messages_deleted = 0
        self.messages_dead_lettered = self.messages_expired = self.messages_quarantined = 0
        self.dedup_hits = self.bytes_in = self.bytes_out = 0
        # Per append and sync:
        self.log_written_bytes = 0
        self.appends = Histogram()
        self.fsyncs = Histogram()
        # Per tick:
        self.loop_lags = Histogram()
        self._collectors: list[Collector] = []
        self._histograms: list[tuple[Family, tuple[str, ...], Histogram]] = [
            (families.APPEND_DURATION, (), self.appends),
            (families.FSYNC_DURATION, (), self.fsyncs),
            (families.EVENT_LOOP_LAG, (), self.loop_lags),
        ]

    def request(self, api: str, protocol: str, code: str, seconds: float) -> None:
        cell = self._requests.get((api, protocol, code))
        if cell is None:
            cell = self._open_series(api, protocol, code)
        cell.count += 1
        durations = cell.durations
        durations.counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        durations.sum += seconds

    def sent(self, count: int, size_bytes: int) -> None:
        self.messages_sent += count
        self.bytes_in += size_bytes

    def received(self, count: int, size_bytes: int) -> None:
        self.messages_received += count
        self.bytes_out += size_bytes

    def deleted(self, count: int) -> None:
        self.messages_deleted += count

    def appended(self, size_bytes: int, seconds: float) -> None:
        self.log_written_bytes += size_bytes
        self.appends.observe(seconds)

    def _open_series(self, api: str, protocol: str, code: str) -> _Requests:
        if len(self._requests) >= SERIES_MAX:
            # Not stored under the client's names, whose number has no limit.
            api, protocol, code = OTHER, OTHER, OTHER
        durations = self._request_durations.setdefault((api, protocol), Histogram())
        return self._requests.setdefault((api, protocol, code), _Requests(durations))

    def register_collector(self, collector: Collector) -> None:
        """Add a function that each scrape calls to get the values of gauges."""
        self._collectors.append(collector)

    def register_histogram(
        self, family: Family, labels: tuple[str, ...], histogram: Histogram
    ) -> None:
        assert len(self._histograms) < SERIES_MAX, "too many histogram series"
        self._histograms.append((family, labels, histogram))

    def render(self, extra: Iterable[tuple[Family, Sample]] = ()) -> bytes:
        samples: dict[str, list[Sample]] = {}
        for family, sample in chain(*(collect() for collect in self._collectors), extra):
            samples.setdefault(family.name, []).append(sample)
        samples[families.BUILD_INFO.name] = [((__version__, platform.python_version()), 1)]
        samples[families.REQUESTS.name] = [
            (key, cell.count) for key, cell in self._requests.items()
        ]
        histograms: dict[str, list[tuple[tuple[str, ...], Histogram]]] = {
            families.REQUEST_DURATION.name: list(self._request_durations.items())
        }
        for family, labels, histogram in self._histograms:
            histograms.setdefault(family.name, []).append((labels, histogram))
        lines: list[str] = []
        for family in families.FAMILIES:
            if family.kind is MetricKind.HISTOGRAM:
                lines += histogram_lines(family, histograms.get(family.name, []))
            else:
                # A counter of messages or bytes is the attribute with the name of its family.
                own = vars(self).get(family.name.removeprefix("penstock_").removesuffix("_total"))
                values = samples.get(family.name, []) if own is None else [((), own)]
                lines += sample_lines(family, values)
        lines.append("")
        return "\n".join(lines).encode()


def render_samples(
    by_family: Mapping[Family, Sequence[Sample]],
) -> Generator[None, None, list[bytes]]:
    """Render samples in pieces of text, which are the generator's return value. It yields None
    about every 2 ms, to let the event loop do other work."""
    pieces: list[bytes] = []
    for family, samples in by_family.items():
        for start in range(0, len(samples), RENDERED_SAMPLES):
            lines = sample_lines(family, samples[start : start + RENDERED_SAMPLES])
            if start:
                del lines[: len(head_lines(family))]
            pieces.append(("\n".join(lines) + "\n").encode())
            yield None
    return pieces


# ── The text format ──────────────────────────────────────────────────────────────────────────

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


def histogram_lines(family: Family, series: Iterable[tuple[Sequence[str], Histogram]]) -> list[str]:
    assert family.kind is MetricKind.HISTOGRAM
    lines: list[str] = []
    for values, histogram in series:
        labels = labels_text(family.labels, values)
        # The bound is the last label; the others are escaped once per series.
        opening = f"{family.name}_bucket" + (labels[:-1] + "," if labels else "{")
        seen = 0
        for bound, count in zip(_BOUNDS, histogram.counts, strict=True):
            seen += count
            lines.append(f'{opening}le="{bound}"}} {seen}')
        lines.append(f"{family.name}_sum{labels} {number_text(histogram.sum)}")
        lines.append(f"{family.name}_count{labels} {seen}")
    return head_lines(family) + lines if lines else []
