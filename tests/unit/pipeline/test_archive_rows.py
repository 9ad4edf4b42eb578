"""How records are cut by hour, beside a model that goes through them one by one."""

from __future__ import annotations

import datetime

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.net.kafka_client.client import Place
from penstock.pipeline.archive.archive_rows import by_hour, known_id
from penstock.pipeline.parts import Span

PLACE = Place("t", 3)
YEAR_10000_US = 253_402_300_800_000_000
HOUR_US = 3_600_000_000


def batch_of(times: list[int], offsets: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(times, pa.int64()).view(pa.timestamp("us", tz="UTC")),
        }
    )


def folder_of(time_us: int) -> tuple[str, str]:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    at = epoch + datetime.timedelta(microseconds=time_us)
    return at.date().isoformat(), str(at.hour)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(-3 * HOUR_US, 30 * HOUR_US), max_size=30), max_size=4))
def test_every_record_is_in_its_hour_once_and_in_the_order_of_the_log(
    batches: list[list[int]],
) -> None:
    numbered: list[pa.RecordBatch] = []
    want: dict[tuple[str, str], list[int]] = {}
    offset = 100
    for times in batches:
        numbered.append(batch_of(times, list(range(offset, offset + 2 * len(times), 2))))
        for time_us in times:
            want.setdefault(folder_of(time_us), []).append(offset)
            offset += 2  # the log has gaps
    got: dict[tuple[str | None, ...], list[int]] = {}
    for values, rows, spans in by_hour(numbered, PLACE):
        offsets = rows.column("offset").to_pylist()
        got.setdefault(values, []).extend(offsets)
        assert spans == {("t", 3): Span(offsets[0], offsets[-1], len(offsets))}
    assert got == want


def test_a_batch_within_an_hour_is_handed_on_as_it_is() -> None:
    batch = batch_of([HOUR_US, 2 * HOUR_US - 1, HOUR_US + 5], [0, 1, 2])
    (piece,) = by_hour([batch], PLACE)
    assert piece.rows is batch
    assert piece.values == ("1970-01-01", "1")


def test_a_time_that_no_calendar_has_is_under_no_date() -> None:
    times = [YEAR_10000_US - 1, YEAR_10000_US, -62_135_596_800_000_000 - 1, -(2**63)]
    found = [piece.values for piece in by_hour([batch_of(times, [0, 1, 2, 3])], PLACE)]
    assert found == [(None, "19"), (None, "23"), ("9999-12-31", "23"), (None, "0")]


def test_an_id_of_zeros_is_none() -> None:
    assert known_id("0" * 32) == ""
    assert known_id("00ab") == "00ab"
