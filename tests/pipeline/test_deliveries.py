"""The job ``deliveries``: sums against what they came from, and lost and repeated messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.harness.server import Server
from tests.pipeline.stage import Notes, context_of
from tests.pipeline.topics import Topics, send, topics_of
from tests.unit.pipeline.test_expand_deliveries import input_batch

from penstock.net.kafka_client.client import Place
from penstock.pipeline.job import JobMisused, NotFound, Unsound
from penstock.pipeline.jobs import deliveries as job
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


@pytest.fixture(scope="module")
def topics(server: Server) -> Iterator[Topics]:
    with topics_of(server.kafka) as found:
        yield found


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


# ── Comparison with the source ───────────────────────────────────────────────────────────────


def compared(
    spark: SparkSession, server: Server, lake: Lake, folder: Path, **arguments: Any
) -> tuple[list[tuple[str, int, int]], str]:
    """Return the listed faults, and the line that sums them up."""
    notes = Notes()
    context = context_of(spark, server, lake, folder, notes, subscription="s-1", **arguments)
    try:
        job.run_verify(context)
    except Unsound as error:
        notes.texts.append(f"unsound: {error}")
    found = [(str(e["kind"]), int(e["partition"]), int(e["offset"])) for e in notes.rows]
    return found, "; ".join(notes.texts)


def test_lost_and_repeated_messages_are_found(
    spark: SparkSession, server: Server, topics: Topics, lake: Lake, tmp_path: Path
) -> None:
    topics.make("orders", 2)
    topics.fill("orders", {0: 120, 1: 30})
    topics.make("mirrored", 1)
    good = [row(0, n) for n in range(10, 110)] + [row(1, n) for n in range(30)]
    good += [row(0, 12, is_replay=True), row(0, 13, is_test=True), row(0, 14, "retry", next_ms=9)]
    good += [row(0, n, subscription="s-2") for n in (3, 15, 15)]
    settled_otherwise = {20: "dead", 21: "dropped", 22: "expired", 23: "refused"}
    rows = [
        row(0, each.offset, settled_otherwise[each.offset])
        if each.partition == 0 and each.offset in settled_otherwise
        else each
        for each in good
    ]
    values = [record(rows[at : at + 40], 1 + at // 40) for at in range(0, len(rows), 40)]
    send(topics, "mirrored", [*values, values[0]])  # the last is a copy, not a second delivery
    context = context_of(spark, server, lake, tmp_path / "run", topic="mirrored")
    job.run(context)
    job.run(context)  # nothing new
    assert lake.read(spark, ROWS).count() == len(rows) + 40
    faults, text = compared(spark, server, lake, tmp_path)
    assert (faults, text) == ([], "130 messages: 130 ok")

    # Messages before the first row and after the last are compared only if that is asked for.
    faults, text = compared(spark, server, lake, tmp_path, first="0:8", end="0:112")
    assert faults == [("missing", 0, n) for n in (8, 9, 110, 111)]
    assert text.endswith("unsound: deliveries of s-1: 4 missing")
    faults, text = compared(spark, server, lake, tmp_path, first="0:8", filtered=True)
    assert (faults, text) == ([], "132 messages: 132 ok")

    more = [row(0, 50), row(1, 7), row(1, 99), row(0, 110, "retry", next_ms=5), row(0, 112)]
    send(topics, "mirrored", [record(more, 90)])
    job.run(context)
    faults, text = compared(spark, server, lake, tmp_path, acked="0:111", first="0:9")
    assert faults == [
        ("unrecorded", 0, 9),
        ("double", 0, 50),
        ("unrecorded", 0, 110),
        ("missing", 0, 111),
        ("double", 1, 7),
        ("unknown", 1, 99),  # delivered, but the topic has no such message
    ]
    assert text.endswith("unsound: deliveries of s-1: 1 missing, 1 unknown, 2 double, 2 unrecorded")
    faults, text = compared(spark, server, lake, tmp_path, end="0:111,1:30", doubles_max=2)
    assert ("pending", 0, 110) in faults
    assert "unsound" not in text
    topics.cut(Place("orders", 0), 60)  # retention: what is gone cannot be compared
    faults, text = compared(spark, server, lake, tmp_path, end="0:100,1:30", doubles_max=1)
    assert (faults, text) == ([("double", 1, 7)], "70 messages: 69 ok, 1 double")


@pytest.mark.parametrize("text", ["0", "a:1", "0:-1", "0:1;1:2", ":"])
def test_offsets_that_are_misspelt_are_refused(lake: Lake, tmp_path: Path, text: str) -> None:
    context = context_of(None, _NoServer(), lake, tmp_path, subscription="s", first=text)  # type: ignore[arg-type]
    with pytest.raises(JobMisused, match=r"--first is '.*': give PARTITION:OFFSET"):
        job._check_verify(context)


def test_a_check_needs_a_subscription_and_its_rows(
    spark: SparkSession, server: Server, lake: Lake, tmp_path: Path
) -> None:
    with pytest.raises(JobMisused, match="--subscription is required"):
        job._check_verify(context_of(spark, server, lake, tmp_path))
    with pytest.raises(NotFound, match="has no table delivery"):
        job._check_verify(context_of(spark, server, lake, tmp_path, subscription="s"))
    DeliveryTables(spark, lake).add(
        frame(spark, [record([row(0, 1)], 1)]), app="deliveries:q", batch_id=0
    )
    with pytest.raises(NotFound, match="no deliveries of subscription s-9"):
        job.run_verify(context_of(spark, server, lake, tmp_path, subscription="s-9"))


class _NoServer:
    kafka = "127.0.0.1:1"
