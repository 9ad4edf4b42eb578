"""Part files and commits of tables, without Spark."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.pipeline import parts
from penstock.pipeline.lake import (
    Lake,
    LakeError,
    LakeFenced,
)
from penstock.pipeline.parts import Span, write_parts


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def rows_of(table: str, lake: Lake) -> list[dict[str, Any]]:
    """Without Spark: another reader must see the same."""
    return list(lake.table(table).open().to_pyarrow_table().to_pylist())


def test_of_two_drivers_of_one_query_one_gets_a_batch_in(lake: Lake) -> None:
    table = lake.table("t")
    rows = pa.table({"x": [1, 2, 3]})
    table.ensure(rows.schema, ())
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
    table.ensure(rows.schema, ())
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
    table.ensure(rows.schema, ())
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


def test_vacuum_removes_orphans_of_yesterday_and_nothing_younger(lake: Lake) -> None:
    lake.append(pa.table({"x": [1]}), "t", app="j:q", batch_id=0)
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
    with pytest.raises(LakeError, match="is not a valid table name"):
        lake.table(name)


def test_tables_are_listed_by_name(lake: Lake) -> None:
    for name in ("archive/a", "archive/b", "usage"):
        lake.append(pa.table({"x": [1]}), name, app="j:q", batch_id=0)
    assert lake.tables() == ["archive/a", "archive/b", "usage"]
    assert lake.tables("archive") == ["archive/a", "archive/b"]
    assert lake.tables("nothing") == []


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
