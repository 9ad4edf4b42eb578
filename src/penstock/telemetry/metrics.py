"""The counters of a node. Counting happens for every request and message, so it is one attribute or
list addition; everything expensive (labels, text, gauges) waits for the scrape.

Use it only in the event loop's thread, because additions are not atomic. Gauges are not stored:
their owner registers a collector, which must return their values from memory and at once."""

import platform
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

from penstock import __version__
from penstock.telemetry import exposition, families
from penstock.telemetry.exposition import Sample
from penstock.telemetry.families import BUCKETS_SECONDS, Family, MetricKind

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


class _Requests:
    __slots__ = ("count", "durations")

    def __init__(self, durations: Histogram) -> None:
        self.count = 0
        self.durations = durations


class Meter:
    def __init__(self) -> None:
        # Per request:
        self._requests: dict[tuple[str, str, str], _Requests] = {}
        self._request_durations: dict[tuple[str, str], Histogram] = {}
        # Per message:
        self.messages_sent = 0
        self.messages_received = 0
        self.messages_deleted = 0
        self.messages_dead_lettered = 0
        self.messages_expired = 0
        self.messages_quarantined = 0
        self.dedup_hits = 0
        self.bytes_in = 0
        self.bytes_out = 0
        # Per append and sync:
        self.log_written_bytes = 0
        self.appends = Histogram()
        self.fsyncs = Histogram()
        # Per tick:
        self.loop_lags = Histogram()
        self._collectors: list[Collector] = []
        self._more_histograms: list[tuple[Family, tuple[str, ...], Histogram]] = []

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

    def dead_lettered(self, count: int) -> None:
        self.messages_dead_lettered += count

    def expired(self, count: int) -> None:
        self.messages_expired += count

    def quarantined(self, count: int) -> None:
        self.messages_quarantined += count

    def dedup_hit(self, count: int = 1) -> None:
        self.dedup_hits += count

    def appended(self, size_bytes: int, seconds: float) -> None:
        self.log_written_bytes += size_bytes
        self.appends.observe(seconds)

    def fsynced(self, seconds: float) -> None:
        self.fsyncs.observe(seconds)

    def loop_lagged(self, seconds: float) -> None:
        self.loop_lags.observe(seconds)

    def _open_series(self, api: str, protocol: str, code: str) -> _Requests:
        if len(self._requests) >= SERIES_MAX:
            # Not stored under the client's names, whose number has no limit.
            api, protocol, code = OTHER, OTHER, OTHER
        durations = self._request_durations.setdefault((api, protocol), Histogram())
        return self._requests.setdefault((api, protocol, code), _Requests(durations))

    def register_collector(self, collector: Collector) -> None:
        """Add a function that returns samples of gauges at each scrape."""
        self._collectors.append(collector)

    def register_histogram(
        self, family: Family, labels: tuple[str, ...], histogram: Histogram
    ) -> None:
        assert len(self._more_histograms) < SERIES_MAX, "too many histogram series"
        self._more_histograms.append((family, labels, histogram))

    def render(self, extra: Iterable[tuple[Family, Sample]] = ()) -> bytes:
        gauges: dict[str, list[Sample]] = {}
        for collector in self._collectors:
            for family, sample in collector():
                gauges.setdefault(family.name, []).append(sample)
        for family, sample in extra:
            gauges.setdefault(family.name, []).append(sample)
        gauges[families.BUILD_INFO.name] = [((__version__, platform.python_version()), 1)]
        counters = self._counters()
        histograms = self._histograms()
        lines: list[str] = []
        for family in families.FAMILIES:
            if family.kind is MetricKind.HISTOGRAM:
                found = histograms.get(family.name, [])
                lines += exposition.histogram_lines(
                    family, ((labels, h.counts, h.sum) for labels, h in found)
                )
            else:
                samples = counters.get(family.name) or gauges.get(family.name, [])
                lines += exposition.sample_lines(family, samples)
        lines.append("")
        return "\n".join(lines).encode()

    def _counters(self) -> dict[str, list[Sample]]:
        plain: tuple[tuple[Family, float], ...] = (
            (families.MESSAGES_SENT, self.messages_sent),
            (families.MESSAGES_RECEIVED, self.messages_received),
            (families.MESSAGES_DELETED, self.messages_deleted),
            (families.MESSAGES_DEAD_LETTERED, self.messages_dead_lettered),
            (families.MESSAGES_EXPIRED, self.messages_expired),
            (families.MESSAGES_QUARANTINED, self.messages_quarantined),
            (families.DEDUP_HITS, self.dedup_hits),
            (families.BYTES_IN, self.bytes_in),
            (families.BYTES_OUT, self.bytes_out),
            (families.LOG_WRITTEN, self.log_written_bytes),
        )
        counters: dict[str, list[Sample]] = {family.name: [((), n)] for family, n in plain}
        counters[families.REQUESTS.name] = [
            (labels, cell.count) for labels, cell in self._requests.items()
        ]
        return counters

    def _histograms(self) -> dict[str, list[tuple[tuple[str, ...], Histogram]]]:
        found: dict[str, list[tuple[tuple[str, ...], Histogram]]] = {
            families.REQUEST_DURATION.name: list(self._request_durations.items()),
            families.APPEND_DURATION.name: [((), self.appends)],
            families.FSYNC_DURATION.name: [((), self.fsyncs)],
            families.EVENT_LOOP_LAG.name: [((), self.loop_lags)],
        }
        for family, labels, histogram in self._more_histograms:
            found.setdefault(family.name, []).append((labels, histogram))
        return found


def render_samples(
    by_family: Mapping[Family, Sequence[Sample]],
) -> Generator[None, None, list[bytes]]:
    """Return samples as pieces of text. Yields None after every few milliseconds of work."""
    pieces: list[bytes] = []
    for family, samples in by_family.items():
        for start in range(0, len(samples), RENDERED_SAMPLES):
            lines = exposition.sample_lines(family, samples[start : start + RENDERED_SAMPLES])
            if start:
                del lines[: len(exposition.head_lines(family))]
            pieces.append(("\n".join(lines) + "\n").encode())
            yield None
    return pieces
