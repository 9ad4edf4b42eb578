"""Job ``billing``: makes invoices from the sums of the job ``usage`` and the prices of a rate card.

    usage_hourly + usage_adjustment + usage of hours not sealed yet ─► invoice, invoice_line

Amounts are whole millionths of the currency (``rates.py``); totals of requests and messages are
exactly those that frontends counted. If usage cannot be charged (its tenant is unknown, or beyond
the maximum number of tenants), it also has an invoice, so that the sum of invoices is complete."""

import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.pipeline.arrow_map import schema_of
from penstock.pipeline.facts.rates import RateCard, RatesInvalid, Use, lines_of, parse
from penstock.pipeline.facts.usage_sums import KEYS, SUMS
from penstock.pipeline.job import Job, JobContext, JobMisused, Mode, option, require_table, utc
from penstock.pipeline.jobs.usage import ADJUSTMENT, HOUR, HOURLY, PARTIAL
from penstock.pipeline.lake import Lake
from penstock.wire.facts.usage import CALLS, STORAGE

INVOICE, INVOICE_LINE = "invoice", "invoice_line"
UNBILLED: Final = ("", "*")  # tenant values: unknown, and all beyond the maximum number

_INVOICE: Final = schema_of(
    "month string, tenant string, revision long, writing long, status string, currency string,"
    " amount_micros long, requests long, refused long, messages long, bytes_in long,"
    " bytes_out long, byte_minutes long"
)
_LINE: Final = schema_of(
    "month string, tenant string, revision long, writing long, item string, valid_from date,"
    " quantity long, refused long, free long, price_micros long, amount_micros long"
)


@dataclass(frozen=True, slots=True)
class Month:
    first: datetime.date

    @classmethod
    def parse(cls, text: str) -> "Month":
        try:
            day = datetime.datetime.strptime(text, "%Y-%m").replace(tzinfo=datetime.UTC)
        except ValueError:
            raise JobMisused(f"'{text}' is not a month: write it like 2026-01") from None
        return cls(day.date())

    @property
    def end(self) -> datetime.date:
        return (self.first + datetime.timedelta(days=31)).replace(day=1)

    @property
    def days(self) -> int:
        return (self.end - self.first).days

    def __str__(self) -> str:
        return self.first.isoformat()[:7]


def transform(usage: DataFrame, starts: Sequence[datetime.date]) -> DataFrame:
    """Return usage by tenant, operation and rate card version, sorted by tenant."""
    version = f.lit(-1)
    for number, day in enumerate(starts):
        version = f.when(f.to_date("hour") >= f.lit(day), number).otherwise(version)
    sums = [f.sum(name).alias(name) for name in SUMS]
    sums.append(f.expr("sum(throttled + denied + failed)").alias("refused"))
    grouped = usage.withColumn("version", version).groupBy("tenant", "op", "version").agg(*sums)
    return grouped.orderBy("tenant", "version", "op")


def invoices(
    rows: Iterable[Any], card: RateCard, month: Month, status: str
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield each tenant's invoice with its lines, from the rows of ``transform``."""
    for tenant, of_tenant in groupby(rows, key=lambda row: row.tenant):
        uses = [Use(*(row[name] for name in Use._fields)) for row in of_tenant]
        if any(use.version < 0 for use in uses):
            raise RatesInvalid(
                f"no version of the rate card was valid at the time of the first usage in {month}"
            )
        lines = [] if tenant in UNBILLED else lines_of(uses, card, days=month.days)
        head = {"month": str(month), "tenant": tenant, "status": status, "currency": card.currency}
        head["amount_micros"] = sum(line.amount_micros for line in lines)
        for name in ("requests", "refused", "messages", "bytes_in", "bytes_out", "byte_minutes"):
            head[name] = sum(getattr(use, name) for use in uses)
        place = {"month": head["month"], "tenant": tenant}
        valid_from = card.starts()
        yield (
            head,
            [{**line._asdict(), **place, "valid_from": valid_from[line.version]} for line in lines],
        )


def usage_of(spark: SparkSession, lake: Lake, month: Month) -> tuple[DataFrame, bool]:
    """Return all usage of a month, and whether all its hours are sealed. The usage
    includes sealed hours, late additions to sealed hours, and open hours, each counted once."""
    where = f"hour >= timestamp'{month.first} 00:00:00' AND hour < timestamp'{month.end} 00:00:00'"
    files = f"date >= '{month.first}' AND date < '{month.end}'"
    columns = [*KEYS, *SUMS]
    require_table(lake, PARTIAL, job="usage")
    rows = lake.read(spark, PARTIAL, f"{where} AND kind IN ('{CALLS}', '{STORAGE}')", files=files)
    # An hour counts as sealed if usage_hourly has it: a run that was killed between its two commits
    # leaves hours that are closed in the other table, but have no sums yet.
    through = lake.version_of(HOURLY, "seal")
    if through is not None:
        sealed = lake.read(spark, HOUR).where(f"unix_seconds(hour) div 3600 <= {through}")
        rows = rows.join(f.broadcast(sealed.select("hour")), "hour", "left_anti")
    rows = rows.select(*columns)
    for table in (HOURLY, ADJUSTMENT):
        if lake.exists(table):
            rows = rows.unionByName(lake.read(spark, table, where, files=files).select(*columns))
    end = datetime.datetime.combine(month.end, datetime.time(), datetime.UTC)
    return rows, through is not None and through >= int(end.timestamp()) // 3_600 - 1


def bill(spark: SparkSession, lake: Lake, card: RateCard, month: Month) -> int:
    usage, is_sealed = usage_of(spark, lake, month)
    status = "final" if is_sealed else "draft"
    rows = transform(usage, card.starts()).toLocalIterator()
    last = _last_invoices(spark, lake, month)
    fresh: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for head, of_head in invoices(rows, card, month, status):
        before = last.get(head["tenant"])
        if before is not None and all(before[name] == value for name, value in head.items()):
            continue
        revision = 1 if before is None else before["revision"] + 1
        fresh.append({**head, "revision": revision})
        lines += [{**line, "revision": revision} for line in of_head]
    if fresh:
        _write(lake, month, fresh, lines)
    return len(fresh)


def _write(
    lake: Lake, month: Month, fresh: list[dict[str, Any]], lines: list[dict[str, Any]]
) -> None:
    """Write lines before invoices, so that each invoice has all its lines. If a run is killed
    before it writes the invoices, the next run replaces the lines."""
    app = f"billing:{month}"
    writing = (lake.version_of(INVOICE, app) or 0) + 1
    rows = pa.Table.from_pylist([{**line, "writing": writing} for line in lines], _LINE)
    lake.append(
        rows,
        INVOICE_LINE,
        app=app,
        batch_id=(lake.version_of(INVOICE_LINE, app) or 0) + 1,
        partition_by=("month", "writing"),
        replace_where=f"month = '{month}' AND writing = {writing}",
    )
    heads = pa.Table.from_pylist([{**head, "writing": writing} for head in fresh], _INVOICE)
    lake.append(heads, INVOICE, app=app, batch_id=writing, partition_by=("month",))


def _last_invoices(spark: SparkSession, lake: Lake, month: Month) -> dict[str, dict[str, Any]]:
    if not lake.exists(INVOICE):
        return {}
    found: dict[str, dict[str, Any]] = {}
    for row in lake.read(spark, INVOICE, f"month = '{month}'").toLocalIterator():
        if row.tenant not in found or found[row.tenant]["revision"] < row.revision:
            found[row.tenant] = row.asDict()
    return found


def _requested(context: JobContext) -> tuple[RateCard, Month]:
    path = context.arguments.get("rates")
    if not path:
        raise JobMisused("--rates is required: name the file with the rate card")
    try:
        card = parse(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise JobMisused(f"cannot read the rate card {path}: {error.strerror}") from None
    except (RatesInvalid, UnicodeDecodeError) as error:
        raise JobMisused(f"{path}: {error}") from None
    now = datetime.datetime.now(datetime.UTC)
    day = now if context.since_ms is None else utc(context.since_ms)
    return card, Month.parse(str(context.arguments.get("month") or f"{day:%Y-%m}"))


def check(context: JobContext) -> None:
    _requested(context)
    require_table(context.lake, PARTIAL, job="usage")


def run(context: JobContext) -> None:
    card, month = _requested(context)
    try:
        count = bill(context.spark, context.lake, card, month)
    except RatesInvalid as error:
        raise JobMisused(f"{context.arguments['rates']}: {error}") from None
    context.progress.note(f"{count} invoices written for {month}")


JOB: Final = Job(
    name="billing",
    summary="Create the invoices of a month from the usage of tenants and a rate card.",
    run=run,
    check=check,
    modes=frozenset((Mode.ONCE,)),
    options=(
        option("--rates", "FILE", "TOML file with the rate card", required=True),
        option("--month", "YYYY-MM", "month to bill [default: this month]"),
    ),
)
