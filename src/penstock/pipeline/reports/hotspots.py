"""Report ``hotspots``: load, request durations, lag of groups and planned moves of partitions, from
the tables of the job ``telemetry``. Without ``--from`` the report covers the last day."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.model.names import is_bookkeeping_group
from penstock.pipeline.facts.telemetry_sums import State
from penstock.pipeline.job import Job, JobContext, require_table, utc
from penstock.pipeline.jobs.telemetry import HOT, LAG, MINUTES, PLAN
from penstock.pipeline.lake import Lake
from penstock.pipeline.reports import charts, numbers
from penstock.pipeline.reports.output import report, write
from penstock.pipeline.reports.page import Column, Page, Plot, Section, Table, number
from penstock.pipeline.reports.rows import DAY_MS, MINUTE_S, both, over_time, ranked_by, times
from penstock.pipeline.reports.rows import rows as read
from penstock.pipeline.reports.usage import period_of
from penstock.pipeline.sketch import merge, percentile
from penstock.wire.facts import telemetry as facts

METRICS_MAX: Final = 500_000  # rows by minute that one page is made from
CSV_COLUMNS: Final = ("at", "scope", "name", "rate", "share", "z", "reason")
_HOT: Final = (
    Column("at", "When", numbers.moment),
    Column("scope", "What"),
    Column("name", "Name"),
    number("rate", "Rate", lambda rate: f"{numbers.short(rate)}/s"),
    number("share", "Share", numbers.percent),
    Column("reason", "Why"),
)
_CALLS: Final = (
    Column("resource", "Queue or topic"),
    Column("op", "Operation"),
    number("requests", "Requests", numbers.count),
    number("errors", "Refused", numbers.count),
    number("p50", "p50", numbers.duration),
    number("p99", "p99", numbers.duration),
)
_LAGS: Final = (
    Column("group", "Group"),
    Column("resource", "Topic"),
    number("partition", "Partition"),
    number("records", "Behind", numbers.count),
    number("delay", "Time"),
    number("eta_s", "Caught up in", numbers.duration),
    Column("state", "State"),
)
_STEPS: Final = (
    number("seq", ""),
    Column("action", "Do"),
    Column("resource", "Topic"),
    number("partition", "Partition"),
    Column("source", "From"),
    Column("target", "To"),
    number("cost_bytes", "Bytes", numbers.size),
    Column("reason", "Why"),
)

_LAG_KEYS: Final = ("account", "region", "resource", "partition", "group")

Row = Mapping[str, Any]


class Found(NamedTuple):
    calls: Sequence[Row]
    partitions: Sequence[Row]
    hot: Sequence[Row]
    lags: Sequence[Row]
    steps: Sequence[Row]


def collect(lake: Lake, since_ms: int | None, until_ms: int | None) -> Found:
    import pyarrow.compute as pc

    require_table(lake, MINUTES, job="telemetry")
    when = times("at", since_ms, until_ms)

    def metrics(kind: str) -> list[Row]:
        where = both(pc.field("kind") == kind, when)
        return read(lake, MINUTES, where=where, rows_max=METRICS_MAX)

    def part(table: str, where: Any) -> list[Row]:
        return read(lake, table, where=where) if lake.exists(table) else []

    since, until = since_ms or 0, until_ms or 1 << 60
    hot = [row for row in part(HOT, None) if since <= row["at"].timestamp() * 1_000 < until]
    hot.sort(key=lambda row: (-row["at"].timestamp(), row["scope"], -row["rate"]))
    steps = part(PLAN, None)
    newest = max((row["created_at_ms"] for row in steps), default=0)
    last_plan = [row for row in steps if row["created_at_ms"] == newest]
    return Found(
        calls=metrics(facts.CALLS),
        partitions=metrics(facts.PARTITION),
        hot=hot,
        lags=_last(part(LAG, when)),
        steps=sorted(last_plan, key=lambda row: row["seq"]),
    )


def _last(lags: Iterable[Row]) -> list[Row]:
    """Return the newest row of each group and partition, sorted by state, worst first."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in lags:
        if not is_bookkeeping_group(row["group"]):
            found.setdefault(tuple(row[name] for name in _LAG_KEYS), []).append(row)
    last = {key: _timed(sorted(rows, key=lambda row: row["at"])) for key, rows in found.items()}
    order = (State.STALLED, State.SLOW, State.OK)
    return sorted(last.values(), key=lambda row: (order.index(row["state"]), -row["records"]))


def _timed(rows: Sequence[Row]) -> Row:
    """Return the last row, completed with the age of its lag. While a group is stalled, its lag
    ages with the clock, so ``seconds`` is computed from the last earlier row that has it. If no
    row of the stall has it, ``seconds_min`` is the time since the first of these rows."""
    last = rows[-1]
    if last["seconds"] is not None:
        return last
    since = last
    for row in reversed(rows):
        if row["seconds"] is not None:
            passed_s = (last["at"] - row["at"]).total_seconds()
            return {**last, "seconds": row["seconds"] + passed_s}
        since = row
        if row["state"] != State.STALLED:
            break
    return {**last, "seconds_min": (last["at"] - since["at"]).total_seconds()}


def page(found: Found) -> Page:
    every = merge(row["hist"] for row in found.calls)
    stalled = [row for row in found.lags if row["state"] == State.STALLED]
    stuck = len({(row["account"], row["group"]) for row in stalled})
    behind = [{**row, "delay": _delay(row)} for row in found.lags if row["records"]]
    tiles = [
        ("Requests", numbers.count(sum(row["requests"] for row in found.calls))),
        ("Refused", numbers.count(sum(row["errors"] for row in found.calls))),
        ("p50", numbers.duration(percentile(every, 0.5))),
        ("p99", numbers.duration(percentile(every, 0.99))),
        ("Groups stalled", numbers.count(stuck)),
        ("Moves advised", numbers.count(len(found.steps))),
    ]
    sections = [
        Section("Load", _load_plots(found)),
        Section("Hot spots", table=Table(_HOT, found.hot)),
        Section(
            "How long requests take",
            table=_durations(found.calls),
            note="Durations of receives and fetches include the time of waiting for messages.",
        ),
        Section("Groups that are behind", table=Table(_LAGS, behind)),
    ]
    if found.steps:
        sections.append(
            Section("Advised moves", note=_about(found.steps[0]), table=Table(_STEPS, found.steps))
        )
    return Page(
        title="Hot spots",
        period=period_of([row["at"] for row in found.calls or found.partitions], step_s=60),
        tiles=tiles,
        sections=sections,
        notes=["Percentiles are exact to one bucket, that is to 9 %."],
    )


def _load_plots(found: Found) -> list[Plot]:
    plots = []
    moved = [row for row in found.calls if row["messages"]]
    if moved:
        found_in = over_time(
            moved, "messages", lambda row: row["resource"] or "(none)", at="at", step_s_min=MINUTE_S
        )
        svg = charts.stacked(found_in.times, found_in.values, step_s=found_in.step_s)
        plots.append(Plot(f"Messages {found_in.unit}", svg))
    by_partition = ranked_by(
        found.partitions, lambda row: f"{row['resource']} · {row['partition']}", "messages"
    )
    if by_partition:
        plots.append(Plot("Records by partition", charts.ranking(by_partition)))
    by_node = ranked_by(found.partitions, lambda row: str(row["node"]), "bytes_in")
    if by_node:
        plots.append(Plot("Bytes appended by node", charts.ranking(by_node, form=numbers.size)))
    return plots


def _durations(calls: Sequence[Row]) -> Table:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in calls:
        found.setdefault((row["resource"], row["op"]), []).append(row)
    slowest = []
    for (resource, op), rows in sorted(found.items()):
        hist = merge(row["hist"] for row in rows)
        p99 = percentile(hist, 0.99)
        if p99 is not None:
            sums = {name: sum(row[name] for row in rows) for name in ("requests", "errors")}
            p50 = percentile(hist, 0.5)
            slowest.append({"resource": resource or "–", "op": op, "p50": p50, "p99": p99, **sums})
    return Table(_CALLS, sorted(slowest, key=lambda row: -row["p99"]))


def _delay(row: Row) -> str:
    if row["seconds"] is None and row.get("seconds_min"):
        return f"> {numbers.duration(row['seconds_min'])}"
    return numbers.duration(row["seconds"])


def _about(step: Row) -> str:
    made = numbers.moment(utc(step["created_at_ms"]))
    return (
        f"Made {made}. The busiest node has {step['skew_before']:.2f} times the "
        f"mean, and would have {step['skew_after']:.2f} times."
    )


def run(context: JobContext) -> None:
    since_ms = context.since_ms
    if since_ms is None:
        since_ms = (context.until_ms or time.time_ns() // 1_000_000) - DAY_MS
    found = collect(context.lake, since_ms, context.until_ms)
    write(context, "hotspots", page(found), found.hot, CSV_COLUMNS)


JOB: Final[Job] = report(
    "hotspots", "Write a page with hot spots, request durations and consumer lag.", run
)
