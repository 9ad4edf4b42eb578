"""Counts of queues from the admin API, as rows to print once or to watch.

A rate is the difference of two samples divided by the time between them, so the first sample of a
watch has none. A counter that went backwards, because the server restarted, gives none either."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.cli.client import Json
from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column, duration, is_drawing, rich_table
from penstock.cli.session import Session

_COUNTERS = ("sent", "received", "acked", "dead_lettered")


def _rate(per_s: float) -> str:
    return f"{per_s:,.1f}"


COLUMNS = (
    Column("name", "NAME"),
    Column("visible", "VISIBLE", is_number=True),
    Column("in_flight", "FLIGHT", is_number=True),
    Column("delayed", "DELAYED", is_number=True),
    Column("oldest_age_s", "OLDEST", is_number=True, form=duration),
    Column("sent", "SENT", is_number=True),
    Column("received", "RECV", is_number=True),
    Column("acked", "DELETED", is_number=True),
    Column("dead_lettered", "DEAD", is_number=True),
    Column("waits", "WAITS", is_number=True),
)
RATE_COLUMNS = (
    *COLUMNS[:5],
    Column("sent_per_s", "SENT/s", is_number=True, form=_rate),
    Column("received_per_s", "RECV/s", is_number=True, form=_rate),
    Column("acked_per_s", "DEL/s", is_number=True, form=_rate),
    Column("waits", "WAITS", is_number=True),
)


def _row(item: Json) -> Json:
    """Return a flat row from a queue of the admin API: identity first, then its counts."""
    counts = dict(item["stats"])
    counts.pop("oldest_sent_at_ms", None)
    age_ms = counts.pop("oldest_age_ms", None)
    target = item.get("dead_letter_target")
    return {
        "name": item["name"],
        "kind": item["kind"],
        "partitions": item["partition_count"],
        **counts,
        "oldest_age_s": None if age_ms is None else age_ms / 1_000,
        "dead_letter": None if target is None else target.rpartition(":")[2],
        "sources": [arn.rpartition(":")[2] for arn in item.get("sources", ())],
    }


def rows(session: Session, prefix: str = "") -> list[Json]:
    return [_row(item) for item in session.admin.queues(prefix)]


def rows_of(session: Session, names: Sequence[str]) -> list[Json]:
    """Return rows of the named queues in this order; of all queues if none is named."""
    found = {row["name"]: row for row in rows(session)}
    if not names:
        return list(found.values())
    missing = [name for name in names if name not in found]
    if missing:
        raise Failure(
            f"no queue '{missing[0]}'",
            f"the server knows {len(found)} queues in this region",
            "list queues with `penstock queue list`",
            exit_code=ExitCode.NOT_FOUND,
        )
    return [found[name] for name in names]


def backlog(row: Mapping[str, Any]) -> int:
    return sum(int(row.get(key) or 0) for key in ("visible", "in_flight", "delayed"))


def sorted_rows(given: Iterable[Json], by: str) -> list[Json]:
    """Sort by name, or by backlog or age with the highest first."""
    if by == "backlog":
        return sorted(given, key=lambda row: (-backlog(row), row["name"]))
    if by == "age":
        return sorted(given, key=lambda row: (-(row["oldest_age_s"] or 0), row["name"]))
    return sorted(given, key=lambda row: str(row["name"]))


def with_rates(now: Json, before: Json | None, elapsed_s: float) -> Json:
    row = dict(now)
    for counter in _COUNTERS:
        rate = None
        if before is not None and elapsed_s > 0 and counter in now and counter in before:
            difference = now[counter] - before[counter]
            rate = round(difference / elapsed_s, 1) if difference >= 0 else None
        row[f"{counter}_per_s"] = rate
    return row


class Samples:
    """A sampler that keeps the previous sample, for rates."""

    def __init__(self, session: Session, names: Sequence[str]) -> None:
        self._session = session
        self._names = names
        self._before: dict[str, Json] = {}
        self._before_at_s = 0.0

    def take(self) -> list[Json]:
        found = rows_of(self._session, self._names)
        at_s = time.monotonic()
        elapsed_s = at_s - self._before_at_s
        rated = [with_rates(row, self._before.get(row["name"]), elapsed_s) for row in found]
        self._before = {row["name"]: row for row in found}
        self._before_at_s = at_s
        return rated


def watch(
    session: Session, names: Sequence[str], *, interval_s: float, samples_max: int | None
) -> None:
    samples = Samples(session, names)
    stdout = sys.stdout
    if session.out.is_table and is_drawing(stdout):
        _draw(samples, interval_s, samples_max)
        return
    for _ in ticks(interval_s, samples_max):
        at_ms = int(time.time() * 1_000)
        for row in samples.take():
            text = "  ".join(f"{column.title} {column.text(row)}" for column in RATE_COLUMNS)
            session.out.streamed({"at_ms": at_ms, **row}, text=text)


def _draw(samples: Samples, interval_s: float, samples_max: int | None) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(), auto_refresh=False) as live:
        for _ in ticks(interval_s, samples_max):
            cells = [[column.text(row) for column in RATE_COLUMNS] for row in samples.take()]
            live.update(rich_table(RATE_COLUMNS, cells), refresh=True)


def ticks(interval_s: float, count_max: int | None) -> Iterable[int]:
    """Yield 0, 1, 2 … at regular times; a late tick is dropped, not repeated."""
    start_s = time.monotonic()
    number = 0
    while count_max is None or number < count_max:
        yield number
        number += 1
        if number == count_max:
            return
        elapsed_s = time.monotonic() - start_s
        time.sleep(interval_s - elapsed_s % interval_s)
