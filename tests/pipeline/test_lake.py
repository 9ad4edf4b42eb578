"""The lake: one commit for a batch, one batch once, and what keeps two writers apart."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.unit.pipeline.test_parts import rows_of

from penstock.pipeline.lake import (
    Lake,
    LakeError,
    RecordsRepeated,
    SchemaConflict,
    TableMissing,
)
from penstock.pipeline.parts import write_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG_ROW = "topic string, partition int, offset long, value binary"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def records(spark: SparkSession, *spans: tuple[str, int, range]) -> DataFrame:
    rows = [(t, p, o, b"v%d" % o) for t, p, offsets in spans for o in offsets]
    return spark.createDataFrame(rows, LOG_ROW)


def offsets_in(spark: SparkSession, lake: Lake, table: str) -> list[int]:
    return sorted(row.offset for row in lake.read(spark, table).select("offset").collect())


# ── Once for each batch ──────────────────────────────────────────────────────────────────────


def test_a_batch_that_is_appended_again_changes_nothing(spark: SparkSession, lake: Lake) -> None:
    df = records(spark, ("t", 0, range(10)))
    first = lake.append(df, "t", app="job:q", batch_id=0)
    version = lake.table("t").open().version()
    again = lake.append(df, "t", app="job:q", batch_id=0)
    assert (first.is_new, first.rows) == (True, 10)
    assert not again.is_new
    assert lake.table("t").open().version() == version
    assert lake.version_of("t", "job:q") == 0
    assert offsets_in(spark, lake, "t") == list(range(10))


def test_a_batch_without_rows_is_committed_too(spark: SparkSession, lake: Lake) -> None:
    commit = lake.append(records(spark), "t", app="job:q", batch_id=7)
    assert (commit.is_new, commit.rows) == (True, 0)
    assert lake.version_of("t", "job:q") == 7
    assert offsets_in(spark, lake, "t") == []


def test_files_that_no_commit_names_are_not_read(spark: SparkSession, lake: Lake) -> None:
    lake.append(records(spark, ("t", 0, range(5))), "t", app="job:q", batch_id=0)
    batch = pa.RecordBatch.from_pydict({"offset": pa.array([99], pa.int64())})
    (orphan,) = write_parts([batch], lake.table("t").path, (), is_tracked=False)
    assert (lake.table("t").path / orphan.path).exists()
    assert offsets_in(spark, lake, "t") == list(range(5))


# ── A table is a checkpoint ──────────────────────────────────────────────────────────────────


def test_a_tracked_table_knows_behind_which_offsets_it_ends(
    spark: SparkSession, lake: Lake
) -> None:
    assert lake.end_offsets("t", "job") == {}
    df = records(spark, ("a", 0, range(10)), ("a", 1, range(3)), ("b", 0, range(7, 9)))
    lake.append(df, "t", app="job:q", batch_id=0, is_tracked=True)
    lake.append(
        records(spark, ("a", 1, range(3, 8))), "t", app="job:q", batch_id=1, is_tracked=True
    )
    assert lake.end_offsets("t", "job") == {"a": {0: 10, 1: 8}, "b": {0: 9}}
    assert lake.end_offsets("t", "other") == {}


def test_another_query_cannot_put_a_record_in_twice(spark: SparkSession, lake: Lake) -> None:
    df = records(spark, ("t", 0, range(10)))
    lake.append(df, "t", app="job:q1", batch_id=0, is_tracked=True)
    late = records(spark, ("t", 0, range(9, 12)))
    with pytest.raises(RecordsRepeated, match="begins at 9"):
        lake.append(late, "t", app="job:q2", batch_id=0, is_tracked=True)
    lake.append(
        records(spark, ("t", 0, range(10, 12))), "t", app="job:q2", batch_id=0, is_tracked=True
    )
    assert offsets_in(spark, lake, "t") == list(range(12))
    left = list(lake.table("t").path.glob("*.parquet"))
    assert len(left) == len(lake.table("t").files())  # what was refused is gone from the disk


def test_end_offsets_come_from_the_rows_when_the_commits_have_left_the_log(
    spark: SparkSession, lake: Lake
) -> None:
    df = records(spark, ("t", 0, range(4)), ("t", 1, range(6)))
    lake.append(df, "t", app="job:q", batch_id=0, is_tracked=True)
    lake.table("t").open().create_checkpoint()
    for file in (lake.table("t").path / "_delta_log").glob("*.json"):
        file.unlink()
    assert lake.end_offsets("t", "job") == {"t": {0: 4, 1: 6}}


# ── Partitions, schemas, files ───────────────────────────────────────────────────────────────


def test_partition_values_of_every_sort_come_back_as_they_were(
    spark: SparkSession, lake: Lake
) -> None:
    day = datetime.date(2026, 2, 3)
    texts = ["plain", "a b/c=d%e", "[x]{y}*?", None, "05"]
    rows = [(i, day, i % 24, text) for i, text in enumerate(texts)]
    df = spark.createDataFrame(rows, "id int, date date, hour int, text string")
    lake.append(df, "t", app="j:q", batch_id=0, partition_by=("date", "hour", "text"))
    assert sorted(tuple(row) for row in lake.read(spark, "t").collect()) == sorted(rows)
    assert sorted(row["id"] for row in rows_of("t", lake)) == list(range(len(texts)))
    df = spark.createDataFrame([(9, *rows[1][1:])], df.schema)
    lake.append(df, "t", app="j:q", batch_id=1, partition_by=("date", "hour", "text"))
    assert lake.table("t").compact() == 1
    want = sorted([*rows, (9, *rows[1][1:])])
    assert sorted(tuple(row) for row in lake.read(spark, "t").collect()) == want
    foreign = pa.RecordBatch.from_pydict({"id": [1], "text": ["ü"]})
    with pytest.raises(ValueError, match="ASCII"):
        write_parts([foreign], lake.table("t").path, ("text",), is_tracked=False)


def test_reading_prunes_files_by_partition_and_by_minimum_and_maximum(
    spark: SparkSession, lake: Lake
) -> None:
    for batch_id in range(3):
        offsets = range(batch_id * 10, batch_id * 10 + 10)
        rows = [(batch_id, offset) for offset in offsets]
        df = spark.createDataFrame(rows, "hour int, offset long").coalesce(1)
        lake.append(df, "t", app="j:q", batch_id=batch_id, partition_by=("hour",))
    table = lake.table("t")
    assert len(table.files()) == 3
    assert len(table.files("hour = 1")) == 1
    assert len(table.files("offset >= 15 AND offset < 18")) == 1
    assert lake.read(spark, "t", "hour = 1").count() == 10
    assert lake.read(spark, "t", "offset % 10 = 3 AND hour > 0").count() == 2
    assert lake.read(spark, "t", "length(cast(offset AS string)) = 1").count() == 10
    assert lake.read(spark, "t", "hour = 99").count() == 0


def test_timestamps_survive_and_prune_to_the_microsecond(spark: SparkSession, lake: Lake) -> None:
    at = datetime.datetime(2026, 1, 1, 0, 0, 0, 123_456, tzinfo=datetime.UTC)
    df = spark.createDataFrame([(at,)], "at timestamp")
    lake.append(df, "t", app="j:q", batch_id=0)
    assert lake.read(spark, "t", "at = timestamp'2026-01-01 00:00:00.123456Z'").count() == 1
    assert len(lake.table("t").files("at >= '2026-01-01T00:00:00.123456Z'")) == 1
    assert len(lake.table("t").files("at > '2026-01-01T00:00:01Z'")) == 0


def test_new_columns_are_added_and_null_in_older_rows(spark: SparkSession, lake: Lake) -> None:
    lake.append(spark.createDataFrame([(1,)], "a int"), "t", app="j:q", batch_id=0)
    df = spark.createDataFrame([("x", 2)], "b string, a int")
    lake.append(df, "t", app="j:q", batch_id=1)
    lake.append(spark.createDataFrame([(3,)], "a int"), "t", app="j:q", batch_id=2)
    rows = sorted((row.a, row.b) for row in lake.read(spark, "t").collect())
    assert rows == [(1, None), (2, "x"), (3, None)]


def test_a_column_of_another_type_or_another_division_is_refused(
    spark: SparkSession, lake: Lake
) -> None:
    lake.append(spark.createDataFrame([(1, 2)], "a int, b int"), "t", app="j:q", batch_id=0)
    with pytest.raises(SchemaConflict, match="column a"):
        lake.append(spark.createDataFrame([("1",)], "a string"), "t", app="j:q", batch_id=1)
    df = spark.createDataFrame([(1, 2)], "a int, b int")
    with pytest.raises(SchemaConflict, match="partitioned by"):
        lake.append(df, "t", app="j:q", batch_id=1, partition_by=("b",))
    with pytest.raises(SchemaConflict, match="lack the partition column"):
        lake.append(
            spark.createDataFrame([(1,)], "a int"), "u", app="j:q", batch_id=1, partition_by=("z",)
        )
    assert lake.version_of("t", "j:q") == 0


def test_nested_columns_survive_compaction(spark: SparkSession, lake: Lake) -> None:
    kind = "hour int, headers array<struct<key: string, value: binary>>, value binary"
    for batch_id in range(4):
        rows = [
            (1, [("k", b"\x00\xff"), ("k", None)], None),
            (1, None, b"%d" % batch_id),
            (1, [], b""),
        ]
        df = spark.createDataFrame(rows, kind).coalesce(1)
        lake.append(df, "t", app="j:q", batch_id=batch_id, partition_by=("hour",))
    before = sorted(map(repr, lake.read(spark, "t").collect()))
    assert lake.table("t").compact([("hour", "=", "1")]) == 3
    assert len(lake.table("t").files()) == 1
    assert sorted(map(repr, lake.read(spark, "t").collect())) == before
    assert lake.version_of("t", "j:q") == 3


def test_replacing_partitions_is_one_commit_with_the_new_rows(
    spark: SparkSession, lake: Lake
) -> None:
    def put(batch_id: int, rows: list[tuple[str, int]], where: str | None = None) -> None:
        df = spark.createDataFrame(rows, "day string, n int")
        lake.append(
            df, "t", app="j:q", batch_id=batch_id, partition_by=("day",), replace_where=where
        )

    put(0, [("a b", 1), ("c", 2)])
    put(1, [("a b", 10)], "day = 'a b'")
    assert sorted((row.day, row.n) for row in lake.read(spark, "t").collect()) == [
        ("a b", 10),
        ("c", 2),
    ]


def test_a_missing_table_and_an_address_are_told_plainly(spark: SparkSession, lake: Lake) -> None:
    with pytest.raises(TableMissing, match="no table nothing"):
        lake.read(spark, "nothing")
    with pytest.raises(LakeError, match="local or mounted folder"):
        Lake("s3://bucket/lake")
