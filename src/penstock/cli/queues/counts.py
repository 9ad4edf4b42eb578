"""Counts of queues from the admin API, as rows to print once or to watch.

A rate is the difference of two samples divided by the time between them, so the first sample of a
watch has none. A counter that went backwards, because the server restarted, gives none either."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.cli.clients.http import Json
from penstock.cli.command import Session
from penstock.cli.terminal.failure import NotFound
from penstock.cli.terminal.output import Column, columns

_COUNTERS = ("sent", "received", "acked", "dead_lettered")


def _rate(per_s: float) -> str:
    return f"{per_s:,.1f}"


COLUMNS = columns(
    "name, visible#, in_flight# FLIGHT, delayed#, oldest_age_s# OLDEST, sent#, received# RECV, "
    "acked# DELETED, dead_lettered# DEAD, waits#"
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
        raise NotFound(
            f"no queue '{missing[0]}'",
            f"{len(found)} queues exist in this region",
            "list queues with `penstock queue list`",
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


class Sampler:
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
