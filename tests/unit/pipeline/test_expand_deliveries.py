"""Records of ``__deliveries`` as rows: each row of the table, and where its record is."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.reading.expand import DELIVERIES_SCHEMA, expand_deliveries
from penstock.wire.facts.deliveries import (
    FLAGS,
    NUMBERS,
    TEXTS,
    DeliveryFacts,
    DeliveryRow,
    columns_of,
    encode,
)

ROW = DeliveryRow(60_000, "111", "eu", "s-1", "sns.orders", 3, 70, "id", 1, "delivered", 204, 12)


def record(*rows: DeliveryRow, flush: int = 1, left_out: int = 0) -> bytes:
    return encode(DeliveryFacts(1, "n1", "ab", flush, 65_000, left_out, columns_of(rows)))


def input_batch(*values: bytes | None, first: int = 0) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "partition": pa.array([0] * len(values), pa.int32()),
            "offset": pa.array(range(first, first + len(values)), pa.int64()),
            "value": pa.array(values, pa.binary()),
        }
    )


def told(row: DeliveryRow) -> dict[str, object]:
    renamed = {"topic": "source_topic", "partition": "source_partition", "offset": "source_offset"}
    return {renamed.get(name, name): each for name, each in msgspec.structs.asdict(row).items()}


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.lists(
            st.builds(
                DeliveryRow,
                **dict.fromkeys(TEXTS, st.text(max_size=3)),
                **dict.fromkeys(NUMBERS, st.integers(0, 2**31 - 1)),
                **dict.fromkeys(FLAGS, st.booleans()),
            ),
            max_size=4,
        ),
        max_size=4,
    )
)
def test_each_row_is_there_with_the_place_of_its_record(records: list[list[DeliveryRow]]) -> None:
    values = [record(*rows, flush=n, left_out=9) for n, rows in enumerate(records)]
    found = expand_deliveries(input_batch(*values, first=5))
    assert found.schema == DELIVERIES_SCHEMA
    head = {"partition": 0, "node": "n1", "incarnation": "ab", "written_at_ms": 65_000}
    assert found.to_pylist() == [
        {
            **head,
            "offset": 5 + n,
            "flush": n,
            "row_index": index,
            "left_out": 0 if index else 9,
            **told(row),
            "error": None,
        }
        for n, rows in enumerate(records)
        for index, row in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xc1", "the value is not a deliveries record"),
        (None, "the value is not a deliveries record"),
        (record(msgspec.structs.replace(ROW, at_ms=-1)), "a row has an invalid time"),
        (record(msgspec.structs.replace(ROW, at_ms=2**60)), "a row has an invalid time"),
        (record(msgspec.structs.replace(ROW, bytes=2**64 - 1)), ""),
        (record(msgspec.structs.replace(ROW, partition=2**40)), ""),
        (record(ROW, flush=2**64 - 1), ""),
    ],
)
def test_a_record_that_cannot_be_read_is_one_row_with_the_reason(
    value: bytes | None, reason: str
) -> None:
    good = record(ROW)
    first, bad, last = expand_deliveries(input_batch(good, value, good)).to_pylist()
    assert (first["offset"], bad["offset"], last["offset"]) == (0, 1, 2)
    assert first["error"] is None
    assert bad["error"].startswith(reason)
    assert bad["error"]
    assert {key for key, cell in bad.items() if cell is not None} == {
        "partition",
        "offset",
        "error",
    }
