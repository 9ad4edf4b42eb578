"""Records of the topic ``__telemetry``: a node writes one record per interval, in the format of
``columnar``. ``docs/usage.md`` describes the fields.

The column ``kind`` says what a row describes: ``calls`` (sums of one operation on a queue or
topic), ``partition`` (sums of appends, and start and end of the log), ``queue`` (current state of a
queue or share), ``lag`` (of a consumer group on a partition) or ``node``. A row uses only the
columns of its kind.

Durations are counted in buckets that grow by the eighth root of two, so a value is known to within
9 %, and histograms are merged by adding their counts. Bucket 0 has durations up to
``BUCKET_SECONDS_MIN``, bucket ``i`` those above ``bound(i - 1)`` and up to ``bound(i)``, and the
last bucket all longer ones. A histogram is a list: the number of the first used bucket, then the
counts from that bucket to the last used one. It is empty if nothing was counted. A change of the
buckets needs a new ``VERSION``."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from penstock.wire.facts.columnar import Form, Head

VERSION: Final = 1
SCHEMA_HEADER: Final = (b"schema", b"telemetry/%d" % VERSION)

CALLS: Final = "calls"
PARTITION: Final = "partition"
QUEUE: Final = "queue"
LAG: Final = "lag"
NODE: Final = "node"

APPEND: Final = "append"  # the operation of partition rows
FOLDED: Final = "*"  # replaces resource and operation of rows beyond the limit
NO_PARTITION: Final = -1

PER_DOUBLING: Final = 8
_DOUBLINGS_MIN: Final = -17  # 2^-17 s: 7.6 µs, less than any request takes
_DOUBLINGS_MAX: Final = 6  # 64 s: more than the longest poll
BUCKET_SECONDS_MIN: Final = 2.0**_DOUBLINGS_MIN
BUCKET_LAST: Final = (_DOUBLINGS_MAX - _DOUBLINGS_MIN) * PER_DOUBLING + 1
# The upper bound of each bucket except the last, which has none.
BOUNDS_SECONDS: Final[tuple[float, ...]] = tuple(
    2.0 ** (_DOUBLINGS_MIN + step / PER_DOUBLING) for step in range(BUCKET_LAST)
)


class TelemetryUnreadable(Exception): ...


def bucket_of(seconds: float) -> int:
    return bisect_left(BOUNDS_SECONDS, seconds)


def bound(bucket: int) -> float:
    """Return the upper bound of a bucket in seconds; for the last bucket, the lower bound."""
    return BOUNDS_SECONDS[min(bucket, BUCKET_LAST - 1)]


def packed(counts: Mapping[int, int]) -> list[int]:
    if not counts:
        return []
    first, last = min(counts), max(counts)
    return [first, *(counts.get(bucket, 0) for bucket in range(first, last + 1))]


def unpacked(hist: Sequence[int]) -> dict[int, int]:
    if not hist:
        return {}
    first = hist[0]
    return {first + place: count for place, count in enumerate(hist[1:]) if count}


class TelemetryColumns(msgspec.Struct, gc=False):
    kind: list[str] = []
    account: list[str] = []
    region: list[str] = []
    resource: list[str] = []
    partition: list[int] = []
    op: list[str] = []
    group: list[str] = []
    requests: list[int] = []
    errors: list[int] = []
    messages: list[int] = []
    bytes_in: list[int] = []
    bytes_out: list[int] = []
    hist: list[list[int]] = []
    depth: list[int] = []
    in_flight: list[int] = []
    oldest_age_ms: list[int] = []
    log_start: list[int] = []
    log_end: list[int] = []
    committed: list[int] = []
    size_bytes: list[int] = []
    cpu_ms: list[int] = []
    rss_bytes: list[int] = []
    disk_free_bytes: list[int] = []

    def __len__(self) -> int:
        return len(self.kind)

    def add(self, kind: str, **values: str | int | list[int]) -> None:
        self.kind.append(kind)
        for name in _VALUES:
            getattr(self, name).append(values.get(name, _NOTHING[name]))


_NAMES: Final = TelemetryColumns.__struct_fields__
TEXTS: Final = ("kind", "account", "region", "resource", "op", "group")
NUMBERS: Final = tuple(name for name in _NAMES if name not in (*TEXTS, "partition", "hist"))
_VALUES: Final = _NAMES[1:]
_NOTHING: Final[Mapping[str, str | int | list[int]]] = {
    **dict.fromkeys(_NAMES, 0),
    **dict.fromkeys(TEXTS, ""),
    "partition": NO_PARTITION,
    "hist": [],
}


class TelemetryHead(Head, gc=False):
    from_ms: int  # start of the interval
    written_at_ms: int  # end of the interval


class TelemetryFacts(TelemetryHead, gc=False):
    columns: TelemetryColumns
    left_out: int = 0  # number of rows left out beyond the limit


class TelemetryBlock(TelemetryHead, gc=False):
    columns: dict[str, msgspec.Raw]


FORM: Final = Form(
    "telemetry",
    VERSION,
    facts=TelemetryFacts,
    block=TelemetryBlock,
    nothing=_NOTHING,
    unreadable=TelemetryUnreadable,
)


encode = FORM.encode


def decode(value: bytes) -> TelemetryFacts:
    facts = FORM.decode(value)
    if not all(is_hist(hist) for hist in facts.columns.hist):
        raise TelemetryUnreadable("a histogram has a bucket that does not exist")
    return facts


def is_hist(hist: Sequence[int]) -> bool:
    return not hist or (0 <= hist[0] <= BUCKET_LAST and hist[0] + len(hist) - 2 <= BUCKET_LAST)
