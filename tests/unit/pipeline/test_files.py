"""Files that are replaced as a whole, and rows as Arrow batches."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.pipeline.arrow_map import batch_of, schema_of
from penstock.pipeline.files import replacing


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "status.json"
    with replacing(target, mode=0o640) as file:
        file.write(b"first")
        assert not target.exists()

    def fail() -> None:
        with replacing(target) as file:
            file.write(b"second")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert target.read_bytes() == b"first"
    assert target.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_schema_is_written_as_in_spark_and_rows_are_tuples() -> None:
    schema = schema_of("name string, at timestamp, day date, sizes list<long>, share double")
    assert schema.field("at").type == pa.timestamp("us", tz="UTC")
    day = datetime.date(2026, 1, 2)
    at = datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC)
    rows = [("a", at, day, [1, 2], 0.5), (None, None, None, None, None)]
    batch = batch_of(rows, schema)
    assert batch.schema == schema
    assert [tuple(row.values()) for row in batch.to_pylist()] == rows
    assert batch_of([], schema).num_rows == 0
