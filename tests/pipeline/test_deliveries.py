"""The job ``deliveries``: rows are kept once, and sums are those of the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.unit.pipeline.test_expand_deliveries import input_batch

from penstock.pipeline.jobs.deliveries import HOURLY, ROWS, DeliveryTables
from penstock.pipeline.lake import Lake
from penstock.pipeline.reading.expand import expand_deliveries
from penstock.wire.facts.deliveries import DeliveryFacts, DeliveryRow, columns_of, encode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON_MS = 1_772_366_400_000  # 2026-03-01T12:00:00Z
HOUR_MS = 3_600_000
COUNTED = {
    "delivered": "delivered",
    "retry": "retried",
    "dead": "dead",
    "dropped": "dropped",
    "refused": "refused",
    "expired": "expired",
}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def row(
    partition: int,
    offset: int,
    outcome: str = "delivered",
    *,
    at_ms: int = NOON_MS,
    subscription: str = "s-1",
    **more: Any,
) -> DeliveryRow:
    place = (subscription, "orders", partition, offset, f"id-{offset}")
    return DeliveryRow(at_ms, "111", "eu", *place, more.pop("attempt", 1), outcome, **more)


def record(rows: Sequence[DeliveryRow], flush: int, *, left_out: int = 0) -> bytes:
    written_at_ms = max((each.at_ms for each in rows), default=NOON_MS)
    return encode(DeliveryFacts(1, "n1", "ab", flush, written_at_ms, left_out, columns_of(rows)))


def frame(spark: SparkSession, values: Sequence[bytes], *, first: int = 0) -> DataFrame:
    batch = expand_deliveries(input_batch(*values, first=first))
    return spark.createDataFrame(pa.Table.from_batches([batch]))


def some_rows(chance: Random, count: int) -> list[DeliveryRow]:
    return [
        row(
            chance.randrange(3),
            number,
            chance.choice(list(COUNTED)),
            at_ms=NOON_MS + chance.randrange(3 * HOUR_MS),
            subscription=f"s-{chance.randrange(2)}",
            ms=chance.randrange(1_000),
            bytes=chance.randrange(5_000),
            is_replay=chance.random() < 0.1,
            is_test=chance.random() < 0.1,
        )
        for number in range(count)
    ]


# ── Sums ─────────────────────────────────────────────────────────────────────────────────────


def sums_of(rows: Sequence[DeliveryRow]) -> dict[tuple[int, str], Counter[str]]:
    """What the table has to say, by hour of the day and subscription."""
    found: dict[tuple[int, str], Counter[str]] = {}
    for each in rows:
        sums = found.setdefault((each.at_ms // HOUR_MS % 24, each.subscription), Counter())
        if each.is_test:
            sums["tests"] += 1
            continue
        sums[COUNTED[each.outcome]] += 1
        if each.outcome not in ("refused", "expired"):
            sums.update(attempts=1, bytes=each.bytes, replays=int(each.is_replay))
    return found


def hourly(spark: SparkSession, lake: Lake) -> dict[tuple[int, str], Counter[str]]:
    names = ("attempts", "bytes", "replays", "tests", *COUNTED.values())
    return {
        (each.hour, each.subscription): Counter({name: each[name] for name in names})
        for each in lake.read(spark, HOURLY).collect()
    }


def test_rows_are_kept_once_and_their_hours_summed(spark: SparkSession, lake: Lake) -> None:
    rows = some_rows(Random(5), 300)
    flushes = [record(rows[at : at + 50], 1 + at // 50) for at in range(0, 200, 50)]
    tables = DeliveryTables(spark, lake)
    tables.add(frame(spark, flushes), app="deliveries:q", batch_id=0)
    tables.add(frame(spark, flushes), app="deliveries:q", batch_id=0)  # again: nothing
    assert tables.rows == 200
    assert tables.roll_up() == 3
    assert tables.roll_up() == 0
    assert hourly(spark, lake) == sums_of(rows[:200])

    # A flush that a mirror has twice, a record that cannot be read, and late rows of every hour.
    late = [flushes[0], b"\xc1", record(rows[200:], 5, left_out=7)]
    tables.add(frame(spark, late, first=4), app="deliveries:q", batch_id=1)
    again = DeliveryTables(spark, lake)  # as after a restart
    assert again.roll_up() == 3
    assert again.roll_up() == 0
    assert hourly(spark, lake) == sums_of(rows)
    kept = lake.read(spark, ROWS)
    assert [(e.offset, e.date) for e in kept.where("error IS NOT NULL").collect()] == [(5, None)]
    assert kept.selectExpr("sum(left_out) AS n").first() == (7,)


def test_only_the_hours_with_new_rows_are_computed_again(spark: SparkSession, lake: Lake) -> None:
    tables = DeliveryTables(spark, lake)
    values = [record([row(0, n, at_ms=NOON_MS + n * HOUR_MS, ms=n)], 1 + n) for n in range(14)]
    tables.add(frame(spark, values), app="deliveries:q", batch_id=0)
    assert tables.roll_up() == 14  # two days
    before = {path for path in lake.table(HOURLY).files() if "hour=13" in path}
    late = record([row(0, n, at_ms=NOON_MS, ms=n) for n in (100, 200)], 50)
    tables.add(frame(spark, [late], first=14), app="deliveries:q", batch_id=1)
    assert tables.roll_up() == 1
    assert before <= set(lake.table(HOURLY).files())
    [noon] = lake.read(spark, HOURLY, "hour = 12").collect()
    assert (noon.attempts, noon.ms_p50, noon.ms_p99) == (3, 100, 200)
    assert sum(sums["attempts"] for sums in hourly(spark, lake).values()) == 16
