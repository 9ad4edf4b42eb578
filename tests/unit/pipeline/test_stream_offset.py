"""The offset of a streaming read in a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.net.kafka_client.client import Place
from penstock.pipeline.reading.offsets import OffsetUnreadable, StreamOffset


def test_an_offset_of_another_version_is_refused() -> None:
    offset = StreamOffset({Place("t", 1): 5}, {"t": "ab"})
    assert StreamOffset.from_json(offset.to_json()) == offset
    wrong: list[Any] = [{"v": 2, "topics": {}}, {"v": 1}, {"v": 1, "topics": {"t": {"0": "x"}}}, []]
    for bad in wrong:
        with pytest.raises(OffsetUnreadable):
            StreamOffset.from_json(bad)
