import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.record.malformed import MalformedBatch
from penstock.record.record import decode_varint, encode_varint


@pytest.mark.parametrize(
    ("value", "raw"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (64, "8001"), (-65, "8101"), (300, "d804")],
)
def test_known_values_have_their_known_bytes(value: int, raw: str) -> None:
    assert encode_varint(value).hex() == raw
    assert decode_varint(bytes.fromhex(raw), 0) == (value, len(raw) // 2)


@settings(deadline=None, max_examples=60)
@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_every_64_bit_value_round_trips_anywhere_in_a_buffer(
    value: int, before: bytes, behind: bytes
) -> None:
    raw = encode_varint(value)
    assert decode_varint(before + raw + behind, len(before)) == (value, len(before) + len(raw))
    assert len(raw) <= 10


@pytest.mark.parametrize("raw", ["", "80", "ffffffff", "80" * 10 + "00", "ff" * 20])
def test_a_varint_that_does_not_end_is_malformed(raw: str) -> None:
    with pytest.raises(MalformedBatch):
        decode_varint(bytes.fromhex(raw), 0)
