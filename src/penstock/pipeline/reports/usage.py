"""Report ``usage``: the usage of tenants over time, from the sums of the job ``usage``.

The report only reads ``usage_partial``, which contains all usage once: of sealed hours, of open
hours, and late additions to sealed hours."""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.pipeline.job import Job, JobContext, require_table
from penstock.pipeline.jobs.usage import PARTIAL
from penstock.pipeline.lake import Lake
from penstock.pipeline.reports import charts, numbers
from penstock.pipeline.reports.output import report, write
from penstock.pipeline.reports.page import Column, Page, Plot, Section, Table, number
from penstock.pipeline.reports.rows import (
    HOUR_S,
    Series,
    both,
    by_column,
    over_time,
    ranked_by,
    summed,
    times,
)
from penstock.wire.facts.usage import CALLS, STORAGE

_KEYS: Final = ("tenant", "region", "resource", "op")
_COUNTS: Final = (
    "requests", "messages", "bytes_in", "bytes_out", "throttled", "denied", "failed",
)  # fmt: skip
CSV_COLUMNS: Final = (*_KEYS, *_COUNTS, "byte_hours")
_COLUMNS: Final = (
    Column("tenant", "Tenant"),
    Column("resource", "Queue or topic"),
    Column("op", "Operation"),
    number("requests", "Requests", numbers.count),
    number("messages", "Messages", numbers.count),
    number("bytes_in", "In", numbers.size),
    number("bytes_out", "Out", numbers.size),
    number("throttled", "Throttled", numbers.count),
    number("denied", "Denied", numbers.count),
    number("failed", "Failed", numbers.count),
    number("byte_hours", "Byte-hours", numbers.size),
)
_KAFKA: Final = (
    "Requests of Kafka clients are counted per tenant, not per topic; their records and bytes are "
    "counted per topic."
)

Row = Mapping[str, Any]


def collect(lake: Lake, since_ms: int | None, until_ms: int | None) -> list[dict[str, Any]]:
    import pyarrow.compute as pc

    require_table(lake, PARTIAL, job="usage")
    counted = pc.field("kind").isin([CALLS, STORAGE])
    return summed(
        lake,
        PARTIAL,
        keys=("hour", *_KEYS),
        sums=(*_COUNTS, "byte_minutes"),
        where=both(counted, times("hour", since_ms, until_ms)),
    )


def by_key(rows: Iterable[Row]) -> list[dict[str, Any]]:
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in _KEYS)
        sums = found.setdefault(
            key,
            {**dict(zip(_KEYS, key, strict=True)), **dict.fromkeys(_COUNTS, 0), "byte_hours": 0},
        )
        for name in _COUNTS:
            sums[name] += row[name]
        sums["byte_hours"] += row["byte_minutes"] / 60
    ranked = sorted(
        found.values(), key=lambda each: (-each["requests"], [each[name] for name in _KEYS])
    )
    for sums in ranked:
        sums["byte_hours"] = round(sums["byte_hours"])
    return ranked


def page(rows: Sequence[Row]) -> Page:
    sums = by_key(rows)
    totals = {name: sum(each[name] for each in sums) for name in (*_COUNTS, "byte_hours")}
    tiles = [
        ("Requests", numbers.count(totals["requests"])),
        ("Messages", numbers.count(totals["messages"])),
        ("In", numbers.size(totals["bytes_in"])),
        ("Out", numbers.size(totals["bytes_out"])),
        ("Refused", numbers.count(totals["throttled"] + totals["denied"] + totals["failed"])),
        ("Tenants", numbers.count(len({row["tenant"] for row in sums if row["tenant"]}))),
    ]
    return Page(
        title="Usage",
        period=period_of([row["hour"] for row in rows], step_s=HOUR_S),
        tiles=tiles,
        sections=[
            Section("Over time", _plots_over_time(rows)),
            Section("By name", _rankings(sums)),
            Section("Everything", table=Table(_COLUMNS, sums, {"tenant": "Total", **totals})),
        ],
        notes=[_KAFKA],
    )


def _plots_over_time(rows: Sequence[Row]) -> list[Plot]:
    if not rows:
        return []

    def series(value: str, name: Callable[[Row], str]) -> Series:
        return over_time(rows, value, name, at="hour", step_s_min=HOUR_S)

    plots = []
    for title, value in (("Requests", "requests"), ("Messages", "messages")):
        found = series(value, by_column("tenant"))
        if found.values:
            svg = charts.stacked(found.times, found.values, step_s=found.step_s)
            plots.append(Plot(f"{title} {found.unit}, by tenant", svg))
    moved = {name: series(f"bytes_{name}", lambda _row: "all") for name in ("in", "out")}
    both_ways = moved["in"]
    nothing = [0.0] * len(both_ways.times)
    values = {name: found.values.get("all", nothing) for name, found in moved.items()}
    svg = charts.lines(both_ways.times, values, step_s=both_ways.step_s, form=numbers.size)
    plots.append(Plot(f"Bytes {both_ways.unit}", svg))
    return plots


def _rankings(sums: Sequence[Row]) -> list[Plot]:
    named = [
        {**row, "bytes": row["bytes_in"] + row["bytes_out"]} for row in sums if row["resource"]
    ]
    plots = []
    for title, rows, name, value, form in (
        ("Messages by queue or topic", named, "resource", "messages", numbers.short),
        ("Bytes by queue or topic", named, "resource", "bytes", numbers.size),
        ("Requests by operation", sums, "op", "requests", numbers.short),
    ):
        ranked = ranked_by(rows, by_column(name), value)
        if ranked:
            plots.append(Plot(title, charts.ranking(ranked, form=form)))
    return plots


def period_of(at: Sequence[datetime.datetime], *, step_s: int) -> str:
    if not at:
        return "no data in this time range"
    last = max(at) + datetime.timedelta(seconds=step_s)
    return f"{numbers.moment(min(at))} to {numbers.moment(last)}"


def run(context: JobContext) -> None:
    rows = collect(context.lake, context.since_ms, context.until_ms)
    write(context, "usage", page(rows), by_key(rows), CSV_COLUMNS)


JOB: Final[Job] = report(
    "usage", "Write a page with charts and totals of the usage of tenants.", run
)
