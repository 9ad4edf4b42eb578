"""Hashes of keys, compared with Kafka's producers."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cli.messages.producing import murmur2
from penstock.pipeline.writing.appender import hashes


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, 3))
def test_keys_go_where_kafkas_producers_send_them(keys: list[bytes], skip: int) -> None:
    found = hashes(pa.array(keys, pa.binary())[skip:])
    assert found.tolist() == [murmur2(key) & 0x7FFF_FFFF for key in keys[skip:]]
