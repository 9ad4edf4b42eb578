"""The lake: one commit for a batch, one batch once, and what keeps two writers apart."""

from __future__ import annotations

import datetime
import errno
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.pipeline import parts
from penstock.pipeline.lake import (
    Lake,
    LakeError,
    LakeFenced,
    RecordsRepeated,
    SchemaConflict,
    TableMissing,
)
from penstock.pipeline.parts import Span, write_parts

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


def rows_of(table: str, lake: Lake) -> list[dict[str, Any]]:
    """Without Spark: another reader must see the same."""
    return list(lake.table(table).open().to_pyarrow_table().to_pylist())


# ── Once for each batch ──────────────────────────────────────────────────────────────────────


def test_a_batch_that_is_appended_again_changes_nothing(spark: SparkSession, lake: Lake) -> None:
    df = records(spark, ("t", 0, range(10)))
    first = lake.append(df, "t", app="job:q", batch_id=0)
    again = lake.append(df, "t", app="job:q", batch_id=0)
    assert (first.is_new, first.rows) == (True, 10)
    assert not again.is_new
    assert again.version == first.version
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


def test_of_two_drivers_of_one_query_one_gets_a_batch_in(lake: Lake) -> None:
    table = lake.table("t")
    rows = pa.table({"x": [1, 2, 3]})
    table.ensure_arrow(rows.schema, ())
    ours = write_parts(rows.to_batches(), table.path, (), is_tracked=False)
    theirs = write_parts(rows.to_batches(), table.path, (), is_tracked=False)
    assert table.commit(ours, app="job:q", batch_id=3).is_new
    assert not table.commit(theirs, app="job:q", batch_id=3).is_new
    assert [row["x"] for row in rows_of("t", lake)] == [1, 2, 3]
    assert not (table.path / theirs[0].path).exists()  # nobody will ever name it


def test_a_commit_that_got_in_and_was_reported_as_failed_keeps_its_files(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    table = lake.table("t")
    rows = pa.table({"x": [1, 2, 3]})
    table.ensure_arrow(rows.schema, ())
    ours = write_parts(rows.to_batches(), table.path, (), is_tracked=False)
    real = DeltaTable.create_write_transaction

    def commit_and_complain(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        raise DeltaError("the checkpoint could not be written")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit_and_complain)
    assert not table.commit(ours, app="job:q", batch_id=3).is_new
    assert [row["x"] for row in rows_of("t", lake)] == [1, 2, 3]


def test_a_zombie_that_looked_before_and_commits_after_is_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, rival = lake.table("t"), lake.table("t")
    rows = pa.table({"topic": ["t"], "partition": pa.array([0], pa.int32()), "offset": [5]})
    table.ensure_arrow(rows.schema, ())
    mine, other = (
        write_parts(rows.to_batches(), table.path, (), is_tracked=True) for _ in range(2)
    )
    opened = table.open
    calls: list[int] = []

    def open_then_be_overtaken() -> Any:
        handle = opened()
        if not calls:
            calls.append(1)
            rival.commit(other, app="job:second", batch_id=0, is_tracked=True)
        return handle

    monkeypatch.setattr(table, "open", open_then_be_overtaken)
    with pytest.raises(LakeFenced):
        table.commit(mine, app="job:first", batch_id=0, is_tracked=True)
    assert [row["offset"] for row in rows_of("t", lake)] == [5]


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


def test_what_a_commit_said_can_be_asked_for(lake: Lake) -> None:
    rows = pa.table({"x": [1]})
    lake.append_arrow(rows, "t", app="a:1", batch_id=0, metadata={"through": 41})
    lake.append_arrow(rows, "t", app="b:1", batch_id=0)
    told = lake.table("t").metadata_of("a:1")
    assert told is not None
    assert told["through"] == 41
    assert lake.table("t").metadata_of("c:1") is None


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
    with pytest.raises(SchemaConflict, match="divided by"):
        lake.append(df, "t", app="j:q", batch_id=1, partition_by=("b",))
    with pytest.raises(SchemaConflict, match="no column"):
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


def test_vacuum_removes_orphans_of_yesterday_and_nothing_younger(lake: Lake) -> None:
    lake.append_arrow(pa.table({"x": [1]}), "t", app="j:q", batch_id=0)
    table = lake.table("t")
    old, new = (
        write_parts(pa.table({"x": [n]}).to_batches(), table.path, (), is_tracked=False)[0]
        for n in (2, 3)
    )
    yesterday = time.time() - 25 * 3_600
    os.utime(table.path / old.path, (yesterday, yesterday))
    with pytest.raises(LakeError, match="24 hours"):
        table.vacuum(1)
    table.vacuum(24)
    assert not (table.path / old.path).exists()
    assert (table.path / new.path).exists()
    assert [row["x"] for row in rows_of("t", lake)] == [1]


@pytest.mark.parametrize("name", ["", "..", "a/../b", "/etc", "a//b", "a b", "a/b/c/d/e", "."])
def test_names_that_are_paths_are_refused(lake: Lake, name: str) -> None:
    with pytest.raises(LakeError, match="cannot name a table"):
        lake.table(name)


def test_a_missing_table_and_an_address_are_told_plainly(spark: SparkSession, lake: Lake) -> None:
    with pytest.raises(TableMissing, match="no table nothing"):
        lake.read(spark, "nothing")
    with pytest.raises(LakeError, match="mount it"):
        Lake("s3://bucket/lake")


def test_tables_are_listed_by_name(lake: Lake) -> None:
    for name in ("archive/a", "archive/b", "usage"):
        lake.append_arrow(pa.table({"x": [1]}), name, app="j:q", batch_id=0)
    assert lake.tables() == ["archive/a", "archive/b", "usage"]
    assert lake.tables("archive") == ["archive/a", "archive/b"]
    assert lake.tables("nothing") == []


# ── Part files ───────────────────────────────────────────────────────────────────────────────


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers()), max_size=20),
        max_size=5,
    )
)
def test_parts_hold_every_row_once_in_order(
    tmp_path: Path, batches: list[list[tuple[str, int, int]]]
) -> None:
    kinds = {"k": pa.string(), "n": pa.int64(), "v": pa.string()}
    data = [
        pa.RecordBatch.from_arrays(
            [pa.array(c, t) for c, t in zip(zip(*rows, strict=True), kinds.values(), strict=True)]
            if rows
            else [pa.array([], t) for t in kinds.values()],
            list(kinds),
        )
        for rows in ([(k, n, str(v)) for k, n, v in batch] for batch in batches)
    ]
    found = write_parts(data, tmp_path, ("k", "n"), is_tracked=False)
    import pyarrow.parquet as pq

    got: dict[tuple[str | None, str | None], list[str]] = {}
    for part in found:
        column = pq.ParquetFile(tmp_path / part.path).read()["v"].to_pylist()
        assert part.rows == len(column)
        assert json.loads(part.stats)["numRecords"] == len(column)
        assert part.size == (tmp_path / part.path).stat().st_size
        got[part.values["k"], part.values["n"]] = column
    want: dict[tuple[str | None, str | None], list[str]] = {}
    for k, n, v in (row for batch in batches for row in batch):
        want.setdefault((k, str(n)), []).append(str(v))
    assert got == want


def test_a_task_keeps_few_files_open_however_many_partitions_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "OPEN_FILES_MAX", 2)
    batch = pa.RecordBatch.from_pydict({"k": ["a", "b", "c", "a", "b", "c"], "v": range(6)})
    found = write_parts([batch, batch], tmp_path, ("k",), is_tracked=False)
    assert len(found) == 6  # each batch finds the file that it needs closed
    assert sum(part.rows for part in found) == 12


def test_a_task_that_fails_leaves_no_open_file_behind(tmp_path: Path) -> None:
    def batches() -> Any:
        yield pa.RecordBatch.from_pydict({"v": [1]})
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        write_parts(batches(), tmp_path, (), is_tracked=False)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_finished_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    batch = pa.RecordBatch.from_pydict({"k": ["a", "b"], "v": [1, 2]})
    with pytest.raises(OSError, match="No space"):
        write_parts([batch], tmp_path, ("k",), is_tracked=False)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_times_that_no_calendar_has_are_written_and_told_without_edges(tmp_path: Path) -> None:
    last_us = 253_402_300_800_000_000 - 1  # of the year 9999, which cannot be rounded up
    for at_us in (last_us, last_us + 1, 2**63 - 1, -(2**63)):
        times = pa.array([0, at_us], pa.int64()).view(pa.timestamp("us", tz="UTC"))
        batch = pa.RecordBatch.from_arrays([times, pa.array([1, 2])], ["at", "v"])
        (part,) = write_parts([batch], tmp_path, (), is_tracked=False)
        stats = json.loads(part.stats)
        assert (stats["minValues"], stats["maxValues"]) == ({"v": 1}, {"v": 2})
        assert stats["nullCount"] == {"at": 0, "v": 0}


def test_parts_tell_the_span_of_offsets_of_each_partition(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict(
        {"topic": ["a", "a", "b"], "partition": [0, 0, 3], "offset": [7, 9, 1]}
    )
    (part,) = write_parts([batch], tmp_path, (), is_tracked=True)
    assert part.spans == {("a", 0): Span(7, 9, 2), ("b", 3): Span(1, 1, 1)}
    assert parts.Part.from_row(part.to_row()) == part
    assert parts.spans_of_file(str(tmp_path / part.path)) == part.spans
