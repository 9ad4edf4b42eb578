"""Job ``audit-search``: finds entries of the audit trail, newest first.

The job does not need Spark: days are folders of ``audit_log``, and Arrow reads only the shown
columns and the row groups that may match. Days are read from the newest on, up to the limit."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.pipeline.job import Job, JobContext, Mode, require_table
from penstock.pipeline.jobs.audit import LOG
from penstock.pipeline.lake import Lake, Table

SHOWN: Final = (
    "at_ms", "principal", "action", "resource", "outcome", "error_code", "source_ip", "request_id",
    "params", "node", "seq",
)  # fmt: skip
FIELDS: Final = ("principal", "action", "resource", "outcome", "tenant")
LIMIT: Final = 100
LIMIT_MAX: Final = 100_000


def search(
    lake: Lake,
    wanted: Mapping[str, str],
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    limit: int = LIMIT,
) -> list[dict[str, Any]]:
    """Return entries whose fields have these values; a value that ends with ``*`` is a prefix.
    Raises TableMissing."""
    table = lake.table(LOG)
    found: list[dict[str, Any]] = []
    for day in _days(table, since_ms, until_ms):
        paths = table.files(f"date = '{day}'")
        rows = pa.concat_tables(
            [_matching(path, wanted, since_ms=since_ms, until_ms=until_ms) for path in paths]
        )
        order = pc.sort_indices(rows, sort_keys=[("at_ms", "descending"), ("seq", "descending")])
        found += rows.take(order[: limit - len(found)]).to_pylist()
        if len(found) >= limit:
            break
    return found


def _days(table: Table, since_ms: int | None, until_ms: int | None) -> Iterator[str]:
    """Yield the days of the table within the times, newest first."""
    days = {str(each["date"]) for each in table.open().partitions() if each["date"] is not None}
    first = "" if since_ms is None else _day(since_ms)
    last = "9999-99-99" if until_ms is None else _day(until_ms)
    yield from sorted((day for day in days if first <= day <= last), reverse=True)


def _day(at_ms: int) -> str:
    return datetime.datetime.fromtimestamp(at_ms / 1_000, datetime.UTC).date().isoformat()


def _matching(
    path: str, wanted: Mapping[str, str], *, since_ms: int | None, until_ms: int | None
) -> pa.Table:
    tests: list[pc.Expression] = [pc.field("at_ms").is_valid()]
    if since_ms is not None:
        tests.append(pc.field("at_ms") >= since_ms)
    if until_ms is not None:
        tests.append(pc.field("at_ms") < until_ms)
    for name, value in wanted.items():
        if value.endswith("*"):
            tests.append(pc.starts_with(pc.field(name), value[:-1]))
        else:
            tests.append(pc.field(name) == value)
    test = tests[0]
    for each in tests[1:]:
        test = test & each
    return pq.read_table(path, columns=list(SHOWN), filters=test, partitioning=None)


def run(context: JobContext) -> None:
    wanted = {name: value for name in FIELDS if (value := context.arguments.get(name)) is not None}
    require_table(context.lake, LOG, job="audit")
    rows = search(
        context.lake,
        wanted,
        since_ms=context.since_ms,
        until_ms=context.until_ms,
        limit=context.arguments.get("limit", LIMIT),
    )
    context.show(_shown(rows))


def _shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"at": _moment(row["at_ms"]), **row} for row in rows]


def _moment(at_ms: int) -> str:
    at = datetime.datetime.fromtimestamp(at_ms / 1_000, datetime.UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1_000:03d}Z"


JOB: Final = Job(
    name="audit-search",
    summary="Find entries in the archived audit trail, newest first.",
    run=run,
    options=(
        *(
            click.Option(
                [f"--{name}"], metavar="TEXT", help=f"{name} of the entries; TEXT* for a prefix"
            )
            for name in FIELDS
        ),
        click.Option(
            ["--limit"], type=click.IntRange(1, LIMIT_MAX), default=LIMIT, show_default=True
        ),
    ),
    modes=frozenset({Mode.ONCE}),
    needs_spark=False,
)
