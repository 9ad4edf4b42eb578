"""The form of ``__usage``: the bytes, and what readers make of other ones."""

from __future__ import annotations

import msgspec
import pytest

from penstock.wire.facts.usage import (
    FORM,
    UsageColumns,
    UsageFacts,
    UsageRow,
    UsageUnreadable,
    decode,
    encode,
)

# As it was first written to disk: whatever changes here, this stays readable and written alike.
WRITTEN = bytes.fromhex(
    "87a17601a46e6f6465a26e31ab696e6361726e6174696f6ea2616ba5666c75736803a96d696e7574655f6d73cd"
    "ea60ad7772697474656e5f61745f6d73cdfde8a7636f6c756d6e738ea674656e616e7492a3313131a0a6726567"
    "696f6e92a26575a26575a87265736f7572636592a46a6f6273a46a6f6273a46b696e6492a563616c6c73a77374"
    "6f72616765a26f7092af7371733a53656e644d657373616765a773746f72616765a87265717565737473920300"
    "a86d65737361676573920700a862797465735f696e92cd02bc00a962797465735f6f7574920000a8756e697473"
    "36346b920300a97468726f74746c6564920100a664656e696564920000a66661696c6564920000ac73746f7265"
    "645f62797465739200ce00989680"
)
ROWS = [
    UsageRow("111", "eu", "jobs", "calls", "sqs:SendMessage", 3, 7, 700, 0, 3, 1),
    UsageRow("", "eu", "jobs", "storage", "storage", stored_bytes=10_000_000),
]


def facts() -> UsageFacts:
    columns = UsageColumns()
    for row in ROWS:
        for name in UsageRow.__struct_fields__:
            getattr(columns, name).append(getattr(row, name))
    return UsageFacts(1, "n1", "ak", 3, 60_000, 65_000, columns)


def test_the_bytes_are_those_that_logs_have() -> None:
    assert encode(facts()) == WRITTEN
    read = decode(WRITTEN)
    assert list(read.columns.rows()) == ROWS
    assert read.name == ("n1", "ak", 3)


def test_a_block_has_the_head_and_leaves_columns_as_they_are() -> None:
    block = FORM.block(WRITTEN)
    assert (block.name, block.minute_ms, block.written_at_ms) == (("n1", "ak", 3), 60_000, 65_000)
    read = {name: msgspec.msgpack.decode(raw) for name, raw in block.columns.items()}
    assert read == msgspec.to_builtins(facts().columns)


def test_a_missing_number_is_zero_and_an_unknown_column_is_passed_over() -> None:
    plain = msgspec.to_builtins(facts())
    del plain["columns"]["units64k"]
    plain["columns"]["later"] = [1]
    assert decode(msgspec.msgpack.encode(plain)).columns.units64k == [0, 0]


def test_what_is_no_record_of_this_version_is_refused() -> None:
    with pytest.raises(UsageUnreadable, match="version 9; only 1 is supported"):
        decode(encode(msgspec.structs.replace(facts(), v=9)))
    with pytest.raises(UsageUnreadable, match="not a usage record"):
        decode(b"\xc1")
    uneven = facts()
    uneven.columns.op.append("one too many")
    with pytest.raises(UsageUnreadable, match="column op has 3 rows instead of 2"):
        decode(encode(uneven))
    plain = msgspec.to_builtins(facts())
    del plain["columns"]["op"]
    with pytest.raises(UsageUnreadable, match="column op has 0 rows"):
        decode(msgspec.msgpack.encode(plain))
