"""Report ``usage``: the usage of tenants over time, from the sums of the job ``usage``.

The report only reads ``usage_partial``, which contains all usage once: that of sealed hours, of
open hours, and late additions.
"""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.pipeline.job import Job, JobContext, Mode, require_table
from penstock.pipeline.jobs.usage import PARTIAL
from penstock.pipeline.lake import Lake
from penstock.pipeline.reports import charts, numbers
from penstock.pipeline.reports.output import options, write
from penstock.pipeline.reports.page import ROWS_MAX, Column, Page, Plot, Section, Table
from penstock.pipeline.reports.rows import both, summed, times
from penstock.pipeline.reports.series import HOUR_S, Series, over_time
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
    Column("requests", "Requests", is_number=True),
    Column("messages", "Messages", is_number=True),
    Column("bytes_in", "In", is_number=True),
    Column("bytes_out", "Out", is_number=True),
    Column("throttled", "Throttled", is_number=True),
    Column("denied", "Denied", is_number=True),
    Column("failed", "Failed", is_number=True),
    Column("byte_hours", "Byte-hours", is_number=True),
)
_KAFKA: Final = (
    "Requests of Kafka clients count for whoever asks and under no topic; their records and bytes "
    "count with each topic."
)

Row = Mapping[str, Any]


def collect(lake: Lake, since_ms: int | None, until_ms: int | None) -> list[dict[str, Any]]:
    """Return sums by hour, tenant, resource and operation. Raises JobMisused."""
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
    """Return sums over all hours, most requests first."""
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
            Section("Everything", table=_table(sums, totals)),
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
        found = series(value, lambda row: row["tenant"] or "(unknown)")
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
    plots = []
    for title, value, form in (
        ("Messages by queue or topic", "messages", numbers.short),
        ("Bytes by queue or topic", "bytes", numbers.size),
    ):
        ranked: dict[str, float] = {}
        for row in sums:
            much = row["bytes_in"] + row["bytes_out"] if value == "bytes" else row[value]
            if row["resource"] and much:
                ranked[row["resource"]] = ranked.get(row["resource"], 0) + much
        if ranked:
            plots.append(Plot(title, charts.ranking(ranked, form=form)))
    by_op: dict[str, float] = {}
    for row in sums:
        if row["requests"]:
            by_op[row["op"] or "(unknown)"] = (
                by_op.get(row["op"] or "(unknown)", 0) + row["requests"]
            )
    if by_op:
        plots.append(Plot("Requests by operation", charts.ranking(by_op)))
    return plots


def _table(sums: Sequence[Row], totals: Row) -> Table:
    return Table(
        columns=_COLUMNS,
        rows=[
            {"tenant": row["tenant"], "resource": row["resource"], "op": row["op"], **_cells(row)}
            for row in sums[:ROWS_MAX]
        ],
        totals={"tenant": "Total", **_cells(totals)},
        left_out=max(0, len(sums) - ROWS_MAX),
    )


def _cells(row: Row) -> dict[str, str]:
    cells = {name: numbers.count(row[name]) for name in _COUNTS}
    cells |= {name: numbers.size(row[name]) for name in ("bytes_in", "bytes_out", "byte_hours")}
    return cells


def period_of(at: Sequence[datetime.datetime], *, step_s: int) -> str:
    if not at:
        return "nothing in this time"
    last = max(at) + datetime.timedelta(seconds=step_s)
    return f"{numbers.moment(min(at))} to {numbers.moment(last)}"


def run(context: JobContext) -> None:
    rows = collect(context.lake, context.since_ms, context.until_ms)
    write(context, "usage", page(rows), by_key(rows), CSV_COLUMNS)


JOB: Final = Job(
    name="usage",
    summary="Who used what and when: plots and totals on one page.",
    run=run,
    options=options(),
    modes=frozenset((Mode.ONCE,)),
    needs_spark=False,
)
