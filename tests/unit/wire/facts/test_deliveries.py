"""The form of ``__deliveries``: the bytes, and what readers make of other ones."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.facts.deliveries import (
    FLAGS,
    FORM,
    NUMBERS,
    TEXTS,
    DeliveriesUnreadable,
    DeliveryFacts,
    DeliveryRow,
    columns_of,
    decode,
    encode,
)

# As it was first written to disk: whatever changes here, this stays readable and written alike.
WRITTEN = bytes.fromhex(
    "87a17601a46e6f6465a26e31ab696e6361726e6174696f6ea2616ba5666c75736803ad7772697474656e5f6174"
    "5f6d73cdfde8a86c6566745f6f757407a7636f6c756d6e73de0012a561745f6d7392cdea60cdee48a674656e61"
    "6e7492a3313131a3313131a6726567696f6e92a26575a26575ac737562736372697074696f6e92a3732d31a373"
    "2d31a5746f70696392aa736e732e6f7264657273aa736e732e6f7264657273a9706172746974696f6e920300a6"
    "6f666673657492cf000001000000000005aa6d6573736167655f696492a83066386661643562a8643963623436"
    "3966a7617474656d7074920102a76f7574636f6d6592a964656c697665726564a57265747279a6737461747573"
    "92cccc00a26d73920ccd3a98a5627974657392cd0400ce00011170a6726561736f6e92a0a774696d656f7574a7"
    "6e6578745f6d739200ce000128e0a969735f7265706c617992c2c3a769735f7465737492c2c3a5736861726592a26162a0"
)
ROWS = [
    DeliveryRow(
        *(60_000, "111", "eu", "s-1", "sns.orders", 3, 2**40, "0f8fad5b", 1, "delivered"),
        *(204, 12, 1_024),
        share="ab",
    ),
    DeliveryRow(
        *(61_000, "111", "eu", "s-1", "sns.orders", 0, 5, "d9cb469f", 2, "retry"),
        *(0, 15_000, 70_000, "timeout", 76_000, True, True),
    ),
]


def facts(rows: list[DeliveryRow]) -> DeliveryFacts:
    return DeliveryFacts(1, "n1", "ak", 3, 65_000, 7, columns_of(rows))


def test_the_bytes_are_those_that_logs_have() -> None:
    assert encode(facts(ROWS)) == WRITTEN
    read = decode(WRITTEN)
    assert list(read.columns.rows()) == ROWS
    assert len(read.columns) == 2
    assert (read.name, read.written_at_ms, read.left_out) == (("n1", "ak", 3), 65_000, 7)


def test_every_column_is_a_text_a_number_or_a_flag() -> None:
    assert {*TEXTS, *NUMBERS, *FLAGS} == set(DeliveryRow.__struct_fields__)
    for row in ROWS:
        assert all(type(getattr(row, name)) is str for name in TEXTS)
        assert all(type(getattr(row, name)) is int for name in NUMBERS)
        assert all(type(getattr(row, name)) is bool for name in FLAGS)


@given(
    st.lists(
        st.builds(
            DeliveryRow,
            **dict.fromkeys(TEXTS, st.text(max_size=5)),
            **dict.fromkeys(NUMBERS, st.integers(-(2**63), 2**63 - 1)),
            **dict.fromkeys(FLAGS, st.booleans()),
        ),
        max_size=5,
    )
)
def test_rows_come_back_as_they_were(rows: list[DeliveryRow]) -> None:
    value = encode(facts(rows))
    assert list(decode(value).columns.rows()) == rows
    block = FORM.block(value)
    read = {name: msgspec.msgpack.decode(raw) for name, raw in block.columns.items()}
    assert read == msgspec.to_builtins(facts(rows).columns)


def test_a_missing_column_has_its_default_and_an_unknown_one_is_passed_over() -> None:
    plain = msgspec.to_builtins(facts(ROWS))
    for name in ("reason", "status", "is_replay"):
        del plain["columns"][name]
    plain["columns"]["later"] = [1]
    columns = decode(msgspec.msgpack.encode(plain)).columns
    assert (columns.reason, columns.status, columns.is_replay) == (
        ["", ""],
        [0, 0],
        [False, False],
    )


def test_what_is_no_record_of_this_version_is_refused() -> None:
    with pytest.raises(DeliveriesUnreadable, match="version 2; only 1 is supported"):
        decode(encode(msgspec.structs.replace(facts(ROWS), v=2)))
    with pytest.raises(DeliveriesUnreadable, match="not a deliveries record"):
        decode(b"\xc1")
    plain = msgspec.to_builtins(facts(ROWS))
    del plain["columns"]["offset"]
    with pytest.raises(DeliveriesUnreadable, match="column offset has 0 rows instead of 2"):
        decode(msgspec.msgpack.encode(plain))
